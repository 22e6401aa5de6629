/* Builds: the same bytes for any number of threads, all or nothing on disk, and the text comes back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/parallel.h"
#include "base/rng.h"
#include "data/build/build.h"
#include "data/tokenizer/tokenizer.h"
#include "../temp.h"
#include "tokenizer_fixture.h"

#include <errno.h>

enum { DOCS = 3000 };
static char tokenizer_dir[1024], corpus_path[1024];
static char prefix_text[1024];
static const char *inputs[2];

/* A corpus of DOCS lines of made-up words, and a tokenizer trained on it. Enough text for many groups. */
static int setup(void **state)
{
    if (temp_open(state) != 0) return -1;
    char in_dir[600];
    snprintf(in_dir, sizeof in_dir, "%s-in", temp_dir);
    if (io_make_dirs(in_dir) != STATUS_OK) return -1;
    snprintf(tokenizer_dir, sizeof tokenizer_dir, "%s/tok", in_dir);
    snprintf(corpus_path, sizeof corpus_path, "%s/corpus.txt", in_dir);
    FILE *f = fopen(corpus_path, "wb");
    for (int d = 0; d < DOCS; d++) {
        int words = 1 + (int)(rng_at(1, RNG_TEST, (uint64_t)d, 0).u[0] % 60);
        for (int w = 0; w < words; w++) {
            uint32_t r = rng_at(1, RNG_TEST, (uint64_t)d, (uint64_t)w + 1).u[0];
            fprintf(f, "%s%.*s", w ? " " : "", 1 + (int)(r % 7),
                    &"abcdefghijklmnopqrs\xc3\xa9"[(r >> 8) % 12]);
        }
        fputc('\n', f);
    }
    fclose(f);
    if (tokenizer_fixture_of_file(corpus_path, tokenizer_dir) != 0) return -1;
    inputs[0] = corpus_path;
    return 0;
}

static int teardown(void **state)
{
    char in_dir[600];
    snprintf(in_dir, sizeof in_dir, "%s-in", temp_dir);
    return io_remove_tree(in_dir) == STATUS_OK ? temp_close(state) : -1;
}

static struct build_config config_for(const char *prefix)
{
    snprintf(prefix_text, sizeof prefix_text, "%s", prefix);
    return (struct build_config){.inputs = inputs,
                                 .input_count = 1,
                                 .prefix = prefix_text,
                                 .tokenizer_dir = tokenizer_dir,
                                 .reader = {.separator = READER_LINE, .batch_bytes = 50000},
                                 .val = BUILD_VAL_HASH,
                                 .val_fraction = 0.1,
                                 .eod = EOD_AFTER,
                                 .shard_tokens = 20000};
}

/* All files of a directory in the temporary one whose names begin with `prefix`, as one text. */
static char *directory_contents_of(const char *dir, const char *prefix, size_t *bytes)
{
    struct io_list list;
    char *all = NULL, path[1200];
    *bytes = 0;
    assert_int_equal(io_list(temp_path(dir), &list), STATUS_OK);
    for (int i = 0; i < list.count; i++) {
        if (strncmp(list.names[i], prefix, strlen(prefix)) != 0) continue;
        char *data;
        size_t n;
        snprintf(path, sizeof path, "%s/%s", temp_path(dir), list.names[i]);
        assert_int_equal(io_read_file(path, 1 << 26, &data, &n), STATUS_OK);
        all = realloc(all, *bytes + n + 256);
        int head = snprintf(all + *bytes, 256, "%s:", list.names[i] + strlen(prefix));
        memcpy(all + *bytes + head, data, n);
        *bytes += (size_t)head + n;
        free(data);
    }
    io_list_free(&list);
    return all;
}

static char *directory_contents(const char *prefix, size_t *bytes)
{
    return directory_contents_of(".", prefix, bytes);
}

static void any_number_of_threads_builds_the_same_bytes(void **state)
{
    (void)state;
    char *want = NULL;
    size_t want_bytes = 0;
    for (int threads = 1; threads <= 3; threads++) {
        parallel_threads_set(threads);
        struct build_config c = config_for(temp_path("a"));
        c.force = threads > 1;
        c.reader.batch_bytes = threads == 2 ? 300000 : 50000; /* batches must not matter either */
        struct build_report r;
        assert_int_equal(build_run(&c, &r), STATUS_OK);
        assert_int_equal(r.train.documents + r.val.documents, DOCS);
        assert_true(r.train.shards > 2 && r.val.shards == 1);
        assert_true(r.val.documents > DOCS / 10 - 6 * 17 &&
                    r.val.documents < DOCS / 10 + 6 * 17); /* 6 sigma */
        size_t bytes;
        char *got = directory_contents("a_", &bytes);
        if (!want) want = got, want_bytes = bytes;
        assert_int_equal(bytes, want_bytes);
        assert_memory_equal(got, want, bytes);
        if (got != want) free(got);
    }
    free(want);
    parallel_threads_set(0);
    temp_clear();
}

/* The decoded text of a split, documents ended by '\n' in place of the end-of-text token. */
static char *decode_split(const char *pattern, size_t *bytes, struct shard_set *about)
{
    struct shard_set s;
    struct tokenizer *t;
    assert_int_equal(shard_set_open(&s, pattern), STATUS_OK);
    assert_int_equal(tokenizer_load(&t, s.tokenizer_dir), STATUS_OK);
    int32_t *ids = malloc((size_t)s.tokens * 4);
    assert_int_equal(shard_set_read(&s, 0, s.tokens, s.vocab_size, ids), STATUS_OK);
    char *out = NULL;
    *bytes = 0;
    int64_t from = 0;
    for (int64_t i = 0; i <= s.tokens; i++) {
        if (i < s.tokens && ids[i] != s.eot) continue;
        assert_int_equal(tokenizer_decode(t, ids + from, i - from, &out, bytes), STATUS_OK);
        if (i < s.tokens) {
            out = realloc(out, *bytes + 1);
            out[(*bytes)++] = '\n';
        }
        from = i + 1;
    }
    free(ids);
    tokenizer_free(t);
    *about = s;
    shard_set_close(about);
    *about = (struct shard_set){
        .tokens = s.tokens, .documents = s.documents, .text_bytes = s.text_bytes, .eot = s.eot, .eod = s.eod};
    return out;
}

static void the_text_comes_back_and_is_counted(void **state)
{
    (void)state;
    struct build_config c = config_for(temp_path("b"));
    c.val = BUILD_VAL_TAIL;
    struct build_report r;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    size_t want_bytes, train_bytes, val_bytes;
    char *want, *train, *val;
    struct shard_set about;
    assert_int_equal(io_read_file(corpus_path, 1 << 24, &want, &want_bytes), STATUS_OK);
    train = decode_split(temp_path("b_train_*.bin"), &train_bytes, &about);
    assert_int_equal(about.documents, r.train.documents);
    assert_int_equal(about.text_bytes, (int64_t)train_bytes - about.documents);
    assert_int_equal(about.eod, EOD_AFTER);
    val = decode_split(temp_path("b_val_*.bin"), &val_bytes, &about);
    assert_int_equal(about.text_bytes, (int64_t)val_bytes - about.documents);
    assert_int_equal(about.documents, r.val.documents);
    assert_int_equal(train_bytes + val_bytes, want_bytes);
    assert_memory_equal(train, want, train_bytes);
    assert_memory_equal(val, want + train_bytes, val_bytes);
    assert_true(val_bytes <= want_bytes / 10 &&
                val_bytes > want_bytes / 10 - 600); /* one document less at most */
    free(want);
    free(train);
    free(val);
    temp_clear();
}

static void a_lone_text_is_divided_at_a_line(void **state)
{
    (void)state;
    struct build_config c = config_for(temp_path("c"));
    c.val = BUILD_VAL_TAIL;
    c.reader.separator = READER_FILE;
    c.eod = EOD_BEFORE;
    struct build_report r;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    assert_int_equal(r.train.documents, 1);
    assert_int_equal(r.val.documents, 1);
    size_t want_bytes, train_bytes, val_bytes;
    char *want, *train, *val;
    struct shard_set about;
    assert_int_equal(io_read_file(corpus_path, 1 << 24, &want, &want_bytes), STATUS_OK);
    train = decode_split(temp_path("c_train_*.bin"), &train_bytes, &about);
    val = decode_split(temp_path("c_val_*.bin"), &val_bytes, &about);
    assert_int_equal(train_bytes + val_bytes, want_bytes + 2); /* an end-of-text token leads each */
    assert_memory_equal(train + 1, want, train_bytes - 1);
    assert_int_equal(train[train_bytes - 1], '\n');
    assert_memory_equal(val + 1, want + train_bytes - 1, val_bytes - 1);
    assert_int_equal(about.text_bytes, (int64_t)val_bytes - 1);
    free(want);
    free(train);
    free(val);
    temp_clear();
}

static void the_hash_split_does_not_depend_on_order_or_neighbours(void **state)
{
    (void)state;
    struct build_config c = config_for(temp_path("d"));
    struct build_report once, twice;
    assert_int_equal(build_run(&c, &once), STATUS_OK);
    inputs[1] = corpus_path;
    c.input_count = 2;
    c.force = true;
    assert_int_equal(build_run(&c, &twice), STATUS_OK);
    assert_int_equal(twice.val.documents, 2 * once.val.documents);
    assert_int_equal(twice.val.tokens, 2 * once.val.tokens);
    c.val = BUILD_VAL_EVERY, c.val_every = 7;
    assert_int_equal(build_run(&c, &twice), STATUS_OK);
    assert_int_equal(twice.val.documents, 2 * DOCS / 7);
    temp_clear();
}

static void an_existing_corpus_is_replaced_only_by_force(void **state)
{
    (void)state;
    struct build_config c = config_for(temp_path("e"));
    struct build_report r;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    size_t before, after;
    char *a = directory_contents("e", &before), *b;
    assert_int_equal(build_run(&c, &r), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "--force"));
    b = directory_contents("e", &after);
    assert_int_equal(before, after);
    assert_memory_equal(a, b, after);
    free(a);
    free(b);
    c.force = true;
    c.shard_tokens = 1000000;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    assert_int_equal(temp_count("e_train_"), 2); /* a shard and its index, none of the earlier build */
    struct shard_set s;
    assert_int_equal(shard_set_open(&s, temp_path("e_*_*.bin")), STATUS_OK);
    shard_set_close(&s);
    temp_clear();
}

static void bad_documents_stop_the_build_or_are_counted(void **state)
{
    (void)state;
    temp_write(temp_path("bad.txt"), "good line\nbad \xff line\nmore\n\xc0\nend\n", 32);
    char in_path[1024];
    snprintf(in_path, sizeof in_path, "%s", temp_path("bad.txt"));
    const char *in[] = {in_path};
    struct build_config c = config_for(temp_path("f"));
    c.inputs = in;
    c.val = BUILD_VAL_NONE;
    struct build_report r;
    assert_int_equal(build_run(&c, &r), STATUS_DATA);
    assert_non_null(strstr(status_message(), "bad.txt:2: invalid UTF-8 (byte 14 of the file)"));
    assert_int_equal(temp_count("f_"), 0);
    c.skip_errors = true;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    assert_int_equal(r.skipped, 2);
    assert_int_equal(r.train.documents, 3);
    struct manifest m;
    assert_int_equal(manifest_read(&m, temp_path("f_manifest.json")), STATUS_OK);
    assert_int_equal(m.skipped, 2);
    manifest_free(&m);
    c.force = true;
    c.val = BUILD_VAL_TAIL, c.val_fraction = 1e-6;
    assert_int_equal(build_run(&c, &r), STATUS_DATA); /* nothing for validation */
    temp_clear();
}

/* Every shard that a reader would open belongs to a complete corpus: no failure may break this. */
static void assert_whole_or_refused(const char *prefix)
{
    char pattern[1200];
    for (int split = 0; split < 2; split++) {
        struct shard_set s;
        snprintf(pattern, sizeof pattern, "%s_%s_*.bin", prefix, split ? "val" : "train");
        status st = shard_set_open(&s, pattern);
        if (st == STATUS_OK) {
            assert_true(s.manifest);
            shard_set_close(&s);
        } else {
            assert_int_equal(st, STATUS_DATA);
        }
    }
}

/* What a failed build may leave: the old corpus, and with a journal all that is needed to go on. */
static void assert_tidy(void)
{
    struct io_list list;
    assert_int_equal(io_list(temp_path("out"), &list), STATUS_OK);
    bool journal = temp_there(temp_path("out/g_build.journal"));
    for (int i = 0; i < list.count; i++) {
        assert_null(strstr(list.names[i], ".tmp-"));
        assert_null(strstr(list.names[i], ".lock"));
        if (journal) continue;
        assert_null(strstr(list.names[i], ".part"));
        assert_null(strstr(list.names[i], ".open"));
        assert_null(strstr(list.names[i], "_build."));
    }
    io_list_free(&list);
}

static void after_a_failure_of_any_system_call_the_same_build_gives_the_same_bytes(void **state)
{
    (void)state;
    temp_write(temp_path("small.txt"), "one\ntwo\nthree\nfour\nfive\nsix\n", 28);
    char prefix[1024], in_path[1024];
    snprintf(prefix, sizeof prefix, "%s/out/g", temp_dir);
    snprintf(in_path, sizeof in_path, "%s", temp_path("small.txt"));
    const char *in[] = {in_path};
    struct build_config c = config_for(prefix);
    c.inputs = in;
    c.val = BUILD_VAL_EVERY, c.val_every = 3;
    c.shard_tokens = 10;
    c.reader.batch_bytes = 8; /* a batch per line or two */
    c.sync_s = -1;
    struct build_report r;
    parallel_threads_set(1);
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    size_t want_bytes, got_bytes;
    char *want = directory_contents_of("out", "g", &want_bytes), *got;
    int64_t calls = 1;
    for (int force = 0; force <= 1; force++) {
        for (int64_t k = calls = 1; k <= calls; k++) {
            assert_int_equal(io_remove_tree(temp_path("out")), STATUS_OK);
            c.force = false;
            if (force) assert_int_equal(build_run(&c, &r), STATUS_OK);
            c.force = force;
            io_fault_set(k, ENOSPC);
            status st = build_run(&c, &r);
            bool reached = io_fault_calls() >= k;
            io_fault_set(0, 0);
            if (reached) calls = k + 1;
            assert_true(st == STATUS_OK || st == STATUS_IO || st == STATUS_DATA);
            assert_whole_or_refused(prefix);
            assert_tidy();
            if (st != STATUS_OK && build_run(&c, &r) != STATUS_OK)
                fail_msg("after a fault at call %lld: %s", (long long)k, status_message());
            got = directory_contents_of("out", "g", &got_bytes);
            if (got_bytes != want_bytes || memcmp(got, want, got_bytes) != 0)
                fail_msg("force %d, call %lld (%d): other bytes", force, (long long)k, (int)st);
            free(got);
        }
        assert_true(calls > 100);
    }
    free(want);
    parallel_threads_set(0);
    temp_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads_builds_the_same_bytes),
        cmocka_unit_test(the_text_comes_back_and_is_counted),
        cmocka_unit_test(a_lone_text_is_divided_at_a_line),
        cmocka_unit_test(the_hash_split_does_not_depend_on_order_or_neighbours),
        cmocka_unit_test(an_existing_corpus_is_replaced_only_by_force),
        cmocka_unit_test(bad_documents_stop_the_build_or_are_counted),
        cmocka_unit_test(after_a_failure_of_any_system_call_the_same_build_gives_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
