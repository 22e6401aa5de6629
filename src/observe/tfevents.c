/* TensorBoard event files: TFRecords that hold Event messages in the protobuf wire format.
 *
 *   record   u64 length | u32 masked_crc(length) | data | u32 masked_crc(data)        little endian
 *            crc = CRC-32C, masked = rotate_right(crc, 15) + 0xa282ead8
 *   Event    1 wall_time double | 2 step int64 | 3 file_version string | 5 summary | 7 session_log
 *   Summary  1 repeated Value {1 tag string, 2 simple_value float}
 *   SessionLog  1 status (1 = START)
 *
 * (github.com/tensorflow/tensorflow, core/util/event.proto, core/framework/summary.proto,
 * core/lib/io/record_writer.cc) */
#include "observe/observe_int.h"
#include "base/clock.h"
#include "base/hash.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they lie in memory");

enum { HEAD_BYTES = 12, TAIL_BYTES = 4 };
struct message {
    uint8_t *data;
    size_t used, room;
};

static void put(struct message *m, const void *data, size_t bytes)
{
    CHECK(bytes <= m->room - m->used, "an event of more than %zu bytes", m->room);
    memcpy(m->data + m->used, data, bytes);
    m->used += bytes;
}
static void put_byte(struct message *m, int byte)
{
    put(m, &(uint8_t){(uint8_t)byte}, 1);
}
static void put_varint(struct message *m, uint64_t v)
{
    for (; v >= 0x80; v >>= 7) put_byte(m, (int)(v & 0x7f) | 0x80);
    put_byte(m, (int)v);
}
static void put_bytes(struct message *m, int key, const void *data, size_t bytes)
{
    put_byte(m, key);
    put_varint(m, bytes);
    put(m, data, bytes);
}

static uint32_t masked_crc(const void *data, size_t bytes)
{
    uint32_t crc = crc32c(0, data, bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* The message is written after space for the frame's head; begin and end add the frame. */
static struct message begin(uint8_t out[TFEVENTS_BYTES_MAX], double wall_s)
{
    struct message m = {out + HEAD_BYTES, 0, TFEVENTS_BYTES_MAX - HEAD_BYTES - TAIL_BYTES};
    put_byte(&m, 0x09);
    put(&m, &wall_s, 8);
    return m;
}
static size_t end(const struct message *m)
{
    uint8_t *out = m->data - HEAD_BYTES;
    uint64_t length = m->used;
    memcpy(out, &length, 8);
    memcpy(out + 8, &(uint32_t){masked_crc(&length, 8)}, 4);
    memcpy(m->data + m->used, &(uint32_t){masked_crc(m->data, m->used)}, 4);
    return HEAD_BYTES + m->used + TAIL_BYTES;
}

size_t tfevents_version(uint8_t out[TFEVENTS_BYTES_MAX], double wall_s)
{
    static const char version[] = "brain.Event:2";
    struct message m = begin(out, wall_s);
    put_bytes(&m, 0x1a, version, sizeof version - 1);
    return end(&m);
}

static size_t start_event(uint8_t out[TFEVENTS_BYTES_MAX], double wall_s, int64_t step)
{
    static const uint8_t started[] = {0x08, 1};
    struct message m = begin(out, wall_s);
    put_byte(&m, 0x10);
    put_varint(&m, (uint64_t)step);
    put_bytes(&m, 0x3a, started, sizeof started);
    return end(&m);
}

size_t tfevents_scalars(uint8_t out[TFEVENTS_BYTES_MAX], double wall_s, int64_t step,
                        const struct tfevents_scalar *s, int count)
{
    uint8_t values[TFEVENTS_BYTES_MAX];
    struct message summary = {values, 0, sizeof values};
    for (int i = 0; i < count; i++) {
        uint8_t bytes[128];
        struct message value = {bytes, 0, sizeof bytes};
        put_bytes(&value, 0x0a, s[i].tag, strlen(s[i].tag));
        put_byte(&value, 0x15);
        put(&value, &(float){(float)s[i].value}, 4);
        put_bytes(&summary, 0x0a, value.data, value.used);
    }
    struct message m = begin(out, wall_s);
    put_byte(&m, 0x10);
    put_varint(&m, (uint64_t)step);
    put_bytes(&m, 0x2a, summary.data, summary.used);
    return end(&m);
}

status tfevents_open(struct tfevents *t, const char *dir, int64_t first_step)
{
    double now = clock_wall_s();
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    for (int n = 0;; n++) {
        char path[1024];
        bool taken;
        int length = snprintf(path, sizeof path, "%s/events.out.tfevents.%010lld.%s.%d.%d", dir,
                              (long long)now, host, (int)getpid(), n);
        if (length >= (int)sizeof path) return FAIL(STATUS_IO, "%.80s...: the path is too long", dir);
        TRY(io_exists(path, &taken));
        if (n < 1000 && taken) continue;
        TRY(sink_open(&t->sink, path, SINK_NEW));
        break;
    }
    uint8_t record[TFEVENTS_BYTES_MAX];
    TRY(sink_begin(&t->sink, record, tfevents_version(record, now)));
    sink_append(&t->sink, record, start_event(record, now, first_step));
    return STATUS_OK;
}

void tfevents_write(struct tfevents *t, const struct metrics *m, double wall_s)
{
    struct tfevents_scalar scalars[64];
    int count = 0;
#define X(name, tag)                                                                                         \
    if (!isnan(m->name)) scalars[count++] = (struct tfevents_scalar){tag, m->name};
    METRIC_LIST(X)
#undef X
    if (count == 0) return;
    uint8_t record[TFEVENTS_BYTES_MAX];
    sink_append(&t->sink, record, tfevents_scalars(record, wall_s, m->step, scalars, count));
}
