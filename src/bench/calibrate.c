/* `ingot plan --calibrate FILE`: rates of this machine as a file that `ingot plan --machine FILE` reads. All ops are called
 * through the op table, on the CPU and on a GPU; links by `ingot bench collectives` between ranks. Each number is
 * written to FILE.part when it is there, so a killed calibration goes on; FILE appears when all are.
 *
 *   gemm       forward, dgrad and wgrad of n = k = width, the mean rate; FP8 (GPU): forward
 *   attention  causal, heads of 64, 128, and 192 with values of 128 (latent), of two lengths, which give share and half
 *   stream     bytes of RMSNorm and SwiGLU, both passes, as a layer has them
 *   round      elements to MXFP8 and back (CPU)
 *   copy, host copies in the device's memory; from the host (GPU)
 *   link       all-gather between ranks: of 64 MiB, and of 1 KiB
 */
#include "base/clock.h"
#include "base/io.h"
#include "base/parallel.h"
#include "base/text.h"
#include "bench/bench.h"
#include "bench/calibrate_int.h"
#include "observe/env.h"
#include "plan/plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- files */

struct text {
    char data[CALIBRATE_TEXT_MAX];
    size_t used;
};

PRINTF_LIKE(2, 3) static void add(struct text *t, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    const int n = vsnprintf(t->data + t->used, sizeof t->data - t->used, fmt, list);
    va_end(list);
    CHECK(n >= 0 && t->used + (size_t)n < sizeof t->data, "a machine file of more than %zu bytes",
          sizeof t->data);
    t->used += (size_t)n;
}

static void add_measured(struct text *t, const struct calibration *b)
{
    for (int i = 0; i < ITEM_COUNT; i++)
        if (!isnan(b->value[i])) add(t, "# measured %s: %.6g\n", calibrate_rows[i].name, b->value[i]);
    if (b->link_latency > 0)
        add(t, "# measured link_latency: %.6g\n# measured link_ranks: %d\n", b->link_latency, b->link_ranks);
}

static status write_part(const struct calibration *b, const char *path)
{
    struct text t = {.used = 0};
    add(&t, "# %s\n", b->who);
    add_measured(&t, b);
    return io_write_file(path, t.data, t.used);
}

static void read_measured(struct calibration *b, const char *line)
{
    static const char head[] = "# measured ";
    char name[64];
    double value;
    const char *colon = strchr(line, ':');
    if (strncmp(line, head, sizeof head - 1) != 0 || colon == NULL || colon[1] != ' ' ||
        !text_to_real(colon + 2, &value))
        return;
    snprintf(name, sizeof name, "%.*s", (int)(colon - line - (ptrdiff_t)(sizeof head - 1)),
             line + sizeof head - 1);
    if (strcmp(name, "link_latency") == 0) b->link_latency = value;
    if (strcmp(name, "link_ranks") == 0) b->link_ranks = (int)value;
    for (int i = 0; i < ITEM_COUNT; i++)
        if (strcmp(name, calibrate_rows[i].name) == 0 && value >= 0) b->value[i] = value;
}

/* What a killed calibration of this machine has measured. */
static status read_part(struct calibration *b, const char *path)
{
    char *text, *rest, *line;
    size_t bytes;
    bool there;
    TRY(io_exists(path, &there));
    if (!there) return STATUS_OK;
    TRY(io_read_file(path, CALIBRATE_TEXT_MAX, &text, &bytes));
    rest = text;
    line = strsep(&rest, "\n");
    const bool mine = line && strncmp(line, "# ", 2) == 0 && strcmp(line + 2, b->who) == 0;
    const status st =
        mine ? STATUS_OK
             : FAIL(STATUS_CONFIG,
                    "plan: %s is of another machine or other threads (%.100s; here %.100s): remove it", path,
                    line ? line : "", b->who);
    while (mine && rest && (line = strsep(&rest, "\n"))) read_measured(b, line);
    free(text);
    return st;
}

/* r(T) = share T / (T + half) through two lengths. */
static struct machine_curve curve_of(const struct calibration *b, double rate_short, double rate_long,
                                     double roof)
{
    const double t = (double)calibrate_length(b, false), u = (double)calibrate_length(b, true);
    const double half_over_share = (1 / rate_short - 1 / rate_long) / (1 / t - 1 / u),
                 inverse = 1 / rate_long - half_over_share / u;
    if (half_over_share <= 0 || inverse <= 0) return (struct machine_curve){rate_long / roof, 1};
    return (struct machine_curve){1 / inverse / roof, half_over_share / inverse};
}

static void add_shares(struct text *t, const struct calibration *b, const char *name, enum item first,
                       double roof)
{
    double last = 0;
    if (!(b->value[first] > 0) || roof <= 0) return;
    add(t, "%s:", name);
    for (int i = 0; i < MACHINE_WIDTHS; i++) {
        if (b->value[first + i] > 0) last = b->value[first + i];
        add(t, " %.4g", last / roof);
    }
    add(t, "\n");
}

static void add_curve(struct text *t, const struct calibration *b, const char *name, enum item at,
                      double roof)
{
    const struct machine_curve c = curve_of(b, b->value[at], b->value[at + 2], roof);
    add(t, "%s: %.4g %.4g\n", name, c.share, c.half);
}

static void add_links(struct text *t, const struct calibration *b, const struct machine *like)
{
    if (!(b->value[ITEM_link] > 0)) return;
    /* A ring's start and its hops, in the proportion of the row. */
    const double row = like->latency_base + (b->link_ranks - 1) * like->latency_hop,
                 more = b->link_latency / row;
    add(t, "link_rate: %.4g\nlatency_base: %.4g\nlatency_hop: %.4g\n", b->value[ITEM_link],
        more * like->latency_base, more * like->latency_hop);
}

static status write_machine(const struct calibration *b, const struct machine *like, const char *path)
{
    struct text t = {.used = 0};
    const bool gpu = calibrate_on_gpu(b);
    const double peak16 = gpu ? like->peak_bf16 : b->value[ITEM_peak_bf16],
                 peak32 = gpu ? like->peak_fp32 : b->value[ITEM_peak_fp32];
    add(&t,
        "# %s\n# Not measured, and those of `like`: net_rate, latency_net, linear_forward, "
        "linear_backward%s%s.\n",
        b->who, gpu ? ", peaks, memory_rate, gap, rates of codes with scales of blocks" : "",
        b->value[ITEM_link] > 0 ? "" : ", link_rate, latency_base, latency_hop");
    add(&t, "like: %s\n", like->name);
    if (!gpu)
        add(&t, "peak_bf16: %.4g\npeak_fp32: %.4g\nmemory_rate: %.4g\nround_rate: %.4g\nmemory_bytes: %.0f\n",
            peak16, peak32, b->value[ITEM_copy], b->value[ITEM_round], plan_host_bytes());
    if (!gpu) add(&t, "host_rate: %.4g\n", b->value[ITEM_copy] / 2);
    if (gpu) add(&t, "memory_bytes: %zu\nhost_rate: %.4g\n", b->dev.bytes_total, b->value[ITEM_host]);
    /* Of bf16 and fp32 ops, as many bytes of each. */
    add(&t, "stream_rate: %.4g\n", 2 / (1 / b->value[ITEM_stream_bf16] + 1 / b->value[ITEM_stream_fp32]));
    add_shares(&t, b, "share_16", ITEM_gemm_bf16_256, peak16);
    add_shares(&t, b, "share_32", ITEM_gemm_fp32_256, peak32);
    if (gpu) add_shares(&t, b, "share_8", ITEM_gemm_fp8_256, like->peak_fp8);
    if (gpu && b->value[ITEM_gemm_fp8_exact_4096] > 0)
        add(&t, "full_8: %.4g\nmeasured_8: true\n",
            b->value[ITEM_gemm_fp8_exact_4096] / b->value[ITEM_gemm_fp8_4096]);
    add_curve(&t, b, "narrow_forward", ITEM_narrow_forward_short, peak16);
    add_curve(&t, b, "narrow_backward", ITEM_narrow_backward_short, peak16);
    add_curve(&t, b, "wide_forward", ITEM_wide_forward_short, peak16);
    add_curve(&t, b, "wide_backward", ITEM_wide_backward_short, peak16);
    add_curve(&t, b, "latent_forward", ITEM_latent_forward_short, peak16);
    add_curve(&t, b, "latent_backward", ITEM_latent_backward_short, peak16);
    add_links(&t, b, like);
    add_measured(&t, b);
    return io_write_file(path, t.data, t.used);
}

/* ---- the run */

static status measure_all(struct calibration *b, const char *part)
{
    int left = 0, done = 0;
    const enum kinds here = calibrate_on_gpu(b) ? GPU : HOST;
    for (int i = 0; i < ITEM_COUNT; i++) left += (calibrate_rows[i].kinds & here) && isnan(b->value[i]);
    for (int i = 0; i < ITEM_COUNT; i++) {
        char rate[32];
        if (!(calibrate_rows[i].kinds & here) || !isnan(b->value[i])) continue;
        const double start = clock_s();
        double value;
        TRY(calibrate_rows[i].measure(b, calibrate_rows[i].number, &value));
        b->value[i] = value;
        TRY(write_part(b, part));
        printf("%3d of %d  %-24s %10s%s   %.1f s\n", ++done, left, calibrate_rows[i].name,
               value > 0 ? text_count(rate, value) : "none here", value > 0 ? "/s" : "", clock_s() - start);
        fflush(stdout);
    }
    return STATUS_OK;
}

static status bench_open(struct calibration *b)
{
    const size_t bytes = calibrate_on_gpu(b) ? (size_t)6 << 30 : (size_t)512 << 20;
    const struct choose_ops choice = {.sm = b->dev.sm};
    if (calibrate_on_gpu(b)) {
        TRY(dev_stream_open(&b->dev, &b->stream));
        b->s = &b->stream;
        TRY(dev_event_open(&b->dev, &b->begin));
        TRY(dev_event_open(&b->dev, &b->end));
    }
    TRY(choose_open(&b->ops, b->dev.kind, b->s, &choice));
    return dev_arena_reserve(&b->dev, &b->memory, "calibration", bytes);
}

static void bench_close(struct calibration *b)
{
    arena_free(&b->memory);
    choose_close(b->s);
    if (b->s == NULL) return;
    dev_event_close(&b->dev, &b->begin);
    dev_event_close(&b->dev, &b->end);
    dev_stream_close(b->s);
}

static status find_like(struct calibration *b, const char *machine)
{
    const struct machine *row = calibrate_on_gpu(b) ? machine_of_gpu(b->dev.name) : NULL;
    const char *name = machine ? machine : calibrate_on_gpu(b) ? row ? row->name : NULL : "2xcpu";
    if (name == NULL)
        return FAIL(STATUS_CONFIG,
                    "plan: --calibrate: there are no rates of a %s to start from: name the nearest, such as "
                    "--machine h200",
                    b->dev.name);
    TRY(cluster_parse(name, &b->like));
    if (b->like.machine->kind != b->dev.kind || b->like.machine == &b->like.own)
        return FAIL(
            STATUS_CONFIG,
            "plan: --calibrate: --machine %s: what is measured is %s; name a row of spec/machine.def for it",
            name, b->dev.name);
    if (b->like.devices <= BENCH_RANKS_MAX) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "plan: --calibrate: --machine %s: links are measured between %d devices at most", name,
                BENCH_RANKS_MAX);
}

status calibrate_machine(const struct calibrate_machine *a)
{
    struct calibration b = {.link_latency = 0};
    char part[SPEC_TEXT + 16], processor[256];
    if (strpbrk(a->path, "./") == NULL)
        return FAIL(STATUS_CONFIG,
                    "plan: --calibrate %s: --machine takes a file whose name has a dot or a slash, such as "
                    "%s.machine",
                    a->path, a->path);
    if (strlen(a->path) >= SPEC_TEXT) return FAIL(STATUS_CONFIG, "plan: --calibrate: the path is too long");
    snprintf(part, sizeof part, "%s.part", a->path);
    for (int i = 0; i < ITEM_COUNT; i++) b.value[i] = NAN;
    TRY(dev_open(&b.dev, a->device));
    snprintf(b.who, sizeof b.who,
             "Measured by ingot plan --calibrate: %s, %d thread%s, which are a device here",
             calibrate_on_gpu(&b) ? b.dev.name : env_processor(processor), parallel_threads(),
             parallel_threads() > 1 ? "s" : "");
    status st = find_like(&b, a->machine);
    if (st == STATUS_OK) st = read_part(&b, part);
    if (st == STATUS_OK) st = bench_open(&b);
    if (st == STATUS_OK) st = measure_all(&b, part);
    if (st == STATUS_OK) st = write_machine(&b, b.like.machine, a->path);
    bench_close(&b);
    dev_close(&b.dev);
    TRY(st);
    printf("%s: pass it as --machine COUNTx%s\n", a->path, a->path);
    return io_remove_tree(part);
}
