/* The index of documents: what was written comes back, going on gives the same file, and damage is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/shard/corpus_index.h"
#include "../temp.h"

enum { DOCUMENTS = 40000 }; /* more than one buffer */

static uint32_t begin_of(int64_t i)
{
    return (uint32_t)(3 * i + i % 2);
}

static void write_index(const char *name, int64_t stop, uint64_t *sum)
{
    char path[1024], temp[1024];
    snprintf(path, sizeof path, "%s", temp_path(name));
    snprintf(temp, sizeof temp, "%s.open", path);
    struct corpus_index_writer *w;
    assert_int_equal(corpus_index_create(&w, path, temp, 0), STATUS_OK);
    for (int64_t i = 0; i < DOCUMENTS; i++) {
        if (i ==
            stop) { /* a process that ends here: what was not synced is lost, what is there too much is cut */
            assert_int_equal(corpus_index_sync(w), STATUS_OK);
            for (int64_t more = i; more < DOCUMENTS; more++)
                assert_int_equal(corpus_index_add(w, 7), STATUS_OK);
            corpus_index_leave(&w);
            assert_int_equal(corpus_index_create(&w, path, temp, i), STATUS_OK);
        }
        assert_int_equal(corpus_index_add(w, begin_of(i)), STATUS_OK);
    }
    assert_int_equal(corpus_index_commit(&w, 3 * DOCUMENTS, sum), STATUS_OK);
    assert_null(w);
}

static void what_was_written_comes_back_also_after_a_pause(void **state)
{
    (void)state;
    uint64_t want, got;
    write_index("a.idx", -1, &want);
    static const int64_t stops[] = {1, 100, 16384, 16385, 39999};
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        write_index("b.idx", stops[i], &got);
        assert_true(got == want);
        struct corpus_index x;
        assert_int_equal(corpus_index_open(&x, temp_path("b.idx")), STATUS_OK);
        assert_int_equal(x.documents, DOCUMENTS);
        assert_int_equal(x.tokens, 3 * DOCUMENTS);
        for (int64_t d = 0; d < DOCUMENTS; d++) assert_int_equal(x.begins[d], begin_of(d));
        corpus_index_close(&x);
    }
    temp_clear();
}

static void going_on_after_more_than_is_there_is_refused(void **state)
{
    (void)state;
    struct corpus_index_writer *w;
    assert_int_equal(corpus_index_create(&w, temp_path("c.idx"), temp_path("c.open"), 0), STATUS_OK);
    assert_int_equal(corpus_index_add(w, 0), STATUS_OK);
    assert_int_equal(corpus_index_sync(w), STATUS_OK);
    corpus_index_leave(&w);
    assert_int_equal(corpus_index_create(&w, temp_path("c.idx"), temp_path("c.open"), 2), STATUS_DATA);
    assert_null(w);
    temp_clear();
}

static void damage_is_refused(void **state)
{
    (void)state;
    uint64_t sum;
    write_index("d.idx", -1, &sum);
    char *data, name[1024];
    size_t bytes;
    snprintf(name, sizeof name, "%s", temp_path("d.idx"));
    assert_int_equal(io_read_file(name, 1 << 20, &data, &bytes), STATUS_OK);
    static const struct {
        size_t at;
        const char *what;
    } flips[] = {{0, "INGOTIDX"},  {8, "version"},         {12, "bytes per document"}, {24, "expected 64 +"},
                 {32, "checksum"}, {64 + 400, "checksum"}, {40, "not zero"},           {63, "not zero"}};
    struct corpus_index x;
    for (size_t i = 0; i < sizeof flips / sizeof flips[0]; i++) {
        data[flips[i].at] ^= 1;
        assert_int_equal(corpus_index_parse(&x, name, data, bytes), STATUS_DATA);
        if (!strstr(status_message(), flips[i].what))
            fail_msg("'%s' does not say '%s'", status_message(), flips[i].what);
        data[flips[i].at] ^= 1;
    }
    for (size_t cut = 0; cut < 200; cut++)
        assert_int_equal(corpus_index_parse(&x, name, data, cut), STATUS_DATA);
    assert_int_equal(corpus_index_parse(&x, name, data, bytes), STATUS_OK);
    int64_t tokens = begin_of(DOCUMENTS - 1); /* the last document would begin at the end */
    memcpy(data + 16, &tokens, sizeof tokens);
    assert_int_equal(corpus_index_parse(&x, name, data, bytes), STATUS_DATA);
    free(data);
    temp_clear();
}

static void the_name_follows_the_shards(void **state)
{
    (void)state;
    char name[64];
    corpus_index_name("d.x/c_train_000001.bin", name, sizeof name);
    assert_string_equal(name, "d.x/c_train_000001.idx");
    corpus_index_name("d.x/c", name, sizeof name);
    assert_string_equal(name, "d.x/c.idx");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_comes_back_also_after_a_pause),
        cmocka_unit_test(going_on_after_more_than_is_there_is_refused),
        cmocka_unit_test(damage_is_refused),
        cmocka_unit_test(the_name_follows_the_shards),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
