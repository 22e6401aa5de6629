/* Shards of other programs: each format is read by its content, as bytes built here say it must be, and whatever is
 * not whole is refused by name. What ingot writes in a format is the same bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "data/shard/corpus_index.h"
#include "data/shard/manifest.h"
#include "data/shard/shard.h"
#include "spec/spec.h"
#include "../temp.h"

#include <errno.h>

/* A file in memory. */
static uint8_t bytes[1 << 16];
static size_t length;

static void put(const void *data, size_t n)
{
    assert_true(length + n <= sizeof bytes);
    if (n > 0) memcpy(bytes + length, data, n);
    length += n;
}

static void put_int(int64_t value, int n)
{
    put(&value, (size_t)n);
}

static void expect_error(status got, status want, const char *what)
{
    if (got != want) fail_msg("status %d, expected %d for '%s'", got, want, what);
    if (!strstr(status_message(), what)) fail_msg("'%s' does not contain '%s'", status_message(), what);
}

static void expect_tokens(const struct shard *s, const int32_t *want, int64_t count)
{
    int32_t got[64];
    assert_int_equal(s->count, count);
    assert_int_equal(shard_read(s, 0, count, 0, got), STATUS_OK);
    assert_memory_equal(got, want, (size_t)count * 4);
}

enum { LLMQ_HEADER = 1024 };

static void llmq(int version, int width, int64_t count, int vocab, int masked)
{
    length = 0;
    put("BIN.TOK\n", 8);
    const int32_t fields[5] = {version, width, (int32_t)count, vocab, masked};
    put(fields, sizeof fields);
    while (length < LLMQ_HEADER - 1) put("*", 1);
    put("\n", 1);
    for (int64_t i = 0; i < count; i++) put_int(i * 1000, 4);
}

static status open_bytes(struct shard *s)
{
    return shard_open_memory(s, "x.bin", SHARD_TYPE_UNKNOWN, bytes, (int64_t)length, NULL, 0);
}

static void llmq_files_open_with_and_without_a_mask(void **state)
{
    (void)state;
    const int32_t want[10] = {0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000};
    struct shard s;
    for (int version = 1; version <= 2; version++) {
        llmq(version, 4, 10, version == 2 ? 32000 : 0x2a2a2a2a, version == 2 ? 0 : 0x2a2a2a2a);
        assert_int_equal(open_bytes(&s), STATUS_OK);
        assert_int_equal(s.format, SHARD_LLMQ);
        assert_int_equal(s.vocab_size, version == 2 ? 32000 : 0);
        assert_null(s.mask);
        expect_tokens(&s, want, 10);
        shard_close(&s);
    }
    llmq(2, 4, 10, 32000, 1);
    put("\xfd\x02", 2); /* tokens 1 and 8 are no targets, 9 is the last */
    assert_int_equal(open_bytes(&s), STATUS_OK);
    assert_int_equal(s.mask[0], 0xfd);
    shard_close(&s);
    length--;
    expect_error(open_bytes(&s), STATUS_DATA, "the mask): the file is truncated");
    llmq(3, 4, 10, 1, 0);
    expect_error(open_bytes(&s), STATUS_DATA, "version 3");
    llmq(2, 2, 10, 1, 0);
    expect_error(open_bytes(&s), STATUS_DATA, "2 bytes per token");
    llmq(2, 4, 10, 1, 2);
    expect_error(open_bytes(&s), STATUS_DATA, "mask 2");
    llmq(2, 4, 10, 1, 0);
    put("x", 1);
    expect_error(open_bytes(&s), STATUS_DATA, "longer");
    bytes[16] = bytes[17] = bytes[18] = 255, bytes[19] = 127; /* 2^31 - 1 tokens */
    expect_error(open_bytes(&s), STATUS_DATA, "truncated");
    bytes[19] = 255;
    expect_error(open_bytes(&s), STATUS_DATA, "token count -1");
    length = 1023;
    expect_error(open_bytes(&s), STATUS_DATA, "header alone");
}

static void masked_targets_are_ignored_across_files(void **state)
{
    (void)state;
    llmq(2, 4, 10, 32000, 1);
    put("\xfd\x02", 2);
    temp_write(temp_path("m_1.bin"), bytes, length);
    llmq(2, 4, 10, 32000, 0); /* no mask: all are targets */
    temp_write(temp_path("m_2.bin"), bytes, length);
    struct shard_set s;
    assert_int_equal(shard_set_open(&s, temp_path("m_*.bin")), STATUS_OK);
    assert_true(s.masked);
    assert_int_equal(s.vocab_size, 32000);
    assert_false(s.bounded);
    struct document_index d;
    expect_error(shard_set_documents(&s, &d), STATUS_DATA, "nothing says where documents end");
    int32_t targets[16];
    assert_int_equal(shard_set_read(&s, 1, 16, 0, targets), STATUS_OK);
    targets[7] = -100; /* token 8: ignored before, not counted again */
    assert_int_equal(shard_set_mask(&s, 1, 16, -100, targets), 1);
    for (int i = 0; i < 16; i++) assert_int_equal(targets[i], i == 0 || i == 7 ? -100 : (i + 1) % 10 * 1000);
    shard_set_close(&s);
    assert_int_equal(shard_set_open(&s, temp_path("m_2.bin")), STATUS_OK);
    assert_false(s.masked);
    assert_int_equal(shard_set_mask(&s, 0, 10, -100, targets), 0);
    shard_set_close(&s);
    temp_clear();
}

static void npy(int major, const char *header, const void *data, size_t n)
{
    length = 0;
    put("\x93NUMPY", 6);
    put_int(major, 1);
    put_int(0, 1);
    put_int((int64_t)strlen(header), major == 1 ? 2 : 4);
    put(header, strlen(header));
    put(data, n);
}

static void arrays_of_whole_numbers_open(void **state)
{
    (void)state;
    const int32_t want[3] = {1, 2, 100};
    const struct {
        const char *descr;
        int width;
        enum shard_type type;
    } kinds[] = {{"<u2", 2, SHARD_TYPE_U16}, {"<u4", 4, SHARD_TYPE_U32}, {"<i4", 4, SHARD_TYPE_I32},
                 {"<i8", 8, SHARD_TYPE_I64}, {"|u1", 1, SHARD_TYPE_U8},  {"<i2", 2, SHARD_TYPE_I16},
                 {"|i1", 1, SHARD_TYPE_I8},  {"<u8", 8, SHARD_TYPE_U64}};
    for (int major = 1; major <= 3; major++)
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            char header[200];
            snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (3,), }%*s\n",
                     kinds[k].descr, (int)k, ""); /* also unaligned */
            npy(major, header, NULL, 0);
            for (int i = 0; i < 3; i++) put_int(want[i], kinds[k].width);
            struct shard s;
            assert_int_equal(open_bytes(&s), STATUS_OK);
            assert_int_equal(s.format, SHARD_NPY);
            assert_int_equal(s.type, kinds[k].type);
            expect_tokens(&s, want, 3);
            shard_close(&s);
        }
}

static void other_arrays_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *header, *what;
    } bad[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", "array of '<f4'"},
        {"{'descr': '>u2', 'fortran_order': False, 'shape': (3,), }\n", "big-endian"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }\n", "array of '|O'"},
        {"{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (3,), }\n", "array of '[...]'"},
        {"{'descr': '<u2', 'fortran_order': True, 'shape': (3,), }\n", "Fortran"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (3, 1), }\n", "2 dimensions"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (), }\n", "0 dimensions"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }\n", "longer"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (4,), }\n", "truncated"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775807,), }\n", "truncated"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775808,), }\n", "not as numpy"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (-3,), }\n", "not as numpy"},
        {"{'descr': '<u2', 'fortran_order': False}\n", "not as numpy"},
        {"{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (3,)}\n", "not as numpy"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (3,)} x\n", "not as numpy"},
        {"{'descr': '<u2", "not as numpy"},
        {"{'shape': (3,", "not as numpy"},
        {"", "truncated"},
    };
    struct shard s;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        npy(1, bad[i].header, "\1\0\2\0\3\0", 6);
        expect_error(open_bytes(&s), STATUS_DATA, bad[i].what);
    }
    npy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (3,)}\n", "\1\0\2\0\3\0", 6);
    assert_int_equal(open_bytes(&s), STATUS_OK);
    shard_close(&s);
    for (; length > 5; length--) { /* every truncation */
        bytes[6] = 1;
        if (length == 68) continue;
        assert_int_equal(shard_open_memory(&s, "x", SHARD_TYPE_UNKNOWN, bytes, (int64_t)length, NULL, 0),
                         length == 10 + 56 + 6 ? STATUS_OK : STATUS_DATA);
        shard_close(&s);
    }
    npy(4, "", "", 0);
    put("....", 4);
    expect_error(open_bytes(&s), STATUS_DATA, "version 4");
}

/* Documents [1,2,3] and [4,5], as Megatron's own writer leaves them. */
static const uint8_t megatron_idx[82] = {
    'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0,
    0,   0,   0,   0,   0,   0,   3,   0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0,
    0,   0,   0,   0,   0,   0,   0,   0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
};
static const uint8_t megatron_bin[10] = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0};

/* Sequences of these lengths, documents that end after sequences `ends`. */
static void idx(int code, int width, int sequences, const int32_t *lengths, int documents,
                const int64_t *ends)
{
    int64_t offset = 0;
    length = 0;
    put("MMIDIDX\0", 9);
    put_int(1, 8);
    put_int(code, 1);
    put_int(sequences, 8);
    put_int(documents + 1, 8);
    put(lengths, (size_t)sequences * 4);
    for (int i = 0; i < sequences; i++) {
        put_int(offset, 8);
        offset += (int64_t)lengths[i] * width;
    }
    put_int(0, 8);
    put(ends, (size_t)documents * 8);
}

static void megatrons_own_bytes_open_and_are_written(void **state)
{
    (void)state;
    const int32_t want[5] = {1, 2, 3, 4, 5};
    struct shard s;
    assert_int_equal(shard_open_memory(&s, "m.bin", SHARD_TYPE_UNKNOWN, megatron_bin, 10, megatron_idx, 82),
                     STATUS_OK);
    assert_int_equal(s.format, SHARD_MEGATRON);
    assert_int_equal(s.documents, 2);
    expect_tokens(&s, want, 5);
    shard_close(&s);
    struct shard_writer *w;
    struct shard_sums sums;
    assert_int_equal(shard_create(&w, temp_path("w.bin.part"), SHARD_MEGATRON, 2), STATUS_OK);
    assert_int_equal(shard_document_end(w), STATUS_OK); /* an empty document is none */
    assert_int_equal(shard_append(w, want, 2), STATUS_OK);
    assert_int_equal(shard_append(w, want + 2, 1), STATUS_OK);
    assert_int_equal(shard_document_end(w), STATUS_OK);
    assert_int_equal(shard_append(w, want + 3, 2), STATUS_OK);
    assert_int_equal(shard_commit(&w, &sums), STATUS_OK); /* ends the last document */
    shard_blocks_free(&sums.blocks);
    char *data;
    size_t n;
    assert_int_equal(io_read_file(temp_path("w.idx.part"), 4096, &data, &n), STATUS_OK);
    assert_int_equal(n, sizeof megatron_idx);
    assert_memory_equal(data, megatron_idx, n);
    free(data);
    assert_int_equal(io_read_file(temp_path("w.bin.part"), 4096, &data, &n), STATUS_OK);
    assert_int_equal(n, sizeof megatron_bin);
    assert_memory_equal(data, megatron_bin, n);
    free(data);
    temp_clear();
}

static void a_set_of_megatron_files_has_its_documents(void **state)
{
    (void)state;
    const int32_t lengths[5] = {2, 0, 1, 3, 0};
    const int64_t ends[4] = {1, 1, 3, 5}; /* 2, empty, 0 + 1, 3 + 0 */
    idx(4, 4, 5, lengths, 4, ends);
    temp_write(temp_path("a_2.idx"), bytes, length);
    length = 0;
    for (int i = 0; i < 6; i++) put_int(10 + i, 4);
    temp_write(temp_path("a_2.bin"), bytes, length);
    idx(4, 4, 1, (int32_t[]){2}, 1, (int64_t[]){1});
    temp_write(temp_path("a_10.idx"), bytes, length);
    length = 0;
    put_int(16, 4);
    put_int(17, 4);
    temp_write(temp_path("a_10.bin"), bytes, length);
    struct shard_set s;
    struct document_index d;
    assert_int_equal(shard_set_open(&s, temp_path("a_*")), STATUS_OK); /* indexes are passed over */
    assert_int_equal(s.count, 2);
    assert_int_equal(s.documents, 5);
    assert_true(s.bounded);
    assert_int_equal(s.eod, EOD_NONE);
    int32_t out[8];
    assert_int_equal(shard_set_read(&s, 0, 8, 0, out), STATUS_OK);
    for (int i = 0; i < 8; i++) assert_int_equal(out[i], 10 + i); /* a_2 before a_10 */
    assert_int_equal(shard_set_documents(&s, &d), STATUS_OK);
    const int64_t starts[5] = {0, 2, 3, 6, 8};
    assert_int_equal(d.count, 4);
    assert_memory_equal(d.starts, starts, sizeof starts);
    document_index_free(&d);
    shard_set_close(&s);
    static const char *const names[] = {"a_10", "a_10.idx", "a_10.bin"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(shard_set_open(&s, temp_path(names[i])), STATUS_OK);
        assert_int_equal(s.tokens, 2);
        shard_set_close(&s);
    }
    struct shard_hints h = shard_hints_of(NULL);
    h.eot = 15;
    assert_int_equal(shard_set_open_as(&s, temp_path("a_2"), &h), STATUS_OK);
    assert_int_equal(s.eod, EOD_AFTER);
    shard_set_close(&s);
    temp_clear();
}

static void an_index_that_disagrees_is_refused(void **state)
{
    (void)state;
    static const struct {
        int at;
        uint8_t value;
        const char *what; /* NULL: found by walking */
    } edits[] = {
        {9, 2, "version 2"},     {17, 6, "f64"},
        {17, 7, "f32"},          {17, 0, "type 0"},
        {17, 255, "type 255"},   {17, 4, "up to byte 14"},
        {18, 3, "truncated"},    {18, 1, "too many"},
        {25, 128, "truncated"},  {26, 0, "truncated"},
        {26, 2, "too many"},     {33, 127, "truncated"},
        {34, 4, NULL},           {38, 3, "up to byte 12"},
        {38, 1, "up to byte 8"}, {41, 255, "damaged"},
        {42, 1, "damaged"},      {50, 4, "up to byte 8"},
        {57, 255, "damaged"},    {58, 1, "from sequence 1"},
        {66, 3, NULL},           {66, 2, ""}, /* legal: the second document is empty */
        {74, 1, "to 1"},
    };
    struct shard s;
    struct shard_set set;
    struct document_index d;
    uint8_t index[82];
    temp_write(temp_path("m.bin"), megatron_bin, 10);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        memcpy(index, megatron_idx, 82);
        index[edits[i].at] = edits[i].value;
        if (edits[i].what && edits[i].what[0]) {
            expect_error(shard_open_memory(&s, "m.bin", SHARD_TYPE_UNKNOWN, megatron_bin, 10, index, 82),
                         STATUS_DATA, edits[i].what);
            continue;
        }
        temp_write(temp_path("m.idx"), index, 82);
        assert_int_equal(shard_set_open(&set, temp_path("m.bin")), STATUS_OK);
        assert_int_equal(shard_set_documents(&set, &d), edits[i].what ? STATUS_OK : STATUS_DATA);
        document_index_free(&d);
        shard_set_close(&set);
    }
    for (int n = 7; n < 82; n++)
        assert_int_equal(
            shard_open_memory(&s, "m.bin", SHARD_TYPE_UNKNOWN, megatron_bin, 10, megatron_idx, n),
            STATUS_DATA);
    expect_error(shard_open_memory(&s, "m.bin", SHARD_TYPE_UNKNOWN, megatron_bin, 8, megatron_idx, 82),
                 STATUS_DATA, "8 bytes, but its .idx lists tokens up to byte 10: the file is truncated");
    memcpy(bytes, megatron_idx, 82);
    length = 82;
    put("\1\1", 2);
    expect_error(shard_open_memory(&s, "m.bin", SHARD_TYPE_UNKNOWN, megatron_bin, 10, bytes, 84), STATUS_DATA,
                 "multimodal");
    temp_clear();
}

static void raw_ids_need_their_type(void **state)
{
    (void)state;
    const uint16_t ids[4] = {7, 8, 65535, 9};
    const int32_t want[4] = {7, 8, 65535, 9};
    temp_write(temp_path("train.bin"), ids, sizeof ids);
    struct shard_set s;
    expect_error(shard_set_open(&s, temp_path("train.bin")), STATUS_DATA, "data.dtype");
    struct run_spec r;
    run_spec_default(&r);
    r.data_dtype = TOKENS_UINT16;
    struct shard_hints h = shard_hints_of(&r);
    assert_int_equal(shard_set_open_as(&s, temp_path("train.bin"), &h), STATUS_OK);
    assert_int_equal(s.format, SHARD_RAW);
    expect_tokens(&s.shards[0], want, 4);
    assert_int_equal(s.eod, EOD_NONE);
    shard_set_close(&s);
    r.data_eot = 9;
    h = shard_hints_of(&r);
    expect_error(shard_set_open_as(&s, temp_path("train.bin"), &h), STATUS_CONFIG, "where it stands");
    r.data_eod = ENDS_AFTER;
    h = shard_hints_of(&r);
    assert_int_equal(shard_set_open_as(&s, temp_path("train.bin"), &h), STATUS_OK);
    assert_int_equal(s.eot, 9);
    assert_int_equal(s.eod, EOD_AFTER);
    assert_true(s.bounded);
    shard_set_close(&s);
    r.data_eot = -1;
    h = shard_hints_of(&r);
    expect_error(shard_set_open_as(&s, temp_path("train.bin"), &h), STATUS_CONFIG,
                 "needs the end-of-text id");
    temp_write(temp_path("odd.bin"), ids, 7);
    h = (struct shard_hints){shard_type_find("uint16"), EOT_AUTO, EOD_AUTO};
    expect_error(shard_set_open_as(&s, temp_path("odd.bin"), &h), STATUS_DATA, "no whole number");
    npy(1, "{'descr': '<u4', 'fortran_order': False, 'shape': (0,)}\n", "", 0);
    temp_write(temp_path("a.npy"), bytes, length);
    expect_error(shard_set_open_as(&s, temp_path("a.npy"), &h), STATUS_CONFIG, "its tokens are uint32");
    expect_error(shard_set_open(&s, temp_dir), STATUS_DATA, "is a directory");
    temp_write(temp_path("a.bin"), ids, sizeof ids);
    temp_write(temp_path("a.idx"), "MMIDIDX", 7);
    expect_error(shard_set_open(&s, temp_path("a.bin")), STATUS_DATA, "truncated in the header");
    temp_clear();
    for (int t = SHARD_TYPE_UNKNOWN + 1; t < SHARD_TYPE_COUNT; t++)
        assert_int_equal(shard_type_find(shard_type_word((enum shard_type)t)), t);
    assert_int_equal(shard_type_find("float"), SHARD_TYPE_UNKNOWN);
}

static void negative_and_large_ids_are_named_with_their_place(void **state)
{
    (void)state;
    static const struct {
        enum shard_type type;
        int width;
        int64_t id;
        const char *what;
    } bad[] = {
        {SHARD_TYPE_I8, 1, -1, "token 3 is -1"},
        {SHARD_TYPE_I16, 2, -2, "token 3 is -2"},
        {SHARD_TYPE_I32, 4, INT32_MIN, "token 3 is -2147483648"},
        {SHARD_TYPE_I64, 8, INT64_MIN, "token 3 is -9223372036854775808"},
        {SHARD_TYPE_I64, 8, 1ll << 32, "token 3 is id 4294967296"},
        {SHARD_TYPE_U64, 8, -1, "token 3 is id 18446744073709551615"},
        {SHARD_TYPE_U32, 4, 1ll << 31, "token 3 is id 2147483648"},
        {SHARD_TYPE_U8, 1, 255, "token 3 is id 255, but the vocabulary has 200"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        length = 0;
        put("", 1); /* unaligned */
        for (int t = 0; t < 5; t++) put_int(t == 3 ? bad[i].id : t, bad[i].width);
        struct shard s;
        int32_t out[5];
        assert_int_equal(shard_open_memory(&s, "x", bad[i].type, bytes + 1, (int64_t)length - 1, NULL, 0),
                         STATUS_OK);
        assert_int_equal(shard_read(&s, 0, 3, 200, out), STATUS_OK);
        expect_error(shard_read(&s, 1, 4, 200, out), STATUS_DATA, bad[i].what);
        shard_close(&s);
    }
}

/* The straightforward way. */
static int64_t naive(const struct shard_set *s, int64_t *starts)
{
    int64_t count = 0;
    int32_t previous = -1, id;
    for (int64_t at = 0; at < s->tokens; at++, previous = id) {
        assert_int_equal(shard_set_read(s, at, 1, 0, &id), STATUS_OK);
        if (at == 0 || shard_set_document_begins(s, previous, id)) starts[count++] = at;
    }
    starts[count] = s->tokens;
    return count;
}

static void documents_are_found_as_one_by_one(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    static const enum shard_type kinds[] = {SHARD_TYPE_U8,  SHARD_TYPE_I8,  SHARD_TYPE_U16, SHARD_TYPE_I16,
                                            SHARD_TYPE_U32, SHARD_TYPE_I32, SHARD_TYPE_I64};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int eod = EOD_BEFORE; eod <= EOD_AFTER; eod++)
            for (int first = 0; first < 2; first++) {
                int width = (int[]){1, 1, 2, 2, 4, 4, 8}[k];
                for (int file = 0; file < 2; file++) {
                    length = 0;
                    for (int i = 0; i < COUNT + file; i++) {
                        uint32_t r = rng_at(3, RNG_TEST, (uint64_t)file, (uint64_t)i).u[0];
                        bool ends = r % 97 == 0 || (first && i == 0) || (file && i >= COUNT - 1);
                        put_int(ends ? 77 : 78 + r % 40, width);
                    }
                    temp_write(temp_path(file ? "d_1.bin" : "d_0.bin"), bytes, length);
                }
                struct shard_set s;
                struct document_index d;
                struct shard_hints h = {kinds[k], 77, eod};
                static int64_t want[2 * COUNT + 2];
                assert_int_equal(shard_set_open_as(&s, temp_path("d_*.bin"), &h), STATUS_OK);
                assert_int_equal(shard_set_documents(&s, &d), STATUS_OK);
                int64_t count = naive(&s, want);
                assert_int_equal(d.count, count);
                assert_memory_equal(d.starts, want, (size_t)(count + 1) * 8);
                document_index_free(&d);
                shard_set_close(&s);
            }
    temp_clear();
}

/* Three shards of a build whose documents cross from one into the next, with their indexes. */
static void write_indexed(enum eod eod)
{
    struct manifest m = {.vocab_size = 100, .eot = eod == EOD_NONE ? -1 : 7, .eod = eod, .width = 2};
    memset(m.tokenizer_hash, 'a', 64);
    int32_t previous = -1;
    for (int i = 0; i < 3; i++) {
        char name[40], index[40];
        snprintf(name, sizeof name, "c_train_%06d.bin", i);
        corpus_index_name(name, index, sizeof index);
        struct manifest_shard *row = manifest_add(&m, name, "train");
        struct shard_writer *w;
        struct corpus_index_writer *x;
        assert_int_equal(shard_create(&w, temp_path(name), SHARD_LLMC, 2), STATUS_OK);
        assert_int_equal(corpus_index_create(&x, temp_path(index), temp_path("x.open"), 0), STATUS_OK);
        for (int t = 0; t < 500; t++) {
            int32_t id = rng_at(5, RNG_TEST, (uint64_t)i, (uint64_t)t).u[0] % 50 == 0 ? 7 : 8;
            if ((eod != EOD_AFTER && id == 7) || (eod == EOD_AFTER && (previous == 7 || previous < 0))) {
                assert_int_equal(corpus_index_add(x, (uint32_t)t), STATUS_OK);
                row->documents++;
            }
            assert_int_equal(shard_append(w, &id, 1), STATUS_OK);
            previous = id;
        }
        row->tokens = 500;
        row->indexed = true;
        struct shard_sums sums;
        assert_int_equal(shard_commit(&w, &sums), STATUS_OK);
        row->xxh64 = sums.xxh64, row->blocks = sums.blocks;
        assert_int_equal(corpus_index_commit(&x, 500, &row->index_xxh64), STATUS_OK);
    }
    assert_int_equal(manifest_write(&m, temp_path("c_manifest.json")), STATUS_OK);
    manifest_free(&m);
}

static void an_index_tells_what_the_tokens_tell(void **state)
{
    (void)state;
    static int64_t want[1501];
    for (int eod = EOD_NONE; eod <= EOD_AFTER; eod++) {
        write_indexed((enum eod)eod);
        struct shard_set s;
        struct document_index d, found;
        assert_int_equal(shard_set_open(&s, temp_path("c_train_*")), STATUS_OK);
        assert_int_equal(s.count, 3);
        assert_true(s.bounded);
        assert_int_equal(shard_set_documents(&s, &d), STATUS_OK);
        assert_in_range(d.count, 10, 60);
        assert_int_equal(remove(temp_path("c_train_000001.idx")), 0);
        assert_int_equal(shard_set_documents(&s, &found), eod == EOD_NONE ? STATUS_IO : STATUS_OK);
        if (eod != EOD_NONE) {
            assert_int_equal(naive(&s, want), d.count);
            assert_int_equal(found.count, d.count);
            assert_memory_equal(found.starts, d.starts, (size_t)(d.count + 1) * 8);
            assert_memory_equal(d.starts, want, (size_t)(d.count + 1) * 8);
        }
        document_index_free(&d);
        document_index_free(&found);
        assert_int_equal(rename(temp_path("c_train_000000.idx"), temp_path("c_train_000001.idx")), 0);
        temp_write(temp_path("c_train_000000.idx"), "INGOTIDX", 8);
        expect_error(shard_set_documents(&s, &d), STATUS_DATA, "not an index");
        assert_int_equal(rename(temp_path("c_train_000001.idx"), temp_path("c_train_000000.idx")), 0);
        assert_int_equal(rename(temp_path("c_train_000002.idx"), temp_path("c_train_000001.idx")), 0);
        temp_write(temp_path("c_train_000002.idx"), "", 0);
        expect_error(shard_set_documents(&s, &d), STATUS_DATA, "belongs to another build");
        shard_set_close(&s);
        temp_clear();
    }
}

static void an_empty_set_has_no_documents(void **state)
{
    (void)state;
    temp_write(temp_path("e.bin"), "", 0);
    struct shard_set s;
    struct document_index d;
    struct shard_hints h = {SHARD_TYPE_U16, 1, EOD_AFTER};
    assert_int_equal(shard_set_open_as(&s, temp_path("e.bin"), &h), STATUS_OK);
    assert_int_equal(s.tokens, 0);
    assert_int_equal(shard_set_documents(&s, &d), STATUS_OK);
    assert_int_equal(d.count, 0);
    assert_int_equal(d.starts[0], 0);
    document_index_free(&d);
    shard_set_close(&s);
    temp_clear();
}

static void an_end_of_text_no_width_can_hold_is_nowhere(void **state)
{
    (void)state;
    temp_write(temp_path("w.bin"), "\1\1\1\1\1\1\1\1", 8);
    struct shard_set s;
    struct document_index d;
    struct shard_hints h = {SHARD_TYPE_U8, 0x101, EOD_BEFORE};
    assert_int_equal(shard_set_open_as(&s, temp_path("w.bin"), &h), STATUS_OK);
    assert_int_equal(shard_set_documents(&s, &d), STATUS_OK);
    assert_int_equal(d.count, 1);
    document_index_free(&d);
    shard_set_close(&s);
    temp_clear();
}

static void sparse(const char *path, int64_t size, int64_t at, int32_t id)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    bool fits = ftruncate(fd, size) == 0;
    if (fits && at >= 0) assert_int_equal(pwrite(fd, &id, 2, at), 2);
    close(fd);
    if (!fits) skip();
}

static void one_megatron_file_beyond_eight_gigabytes(void **state)
{
    (void)state;
    /* Three documents of 1.5e9 u16 tokens. */
    const int32_t lengths[3] = {1500000000, 1500000000, 1500000000};
    idx(8, 2, 3, lengths, 3, (int64_t[]){1, 2, 3});
    temp_write(temp_path("big.idx"), bytes, length);
    sparse(temp_path("big.bin"), 9000000000, 8999999998, 4711);
    struct shard_set s;
    struct document_index d;
    int32_t out[2];
    assert_int_equal(shard_set_open(&s, temp_path("big")), STATUS_OK);
    assert_int_equal(s.tokens, 4500000000);
    assert_int_equal(shard_set_read(&s, 4499999998, 2, 5000, out), STATUS_OK);
    assert_int_equal(out[1], 4711);
    expect_error(shard_set_read(&s, 4499999998, 2, 4000, out), STATUS_DATA, "token 4499999999 is id 4711");
    assert_int_equal(shard_set_documents(&s, &d), STATUS_OK);
    assert_int_equal(d.count, 3);
    assert_int_equal(d.starts[2], 3000000000);
    document_index_free(&d);
    shard_set_close(&s);
    temp_clear();
}

static void names_are_in_natural_order(void **state)
{
    (void)state;
    static const char *const names[] = {"s.npy",   "s1.npy",   "s_1.npy",  "s_02.npy",
                                        "s_2.npy", "s_10.npy", "s_10a.npy"};
    static const char *const order[] = {"s.npy",   "s1.npy",   "s_1.npy",  "s_02.npy",
                                        "s_2.npy", "s_10.npy", "s_10a.npy"};
    enum { COUNT = sizeof names / sizeof names[0] };
    npy(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (0,)}\n", "", 0);
    for (int i = COUNT - 1; i >= 0; i--) temp_write(temp_path(names[i]), bytes, length);
    struct shard_set s;
    assert_int_equal(shard_set_open(&s, temp_path("s*.npy")), STATUS_OK);
    assert_int_equal(s.count, COUNT);
    for (int i = 0; i < COUNT; i++) assert_string_equal(strrchr(s.shards[i].path, '/') + 1, order[i]);
    shard_set_close(&s);
    temp_write(temp_path("s_3.npy"), "BIN.TOK\n", 8);
    expect_error(shard_set_open(&s, temp_path("s*.npy")), STATUS_DATA, "header alone");
    llmq(2, 4, 1, 5, 0);
    temp_write(temp_path("s_3.npy"), bytes, length);
    expect_error(shard_set_open(&s, temp_path("s*.npy")), STATUS_DATA, "a set has one format");
    temp_clear();
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    enum { COUNT = 600001 };
    int32_t *ids = malloc(COUNT * 4), *back = malloc(COUNT * 4);
    for (int format = SHARD_LLMC; format <= SHARD_NPY; format++)
        for (int width = 2; width <= 4; width += 2) {
            if (format == SHARD_LLMQ) continue;
            char name[32];
            snprintf(name, sizeof name, "w%s", shard_suffix((enum shard_format)format, 0));
            for (int64_t i = 0; i < COUNT; i++)
                ids[i] =
                    (int32_t)(rng_at(9, RNG_TEST, 0, (uint64_t)i).u[0] & (width == 2 ? 0xffff : 0x1ffff));
            struct shard_writer *w;
            const char *path = temp_path(name);
            assert_int_equal(shard_create(&w, path, (enum shard_format)format, width), STATUS_OK);
            for (int64_t at = 0; at < COUNT;) {
                int64_t n = 1 + ids[at] % 2000 < COUNT - at ? 1 + ids[at] % 2000 : COUNT - at;
                assert_int_equal(shard_append(w, ids + at, n), STATUS_OK);
                assert_int_equal(shard_document_end(w), STATUS_OK);
                at += n;
            }
            struct shard_sums sums;
            assert_int_equal(shard_commit(&w, &sums), STATUS_OK);
            shard_blocks_free(&sums.blocks);
            struct shard_set s;
            assert_int_equal(shard_set_open(&s, path), STATUS_OK);
            assert_int_equal(s.format, format);
            static const char *const words[] = {"llmc", "llmq", "megatron", "npy"};
            assert_string_equal(shard_format_word(s.format), words[format]);
            assert_int_equal(s.tokens, COUNT);
            assert_true(shard_hash(&s.shards[0]) == sums.xxh64);
            assert_int_equal(shard_set_read(&s, 0, COUNT, 0, back), STATUS_OK);
            assert_memory_equal(back, ids, COUNT * 4);
            struct document_index d;
            if (format == SHARD_MEGATRON) {
                assert_int_equal(shard_set_documents(&s, &d), STATUS_OK);
                assert_int_equal(d.count, s.documents);
                for (int64_t i = 0; i < d.count - 1; i++)
                    assert_int_equal(d.starts[i + 1], d.starts[i] + 1 + ids[d.starts[i]] % 2000);
                document_index_free(&d);
            }
            shard_set_close(&s);
        }
    free(ids);
    free(back);
    temp_clear();
}

static void names_of_a_shards_files(void **state)
{
    (void)state;
    char out[64];
    assert_true(shard_file(SHARD_MEGATRON, "a.bin/x.bin.part", 1, out, sizeof out));
    assert_string_equal(out, "a.bin/x.idx.part");
    assert_false(shard_file(SHARD_MEGATRON, "a.bin/x", 1, out, sizeof out));
    assert_false(shard_file(SHARD_LLMC, "x.bin", 1, out, sizeof out));
    assert_false(shard_file(SHARD_MEGATRON, "x.bin", 1, out, 5));
    assert_null(shard_suffix(SHARD_NPY, 1));
}

static void a_failing_system_call_leaves_no_half_of_a_data_set(void **state)
{
    (void)state;
    static const int32_t ids[300000];
    int64_t calls = 1;
    for (int64_t k = 1; k <= calls; k++) {
        io_fault_set(k, ENOSPC);
        struct shard_writer *w;
        status st = shard_create(&w, temp_path("f.bin"), SHARD_MEGATRON, 4);
        if (st == STATUS_OK) st = shard_append(w, ids, 300000);
        if (st == STATUS_OK)
            st = shard_commit(&w, NULL);
        else
            shard_abandon(&w);
        calls = st == STATUS_OK ? calls : k + 1;
        io_fault_set(0, 0);
        assert_true(st == STATUS_OK || st == STATUS_IO);
        assert_int_equal(temp_count(".tmp-"), 0);
        struct shard_set s;
        if (temp_count("f.bin") > 0 && temp_count("f.idx") > 0) {
            assert_int_equal(shard_set_open(&s, temp_path("f")), STATUS_OK);
            shard_set_close(&s);
        }
        temp_clear();
    }
    assert_true(calls > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llmq_files_open_with_and_without_a_mask),
        cmocka_unit_test(masked_targets_are_ignored_across_files),
        cmocka_unit_test(arrays_of_whole_numbers_open),
        cmocka_unit_test(other_arrays_are_refused_by_name),
        cmocka_unit_test(megatrons_own_bytes_open_and_are_written),
        cmocka_unit_test(a_set_of_megatron_files_has_its_documents),
        cmocka_unit_test(an_index_that_disagrees_is_refused),
        cmocka_unit_test(raw_ids_need_their_type),
        cmocka_unit_test(negative_and_large_ids_are_named_with_their_place),
        cmocka_unit_test(documents_are_found_as_one_by_one),
        cmocka_unit_test(an_index_tells_what_the_tokens_tell),
        cmocka_unit_test(an_empty_set_has_no_documents),
        cmocka_unit_test(an_end_of_text_no_width_can_hold_is_nowhere),
        cmocka_unit_test(one_megatron_file_beyond_eight_gigabytes),
        cmocka_unit_test(names_are_in_natural_order),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(names_of_a_shards_files),
        cmocka_unit_test(a_failing_system_call_leaves_no_half_of_a_data_set),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
