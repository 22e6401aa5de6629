#include "probe.h"
#include "base/rng.h"
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
    size_t bytes = (size_t)count * dtype_bytes(dt), shift = (size_t)p->shift * dtype_bytes(dt);
    *b = (struct probe_buf){.name = name, .kind = kind, .dt = dt, .count = count, .tol = tol};
    b->block = aligned_alloc(64, (2 * GUARD + shift + bytes + 63) & ~(size_t)63);
    assert_non_null(b->block);
    memset(b->block, 0xFF, 2 * GUARD + shift + bytes);
    b->data = b->block + GUARD + shift;
    return b;
}

void *probe_in(struct probe *p, const char *name, dtype dt, int64_t count, double mean, double deviation)
{
    struct probe_buf *b = buf_new(p, name, PROBE_IN, dt, count, 0);
    bool nudged = p->nudge && strcmp(p->nudge, name) == 0;
    for (int64_t i = 0; i < count; i++) {
        double v = mean + deviation * noise(name, 0, i);
        if (nudged) v += p->nudge_step * probe_direction(name, i);
        dtype_store(b->data, i, dt, v);
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
    for (int64_t i = 0; i < count; i++) dtype_store(b->data, i, dt, p->zero_out ? 0 : noise(name, 2, i));
    return b->data;
}

struct probe_buf *probe_find(struct probe *p, const char *name)
{
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->bufs[i].name, name) == 0) return &p->bufs[i];
    return NULL;
}

void probe_free(struct probe *p)
{
    for (int i = 0; i < p->count; i++) free(p->bufs[i].block);
    p->count = 0;
}

void probe_guards(const struct probe *p, const char *what)
{
    for (int i = 0; i < p->count; i++) {
        const struct probe_buf *b = &p->bufs[i];
        const unsigned char *block = (const unsigned char *)b->block, *data = b->data;
        size_t before = (size_t)(data - block), bytes = (size_t)b->count * dtype_bytes(b->dt);
        for (size_t at = 0; at < before; at++)
            if (block[at] != 0xFF) fail_msg("%s: byte %zu before %s was written", what, before - at, b->name);
        for (size_t at = 0; at < GUARD; at++)
            if (data[bytes + at] != 0xFF) fail_msg("%s: byte %zu after %s was written", what, at, b->name);
    }
}

static void buf_close(const struct probe_buf *want, const struct probe_buf *got, const char *what)
{
    if (want->tol < 0) {
        for (int64_t i = 0; i < want->count; i++) {
            size_t bytes = dtype_bytes(want->dt), at = (size_t)i * bytes;
            if (memcmp((char *)want->data + at, (char *)got->data + at, bytes) != 0)
                fail_msg("%s: %s[%lld] is %.9g, the oracle has exactly %.9g", what, want->name, (long long)i,
                         dtype_load(got->data, i, got->dt), dtype_load(want->data, i, want->dt));
        }
        return;
    }
    /* A stored bf16 may land on a neighbour; f32 arithmetic has some roundings more of its own. */
    double relative = (want->dt == DTYPE_BF16 ? 2 : 8) * tol_round(want->dt), square_error = 0,
           square_allowed = 0;
    for (int64_t i = 0; i < want->count; i++) {
        double w = dtype_load(want->data, i, want->dt), g = dtype_load(got->data, i, got->dt);
        double allowed = relative * fabs(w) + want->tol, error = fabs(w - g);
        if (!(error <= allowed))
            fail_msg("%s: %s[%lld] is %.9g, the oracle has %.9g; off by %.3g, allowed %.3g", what, want->name,
                     (long long)i, g, w, error, allowed);
        square_error += error * error;
        square_allowed += allowed * allowed;
    }
    /* Errors are independent roundings: together they stay well below their bounds, a systematic error does
     * not. */
    if (want->count >= 256 && square_error > 0.25 * square_allowed)
        fail_msg("%s: %s is off by %.3g of what is allowed, root mean square", what, want->name,
                 sqrt(square_error / square_allowed));
}

void probe_close(const struct probe *want, const struct probe *got, const char *what)
{
    assert_int_equal(want->count, got->count);
    for (int i = 0; i < want->count; i++) {
        const struct probe_buf *w = &want->bufs[i], *g = &got->bufs[i];
        if (w->kind == PROBE_WORK) continue;
        if (w->kind != PROBE_IN)
            buf_close(w, g, what);
        else if (memcmp(w->data, g->data, (size_t)w->count * dtype_bytes(w->dt)) != 0)
            fail_msg("%s: the input %s was written", what, w->name);
    }
}

void probe_same_bits(const struct probe *a, const struct probe *b, const char *what)
{
    for (int i = 0; i < a->count; i++)
        if (memcmp(a->bufs[i].data, b->bufs[i].data, (size_t)a->bufs[i].count * dtype_bytes(a->bufs[i].dt)) !=
            0)
            fail_msg("%s: %s differs", what, a->bufs[i].name);
}

const char *op_name(enum op_id op)
{
    static const char *const names[] = {
#define X(op) #op,
        OPS(X)
#undef X
    };
    return names[op];
}

const char *case_text(const struct op_case *c, dtype dt, char buf[256])
{
    const struct {
        const char *name;
        int64_t value;
    } fields[] = {{"rows", c->rows}, {"d", c->d},         {"m", c->m},
                  {"n", c->n},       {"k", c->k},         {"vocab", c->vocab},
                  {"used", c->used}, {"heads", c->heads}, {"heads_kv", c->heads_kv},
                  {"hd", c->hd},     {"half", c->half},   {"window", c->window},
                  {"docs", c->docs}, {"len0", c->len[0]}};
    int used = snprintf(buf, 256, "%s %s", op_name(c->op), dtype_name(dt));
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && used < 240; i++)
        if (fields[i].value)
            used += snprintf(buf + used, (size_t)(256 - used), " %s %lld", fields[i].name,
                             (long long)fields[i].value);
    if (used < 240) snprintf(buf + used, (size_t)(256 - used), " flags 0x%x", c->flags);
    return buf;
}
