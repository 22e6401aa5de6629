/* Shards: what is written is read back, and whatever is not a whole shard is refused with file and reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "data/shard/manifest.h"
#include "data/shard/shard.h"
#include "../temp.h"

#include <errno.h>

static void write_shard(const char *path, int width, const int32_t *ids, int64_t count)
{
    struct shard_writer *w;
    assert_int_equal(shard_create(&w, path, SHARD_LLMC, width), STATUS_OK);
    int64_t half = count / 3;
    assert_int_equal(shard_append(w, ids, half), STATUS_OK);
    assert_int_equal(shard_append(w, ids + half, count - half), STATUS_OK);
    assert_int_equal(shard_commit(&w, NULL), STATUS_OK);
    assert_null(w);
}

static void tokens_of_both_widths_come_back(void **state)
{
    (void)state;
    enum { COUNT = 700000 }; /* more than the writer's buffer */
    int32_t *ids = malloc(COUNT * 4), *back = malloc(COUNT * 4);
    for (int width = 2; width <= 4; width += 2) {
        uint32_t mask = width == 2 ? 0xffff : 0x1ffff;
        for (int64_t i = 0; i < COUNT; i++)
            ids[i] = (int32_t)(rng_at(1, RNG_TEST, 0, (uint64_t)i).u[0] & mask);
        const char *path = temp_path("a.bin");
        write_shard(path, width, ids, COUNT);
        struct shard s;
        assert_int_equal(shard_open(&s, path), STATUS_OK);
        assert_int_equal(s.count, COUNT);
        assert_int_equal(s.width, width);
        assert_int_equal(shard_read(&s, 0, COUNT, mask + 1, back), STATUS_OK);
        assert_memory_equal(ids, back, COUNT * 4);
        assert_int_equal(shard_read(&s, 12345, 17, 0, back), STATUS_OK);
        assert_memory_equal(ids + 12345, back, 17 * 4);
        assert_int_equal(shard_read(&s, COUNT, 0, 0, back), STATUS_OK);
        shard_close(&s);
    }
    free(ids);
    free(back);
}

static void the_header_is_that_of_llm_c(void **state)
{
    (void)state;
    const int32_t ids[3] = {1, 513, 65535};
    write_shard(temp_path("h.bin"), 2, ids, 3);
    char *data;
    size_t bytes;
    assert_int_equal(io_read_file(temp_path("h.bin"), 4096, &data, &bytes), STATUS_OK);
    assert_int_equal(bytes, 1024 + 6);
    const unsigned char head[12] = {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3, 0, 0, 0},
                        tail[6] = {1, 0, 1, 2, 255, 255};
    assert_memory_equal(data, head, sizeof head);
    for (size_t i = 12; i < 1024; i++) assert_int_equal(data[i], 0);
    assert_memory_equal(data + 1024, tail, sizeof tail);
    free(data);
    write_shard(temp_path("h.bin"), 4, ids, 3);
    assert_int_equal(io_read_file(temp_path("h.bin"), 4096, &data, &bytes), STATUS_OK);
    const unsigned char head7[12] = {0xa1, 0xd9, 0x34, 0x01, 7, 0, 0, 0, 3, 0, 0, 0};
    assert_int_equal(bytes, 1024 + 12);
    assert_memory_equal(data, head7, sizeof head7);
    free(data);
}

static void refuse(const void *data, size_t bytes, const char *what)
{
    const char *path = temp_path("bad.bin");
    struct shard s;
    temp_write(path, data, bytes);
    assert_int_equal(shard_open(&s, path), STATUS_DATA);
    assert_non_null(strstr(status_message(), path));
    if (!strstr(status_message(), what)) fail_msg("'%s' does not contain '%s'", status_message(), what);
    shard_close(&s);
}

static void every_damage_is_named(void **state)
{
    (void)state;
    int32_t good[256 + 8] = {20240520, 1, 16}, h[256 + 8];
    const struct {
        int at;
        int32_t value;
        const char *what;
    } edits[] = {
        {0, 20240521, "no header"},
        {0, 0, "no header"},
        {0, 20240522, "evaluation"},
        {1, 2, "version 2, expected 1"},
        {1, 7, "version 7"},
        {2, -1, "count -1"},
        {2, INT32_MIN, "count"},
        {2, 15, "longer"},
        {2, 17, "truncated"},
        {2, INT32_MAX, "truncated"},
        {0, 20240801, "version 1, expected 7"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        memcpy(h, good, sizeof h);
        h[edits[i].at] = edits[i].value;
        refuse(h, sizeof h, edits[i].what);
    }
    for (size_t bytes = 0; bytes < sizeof good; bytes += bytes < 1020 ? 255 : 1)
        refuse(good, bytes, bytes == 0 ? "empty" : bytes < 1024 ? "header" : "truncated");
    memcpy(h, "\x93NUMPY", 6);
    refuse(h, sizeof h, "numpy");
    memcpy(h, "PAR1", 4);
    refuse(h, sizeof h, "Parquet");
    struct shard s;
    assert_int_equal(shard_open(&s, temp_path("absent.bin")), STATUS_IO);
    assert_int_equal(shard_open(&s, temp_dir), STATUS_IO);
}

static void an_id_beyond_the_vocabulary_is_named_with_its_place(void **state)
{
    (void)state;
    for (int width = 2; width <= 4; width += 2) {
        int32_t ids[1000] = {0}, out[1000];
        ids[777] = 50257;
        const char *path = temp_path("ids.bin");
        write_shard(path, width, ids, 1000);
        struct shard s;
        assert_int_equal(shard_open(&s, path), STATUS_OK);
        assert_int_equal(shard_read(&s, 100, 900, 50258, out), STATUS_OK);
        assert_int_equal(shard_read(&s, 100, 900, 50257, out), STATUS_DATA);
        assert_non_null(strstr(status_message(), path));
        assert_non_null(strstr(status_message(), "token 777 is id 50257"));
        assert_int_equal(shard_read(&s, 0, 777, 50257, out), STATUS_OK);
        shard_close(&s);
    }
    int32_t raw[257] = {20240801, 7, 1};
    raw[256] = -1; /* 4294967295 as u32 */
    temp_write(temp_path("wide.bin"), raw, sizeof raw);
    struct shard s;
    int32_t out;
    assert_int_equal(shard_open(&s, temp_path("wide.bin")), STATUS_OK);
    assert_int_equal(shard_read(&s, 0, 1, 0, &out), STATUS_DATA);
    shard_close(&s);
}

static void positions_beyond_four_gigabytes_are_right(void **state)
{
    (void)state;
    /* Sparse: 2^31 - 1 tokens of 4 bytes are 8 GiB, of which three blocks exist; two shards, 16 GiB. */
    const int32_t header[3] = {20240801, 7, INT32_MAX};
    for (int i = 0; i < 2; i++) {
        int fd = open(temp_path(i ? "big_1.bin" : "big_0.bin"), O_WRONLY | O_CREAT, 0644);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, header, sizeof header, 0), sizeof header);
        if (ftruncate(fd, 1024 + (int64_t)INT32_MAX * 4) != 0) {
            close(fd);
            skip();
        }
        const int32_t id = 11 + i, last = 21 + i;
        assert_int_equal(pwrite(fd, &id, 4, 1024 + 4ll * 1500000000), 4);
        assert_int_equal(pwrite(fd, &last, 4, 1024 + 4ll * (INT32_MAX - 1)), 4);
        close(fd);
    }
    struct shard_set s;
    assert_int_equal(shard_set_open(&s, temp_path("big_*.bin")), STATUS_OK);
    assert_int_equal(s.tokens, 2ll * INT32_MAX);
    int32_t out[3];
    assert_int_equal(shard_set_read(&s, 1499999999, 3, 100, out), STATUS_OK);
    assert_int_equal(out[1], 11);
    assert_int_equal(shard_set_read(&s, INT32_MAX - 2ll, 3, 100, out), STATUS_OK);
    assert_int_equal(out[1], 21);
    assert_int_equal(shard_set_read(&s, INT32_MAX + 1500000000ll, 1, 100, out), STATUS_OK);
    assert_int_equal(out[0], 12);
    assert_int_equal(shard_set_read(&s, 2ll * INT32_MAX - 3, 3, 100, out), STATUS_OK);
    assert_int_equal(out[2], 22);
    shard_set_close(&s);
    temp_clear();
}

static struct manifest sample_manifest(void)
{
    struct manifest m = {
        .tokenizer_dir = "../tok", .vocab_size = 1000, .eot = 999, .eod = EOD_AFTER, .width = 2};
    memset(m.tokenizer_hash, 'a', 64);
    const char *names[] = {"c_train_000000.bin", "c_train_000001.bin", "c_val_000000.bin"};
    for (int i = 0; i < 3; i++) {
        struct manifest_shard *row = manifest_add(&m, names[i], i < 2 ? "train" : "val");
        row->tokens = 10 + i, row->documents = 2 + i, row->text_bytes = 50 + i,
        row->xxh64 = 0xfedcba9876543210u + (unsigned)i;
    }
    struct manifest_input *input = manifest_add_input(&m, "a.txt.gz");
    input->bytes = 77, input->xxh64 = 0x1234;
    m.duplicates = (struct manifest_duplicates){.counted = true, .documents = 4, .text_bytes = 9};
    return m;
}

static void write_corpus(void)
{
    struct manifest m = sample_manifest();
    int32_t ids[16] = {0};
    for (int i = 0; i < 16; i++) ids[i] = i;
    for (int i = 0; i < m.count; i++) write_shard(temp_path(m.shards[i].file), 2, ids, m.shards[i].tokens);
    assert_int_equal(manifest_write(&m, temp_path("c_manifest.json")), STATUS_OK);
    manifest_free(&m);
}

static void a_set_is_one_stream_with_what_its_manifest_says(void **state)
{
    (void)state;
    write_corpus();
    struct manifest m;
    assert_int_equal(manifest_read(&m, temp_path("c_manifest.json")), STATUS_OK);
    assert_int_equal(m.count, 3);
    assert_true(m.shards[2].xxh64 == 0xfedcba9876543212u);
    assert_int_equal(m.input_count, 1);
    assert_string_equal(m.inputs[0].path, "a.txt.gz");
    assert_true(m.inputs[0].bytes == 77 && m.inputs[0].xxh64 == 0x1234);
    assert_true(m.duplicates.counted && !m.duplicates.removed && m.duplicates.documents == 4);
    manifest_free(&m);
    struct shard_set s;
    assert_int_equal(shard_set_open(&s, temp_path("c_train_*.bin")), STATUS_OK);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.tokens, 21);
    assert_int_equal(s.documents, 5);
    assert_int_equal(s.text_bytes, 101);
    assert_int_equal(s.eot, 999);
    assert_int_equal(s.eod, EOD_AFTER);
    assert_string_equal(s.tokenizer_dir, temp_path("../tok"));
    int32_t out[21];
    assert_int_equal(shard_set_read(&s, 0, 21, 1000, out), STATUS_OK);
    for (int i = 0; i < 21; i++) assert_int_equal(out[i], i < 10 ? i : i - 10);
    shard_set_close(&s);
    assert_int_equal(shard_set_open(&s, temp_path("c_val_000000.bin")), STATUS_OK);
    assert_int_equal(s.text_bytes, 52);
    assert_false(s.mixed);
    shard_set_close(&s);
    assert_int_equal(shard_set_open(&s, temp_path("c_*_*.bin")), STATUS_OK);
    assert_true(s.mixed);
    shard_set_close(&s);
}

static void a_set_that_disagrees_with_its_manifest_is_refused(void **state)
{
    (void)state;
    struct shard_set s;
    int32_t ids[16] = {0};
    write_corpus();
    write_shard(temp_path("c_train_000001.bin"), 2, ids, 9);
    assert_int_equal(shard_set_open(&s, temp_path("c_train_*.bin")), STATUS_DATA);
    assert_non_null(strstr(status_message(), "c_train_000001.bin"));
    write_corpus();
    write_shard(temp_path("c_train_000002.bin"), 2, ids, 9);
    assert_int_equal(shard_set_open(&s, temp_path("c_train_*.bin")), STATUS_DATA);
    assert_non_null(strstr(status_message(), "not listed"));
    temp_write(temp_path("c_manifest.pending"), "", 0);
    assert_int_equal(shard_set_open(&s, temp_path("c_val_*.bin")), STATUS_DATA);
    assert_non_null(strstr(status_message(), "interrupted"));
    assert_int_equal(shard_set_open(&s, temp_path("none_*.bin")), STATUS_DATA);
    temp_clear();
}

static void a_damaged_manifest_is_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"\"version\": 2", "\"version\": 4"},
        {"ingot-shards", "other"},
        {"\"after\"", "\"behind\""},
        {"\"eot\": 999", "\"eot\": 1000"},
        {"\"tokens\": 10", "\"tokens\": -1"},
        {"\"file\": \"c_", "\"file\": \"../c_"},
        {"fedcba98", "fedcbaG8"},
        {"\"shards\": [", "\"shards\": 3, \"x\": ["},
        {"\"skipped\": 0,", ""},
        {"{", "{{"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_corpus();
        char *text;
        size_t bytes;
        assert_int_equal(io_read_file(temp_path("c_manifest.json"), 1 << 20, &text, &bytes), STATUS_OK);
        char *at = strstr(text, bad[i][0]);
        if (!at) fail_msg("no '%s' in the manifest", bad[i][0]);
        char *edited = malloc(bytes + 64);
        int n = snprintf(edited, bytes + 64, "%.*s%s%s", (int)(at - text), text, bad[i][1],
                         at + strlen(bad[i][0]));
        temp_write(temp_path("c_manifest.json"), edited, (size_t)n);
        struct shard_set s;
        if (shard_set_open(&s, temp_path("c_train_*.bin")) != STATUS_DATA)
            fail_msg("'%s' was accepted", bad[i][1]);
        assert_non_null(strstr(status_message(), "c_manifest.json"));
        free(text);
        free(edited);
    }
    temp_clear();
}

/* The seal: any bit, any end, and white space too, which changes nothing that is read. */
static void every_change_of_a_manifest_is_noticed(void **state)
{
    (void)state;
    struct manifest m;
    char *text;
    size_t bytes;
    write_corpus();
    assert_int_equal(io_read_file(temp_path("c_manifest.json"), 1 << 20, &text, &bytes), STATUS_OK);
    for (size_t i = 0; i < bytes * 8; i++) {
        text[i / 8] ^= (char)(1 << i % 8);
        if (manifest_parse(&m, "m", text, bytes) != STATUS_DATA)
            fail_msg("bit %zu of byte %zu is not noticed", i % 8, i / 8);
        text[i / 8] ^= (char)(1 << i % 8);
    }
    for (size_t n = 0; n < bytes; n++)
        if (manifest_parse(&m, "m", text, n) != STATUS_DATA)
            fail_msg("cut at %zu of %zu is not noticed", n, bytes);
    char *more = malloc(bytes + 1);
    memcpy(more, text, bytes);
    more[bytes] = '\n';
    assert_int_equal(manifest_parse(&m, "m", more, bytes + 1), STATUS_DATA);
    assert_non_null(strstr(status_message(), "SHA-256"));
    /* who edits it leaves the line with the seal out */
    char *line = strstr(text, "\"sha256\""), *end = strchr(line, '\n') + 1;
    memmove(line, end, bytes - (size_t)(end - text));
    bytes -= (size_t)(end - line);
    assert_int_equal(manifest_parse(&m, "m", text, bytes), STATUS_OK);
    assert_int_equal(m.count, 3);
    manifest_free(&m);
    free(more);
    free(text);
    temp_clear();
}

static void foreign_shards_open_by_the_rule_for_them(void **state)
{
    (void)state;
    int32_t ids[4] = {50256, 1, 2, 3};
    struct shard_set s;
    write_shard(temp_path("fineweb_val_000000.bin"), 2, ids, 4);
    assert_int_equal(shard_set_open(&s, temp_path("fineweb_val_*.bin")), STATUS_OK);
    assert_false(s.manifest);
    assert_int_equal(s.eot, 50256);
    assert_int_equal(s.eod, EOD_BEFORE);
    assert_int_equal(s.vocab_size, 0);
    shard_set_close(&s);
    write_shard(temp_path("fineweb_val_000001.bin"), 4, ids, 4);
    assert_int_equal(shard_set_open(&s, temp_path("fineweb_val_000001.bin")), STATUS_OK);
    assert_int_equal(s.eot, 128000);
    shard_set_close(&s);
    assert_int_equal(shard_set_open(&s, temp_path("fineweb_val_*.bin")), STATUS_DATA); /* both widths */
    temp_clear();
}

static void the_prefix_of_a_shard_is_its_name_without_split_and_number(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"a_train_000000.bin", "a"},
        {"d.x/a_b_val_123456.bin", "d.x/a_b"},
        {"a_train_0000.bin", NULL},
        {"train_000000.bin", NULL},
        {"d/train_000000.bin", NULL},
        {"a_train_000000.bi", NULL},
        {"d_e/_000000.bin", NULL},
        {".bin", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char prefix[64];
        bool got = manifest_prefix(names[i][0], prefix, sizeof prefix);
        assert_int_equal(got, names[i][1] != NULL);
        if (got) assert_string_equal(prefix, names[i][1]);
    }
}

static void a_failing_system_call_leaves_no_shard_and_no_temporary(void **state)
{
    (void)state;
    static const int32_t ids[300000];
    int64_t calls = 1;
    for (int64_t k = 1; k <= calls; k++) {
        io_fault_set(k, ENOSPC);
        struct shard_writer *w;
        status st = shard_create(&w, temp_path("f.bin"), SHARD_LLMC, 4);
        if (st == STATUS_OK) st = shard_append(w, ids, 300000);
        if (st == STATUS_OK)
            st = shard_commit(&w, NULL);
        else
            shard_abandon(&w);
        calls = st == STATUS_OK ? calls : k + 1;
        io_fault_set(0, 0);
        assert_true(st == STATUS_OK || st == STATUS_IO);
        assert_int_equal(temp_count(".tmp-"), 0);
        struct shard s;
        if (temp_count("f.bin") > 0) { /* only the fsync of the directory failed: the file is complete */
            assert_int_equal(shard_open(&s, temp_path("f.bin")), STATUS_OK);
            shard_close(&s);
        }
        temp_clear();
    }
    assert_true(calls > 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_of_both_widths_come_back),
        cmocka_unit_test(the_header_is_that_of_llm_c),
        cmocka_unit_test(every_damage_is_named),
        cmocka_unit_test(an_id_beyond_the_vocabulary_is_named_with_its_place),
        cmocka_unit_test(positions_beyond_four_gigabytes_are_right),
        cmocka_unit_test(a_set_is_one_stream_with_what_its_manifest_says),
        cmocka_unit_test(a_set_that_disagrees_with_its_manifest_is_refused),
        cmocka_unit_test(a_damaged_manifest_is_refused),
        cmocka_unit_test(every_change_of_a_manifest_is_noticed),
        cmocka_unit_test(foreign_shards_open_by_the_rule_for_them),
        cmocka_unit_test(the_prefix_of_a_shard_is_its_name_without_split_and_number),
        cmocka_unit_test(a_failing_system_call_leaves_no_shard_and_no_temporary),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
