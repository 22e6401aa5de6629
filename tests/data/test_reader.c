/* The reader: documents come out as defined, whatever the batch size; bad input is named by file, line,
 * byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/read/reader_int.h"
#include "../temp.h"

#include <errno.h>
#include <zlib.h>
#include <zstd.h>

static char *joined; /* the documents of the last read, each followed by '|' */
static int64_t failures;

/* Reads all documents into `joined`; a document that fails counts in `failures`. */
static status read_all(const char *path, const struct reader_config *c)
{
    struct reader *r;
    size_t used = 0;
    free(joined);
    joined = calloc(1, 1 << 20);
    failures = 0;
    TRY(reader_open(&r, path, c));
    status st = STATUS_OK;
    bool more = true, last = false;
    while (st == STATUS_OK) {
        struct reader_batch b;
        st = reader_next(r, &b, &more);
        if (st != STATUS_OK || !more) break;
        assert_true(b.count > 0);
        assert_false(last);
        last = b.last;
        for (int64_t i = 0; i < b.count; i++) {
            struct reader_document d;
            if (reader_text(&b, i, c->key, &d) != STATUS_OK) {
                failures++;
                continue;
            }
            memcpy(joined + used, d.text, d.bytes);
            used += d.bytes;
            joined[used++] = '|';
            reader_document_free(&d);
        }
    }
    reader_close(r);
    return st;
}

static void text_is_cut_as_asked(void **state)
{
    (void)state;
    static const struct {
        enum reader_separator separator;
        const char *mark, *in, *out;
    } cases[] = {
        {READER_FILE, NULL, "a\n\nb\n", "a\n\nb\n|"},
        {READER_FILE, NULL, "", ""},
        {READER_FILE, NULL, "\xef\xbb\xbfx", "x|"},
        {READER_LINE, NULL, "a\nbc\r\n\n\r\nd", "a|bc|d|"},
        {READER_LINE, NULL, "\n\n", ""},
        {READER_BLANK, NULL, "a\nb\n\nc\n", "a\nb|c|"},
        {READER_BLANK, NULL, "\n \t\n\r\na\r\nb\r\n\r\n\n\nc d\n \ne", "a\r\nb|c d|e|"},
        {READER_BLANK, NULL, " \n\n", ""},
        {READER_BLANK, NULL, "  indented\n\n", "  indented|"},
        {READER_TEXT, "<|endoftext|>", "a\n<|endoftext|>\nb<|endoftext|><|endoftext|>c", "a\n|\nb|c|"},
        {READER_TEXT, "aa", "aaaxaaa", "ax|a|"},
        {READER_TEXT, "--", "--x--", "x|"},
        {READER_TEXT, "long separator", "no such thing", "no such thing|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        temp_write(temp_path("t.txt"), cases[i].in, strlen(cases[i].in));
        for (size_t batch = 1; batch < 40; batch++) { /* every place where a buffer can end */
            struct reader_config c = {
                .separator = cases[i].separator, .separator_text = cases[i].mark, .batch_bytes = batch};
            assert_int_equal(read_all(temp_path("t.txt"), &c), STATUS_OK);
            assert_int_equal(failures, 0);
            assert_string_equal(joined, cases[i].out);
        }
    }
}

static void jsonl_gives_the_text_of_every_line(void **state)
{
    (void)state;
    const char in[] = "{\"text\": \"a\\nb\", \"id\": 7}\n\n  \r\n{\"id\": {\"text\": 1}, \"text\": "
                      "\"\\u00e9\\ud83d\\ude00\"}\r\n"
                      "{\"text\":\"\"}\n{\"text\":\"\xc3\xa9 end\"}";
    temp_write(temp_path("t.jsonl"), in, sizeof in - 1);
    for (size_t batch = 1; batch < 200; batch += 3) {
        struct reader_config c = {.batch_bytes = batch};
        assert_int_equal(read_all(temp_path("t.jsonl"), &c), STATUS_OK);
        assert_int_equal(failures, 0);
        assert_string_equal(joined, "a\nb|\xc3\xa9\xf0\x9f\x98\x80||\xc3\xa9 end|");
    }
    const char other[] = "{\"content\": \"x\", \"text\": \"y\"}\n";
    temp_write(temp_path("o.ndjson"), other, sizeof other - 1);
    assert_int_equal(read_all(temp_path("o.ndjson"), &(struct reader_config){.key = "content"}), STATUS_OK);
    assert_string_equal(joined, "x|");
}

static size_t pack(enum stream_codec codec, const void *from, size_t bytes, uint8_t out[4096])
{
    if (codec == STREAM_ZSTD) return ZSTD_compress(out, 4096, from, bytes, 1);
    if (codec == STREAM_PLAIN) {
        memcpy(out, from, bytes);
        return bytes;
    }
    z_stream z = {.next_in = (Bytef *)from, .avail_in = (uInt)bytes, .next_out = out, .avail_out = 4096};
    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t made = z.total_out;
    deflateEnd(&z);
    return made;
}

/* The documents that a reader set to `mark` gives, compared with the end of `joined`, which has all. */
static void expect_rest(const char *path, const struct reader_config *c, struct reader_mark mark)
{
    struct reader *r;
    struct reader_batch b;
    struct reader_document d;
    bool more;
    char rest[4096];
    size_t used = 0;
    assert_int_equal(reader_open(&r, path, c), STATUS_OK);
    assert_int_equal(reader_seek(r, mark), STATUS_OK);
    for (;;) {
        assert_int_equal(reader_next(r, &b, &more), STATUS_OK);
        if (!more) break;
        for (int64_t i = 0; i < b.count; i++) {
            assert_int_equal(reader_text(&b, i, c->key, &d), STATUS_OK);
            memcpy(rest + used, d.text, d.bytes);
            used += d.bytes;
            rest[used++] = '|';
            reader_document_free(&d);
        }
    }
    rest[used] = 0;
    reader_close(r);
    size_t all = strlen(joined);
    assert_true(used <= all);
    assert_string_equal(rest, joined + all - used);
}

static void reading_goes_on_from_every_mark(void **state)
{
    (void)state;
    static const char text[] = "\xef\xbb\xbf one\ntwo\r\n\n\nthree--four\n--\n\nfive\n six\n";
    temp_write(temp_path("m.txt"), text, sizeof text - 1);
    for (int separator = READER_FILE; separator <= READER_TEXT; separator++)
        for (size_t batch = 1; batch < 60; batch += 3) {
            struct reader_config c = {
                .separator = (enum reader_separator)separator, .separator_text = "--", .batch_bytes = batch};
            struct reader *r;
            struct reader_batch b;
            bool more = true;
            struct reader_mark mark = {0, 0};
            assert_int_equal(read_all(temp_path("m.txt"), &c), STATUS_OK);
            expect_rest(temp_path("m.txt"), &c, mark);
            assert_int_equal(reader_open(&r, temp_path("m.txt"), &c), STATUS_OK);
            while (more) {
                assert_int_equal(reader_next(r, &b, &more), STATUS_OK);
                struct reader_mark next = reader_mark(r);
                assert_true(reader_bytes_done(r) == next.at);
                assert_true(!more || reader_place(&b, 0) >= mark.at);
                assert_true(!more || next.at > mark.at);
                mark = next;
                expect_rest(temp_path("m.txt"), &c, mark);
            }
            assert_int_equal(mark.at, sizeof text - 1);
            assert_int_equal(mark.row, 9);
            mark.at++;
            assert_int_equal(reader_seek(r, mark), STATUS_DATA);
            reader_close(r);
        }
}

static void compressed_text_is_read_as_what_it_holds(void **state)
{
    (void)state;
    static const char in[] = "{\"text\": \"a\"}\n\n{\"text\": \"b\\n\"}\r\n{\"text\": \"c\"}";
    static const struct {
        const char *name, *out;
    } cases[] = {{"x.jsonl", "a|b\n|c|"},
                 {"x.jsonl.gz", "a|b\n|c|"},
                 {"x.json.zst", "a|b\n|c|"},
                 {"x.ndjson.zstd", "a|b\n|c|"},
                 {"x.json", "a|b\n|c|"},
                 {"x.txt.gz", NULL},
                 {"x", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int codec = STREAM_PLAIN; codec <= STREAM_ZSTD; codec++) {
            uint8_t packed[4096];
            size_t bytes = pack((enum stream_codec)codec, in, sizeof in - 1, packed);
            const char *path = temp_path(cases[i].name); /* the name does not show the compression */
            temp_write(path, packed, bytes);
            for (size_t batch = 0; batch < 60; batch += 7) {
                struct reader_config c = {.batch_bytes = batch};
                assert_int_equal(read_all(path, &c), STATUS_OK);
                if (cases[i].out)
                    assert_string_equal(joined, cases[i].out);
                else
                    assert_memory_equal(joined, in, sizeof in - 1);
                if (!cases[i].out || codec == STREAM_PLAIN) continue;
                expect_rest(path, &c, (struct reader_mark){15, 2});
            }
            struct reader_config c = {.batch_bytes = 20};
            temp_write(path, packed, bytes - (codec == STREAM_PLAIN ? 0 : 5));
            assert_int_equal(read_all(path, &c), codec == STREAM_PLAIN ? STATUS_OK : STATUS_DATA);
        }
}

static void a_line_of_twelve_megabytes_is_one_document(void **state)
{
    (void)state;
    size_t bytes = 12 << 20;
    char *line = malloc(bytes + 64);
    memset(line, 'x', bytes + 64);
    memcpy(line, "{\"text\":\"", 9);
    memcpy(line + bytes, "\"}\n{\"text\":\"y\"}\n", 16);
    temp_write(temp_path("big.jsonl"), line, bytes + 16);
    free(line);
    struct reader *r;
    struct reader_batch b;
    bool more;
    assert_int_equal(reader_open(&r, temp_path("big.jsonl"), &(struct reader_config){.batch_bytes = 1 << 16}),
                     STATUS_OK);
    assert_int_equal(reader_next(r, &b, &more), STATUS_OK);
    struct reader_document d;
    assert_int_equal(reader_text(&b, 0, NULL, &d), STATUS_OK);
    assert_int_equal(d.bytes, bytes - 9);
    reader_document_free(&d);
    reader_close(r);
}

/* Four megabytes between two short documents: one fault with its place, and a buffer that did not grow for it. */
static void a_document_above_the_bound_is_passed_over_without_being_held(void **state)
{
    (void)state;
    static const struct {
        enum reader_separator separator;
        const char *name, *before, *end, *after;
    } kinds[] = {{READER_FILE, "x.jsonl", "{\"text\":\"a\"}\n{\"text\":\"", "\"}\n", "{\"text\":\"b\"}\n"},
                 {READER_LINE, "x.txt", "a\n", "\n", "b\n"},
                 {READER_BLANK, "x.txt", "a\n\n", "\n \t\n", "b\n"},
                 {READER_TEXT, "x.txt", "a<|end|>", "<|end|>", "b"}};
    const size_t middle = 4 << 20;
    char *text = malloc(middle + 256);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t n = strlen(kinds[k].before), end = strlen(kinds[k].end), after = strlen(kinds[k].after);
        memcpy(text, kinds[k].before, n);
        for (size_t i = 0; i < middle; i++)
            text[n + i] = i % 50 != 49 ? 'x' : "\n<"[kinds[k].separator == READER_TEXT];
        if (kinds[k].separator == READER_LINE || k == 0) memset(text + n, 'x', middle);
        memcpy(text + n + middle, kinds[k].end, end);
        memcpy(text + n + middle + end, kinds[k].after, after);
        struct reader *r;
        struct reader_batch b;
        struct reader_document d;
        bool more;
        int good = 0, bad = 0;
        const struct reader_config c = {.batch_bytes = 4096,
                                        .document_bytes_max = 10000,
                                        .separator = kinds[k].separator,
                                        .separator_text = "<|end|>"};
        assert_int_equal(reader_open_memory(&r, kinds[k].name, text, n + middle + end + after, &c),
                         STATUS_OK);
        for (;;) {
            assert_int_equal(reader_next(r, &b, &more), STATUS_OK);
            if (!more) break;
            for (int64_t i = 0; i < b.count; i++) {
                if (reader_text(&b, i, NULL, &d) == STATUS_OK) {
                    assert_int_equal(d.bytes, 1);
                    assert_int_equal(d.text[0], "ab"[good++]);
                    reader_document_free(&d);
                    continue;
                }
                bad++;
                assert_non_null(strstr(status_message(), "a document of 41943"));
                assert_non_null(strstr(status_message(), k == 2   ? "x.txt:3: "
                                                         : k == 3 ? "x.txt:1: "
                                                                  : ":2: "));
            }
            assert_true(r->capacity <= 10000 + 8);
            struct reader_mark mark = reader_mark(r); /* never inside what is passed over */
            assert_true(mark.at <= (int64_t)n || mark.at >= (int64_t)(n + middle));
        }
        assert_int_equal(good, 2);
        assert_int_equal(bad, 1);
        reader_close(r);
    }
    free(text);
}

static void the_bound_itself_is_allowed(void **state)
{
    (void)state;
    for (int extra = 0; extra < 2; extra++) {
        char text[5200];
        int n = snprintf(text, sizeof text, "%0*d\r\nb\n", 5000 + extra, 7);
        struct reader *r;
        struct reader_batch b;
        struct reader_document d;
        bool more;
        const struct reader_config c = {
            .batch_bytes = 64, .document_bytes_max = 5000, .separator = READER_LINE};
        assert_int_equal(reader_open_memory(&r, "x.txt", text, (size_t)n, &c), STATUS_OK);
        assert_int_equal(reader_next(r, &b, &more), STATUS_OK);
        assert_int_equal(reader_text(&b, 0, NULL, &d), extra ? STATUS_DATA : STATUS_OK);
        reader_document_free(&d);
        reader_close(r);
    }
}

static void expect_error(const char *name, const char *data, size_t bytes, const char *message)
{
    temp_write(temp_path(name), data, bytes);
    struct reader *r;
    struct reader_batch b;
    struct reader_document d;
    bool more;
    for (size_t batch = 4; batch < 64; batch += 5) {
        struct reader_config c = {.separator = READER_LINE, .batch_bytes = batch};
        status st = reader_open(&r, temp_path(name), &c);
        while (st == STATUS_OK && (st = reader_next(r, &b, &more)) == STATUS_OK && more)
            for (int64_t i = 0; i < b.count && st == STATUS_OK; i++) {
                st = reader_text(&b, i, NULL, &d);
                if (st == STATUS_OK) reader_document_free(&d);
            }
        reader_close(r);
        assert_int_equal(st, STATUS_DATA);
        if (!strstr(status_message(), message))
            fail_msg("'%s' does not contain '%s'", status_message(), message);
    }
}
#define EXPECT_ERROR(name, data, message) expect_error((name), (data), sizeof(data) - 1, (message))

static void bad_input_is_named_by_file_line_and_byte(void **state)
{
    (void)state;
    EXPECT_ERROR("u.txt", "abc\nde\n\nfg\xff\n", "u.txt:4: invalid UTF-8 (byte 10 of the file)");
    EXPECT_ERROR("u.txt", "abc\n\xed\xa0\x80", "u.txt:2: invalid UTF-8 (byte 4 of the file)"); /* surrogate */
    EXPECT_ERROR("u.txt", "a\xc0\x80", "u.txt:1: invalid UTF-8 (byte 1 of the file)");         /* overlong */
    EXPECT_ERROR("u.jsonl", "{\"text\":\"a\"}\n{\"text\":\"\xfe\"}\n", "u.jsonl:2: invalid UTF-8 (byte 22");
    EXPECT_ERROR("j.jsonl", "{\"text\":\"a\"}\n{\"text\": \"b}\n", "j.jsonl:2: not JSON");
    EXPECT_ERROR("j.jsonl", "{\"text\":\"\\ud800\"}\n", "j.jsonl:1: not JSON");
    EXPECT_ERROR("j.jsonl", "\n{\"id\":3}\n", "j.jsonl:2: nothing under the key 'text'");
    EXPECT_ERROR("j.jsonl", "{\"text\":3}\n", "j.jsonl:1: not text under the key 'text'");
    EXPECT_ERROR("j.jsonl", "[1]\n", "j.jsonl:1: a JSON object is expected");
    EXPECT_ERROR("j.jsonl", "{\"text\":\"a\"} x\n", "j.jsonl:1: not JSON");
    EXPECT_ERROR("g.txt", "\x1f\x8b\x08 data", "gzip");
    EXPECT_ERROR("g.txt", "PAR1....", "Parquet");
}

static void a_failing_read_is_an_error_and_not_an_end(void **state)
{
    (void)state;
    temp_write(temp_path("f.txt"), "aaaa\nbbbb\ncccc\n", 15);
    struct reader_config c = {.separator = READER_LINE, .batch_bytes = 6};
    int64_t calls = 1;
    for (int64_t k = 1; k <= calls; k++) {
        io_fault_set(k, EIO);
        status st = read_all(temp_path("f.txt"), &c);
        io_fault_set(0, 0);
        if (st != STATUS_OK) calls = k + 1;
        assert_true(st == STATUS_IO || (st == STATUS_OK && strcmp(joined, "aaaa|bbbb|cccc|") == 0));
    }
    assert_true(calls > 4);
    free(joined);
    joined = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_cut_as_asked),
        cmocka_unit_test(jsonl_gives_the_text_of_every_line),
        cmocka_unit_test(reading_goes_on_from_every_mark),
        cmocka_unit_test(compressed_text_is_read_as_what_it_holds),
        cmocka_unit_test(a_line_of_twelve_megabytes_is_one_document),
        cmocka_unit_test(a_document_above_the_bound_is_passed_over_without_being_held),
        cmocka_unit_test(the_bound_itself_is_allowed),
        cmocka_unit_test(bad_input_is_named_by_file_line_and_byte),
        cmocka_unit_test(a_failing_read_is_an_error_and_not_an_end),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
