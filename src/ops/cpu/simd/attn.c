/* Attention without a T x T matrix, after FlashAttention-2 (Dao, arXiv:2307.08691). It processes blocks of BLOCK
 * queries against blocks of BLOCK keys. A running maximum and sum per query make the softmax exact, and backward
 * recomputes the scores from the saved lse.
 *
 * One task is a document and a kv head, with all query heads of its group. It packs K and V once. It owns dK and dV
 * of the whole document, and dQ block by block. Every sum therefore has one owner and a fixed order, and each score
 * is computed once per direction. Forward may split a task by query blocks. Tasks are distributed longest document
 * first. Blocks that the mask hides are skipped; only blocks that it cuts apply it.
 *
 * Compiled a third time with AMX for BF16; P and dS are then rounded to bf16 before their matmuls. */
#include "base/parallel.h"
#include "base/int_math.h"
#include "base/status.h"
#include "ops/cpu/simd/engine.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include "ops/cpu/workspace.h"
#include <math.h>
#include <stdlib.h>

enum { BLOCK = 64 };

#ifdef __AMX_BF16__
/* Fallback for F32, which this compilation does not support. */
static struct ops others(void)
{
    struct ops o;
    simd_attn_v4(&o);
    return o;
}
#endif

/* The size of a head, and rounded up to ENGINE_UNIT. */
struct head {
    int64_t head_dim, width;
};

/* Rows of a tensor. */
struct extent {
    int64_t begin, length;
};
/* The arguments of both directions that define the mask, for one task: a document's keys, and queries of it. Query i
 * is at the place i + shift among the keys. */
struct view {
    struct extent keys, queries;
    int64_t shift;
    int64_t head, group; /* kv head; query heads per kv head */
    struct head qk, vo;  /* of q and k; of v and o */
    int64_t window;
    float scale;
    dtype dt;
};

/* Rows [from, from + BLOCK) of a head into [BLOCK, width] of elem; zeros outside. */
VEC_INLINE void load_rows(struct extent of, struct head size, const void *src, int64_t stride, int64_t head,
                          int64_t from, dtype dt, elem *dst)
{
    (void)dt;
    const int64_t rows = int64_min(BLOCK, of.length - from);
    for (int64_t i = 0; i < BLOCK; i++, dst += size.width) {
        int64_t j = 0;
        for (; i < rows && j < size.head_dim; j += VEC) {
            const int n = vec_n(size.head_dim - j);
            const int64_t at = (of.begin + from + i) * stride + head * size.head_dim + j;
#ifdef __AMX_BF16__
            memcpy(dst + j, (const bf16 *)src + at, (size_t)n * sizeof *dst);
#else
            vec_store(dst, j, n, DTYPE_F32, vec_load(src, at, n, dt));
#endif
        }
        j = int64_min(j, size.head_dim);
        if (i >= rows) j = 0;
        memset(dst + j, 0, (size_t)(size.width - j) * sizeof *dst);
    }
}

/* Stores rows of f32 [.., width] times a factor (`by`: per row). */
VEC_INLINE void store_rows(const struct view *w, struct extent of, struct head size, const float *src,
                           float factor, const float *by, int64_t from, void *dst, int64_t stride,
                           int64_t head)
{
    for (int64_t i = 0; i < int64_min(BLOCK, of.length - from); i++) {
        const vf f = vec_set(by ? factor / by[i] : factor);
        for (int64_t j = 0; j < size.head_dim; j += VEC) {
            const int n = vec_n(size.head_dim - j);
            vec_store(dst, (of.begin + from + i) * stride + head * size.head_dim + j, n, w->dt,
                      vec_load(src, i * size.width + j, VEC, DTYPE_F32) * f);
        }
    }
}

/* The same with +=. */
VEC_INLINE void add_rows(const struct view *w, struct extent of, struct head size, const float *src,
                         float factor, int64_t from, void *dst, int64_t stride, int64_t head)
{
    for (int64_t i = 0; i < int64_min(BLOCK, of.length - from); i++)
        for (int64_t j = 0; j < size.head_dim; j += VEC) {
            const int n = vec_n(size.head_dim - j);
            const int64_t at = (of.begin + from + i) * stride + head * size.head_dim + j;
            vec_store(dst, at, n, w->dt,
                      vec_load(dst, at, n, w->dt) +
                          vec_load(src, i * size.width + j, VEC, DTYPE_F32) * factor);
        }
}
static void keep_rows(bool more, const struct view *w, struct extent of, struct head size, const float *src,
                      float factor, int64_t from, void *dst, int64_t stride, int64_t head)
{
    if (more)
        add_rows(w, of, size, src, factor, from, dst, stride, head);
    else
        store_rows(w, of, size, src, factor, NULL, from, dst, stride, head);
}

/* Columns of the key block at `key` that query t sees. */
static struct span seen(const struct view *w, int64_t t, int64_t key)
{
    const int64_t at = t + w->shift, first = w->window ? at - w->window + 1 : 0;
    return (struct span){int64_max(first - key, 0),
                         int64_min(int64_min(at + 1, w->keys.length) - key, BLOCK)};
}

/* Key blocks that queries [t, t + BLOCK) see, as positions of keys. */
static struct span key_blocks(const struct view *w, int64_t t)
{
    const int64_t at = t + w->shift, first = w->window ? int64_max(at - w->window + 1, 0) : 0;
    return (struct span){first / BLOCK * BLOCK, int64_min(at + BLOCK, w->keys.length)};
}

/* Where a block of queries is among the blocks of keys; behind all of them if it cuts two of them. */
static int64_t place_of(const struct view *w, int64_t t)
{
    return w->shift % BLOCK == 0 ? t + w->shift : INT64_MAX / 2;
}

VEC_INLINE vi lanes_in(struct span s, int64_t j)
{
    vi lane;
    for (int i = 0; i < VEC; i++) lane[i] = i;
    lane += (int32_t)j;
    return (lane >= (int32_t)s.begin) & (lane < (int32_t)s.end);
}

VEC_INLINE void put_elem(elem *dst, int64_t at, vf x)
{
#ifdef __AMX_BF16__
    _mm256_storeu_si256((__m256i *)(dst + at), (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
    vec_store(dst, at, VEC, DTYPE_F32, x);
#endif
}

/* True: each of the queries [t, t + BLOCK) sees every key of the block at `key`. */
static bool sees_all(const struct view *w, int64_t t, int64_t key)
{
    const int64_t at = t + w->shift;
    return key + BLOCK <= at + 1 && key + BLOCK <= w->keys.length &&
           (!w->window || at + BLOCK - w->window <= key);
}

/* Below, t is a place (place_of). Queries of one matmul and their keys: on the diagonal the upper half of a block skips the keys after it. */
static int64_t together(int64_t t, int64_t key, int64_t rows)
{
    return key < t ? rows : ENGINE_UNIT;
}
static int64_t reach(int64_t t, int64_t key)
{
    return int64_min(t + ENGINE_UNIT - key, BLOCK);
}

/* s = q k^T for the keys of the block at `key` that the mask may pass, `rows` queries from t on. */
VEC_INLINE void scores(int64_t width, const elem *q, const elem *k, float *s, int64_t t, int64_t key,
                       int64_t rows)
{
    const int64_t step = together(t, key, rows);
    for (int64_t i = 0; i < rows; i += step)
        engine_along(q + i * width, width, k, s + i * BLOCK, BLOCK, step, reach(t + i, key), width, width,
                     false);
}

/* out += p x, x [BLOCK keys, width]. */
VEC_INLINE void gather(int64_t width, const elem *p, const elem *x, float *out, int64_t t, int64_t key,
                       int64_t rows)
{
    const int64_t step = together(t, key, rows);
    for (int64_t i = 0; i < rows; i += step)
        engine_along(p + i * BLOCK, BLOCK, x, out + i * width, width, step, width, reach(t + i, key), BLOCK,
                     true);
}

/* out += p^T x, x [rows queries, width]. */
VEC_INLINE void scatter(int64_t width, const elem *p, const elem *x, float *out, int64_t t, int64_t key,
                        int64_t rows)
{
    const int64_t step = key < t ? BLOCK : ENGINE_UNIT;
    for (int64_t j = 0; j < BLOCK; j += step) {
        const int64_t from = key < t ? 0 : j;
        if (from >= rows) break;
        engine_across(p + from * BLOCK + j, BLOCK, x + from * ENGINE_NR, out + j * width, width, step, width,
                      rows - from, rows, true);
    }
}

/* e^x, flushed to zero below the least normal number. Differences of scores are taken before they are scaled
 * to exponents of 2: scores of a diverging model are so large that a rounded factor would separate the
 * largest from its maximum. */
VEC_INLINE vf power(vf x)
{
    return vec_exp2_within(vec_clamp(x * 1.44269504f, -126.f, 127.f));
}

/* A document and a kv head, with each of the two runs of its queries. */
struct task {
    struct view view[2];
};

/* Online softmax of a block of queries. `max` is the reference of the exponents: the largest score of a row,
 * or up to SLACK less, which spares most blocks the search. Sums are per lane. */
enum { SLACK = 8 };
struct online {
    vf sum[BLOCK];
    float max[BLOCK];
    float *o, *s; /* [BLOCK, vo.width], [BLOCK, BLOCK] */
    elem *q, *p;  /* [BLOCK, qk.width], [BLOCK, BLOCK]; f32: p is s */
};

/* For a row with a score above the slack: raises its maximum and rescales its sums. */
static __attribute__((noinline)) void online_raise(struct online *b, int64_t i, int64_t width, vf top)
{
    const float high = fmaxf(b->max[i], vec_top(top)), shrink = expf(b->max[i] - high);
    float *o = b->o + i * width;
    for (int64_t j = 0; j < width; j += VEC)
        vec_store(o, j, VEC, DTYPE_F32, vec_load(o, j, VEC, DTYPE_F32) * shrink);
    b->sum[i] *= shrink;
    b->max[i] = high;
}

/* One row of scores to probabilities. */
VEC_INLINE void online_row(struct online *b, int64_t i, int64_t width, float scale, bool whole,
                           struct span see)
{
    vf x[BLOCK / VEC], top = vec_set(-INFINITY);
#pragma GCC unroll 8
    for (int j = 0; j < BLOCK / VEC; j++) {
        x[j] = vec_load(b->s, i * BLOCK + j * VEC, VEC, DTYPE_F32) * scale;
        if (!whole) x[j] = vec_select(lanes_in(see, j * VEC), x[j], vec_set(-INFINITY));
        top = vec_max(x[j], top);
    }
    if (__builtin_expect(vec_any_above(top, b->max[i] + SLACK), 0)) online_raise(b, i, width, top);
    const vf max = vec_set(b->max[i]);
    vf sum[2] = {b->sum[i], {0}};
#pragma GCC unroll 8
    for (int j = 0; j < BLOCK / VEC; j++) {
        const vi lane = whole ? (vi){0} : lanes_in(see, j * VEC);
        x[j] = power(x[j] - max);
        if (!whole) x[j] = vec_select(lane, x[j], (vf){0});
        sum[j % 2] += x[j];
        put_elem(b->p, i * BLOCK + j * VEC, x[j]);
    }
    b->sum[i] = sum[0] + sum[1];
}

static void online_block(const struct view *w, struct online *b, int64_t t, int64_t key, int64_t rows)
{
    const int64_t n = int64_min(rows, w->queries.length - t), width = w->vo.width;
    if (sees_all(w, t, key)) {
        for (int64_t i = 0; i < n; i++) online_row(b, i, width, w->scale, true, (struct span){0, BLOCK});
    } else {
        for (int64_t i = 0; i < n; i++) {
            const struct span see = seen(w, t + i, key);
            if (see.begin < see.end)
                online_row(b, i, width, w->scale, false, see);
            else
                memset(b->p + i * BLOCK, 0, BLOCK * sizeof *b->p);
        }
    }
    memset(b->p + n * BLOCK, 0, (size_t)((rows - n) * BLOCK) * sizeof *b->p);
}

/* Begins with what o and lse hold, as if their keys had just been seen. */
VEC_INLINE void online_resume(const struct attn_fwd_args *a, const struct view *w, struct online *b,
                              int64_t h, int64_t t)
{
    for (int64_t i = 0; i < int64_min(BLOCK, w->queries.length - t); i++) {
        const int64_t row = w->queries.begin + t + i, at = (row * a->heads + h) * a->head_dim_v;
        b->max[i] = ((const float *)a->lse)[h * a->rows + row];
        b->sum[i][0] = b->max[i] > -INFINITY;
        for (int64_t j = 0; j < a->head_dim_v; j += VEC) {
            const int n = vec_n(a->head_dim_v - j);
            vec_store(b->o, i * w->vo.width + j, n, DTYPE_F32, vec_load(a->o, at + j, n, w->dt));
        }
    }
}

/* One block of queries of head h against the packed keys and values. */
static void fwd_queries(const struct attn_fwd_args *a, const struct view *w, struct online *b, const elem *k,
                        const elem *v, int64_t h, int64_t t)
{
    const int64_t n = int64_min(BLOCK, w->queries.length - t), rows = int64_round_up(n, ENGINE_UNIT),
                  at = place_of(w, t);
    const struct span keys = key_blocks(w, t);
    load_rows(w->queries, w->qk, a->q, a->q_stride, h, t, w->dt, b->q);
    memset(b->o, 0, (size_t)(BLOCK * w->vo.width) * sizeof *b->o);
    for (int i = 0; i < BLOCK; i++) b->max[i] = -INFINITY, b->sum[i] = (vf){0};
    if (a->more) online_resume(a, w, b, h, t);
    for (int64_t u = keys.begin; u < keys.end; u += BLOCK) {
        scores(w->qk.width, b->q, k + u * w->qk.width, b->s, at, u, rows);
        online_block(w, b, t, u, rows);
        gather(w->vo.width, b->p, v + u * w->vo.width, b->o, at, u, rows);
    }
    float sum[BLOCK];
    for (int i = 0; i < BLOCK; i++) sum[i] = vec_sum(b->sum[i]);
    for (int i = 0; a->cp_docs && i < BLOCK; i++)
        sum[i] = sum[i] > 0 ? sum[i] : 1; /* no key: max is -inf, o zeros */
    store_rows(w, w->queries, w->vo, b->o, 1.0f, sum, t, a->o, a->heads * a->head_dim_v, h);
    float *lse = a->lse ? (float *)a->lse + h * a->rows + w->queries.begin + t : NULL;
    for (int64_t i = 0; lse && i < n; i++) lse[i] = b->max[i] + logf(sum[i]);
}

/* Query blocks part, part + parts, .. of the task's heads. */
static void fwd_task(const struct attn_fwd_args *a, const struct task *task, int64_t part, int64_t parts)
{
    const struct view *w = &task->view[0];
    const int64_t blocks = chunk_count(w->keys.length, BLOCK), block_k = BLOCK * w->qk.width,
                  block_v = BLOCK * w->vo.width, block = int64_max(block_k, block_v);
    const size_t elems = (size_t)(blocks * (block_k + block_v) + block + BLOCK * BLOCK),
                 floats = (size_t)(block_v + BLOCK * BLOCK);
    if (part >= chunk_count(int64_max(w->queries.length, task->view[1].queries.length), BLOCK)) return;
    struct online b;
    b.o = workspace_get(WORKSPACE_MINE, floats * sizeof(float) + elems * sizeof(elem));
    b.s = b.o + block_v;
    elem *k = (elem *)(void *)(b.s + BLOCK * BLOCK), *v = k + blocks * block_k;
    b.q = v + blocks * block_v; /* V is packed here, too */
    b.p = sizeof(elem) == sizeof(float) ? (elem *)(void *)b.s : b.q + block;
    for (int64_t i = 0; i < blocks; i++) {
        load_rows(w->keys, w->qk, a->k, a->k_stride, w->head, i * BLOCK, w->dt, b.q);
        engine_b_along(b.q, w->qk.width, BLOCK, w->qk.width, k + i * block_k);
        load_rows(w->keys, w->vo, a->v, a->v_stride, w->head, i * BLOCK, w->dt, b.q);
        engine_b_across(b.q, w->vo.width, w->vo.width, BLOCK, v + i * block_v);
    }
    for (int64_t h = w->head * w->group; h < (w->head + 1) * w->group; h++)
        for (int i = 0; i < 2; i++)
            for (int64_t t = part * BLOCK; t < task->view[i].queries.length; t += parts * BLOCK)
                fwd_queries(a, &task->view[i], &b, k, v, h, t);
}

/* Buffers of a backward task. Operands are named by the matmul that reads them: _n along rows, _x across. */
struct grads {
    float *dk, *dv;             /* [blocks, BLOCK, qk.width or vo.width] sums over queries and heads */
    float *dq, *s, *dp;         /* [BLOCK, qk.width], [BLOCK, BLOCK] twice */
    elem *k_n, *k_x, *v_n;      /* packed for S, dQ, dP, all blocks */
    elem *q, *d_o, *q_x, *do_x; /* a query block, plain and packed for dK, dV */
    elem *p, *ds;               /* [BLOCK, BLOCK]; f32: p is s, ds is dp */
    const float *lse;           /* of this block's queries */
    float delta[BLOCK];
};

static void grads_layout(struct grads *g, const struct view *w)
{
    const int64_t blocks = chunk_count(w->keys.length, BLOCK), block_k = BLOCK * w->qk.width,
                  block_v = BLOCK * w->vo.width, block = int64_max(block_k, block_v),
                  all_k = blocks * block_k, all_v = blocks * block_v, square = BLOCK * BLOCK;
    const size_t floats = (size_t)(all_k + all_v + block_k + 2 * square),
                 elems = (size_t)(2 * all_k + all_v + block + 2 * block_v + block_k + 2 * square);
    g->dk = workspace_get(WORKSPACE_MINE, floats * sizeof(float) + elems * sizeof(elem));
    memset(g->dk, 0, (size_t)(all_k + all_v) * sizeof *g->dk);
    g->dv = g->dk + all_k;
    g->dq = g->dv + all_v;
    g->s = g->dq + block_k;
    g->dp = g->s + square;
    g->k_n = (elem *)(void *)(g->dp + square);
    g->k_x = g->k_n + all_k;
    g->v_n = g->k_x + all_k;
    g->q = g->v_n + all_v; /* K and V are packed here, too */
    g->d_o = g->q + block;
    g->q_x = g->d_o + block_v;
    g->do_x = g->q_x + block_k;
    const bool same = sizeof(elem) == sizeof(float);
    g->p = same ? (elem *)(void *)g->s : g->do_x + block_v;
    g->ds = same ? (elem *)(void *)g->dp : g->p + square;
}

/* delta = <do, o> of the block's rows, also stored in the caller's scratch. */
VEC_INLINE void delta_rows(const struct attn_bwd_args *a, const struct view *w, struct grads *g, int64_t h,
                           int64_t t)
{
    for (int64_t i = 0; i < int64_min(BLOCK, w->queries.length - t); i++) {
        const int64_t row = w->queries.begin + t + i, at = (row * a->heads + h) * w->vo.head_dim;
        vf sum = {0};
        for (int64_t j = 0; j < w->vo.head_dim; j += VEC) {
            const int n = vec_n(w->vo.head_dim - j);
            sum += vec_load(a->o, at + j, n, w->dt) * vec_load(a->do_, at + j, n, w->dt);
        }
        g->delta[i] = vec_sum(sum);
        ((float *)a->scratch)[h * a->rows + row] = g->delta[i];
    }
}

/* P and dS from scores and dP. */
VEC_INLINE void prob_row(struct grads *g, int64_t i, float scale, bool whole, struct span see)
{
    const vf lse = vec_set(g->lse[i]), delta = vec_set(g->delta[i]);
#pragma GCC unroll 8
    for (int64_t j = 0; j < BLOCK; j += VEC) {
        const int64_t at = i * BLOCK + j;
        const vi lane = whole ? (vi){0} : lanes_in(see, j);
        vf x = vec_load(g->s, at, VEC, DTYPE_F32) * scale - lse;
        x = power(whole ? x : vec_select(lane, x, (vf){0}));
        vf ds = x * (vec_load(g->dp, at, VEC, DTYPE_F32) - delta);
        if (!whole) {
            x = vec_select(lane, x, (vf){0});
            ds = vec_select(lane, ds, (vf){0});
        }
        put_elem(g->p, at, x);
        put_elem(g->ds, at, ds);
    }
}

static void prob_block(const struct view *w, struct grads *g, int64_t t, int64_t key, int64_t rows)
{
    const int64_t n = int64_min(rows, w->queries.length - t);
    const size_t rest = (size_t)((rows - n) * BLOCK) * sizeof *g->p;
    if (sees_all(w, t, key)) {
        for (int64_t i = 0; i < n; i++) prob_row(g, i, w->scale, true, (struct span){0, BLOCK});
    } else {
        for (int64_t i = 0; i < n; i++) prob_row(g, i, w->scale, false, seen(w, t + i, key));
    }
    memset(g->p + n * BLOCK, 0, rest);
    memset(g->ds + n * BLOCK, 0, rest);
}

static void bwd_queries(const struct attn_bwd_args *a, const struct view *w, struct grads *g, int64_t h,
                        int64_t t)
{
    const int64_t width = w->qk.width, width_v = w->vo.width,
                  rows = int64_round_up(int64_min(BLOCK, w->queries.length - t), ENGINE_UNIT),
                  at_place = place_of(w, t);
    const struct span keys = key_blocks(w, t);
    load_rows(w->queries, w->qk, a->q, a->q_stride, h, t, w->dt, g->q);
    load_rows(w->queries, w->vo, a->do_, a->heads * w->vo.head_dim, h, t, w->dt, g->d_o);
    engine_b_across(g->q, width, width, rows, g->q_x);
    engine_b_across(g->d_o, width_v, width_v, rows, g->do_x);
    delta_rows(a, w, g, h, t);
    g->lse = (const float *)a->lse + h * a->rows + w->queries.begin + t;
    memset(g->dq, 0, (size_t)(BLOCK * width) * sizeof *g->dq);
    for (int64_t u = keys.begin; u < keys.end; u += BLOCK) {
        const int64_t at = u * width, at_v = u * width_v;
        scores(width, g->q, g->k_n + at, g->s, at_place, u, rows);
        scores(width_v, g->d_o, g->v_n + at_v, g->dp, at_place, u, rows);
        prob_block(w, g, t, u, rows);
        scatter(width_v, g->p, g->do_x, g->dv + at_v, at_place, u, rows);
        scatter(width, g->ds, g->q_x, g->dk + at, at_place, u, rows);
        gather(width, g->ds, g->k_x + at, g->dq, at_place, u, rows);
    }
    keep_rows(a->more, w, w->queries, w->qk, g->dq, w->scale, t, a->dq, a->dq_stride, h);
}

static void bwd_task(const struct attn_bwd_args *a, const struct task *task)
{
    const struct view *w = &task->view[0];
    const int64_t width = w->qk.width, width_v = w->vo.width;
    struct grads g;
    grads_layout(&g, w);
    for (int64_t t = 0; t < w->keys.length; t += BLOCK) {
        load_rows(w->keys, w->qk, a->k, a->k_stride, w->head, t, w->dt, g.q);
        engine_b_along(g.q, width, BLOCK, width, g.k_n + t * width);
        engine_b_across(g.q, width, width, BLOCK, g.k_x + t * width);
        load_rows(w->keys, w->vo, a->v, a->v_stride, w->head, t, w->dt, g.q);
        engine_b_along(g.q, width_v, BLOCK, width_v, g.v_n + t * width_v);
    }
    for (int64_t h = w->head * w->group; h < (w->head + 1) * w->group; h++)
        for (int i = 0; i < 2; i++)
            for (int64_t t = 0; t < task->view[i].queries.length; t += BLOCK)
                bwd_queries(a, &task->view[i], &g, h, t);
    for (int64_t t = 0; t < w->keys.length; t += BLOCK) {
        keep_rows(a->more, w, w->keys, w->qk, g.dk + t * width, w->scale, t, a->dk, a->dk_stride, w->head);
        keep_rows(a->more, w, w->keys, w->vo, g.dv + t * width_v, 1.0f, t, a->dv, a->dv_stride, w->head);
    }
}

static struct head head_of(int64_t head_dim)
{
    return (struct head){head_dim, int64_round_up(head_dim, ENGINE_UNIT)};
}

static int longer_first(const void *x, const void *y)
{
    const int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a < b) - (a > b);
}

/* Documents by keys, longest first, equal ones last to first: length << 32 | document. Valid until the caller's next
 * op. */
static const int64_t *schedule(const int32_t *cu, const struct attn_doc *split, int64_t docs, int64_t rows)
{
    CHECK(docs >= 0 && (split || (cu[0] == 0 && cu[docs] == rows)), "%lld documents end at %d of %lld rows",
          (long long)docs, cu[docs], (long long)rows);
    int64_t *order = workspace_get(WORKSPACE_SHARED, (size_t)(docs + 1) * sizeof *order);
    for (int64_t d = 0; d < docs; d++) {
        CHECK(split || cu[d] <= cu[d + 1], "document %lld ends at %d before it begins at %d", (long long)d,
              cu[d + 1], cu[d]);
        order[d] = (int64_t)(split ? split[d].keys : cu[d + 1] - cu[d]) << 32 | d;
    }
    qsort(order, (size_t)docs, sizeof *order, longer_first);
    return order;
}

/* What is common to the views of all tasks. */
#define VIEW(a)                                                                                              \
    {                                                                                                        \
        .group = (a)->heads / (a)->heads_kv, .qk = head_of((a)->head_dim), .vo = head_of((a)->head_dim_v),   \
        .window = (a)->window, .scale = (float)(a)->scale, .dt = (a)->dt                                     \
    }

static struct task task_of(const struct view *common, const int32_t *cu, const struct attn_doc *split,
                           int64_t document, int64_t head)
{
    struct attn_doc d = {0};
    if (split) {
        d = split[document];
    } else {
        d.key = cu[document];
        d.keys = cu[document + 1] - cu[document];
        d.part[0] = (struct attn_queries){d.key, d.keys, 0};
    }
    struct task t = {{*common, *common}};
    for (int i = 0; i < 2; i++) {
        t.view[i].head = head;
        t.view[i].keys = (struct extent){d.key, d.keys};
        t.view[i].queries = (struct extent){d.part[i].row, d.part[i].rows};
        t.view[i].shift = d.part[i].shift;
    }
    return t;
}

static void check(dtype dt, int64_t heads, int64_t heads_kv, int64_t head_dim, int64_t head_dim_v)
{
    CHECK(dt == DTYPE_F32 || dt == DTYPE_BF16, "the fast set has no attention in %s", dtype_name(dt));
    CHECK(heads > 0 && heads_kv > 0 && heads % heads_kv == 0, "%lld heads on %lld kv heads", (long long)heads,
          (long long)heads_kv);
    CHECK(head_dim > 0 && head_dim_v > 0, "head sizes %lld and %lld", (long long)head_dim,
          (long long)head_dim_v);
}

/* Number of parts of a forward task, so that few long documents keep all threads busy. Each part packs K and
 * V again, so it gets at least PART query blocks. Queries are independent: any number gives the same bits. */
static int64_t fwd_parts(int64_t tasks, int64_t longest)
{
    enum { PART = 8 };
    const int64_t threads = parallel_threads();
    if (threads == 1 || tasks == 0) return 1;
    return int64_max(1, int64_min(chunk_count(2 * threads, tasks), chunk_count(longest, BLOCK) / PART));
}

static status attn_fwd(const struct attn_fwd_args *a, dev_stream s)
{
#ifdef __AMX_BF16__
    if (a->dt != DTYPE_BF16) return others().attn_fwd(a, s);
#endif
    (void)s;
    check(a->dt, a->heads, a->heads_kv, a->head_dim, a->head_dim_v);
    const int64_t *order = schedule(a->cu_seqlens, a->cp_docs, a->docs, a->rows);
    const int64_t tasks = a->docs * a->heads_kv, parts = fwd_parts(tasks, a->docs ? order[0] >> 32 : 0);
    const struct view common = VIEW(a);
    PARALLEL_CHUNKS(c, tasks * parts)
    {
        const int64_t i = c / parts;
        const struct task task =
            task_of(&common, a->cu_seqlens, a->cp_docs, order[i / a->heads_kv] & 0xffffffff, i % a->heads_kv);
        engine_begin();
        fwd_task(a, &task, c % parts, parts);
        engine_end();
    }
    return STATUS_OK;
}

static status attn_bwd(const struct attn_bwd_args *a, dev_stream s)
{
#ifdef __AMX_BF16__
    if (a->dt != DTYPE_BF16) return others().attn_bwd(a, s);
#endif
    (void)s;
    check(a->dt, a->heads, a->heads_kv, a->head_dim, a->head_dim_v);
    CHECK(a->scratch || a->rows == 0, "no scratch");
    const int64_t *order = schedule(a->cu_seqlens, a->cp_docs, a->docs, a->rows);
    const struct view common = VIEW(a);
    PARALLEL_CHUNKS(i, a->docs * a->heads_kv)
    {
        const struct task task =
            task_of(&common, a->cu_seqlens, a->cp_docs, order[i / a->heads_kv] & 0xffffffff, i % a->heads_kv);
        engine_begin();
        bwd_task(a, &task);
        engine_end();
    }
    return STATUS_OK;
}

void SIMD(simd_attn)(struct ops *o)
{
    o->attn_fwd = attn_fwd;
    o->attn_bwd = attn_bwd;
}
