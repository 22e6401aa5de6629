/* What builds read and write beyond text and llm.c's shards: other formats, shards as input, documents that are
 * encoded in parts. */
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

enum { LINES = 2000, LONG_BYTES = 11 << 20 };
static char in_dir[600], tokenizer_dir[700], lines_path[700], long_path[700], jsonl_path[700];
static char *long_text;
static size_t long_bytes;

static size_t add_words(char *out, uint64_t stream, int words)
{
    size_t used = 0;
    for (int w = 0; w < words; w++) {
        uint32_t r = rng_at(1, RNG_TEST, stream, (uint64_t)w).u[0];
        used += (size_t)snprintf(out + used, 16, "%s%.*s", w ? " " : "", 1 + (int)(r % 7),
                                 &"abcdefghijklmnopqrs"[(r >> 8) % 12]);
    }
    return used;
}

static void write_inputs(void)
{
    FILE *lines = fopen(lines_path, "wb"), *json = fopen(jsonl_path, "wb");
    char line[1024];
    for (uint64_t d = 0; d < LINES; d++) {
        add_words(line, d, 1 + (int)(d * 7 % 50));
        fprintf(lines, "%s\n", line);
    }
    fclose(lines);
    long_text = malloc(LONG_BYTES + 2000);
    while (long_bytes <
           LONG_BYTES) { /* words, then a stretch where no cut is to be found for longer than a part */
        if (long_bytes > 5 << 20 && long_bytes < 7 << 20) {
            memset(long_text + long_bytes, 'a', 3 << 20);
            long_bytes += 3 << 20;
        }
        long_bytes += add_words(long_text + long_bytes, long_bytes, 90);
        long_text[long_bytes++] = '\n';
    }
    temp_write(long_path, long_text, long_bytes);
    fputs("{\"text\": \"", json); /* the same in JSON, between two short ones */
    fputs("short\"}\n{\"text\": \"", json);
    for (size_t i = 0; i < long_bytes; i++)
        if (long_text[i] == '\n')
            fputs("\\n", json);
        else
            fputc(long_text[i], json);
    fputs("\"}\n{\"text\": \"the end\"}\n", json);
    fclose(json);
}

static int setup(void **state)
{
    if (temp_open(state) != 0) return -1;
    snprintf(in_dir, sizeof in_dir, "%s-in", temp_dir);
    snprintf(tokenizer_dir, sizeof tokenizer_dir, "%s/tok", in_dir);
    snprintf(lines_path, sizeof lines_path, "%s/a.txt", in_dir);
    snprintf(long_path, sizeof long_path, "%s/long.txt", in_dir);
    snprintf(jsonl_path, sizeof jsonl_path, "%s/b.jsonl", in_dir);
    if (io_make_dirs(in_dir) != STATUS_OK) return -1;
    write_inputs();
    if (tokenizer_fixture((struct text){long_text, 200000}, tokenizer_dir) != 0) return -1;
    return 0;
}

static int teardown(void **state)
{
    free(long_text);
    parallel_threads_set(0);
    return io_remove_tree(in_dir) == STATUS_OK ? temp_close(state) : -1;
}

static const char *inputs[1];
static char prefix_text[1024];

static struct build_config config_for(const char *input, const char *name)
{
    inputs[0] = input;
    snprintf(prefix_text, sizeof prefix_text, "%s/%s", temp_dir, name);
    return (struct build_config){.inputs = inputs,
                                 .input_count = 1,
                                 .prefix = prefix_text,
                                 .tokenizer_dir = tokenizer_dir,
                                 .hints = {.eot = EOT_AUTO, .eod = EOD_AUTO},
                                 .reader = {.separator = READER_LINE, .batch_bytes = 8192},
                                 .eod = EOD_AFTER,
                                 .shard_tokens = 5000};
}

/* The tokens and documents of a pattern. */
struct stream {
    int32_t *ids;
    int64_t count, documents, *starts;
};
static struct stream read_stream(const char *pattern)
{
    struct shard_set s;
    struct document_index d;
    if (shard_set_open(&s, pattern) != STATUS_OK) fail_msg("%s", status_message());
    assert_int_equal(shard_set_documents(&s, &d), STATUS_OK);
    assert_int_equal(d.count, s.documents);
    struct stream out = {.count = s.tokens, .documents = d.count, .starts = d.starts};
    out.ids = malloc((size_t)s.tokens * sizeof *out.ids);
    assert_int_equal(shard_set_read(&s, 0, s.tokens, s.vocab_size, out.ids), STATUS_OK);
    shard_set_close(&s);
    return out;
}

static void assert_same_stream(struct stream *a, struct stream *b)
{
    assert_int_equal(a->count, b->count);
    assert_int_equal(a->documents, b->documents);
    assert_memory_equal(a->ids, b->ids, (size_t)a->count * sizeof *a->ids);
    assert_memory_equal(a->starts, b->starts, (size_t)a->documents * sizeof *a->starts);
}

static void stream_free(struct stream *s)
{
    free(s->ids);
    free(s->starts);
}

static bool stop_after(void *ctx)
{
    return --*(int *)ctx < 0;
}

static const enum shard_format formats[] = {SHARD_LLMC, SHARD_NPY, SHARD_MEGATRON};
static const char *const patterns[] = {"f0_train_*.bin", "f1_train_*.npy", "f2_train_*.bin"};

static void every_format_holds_the_same_documents_also_after_stops(void **state)
{
    (void)state;
    struct build_report r;
    struct stream want = {0};
    for (int f = 0; f < 3; f++) {
        char name[8];
        snprintf(name, sizeof name, "f%d", f);
        struct build_config c = config_for(lines_path, name);
        c.format = formats[f];
        c.stop = stop_after;
        int stops = 0, batches = 3;
        c.ctx = &batches;
        status st;
        while ((st = build_run(&c, &r)) == STATUS_STOPPED) batches = 3 + stops++;
        assert_int_equal(st, STATUS_OK);
        assert_true(stops > 2);
        struct stream got = read_stream(temp_path(patterns[f]));
        assert_int_equal(got.documents, LINES);
        if (f == 0) want = got;
        assert_same_stream(&got, &want);
        if (f > 0) stream_free(&got);
    }
    stream_free(&want);
}

static void shards_of_every_format_are_input(void **state)
{
    (void)state; /* those of the test before */
    struct build_report r;
    struct stream want = read_stream(temp_path(patterns[0]));
    for (int f = 0; f < 3; f++) {
        char pattern[1024];
        snprintf(pattern, sizeof pattern, "%s", temp_path(patterns[f]));
        struct build_config c = config_for(pattern, "g");
        c.force = true;
        c.tokenizer_dir = f == 1 ? tokenizer_dir : NULL; /* else as in the manifest */
        c.reader.batch_bytes = 3000;
        assert_int_equal(build_run(&c, &r), STATUS_OK);
        assert_int_equal(r.train.documents, LINES);
        assert_true(r.train.text_bytes > 0);
        struct stream got = read_stream(temp_path("g_train_*.bin"));
        assert_same_stream(&got, &want);
        stream_free(&got);
        c.eod = EOD_BEFORE; /* the end-of-text token moves */
        assert_int_equal(build_run(&c, &r), STATUS_OK);
        got = read_stream(temp_path("g_train_*.bin"));
        assert_int_equal(got.count, want.count);
        assert_int_equal(got.ids[0], 399);
        assert_memory_equal(got.ids + 1, want.ids, 4);
        stream_free(&got);
    }
    stream_free(&want);
}

static void shards_of_nobody_need_a_vocabulary(void **state)
{
    (void)state;
    const uint16_t raw[] = {7, 1, 2, 3, 7, 4, 5, 7, 6};
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path("raw.bin"));
    temp_write(path, raw, sizeof raw);
    struct build_config c = config_for(path, "w");
    struct build_report r;
    c.tokenizer_dir = NULL;
    assert_int_equal(build_run(&c, &r), STATUS_CONFIG); /* text without a tokenizer */
    c.hints = (struct shard_hints){.type = SHARD_TYPE_U16, .eot = 7, .eod = EOD_BEFORE};
    assert_int_equal(build_run(&c, &r), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "--vocab-size"));
    c.vocab_size = 6;
    c.eod = EOD_NONE;
    assert_int_equal(build_run(&c, &r), STATUS_DATA);
    assert_non_null(strstr(status_message(), "raw.bin"));
    c.vocab_size = 8;
    c.eod = EOD_AFTER;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    assert_int_equal(r.train.documents, 3);
    struct stream got = read_stream(temp_path("w_train_*.bin"));
    const int32_t want[] = {1, 2, 3, 7, 4, 5, 7, 6, 7};
    assert_int_equal(got.count, 9);
    assert_memory_equal(got.ids, want, sizeof want);
    stream_free(&got);
}

/* Shards of four bytes per id: llm.c's version 7, what ingot writes above 65,536 ids. */
static void a_wide_shard_is_known_by_its_name_alone(void **state)
{
    (void)state;
    const int32_t raw[] = {70000, 1, 2, 3, 70000, 4, 5};
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path("wide.raw"));
    temp_write(path, raw, sizeof raw);
    struct build_config c = config_for(path, "v");
    struct build_report r;
    c.tokenizer_dir = NULL;
    c.vocab_size = 100000;
    c.eod = EOD_BEFORE;
    c.hints = (struct shard_hints){.type = SHARD_TYPE_I32, .eot = 70000, .eod = EOD_BEFORE};
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    snprintf(path, sizeof path, "%s", temp_path("v_train_000000.bin"));
    c = config_for(path, "v2");
    c.tokenizer_dir = NULL;
    c.eod = EOD_BEFORE;
    c.skip_errors = true;
    if (build_run(&c, &r) != STATUS_OK) fail_msg("%s", status_message());
    struct stream got = read_stream(temp_path("v2_train_*.bin"));
    assert_int_equal(got.documents, 2);
    assert_int_equal(got.count, 7);
    assert_memory_equal(got.ids, raw, sizeof raw);
    stream_free(&got);
}

static void without_end_of_text_tokens_each_file_is_a_document(void **state)
{
    (void)state;
    struct build_report r;
    char pattern[1024];
    snprintf(pattern, sizeof pattern, "%s", temp_path("q_train_*.npy"));
    struct build_config c = config_for(lines_path, "q");
    c.format = SHARD_NPY;
    c.eod = EOD_NONE;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    int64_t shards = r.train.shards, tokens = r.train.tokens;
    assert_true(shards > 3);
    assert_int_equal(unlink(temp_path("q_manifest.json")), 0); /* shards of nobody */
    c = config_for(pattern, "q2");
    c.eod = EOD_NONE;
    assert_int_equal(build_run(&c, &r), STATUS_DATA);
    assert_non_null(strstr(status_message(), "--input-eod none"));
    c.hints.eod = EOD_NONE;
    if (build_run(&c, &r) != STATUS_OK) fail_msg("%s", status_message());
    assert_int_equal(r.train.documents, shards);
    assert_int_equal(r.train.tokens, tokens);
}

static void an_input_that_is_skipped_as_a_whole_fails(void **state)
{
    (void)state;
    char bad[1024], good[1024];
    snprintf(bad, sizeof bad, "%s", temp_path("latin1.txt"));
    snprintf(good, sizeof good, "%s", temp_path("fine.txt"));
    temp_write(bad, "caf\xe9\nth\xe9\n", 9);
    temp_write(good, "fine\n\xff\n", 7);
    const char *both[] = {good, bad};
    struct build_config c = config_for(bad, "z");
    struct build_report r;
    c.inputs = both, c.input_count = 2;
    c.skip_errors = true;
    for (int resumed = 0; resumed < 2; resumed++) { /* also when a stop came between its documents */
        c.reader.batch_bytes = resumed ? 8 : 0;
        c.force = true;
        c.sync_s = resumed ? -1 : 0;
        int batches = 1;
        c.stop = resumed ? stop_after : NULL;
        c.ctx = &batches;
        status st;
        while ((st = build_run(&c, &r)) == STATUS_STOPPED) batches = 1;
        assert_int_equal(st, STATUS_DATA);
        assert_non_null(strstr(status_message(), "latin1.txt: none of its 2 documents"));
    }
    const int one_word[] = {0, 0}; /* a directory */
    c = config_for(bad, "z2");
    c.inputs = both, c.input_count = 2, c.words = one_word;
    c.skip_errors = true;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    assert_int_equal(r.skipped, 3);
    assert_int_equal(r.train.documents, 1);
}

static void null_and_empty_are_passed_over_and_counted(void **state)
{
    (void)state;
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path("null.jsonl"));
    FILE *f = fopen(path, "wb");
    fputs(
        "{\"a\": {\"text\": \"one\"}}\n{\"a\": {\"text\": null}}\n{\"a\": null}\n{\"a\": {\"text\": \"\"}}\n",
        f);
    fclose(f);
    struct build_config c = config_for(path, "n");
    struct build_report r;
    c.reader.key = "a.text";
    if (build_run(&c, &r) != STATUS_OK) fail_msg("%s", status_message());
    assert_int_equal(r.train.documents, 1);
    assert_int_equal(r.empty, 3);
    struct manifest m;
    assert_int_equal(manifest_read(&m, temp_path("n_manifest.json")), STATUS_OK);
    assert_int_equal(m.empty, 3);
    manifest_free(&m);
}

/* Line i is the text before it, but for a word, when i % 3 != 0; every tenth of them twice. */
static void near_duplicates_are_removed_also_after_stops_and_on_many_threads(void **state)
{
    (void)state;
    enum { TEXTS = 300 };
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path("near.txt"));
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < TEXTS; i++) {
        char line[2048];
        add_words(line, (uint64_t)(1000 + i / 3), 120);
        fprintf(f, "%s and %s%d\n", line, i % 3 == 2 ? "then " : "", i % 3 == 1 && i % 10 == 0 ? i - 1 : i);
        if (i % 30 == 0) fprintf(f, "%s and %d\n", line, i);
    }
    fclose(f);
    struct stream want = {0};
    for (int round = 0; round < 3; round++) {
        parallel_threads_set(round == 1 ? 1 : 4);
        struct build_config c = config_for(path, "near");
        struct build_report r;
        int batches = 3;
        c.dedup = BUILD_DEDUP_NEAR;
        c.force = round > 0;
        c.sync_s = round == 2 ? -1 : 0;
        c.stop = round == 2 ? stop_after : NULL;
        c.ctx = &batches;
        status st;
        while ((st = build_run(&c, &r)) == STATUS_STOPPED) batches = 3;
        if (st != STATUS_OK) fail_msg("%s", status_message());
        assert_int_equal(r.train.documents, TEXTS / 3);
        assert_int_equal(r.duplicates.documents + r.duplicates.near_documents,
                         TEXTS + TEXTS / 30 - TEXTS / 3);
        assert_int_equal(r.duplicates.documents, 2 * (TEXTS / 30));
        assert_true(r.duplicates.removed && r.duplicates.near_removed);
        struct manifest m;
        assert_int_equal(manifest_read(&m, temp_path("near_manifest.json")), STATUS_OK);
        assert_int_equal(m.duplicates.near_documents, r.duplicates.near_documents);
        assert_int_equal(m.duplicates.near_text_bytes, r.duplicates.near_text_bytes);
        manifest_free(&m);
        struct stream got = read_stream(temp_path("near_train_*.bin"));
        if (round == 0) want = got;
        assert_same_stream(&got, &want);
        if (round > 0) stream_free(&got);
    }
    parallel_threads_set(0);
    stream_free(&want);
}

/* Ids of the whole text, encoded at once. */
static int32_t *encode_whole(int64_t *count)
{
    struct tokenizer *t;
    struct encoder *e;
    const int32_t *ids;
    assert_int_equal(tokenizer_load(&t, tokenizer_dir), STATUS_OK);
    assert_int_equal(encoder_open(&e, t), STATUS_OK);
    assert_int_equal(encoder_encode(e, long_text, long_bytes, SPECIALS_AS_TEXT, &ids, count), STATUS_OK);
    int32_t *out = malloc((size_t)*count * sizeof *out);
    memcpy(out, ids, (size_t)*count * sizeof *out);
    encoder_close(e);
    tokenizer_free(t);
    return out;
}

static void a_long_document_has_the_ids_of_the_whole(void **state)
{
    (void)state;
    int64_t count;
    int32_t *want = encode_whole(&count);
    for (int threads = 1; threads <= 4; threads++) {
        parallel_threads_set(threads);
        bool json = threads % 2 == 0;
        struct build_config c = config_for(json ? jsonl_path : long_path, "l");
        struct build_report r;
        c.reader.separator = READER_FILE;
        c.shard_tokens = 1000000;
        c.force = true;
        assert_int_equal(build_run(&c, &r), STATUS_OK);
        struct stream got = read_stream(temp_path("l_train_*.bin"));
        assert_int_equal(got.documents, json ? 3 : 1);
        int64_t at = json ? got.starts[1] : 0, end = json ? got.starts[2] : got.count;
        assert_int_equal(end - at, count + 1);
        assert_memory_equal(got.ids + at, want, (size_t)count * sizeof *want);
        assert_int_equal(got.ids[end - 1], 399);
        stream_free(&got);
    }
    parallel_threads_set(0);
    free(want);
}

static void a_long_document_is_divided_and_dropped_as_a_whole(void **state)
{
    (void)state;
    struct build_report r;
    struct build_config c = config_for(long_path, "t");
    c.reader.separator = READER_FILE;
    c.val = BUILD_VAL_TAIL, c.val_fraction = 0.3;
    c.shard_tokens = 100000000;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    assert_int_equal(r.train.documents, 1);
    assert_int_equal(r.val.documents, 1);
    assert_int_equal(r.train.text_bytes + r.val.text_bytes, (int64_t)long_bytes);
    assert_true((double)r.val.text_bytes <= 0.3 * (double)long_bytes);
    const char *twice[] = {long_path, lines_path, long_path};
    c.inputs = twice, c.input_count = 3;
    c.val = BUILD_VAL_NONE;
    c.dedup = BUILD_DEDUP_EXACT;
    c.near_report = true;
    c.force = true;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    assert_int_equal(r.train.documents, 2);
    assert_int_equal(r.duplicates.documents, 1);
    assert_int_equal(r.duplicates.text_bytes, (int64_t)long_bytes);
    assert_int_equal(r.near.documents, 2);
}

static void a_fault_in_a_long_document_is_skipped_or_named(void **state)
{
    (void)state;
    char path[1024];
    snprintf(path, sizeof path, "%s", temp_path("bad.jsonl"));
    FILE *f = fopen(path, "wb");
    fputs("{\"text\": \"good\"}\n{\"text\": \"", f);
    fwrite("x\xff", 1, 2, f);
    for (int i = 0; i < 5 << 20; i++) fputc('y', f);
    fputs("\"}\n{\"text\": \"fine\"}\n", f);
    fclose(f);
    struct build_report r;
    struct build_config c = config_for(path, "s");
    assert_int_equal(build_run(&c, &r), STATUS_DATA);
    assert_non_null(strstr(status_message(), "bad.jsonl:2"));
    c.skip_errors = true;
    assert_int_equal(build_run(&c, &r), STATUS_OK);
    assert_int_equal(r.skipped, 1);
    assert_int_equal(r.train.documents, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_holds_the_same_documents_also_after_stops),
        cmocka_unit_test(shards_of_every_format_are_input),
        cmocka_unit_test(shards_of_nobody_need_a_vocabulary),
        cmocka_unit_test(a_wide_shard_is_known_by_its_name_alone),
        cmocka_unit_test(without_end_of_text_tokens_each_file_is_a_document),
        cmocka_unit_test(an_input_that_is_skipped_as_a_whole_fails),
        cmocka_unit_test(near_duplicates_are_removed_also_after_stops_and_on_many_threads),
        cmocka_unit_test(null_and_empty_are_passed_over_and_counted),
        cmocka_unit_test(a_long_document_has_the_ids_of_the_whole),
        cmocka_unit_test(a_long_document_is_divided_and_dropped_as_a_whole),
        cmocka_unit_test(a_fault_in_a_long_document_is_skipped_or_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
