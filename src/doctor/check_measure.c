/* Checks that measure: memory of the host here, the rest by `ingot bench` in a process of its own, so that a CUDA context
 * or a fault of a GPU does not stay. */
#include "base/clock.h"
#include "base/io.h"
#include "base/parallel.h"
#include "base/process.h"
#include "doctor/doctor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUTPUT = 1 << 20 };

/* ---- the host */

void check_memory_rate(struct doctor *d)
{
    enum { BYTES = 256 << 20, GRAIN = 1 << 20, PASSES = 4 };
    char *from = malloc(BYTES), *to = malloc(BYTES);
    double best = INFINITY;
    if (from == NULL || to == NULL) {
        report(d, DOCTOR_SKIP, "", "no memory for two blocks of 256 MiB");
        free(from);
        free(to);
        return;
    }
    for (int pass = 0; pass < PASSES; pass++) { /* the first one touches the pages */
        const double begin = clock_s();
        PARALLEL_CHUNKS(c, BYTES / GRAIN)
        {
            if (pass == 0) memset(from + c * GRAIN, (int)c, GRAIN);
            memcpy(to + c * GRAIN, from + c * GRAIN, GRAIN);
        }
        if (pass > 0) best = fmin(best, clock_s() - begin);
    }
    const double rate = 2e-9 * BYTES / best;
    free(from);
    free(to);
    rate_add(d, "memory_copy", d->host, rate, "GB/s");
    report_number(d, rate < 2 ? DOCTOR_WARN : DOCTOR_PASS, "", rate, 2, "%.1f GB/s read and written", rate);
}

/* ---- GPUs */

status bench_read(const char *uuid, const char *const arguments[], double limit_s, char *out)
{
    char self[1024], visible[128];
    const char *argv[24] = {"env", visible};
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return FAIL(STATUS_IO, "/proc/self/exe is not readable");
    self[n] = 0;
    int count = 1;
    if (uuid) snprintf(visible, sizeof visible, "CUDA_VISIBLE_DEVICES=%s", uuid), count = 2;
    argv[count++] = self;
    for (int i = 0; arguments[i] && count < 23; i++) argv[count++] = arguments[i];
    return process_read(uuid ? argv : argv + 1, limit_s, out, OUTPUT);
}

/* True, and reported: there are no GPUs, too few, or this program cannot use them. */
static bool no_bench(struct doctor *d, int least)
{
    if (no_cards(d)) return true;
    if (!INGOT_CUDA)
        report(d, DOCTOR_SKIP, "", "this build of ingot has no CUDA");
    else if (d->cards < least)
        report(d, DOCTOR_SKIP, "", "it needs %d GPUs", least);
    return reported(d);
}

/* "N numbers as expected, M to look at" of bench p2p. */
static void links_report(struct doctor *d, const char *section)
{
    static const char middle[] = " numbers as expected, ";
    const char *const arguments[] = {"bench", "p2p", "--only", section, NULL};
    char *out = malloc(OUTPUT);
    CHECK(out, "out of memory");
    if (bench_read(NULL, arguments, d->level == DOCTOR_FULL ? 25 : 120, out) != STATUS_OK)
        report(d, DOCTOR_FAIL, "", "bench p2p --only %s: %s", section, status_message());
    else {
        const char *at = strstr(out, middle), *line = at;
        while (line && line > out && line[-1] != '\n') line--;
        const int good = at ? (int)strtol(line, NULL, 10) : 0;
        const int look = at ? (int)strtol(at + strlen(middle), NULL, 10) : 0;
        if (at == NULL)
            report(d, DOCTOR_SKIP, "",
                   "nothing is expected of this GPU: bench/targets.def has no row for it");
        else
            report_number(d, look ? DOCTOR_FAIL : DOCTOR_PASS, "", good, good + look,
                          "%d of %d rates as expected", good, good + look);
    }
    free(out);
}

void check_peer(struct doctor *d)
{
    if (!no_bench(d, 2)) links_report(d, "pairs");
}

void check_host_copy(struct doctor *d)
{
    if (!no_bench(d, 1)) links_report(d, "host");
}

/* The best rate of the lines and how many of them miss what is expected. */
static void collectives_report(struct doctor *d, char *out)
{
    int lines = 0, look = 0;
    double best = NAN;
    for (char *line = out, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        json_t *o = json_loads(line, 0, NULL);
        const char *verdict = json_string_value(json_object_get(o, "verdict"));
        lines += verdict != NULL;
        look += verdict && strcmp(verdict, "pass") != 0 && strcmp(verdict, "none") != 0;
        best = fmax(best, json_number_value(json_object_get(o, "bus_gbs")));
        json_decref(o);
    }
    if (lines == 0) {
        report(d, DOCTOR_FAIL, "", "bench collectives printed no result");
        return;
    }
    rate_add(d, "all_reduce", d->host, best, "GB/s");
    report_number(d, look == lines ? DOCTOR_FAIL : DOCTOR_PASS, "", best, NAN,
                  "all-reduce of %d GPUs: %.0f GB/s of bus bandwidth", d->cards, best);
}

void check_collectives(struct doctor *d)
{
    char ranks[16];
    if (no_bench(d, 2)) return;
    snprintf(ranks, sizeof ranks, "%d", d->cards);
    const char *const arguments[] = {"launch",     "--no-doctor", "-n",        ranks,         "--",
                                     "bench",      "collectives", "--device",  "cuda",        "--op",
                                     "all_reduce", "--min-bytes", "268435456", "--max-bytes", "268435456",
                                     "--runs",     "5",           "--json",    NULL};
    char *out = malloc(OUTPUT);
    CHECK(out, "out of memory");
    if (bench_read(NULL, arguments, d->level == DOCTOR_FULL ? 30 : 180, out) != STATUS_OK)
        report(d, DOCTOR_FAIL, "", "bench collectives: %s", status_message());
    else
        collectives_report(d, out);
    free(out);
}

/* ---- acceptance */

/* The mean over the lines of a number of bench gemm; NaN: none. */
static double mean_of(char *out, const char *key)
{
    double sum = 0;
    int count = 0;
    for (char *line = out, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        json_t *o = json_loads(line, 0, NULL);
        const json_t *value = json_object_get(o, key);
        if (json_is_number(value)) sum += json_number_value(value), count++;
        json_decref(o);
    }
    return count ? sum / count : NAN;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void products_of_cards(struct doctor *d, char *out)
{
    static const char *const arguments[] = {"bench",  "gemm", "--device",  "cuda", "--layer", "up",
                                            "--form", "fwd",  "--seconds", "20",   "--json",  NULL};
    double rates[CARDS_MAX], sorted[CARDS_MAX];
    char label[32];
    for (int i = 0; i < d->cards; i++) {
        rates[i] = NAN;
        if (!card_sound(d, i) || bench_read(d->card[i].uuid, arguments, 120, out) != STATUS_OK) {
            report(d, DOCTOR_FAIL, d->card[i].uuid, "%s: bench gemm: %s", card_label(d, i, label),
                   status_message());
            return;
        }
        rates[i] = mean_of(out, "lasting_tflops");
        rate_add(d, "gemm", d->card[i].uuid, rates[i], "TFLOP/s");
    }
    memcpy(sorted, rates, sizeof sorted);
    qsort(sorted, (size_t)d->cards, sizeof sorted[0], by_value);
    const double median = sorted[d->cards / 2];
    for (int i = 0; i < d->cards; i++)
        report_number(d, rates[i] < 0.9 * median ? DOCTOR_FAIL : DOCTOR_PASS, d->card[i].uuid, rates[i],
                      0.9 * median, "%s: %.1f TFLOP/s that last, the median is %.1f", card_label(d, i, label),
                      rates[i], median);
}

void check_product(struct doctor *d)
{
    static const char *const arguments[] = {"bench",   "gemm", "--layer", "fc", "--form", "fwd",
                                            "--dtype", "f32",  "--runs",  "9",  "--json", NULL};
    char *out = malloc(OUTPUT);
    CHECK(out, "out of memory");
    if (d->cards > 0) {
        if (!no_bench(d, 1)) products_of_cards(d, out);
    } else if (bench_read(NULL, arguments, 300, out) != STATUS_OK)
        report(d, DOCTOR_FAIL, "", "bench gemm: %s", status_message());
    else {
        const double rate = mean_of(out, "gflops");
        rate_add(d, "gemm", d->host, rate, "GFLOP/s");
        report_number(d, DOCTOR_PASS, "", rate, NAN, "%.0f GFLOP/s of this processor, fp32", rate);
    }
    free(out);
}
