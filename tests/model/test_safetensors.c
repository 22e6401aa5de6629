/* Goal: files of the reference library are read and its bytes written; a hostile or damaged header is
 * refused with a reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/io.h"
#include "model/safetensors.h"
#include "../temp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file in memory: length field, JSON, `data` zero bytes. */
static status open_json(struct safetensors **s, const char *json, size_t json_bytes, size_t data)
{
    char *file = calloc(1, 8 + json_bytes + data);
    for (int i = 0; i < 8; i++) file[i] = (char)((uint64_t)json_bytes >> (8 * i));
    memcpy(file + 8, json, json_bytes);
    status st = safetensors_open_memory(s, file, (int64_t)(8 + json_bytes + data), "test");
    if (st == STATUS_OK && safetensors_count(*s) > 0) assert_non_null(safetensors_item(*s, 0)->data);
    free(file);
    return st;
}

static void the_published_test_vector_is_read_and_written(void **state)
{
    (void)state;
    const char *json = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}  ";
    uint8_t file[68] = {56};
    memcpy(file + 8, json, 56);
    memcpy(file + 64, (const uint8_t[]){0, 0, 0x80, 0x3f}, 4);
    struct safetensors *s;
    assert_int_equal(safetensors_open_memory(&s, file, 68, "vector"), STATUS_OK);
    assert_int_equal(safetensors_count(s), 1);
    const struct safetensor *t = safetensors_find(s, "w");
    assert_non_null(t);
    assert_null(safetensors_find(s, "v"));
    assert_int_equal(t->dt, DTYPE_F32);
    assert_int_equal(t->rank, 1);
    assert_int_equal(t->shape[0], 1);
    float value;
    memcpy(&value, t->data, 4);
    assert_true(value == 1.0f);
    safetensors_close(s);
    assert_int_equal(io_write_file(temp_path("x.safetensors"), file, 68), STATUS_OK);
    assert_int_equal(safetensors_open(&s, temp_path("x.safetensors")), STATUS_OK);
    assert_string_equal(safetensors_item(s, 0)->name, "w");
    safetensors_close(s);

    const float one = 1;
    struct safetensors_source source = {.name = "w", .dt = DTYPE_F32, .rank = 1, .shape = {1}, .data = &one};
    assert_int_equal(safetensors_write(temp_dir, &source, 1, 1000), STATUS_OK);
    char *written;
    size_t bytes;
    assert_int_equal(io_read_file(temp_path("model.safetensors"), 1000, &written, &bytes), STATUS_OK);
    const char *want = "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_"
                       "offsets\":[0,4]}}";
    size_t padded = (strlen(want) + 7) / 8 * 8;
    assert_int_equal(bytes, 8 + padded + 4);
    assert_int_equal((uint8_t)written[0], padded);
    assert_memory_equal(written + 8, want, strlen(want));
    assert_memory_equal(written + 8 + padded, file + 64, 4);
    free(written);
}

static void unusual_but_legal_files_are_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        size_t data;
        int count;
    } cases[] = {
        {"{}", 0, 0},
        {" {} \n ", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 1},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]}}", 0, 1},
        {"{\"b\":{\"data_offsets\":[2,6],\"dtype\":\"U16\",\"shape\":[2]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[2,1],\"data_offsets\":[0,2]}}",
         6, 2},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[1,4]},"
         "\"c\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[4,12]},"
         "\"z\":{\"dtype\":\"BOOL\",\"shape\":[0],\"data_offsets\":[4,4]}}",
         12, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct safetensors *s;
        assert_int_equal(open_json(&s, cases[i].json, strlen(cases[i].json), cases[i].data), STATUS_OK);
        assert_int_equal(safetensors_count(s), cases[i].count);
        safetensors_close(s);
    }
}

#define A(dtype, shape, offsets)                                                                             \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define B(offsets) "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" offsets "}"

static void hostile_headers_are_refused_with_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        size_t data;
    } cases[] = {
        {"", 0},
        {"[]", 0},
        {"{", 0},
        {"{}x", 0},
        {"{}", 1},
        {A("F32", "[1]", "[4,0]"), 4},
        {A("F32", "[1]", "[0,8]"), 8},
        {A("F32", "[1]", "[0,4]"), 8},
        {A("F32", "[1]", "[0,4]"), 3},
        {A("F32", "[1]", "[4,8]"), 8},
        {A("F32", "[1]", "[-4,0]"), 4},
        {A("F32", "[1]", "[0.0,4.0]"), 4},
        {A("F32", "[1]", "[0,4,4]"), 4},
        {A("F32", "[1]", "[0]"), 4},
        {A("F32", "[1]", "{}"), 4},
        {A("F32", "[1]", "[0,99999999999999999999]"), 4},
        {A("F32", "[-1]", "[0,4]"), 4},
        {A("F32", "[1.5]", "[0,4]"), 4},
        {A("F32", "[true]", "[0,4]"), 4},
        {A("F32", "\"1\"", "[0,4]"), 4},
        {A("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4},
        {A("F32", "[4294967296,4294967296]", "[0,0]"), 0},
        {A("F32", "[4611686018427387905]", "[0,4]"), 4},
        {A("F64", "[2305843009213693952]", "[0,0]"), 0},
        {A("F33", "[1]", "[0,4]"), 4},
        {A("f32", "[1]", "[0,4]"), 4},
        {A("F4", "[1]", "[0,1]"), 1},
        {A("F6_E3M2", "[2]", "[0,2]"), 2},
        {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"x\":1}}", 4},
        {"{\"a\":[1]}", 0},
        {"{" B("[0,4]") "," B("[0,4]") "}", 4},
        {"{" B("[0,4]") ",\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}", 6},
        {"{" B("[0,4]") ",\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4},
        {"{" B("[0,4]") ",\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5,9]}}", 9},
        {"{" B("[1,5]") "}", 5},
        {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0},
        {"{\"__metadata__\":{\"a\":1}}", 0},
        {"{\"__metadata__\":\"pt\"}", 0},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4},
        {"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct safetensors *s;
        if (open_json(&s, cases[i].json, strlen(cases[i].json), cases[i].data) != STATUS_CKPT)
            fail_msg("%s", cases[i].json);
        assert_null(s);
        assert_null(strchr(status_message(), '\n'));
    }
}

static void impossible_header_lengths_are_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3,          4,          100000001,  1ull << 31,
                                       1ull << 32, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint8_t file[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        for (int b = 0; b < 8; b++) file[b] = (uint8_t)(lengths[i] >> (8 * b));
        struct safetensors *s;
        assert_int_equal(safetensors_open_memory(&s, file, 10, "test"), STATUS_CKPT);
        assert_int_equal(io_write_file(temp_path("x.safetensors"), file, 10), STATUS_OK);
        assert_int_equal(safetensors_open(&s, temp_path("x.safetensors")), STATUS_CKPT);
    }
    struct safetensors *s;
    for (int64_t n = 0; n < 10; n++)
        assert_int_equal(safetensors_open_memory(&s, "\2\0\0\0\0\0\0\0{}", n, "test"), STATUS_CKPT);
}

static status fill_with_seven(void *ctx, void *out)
{
    memset(out, 7, *(const size_t *)ctx);
    return STATUS_OK;
}

static void write_sample(int64_t shard_bytes_max)
{
    static const float f[6] = {1, 2, 3, 4, 5, 6};
    static const bf16 h[3] = {0x3f80, 0x4000, 0x4040};
    static size_t bytes = 16;
    struct safetensors_source sources[] = {
        {.name = "z.half", .dt = DTYPE_BF16, .rank = 1, .shape = {3}, .data = h},
        {.name = "empty", .dt = DTYPE_U8, .rank = 2, .shape = {0, 5}},
        {.name = "b", .dt = DTYPE_F32, .rank = 2, .shape = {2, 3}, .data = f},
        {.name = "a", .dt = DTYPE_F32, .rank = 0, .data = f},
        {.name = "made \"here\"",
         .dt = DTYPE_I64,
         .rank = 1,
         .shape = {2},
         .fill = fill_with_seven,
         .ctx = &bytes},
    };
    assert_int_equal(safetensors_write(temp_dir, sources, 5, shard_bytes_max), STATUS_OK);
}

static void check_sample(void)
{
    struct safetensors *s;
    assert_int_equal(safetensors_open(&s, temp_dir), STATUS_OK);
    assert_int_equal(safetensors_count(s), 5);
    assert_string_equal(safetensors_item(s, 0)->name, "a");
    const struct safetensor *b = safetensors_find(s, "b"), *half = safetensors_find(s, "z.half");
    const struct safetensor *made = safetensors_find(s, "made \"here\""),
                            *empty = safetensors_find(s, "empty");
    assert_true(b && half && made && empty);
    assert_memory_equal(b->data, ((const float[]){1, 2, 3, 4, 5, 6}), 24);
    assert_int_equal((uintptr_t)b->data % 4, 0);
    assert_int_equal(b->shape[1], 3);
    assert_string_equal(half->type, "BF16");
    assert_memory_equal(half->data, ((const bf16[]){0x3f80, 0x4000, 0x4040}), 6);
    assert_int_equal(((const char *)made->data)[15], 7);
    assert_int_equal(empty->bytes, 0);
    safetensors_close(s);
}

static void a_model_survives_writing_whole_and_in_shards_and_the_last_export_counts(void **state)
{
    (void)state;
    write_sample(INT64_MAX);
    check_sample();
    assert_false(temp_there(temp_path("model.safetensors.index.json")));
    write_sample(20);
    check_sample();
    assert_false(temp_there(temp_path("model.safetensors")));
    assert_true(temp_there(temp_path("model-00001-of-00003.safetensors")));
    write_sample(1);
    check_sample();
    assert_false(temp_there(temp_path("model-00001-of-00003.safetensors")));
    write_sample(1000);
    check_sample();
    struct io_list list;
    assert_int_equal(io_list(temp_dir, &list), STATUS_OK);
    assert_int_equal(list.count, 1);
    io_list_free(&list);
}

static void a_bad_index_is_refused(void **state)
{
    (void)state;
    write_sample(20);
    static const char *const indexes[] = {
        "{}",
        "not json",
        "{\"weight_map\":{\"a\":3}}",
        "{\"weight_map\":{\"a\":\"../model-00001-of-00003.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"/etc/passwd\"}}",
        "{\"weight_map\":{\"a\":\"model-00009-of-00003.safetensors\"}}",
        "{\"weight_map\":{\"nobody\":\"model-00001-of-00003.safetensors\"}}",
        "{\"weight_map\":{\"b\":\"model-00001-of-00003.safetensors\"}}",
    };
    for (size_t i = 0; i < sizeof indexes / sizeof indexes[0]; i++) {
        const char *path = temp_path("model.safetensors.index.json");
        assert_int_equal(io_write_file(path, indexes[i], strlen(indexes[i])), STATUS_OK);
        struct safetensors *s;
        status st = safetensors_open(&s, temp_dir);
        assert_true(st == STATUS_CKPT || st == STATUS_IO);
        assert_null(s);
    }
    struct safetensors *s;
    assert_int_equal(safetensors_open(&s, temp_path("nowhere")), STATUS_CKPT);
}

static void every_failing_call_of_writing_and_opening_is_reported_and_leaves_a_readable_model(void **state)
{
    (void)state;
    write_sample(INT64_MAX);
    for (int64_t k = 1;; k++) {
        static const float f = 2;
        struct safetensors_source one = {.name = "one", .dt = DTYPE_F32, .rank = 0, .data = &f};
        io_fault_set(k, ENOSPC);
        struct safetensors *s = NULL;
        status st = safetensors_write(temp_dir, &one, 1, 1000);
        if (st == STATUS_OK) st = safetensors_open(&s, temp_dir);
        bool past_end = io_fault_calls() < k;
        io_fault_set(0, 0);
        /* A directory that seems empty because the look-up failed is reported as STATUS_CKPT. */
        assert_true(st == STATUS_OK || st == STATUS_IO || st == STATUS_CKPT);
        safetensors_close(s);
        assert_int_equal(safetensors_open(&s, temp_dir), STATUS_OK);
        assert_true(safetensors_count(s) == 1 || safetensors_count(s) == 5);
        safetensors_close(s);
        struct io_list list;
        assert_int_equal(io_list(temp_dir, &list), STATUS_OK);
        assert_int_equal(list.count, 1);
        io_list_free(&list);
        if (past_end) break;
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, temp_open, temp_close)
    const struct CMUnitTest tests[] = {
        T(the_published_test_vector_is_read_and_written),
        T(unusual_but_legal_files_are_accepted),
        T(hostile_headers_are_refused_with_one_line),
        T(impossible_header_lengths_are_refused),
        T(a_model_survives_writing_whole_and_in_shards_and_the_last_export_counts),
        T(a_bad_index_is_refused),
        T(every_failing_call_of_writing_and_opening_is_reported_and_leaves_a_readable_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
