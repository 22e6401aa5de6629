/* Messages between ranks by ingot's own transport: `ingot doctor --net`. */
#include "base/clock.h"
#include "base/text.h"
#include "comm/comm.h"
#include "doctor/doctor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 64, LARGE = 8 << 20, SMALL_RUNS = 101, LARGE_RUNS = 9, OUTPUT = 1 << 20 };
#define SLOW_S    1e-3  /* a small message */
#define SLOW_RATE 100e6 /* bytes/s of a large one: less than gigabit Ethernet */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void judge(struct doctor *d, const char *link, double latency, double rate, double usual)
{
    char time[32];
    rate_add(d, "message_rate", link, 1e-6 * rate, "MB/s");
    rate_add(d, "message_per_s", link, 1 / latency, "1/s");
    text_time(time, latency);
    if (rate < 0.5 * usual)
        report_number(d, DOCTOR_WARN, link, 1e-6 * rate, 0.5e-6 * usual,
                      "%s: %.0f MB/s, the median of all is %.0f; a small message takes %s", link, 1e-6 * rate,
                      1e-6 * usual, time);
    else if (latency > SLOW_S || rate < SLOW_RATE)
        report_number(d, DOCTOR_WARN, link, 1e-6 * rate, 1e-6 * SLOW_RATE,
                      "%s: %.0f MB/s, a small message takes %s", link, 1e-6 * rate, time);
    else
        report_number(d, DOCTOR_PASS, link, 1e-6 * rate, 1e-6 * SLOW_RATE,
                      "%s: %.0f MB/s, a small message takes %s", link, 1e-6 * rate, time);
}

/* ---- alone: two processes of this host */

static void two_processes(struct doctor *d)
{
    static const char *const arguments[] = {"launch", "--no-doctor", "-n",      "2",      "--",
                                            "bench",  "collectives", "--op",    "ring",   "--min-bytes",
                                            "64",     "--max-bytes", "8388608", "--runs", "21",
                                            "--json", NULL};
    double latency = NAN, rate = NAN;
    char *out = malloc(OUTPUT);
    CHECK(out, "out of memory");
    const status st = bench_read(NULL, arguments, 60, out);
    for (char *line = out, *next; st == STATUS_OK && line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        json_t *o = json_loads(line, 0, NULL);
        const double us = json_number_value(json_object_get(o, "us")),
                     bytes = json_number_value(json_object_get(o, "bytes"));
        json_decref(o);
        if (!(us > 0)) continue;
        if (isnan(latency)) latency = 1e-6 * us;
        rate = fmax(rate, bytes / (1e-6 * us));
    }
    free(out);
    if (st != STATUS_OK)
        report(d, DOCTOR_FAIL, "", "bench collectives: %.200s", status_message());
    else if (!isfinite(rate))
        report(d, DOCTOR_FAIL, "", "bench collectives printed no result");
    else
        judge(d, "two processes of this host", latency, rate, rate);
}

/* ---- ranks: each sends to the next */

/* The median of this rank's times until the message of the rank before has come. */
static status shift_time(struct comm *c, const char *out, char *in, size_t bytes, int runs, double *seconds)
{
    double times[SMALL_RUNS];
    for (int i = -1; i < runs; i++) { /* the first one makes buffers */
        TRY(comm_barrier(c, "messages"));
        const double begin = clock_s();
        TRY(comm_ring_shift(c, "messages", 1, out, in, bytes, NULL));
        if (i >= 0) times[i] = clock_s() - begin;
    }
    qsort(times, (size_t)runs, sizeof times[0], ascending);
    *seconds = times[runs / 2];
    return STATUS_OK;
}

struct times { /* of a rank */
    double small, large;
    char host[48];
};

static status measure(struct doctor *d, struct times *all)
{
    struct times mine = {.host = ""};
    char *out = calloc(1, LARGE), *in = malloc(LARGE);
    CHECK(out && in, "out of memory");
    snprintf(mine.host, sizeof mine.host, "%.47s", d->host);
    status st = shift_time(d->comm, out, in, SMALL, SMALL_RUNS, &mine.small);
    if (st == STATUS_OK) st = shift_time(d->comm, out, in, LARGE, LARGE_RUNS, &mine.large);
    if (st == STATUS_OK) st = comm_all_gather(d->comm, "times of messages", &mine, all, sizeof mine, NULL);
    free(out);
    free(in);
    return st;
}

static void judge_ranks(struct doctor *d, const struct times *all, int ranks)
{
    double rates[COMM_RANKS_MAX], sorted[COMM_RANKS_MAX];
    char link[160];
    for (int r = 0; r < ranks; r++) rates[r] = sorted[r] = LARGE / all[r].large;
    qsort(sorted, (size_t)ranks, sizeof sorted[0], ascending);
    for (int r = 0; r < ranks; r++) {
        const int from = (r + ranks - 1) % ranks;
        snprintf(link, sizeof link, "rank %d (%s) to rank %d (%s)", from, all[from].host, r, all[r].host);
        judge(d, link, all[r].small, rates[r], ranks > 2 ? sorted[ranks / 2] : 0);
    }
}

/* The script says what it took. */
static void made_up_messages(struct doctor *d)
{
    struct times all[MADE_UP_RANKS];
    for (int r = 0; r < d->messages; r++)
        all[r] = (struct times){.small = 20e-6, .large = LARGE / d->message_rate[r], .host = "made-up"};
    if (d->messages > 0)
        judge_ranks(d, all, d->messages);
    else
        report(d, DOCTOR_SKIP, "", "a made-up host sends nothing");
}

void check_messages(struct doctor *d)
{
    if (!hostfs_is_real(&d->fs) && d->fs.text) {
        made_up_messages(d);
        return;
    }
    if (d->comm == NULL) {
        two_processes(d);
        return;
    }
    const int ranks = comm_ranks(d->comm);
    struct times *all = calloc((size_t)ranks, sizeof *all);
    CHECK(all, "out of memory for %d ranks", ranks);
    if (measure(d, all) == STATUS_OK)
        judge_ranks(d, all, ranks);
    else
        report(d, DOCTOR_FAIL, "", "%s", status_message());
    free(all);
}
