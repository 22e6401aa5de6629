/* Parquet files that pyarrow wrote (tools/gen_parquet_fixtures.py): every row comes out, for any size of batches and from any mark; damage
 * costs rows that are said, and never more. tools/check_parquet.py compares many more files with pyarrow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/read/reader.h"
#include "../temp.h"

#include <errno.h>

#define DIRECTORY TEST_SOURCE_DIR "/tests/fixtures/parquet/"
enum { ROWS = 300, NULLS = 43 };

static const char *const names[] = {
    "text_none_v1",          "text_crc_v2",      "text_gzip_v1",        "text_lz4_v1",
    "text_zstd_v2",          "text_fallback_v1", "text_dictionary_v2",  "text_delta_length_byte_array",
    "text_delta_byte_array", "ids32_plain_v1",   "ids32_dictionary_v2", "ids64_snappy_v1",
    "ids64_delta_v2",        "text_brotli_v1",   "nested_brotli_v2"};
enum { NAME_COUNT = sizeof names / sizeof names[0] };

static const char *key_of(const char *name)
{
    return strncmp(name, "ids", 3) == 0 ? "ids" : strncmp(name, "nested", 6) == 0 ? "a.text" : "text";
}

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, DIRECTORY "%s.parquet", name);
    return path;
}

static void load(const char *name, char **data, size_t *bytes)
{
    assert_int_equal(io_read_file(path_of(name), 1 << 20, data, bytes), STATUS_OK);
}

/* Whether the document is that of `row`, as the script wrote it. */
static bool is_row(const struct reader_document *d, int64_t row, bool ids)
{
    char text[512];
    int64_t count = row * row % 23;
    bool null = row % 7 == 3;
    if (ids) {
        if (d->id_count != (null ? 0 : count)) return false;
        for (int64_t j = 0; j < d->id_count; j++)
            if (d->ids[j] != (row * 1000 + j) % 50021) return false;
        return true;
    }
    int n = snprintf(text, sizeof text, "row %lld", (long long)row);
    for (int64_t j = 0; j < count; j++) n += snprintf(text + n, sizeof text - (size_t)n, " und \xc3\xa9");
    return null ? d->bytes == 0 : d->bytes == (size_t)n && memcmp(d->text, text, d->bytes) == 0;
}

struct outcome {
    int64_t good, wrong, failed, nulls; /* documents */
    status st;
    char message[256]; /* of the first document that failed */
};

static void take_batch(const struct reader_batch *b, bool ids, int64_t *row, struct outcome *o)
{
    assert_true(b->count > 0);
    assert_int_equal(b->line, *row);
    assert_int_equal(b->format, READER_PARQUET);
    o->nulls += b->nulls;
    for (int64_t i = 0; i < b->count; i++, ++*row) {
        struct reader_document d;
        int64_t place = reader_place(b, i);
        assert_true(place >= 0 && place < reader_bytes(b->reader));
        if (reader_text(b, i, NULL, &d) != STATUS_OK) {
            if (o->failed++ == 0) snprintf(o->message, sizeof o->message, "%s", status_message());
            continue;
        }
        if (is_row(&d, *row, ids))
            o->good++;
        else
            o->wrong++;
        reader_document_free(&d);
    }
}

/* Rows from the mark, which is row `row` of the file, to the end. */
static struct outcome read_from(struct reader *r, struct reader_mark mark, int64_t row, bool ids)
{
    struct outcome o = {.st = reader_seek(r, mark)};
    struct reader_batch b;
    for (bool more = true, last = false; o.st == STATUS_OK;) {
        o.st = reader_next(r, &b, &more);
        if (o.st != STATUS_OK || !more) break;
        assert_false(last);
        take_batch(&b, ids, &row, &o);
        last = b.last;
        assert_true(last == (row == ROWS));
        assert_true(reader_bytes_done(r) <= reader_bytes(r));
    }
    return o;
}

static void all_rows_come_out_from_every_mark(void **state)
{
    (void)state;
    static const size_t batches[] = {1, 700, 3000, 0};
    for (int n = 0; n < NAME_COUNT; n++)
        for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
            struct reader_config c = {.key = key_of(names[n]), .batch_bytes = batches[i]};
            bool ids = c.key[0] == 'i', more = true;
            struct reader *r, *other;
            struct reader_batch b;
            assert_int_equal(reader_open(&r, path_of(names[n]), &c), STATUS_OK);
            struct outcome o = read_from(r, (struct reader_mark){0, 0}, 0, ids);
            if (o.st != STATUS_OK || o.good != ROWS || o.nulls != NULLS || o.failed)
                fail_msg("%s in batches of %zu: %d good, %d wrong, %d failed: %s", names[n], batches[i],
                         (int)o.good, (int)o.wrong, (int)o.failed, o.failed ? o.message : status_message());
            assert_int_equal(reader_open(&other, path_of(names[n]), &c), STATUS_OK);
            assert_int_equal(reader_seek(r, (struct reader_mark){0, 0}), STATUS_OK);
            for (int64_t row = 0; more;) {
                struct reader_mark mark = reader_mark(r);
                o = read_from(other, mark, row, ids);
                if (o.st != STATUS_OK || o.good != ROWS - row)
                    fail_msg("%s from group %d, row %d: %d good", names[n], (int)mark.at, (int)mark.row,
                             (int)o.good);
                assert_int_equal(reader_next(r, &b, &more), STATUS_OK);
                row += more ? b.count : 0;
            }
            assert_int_equal(reader_seek(r, (struct reader_mark){0, 1 << 20}), STATUS_DATA);
            assert_int_equal(reader_seek(r, (struct reader_mark){1000, 0}), STATUS_DATA);
            reader_close(r);
            reader_close(other);
        }
}

static void other_columns_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *name, *key, *message;
    } cases[] = {
        {"text_crc_v2", "nope", "no column 'nope'; --key names one of: n, text"},
        {"text_crc_v2", "n", "column 'n' has one INT64 in a row; a text (BYTE_ARRAY), or a list"},
        {"text_crc_v2", "tex", "no column 'tex'"},
        {"ids32_plain_v1", "ids.list.wrong", "--key names one of: n, ids.list.element"},
    };
    struct reader *r;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct reader_config c = {.key = cases[i].key};
        assert_int_equal(reader_open(&r, path_of(cases[i].name), &c), STATUS_DATA);
        if (!strstr(status_message(), cases[i].message)) fail_msg("%s", status_message());
    }
    struct reader_config c = {.key = "ids.list.element"};
    assert_int_equal(reader_open(&r, path_of("ids32_plain_v1"), &c), STATUS_OK);
    reader_close(r);
    c.format = READER_JSONL;
    assert_int_equal(reader_open(&r, path_of("ids32_plain_v1"), &c), STATUS_DATA);
    c.format = READER_PARQUET;
    assert_int_equal(reader_open(&r, TEST_SOURCE_DIR "/tests/data/test_parquet.c", &c), STATUS_DATA);
}

static struct outcome read_memory(const char *data, size_t bytes, const char *key)
{
    struct reader_config c = {.key = key, .batch_bytes = 2000};
    struct reader *r;
    status st = reader_open_memory(&r, "m.parquet", data, bytes, &c);
    if (st != STATUS_OK) return (struct outcome){.st = st};
    struct outcome o = read_from(r, (struct reader_mark){0, 0}, 0, key[0] == 'i');
    reader_close(r);
    return o;
}

static void a_file_that_is_cut_off_is_refused(void **state)
{
    (void)state;
    char *data;
    size_t bytes;
    load("text_crc_v2", &data, &bytes);
    for (size_t cut = 4; cut < bytes; cut += 37) {
        assert_int_equal(read_memory(data, cut, "text").st, STATUS_DATA);
        assert_non_null(strstr(status_message(), "m.parquet: "));
    }
    memcpy(data + bytes - 4, "PARE", 4);
    assert_int_equal(read_memory(data, bytes, "text").st, STATUS_DATA);
    assert_non_null(strstr(status_message(), "encrypted"));
    free(data);
}

static void a_damaged_page_costs_its_rows_alone(void **state)
{
    (void)state;
    char *data;
    size_t bytes;
    load("text_crc_v2", &data, &bytes);
    char *at = memmem(data, bytes, "row 40", 6); /* a row whose text is stored uncompressed in its page */
    assert_non_null(at);
    at[4] ^= 1;
    struct outcome o = read_memory(data, bytes, "text");
    assert_int_equal(o.st, STATUS_OK);
    assert_int_equal(o.wrong, 0);
    assert_true(o.failed > 1 && o.failed < 40);
    assert_int_equal(o.good + o.failed, ROWS);
    assert_non_null(strstr(o.message, "(row group 0): a damaged page at byte "));
    assert_non_null(strstr(o.message, "its checksum differs"));
    free(data);
}

/* Every byte of the file, changed: no row is made up or dropped without a word. What is not under a checksum may change rows. */
static void any_damaged_byte_is_survived(void **state)
{
    (void)state;
    for (int n = 0; n < NAME_COUNT; n++) {
        char *data;
        size_t bytes;
        load(names[n], &data, &bytes);
        for (size_t i = 4; i < bytes; i += n == 1 ? 1 : 13) {
            data[i] ^= (char)(1 << i % 8);
            struct outcome o = read_memory(data, bytes, key_of(names[n]));
            data[i] ^= (char)(1 << i % 8);
            if (o.st == STATUS_OK && o.good + o.wrong + o.failed != ROWS)
                fail_msg("%s, byte %zu of %zu: %d good, %d wrong, %d failed", names[n], i, bytes, (int)o.good,
                         (int)o.wrong, (int)o.failed);
            if (o.st != STATUS_OK) assert_int_equal(o.st, STATUS_DATA);
        }
        free(data);
    }
}

static void a_failing_read_is_an_error(void **state)
{
    (void)state;
    struct reader_config c = {.key = "text", .batch_bytes = 1000};
    int64_t calls = 1;
    for (int64_t k = 1; k <= calls; k++) {
        struct reader *r;
        struct outcome o = {0};
        io_fault_set(k, EIO);
        o.st = reader_open(&r, path_of("text_zstd_v2"), &c);
        if (o.st == STATUS_OK) {
            o = read_from(r, (struct reader_mark){0, 0}, 0, false);
            reader_close(r);
        }
        io_fault_set(0, 0);
        if (o.st != STATUS_OK) calls = k + 1;
        assert_true(o.st == STATUS_IO || (o.st == STATUS_OK && o.good == ROWS));
    }
    assert_true(calls > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_rows_come_out_from_every_mark),
        cmocka_unit_test(other_columns_are_refused_by_name),
        cmocka_unit_test(a_file_that_is_cut_off_is_refused),
        cmocka_unit_test(a_damaged_page_costs_its_rows_alone),
        cmocka_unit_test(any_damaged_byte_is_survived),
        cmocka_unit_test(a_failing_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
