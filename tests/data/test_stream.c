/* Streams: what was compressed comes out, in pieces of any size, also in many members and frames; damage is
 * named by file and byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "data/read/stream.h"
#include "../temp.h"

#include <errno.h>
#include <zlib.h>
#include <zstd.h>

enum { TEXT_BYTES = 3 << 20 };
static uint8_t text[TEXT_BYTES], packed[TEXT_BYTES * 2], back[TEXT_BYTES + 1];

static int make_text(void **state)
{
    uint64_t seed = 7;
    for (size_t i = 0; i < TEXT_BYTES; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        text[i] = (uint8_t)("etaoin shrdlu\n"[(seed >> 40) % 14]);
    }
    return temp_open(state);
}

static size_t gzip_pack(const uint8_t *from, size_t bytes, uint8_t *to)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (uint8_t *)from;
    z.avail_in = (uInt)bytes;
    z.next_out = to;
    z.avail_out = UINT32_MAX;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t made = z.total_out;
    deflateEnd(&z);
    return made;
}

/* One member or frame per third of the text, and one of nothing. */
static size_t pack(enum stream_codec codec, uint8_t *to)
{
    size_t made = 0;
    ZSTD_CCtx *c = ZSTD_createCCtx();
    assert_false(ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1)));
    for (int i = 0; i < 4; i++) {
        size_t part = TEXT_BYTES / 3, from = (size_t)i * part, bytes = i < 3 ? part : 0;
        if (codec == STREAM_GZIP)
            made += gzip_pack(text + from, bytes, to + made);
        else {
            size_t n = ZSTD_compress2(c, to + made, sizeof packed - made, text + from, bytes);
            assert_false(ZSTD_isError(n));
            made += n;
            memcpy(to + made, "\x5e\x2a\x4d\x18\x03\x00\x00\x00xyz", 11); /* a skippable frame */
            made += 11;
        }
    }
    ZSTD_freeCCtx(c);
    return made;
}

static const enum stream_codec codecs[] = {STREAM_PLAIN, STREAM_GZIP, STREAM_ZSTD};

static void open_packed(struct source *source, struct stream **s, size_t bytes, enum stream_thread thread)
{
    source_memory(source, "p.gz", packed, bytes);
    assert_int_equal(stream_open(s, source, &(struct stream_config){thread, 0}), STATUS_OK);
}

static size_t pack_any(enum stream_codec codec)
{
    if (codec != STREAM_PLAIN) return pack(codec, packed);
    memcpy(packed, text, TEXT_BYTES);
    return TEXT_BYTES;
}

static void all_bytes_come_out_in_pieces_of_any_size(void **state)
{
    (void)state;
    static const size_t pieces[] = {1021, 1 << 20, (1 << 20) + 1, TEXT_BYTES, TEXT_BYTES + 1};
    for (int c = 0; c < 3; c++) {
        size_t bytes = pack_any(codecs[c]);
        for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
            struct source source;
            struct stream *s;
            open_packed(&source, &s, bytes, i % 2 ? STREAM_AHEAD : STREAM_HERE);
            assert_int_equal(stream_kind(s), codecs[c]);
            size_t used = 0, got;
            bool ended = false;
            while (!ended) {
                size_t ask = pieces[i] < sizeof back - used ? pieces[i] : sizeof back - used;
                assert_int_equal(stream_read(s, back + used, ask, &got), STATUS_OK);
                used += got;
                assert_int_equal(stream_offset(s), used);
                assert_true(stream_consumed(s) <= (int64_t)bytes);
                assert_int_equal(stream_ended(s, &ended), STATUS_OK);
                assert_true(ended == (used == TEXT_BYTES));
            }
            assert_memory_equal(back, text, TEXT_BYTES);
            stream_close(s);
            source_close(&source);
        }
    }
}

static void seeking_goes_to_the_exact_byte(void **state)
{
    (void)state;
    static const int64_t places[] = {5, 0, 1 << 20, TEXT_BYTES - 3, (1 << 20) + 7, 100};
    for (int c = 0; c < 3; c++) {
        size_t bytes = pack_any(codecs[c]);
        struct source source;
        struct stream *s;
        open_packed(&source, &s, bytes, STREAM_AHEAD);
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            size_t got;
            assert_int_equal(stream_seek(s, places[i]), STATUS_OK);
            assert_int_equal(stream_read(s, back, 3, &got), STATUS_OK);
            assert_int_equal(got, 3);
            assert_memory_equal(back, text + places[i], 3);
        }
        assert_int_equal(stream_seek(s, TEXT_BYTES), STATUS_OK);
        assert_int_equal(stream_seek(s, TEXT_BYTES + 1), STATUS_DATA);
        assert_non_null(strstr(status_message(), "it has 3145728 bytes of text"));
        stream_close(s);
        source_close(&source);
    }
}

/* Text delivered before the fault is a prefix of the text, unless only a checksum detects the fault. */
enum sum { SUM_UNKNOWN, SUM_TELLS };
static void expect_fault_of(size_t bytes, const char *message, enum sum sum)
{
    for (int thread = STREAM_AHEAD; thread <= STREAM_HERE; thread++) {
        struct source source;
        struct stream *s;
        size_t got;
        open_packed(&source, &s, bytes, (enum stream_thread)thread);
        assert_int_equal(stream_read(s, back, sizeof back, &got), STATUS_DATA);
        if (sum == SUM_UNKNOWN) assert_memory_equal(back, text, got);
        if (!strstr(status_message(), message))
            fail_msg("'%s' does not contain '%s'", status_message(), message);
        assert_int_equal(stream_read(s, back, 1, &got), STATUS_DATA); /* and repeated */
        assert_int_equal(got, 0);
        stream_close(s);
        source_close(&source);
    }
}

static void expect_fault(size_t bytes, const char *message)
{
    expect_fault_of(bytes, message, SUM_UNKNOWN);
}

static void damage_is_named_by_file_and_byte(void **state)
{
    (void)state;
    char where[64];
    for (int c = 1; c < 3; c++) {
        size_t bytes = pack(codecs[c], packed);
        for (size_t cut = 20; cut < bytes; cut = cut * 3 + 1) {
            snprintf(where, sizeof where, "is the file cut off? (byte %zu of the file)", cut);
            expect_fault(cut, where);
        }
        packed[bytes] = 'x';
        snprintf(where, sizeof where, "(byte %zu of the file)", bytes);
        if (codecs[c] == STREAM_GZIP) expect_fault(bytes + 1, where);
        memcpy(packed + bytes, "garbage", 7);
        expect_fault(bytes + 7, codecs[c] == STREAM_GZIP ? where : "the zstd data is damaged");
        packed[bytes / 4] ^= 0x55;
        expect_fault_of(bytes, "is damaged", SUM_TELLS);
    }
    memcpy(packed, "\x1f\x8b\x07garbage...", 14);
    expect_fault(14, "p.gz: the gzip data is damaged: unknown compression method");
}

static void zeros_may_pad_gzip(void **state)
{
    (void)state;
    size_t bytes = pack(STREAM_GZIP, packed), got;
    memset(packed + bytes, 0, 512 << 10);
    struct source source;
    struct stream *s;
    open_packed(&source, &s, bytes + (512 << 10), STREAM_HERE);
    assert_int_equal(stream_read(s, back, sizeof back, &got), STATUS_OK);
    assert_int_equal(got, TEXT_BYTES);
    stream_close(s);
    source_close(&source);
    packed[bytes + 100] = 1;
    expect_fault(bytes + 200, "something follows the gzip data");
}

static void a_window_larger_than_allowed_is_refused(void **state)
{
    (void)state;
    ZSTD_CCtx *c = ZSTD_createCCtx();
    assert_false(ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, 28)));
    ZSTD_inBuffer in = {text, 100000, 0};
    ZSTD_outBuffer out = {packed, sizeof packed, 0};
    assert_false(ZSTD_isError(ZSTD_compressStream2(c, &out, &in, ZSTD_e_flush)));
    assert_int_equal(ZSTD_compressStream2(c, &out, &in, ZSTD_e_end), 0);
    ZSTD_freeCCtx(c);
    for (int log = 0; log <= 27; log += 27) {
        struct source source;
        struct stream *s;
        size_t got;
        source_memory(&source, "w.zst", packed, out.pos);
        assert_int_equal(stream_open(&s, &source, &(struct stream_config){STREAM_HERE, log}), STATUS_OK);
        assert_int_equal(stream_read(s, back, sizeof back, &got), log ? STATUS_DATA : STATUS_OK);
        assert_int_equal(got, log ? 0 : 100000);
        stream_close(s);
        source_close(&source);
    }
}

static void closing_early_stops_the_thread(void **state)
{
    (void)state;
    size_t bytes = pack(STREAM_ZSTD, packed), got;
    for (int i = 0; i < 20; i++) {
        struct source source;
        struct stream *s;
        open_packed(&source, &s, bytes, STREAM_AHEAD);
        if (i % 2) assert_int_equal(stream_read(s, back, 10, &got), STATUS_OK);
        stream_close(s);
        source_close(&source);
    }
}

static void a_failing_read_is_an_error_and_not_an_end(void **state)
{
    (void)state;
    for (int c = 0; c < 3; c++) {
        size_t bytes = pack_any(codecs[c]);
        temp_write(temp_path("f.bin"), packed, bytes);
        int64_t calls = 1;
        for (int64_t k = 1; k <= calls; k++) {
            struct source source;
            struct stream *s = NULL;
            size_t got = 0, more = 0;
            io_fault_set(k, EIO);
            status st = source_open(&source, temp_path("f.bin"));
            if (st == STATUS_OK)
                st = stream_open(&s, &source, &(struct stream_config){.thread = STREAM_AHEAD});
            if (st == STATUS_OK) st = stream_read(s, back, TEXT_BYTES, &got);
            if (st == STATUS_OK) st = stream_read(s, back + got, 1, &more);
            io_fault_set(0, 0);
            stream_close(s);
            source_close(&source);
            if (st != STATUS_OK) calls = k + 1;
            assert_true(st == STATUS_IO || (st == STATUS_OK && got == TEXT_BYTES && more == 0));
        }
        assert_true(calls > 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_bytes_come_out_in_pieces_of_any_size),
        cmocka_unit_test(seeking_goes_to_the_exact_byte),
        cmocka_unit_test(damage_is_named_by_file_and_byte),
        cmocka_unit_test(zeros_may_pad_gzip),
        cmocka_unit_test(a_window_larger_than_allowed_is_refused),
        cmocka_unit_test(closing_early_stops_the_thread),
        cmocka_unit_test(a_failing_read_is_an_error_and_not_an_end),
    };
    return cmocka_run_group_tests(tests, make_text, temp_close);
}
