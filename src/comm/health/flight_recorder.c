/* A ring of calls per rank. Its rank alone writes it; others read it when they are about to end, so a record that is
 * half written then costs a line, not the job. Times are of the wall clock: ranks may be on several machines. */
#include "comm/call.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "comm/health/flight_recorder.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct record {
    uint64_t sequence, bytes;
    double begin_s, end_s; /* end 0: the rank is in this call */
    int32_t op, way, all;  /* all: a call of the world, not of a group */
    char comm[COMM_NAME], name[COMM_NAME];
};
struct ring {
    _Alignas(128) atomic_uint count; /* number of calls so far */
    struct record calls[FLIGHT_RECORDER_CALLS];
};
struct flight_recorder {
    char path[1024];
    struct ring rings[];
};
static_assert(sizeof(struct ring) % 128 == 0 && sizeof(struct flight_recorder) % 128 == 0,
              "rings lie on cache lines");

size_t flight_recorder_bytes(int ranks)
{
    return sizeof(struct flight_recorder) + (size_t)ranks * sizeof(struct ring);
}

void flight_recorder_begin(struct flight_recorder *f, const struct comm *c, const struct comm_call *call)
{
    struct ring *ring = &f->rings[c->world->rank];
    const unsigned count = atomic_load_explicit(&ring->count, memory_order_relaxed);
    struct record *r = &ring->calls[count % FLIGHT_RECORDER_CALLS];
    *r = (struct record){.sequence = call->sequence,
                         .bytes = call->bytes,
                         .begin_s = clock_wall_s(),
                         .op = (int32_t)call->op,
                         .way = (int32_t)call->way,
                         .all = c == c->world};
    memcpy(r->comm, c->name, sizeof r->comm);
    snprintf(r->name, sizeof r->name, "%s", call->name);
    atomic_store(&ring->count, count + 1);
}

void flight_recorder_end(struct flight_recorder *f, int rank)
{
    struct ring *ring = &f->rings[rank];
    const unsigned count = atomic_load_explicit(&ring->count, memory_order_relaxed);
    ring->calls[(count - 1) % FLIGHT_RECORDER_CALLS].end_s = clock_wall_s();
}

const char *flight_recorder_last(const struct flight_recorder *f, int rank, char text[COMM_TEXT])
{
    const unsigned count = atomic_load(&f->rings[rank].count);
    if (count == 0) {
        snprintf(text, COMM_TEXT, "nothing");
        return text;
    }
    const struct record *r = &f->rings[rank].calls[(count - 1) % FLIGHT_RECORDER_CALLS];
    struct comm c = {.world = r->all ? &c : NULL};
    char name[COMM_NAME];
    snprintf(c.name, sizeof c.name, "%.31s", r->comm);
    snprintf(name, sizeof name, "%.31s", r->name);
    const bool known = r->op >= 0 && r->op < COMM_OP_COUNT; /* it may be in the middle of a write */
    return comm_call_text(&c,
                          &(struct comm_call){.op = known ? (enum comm_op)r->op : COMM_BARRIER,
                                              .name = name,
                                              .sequence = r->sequence},
                          text);
}

void flight_recorder_path_set(struct flight_recorder *f, const char *path)
{
    snprintf(f->path, sizeof f->path, "%s", path);
}

/* ---- writing the file */

static void write_record(FILE *out, int rank, const struct record *r)
{
    const time_t second = (time_t)r->begin_s;
    struct tm utc;
    char took[48];
    gmtime_r(&second, &utc);
    if (r->end_s > 0)
        snprintf(took, sizeof took, "%.6f", r->end_s - r->begin_s);
    else
        snprintf(took, sizeof took, "unfinished");
    const bool message = r->op == COMM_SEND || r->op == COMM_RECV;
    fprintf(out, "rank=%d comm=%.31s call=%s%s name='%.31s' bytes=%" PRIu64 " number=%" PRIu64, rank,
            r->all ? "all" : r->comm, comm_op_text((enum comm_op)r->op),
            !message              ? ""
            : r->way == COMM_NEXT ? "-next"
                                  : "-prev",
            r->name, r->bytes, r->sequence);
    fprintf(out, " begin=%02d:%02d:%02d.%03d seconds=%s\n", utc.tm_hour, utc.tm_min, utc.tm_sec,
            (int)((r->begin_s - (double)second) * 1e3), took);
}

/* At most `calls` of each rank; returns how many there were. */
static int write_ranks(const struct flight_recorder *f, int ranks, int calls, FILE *out)
{
    int written = 0;
    for (int rank = 0; rank < ranks; rank++) {
        const unsigned count = atomic_load(&f->rings[rank].count);
        const unsigned first = count > (unsigned)calls ? count - (unsigned)calls : 0;
        for (unsigned i = first; i < count; i++) {
            const struct record *r = &f->rings[rank].calls[i % FLIGHT_RECORDER_CALLS];
            if (r->op < 0 || r->op >= COMM_OP_COUNT) continue;
            write_record(out, rank, r);
            written++;
        }
    }
    return written;
}

void flight_recorder_write(const struct flight_recorder *f, int ranks, const char *reason)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) return;
    fprintf(out, "# what each rank called last, oldest first; begin in UTC\n# %s\n", reason);
    const int written = write_ranks(f, ranks, f->path[0] ? FLIGHT_RECORDER_CALLS : 1, out);
    if (fclose(out) == 0 && written > 0) {
        if (f->path[0] == 0)
            fputs(text, stderr);
        else if (io_write_file(f->path, text, bytes) == STATUS_OK)
            log_info("what each rank called last: %s", f->path);
        else
            log_warn("what each rank called last is not written: %s", status_message());
    }
    free(text);
}
