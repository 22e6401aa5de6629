/* The gated delta rule, row after row. A state S [dk, dv] is stored transposed: one line of dk floats for each of its
 * dv columns. Columns are independent. A tile of TILE columns (8 KiB at dk 128) therefore stays in the L1 cache while
 * all rows are processed, and every matmul runs along dk.
 *
 *   forward    task: a document, a value head, a tile of columns
 *   backward   task: a document and a key head; its value heads and tiles run one after the other, so dq and dk have one
 *              writer. States are saved at the first row of every CHUNK; backward recomputes the states within a chunk.
 *
 * Forward does six matmuls along dk per column and row, while the chunked form needs eleven: with vectors of 8 or 16
 * there is no matrix unit that would make the chunked form faster. */
#include "base/parallel.h"
#include "base/int_math.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include "ops/cpu/workspace.h"

#include <math.h>

enum { TILE = 16, CHUNK = 32 };
static const float L2_EPS = 1e-6f;

static int64_t padded(int64_t d)
{
    return int64_round_up(d, VEC);
}

struct core { /* inputs of both passes */
    const void *q, *k, *v;
    const float *g, *beta;
    int64_t q_stride, k_stride, v_stride, pad; /* pad: dk in whole vectors */
    struct delta_shape n;
    bool normalize;
};

/* From the arguments of either pass. */
#define CORE_OF(a)                                                                                           \
    {                                                                                                        \
        (a)->q, (a)->k, (a)->v, (a)->g, (a)->beta, (a)->q_stride, (a)->k_stride, (a)->v_stride,              \
            padded((a)->shape.dk), (a)->shape, (a)->normalize                                                \
    }

/* One row of one head. */
struct row {
    const float *q, *k; /* [pad], normalised */
    float decay, beta;
};

VEC_INLINE void load_floats(const void *from, int64_t at, int64_t n, int64_t pad, dtype dt, float *to)
{
    for (int64_t i = 0; i < pad; i += VEC)
        vec_store(to, i, VEC, DTYPE_F32, i < n ? vec_load(from, at + i, vec_n(n - i), dt) : (vf){0});
}

static void load_any(const void *from, int64_t at, int64_t n, int64_t pad, dtype dt, float *to)
{
    if (dt == DTYPE_F32)
        load_floats(from, at, n, pad, DTYPE_F32, to);
    else
        load_floats(from, at, n, pad, DTYPE_BF16, to);
}

static void store_any(void *to, int64_t at, int64_t n, dtype dt, const float *from)
{
    for (int64_t i = 0; i < n; i += VEC) {
        const vf x = vec_load(from, i, vec_n(n - i), DTYPE_F32);
        if (dt == DTYPE_F32)
            vec_store(to, at + i, vec_n(n - i), DTYPE_F32, x);
        else
            vec_store(to, at + i, vec_n(n - i), DTYPE_BF16, x);
    }
}

VEC_INLINE float dot(const float *x, const float *y, int64_t pad)
{
    vf sum = {0};
    for (int64_t i = 0; i < pad; i += VEC)
        sum += vec_load(x, i, VEC, DTYPE_F32) * vec_load(y, i, VEC, DTYPE_F32);
    return vec_sum(sum);
}

/* A head of q or k at row t into `to`; returns the norm it was divided by. */
static float load_unit(const struct core *c, const void *from, int64_t at, float *to)
{
    load_any(from, at, c->n.dk, c->pad, c->n.dt, to);
    if (!c->normalize) return 1;
    const float rho = 1 / sqrtf(dot(to, to, c->pad) + L2_EPS);
    for (int64_t i = 0; i < c->pad; i += VEC)
        vec_store(to, i, VEC, DTYPE_F32, vec_load(to, i, VEC, DTYPE_F32) * rho);
    return rho;
}

static struct row row_of(const struct core *c, int64_t t, int64_t h, const float *q, const float *k)
{
    return (struct row){.q = q,
                        .k = k,
                        .decay = expf(c->g[t * c->n.heads + h]),
                        .beta = c->beta ? c->beta[t * c->n.heads + h] : 0};
}

/* s <- decay s;  returns s . k */
VEC_INLINE float forget(float *s, const struct row *r, int64_t pad)
{
    vf read = {0};
    for (int64_t i = 0; i < pad; i += VEC) {
        const vf x = vec_load(s, i, VEC, DTYPE_F32) * r->decay;
        read += x * vec_load(r->k, i, VEC, DTYPE_F32);
        vec_store(s, i, VEC, DTYPE_F32, x);
    }
    return vec_sum(read);
}

/* s <- s + k u;  returns s . q */
VEC_INLINE float write(float *s, const struct row *r, float u, int64_t pad)
{
    vf out = {0};
    for (int64_t i = 0; i < pad; i += VEC) {
        const vf x = vec_load(s, i, VEC, DTYPE_F32) + vec_load(r->k, i, VEC, DTYPE_F32) * u;
        out += x * vec_load(r->q, i, VEC, DTYPE_F32);
        vec_store(s, i, VEC, DTYPE_F32, x);
    }
    return vec_sum(out);
}

/* Advances the columns of a tile by one row; out NULL: states only. */
static void advance(const struct core *c, const struct row *r, const float *v, int64_t columns, float *states,
                    float *out)
{
    for (int64_t j = 0; j < columns; j++) {
        float *s = states + j * c->pad;
        const float read = forget(s, r, c->pad), u = c->beta ? r->beta * (v[j] - read) : v[j];
        const float o = write(s, r, u, c->pad);
        if (out) out[j] = o;
    }
}

struct place { /* of a unit */
    int64_t begin, end, h, hk, column, columns;
};

/* state[dk][dv] of one head, and the tile's lines. */
static void states_in(const struct core *c, const struct place *p, const float *from, float *states)
{
    memset(states, 0, (size_t)(TILE * c->pad) * sizeof *states);
    for (int64_t i = 0; from && i < c->n.dk; i++)
        for (int64_t j = 0; j < p->columns; j++) states[j * c->pad + i] = from[i * c->n.dv + p->column + j];
}
static void states_out(const struct core *c, const struct place *p, const float *states, float *to)
{
    for (int64_t i = 0; to && i < c->n.dk; i++)
        for (int64_t j = 0; j < p->columns; j++) to[i * c->n.dv + p->column + j] = states[j * c->pad + i];
}

static void forward_unit(const struct delta_fwd_args *a, const struct core *c, const struct place *p,
                         int64_t state_at)
{
    const struct delta_shape *n = &c->n;
    float *block = workspace_get(WORKSPACE_MINE, (size_t)((TILE + 2) * c->pad + 2 * TILE) * sizeof *block);
    float *q = block, *k = q + c->pad, *states = k + c->pad, *v = states + TILE * c->pad, *out = v + TILE;
    states_in(c, p, a->state_in ? (const float *)a->state_in + state_at : NULL, states);
    for (int64_t t = p->begin; t < p->end; t++) {
        load_unit(c, c->q, t * c->q_stride + p->hk * n->dk, q);
        load_unit(c, c->k, t * c->k_stride + p->hk * n->dk, k);
        load_any(c->v, t * c->v_stride + p->h * n->dv + p->column, p->columns, TILE, n->dt, v);
        const struct row r = row_of(c, t, p->h, q, k);
        advance(c, &r, v, p->columns, states, out);
        for (int64_t j = 0; j < p->columns; j++) out[j] *= (float)a->scale;
        store_any(a->o, (t * n->heads + p->h) * n->dv + p->column, p->columns, n->dt, out);
    }
    states_out(c, p, states, a->state_out ? (float *)a->state_out + state_at : NULL);
}

static void check(const struct delta_shape *n)
{
    CHECK(n->dt == DTYPE_F32 || n->dt == DTYPE_BF16, "dtype %s", dtype_name(n->dt));
    CHECK(n->heads_k > 0 && n->heads % n->heads_k == 0, "%lld value heads over %lld key heads",
          (long long)n->heads, (long long)n->heads_k);
}

static status delta_fwd(const struct delta_fwd_args *a, dev_stream s)
{
    (void)s;
    const struct delta_shape *n = &a->shape;
    const struct core c = CORE_OF(a);
    const int64_t tiles = chunk_count(n->dv, TILE);
    check(n);
    PARALLEL_CHUNKS(u, n->docs * n->heads * tiles)
    {
        const int64_t head = u / tiles, doc = head / n->heads, h = head % n->heads, column = u % tiles * TILE;
        const struct place p = {.begin = a->cu_seqlens[doc],
                                .end = a->cu_seqlens[doc + 1],
                                .h = h,
                                .hk = h / (n->heads / n->heads_k),
                                .column = column,
                                .columns = n->dv - column < TILE ? n->dv - column : TILE};
        forward_unit(a, &c, &p, head * n->dk * n->dv);
    }
    return STATUS_OK;
}

/* ---- backward */

/* A document's rows for one key head, and the current tile. Lines are [pad] floats. */
struct back {
    float *q, *k, *dq, *dk, *rho; /* [len] lines; rho [2 len]: of q, then of k */
    float *dg, *dbeta;            /* [len], of the current value head */
    float *marks;                 /* [chunks][TILE] lines: states before each chunk */
    float *before;                /* [CHUNK][TILE] lines: states before each row of a chunk */
    float *states, *d_states;     /* [TILE] lines */
    float *v, *d_o, *dv;          /* [TILE] */
};

static struct back back_open(const struct core *c, int64_t len)
{
    const int64_t lines = 4 * len + (chunk_count(len, CHUNK) + CHUNK + 2) * TILE, rest = 4 * len + 3 * TILE;
    float *at = workspace_get(WORKSPACE_MINE, (size_t)(lines * c->pad + rest) * sizeof *at);
    struct back b = {.q = at};
    b.k = b.q + len * c->pad;
    b.dq = b.k + len * c->pad;
    b.dk = b.dq + len * c->pad;
    b.marks = b.dk + len * c->pad;
    b.before = b.marks + chunk_count(len, CHUNK) * TILE * c->pad;
    b.states = b.before + CHUNK * TILE * c->pad;
    b.d_states = b.states + TILE * c->pad;
    b.v = b.d_states + TILE * c->pad;
    b.d_o = b.v + TILE;
    b.dv = b.d_o + TILE;
    b.rho = b.dv + TILE;
    b.dg = b.rho + 2 * len;
    b.dbeta = b.dg + len;
    return b;
}

/* One column of one row of the backward. s: the state before the row. ds: in: gradient of the state after it;
 * out: of the state before it. */
VEC_INLINE void retreat_column(const struct core *c, const struct row *r, const float *s, float *ds,
                               float *dq, float *dk, const struct back *b, int64_t j, float *dg, float *dbeta)
{
    const int64_t pad = c->pad;
    const float v = b->v[j], d_o = b->d_o[j];
    float error = v, u = v;
    if (c->beta) {
        error = v - r->decay * dot(s, r->k, pad);
        u = r->beta * error;
    }
    vf du_sum = {0};
    for (int64_t i = 0; i < pad; i += VEC) {
        const vf k = vec_load(r->k, i, VEC, DTYPE_F32),
                 after = vec_load(s, i, VEC, DTYPE_F32) * r->decay + k * u;
        const vf d = vec_load(ds, i, VEC, DTYPE_F32) + vec_load(r->q, i, VEC, DTYPE_F32) * d_o;
        vec_store(dq, i, VEC, DTYPE_F32, vec_load(dq, i, VEC, DTYPE_F32) + after * d_o);
        vec_store(ds, i, VEC, DTYPE_F32, d);
        du_sum += d * k;
    }
    const float du = vec_sum(du_sum), derror = c->beta ? r->beta * du : 0;
    vf decay_sum = {0};
    for (int64_t i = 0; i < pad; i += VEC) {
        const vf x = vec_load(s, i, VEC, DTYPE_F32) * r->decay, full = vec_load(ds, i, VEC, DTYPE_F32);
        vec_store(dk, i, VEC, DTYPE_F32, vec_load(dk, i, VEC, DTYPE_F32) + full * u - x * derror);
        const vf d = full - vec_load(r->k, i, VEC, DTYPE_F32) * derror;
        decay_sum += d * x;
        vec_store(ds, i, VEC, DTYPE_F32, d * r->decay);
    }
    *dg += vec_sum(decay_sum);
    *dbeta += du * error;
    b->dv[j] = c->beta ? derror : du;
}

static void load_columns(const struct delta_bwd_args *a, const struct core *c, const struct place *p,
                         const struct back *b, int64_t t)
{
    load_any(c->v, t * c->v_stride + p->h * c->n.dv + p->column, p->columns, TILE, c->n.dt, b->v);
    load_any(a->do_, (t * c->n.heads + p->h) * c->n.dv + p->column, p->columns, TILE, c->n.dt, b->d_o);
    for (int64_t j = 0; j < p->columns; j++) b->d_o[j] *= (float)a->scale;
}

static struct row row_at(const struct core *c, const struct place *p, const struct back *b, int64_t i)
{
    return row_of(c, p->begin + i, p->h, b->q + i * c->pad, b->k + i * c->pad);
}

/* Backward over rows [first, last) of a document, from the states before `first`. */
static void retreat_chunk(const struct delta_bwd_args *a, const struct core *c, const struct place *p,
                          const struct back *b, struct span rows)
{
    const size_t line = (size_t)c->pad, tile = (size_t)TILE * line;
    memcpy(b->states, b->marks + rows.begin / CHUNK * (int64_t)tile, tile * sizeof(float));
    for (int64_t i = rows.begin; i < rows.end; i++) {
        memcpy(b->before + (size_t)(i - rows.begin) * tile, b->states, tile * sizeof(float));
        const struct row r = row_at(c, p, b, i);
        load_columns(a, c, p, b, p->begin + i);
        advance(c, &r, b->v, p->columns, b->states, NULL);
    }
    for (int64_t i = rows.end - 1; i >= rows.begin; i--) {
        const struct row r = row_at(c, p, b, i);
        load_columns(a, c, p, b, p->begin + i);
        for (int64_t j = 0; j < p->columns; j++)
            retreat_column(c, &r, b->before + (size_t)(i - rows.begin) * tile + (size_t)j * line,
                           b->d_states + (size_t)j * line, b->dq + (size_t)i * line, b->dk + (size_t)i * line,
                           b, j, &b->dg[i], &b->dbeta[i]);
        store_any(a->dv, (p->begin + i) * a->dv_stride + p->h * c->n.dv + p->column, p->columns, c->n.dt,
                  b->dv);
    }
}

static void backward_tile(const struct delta_bwd_args *a, const struct core *c, const struct place *p,
                          const struct back *b)
{
    const int64_t len = p->end - p->begin, chunks = chunk_count(len, CHUNK), tile = TILE * c->pad;
    memset(b->states, 0, (size_t)tile * sizeof(float));
    memset(b->d_states, 0, (size_t)tile * sizeof(float));
    for (int64_t i = 0; i < len; i++) {
        if (i % CHUNK == 0) memcpy(b->marks + i / CHUNK * tile, b->states, (size_t)tile * sizeof(float));
        if (i / CHUNK == chunks - 1) break;
        const struct row r = row_at(c, p, b, i);
        load_columns(a, c, p, b, p->begin + i);
        advance(c, &r, b->v, p->columns, b->states, NULL);
    }
    for (int64_t chunk = chunks - 1; chunk >= 0; chunk--)
        retreat_chunk(a, c, p, b, chunk_span(chunk, len, CHUNK));
}

static void backward_head(const struct delta_bwd_args *a, const struct core *c, struct place p,
                          const struct back *b)
{
    const struct delta_shape *n = &c->n;
    const int64_t len = p.end - p.begin;
    memset(b->dg, 0, (size_t)(2 * len) * sizeof(float)); /* and dbeta */
    for (p.column = 0; p.column < n->dv; p.column += TILE) {
        p.columns = n->dv - p.column < TILE ? n->dv - p.column : TILE;
        backward_tile(a, c, &p, b);
    }
    for (int64_t i = 0; i < len; i++) {
        ((float *)a->dg)[(p.begin + i) * n->heads + p.h] = b->dg[i];
        if (a->dbeta) ((float *)a->dbeta)[(p.begin + i) * n->heads + p.h] = b->dbeta[i];
    }
}

/* From the gradient d of a normalised row y = rho x to that of x, in place. */
static void unit_bwd(const struct core *c, const float *y, float rho, float *d)
{
    if (!c->normalize) return;
    const float along = dot(y, d, c->pad);
    for (int64_t i = 0; i < c->pad; i += VEC)
        vec_store(d, i, VEC, DTYPE_F32,
                  (vec_load(d, i, VEC, DTYPE_F32) - vec_load(y, i, VEC, DTYPE_F32) * along) * rho);
}

static void backward_unit(const struct delta_bwd_args *a, const struct core *c, struct place p)
{
    const struct delta_shape *n = &c->n;
    const int64_t len = p.end - p.begin, group = n->heads / n->heads_k;
    if (len == 0) return;
    const struct back b = back_open(c, len);
    for (int64_t i = 0; i < len; i++) {
        b.rho[i] = load_unit(c, c->q, (p.begin + i) * c->q_stride + p.hk * n->dk, b.q + i * c->pad);
        b.rho[len + i] = load_unit(c, c->k, (p.begin + i) * c->k_stride + p.hk * n->dk, b.k + i * c->pad);
    }
    memset(b.dq, 0, (size_t)(2 * len * c->pad) * sizeof(float)); /* and dk */
    for (p.h = p.hk * group; p.h < (p.hk + 1) * group; p.h++) backward_head(a, c, p, &b);
    for (int64_t i = 0; i < len; i++) {
        unit_bwd(c, b.q + i * c->pad, b.rho[i], b.dq + i * c->pad);
        unit_bwd(c, b.k + i * c->pad, b.rho[len + i], b.dk + i * c->pad);
        store_any(a->dq, (p.begin + i) * a->dq_stride + p.hk * n->dk, n->dk, n->dt, b.dq + i * c->pad);
        store_any(a->dk, (p.begin + i) * a->dk_stride + p.hk * n->dk, n->dk, n->dt, b.dk + i * c->pad);
    }
}

static status delta_bwd(const struct delta_bwd_args *a, dev_stream s)
{
    (void)s;
    const struct delta_shape *n = &a->shape;
    const struct core c = CORE_OF(a);
    check(n);
    PARALLEL_CHUNKS(u, n->docs * n->heads_k)
    {
        const int64_t doc = u / n->heads_k;
        backward_unit(
            a, &c,
            (struct place){.begin = a->cu_seqlens[doc], .end = a->cu_seqlens[doc + 1], .hk = u % n->heads_k});
    }
    return STATUS_OK;
}

void SIMD(simd_gdn_delta)(struct ops *o)
{
    o->delta_fwd = delta_fwd;
    o->delta_bwd = delta_bwd;
}
