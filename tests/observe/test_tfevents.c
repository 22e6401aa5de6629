/* TensorBoard files: byte-exact vectors, and a reader of its own that checks frames, checksums and order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "base/hash.h"
#include "observe/observe_int.h"
#include "scratch.h"

static size_t from_hex(const char *hex, uint8_t *out)
{
    size_t n = 0;
    for (unsigned byte; *hex; hex += 2) {
        while (*hex == ' ') hex++;
        char two[3] = {hex[0], hex[1], 0};
        byte = (unsigned)strtoul(two, NULL, 16);
        out[n++] = (uint8_t)byte;
    }
    return n;
}

static void records_match_known_bytes(void **state)
{
    (void)state;
    uint8_t want[TFEVENTS_BYTES_MAX], got[TFEVENTS_BYTES_MAX];
    size_t n = from_hex(
        "1800000000000000 a37f4b22 09000000000000f03f 1a0d 627261696e2e4576656e743a32 86bf577a", want);
    assert_int_equal(tfevents_version(got, 1.0), n);
    assert_memory_equal(got, want, n);
    n = from_hex(
        "1a00000000000000 129bd82d 09000000000000f03f 1007 2a0d 0a0b 0a046c6f7373 1500002040 87ccc43d", want);
    assert_int_equal(tfevents_scalars(got, 1.0, 7, &(struct tfevents_scalar){"loss", 2.5}, 1), n);
    assert_memory_equal(got, want, n);
}

/* A small reader: what a test wants to know of one file. */
struct seen {
    int events, values;
    int64_t start_step, last_step;
    float loss;
    char version[32];
};
struct bytes {
    const uint8_t *p, *end;
};
static uint64_t varint(struct bytes *b)
{
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(b->p < b->end && shift < 64);
        uint8_t byte = *b->p++;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return v;
    }
}
static struct bytes part(struct bytes *b)
{
    uint64_t n = varint(b);
    assert_true(n <= (uint64_t)(b->end - b->p));
    struct bytes inner = {b->p, b->p + n};
    b->p += n;
    return inner;
}
static void read_summary(struct bytes b, struct seen *seen)
{
    while (b.p < b.end) {
        assert_int_equal(varint(&b), 0x0a);
        struct bytes value = part(&b);
        assert_int_equal(varint(&value), 0x0a);
        struct bytes tag = part(&value);
        assert_int_equal(varint(&value), 0x15);
        assert_int_equal(value.end - value.p, 4);
        seen->values++;
        if (tag.end - tag.p == 10 && memcmp(tag.p, "train/loss", 10) == 0) memcpy(&seen->loss, value.p, 4);
    }
}
static void read_event(struct bytes b, struct seen *seen)
{
    int64_t step = 0;
    bool start = false;
    while (b.p < b.end) {
        uint64_t key = varint(&b);
        if (key == 0x09)
            b.p += 8;
        else if (key == 0x10)
            step = (int64_t)varint(&b);
        else if (key == 0x1a) {
            struct bytes v = part(&b);
            assert_int_equal(seen->events, 0);
            snprintf(seen->version, sizeof seen->version, "%.*s", (int)(v.end - v.p), (const char *)v.p);
        } else if (key == 0x2a)
            read_summary(part(&b), seen);
        else if (key == 0x3a) {
            struct bytes log = part(&b);
            start = log.end - log.p == 2 && log.p[0] == 0x08 && log.p[1] == 1;
        } else
            fail_msg("unexpected key %llu", (unsigned long long)key);
    }
    seen->events++;
    if (start)
        seen->start_step = step;
    else
        seen->last_step = step;
}
static uint32_t masked(const void *p, size_t n)
{
    uint32_t crc = crc32c(0, p, n);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}
static struct seen read_file(const struct scratch *s, int k)
{
    char name[256];
    assert_true(scratch_find(s, "tfevents", k, name) > k);
    size_t n, at = 0;
    char *data = scratch_read(s, name, &n);
    struct seen seen = {0};
    while (at < n) {
        uint64_t length;
        uint32_t crc;
        assert_true(n - at >= 16);
        memcpy(&length, data + at, 8);
        memcpy(&crc, data + at + 8, 4);
        assert_int_equal(crc, masked(data + at, 8));
        assert_true(length <= n - at - 16);
        memcpy(&crc, data + at + 12 + length, 4);
        assert_int_equal(crc, masked(data + at + 12, length));
        const uint8_t *event = (const uint8_t *)data + at + 12;
        read_event((struct bytes){event, event + length}, &seen);
        at += length + 16;
    }
    free(data);
    return seen;
}

static void a_resume_writes_a_new_file_that_says_from_where(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    for (int resume = 0; resume <= 1; resume++) {
        struct tfevents t;
        assert_int_equal(tfevents_open(&t, s.dir, resume ? 301 : 1), STATUS_OK);
        struct metrics m = METRICS_NONE;
        m.step = resume ? 400 : 300;
        m.loss = 2.5;
        m.lr = 1e-3;
        tfevents_write(&t, &m, 5);
        sink_close(&t.sink);
    }
    struct seen first = read_file(&s, 0), second = read_file(&s, 1);
    assert_string_equal(first.version, "brain.Event:2");
    assert_string_equal(second.version, "brain.Event:2");
    assert_int_equal(first.events, 3);
    assert_int_equal(first.last_step, 300);
    assert_int_equal(first.values, 2);
    assert_true(first.loss == 2.5f);
    assert_int_equal(second.start_step, 301);
    assert_int_equal(second.last_step, 400);
    scratch_remove(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_match_known_bytes),
        cmocka_unit_test(a_resume_writes_a_new_file_that_says_from_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
