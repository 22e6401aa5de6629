/* Records of JSONL: what RFC 8259 allows is read as jansson reads it, what it forbids is named with its byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/read/jsonl.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A copy that ends where the record ends, so that a sanitizer sees a read beyond. */
static bool read_key(const char *record, size_t bytes, const char *key, char *out, struct jsonl_fault *fault)
{
    char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, record, bytes);
    struct jsonl_text text;
    bool ok = jsonl_read(copy, bytes, key, &text, fault);
    if (ok) {
        memcpy(out, text.text, text.bytes);
        out[text.bytes] = 0;
        free(text.owner);
    }
    free(copy);
    return ok;
}

static bool read_record(const char *record, size_t bytes, char *out, struct jsonl_fault *fault)
{
    return read_key(record, bytes, "text", out, fault);
}

/* As in Parquet: a null is an empty document, a name may be a path. */
static void nulls_are_empty_and_names_may_be_paths(void **state)
{
    (void)state;
    static const struct {
        const char *key, *record, *text; /* NULL: an error with `what` */
        const char *what;
    } cases[] = {
        {"text", "{\"text\":null}", "", NULL},
        {"text", "{\"text\":null,\"text\":\"last\"}", "last", NULL},
        {"text", "{\"text\":\"first\",\"text\":null}", "", NULL},
        {"text", "{\"text\":nul}", NULL, "value"},
        {"text", "{\"text\":false}", NULL, "not text"},
        {"a.b", "{\"a\":{\"b\":\"in\"},\"b\":\"out\"}", "in", NULL},
        {"a.b", "{\"a\":null}", "", NULL},
        {"a.b", "{\"a\":{\"b\":null}}", "", NULL},
        {"a.b", "{\"a\":{\"c\":\"x\"}}", NULL, "nothing"},
        {"a.b", "{\"a\":[{\"b\":\"x\"}]}", NULL, "nothing"},
        {"a.b", "{\"a\":{\"b\":\"x\"},\"a\":3}", NULL, "nothing"},
        {"a.b", "{\"a\":{\"b\":7}}", NULL, "not text"},
        {"a.b", "{\"a.b\":\"whole\",\"a\":{\"b\":\"path\"}}", "whole", NULL},
        {"a.b", "{\"a\":{\"b\":\"path\"},\"a.b\":\"whole\"}", "whole", NULL},
        {"a.b.c", "{\"a\":{\"b.c\":\"one\"}}", "one", NULL},
        {"a.b.c", "{\"a.b\":{\"c\":\"two\"}}", "two", NULL},
        {"a.b.c", "{\"a\":{\"x\":{\"c\":\"no\"},\"b\":{\"c\":\"three\"},\"z\":[1]},\"y\":2}", "three", NULL},
        {"a.b", "{\"\\u0061\":{\"\\u0062\":\"escaped\"}}", "escaped", NULL},
        {"a.b", "{\"a\":{\"b\":\"x\"}", NULL, "'}'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[256];
        struct jsonl_fault fault;
        bool ok = read_key(cases[i].record, strlen(cases[i].record), cases[i].key, out, &fault);
        if (ok != (cases[i].text != NULL) ||
            (ok ? strcmp(out, cases[i].text) != 0 : !strstr(fault.what, cases[i].what)))
            fail_msg("%s of %s: %s", cases[i].key, cases[i].record, ok ? out : fault.what);
    }
}

static void text_is_found_and_unescaped(void **state)
{
    (void)state;
    static const struct {
        const char *record, *text;
    } cases[] = {
        {"{\"text\":\"\"}", ""},
        {" { \"text\" : \"a\" } \r", "a"},
        {"{\"id\":1,\"text\":\"a b\",\"z\":[1,2,{\"text\":\"no\"}]}", "a b"},
        {"{\"meta\":{\"text\":\"inner\"},\"text\":\"outer\"}", "outer"},
        {"{\"text\":\"first\",\"text\":\"last\"}", "last"},
        {"{\"text\":3,\"text\":\"last\"}", "last"},
        {"{\"te\\u0078t\":\"escaped key\"}", "escaped key"},
        {"{\"text \":\"no\",\"tex\":\"no\",\"text\":\"yes\"}", "yes"},
        {"{\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t"},
        {"{\"text\":\"\\u00e9\\u4E2d\\uD83D\\uDE00\\uffff\"}",
         "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\xef\xbf\xbf"},
        {"{\"text\":\"a text of more than thirty-two bytes, without anything that is escaped\"}",
         "a text of more than thirty-two bytes, without anything that is escaped"},
        {"{\"text\":\"a text of more than thirty-two bytes,\\nwith two lines, and more than 32 behind\"}",
         "a text of more than thirty-two bytes,\nwith two lines, and more than 32 behind"},
        {"{\"n\":[0,-0,1.5,-1e5,1E+05,0.0e-1,123456789012345678901234567890],\"text\":\"n\"}", "n"},
        {"{\"l\":[true,false,null,[],{},[[]],{\"a\":{}}],\"text\":\"l\"}", "l"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[256];
        struct jsonl_fault fault;
        if (!read_record(cases[i].record, strlen(cases[i].record), out, &fault))
            fail_msg("%s: %s at %zu", cases[i].record, fault.what, fault.at);
        assert_string_equal(out, cases[i].text);
    }
}

static void what_is_no_json_is_named_by_its_byte(void **state)
{
    (void)state;
    static const struct {
        const char *record;
        size_t at;
        const char *what;
    } cases[] = {
        {"", 0, "a value"},
        {"{", 1, "key"},
        {"{\"text\"", 7, "':'"},
        {"{\"text\":", 8, "value"},
        {"{\"text\":\"a", 10, "without its end"},
        {"{\"text\":\"a\"", 11, "'}'"},
        {"{\"text\":\"a\"}x", 12, "follows"},
        {"{\"text\":\"a\",}", 12, "key"},
        {"{\"text\":\"a\" \"b\":1}", 12, "'}'"},
        {"{text:\"a\"}", 1, "key"},
        {"{'text':\"a\"}", 1, "key"},
        {"{\"text\":\"a\x01\"}", 10, "control"},
        {"{\"text\":\"\\x\"}", 9, "escape"},
        {"{\"text\":\"\\u12g4\"}", 9, "escape"},
        {"{\"text\":\"\\ud800\"}", 9, "surrogate"},
        {"{\"text\":\"\\udc00\"}", 9, "surrogate"},
        {"{\"text\":\"\\ud800\\ud800\"}", 9, "surrogate"},
        {"{\"text\":\"\\", 9, "escape"},
        {"{\"a\":01}", 6, "'}'"},
        {"{\"a\":1.}", 7, "digit"},
        {"{\"a\":.5}", 5, "value"},
        {"{\"a\":+1}", 5, "value"},
        {"{\"a\":-}", 6, "digit"},
        {"{\"a\":1e}", 7, "digit"},
        {"{\"a\":tru}", 5, "value"},
        {"{\"a\":NaN}", 5, "value"},
        {"{\"a\":[1,]}", 8, "value"},
        {"{\"a\":[1 2]}", 8, "']'"},
        {"{\"a\":[1}}", 7, "']'"},
        {"{\"a\":{\"b\":1]}", 11, "'}'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[256];
        struct jsonl_fault fault;
        assert_false(read_record(cases[i].record, strlen(cases[i].record), out, &fault));
        if (fault.kind != JSONL_SYNTAX || fault.at != cases[i].at || !strstr(fault.what, cases[i].what))
            fail_msg("%s: %s at %zu", cases[i].record, fault.what, fault.at);
    }
}

static void nesting_has_a_bound(void **state)
{
    (void)state;
    for (int depth = 1023; depth <= 1025; depth++) {
        char record[4096], out[16];
        struct jsonl_fault fault;
        int n = snprintf(record, sizeof record, "{\"a\":");
        for (int i = 0; i < depth; i++) record[n++] = '[';
        for (int i = 0; i < depth; i++) record[n++] = ']';
        n += snprintf(record + n, sizeof record - (size_t)n, ",\"text\":\"deep\"}");
        assert_true(read_record(record, (size_t)n, out, &fault) == (depth <= 1024));
    }
}

/* Random edits of a record: accepted exactly when jansson accepts it, with the same text. */
static void random_records_are_read_as_jansson_reads_them(void **state)
{
    (void)state;
    static const char seed_record[] =
        "{\"id\": [1, -2.5e3, true, null, {\"text\": \"x\"}], \"text\": "
        "\"a\\n\\u00e9\\ud83d\\ude00 \\\"quoted\\\" and more of it\", \"z\": {}}";
    static const char bytes[] = "{}[]\":,\\ntfu0123456789eE+-. \t\x01"
                                "abcdxz";
    uint64_t random = 3;
    int accepted = 0;
    for (int round = 0; round < 200000; round++) {
        char record[sizeof seed_record], out[256];
        size_t n = sizeof seed_record - 1;
        memcpy(record, seed_record, n);
        for (int edits = round % 4; edits >= 0; edits--) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            record[(random >> 33) % n] = bytes[(random >> 20) % (sizeof bytes - 1)];
        }
        struct jsonl_fault fault;
        json_error_t error;
        json_t *want = json_loadb(record, n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
        bool ok = read_record(record, n, out, &fault);
        const json_t *text = json_object_get(want, "text");
        /* Numbers that are too large for jansson are not too large for us. */
        if (ok != (json_is_string(text) || json_is_null(text)) && !strstr(error.text, "overflow") &&
            !strstr(error.text, "big"))
            fail_msg("%.*s: %s, jansson: %s", (int)n, record, ok ? "read" : fault.what, error.text);
        if (ok && json_is_string(text)) assert_string_equal(out, json_string_value(text));
        accepted += ok;
        json_decref(want);
    }
    assert_true(accepted > 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nulls_are_empty_and_names_may_be_paths),
        cmocka_unit_test(text_is_found_and_unescaped),
        cmocka_unit_test(what_is_no_json_is_named_by_its_byte),
        cmocka_unit_test(nesting_has_a_bound),
        cmocka_unit_test(random_records_are_read_as_jansson_reads_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
