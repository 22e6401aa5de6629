/* tekken.json: ids are ranks behind the special tokens; what mistral-common refuses is refused. The expected ids are those of
 * mistral-common 1.13 for the same file. tools/check_tokenizer_files.py compares the published files. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "data/tokenizer/tokenizer.h"
#include "../temp.h"

#include <jansson.h>

static const char pattern[] = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{"
                              "Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?"
                              "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| "
                              "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"
                              "\\s+(?!\\S)|\\s+";

/* Behind the bytes: th, the, in, " t", " the"; one more than default_vocab_size has place for. */
static const char *const tokens[] = {"dGg=", "dGhl", "aW4=", "IHQ=", "IHRoZQ==", "eno="};
enum { TOKENS = sizeof tokens / sizeof *tokens, SPECIALS = 24 };

static json_t *token_json(int rank, const char *bytes, const char *text)
{
    return json_pack("{s:i, s:s, s:s?}", "rank", rank, "token_bytes", bytes, "token_str", text);
}

static json_t *sample(void)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    json_t *vocab = json_array();
    for (int i = 0; i < 256; i++) {
        const char text[] = {digits[i >> 2], digits[(i & 3) << 4], '=', '=', 0};
        json_array_append_new(vocab, token_json(i, text, NULL));
    }
    for (int i = 0; i < TOKENS; i++) json_array_append_new(vocab, token_json(256 + i, tokens[i], "shown"));
    return json_pack("{s:{s:s, s:i, s:i, s:i, s:s}, s:o, s:{s:i}}", "config", "pattern", pattern,
                     "num_vocab_tokens", 256 + TOKENS, "default_vocab_size", 256 + TOKENS - 1 + SPECIALS,
                     "default_num_special_tokens", SPECIALS, "version", "v3", "vocab", vocab, "image",
                     "image_patch_size", 16);
}

static status load(json_t *root, struct tokenizer **t)
{
    const char *path = temp_path("tekken.json");
    assert_int_equal(json_dump_file(root, path, JSON_COMPACT), 0);
    return tokenizer_load(t, path);
}

static void expect(const struct tokenizer *t, const char *text, const int32_t *want, int64_t want_count,
                   enum specials specials)
{
    struct encoder *e;
    const int32_t *ids;
    int64_t count;
    assert_int_equal(encoder_open(&e, t), STATUS_OK);
    assert_int_equal(encoder_encode(e, text, strlen(text), specials, &ids, &count), STATUS_OK);
    assert_int_equal(count, want_count);
    assert_memory_equal(ids, want, (size_t)count * sizeof *ids);
    encoder_close(e);
}

static void expect_all(const struct tokenizer *t)
{
    static const int32_t words[] = {281, 284, 56,  280, 282, 56, 108, 128, 125,
                                    96,  108, 108, 104, 281, 71, 34,  73,  74};
    static const int32_t signs[] = {219, 193, 146, 146,
                                    84,  71,  139, 86}; /* "zz" has no place in the vocabulary */
    static const int32_t ended[] = {281, 2};
    expect(t, "the the thin TheHTTPthe/\n12", words, 18, SPECIALS_AS_TEXT);
    expect(t, "\xc3\xa9zz</s>", signs, 8, SPECIALS_AS_TEXT);
    expect(t, "the</s>", ended, 2, SPECIALS_PARSE);
    assert_int_equal(tokenizer_vocab_size(t), 285);
    assert_int_equal(tokenizer_eot(t), 2);
    assert_int_equal(tokenizer_special(t, "[TOOL_CONTENT]"), 19);
    assert_int_equal(tokenizer_special(t, "<SPECIAL_23>"), 23);
    assert_int_equal(tokenizer_special(t, "<SPECIAL_24>"), -1);
}

static void ids_are_those_of_mistral_common_before_and_after_saving(void **state)
{
    (void)state;
    struct tokenizer *t, *again;
    json_t *root = sample();
    assert_int_equal(load(root, &t), STATUS_OK);
    expect_all(t);
    assert_int_equal(tokenizer_save(t, temp_path("saved")), STATUS_OK);
    assert_int_equal(tokenizer_load(&again, temp_path("saved")), STATUS_OK);
    expect_all(again);
    assert_int_equal(tokenizer_ends_of(again, temp_path("saved")).bos, 1);
    assert_int_equal(tokenizer_ends_of(again, temp_path("saved")).eos, 2);
    tokenizer_free(again);
    tokenizer_free(t);
    json_decref(root);
}

static void the_file_may_name_its_special_tokens(void **state)
{
    (void)state;
    struct tokenizer *t;
    json_t *root = sample();
    json_object_set_new(root, "special_tokens",
                        json_pack("[{s:i, s:s, s:b}, {s:i, s:s, s:b}]", "rank", 0, "token_str", "<unk>",
                                  "is_control", 1, "rank", 1, "token_str", "[THINK]", "is_control", 1));
    json_object_set_new(json_object_get(root, "config"), "version", json_string("v13"));
    assert_int_equal(load(root, &t), STATUS_OK);
    assert_int_equal(tokenizer_special(t, "[THINK]"), 1);
    assert_int_equal(tokenizer_special(t, "<SPECIAL_2>"), 2);
    assert_int_equal(tokenizer_special(t, "</s>"), -1);
    tokenizer_free(t);
    json_decref(root);
}

static void what_mistral_common_refuses_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *in, *key, *value, *message; /* `in`: "config", "vocab[300]", NULL: the root */
    } cases[] = {
        {NULL, "config", "3", "has no config"},
        {NULL, "vocab", "[]", "has 0 tokens"},
        {NULL, "vocab", "3", "a list is expected"},
        {NULL, "sparkle", "3", "has \"sparkle\", which is not supported"},
        {NULL, "special_tokens", "{}", "special_tokens of tekken.json is not a list"},
        {NULL, "special_tokens", "[{\"rank\": 24, \"token_str\": \"x\"}]", "not a number from 0 to 23"},
        {NULL, "special_tokens", "[{\"rank\": 0, \"token_str\": \"x\"}, {\"rank\": 0, \"token_str\": \"y\"}]",
         "the same id"},
        {NULL, "special_tokens", "[{\"rank\": 0, \"token_str\": \"x\"}, {\"rank\": 1, \"token_str\": \"x\"}]",
         "\"x\""},
        {"config", "pattern", "\"\\\\w+\"", "the pattern \"\\w+\" is not supported"},
        {"config", "pattern", "null", "config.pattern of tekken.json is not a string"},
        {"config", "version", "\"v11\"", "has no special_tokens, which files behind version v7 need"},
        {"config", "default_vocab_size", "400",
         "has 262 tokens; default_vocab_size without special ones is 376"},
        {"config", "default_vocab_size", "20", "less than the special tokens"},
        {"config", "default_num_special_tokens", "10",
         "has 20 special tokens and default_num_special_tokens 10"},
        {"config", "default_num_special_tokens", "-1", "is not a number from 0"},
        {"vocab", "rank", "7", "vocab[258] of tekken.json has another rank"},
        {"vocab", "token_bytes", "\"!!\"", "vocab[258].token_bytes of tekken.json is not base64"},
        {"vocab", "token_bytes", "\"dGg=\"", "vocab[258]"},
        {"byte", "token_bytes", "\"dGg=\"", "vocab[65] of tekken.json is not the byte 65"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t;
        json_t *root = sample(), *at = root;
        const char *in = cases[i].in;
        if (in) at = json_object_get(root, strcmp(in, "config") == 0 ? "config" : "vocab");
        if (in && json_is_array(at)) at = json_array_get(at, strcmp(in, "byte") == 0 ? 65 : 258);
        json_object_set_new(at, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        if (load(root, &t) != STATUS_DATA || !strstr(status_message(), cases[i].message))
            fail_msg("case %zu: '%s' does not contain '%s'", i, status_message(), cases[i].message);
        json_decref(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_mistral_common_before_and_after_saving),
        cmocka_unit_test(the_file_may_name_its_special_tokens),
        cmocka_unit_test(what_mistral_common_refuses_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
