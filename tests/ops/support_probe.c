#include "probe.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "dev/driver_int.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { GUARD = 256 };

double tol_round(dtype dt)
{
    return dt == DTYPE_F64 ? 0x1p-53 : dt == DTYPE_F32 ? 0x1p-24 : 0x1p-8;
}
double tol_reduce(dtype dt, int64_t n)
{
    return 8 * tol_round(dt) * sqrt((double)(n > 1 ? n : 1));
}

static uint64_t name_seed(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}

/* Nearly normal, mean 0, deviation 1, within 3.5: four uniform numbers from one draw, cheaper than a
 * logarithm and a cosine. */
static double noise(const char *name, uint64_t use, int64_t i)
{
    struct rng_block r = rng_at(name_seed(name), RNG_TEST, use, (uint64_t)i);
    return (((double)r.u[0] + r.u[1] + r.u[2] + r.u[3]) * 0x1p-32 - 2) * 1.7320508075688772;
}

double probe_direction(const char *name, int64_t i)
{
    return noise(name, 1, i);
}

static struct probe_buf *buf_new(struct probe *p, const char *name, enum probe_kind kind, dtype dt,
                                 int64_t count, double tol)
{
    assert_true(p->count < (int)(sizeof p->bufs / sizeof p->bufs[0]));
    struct probe_buf *b = &p->bufs[p->count++];
    const bool codes = dt == DTYPE_F8_E4M3 || dt == DTYPE_F8_E5M2;
    size_t bytes = (size_t)count * dtype_bytes(dt), shift = (size_t)p->shift * (codes ? 16 : dtype_bytes(dt));
    if (kind == PROBE_SCRATCH || kind == PROBE_KEPT) shift = 0;
    *b = (struct probe_buf){.name = name, .kind = kind, .dt = dt, .count = count, .tol = tol};
    b->block_bytes = 2 * GUARD + shift + bytes;
    b->block = aligned_alloc(64, (b->block_bytes + 63) & ~(size_t)63);
    assert_non_null(b->block);
    memset(b->block, 0xFF, b->block_bytes);
    b->data = b->block + GUARD + shift;
    return b;
}

enum { GRAIN = 1 << 15 }; /* elements that one thread fills */

void *probe_in(struct probe *p, const char *name, dtype dt, int64_t count, double mean, double deviation)
{
    struct probe_buf *b = buf_new(p, name, PROBE_IN, dt, count, 0);
    bool nudged = p->nudge && strcmp(p->nudge, name) == 0;
    PARALLEL_CHUNKS(c, chunk_count(count, GRAIN))
    {
        struct span part = chunk_span(c, count, GRAIN);
        for (int64_t i = part.begin; i < part.end; i++) {
            double v = mean + deviation * noise(name, 0, i);
            if (nudged) v += p->nudge_step * probe_direction(name, i);
            dtype_store(b->data, i, dt, v);
        }
    }
    return b->data;
}

int32_t *probe_ids(struct probe *p, const char *name, int64_t count, int64_t bound)
{
    struct probe_buf *b = buf_new(p, name, PROBE_IN, DTYPE_I32, count, 0);
    int32_t *ids = b->data;
    for (int64_t i = 0; i < count; i++)
        ids[i] = (int32_t)(rng_uniform(name_seed(name), RNG_TEST, 0, (uint64_t)i) * (double)bound);
    return ids;
}

void *probe_out(struct probe *p, const char *name, enum probe_kind kind, dtype dt, int64_t count, double tol)
{
    struct probe_buf *b = buf_new(p, name, kind, dt, count, tol);
    PARALLEL_CHUNKS(c, chunk_count(count, GRAIN))
    {
        struct span part = chunk_span(c, count, GRAIN);
        for (int64_t i = part.begin; i < part.end; i++)
            dtype_store(b->data, i, dt, p->zero_out ? 0 : noise(name, 2, i));
    }
    return b->data;
}

uint8_t *probe_out_codes(struct probe *p, const char *name, int64_t count)
{
    uint8_t *codes = buf_new(p, name, PROBE_OUT, DTYPE_U8, count, 1)->data;
    for (int64_t i = 0; i < count; i++) codes[i] = (uint8_t)(p->zero_out ? 0 : 128 + 36 * noise(name, 2, i));
    return codes;
}

int32_t *probe_out_ids(struct probe *p, const char *name, int64_t count)
{
    int32_t *ids = buf_new(p, name, PROBE_OUT, DTYPE_I32, count, TOL_EXACT)->data;
    for (int64_t i = 0; i < count; i++) ids[i] = p->zero_out ? 0 : INT32_MIN;
    return ids;
}

void *probe_scratch(struct probe *p, const char *name, size_t bytes)
{
    return buf_new(p, name, PROBE_SCRATCH, DTYPE_U8, (int64_t)bytes, 0)->data;
}

void *probe_kept(struct probe *p, const char *name, size_t bytes)
{
    return buf_new(p, name, PROBE_KEPT, DTYPE_U8, (int64_t)bytes, 0)->data;
}

static const struct probe_buf *buf_named(const struct probe *p, const char *name)
{
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->bufs[i].name, name) == 0) return &p->bufs[i];
    return NULL;
}

struct probe_buf *probe_find(struct probe *p, const char *name)
{
    return (struct probe_buf *)buf_named(p, name);
}

void probe_free(struct probe *p)
{
    for (int i = 0; i < p->count; i++) {
        free(p->bufs[i].block);
        if (p->bufs[i].twin) p->device->stream->dev->driver->memory_free(p->bufs[i].twin, 0);
    }
    p->count = 0;
}

PRINTF_LIKE(2, 3) static void diff_add(struct probe_diff *d, const char *fmt, ...)
{
    va_list ap;
    const size_t used = strlen(d->text), room = sizeof d->text - used;
    if (d->bad++ > 0) snprintf(d->text + used, room, "; ");
    const size_t at = strlen(d->text);
    va_start(ap, fmt);
    vsnprintf(d->text + at, sizeof d->text - at, fmt, ap);
    va_end(ap);
}

static void buf_guards(const struct probe_buf *b, struct probe_diff *d)
{
    const unsigned char *block = (const unsigned char *)b->block, *data = b->data;
    size_t before = (size_t)(data - block), bytes = (size_t)b->count * dtype_bytes(b->dt);
    for (size_t at = 0; at < before; at++)
        if (block[at] != 0xFF) {
            diff_add(d, "byte %zu before %s was written", before - at, b->name);
            break;
        }
    for (size_t at = 0; at < GUARD; at++)
        if (data[bytes + at] != 0xFF) {
            diff_add(d, "byte %zu after %s was written", at, b->name);
            break;
        }
}

void probe_diff_guards(const struct probe *p, struct probe_diff *d)
{
    for (int i = 0; i < p->count; i++) buf_guards(&p->bufs[i], d);
}

static double element(const struct probe_buf *b, int64_t i)
{
    if (b->dt == DTYPE_I32) return ((const int32_t *)b->data)[i];
    return b->dt == DTYPE_U8 ? ((const uint8_t *)b->data)[i] : dtype_load(b->data, i, b->dt);
}

/* Any NaN is as good as another: which one a conversion gives is the device's choice. FP8 codes have one NaN. */
static bool same_element(const struct probe_buf *a, const struct probe_buf *b, int64_t i)
{
    size_t bytes = dtype_bytes(a->dt), at = (size_t)i * bytes;
    if (memcmp((char *)a->data + at, (char *)b->data + at, bytes) == 0) return true;
    return bytes > 1 && isnan(element(a, i)) && isnan(element(b, i));
}

static void buf_exact(const struct probe_buf *want, const struct probe_buf *got, struct probe_diff *d)
{
    int64_t off = 0, first = 0;
    for (int64_t i = 0; i < want->count; i++)
        if (!same_element(want, got, i) && off++ == 0) first = i;
    if (off > 0)
        diff_add(d, "%s: %lld of %lld are not exact; [%lld] is %.9g, the oracle has %.9g", want->name,
                 (long long)off, (long long)want->count, (long long)first, element(got, first),
                 element(want, first));
}

static void buf_close(const struct probe_buf *want, const struct probe_buf *got, struct probe_diff *d)
{
    /* A stored bf16 may land on a neighbour; f32 arithmetic has some roundings more of its own. */
    double relative = want->dt == DTYPE_U8 ? 0 : (want->dt == DTYPE_BF16 ? 2 : 8) * tol_round(want->dt),
           square_error = 0, square_allowed = 0, worst = 0;
    int64_t off = 0, at = 0;
    for (int64_t i = 0; i < want->count; i++) {
        double w = element(want, i), g = element(got, i);
        if (isinf(w) && w == g) continue;
        double allowed = relative * fabs(w) + got->tol, error = fabs(w - g), ratio = error / allowed;
        if (error == 0) ratio = 0;
        if (!(ratio <= 1)) off++;
        if (!(ratio <= worst)) {
            worst = isnan(ratio) ? INFINITY : ratio;
            at = i;
        }
        square_error += error * error;
        square_allowed += allowed * allowed;
    }
    /* Errors are independent roundings: together they stay well below their bounds, a systematic error does
     * not. */
    const double mean = square_allowed > 0 ? sqrt(square_error / square_allowed) : 0;
    if (worst > d->worst) d->worst = worst;
    if (off == 0 && !(want->count >= 256 && mean > 0.5)) return;
    const double w = element(want, at), g = element(got, at);
    diff_add(
        d,
        "%s: %lld of %lld off, root mean square %.3g of what is allowed; worst [%lld] is %.9g, the oracle "
        "has %.9g: error %.3g, allowed %.3g",
        want->name, (long long)off, (long long)want->count, mean, (long long)at, g, w, fabs(w - g),
        relative * fabs(w) + got->tol);
}

void probe_diff_close(const struct probe *want, const struct probe *got, struct probe_diff *d)
{
    for (int i = 0; i < want->count; i++) {
        const struct probe_buf *w = &want->bufs[i], *g = buf_named(got, w->name);
        if (w->kind >= PROBE_WORK) continue;
        if (g == NULL || g->count != w->count || g->dt != w->dt) {
            diff_add(d, "%s is another buffer", w->name);
            continue;
        }
        if (g->kind >= PROBE_WORK) continue;
        if (w->kind == PROBE_IN) {
            if (memcmp(w->data, g->data, (size_t)w->count * dtype_bytes(w->dt)) != 0)
                diff_add(d, "the input %s was written", w->name);
        } else if (w->tol < 0) {
            buf_exact(w, g, d);
        } else {
            buf_close(w, g, d);
        }
    }
}

void probe_guards(const struct probe *p, const char *what)
{
    struct probe_diff d = {0};
    probe_diff_guards(p, &d);
    if (d.bad) fail_msg("%s: %s", what, d.text);
}

void probe_close(const struct probe *want, const struct probe *got, const char *what)
{
    struct probe_diff d = {0};
    probe_diff_close(want, got, &d);
    if (d.bad) fail_msg("%s: %s", what, d.text);
}

void probe_same_bits(const struct probe *a, const struct probe *b, const char *what)
{
    for (int i = 0; i < a->count; i++)
        if (memcmp(a->bufs[i].data, b->bufs[i].data, (size_t)a->bufs[i].count * dtype_bytes(a->bufs[i].dt)) !=
            0)
            fail_msg("%s: %s differs", what, a->bufs[i].name);
}
