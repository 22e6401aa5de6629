/* Tokenizers as files: ids equal to those of Hugging Face tokenizers (fixtures:
 * tools/make_tokenizer_fixture.py), everything that is not implemented is refused by name, and damaged files
 * are refused without harm. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "data/tokenizer/tokenizer.h"
#include "../temp.h"
#include <jansson.h>

#define FIXTURES TEST_SOURCE_DIR "/tests/fixtures/tokenizer/"

static char *read_text(const char *path)
{
    char *text = NULL;
    size_t bytes;
    assert_int_equal(io_read_file(path, 1 << 24, &text, &bytes), STATUS_OK);
    return text;
}

static struct tokenizer *loaded(const char *path)
{
    struct tokenizer *t;
    status st = tokenizer_load(&t, path);
    if (st != STATUS_OK) print_message("%s\n", status_message());
    assert_int_equal(st, STATUS_OK);
    return t;
}

/* One line of a .cases file: the text in hex, a space, ids. Moves *line to the next one. */
static void check_case(struct encoder *e, const struct tokenizer *t, char **line, bool there_and_back)
{
    static char text[4096];
    size_t bytes = 0;
    char *at = *line;
    for (; *at != ' '; at += 2) {
        const char digits[] = {at[0], at[1], 0};
        text[bytes++] = (char)strtol(digits, NULL, 16);
    }
    const int32_t *ids;
    int64_t count, i = 0;
    assert_int_equal(encoder_encode(e, text, bytes, SPECIALS_PARSE, &ids, &count), STATUS_OK);
    for (at++; *at != '\n'; at += *at == ',', i++) {
        assert_true(i < count);
        assert_int_equal(ids[i], strtol(at, &at, 10));
    }
    assert_int_equal(i, count);
    *line = at + 1;
    if (!there_and_back) return;
    char *back = NULL;
    size_t back_bytes = 0;
    assert_int_equal(tokenizer_decode(t, ids, count, &back, &back_bytes), STATUS_OK);
    assert_int_equal(back_bytes, bytes);
    assert_memory_equal(back, text, bytes);
    free(back);
}

static void check_all_cases(const struct tokenizer *t, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, FIXTURES "%s.cases", name);
    char *cases = read_text(path);
    struct encoder *e;
    int count = 0;
    assert_int_equal(encoder_open(&e, t), STATUS_OK);
    for (char *line = cases; *line != 0; count++)
        check_case(e, t, &line, strcmp(name, "strip") != 0); /* the white space is lost */
    assert_int_equal(count, 50);
    encoder_close(e);
    free(cases);
}

static void ids_are_those_of_hugging_face_before_and_after_saving(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2", "llama3", "ignore", "strip"};
    for (int i = 0; i < 4; i++) {
        char path[1024], hash[65], hash_again[65];
        snprintf(path, sizeof path, FIXTURES "%s.json", names[i]);
        struct tokenizer *t = loaded(path);
        check_all_cases(t, names[i]);
        assert_int_equal(tokenizer_eot(t), 340);
        const char *dir = temp_path(names[i]);
        assert_int_equal(tokenizer_save(t, dir), STATUS_OK);
        struct tokenizer *again = loaded(dir);
        check_all_cases(again, names[i]);
        tokenizer_hash(t, hash);
        tokenizer_hash(again, hash_again);
        assert_string_equal(hash, hash_again);
        tokenizer_free(again);
        tokenizer_free(t);
    }
}

/* Applies `change` to the gpt2 fixture and gives the result to the loader. */
static status load_changed(void (*change)(json_t *root), struct tokenizer **t)
{
    json_error_t error;
    json_t *root = json_load_file(FIXTURES "gpt2.json", 0, &error);
    assert_non_null(root);
    change(root);
    const char *path = temp_path("changed.json");
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    return tokenizer_load(t, path);
}

static json_t *parsed(const char *text)
{
    json_error_t error;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &error);
    assert_non_null(value);
    return value;
}

/* Sets the value at `path` ("model.dropout") to JSON text. */
static void set(json_t *root, const char *path, const char *value)
{
    char key[64];
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        root = json_is_array(root) ? json_array_get(root, (size_t)strtol(key, NULL, 10))
                                   : json_object_get(root, key);
        assert_non_null(root);
        path = dot + 1;
    }
    assert_int_equal(json_object_set_new(root, path, parsed(value)), 0);
}

/* Every field of an added token that changes ids changes the hash; plain ones have the hash that they always had. */
static void the_hash_covers_each_flag_of_an_added_token(void **state)
{
    (void)state;
    static const char *const flags[] = {"special", "normalized", "lstrip", "rstrip"};
    char hashes[16][65];
    for (int i = 0; i < 16; i++) {
        json_error_t error;
        json_t *root = json_load_file(FIXTURES "gpt2.json", 0, &error);
        json_t *token = json_array_get(json_object_get(root, "added_tokens"), 0);
        struct tokenizer *t;
        for (int k = 0; k < 4; k++) json_object_set_new(token, flags[k], json_boolean(i >> k & 1));
        const char *path = temp_path("flags.json");
        assert_int_equal(json_dump_file(root, path, 0), 0);
        json_decref(root);
        assert_int_equal(tokenizer_load(&t, path), STATUS_OK);
        tokenizer_hash(t, hashes[i]);
        tokenizer_free(t);
        for (int k = 0; k < i; k++) assert_string_not_equal(hashes[k], hashes[i]);
    }
}

static const struct refusal {
    const char *path, *value, *message;
} refusals[] = {
    {"normalizer", "{\"type\":\"NFD\"}", "normalizer: type \"NFD\" is not supported"},
    {"truncation", "{\"max_length\":5}", "truncation is not supported"},
    {"padding", "{}", "padding is not supported"},
    {"sparkle", "1", "tokenizer.json has \"sparkle\""},
    {"pre_tokenizer", "null", "no pre_tokenizer"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\"}", "pre_tokenizer: type \"Metaspace\" is not supported"},
    {"decoder", "{\"type\":\"Metaspace\"}", "decoder type \"Metaspace\" is not supported"},
    {"decoder", "null", "decoder type \"\" is not supported"},
    {"post_processor", "{\"type\":\"BertProcessing\"}",
     "post_processor type \"BertProcessing\" is not supported"},
    {"model.type", "\"Unigram\"", "this is a tokenizer of type Unigram, which is not supported"},
    {"model.dropout", "0.1", "model with dropout is not supported"},
    {"model.unk_token", "\"<unk>\"", "model with unk_token is not supported"},
    {"model.continuing_subword_prefix", "\"##\"", "model with continuing_subword_prefix is not supported"},
    {"model.end_of_word_suffix", "\"</w>\"", "model with end_of_word_suffix is not supported"},
    {"model.byte_fallback", "true", "byte_fallback=true is not supported"},
    {"model.fuse_unk", "true", "fuse_unk=true is not supported"},
    {"model.ignore_merges", "3", "ignore_merges is not true or false"},
    {"model.vocab", "[]", "model.vocab is not an object"},
    {"model.vocab", "{\"a\": 0}", "not in model.vocab"},
    {"model", "{\"vocab\": {\"a\": 0}, \"merges\": []}",
     "no token for byte 0x00; byte-level BPE needs all 256"},
    {"model.vocab.A", "1", "have the same id"},
    {"model.vocab.new", "2097151", "the id is not a number from 0 to"},
    {"model.vocab.new", "-1", "the id is not a number from 0 to"},
    {"model.vocab.new", "99999999999999", "the id is not a number from 0 to"},
    {"model.vocab.new", "\"5\"", "the id is not a number from 0 to"},
    {"model.vocab.a b", "400", "characters that stand for no byte"},
    {"model.merges", "{}", "model.merges is not a list"},
    {"model.merges", "[\"a\"]", "merge 0 is not two words"},
    {"model.merges", "[\"a b c\"]", "merge 0 is not two words"},
    {"model.merges", "[[\"a\"]]", "merge 0 is not a pair of strings"},
    {"model.merges", "[[\"a\", 3]]", "merge 0 is not a pair of strings"},
    {"model.merges", "[[\"a\", \"\"]]", "not in model.vocab"},
    {"model.merges", "[[\"Z\", \"Q\"]]", "not in model.vocab"},
    {"added_tokens", "3", "added_tokens is not a list"},
    {"added_tokens", "[{\"id\": 400, \"content\": \"\"}]", "has no content"},
    {"added_tokens", "[{\"id\": 400, \"content\": \"x\", \"single_word\": true}]",
     "single_word=true is not supported"},
    {"added_tokens", "[{\"id\": 400, \"content\": \"x\", \"lstrip\": 1}]", "lstrip is not true or false"},
    {"added_tokens", "[{\"id\": 400, \"content\": \"x\", \"color\": 1}]", "which is not supported"},
    {"added_tokens", "[{\"id\": 400, \"content\": \"A\"}]", "has another id in model.vocab"},
    {"added_tokens", "[{\"id\": 400, \"content\": \"xx\"}, {\"id\": 401, \"content\": \"xx\"}]",
     "occurs twice"},
    {"added_tokens", "[{\"id\": 400, \"content\": \"xx\"}, {\"id\": 400, \"content\": \"yy\"}]",
     "have the same id"},
    {"added_tokens", "[{\"id\": 5, \"content\": \"xx\"}]", "have the same id"},
};
static const struct refusal *refusal_now;
static void change_now(json_t *root)
{
    set(root, refusal_now->path, refusal_now->value);
}

static void what_is_not_implemented_or_makes_no_sense_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct tokenizer *t;
        refusal_now = &refusals[i];
        status st = load_changed(change_now, &t);
        if (st != STATUS_DATA || strstr(status_message(), refusals[i].message) == NULL)
            print_message("%s = %s: status %d: %s\n", refusals[i].path, refusals[i].value, st,
                          st != STATUS_OK ? status_message() : "");
        assert_int_equal(st, STATUS_DATA);
        assert_non_null(strstr(status_message(), refusals[i].message));
        assert_null(t);
    }
}

static void add_unnormal(json_t *root)
{
    set(root, "normalizer", "{\"type\": \"NFC\"}");
    set(root, "added_tokens", "[{\"id\": 400, \"content\": \"e\xcc\x81\", \"normalized\": true}]");
}

static void an_added_token_that_normalizing_changes_is_refused(void **state)
{
    (void)state;
    struct tokenizer *t;
    assert_int_equal(load_changed(add_unnormal, &t), STATUS_DATA);
    assert_non_null(strstr(status_message(), "not in normal form"));
}

static void leave_holes(json_t *root)
{
    set(root, "model.vocab.new", "1000");
    set(root, "added_tokens", "[{\"id\": 1002, \"content\": \"\xc3\xa9 x\", \"special\": true}]");
}

/* RoBERTa's post-processor adds special tokens, which is left to the user; Whisper's vocabulary has a token without bytes. */
static void as_roberta_and_whisper(json_t *root)
{
    set(root, "post_processor",
        "{\"type\":\"RobertaProcessing\",\"sep\":[\"</s>\",2],\"cls\":[\"<s>\",0],"
        "\"trim_offsets\":true,\"add_prefix_space\":false}");
    set(root, "model.vocab.", "500");
    set(root, "model.continuing_subword_prefix", "\"\"");
}

static void the_forms_of_roberta_and_whisper_are_read(void **state)
{
    (void)state;
    struct tokenizer *t, *again;
    assert_int_equal(load_changed(as_roberta_and_whisper, &t), STATUS_OK);
    check_all_cases(t, "gpt2");
    assert_int_equal(tokenizer_bytes(t, 500).bytes, 0);
    assert_int_equal(tokenizer_save(t, temp_path("empty_token")), STATUS_OK);
    assert_int_equal(tokenizer_load(&again, temp_path("empty_token")), STATUS_OK);
    check_all_cases(again, "gpt2");
    tokenizer_free(again);
    tokenizer_free(t);
}

static void ids_without_a_token_are_allowed_and_refused_in_decoding(void **state)
{
    (void)state;
    struct tokenizer *t;
    assert_int_equal(load_changed(leave_holes, &t), STATUS_OK);
    assert_int_equal(tokenizer_vocab_size(t), 1003);
    assert_int_equal(tokenizer_bytes(t, 1000).bytes, 3);
    assert_int_equal(tokenizer_bytes(t, 1001).bytes, 0);
    assert_int_equal(tokenizer_special(t, "\xc3\xa9 x"), 1002);
    assert_int_equal(tokenizer_eot(t), -1);
    char *text = NULL;
    size_t bytes;
    assert_int_equal(tokenizer_decode(t, (const int32_t[]){1001}, 1, &text, &bytes), STATUS_DATA);
    assert_int_equal(tokenizer_decode(t, (const int32_t[]){1002, 1000}, 2, &text, &bytes), STATUS_OK);
    assert_string_equal(text, "\xc3\xa9 xnew");
    free(text);
    tokenizer_free(t);
}

static void files_cut_anywhere_are_refused(void **state)
{
    (void)state;
    char *text = read_text(FIXTURES "llama3.json");
    const char *path = temp_path("cut.json");
    for (size_t bytes = 0; bytes + 1 < strlen(text); bytes += 97) {
        struct tokenizer *t;
        temp_write(path, text, bytes);
        assert_int_equal(tokenizer_load(&t, path), STATUS_DATA);
        assert_null(t);
    }
    struct tokenizer *t;
    assert_int_not_equal(tokenizer_load(&t, temp_path("nowhere")), STATUS_OK);
    free(text);
}

static void vocab_json_with_merges_txt_is_the_same_tokenizer(void **state)
{
    (void)state;
    json_error_t error;
    json_t *root = json_load_file(FIXTURES "gpt2.json", 0, &error), *model = json_object_get(root, "model"),
           *merge;
    char dir[512], path[1024];
    snprintf(dir, sizeof dir, "%s", temp_path("pair"));
    assert_int_equal(io_make_dirs(dir), STATUS_OK);
    struct tokenizer *t, *whole = loaded(FIXTURES "gpt2.json");
    assert_int_equal(tokenizer_load(&t, dir), STATUS_DATA);
    assert_non_null(strstr(status_message(), "neither tokenizer.json nor vocab.json"));

    set(model, "vocab.<|endoftext|>", "340");
    snprintf(path, sizeof path, "%s/vocab.json", dir);
    assert_int_equal(json_dump_file(json_object_get(model, "vocab"), path, 0), 0);
    snprintf(path, sizeof path, "%s/merges.txt", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "#version: 0.2\n");
    size_t i;
    json_array_foreach(json_object_get(model, "merges"), i, merge)
        fprintf(f, "%s %s\n", json_string_value(json_array_get(merge, 0)),
                json_string_value(json_array_get(merge, 1)));
    fclose(f);
    t = loaded(dir);
    assert_int_equal(tokenizer_eot(t), 340);
    for (int32_t id = 0; id <= 340; id++) {
        struct text a = tokenizer_bytes(t, id), b = tokenizer_bytes(whole, id);
        assert_int_equal(a.bytes, b.bytes);
        assert_memory_equal(a.data, b.data, a.bytes);
    }
    struct encoder *e[2];
    const int32_t *ids[2];
    int64_t count[2];
    static const char text[] =
        "they weren't; sum += values[i]; \xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82<|endoftext|>";
    for (int k = 0; k < 2; k++) {
        assert_int_equal(encoder_open(&e[k], k ? whole : t), STATUS_OK);
        assert_int_equal(encoder_encode(e[k], text, sizeof text - 1, SPECIALS_PARSE, &ids[k], &count[k]),
                         STATUS_OK);
    }
    assert_int_equal(count[0], count[1]);
    assert_memory_equal(ids[0], ids[1], (size_t)count[0] * sizeof **ids);
    for (int k = 0; k < 2; k++) encoder_close(e[k]);
    tokenizer_free(t);
    tokenizer_free(whole);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_hugging_face_before_and_after_saving),
        cmocka_unit_test(the_hash_covers_each_flag_of_an_added_token),
        cmocka_unit_test(what_is_not_implemented_or_makes_no_sense_is_refused_by_name),
        cmocka_unit_test(an_added_token_that_normalizing_changes_is_refused),
        cmocka_unit_test(the_forms_of_roberta_and_whisper_are_read),
        cmocka_unit_test(ids_without_a_token_are_allowed_and_refused_in_decoding),
        cmocka_unit_test(files_cut_anywhere_are_refused),
        cmocka_unit_test(vocab_json_with_merges_txt_is_the_same_tokenizer),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
