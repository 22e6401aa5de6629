/* Pretokenizers: names, tokenizer.json, stages one behind the other. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "data/tokenizer/pretokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "random_text.h"
#include "split_reference.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static struct pretokenizer named(const char *name)
{
    struct pretokenizer p;
    assert_int_equal(pretokenizer_named(&p, name), STATUS_OK);
    return p;
}

static status read_json(struct pretokenizer *p, const char *normalizer, const char *pre_tokenizer)
{
    json_t *n = json_loads(normalizer, JSON_DECODE_ANY, NULL),
           *t = json_loads(pre_tokenizer, JSON_DECODE_ANY, NULL);
    assert_non_null(n);
    assert_non_null(t);
    status st = pretokenizer_from_json(p, n, t);
    json_decref(n);
    json_decref(t);
    return st;
}

static void assert_same(const struct pretokenizer *a, const struct pretokenizer *b)
{
    char text[2][PRETOKENIZER_TEXT_BYTES];
    assert_in_range(pretokenizer_text(a, text[0], sizeof text[0]), 1, sizeof text[0] - 1);
    assert_in_range(pretokenizer_text(b, text[1], sizeof text[1]), 1, sizeof text[1] - 1);
    assert_string_equal(text[0], text[1]);
}

static void assert_survives_json(const struct pretokenizer *p)
{
    struct pretokenizer back;
    json_t *normalizer, *pre_tokenizer;
    assert_int_equal(pretokenizer_to_json(p, &normalizer, &pre_tokenizer), STATUS_OK);
    if (pretokenizer_from_json(&back, normalizer, pre_tokenizer) != STATUS_OK)
        fail_msg("%s", status_message());
    assert_same(p, &back);
    json_decref(normalizer);
    json_decref(pre_tokenizer);
}

static void a_named_pretokenizer_survives_json(void **state)
{
    (void)state;
    for (int i = 0; pretokenizer_word(i) != NULL; i++) {
        struct pretokenizer p = named(pretokenizer_word(i));
        assert_string_equal(pretokenizer_name(&p), pretokenizer_word(i));
        assert_survives_json(&p);
        for (int k = 0; k < i; k++) { /* no two are the same */
            struct pretokenizer other = named(pretokenizer_word(k));
            char text[2][PRETOKENIZER_TEXT_BYTES];
            pretokenizer_text(&p, text[0], sizeof text[0]);
            pretokenizer_text(&other, text[1], sizeof text[1]);
            assert_string_not_equal(text[0], text[1]);
        }
    }
    assert_null(pretokenizer_word(-1));
    assert_string_equal(pretokenizer_name(&(struct pretokenizer[]){named("llama4")}[0]), "o200k");
    assert_string_equal(pretokenizer_name(&(struct pretokenizer[]){named("p50k")}[0]), "gpt2");
}

static void an_unknown_name_is_refused_with_the_known_ones(void **state)
{
    (void)state;
    struct pretokenizer p;
    assert_int_equal(pretokenizer_named(&p, "lama3"), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "did you mean llama3?"));
    assert_int_equal(pretokenizer_named(&p, ""), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "gpt2, r50k, p50k, cl100k"));
}

#define BYTE_LEVEL                                                                                           \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define SEQUENCE(...) "{\"type\":\"Sequence\",\"pretokenizers\":[" __VA_ARGS__ "]}"
#define SPLIT(pattern, behavior, invert)                                                                     \
    "{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior "\",\"invert\":" invert "}"
#define REGEX(text) "{\"Regex\":\"" text "\"}"
#define QWEN2                                                                                                \
    REGEX("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "                  \
          "?[^\\\\s\\\\p{L}\\\\p{N}]+"                                                                       \
          "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")
/* As the file has it: characters where others write escapes. */
#define DEEPSEEK_3                                                                                           \
    REGEX("[!\\\"#$%&'()*+,\\\\-./"                                                                          \
          ":;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?"                    \
          "[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+")
#define DEEPSEEK_12                                                                                          \
    SPLIT(REGEX("\\\\p{N}{1,3}"), "Isolated", "false")                                                       \
    "," SPLIT(REGEX("[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+"), "Isolated", "false")

static void files_of_the_families_are_known(void **state)
{
    (void)state;
    static const struct {
        const char *name, *normalizer, *pre_tokenizer;
    } files[] = {
        {"gpt2", "null", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true}"},
        {"qwen2", "{\"type\":\"NFC\"}", SEQUENCE(SPLIT(QWEN2, "Isolated", "false") "," BYTE_LEVEL)},
        {"qwen2", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
         SEQUENCE(SPLIT(QWEN2, "Removed", "true") "," BYTE_LEVEL)},
        {"deepseek-v3", "{\"type\":\"Sequence\",\"normalizers\":[]}",
         SEQUENCE(DEEPSEEK_12 "," SPLIT(DEEPSEEK_3, "Isolated", "false") "," BYTE_LEVEL)},
        {"starcoder", "null",
         SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\",\"add_prefix_"
                  "space\":false,"
                  "\"trim_offsets\":true,\"use_regex\":true}")},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct pretokenizer p;
        if (read_json(&p, files[i].normalizer, files[i].pre_tokenizer) != STATUS_OK)
            fail_msg("%s", status_message());
        assert_string_equal(pretokenizer_name(&p), files[i].name);
    }
}

static void what_is_not_supported_is_refused_by_its_path(void **state)
{
    (void)state;
    static const struct {
        const char *normalizer, *pre_tokenizer, *message;
    } refusals[] = {
        {"{\"type\":\"NFKC\"}", BYTE_LEVEL, "normalizer: type \"NFKC\" is not supported"},
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}", BYTE_LEVEL,
         "normalizer.normalizers[1]: type \"Lowercase\" is not supported"},
        {"{\"type\":\"NFC\",\"x\":1}", BYTE_LEVEL, "normalizer has \"x\""},
        {"{\"type\":\"Sequence\"}", BYTE_LEVEL, "normalizer.normalizers is not a list"},
        {"null", "null", "no pre_tokenizer"},
        {"null", "3", "pre_tokenizer: type \"\" is not supported"},
        {"null", "{\"type\":\"Metaspace\"}", "pre_tokenizer: type \"Metaspace\" is not supported"},
        {"null", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}",
         "add_prefix_space=true is not supported"},
        {"null", "{\"type\":\"ByteLevel\"}", "add_prefix_space=true is not supported"},
        {"null", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":3}",
         "use_regex is not true or false"},
        {"null", "{\"type\":\"Sequence\"}", "pre_tokenizer.pretokenizers is not a list"},
        {"null", SEQUENCE(""), "without ByteLevel"},
        {"null", SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":true}"), "without ByteLevel"},
        {"null", SEQUENCE(BYTE_LEVEL ",{\"type\":\"Digits\"}"),
         "pre_tokenizer.pretokenizers[1]: a part behind ByteLevel is not supported"},
        {"null", SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":1}," BYTE_LEVEL),
         "pretokenizers[0].individual_digits is not true or false"},
        {"null", SEQUENCE("{\"type\":\"Whitespace\"}," BYTE_LEVEL), "pretokenizers[0]: type \"Whitespace\""},
        {"null", SEQUENCE("{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}," BYTE_LEVEL),
         "pretokenizers[0].behavior: \"Removed\" is not supported"},
        {"null", SEQUENCE(SPLIT(REGEX("a+"), "Isolated", "false") "," BYTE_LEVEL),
         "pre_tokenizer.pretokenizers[0].pattern.Regex: the pattern \"a+\" is not supported"},
        {"null", SEQUENCE(SPLIT(QWEN2, "Removed", "false") "," BYTE_LEVEL),
         "behavior: \"Removed\" is not supported"},
        {"null", SEQUENCE(SPLIT(QWEN2, "Contiguous", "false") "," BYTE_LEVEL),
         "with this pattern is not supported"},
        {"null", SEQUENCE(SPLIT(QWEN2, "Isolated", "3") "," BYTE_LEVEL), "invert is not true or false"},
        {"null", SEQUENCE(SPLIT("{}", "Isolated", "true") "," BYTE_LEVEL), "must have one of Regex, String"},
        {"null", SEQUENCE(SPLIT("{\"String\":\"\"}", "Isolated", "true") "," BYTE_LEVEL), "1 to 15 bytes"},
        {"null", SEQUENCE(SPLIT("{\"String\":\"0123456789abcdef\"}", "Isolated", "true") "," BYTE_LEVEL),
         "1 to 15 bytes"},
        {"null", SEQUENCE(SPLIT(DEEPSEEK_3, "Isolated", "false") "," BYTE_LEVEL), "is supported only behind"},
        {"null", SEQUENCE(SEQUENCE(SEQUENCE(SEQUENCE(SEQUENCE(BYTE_LEVEL))))),
         "type \"Sequence\" is not supported"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct pretokenizer p;
        assert_int_equal(read_json(&p, refusals[i].normalizer, refusals[i].pre_tokenizer), STATUS_DATA);
        if (strstr(status_message(), refusals[i].message) == NULL)
            fail_msg("%s: %s", refusals[i].message, status_message());
    }
}

static size_t scan_all(const struct pretokenizer *p, const char *text, size_t bytes, int step, size_t *ends)
{
    struct pretokenizer_cursor c = pretokenizer_begin(text, bytes);
    size_t count = 0;
    for (int n; (n = pretokenizer_scan(p, &c, ends + count, step)) > 0;) count += (size_t)n;
    assert_int_equal(c.at, bytes);
    return count;
}

static void assert_pieces(const char *pre_tokenizer, const char *text, const char *const *want)
{
    struct pretokenizer p;
    size_t ends[64], at = 0, bytes = strlen(text);
    if (read_json(&p, "null", pre_tokenizer) != STATUS_OK) fail_msg("%s", status_message());
    assert_survives_json(&p);
    for (int step = 1; step < 4; step++) {
        size_t count = scan_all(&p, text, bytes, step, ends);
        at = 0;
        for (size_t i = 0; i < count; at = ends[i++]) {
            assert_non_null(want[i]);
            if (ends[i] - at != strlen(want[i]) || memcmp(text + at, want[i], ends[i] - at) != 0)
                fail_msg("piece %zu of %s: \"%.*s\"", i, text, (int)(ends[i] - at), text + at);
        }
        assert_null(want[count]);
    }
}

/* The pieces are those that Hugging Face tokenizers 0.23.3 gives; tools/check_pretokenizers.py compares many more. */
static void stages_divide_the_pieces_of_the_stage_before(void **state)
{
    (void)state;
#define PIECES(...)                                                                                          \
    (const char *const[])                                                                                    \
    {                                                                                                        \
        __VA_ARGS__, NULL                                                                                    \
    }
#define MINUS "{\"String\":\"-\"}"
    static const char text[] = "--a-b--c-";
    assert_pieces(SEQUENCE(SPLIT(MINUS, "Isolated", "false") "," BYTE_LEVEL), text,
                  PIECES("-", "-", "a", "-", "b", "-", "-", "c", "-"));
    assert_pieces(SEQUENCE(SPLIT(MINUS, "Isolated", "true") "," BYTE_LEVEL), text,
                  PIECES("-", "-", "a", "-", "b", "-", "-", "c", "-"));
    assert_pieces(SEQUENCE(SPLIT(MINUS, "Contiguous", "false") "," BYTE_LEVEL), text,
                  PIECES("--", "a", "-", "b", "--", "c", "-"));
    assert_pieces(SEQUENCE(SPLIT(MINUS, "MergedWithPrevious", "false") "," BYTE_LEVEL), text,
                  PIECES("-", "-", "a-", "b-", "-", "c-"));
    assert_pieces(SEQUENCE(SPLIT(MINUS, "MergedWithNext", "false") "," BYTE_LEVEL), text,
                  PIECES("-", "-a", "-b", "-", "-c", "-"));
    assert_pieces(SEQUENCE(SPLIT(MINUS, "MergedWithPrevious", "true") "," BYTE_LEVEL), text,
                  PIECES("-", "-a", "-b", "-", "-c", "-"));
    assert_pieces(SEQUENCE(SPLIT(MINUS, "MergedWithNext", "true") "," BYTE_LEVEL), text,
                  PIECES("-", "-", "a-", "b-", "-", "c-"));
    assert_pieces(SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":false}," BYTE_LEVEL), "ab12 3",
                  PIECES("ab", "12", " ", "3"));
    assert_pieces(SEQUENCE("{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}," BYTE_LEVEL),
                  "a..b$\u3002 c", PIECES("a", "..", "b", "$\u3002", " c"));
    assert_pieces(SEQUENCE("{\"type\":\"Punctuation\"},{\"type\":\"Digits\"}," SPLIT(QWEN2, "Isolated",
                                                                                     "false") "," BYTE_LEVEL),
                  "a  12 don't", PIECES("a", "  ", "1", "2", " don", "'", "t"));
    assert_pieces(SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\",\"add_"
                           "prefix_space\":false}"),
                  "a  12 b", PIECES("a", "  ", "1", "2", " b"));
    assert_pieces(SEQUENCE(SPLIT(REGEX("[\\\\r\\\\n]"), "Isolated", "false") "," SPLIT(
                      REGEX("\\\\s?\\\\p{L}+"), "Isolated", "false") "," BYTE_LEVEL),
                  "a\n b  c\n", PIECES("a", "\n", " b", " ", " c", "\n"));
#undef PIECES
}

/* The scanner that does three stages at once, compared with the three stages. */
static void the_three_stages_of_deepseek_are_done_at_once(void **state)
{
    (void)state;
    enum { BYTES = 600 };
    static char text[BYTES + 4];
    static size_t ends[2][BYTES + 4];
    struct pretokenizer p = named("deepseek-v3");
    assert_int_equal(p.count, 1);
    struct reference r = reference_open(SPLIT_DEEPSEEK3, 0);
    for (uint64_t seed = 0; seed < 500; seed++) {
        size_t bytes = 0;
        for (uint64_t i = 0; bytes < BYTES; i++)
            bytes += (size_t)utf8_write(reference_alphabet[random_below(seed, i, REFERENCE_LETTERS)],
                                        text + bytes);
        size_t count = scan_all(&p, text, bytes, 5, ends[0]);
        assert_int_equal(count, reference_scan(&r, 0, text, bytes, 0, ends[1]));
        assert_memory_equal(ends[0], ends[1], count * sizeof *ends[0]);
    }
    reference_close(&r);
}

static void append_normal_ends(const struct pretokenizer *p, const char *text, size_t bytes, size_t *base,
                               size_t *ends, size_t *count)
{
    struct pretokenizer_room room = {0};
    const char *normal;
    size_t normal_bytes;
    assert_int_equal(pretokenizer_normalize(p, text, bytes, &room, &normal, &normal_bytes), STATUS_OK);
    size_t n = scan_all(p, normal, normal_bytes, 9, ends + *count);
    for (size_t i = 0; i < n; i++) ends[*count + i] += *base;
    *count += n;
    *base += normal_bytes;
    free(room.data);
}

static void a_cut_leaves_all_pieces_as_they_were(void **state)
{
    (void)state;
    enum { BYTES = 300 };
    static char text[BYTES + 4];
    static size_t ends[2][4 * BYTES];
    struct pretokenizer list[40];
    int lists = 0, cuts = 0;
    for (; pretokenizer_word(lists) != NULL; lists++) list[lists] = named(pretokenizer_word(lists));
    static const char *const more[] = {
        SEQUENCE("{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"},{\"type\":\"Digits\"}," BYTE_LEVEL),
        SEQUENCE("{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"},{\"type\":\"Digits\"}," SPLIT(
            QWEN2, "Isolated", "false") "," SPLIT(MINUS, "MergedWithNext", "false") "," BYTE_LEVEL),
        SEQUENCE(SPLIT(REGEX("\\\\s?\\\\p{L}+"), "Isolated", "false") "," BYTE_LEVEL),
        SEQUENCE(SPLIT("{\"String\":\"a\\n\"}", "Isolated", "false") "," BYTE_LEVEL),
        SEQUENCE(SPLIT(REGEX("[0-9][0-9][0-9]"), "MergedWithPrevious", "false") "," BYTE_LEVEL),
        SEQUENCE(SPLIT(REGEX("[\\u4e00-\\u9fa5\\u0800-\\u4e00\\uac00-\\ud7ff]+"), "Isolated",
                       "false") "," BYTE_LEVEL),
    };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        assert_int_equal(read_json(&list[lists++], "{\"type\":\"NFC\"}", more[i]), STATUS_OK);
    for (uint64_t seed = 0; seed < 3000; seed++) {
        size_t bytes = 0;
        if (seed % 2)
            bytes = random_text(seed, BYTES, NULL, text);
        else
            for (uint64_t i = 0; bytes < BYTES; i++)
                bytes += (size_t)utf8_write(reference_alphabet[random_below(seed, i, 24)], text + bytes);
        for (int k = 0; k < lists; k++) {
            size_t cut = pretokenizer_cut(&list[k], text, bytes, 1 + random_below(seed, 1000, BYTES - 2));
            if (cut == bytes) continue;
            cuts++;
            size_t base[2] = {0}, count[2] = {0};
            append_normal_ends(&list[k], text, bytes, &base[0], ends[0], &count[0]);
            append_normal_ends(&list[k], text, cut, &base[1], ends[1], &count[1]);
            append_normal_ends(&list[k], text + cut, bytes - cut, &base[1], ends[1], &count[1]);
            if (count[0] != count[1]) /* where */
                fail_msg("list %d seed %d: %.*s | %.*s", k, (int)seed, (int)(cut < 20 ? cut : 20),
                         text + (cut < 20 ? 0 : cut - 20), 20, text + cut);
            assert_memory_equal(ends[0], ends[1], count[0] * sizeof *ends[0]);
        }
    }
    assert_true(cuts > 20000);
}

/* Composed or not, large enough for several segments: the tokenizer is the same. */
static void training_sees_normalized_text(void **state)
{
    (void)state;
    static const char *const lines[2] = {
        "caf\u00e9 \u1ec7 na\u00efve \uac01 r\u00e9sum\u00e9 day ",
        "cafe\u0301 e\u0302\u0323 nai\u0308ve \u1100\u1161\u11a8 re\u0301sume\u0301 day "};
    enum { TIMES = 60000 };
    char hash[2][65];
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(lines[i]);
        char *text = malloc(n * TIMES);
        for (int k = 0; k < TIMES; k++) memcpy(text + n * (size_t)k, lines[i], n);
        struct text doc = {text, n * TIMES};
        struct tokenizer *t;
        const struct tokenizer_train_config config = {.pretokenizer = "qwen3", .vocab_size = 270};
        assert_int_equal(tokenizer_train(&t, &config, &doc, 1), STATUS_OK);
        tokenizer_hash(t, hash[i]);
        tokenizer_free(t);
        free(text);
    }
    assert_string_equal(hash[0], hash[1]);
}

static void a_megabyte_in_one_piece_takes_linear_time_in_stages(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    static const char *const units[] = {"a", " ", "7", "-", "\u4e2d", "\u3000", "\n", " a", "7a"};
    char *text = malloc(BYTES + 8);
    struct pretokenizer list[8] = {named("starcoder"), named("deepseek-coder"), named("qwen3")};
    int lists = 3;
    static const char *const behaviors[] = {
        SEQUENCE(SPLIT(MINUS, "MergedWithPrevious", "false") "," SPLIT(MINUS, "MergedWithNext",
                                                                       "false") "," BYTE_LEVEL),
        SEQUENCE(SPLIT(MINUS, "Contiguous", "false") "," SPLIT(MINUS, "Isolated", "false") "," BYTE_LEVEL)};
    for (int i = 0; i < 2; i++) assert_int_equal(read_json(&list[lists++], "null", behaviors[i]), STATUS_OK);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t bytes = 0, n = strlen(units[u]), ends[256];
        for (; bytes < BYTES; bytes += n) memcpy(text + bytes, units[u], n);
        for (int k = 0; k < lists; k++) {
            struct pretokenizer_cursor c = pretokenizer_begin(text, bytes);
            while (pretokenizer_scan(&list[k], &c, ends, 256) > 0) {}
            assert_int_equal(c.at, bytes);
        }
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_named_pretokenizer_survives_json),
        cmocka_unit_test(an_unknown_name_is_refused_with_the_known_ones),
        cmocka_unit_test(files_of_the_families_are_known),
        cmocka_unit_test(what_is_not_supported_is_refused_by_its_path),
        cmocka_unit_test(stages_divide_the_pieces_of_the_stage_before),
        cmocka_unit_test(the_three_stages_of_deepseek_are_done_at_once),
        cmocka_unit_test(a_cut_leaves_all_pieces_as_they_were),
        cmocka_unit_test(training_sees_normalized_text),
        cmocka_unit_test(a_megabyte_in_one_piece_takes_linear_time_in_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
