#include "ops/precision.h"
#include "plan/calibrate.h"
#include "base/arena.h"
#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

enum { RUNS = 6 };
#define FLOPS_MAX 2e9 /* of a GEMM: tens of milliseconds on a slow host */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median, without the first run, which faults pages in. */
static double median_of(double seconds[RUNS])
{
    qsort(seconds + 1, RUNS - 1, sizeof *seconds, by_value);
    return seconds[1 + (RUNS - 1) / 2];
}

/* Small values of both signs, as in a model; speed depends on nothing else of them. */
static void fill(void *x, size_t bytes, dtype dt)
{
    const int64_t n = (int64_t)(bytes / dtype_bytes(dt));
    for (int64_t i = 0; i < n; i++) dtype_store(x, i, dt, (double)((float)((i * 7919) % 1999 - 999) * 1e-3F));
}

struct sizes {
    int64_t rows, d, f;
    dtype dt;
};

static status time_gemm(const struct ops *ops, const struct sizes *z, char *memory, double *rate)
{
    const size_t e = dtype_bytes(z->dt);
    const size_t a = (size_t)(z->rows * z->d) * e, b = (size_t)(z->f * z->d) * e;
    const struct gemm_args g = {.a = operand_at(memory, z->dt, false),
                                .b = operand_at(memory + a, z->dt, true),
                                .c = memory + a + b,
                                .m = z->rows,
                                .n = z->f,
                                .k = z->d,
                                .cdt = z->dt};
    double seconds[RUNS];
    fill(memory, a + b, z->dt);
    for (int i = 0; i < RUNS; i++) {
        const double begin = clock_s();
        TRY(ops->gemm(&g, NULL));
        seconds[i] = clock_s() - begin;
    }
    *rate = 2 * (double)z->rows * (double)z->d * (double)z->f / median_of(seconds);
    return STATUS_OK;
}

static status time_stream(const struct ops *ops, const struct sizes *z, char *memory, double *rate)
{
    const size_t e = dtype_bytes(z->dt);
    const struct gelu_fwd_args g = {
        .x = memory, .y = memory + (size_t)(z->rows * z->f) * e, .count = z->rows * z->f, .dt = z->dt};
    double seconds[RUNS];
    fill(memory, (size_t)(z->rows * z->f) * e, z->dt);
    for (int i = 0; i < RUNS; i++) {
        const double begin = clock_s();
        TRY(ops->gelu_fwd(&g, NULL));
        seconds[i] = clock_s() - begin;
    }
    *rate = 2 * (double)(z->rows * z->f) * (double)e / median_of(seconds);
    return STATUS_OK;
}

status calibrate_host(const struct calibrate_args *a, struct machine *out)
{
    struct cluster host;
    struct arena arena = {.name = "calibration"};
    struct sizes z = {.rows = a->tokens,
                      .d = a->model->hidden_size,
                      .f = a->model->ffn_size ? a->model->ffn_size : 4 * a->model->hidden_size,
                      .dt = precision_of(a->precision).act};
    const double rows_max = FLOPS_MAX / (2 * (double)z.d * (double)z.f);
    double product = 0, stream = 0;
    if ((double)z.rows > rows_max) z.rows = rows_max > 64 ? (int64_t)rows_max : 64;
    TRY(cluster_parse("cpu", &host));
    const size_t elements = (size_t)(z.rows * (z.d + 2 * z.f) + z.f * z.d);
    TRY(arena_reserve(&arena, arena.name, elements * dtype_bytes(z.dt)));
    status st = time_gemm(a->ops, &z, arena.base, &product);
    if (st == STATUS_OK) st = time_stream(a->ops, &z, arena.base, &stream);
    arena_free(&arena);
    TRY(st);
    *out = *host.machine;
    const double width = fmin(fmin((double)z.d, (double)z.f), (double)z.rows);
    const double scale = product / machine_gemm_rate(out, a->precision, width);
    out->peak_bf16 *= scale, out->peak_fp32 *= scale;
    out->stream_rate = stream;
    out->memory_rate = fmax(out->memory_rate, stream);
    return STATUS_OK;
}
