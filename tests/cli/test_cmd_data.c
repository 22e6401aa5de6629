/* ingot data: a corpus built, verified, damaged and inspected through the verb itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../temp.h"
#include "cli/verbs.h"
#include "data/load/loader.h"
#include "data/tokenizer/tokenizer.h"

#include <jansson.h>

static char text_path[1024], tokenizer_dir[1024], prefix[1024], pattern[1100], printed[1 << 20];

/* Runs `ingot data WORDS...` (ends in NULL); what it prints lands in `printed`. */
static status data(const char *first, ...)
{
    char words[25][1100] = {"data"}, *argv[26] = {words[0]};
    int argc = 1;
    va_list args;
    va_start(args, first);
    for (const char *w = first; w; w = va_arg(args, const char *)) {
        snprintf(words[argc], sizeof words[0], "%s", w);
        argv[argc] = words[argc];
        argc++;
    }
    va_end(args);
    argv[argc] = NULL;
    fflush(stdout);
    int fd = open(temp_path("stdout"), O_RDWR | O_CREAT | O_TRUNC, 0644), saved = dup(1);
    assert_true(fd >= 0 && saved >= 0 && dup2(fd, 1) == 1);
    status st = verb_run(argc, argv);
    fflush(stdout);
    assert_int_equal(dup2(saved, 1), 1);
    close(saved);
    ssize_t n = pread(fd, printed, sizeof printed - 1, 0);
    assert_true(n >= 0);
    printed[n] = 0;
    close(fd);
    return st;
}

static int setup(void **state)
{
    if (temp_open(state) != 0) return -1;
    snprintf(text_path, sizeof text_path, "%s", temp_path("t.txt"));
    snprintf(tokenizer_dir, sizeof tokenizer_dir, "%s", temp_path("tok"));
    snprintf(prefix, sizeof prefix, "%s", temp_path("c"));
    snprintf(pattern, sizeof pattern, "%s_train_*.bin", prefix);
    FILE *f = fopen(text_path, "wb");
    for (int i = 0; i < 400; i++) fprintf(f, "line %d says %d times %d\n", i, i * i, i * 7 % 31);
    fclose(f);
    char *text;
    size_t bytes;
    if (io_read_file(text_path, 1 << 20, &text, &bytes) != STATUS_OK) return -1;
    const char *specials[] = {"<|endoftext|>"};
    struct tokenizer_train_config c = {
        .pretokenizer = "gpt2", .vocab_size = 300, .specials = specials, .special_count = 1};
    struct text doc = {text, bytes};
    struct tokenizer *t;
    status st = tokenizer_train(&t, &c, &doc, 1);
    if (st == STATUS_OK) st = tokenizer_save(t, tokenizer_dir);
    tokenizer_free(t);
    free(text);
    return st == STATUS_OK ? 0 : -1;
}

static status build(void)
{
    return data("build", text_path, "-o", prefix, "--tokenizer", tokenizer_dir, "--separator=line",
                "--val-fraction=0.1", "--eod=after", "--shard-tokens=1000", "--force", "--json", NULL);
}

static void what_was_built_verifies_and_what_was_changed_does_not(void **state)
{
    (void)state;
    assert_int_equal(build(), STATUS_OK);
    json_t *report = json_loads(printed, 0, NULL);
    assert_non_null(report);
    int64_t shards = json_integer_value(json_object_get(json_object_get(report, "train"), "shards"));
    json_decref(report);
    assert_true(shards > 2);
    assert_int_equal(data("verify", pattern, NULL), STATUS_OK);
    assert_null(strstr(printed, "DAMAGED"));

    static const struct {
        int64_t at; /* byte of the second shard */
        unsigned char value;
        const char *what;
    } damage[] = {{1024 + 500, 0x01, "checksum"},
                  {1024 + 501, 0xff, "checksum"},
                  {8, 0x01, "expected"},
                  {4, 0x02, "version"}};
    char path[1100];
    snprintf(path, sizeof path, "%s_train_000001.bin", prefix);
    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        unsigned char before, after;
        int fd = open(path, O_RDWR);
        assert_int_equal(pread(fd, &before, 1, damage[i].at), 1);
        after = before ^ damage[i].value;
        assert_int_equal(pwrite(fd, &after, 1, damage[i].at), 1);
        char manifest[1100];
        snprintf(manifest, sizeof manifest, "%s_manifest.json", prefix);
        assert_int_equal(data("verify", manifest, NULL), STATUS_DATA);
        assert_non_null(strstr(printed, "DAMAGED"));
        assert_non_null(strstr(printed, damage[i].what));
        assert_int_equal(pwrite(fd, &before, 1, damage[i].at), 1);
        close(fd);
    }
    assert_int_equal(data("verify", pattern, NULL), STATUS_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(data("verify", pattern, NULL),
                     STATUS_DATA); /* a shard that the manifest lists is missing */
}

static void inspect_counts_what_the_manifest_counts(void **state)
{
    (void)state;
    assert_int_equal(build(), STATUS_OK);
    struct shard_set s;
    assert_int_equal(shard_set_open(&s, pattern), STATUS_OK);
    assert_int_equal(data("inspect", pattern, "--json", NULL), STATUS_OK);
    json_t *o = json_loads(printed, 0, NULL);
    assert_non_null(o);
    assert_int_equal(json_integer_value(json_object_get(o, "documents")), s.documents);
    assert_int_equal(json_integer_value(json_object_get(o, "tokens")), s.tokens);
    int64_t in_histogram = 0;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(o, "lengths"), i, row) in_histogram +=
        json_integer_value(json_object_get(row, "documents"));
    assert_int_equal(in_histogram, s.documents);
    json_decref(o);
    shard_set_close(&s);
    assert_int_equal(data("inspect", pattern, "--documents", "2", NULL), STATUS_OK);
    assert_non_null(strstr(printed, "document 0: line 0 says 0 times 0<|endoftext|>"));
    assert_null(strstr(printed, "document 2:"));
}

/* The position that inspect prints for a row is where its tokens are. */
static void assert_stretches_are_the_stream(const json_t *list, const struct shard_set *s)
{
    struct document_index documents;
    assert_int_equal(shard_set_documents(s, &documents), STATUS_OK);
    size_t i, k;
    json_t *row, *part;
    json_array_foreach((json_t *)list, i, row)
    {
        int64_t rows = 0;
        json_array_foreach(json_object_get(row, "parts"), k, part)
        {
            int64_t from = json_integer_value(json_object_get(part, "row")),
                    count = json_integer_value(json_object_get(part, "rows")),
                    at = json_integer_value(json_object_get(part, "stream_token")),
                    document = json_integer_value(json_object_get(part, "document")),
                    offset = json_integer_value(json_object_get(part, "offset"));
            assert_int_equal(from, rows);
            rows += count;
            assert_int_equal(documents.starts[document] + offset, at);
            assert_true(at + count <= documents.starts[document + 1]);
            for (int64_t r = 0; r < count; r++) {
                int32_t id;
                assert_int_equal(shard_set_read(s, at + r, 1, 0, &id), STATUS_OK);
                assert_int_equal(
                    json_integer_value(json_array_get(json_object_get(row, "tokens"), (size_t)(from + r))),
                    id);
            }
        }
        assert_int_equal(rows, 16);
    }
    document_index_free(&documents);
}

static int64_t number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v)) fail_msg("no number '%s'", key);
    return json_integer_value(v);
}

static void inspect_counts_ids_and_text(void **state)
{
    (void)state;
    assert_int_equal(build(), STATUS_OK);
    struct shard_set s;
    assert_int_equal(shard_set_open(&s, pattern), STATUS_OK);
    assert_int_equal(data("inspect", pattern, "--json", "--top=300", NULL), STATUS_OK);
    json_t *o = json_loads(printed, 0, NULL), *row;
    assert_non_null(o);
    assert_int_equal(number(o, "text_bytes"), s.text_bytes);
    assert_int_equal(number(json_object_get(o, "document_lengths"), "count"), s.documents);
    const json_t *special = json_object_get(o, "special"), *most = json_object_get(o, "most_frequent");
    assert_int_equal(json_array_size(special), 1);
    assert_int_equal(number(json_array_get(special, 0), "id"), s.eot);
    assert_int_equal(number(json_array_get(special, 0), "count"), s.documents);
    assert_string_equal(json_string_value(json_object_get(json_array_get(special, 0), "text")),
                        "<|endoftext|>");
    assert_int_equal(json_array_size(most), number(o, "ids_used"));
    int64_t all = 0, before = INT64_MAX;
    size_t i;
    json_array_foreach(most, i, row)
    {
        assert_true(number(row, "count") <= before);
        before = number(row, "count");
        all += before;
    }
    assert_int_equal(all, s.tokens);
    json_decref(o);
    shard_set_close(&s);
    /* The same bytes of text without a manifest, from the tokenizer. */
    char foreign[1100], path[1100];
    snprintf(foreign, sizeof foreign, "%s", temp_path("foreign.bin"));
    snprintf(path, sizeof path, "%s_train_000000.bin", prefix);
    assert_int_equal(rename(path, foreign), 0);
    assert_int_equal(
        data("inspect", foreign, "--json", "--tokenizer", tokenizer_dir, "--eot=299", "--eod=after", NULL),
        STATUS_OK);
    o = json_loads(printed, 0, NULL);
    assert_int_equal(number(o, "tokens"), 1000);
    assert_in_range(number(o, "text_bytes"), 1000, 10000);
    assert_false(json_boolean_value(json_object_get(o, "manifest")));
    json_decref(o);
}

static void inspect_shows_whole_documents(void **state)
{
    (void)state;
    assert_int_equal(build(), STATUS_OK);
    assert_int_equal(data("inspect", pattern, "--document=3", "--json", NULL), STATUS_OK);
    json_t *o = json_loads(printed, 0, NULL);
    assert_non_null(o);
    char text[200];
    snprintf(text, sizeof text, "%s", json_string_value(json_object_get(o, "text")));
    assert_ptr_equal(strstr(text, "line "), text);
    assert_string_equal(text + strlen(text) - 13, "<|endoftext|>");
    json_decref(o);
    assert_int_equal(data("inspect", pattern, "--document=3", NULL), STATUS_OK);
    assert_non_null(strstr(printed, text));
    assert_non_null(strstr(printed, "document 3: "));
    assert_int_equal(data("inspect", pattern, "--document=100000", NULL), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "counted from 0"));
    assert_int_equal(data("inspect", pattern, "--document=-2", NULL), STATUS_CONFIG);
    char one[1100], two[1100];
    snprintf(one, sizeof one, "%s_train_000000.bin", prefix);
    snprintf(two, sizeof two, "%s_train_000001.bin", prefix);
    assert_int_equal(data("inspect", one, two, "--json", NULL),
                     STATUS_OK); /* a pattern that the shell wrote out */
    o = json_loads(printed, 0, NULL);
    assert_int_equal(number(o, "tokens"), 2000);
    json_decref(o);
    assert_int_equal(data("inspect", prefix, "--json", NULL), STATUS_OK);
    o = json_loads(printed, 0, NULL);
    assert_true(number(o, "tokens") > 2000); /* all training shards */
    json_decref(o);
    assert_int_equal(data("verify", prefix, NULL), STATUS_OK);
    snprintf(one, sizeof one, "%s_manifest.json", prefix);
    assert_int_equal(data("inspect", one, NULL), STATUS_DATA);
    assert_non_null(strstr(status_message(), "is a manifest"));
}

static void raw_ids_are_inspected_and_verified_when_their_type_is_said(void **state)
{
    (void)state;
    const uint16_t ids[9] = {5, 6, 299, 7, 299, 299, 1, 2, 3};
    const char *raw = temp_path("raw.bin");
    temp_write(raw, ids, sizeof ids);
    assert_int_equal(data("inspect", raw, NULL), STATUS_DATA);
    assert_non_null(strstr(status_message(), "--dtype"));
    assert_int_equal(data("inspect", raw, "--dtype=u16", NULL), STATUS_CONFIG);
    assert_int_equal(data("inspect", raw, "--dtype=uint16", NULL), STATUS_OK);
    assert_non_null(strstr(printed, "the first tokens: 5 6 299"));
    assert_int_equal(data("inspect", raw, "--dtype=uint16", "--eot=299", NULL), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "--eod"));
    assert_int_equal(data("inspect", raw, "--dtype=uint16", "--eot=299", "--eod=after", "--json", NULL),
                     STATUS_OK);
    json_t *o = json_loads(printed, 0, NULL);
    assert_int_equal(number(o, "documents"), 4);
    assert_string_equal(json_string_value(json_object_get(o, "format")), "raw");
    json_decref(o);
    assert_int_equal(data("verify", raw, "--dtype=uint16", "--vocab-size=300", "--json", NULL), STATUS_OK);
    o = json_loads(printed, 0, NULL);
    assert_int_equal(number(o, "damaged"), 0);
    json_decref(o);
    assert_int_equal(data("verify", raw, "--dtype=uint16", "--vocab-size=299", "--json", NULL), STATUS_DATA);
    o = json_loads(printed, 0, NULL);
    const json_t *row = json_array_get(json_object_get(o, "shards"), 0);
    assert_non_null(strstr(json_string_value(json_object_get(row, "error")), "token 2 is id 299"));
    json_decref(o);
    assert_int_equal(
        data("verify", raw, "--dtype=uint16", "--vocab-size=299", "--tokenizer", tokenizer_dir, NULL),
        STATUS_CONFIG);
}

static void verify_looks_at_all_shards_though_one_is_bad(void **state)
{
    (void)state;
    const uint16_t ids[4] = {1, 2, 3, 4};
    temp_write(temp_path("v_1.bin"), ids, 7);
    temp_write(temp_path("v_2.bin"), ids, 8);
    temp_write(temp_path("v_3.bin"), ids, 8);
    assert_int_equal(data("verify", temp_path("v_*.bin"), "--dtype=uint16", "--vocab-size=9", NULL),
                     STATUS_DATA);
    assert_non_null(strstr(status_message(), "1 of 3 shards"));
    assert_non_null(strstr(printed, "v_1.bin: 7 bytes"));
    assert_non_null(strstr(printed, "ok      "));
    assert_int_equal(data("verify", temp_path("v_[23].bin"), "--dtype=uint16", "--vocab-size=9", NULL),
                     STATUS_OK);
}

static void inspect_shows_the_rows_that_the_loader_gives(void **state)
{
    (void)state;
    assert_int_equal(build(), STATUS_OK);
    char yaml[2048];
    int n = snprintf(yaml, sizeof yaml,
                     "model: {preset: nano}\nrun: {seed: 5}\ndata: {train: \"%s\", packing: documents}\n"
                     "train: {sequence_length: 16, micro_batch: 2, batch_tokens: 96, steps: 9}\n",
                     pattern);
    assert_int_equal(io_make_dirs(temp_path("run")), STATUS_OK);
    temp_write(temp_path("run/config.yaml"), yaml, (size_t)n);
    assert_int_equal(data("inspect", temp_path("run"), "--step", "7", "--json", NULL), STATUS_OK);
    json_t *list = json_loads(printed, 0, NULL);
    assert_int_equal(json_array_size(list), 6);
    struct shard_set s;
    struct step_batch *step;
    struct samples *samples;
    const struct samples_config order = {
        .seed = 5, .sequence_length = 16, .packing = LOADER_DOCUMENTS, .shuffle = 1, .samples_total = 54};
    const struct loader_config c = {.sequences = 2, .micro_count = 3};
    assert_int_equal(shard_set_open(&s, pattern), STATUS_OK);
    assert_int_equal(samples_open(&samples, &(struct samples_source){.set = &s}, 1, &order), STATUS_OK);
    assert_int_equal(loader_step_at(samples, &c, 6, &step), STATUS_OK); /* the log counts from 1 */
    for (int i = 0; i < 6; i++) {
        const json_t *row = json_array_get(list, (size_t)i);
        const struct batch *b = &step->micro[i / 2];
        for (int t = 0; t < 16; t++) {
            int64_t at = i % 2 * 16 + t;
            assert_int_equal(json_integer_value(json_array_get(json_object_get(row, "tokens"), (size_t)t)),
                             b->tokens[at]);
            assert_int_equal(json_integer_value(json_array_get(json_object_get(row, "targets"), (size_t)t)),
                             b->targets[at]);
            assert_int_equal(json_integer_value(json_array_get(json_object_get(row, "positions"), (size_t)t)),
                             b->positions[at]);
        }
    }
    step_batch_free(step);
    /* Three ranks share the step's three micro-batches. */
    assert_int_equal(data("inspect", temp_path("run"), "--step=7", "--rank=1", "--ranks=3", "--json", NULL),
                     STATUS_OK);
    json_t *part = json_loads(printed, 0, NULL);
    assert_int_equal(json_array_size(part), 2);
    for (size_t q = 0; q < 2; q++) {
        const json_t *a = json_array_get(part, q), *b = json_array_get(list, 2 + q);
        static const char *const same[] = {"sample", "tokens", "targets", "positions", "parts"};
        for (size_t k = 0; k < sizeof same / sizeof same[0]; k++)
            assert_true(json_equal(json_object_get(a, same[k]), json_object_get(b, same[k])));
    }
    json_decref(part);
    assert_stretches_are_the_stream(list, &s);
    json_decref(list);
    samples_close(samples);
    shard_set_close(&s);
    assert_int_equal(data("inspect", temp_path("run"), "--step=7", "--rank=2", "--ranks=2", NULL),
                     STATUS_CONFIG);
    assert_int_equal(data("inspect", temp_path("run"), "--step=7", "--ranks=2", NULL), STATUS_CONFIG);
    assert_int_equal(data("inspect", temp_path("run"), "--step=7", "--micro=2", "--sequence=1", NULL),
                     STATUS_OK);
    assert_non_null(strstr(printed, "micro-batch 2, sequence 1"));
    assert_null(strstr(printed, "micro-batch 1, sequence"));
    assert_int_equal(data("inspect", temp_path("run"), "--step=7", "--micro=3", NULL), STATUS_CONFIG);
}

static void mistakes_on_the_command_line_are_refused(void **state)
{
    (void)state;
    static const char *const bad[][3] = {
        {"--eod", "behind", "--eod"},
        {"--on-error", "ignore", "--on-error"},
        {"--val-fraction", "1.5", "validation part"},
        {"--val-every-n", "1", "--val-every-n"},
        {"--shard-tokens", "0", "--shard-tokens"},
        {"--separator", "", "--separator"},
        {"--format", "xml", "--format"},
        {"--tokeniser", "x", "--tokenizer"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(data("build", text_path, "-o", temp_path("x"), "--tokenizer", tokenizer_dir,
                              bad[i][0], bad[i][1], NULL),
                         STATUS_CONFIG);
        if (!strstr(status_message(), bad[i][2]))
            fail_msg("'%s' does not name '%s'", status_message(), bad[i][2]);
    }
    assert_int_equal(temp_count("x_"), 0);
    assert_int_equal(data("build", text_path, "-o", temp_path("x"), NULL), STATUS_CONFIG);
    assert_int_equal(data("build", text_path, "-o", temp_path("x"), "--tokenizer", tokenizer_dir,
                          "--val-tail=0.1", "--val-fraction=0.1", NULL),
                     STATUS_CONFIG);
    assert_int_equal(data("built", NULL), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "build"));
    assert_int_equal(data("inspect", temp_path("none_*.bin"), NULL), STATUS_DATA);
    assert_int_equal(data("verify", NULL), STATUS_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_built_verifies_and_what_was_changed_does_not),
        cmocka_unit_test(inspect_counts_what_the_manifest_counts),
        cmocka_unit_test(inspect_counts_ids_and_text),
        cmocka_unit_test(inspect_shows_whole_documents),
        cmocka_unit_test(raw_ids_are_inspected_and_verified_when_their_type_is_said),
        cmocka_unit_test(verify_looks_at_all_shards_though_one_is_bad),
        cmocka_unit_test(inspect_shows_the_rows_that_the_loader_gives),
        cmocka_unit_test(mistakes_on_the_command_line_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, temp_close);
}
