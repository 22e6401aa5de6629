/* Attention: support_run.c says how cases become calls. */
#include "run.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

RUN_CALL(attn_fwd)
RUN_CALL(attn_bwd)
RUN_CALL(attn_decode)

/* In BF16 a kernel may round q * scale, P and dS to bf16 for the matrix unit: errors are some roundoffs of
 * bf16 times a value of about 1. In F32 what remains is the order of sums and the polynomial of exp. */
static double tol_attn(dtype dt, int64_t n)
{
    return dt == DTYPE_BF16 ? 8 * tol_round(dt) : 4 * tol_reduce(dt, n);
}

/* Documents, strides and buffers of one attention case. */
struct attn_run {
    struct attn_shape shape;
    int32_t *cu;
    const struct attn_doc *split; /* [docs] with c->ranks */
    int64_t docs, keys;           /* keys: rows of k and v */
    int64_t q_stride, k_stride, v_stride;
    const void *q, *k, *v;
    double scale, tol;
};

/* APART: the mean of q is 2, that of a key falls from 6 to 0 along the rows, so that scores fall by 12 sqrt(hd) and a row's largest is
 * that of the earliest key it sees: a kernel that comes from the diagonal has taken another max by then. */
static void *attn_keys(const struct case_attn *c, struct probe *p, int64_t rows, int64_t stride)
{
    void *k = probe_in(p, "k", p->dt, rows * stride, 0, 1);
    if (c->apart)
        for (int64_t i = 0; i < rows * stride; i++)
            dtype_store(k, i, p->dt,
                        dtype_load(k, i, p->dt) + 6.0 * (double)(rows - i / stride) / (double)rows);
    return k;
}

/* Of a value head. */
static int64_t width_v(const struct case_attn *c)
{
    return c->head_dim_v ? c->head_dim_v : c->head_dim;
}

/* The queries of document [begin, end) that lie in chunk `half` of its sequence, by rows one after the other. */
static struct attn_queries part_of(const struct case_attn *c, int64_t length, int64_t begin, int64_t end,
                                   int half)
{
    struct attn_queries q = {0};
    const int64_t sequence = begin / length, chunk = length / (2 * c->ranks),
                  from = sequence * length + chunk * (half ? 2 * c->ranks - 1 - c->rank : c->rank),
                  row = (2 * sequence + half) * chunk;
    for (int64_t t = begin; t < end; t++) {
        if (t < from || t >= from + chunk) continue;
        if (q.rows++ == 0) q.row = (int32_t)(row + t - from), q.shift = (int32_t)(t - begin);
    }
    return q;
}

enum { UNUSED_DOCS = 2 };
/* The list for r->cu, behind it unused documents, as a step with a fixed number of them has. */
static void attn_split(const struct case_attn *c, struct attn_run *r, struct probe *p)
{
    const int64_t most = c->docs.count + UNUSED_DOCS, length = c->length ? c->length : r->keys;
    struct attn_doc *list =
        (struct attn_doc *)(((uintptr_t)probe_ids(p, "split", 8 * most + 4, 1) + 15) / 16 * 16);
    assert_true(r->keys % length == 0 && length % (2 * c->ranks) == 0);
    r->split = list;
    for (int64_t i = 0; i < c->docs.count; i++) {
        struct attn_doc d = {.key = r->cu[i]};
        for (int half = 0; half < 2; half++) {
            d.part[half] = part_of(c, length, r->cu[i], r->cu[i + 1], half);
            if (d.part[half].rows > 0) d.keys = d.part[half].rows + d.part[half].shift;
        }
        if (d.keys > 0) list[r->docs++] = d;
    }
    for (int i = 0; i < UNUSED_DOCS; i++, r->docs++) {
        list[r->docs] = (struct attn_doc){.key = (int32_t)r->keys};
        list[r->docs].part[1].row = (int32_t)r->shape.rows;
    }
}

static struct attn_run attn_inputs(const struct case_attn *c, struct probe *p)
{
    struct attn_run r = {.cu = run_cu_seqlens(&c->docs, p)};
    int64_t len_max = 0, gaps = c->gaps;
    for (int64_t i = 0; i < c->docs.count; i++)
        if (len_max < c->docs.len[i]) len_max = c->docs.len[i];
    const int64_t keys = r.cu[c->docs.count], rows = c->ranks ? keys / c->ranks : keys;
    r.docs = c->ranks ? 0 : c->docs.count;
    r.keys = keys;
    r.shape = (struct attn_shape){.rows = rows,
                                  .docs = c->docs.count,
                                  .len_max = len_max,
                                  .heads = c->heads,
                                  .heads_kv = c->heads_kv,
                                  .head_dim = c->head_dim,
                                  .head_dim_v = width_v(c),
                                  .window = c->window,
                                  .dt = p->dt,
                                  .keys = c->ranks ? keys : 0};
    if (c->ranks) attn_split(c, &r, p);
    r.q_stride = c->heads * c->head_dim + 3 * gaps;
    r.k_stride = c->heads_kv * c->head_dim + 5 * gaps;
    r.v_stride = c->heads_kv * width_v(c) + gaps;
    r.scale = 1 / sqrt((double)c->head_dim);
    r.tol = tol_attn(p->dt, keys + c->head_dim);
    if (c->fused) {
        r.q_stride = r.k_stride = r.v_stride = (c->heads + 2 * c->heads_kv) * c->head_dim;
        const char *qkv = probe_in(p, "qkv", p->dt, rows * r.q_stride, 0, 1);
        r.q = qkv;
        r.k = qkv + (size_t)(c->heads * c->head_dim) * dtype_bytes(p->dt);
        r.v = qkv + (size_t)((c->heads + c->heads_kv) * c->head_dim) * dtype_bytes(p->dt);
        return r;
    }
    const bool apart = c->apart;
    if (apart && p->dt == DTYPE_F32) r.tol *= 8; /* scores near 100: their roundoff is that of a weight */
    r.q = probe_in(p, "q", p->dt, rows * r.q_stride, apart ? 2 : 0, 1);
    r.k = attn_keys(c, p, keys, r.k_stride);
    r.v = probe_in(p, "v", p->dt, keys * r.v_stride, 0, 1);
    return r;
}

struct attn_grads {
    void *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
};

static struct attn_grads attn_grads(const struct case_attn *c, const struct attn_run *r, struct probe *p)
{
    const int64_t rows = r->shape.rows;
    if (c->fused) {
        char *dqkv = probe_out(p, "dqkv", PROBE_OUT, p->dt, rows * r->q_stride, 2 * r->tol);
        const ptrdiff_t k = (const char *)r->k - (const char *)r->q,
                        v = (const char *)r->v - (const char *)r->q;
        return (struct attn_grads){dqkv, dqkv + k, dqkv + v, r->q_stride, r->q_stride, r->q_stride};
    }
    /* Gradients have their own strides; a gradient check needs the layouts of the inputs. */
    const int64_t own = c->gaps && !p->zero_out ? 2 : 0;
    struct attn_grads g = {.dq_stride = r->q_stride + own,
                           .dk_stride = r->k_stride + 2 * own,
                           .dv_stride = r->v_stride + 3 * own};
    g.dq = probe_out(p, "dq", PROBE_OUT, p->dt, rows * g.dq_stride, r->tol);
    g.dk = probe_out(p, "dk", PROBE_OUT, p->dt, r->keys * g.dk_stride, 2 * r->tol);
    g.dv = probe_out(p, "dv", PROBE_OUT, p->dt, r->keys * g.dv_stride, 2 * r->tol);
    if (c->ranks) { /* keys that no query sees: left alone, or 0 */
        memset(g.dk, 0, (size_t)(r->keys * g.dk_stride) * dtype_bytes(p->dt));
        memset(g.dv, 0, (size_t)(r->keys * g.dv_stride) * dtype_bytes(p->dt));
    }
    return g;
}

#define ATTN_FWD_ARGS(c, r, o_, lse_, scratch_)                                                              \
    .q = (r).q, .k = (r).k, .v = (r).v, .o = o_, .lse = lse_, .q_stride = (r).q_stride,                      \
    .k_stride = (r).k_stride, .v_stride = (r).v_stride, .cu_seqlens = (r).cu, .cp_docs = (r).split,          \
    .keys = (r).shape.keys, .docs = (r).docs, .rows = (r).shape.rows, .heads = (c)->heads,                   \
    .heads_kv = (c)->heads_kv, .head_dim = (c)->head_dim, .head_dim_v = width_v(c), .window = (c)->window,   \
    .len_max = (r).shape.len_max, .scale = (r).scale, .scratch = scratch_, .dt = (r).shape.dt

void run_attn_fwd(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_attn *c = &oc->attn;
    const struct attn_run r = attn_inputs(c, p);
    void *out = probe_out(p, "o", PROBE_OUT, p->dt, r.shape.rows * c->heads * width_v(c), r.tol), *lse = NULL;
    if (!c->no_stats) /* a device may order it as its backward likes it */
        lse = probe_out(p, "lse", p->device && !p->plain_lse ? PROBE_WORK : PROBE_OUT, dtype_acc(p->dt),
                        c->heads * r.shape.rows, r.tol);
    void *scratch = probe_scratch(p, "scratch", o->attn_scratch(&r.shape, ATTN_FWD));
    RUN(o, attn_fwd, ATTN_FWD_ARGS(c, r, out, lse, scratch));
}

void run_attn_bwd(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_attn *c = &oc->attn;
    const struct attn_run r = attn_inputs(c, p);
    int64_t count = r.shape.rows * c->heads * width_v(c), stats = c->heads * r.shape.rows;
    void *out, *lse;
    if (p->device) { /* a backward reads what its own forward left */
        out = probe_out(p, "o", PROBE_WORK, p->dt, count, 0);
        lse = probe_out(p, "lse", PROBE_WORK, dtype_acc(p->dt), stats, 0);
        void *scratch = probe_scratch(p, "forward's scratch", o->attn_scratch(&r.shape, ATTN_FWD));
        RUN(o, attn_fwd, ATTN_FWD_ARGS(c, r, out, lse, scratch));
    } else {
        out = probe_in(p, "o", p->dt, count, 0, 1);
        lse = probe_in(p, "lse", dtype_acc(p->dt), stats, 0, 1);
        GIVEN(attn_fwd, ATTN_FWD_ARGS(c, r, out, lse, NULL));
    }
    const struct attn_grads g = attn_grads(c, &r, p);
    RUN(o, attn_bwd, .q = r.q, .k = r.k, .v = r.v, .o = out, .do_ = probe_in(p, "do", p->dt, count, 0, 1),
        .lse = lse, .dq = g.dq, .dk = g.dk, .dv = g.dv, .q_stride = r.q_stride, .k_stride = r.k_stride,
        .v_stride = r.v_stride, .dq_stride = g.dq_stride, .dk_stride = g.dk_stride, .dv_stride = g.dv_stride,
        .cu_seqlens = r.cu, .cp_docs = r.split, .keys = r.shape.keys, .docs = r.docs, .rows = r.shape.rows,
        .heads = c->heads, .heads_kv = c->heads_kv, .head_dim = c->head_dim, .head_dim_v = width_v(c),
        .window = c->window, .len_max = r.shape.len_max, .scale = r.scale,
        .scratch = probe_scratch(p, "scratch", o->attn_scratch(&r.shape, ATTN_BWD)),
        .scratch_bytes = o->attn_scratch(&r.shape, ATTN_BWD), .dt = p->dt);
}

void run_attn_decode(const struct ops *o, const struct op_case *oc, struct probe *p)
{
    const struct case_attn *c = &oc->attn;
    int32_t *lengths = probe_ids(p, "lengths", c->docs.count, 1);
    const bool fused = c->fused;
    const int64_t gaps = c->gaps, width = c->heads_kv * c->head_dim + 3 * gaps,
                  wide_v = fused ? width : c->heads_kv * width_v(c) + gaps;
    int64_t capacity = 0;
    for (int64_t b = 0; b < c->docs.count; b++) {
        lengths[b] = c->docs.len[b];
        if (capacity < c->docs.len[b] + 2) capacity = c->docs.len[b] + 2;
    }
    void *k = probe_in(p, "k", p->dt, c->docs.count * capacity * width, 0, 1);
    void *v = fused ? k : probe_in(p, "v", p->dt, c->docs.count * capacity * wide_v, 0, 1);
    for (int64_t b = 0; b < c->docs.count; b++) { /* rows beyond the length hold anything, here the worst */
        for (int64_t i = lengths[b] * width; i < capacity * width; i++)
            dtype_store(k, b * capacity * width + i, p->dt, NAN);
        for (int64_t i = lengths[b] * wide_v; i < capacity * wide_v; i++)
            dtype_store(v, b * capacity * wide_v + i, p->dt, NAN);
    }
    const int64_t q_stride = gaps ? c->heads * c->head_dim + 3 : 0,
                  q_width = q_stride ? q_stride : c->heads * c->head_dim;
    RUN(o, attn_decode, .q = probe_in(p, "q", p->dt, c->docs.count * q_width, 0, 1), .k_cache = k,
        .v_cache = v, .q_stride = q_stride, .k_stride = width, .v_stride = wide_v,
        .o = probe_out(p, "o", PROBE_OUT, p->dt, c->docs.count * c->heads * width_v(c),
                       tol_attn(p->dt, capacity + c->head_dim)),
        .lengths = lengths, .batch = c->docs.count, .capacity = capacity, .heads = c->heads,
        .heads_kv = c->heads_kv, .head_dim = c->head_dim, .head_dim_v = width_v(c), .window = c->window,
        .scale = 1 / sqrt((double)c->head_dim), .dt = p->dt);
}
