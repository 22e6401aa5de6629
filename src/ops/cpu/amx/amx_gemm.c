/* Matrix products of bf16 on AMX: f32 sums of bf16 pairs in 16 x 16 tiles, four accumulators (32 x 32 of c) at a time.
 *
 * A tile register is 16 rows of 64 bytes. Operand A is read as [line][32 k], operand B as [16 pairs of k][line], each entry a
 * pair (k, k+1). Both are packed into panels of 32 lines, [k / 32][2 tiles][16][16 pairs], zero-padded:
 *
 *   packed B   shared: [k block][panel][k / 32]...     made once per call by all threads
 *   packed A   a worker's own: [panel][k / 32]...      made per chunk and k block
 *
 * One panel of B stays in L1 while the chunk's A streams from L2. The k blocks depend on k alone and an element's sum runs over
 * them in order, so neither threads nor the chunk grid change a bit. Subnormal inputs count as zero, as the instruction defines. */
#include "base/parallel.h"
#include "base/status.h"
#include "ops/cpu/amx/amx.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/workspace.h"

enum {
    KC = 768,              /* longest k block */
    PANEL = 32,            /* lines per panel */
    CHUNK_M = 256,         /* rows of c per chunk, halved for small problems */
    CHUNK_N = 1024,        /* columns, when c itself holds partial sums */
    CHUNK_N_LOCAL = 512,   /* columns, when a local f32 copy does */
    SHARED_MAX = 16 << 20, /* bytes of packed B at a time */
    FEW_ROWS = 8
};

/* The k blocks of a product: equal lengths, whole tiles. */
struct blocks {
    int64_t length, count;
};

static struct blocks k_blocks(int64_t k)
{
    int64_t count = chunk_count(k, KC), length = chunk_count(chunk_count(k, count), AMX_K) * AMX_K;
    return (struct blocks){length, chunk_count(k, length)};
}

/* Where an operand lies: line l, index p of k at p + l ld when memory runs along k, else at l + p ld. */
struct operand {
    const bf16 *at;
    int64_t ld;
    bool along;
};

static void pack_panel(struct operand x, int64_t lines, int64_t depth, enum amx_side side, bf16 *dst)
{
    for (int64_t p = 0; p < depth; p += AMX_K) {
        for (int64_t l = 0; l < PANEL; l += AMX_LINES, dst += AMX_TILE) {
            const bf16 *src = x.at + (x.along ? l * x.ld + p : p * x.ld + l);
            if (x.along)
                amx_pack_along(src, x.ld, lines - l, depth - p, side, dst);
            else
                amx_pack_across(src, x.ld, lines - l, depth - p, side, dst);
        }
    }
}

/* c[32, 32] (+)= A panel times B panel over `steps` tiles of k. */
static void micro(int64_t steps, const bf16 *a, const bf16 *b, float *c, int64_t ldc, bool add)
{
    const int64_t row = ldc * (int64_t)sizeof *c;
    if (add) {
        _tile_loadd(0, c, row);
        _tile_loadd(1, c + 16, row);
        _tile_loadd(2, c + 16 * ldc, row);
        _tile_loadd(3, c + 16 * ldc + 16, row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < steps; p++, a += 2 * AMX_TILE, b += 2 * AMX_TILE) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + AMX_TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + AMX_TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, row);
    _tile_stored(1, c + 16, row);
    _tile_stored(2, c + 16 * ldc, row);
    _tile_stored(3, c + 16 * ldc + 16, row);
}

/* dst[rows, cols] = bf16(src (+ bias)). */
static void narrow(const float *src, int64_t ld, int64_t rows, int64_t cols, const bf16 *bias, bf16 *dst,
                   int64_t ldd)
{
    for (int64_t j = 0; j < cols; j += 32) {
        __mmask32 mask = cols - j >= 32 ? 0xffffffffu : (1u << (cols - j)) - 1;
        __m512 lo = _mm512_setzero_ps(), hi = lo;
        if (bias) amx_widen(_mm512_maskz_loadu_epi16(mask, bias + j), &lo, &hi);
        for (int64_t i = 0; i < rows; i++) {
            __m512 x = _mm512_add_ps(_mm512_loadu_ps(src + i * ld + j), lo);
            __m512 y = _mm512_add_ps(_mm512_loadu_ps(src + i * ld + j + 16), hi);
            _mm512_mask_storeu_epi16(dst + i * ldd + j, mask, (__m512i)_mm512_cvtne2ps_pbh(y, x));
        }
    }
}

/* c[rows, cols] (+)= src, f32. */
static void merge(const float *src, int64_t rows, int64_t cols, float *c, int64_t ldc, bool add)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++)
            c[i * ldc + j] = src[i * PANEL + j] + (add ? c[i * ldc + j] : 0.0f);
    }
}

static void bias_begin(const struct gemm_args *g, struct span rows, struct span cols)
{
    for (int64_t i = rows.begin; i < rows.end; i++) {
        for (int64_t j = cols.begin; j < cols.end; j++) {
            float *c = (float *)g->c + i * g->n + j, b = bf16_to_f32(((const bf16 *)g->bias)[j]);
            *c = g->accum == ACCUM_ADD ? *c + b : b;
        }
    }
}

/* Packed B: every k block has room for `length` k in each of its panels; panels lie without gaps. */
struct packed {
    bf16 *base;
    struct blocks k;
    struct span cols; /* of c */
    int64_t panels;
};

static bf16 *packed_panel(const struct packed *b, int64_t block, int64_t panel, int64_t steps)
{
    return b->base + block * b->panels * PANEL * b->k.length + panel * PANEL * steps * AMX_K;
}

struct chunk {
    const struct gemm_args *g;
    const struct packed *b;
    struct span rows, cols;
    float *sums; /* partial sums of the chunk, row stride ld; NULL: one k block and c is bf16 */
    int64_t ld;
};

static void chunk_block(const struct chunk *w, const bf16 *a, const bf16 *b, int64_t steps, bool add)
{
    const struct gemm_args *g = w->g;
    const int64_t m = w->rows.end - w->rows.begin, n = w->cols.end - w->cols.begin,
                  panel = steps * 2 * AMX_TILE;
    _Alignas(64) float tile[PANEL * PANEL];
    for (int64_t j = 0; j < n; j += PANEL, b += panel) {
        const int64_t cols = n - j < PANEL ? n - j : PANEL;
        for (int64_t i = 0; i < m; i += PANEL) {
            const int64_t rows = m - i < PANEL ? m - i : PANEL;
            const bf16 *ai = a + i / PANEL * panel;
            if (w->sums && rows == PANEL && cols == PANEL) {
                micro(steps, ai, b, w->sums + i * w->ld + j, w->ld, add);
                continue;
            }
            micro(steps, ai, b, tile, PANEL, false);
            if (w->sums) {
                merge(tile, rows, cols, w->sums + i * w->ld + j, w->ld, add);
            } else {
                bf16 *c = (bf16 *)g->c + (w->rows.begin + i) * g->n + w->cols.begin + j;
                narrow(tile, PANEL, rows, cols, g->bias ? (const bf16 *)g->bias + w->cols.begin + j : NULL, c,
                       g->n);
            }
        }
    }
}

static void chunk_run(struct chunk *w)
{
    const struct gemm_args *g = w->g;
    const struct blocks *k = &w->b->k;
    const int64_t m = w->rows.end - w->rows.begin, n = w->cols.end - w->cols.begin,
                  lda = g->trans_a ? g->m : g->k;
    const size_t a_bytes = CHUNK_M * KC * sizeof(bf16);
    char *mine = workspace_get(WORKSPACE_MINE, a_bytes + CHUNK_M * CHUNK_N_LOCAL * sizeof(float));
    bf16 *a = (bf16 *)(void *)mine;
    const bool wide = g->cdt == DTYPE_F32;
    if (wide)
        w->sums = (float *)g->c + w->rows.begin * g->n + w->cols.begin, w->ld = g->n;
    else if (k->count > 1)
        w->sums = (float *)(void *)(mine + a_bytes), w->ld = CHUNK_N_LOCAL;
    if (wide && g->bias) bias_begin(g, w->rows, w->cols);
    for (int64_t block = 0; block < k->count; block++) {
        struct span p = chunk_span(block, g->k, k->length);
        const int64_t steps = chunk_count(p.end - p.begin, AMX_K);
        for (int64_t i = 0; i < m; i += PANEL) {
            const int64_t row = w->rows.begin + i;
            const bf16 *at = (const bf16 *)g->a + (g->trans_a ? p.begin * lda + row : row * lda + p.begin);
            pack_panel((struct operand){at, lda, !g->trans_a}, m - i, p.end - p.begin, AMX_A,
                       a + i * steps * AMX_K);
        }
        const bool add = block > 0 || (wide && (g->bias || g->accum == ACCUM_ADD));
        chunk_block(w, a, packed_panel(w->b, block, (w->cols.begin - w->b->cols.begin) / PANEL, steps), steps,
                    add);
    }
    if (!wide && w->sums) {
        bf16 *c = (bf16 *)g->c + w->rows.begin * g->n + w->cols.begin;
        narrow(w->sums, w->ld, m, n, g->bias ? (const bf16 *)g->bias + w->cols.begin : NULL, c, g->n);
    }
}

static void pack_b(const struct gemm_args *g, const struct packed *b)
{
    const int64_t ldb = g->trans_b ? g->k : g->n;
    PARALLEL_CHUNKS(c, b->panels * b->k.count)
    {
        const int64_t block = c / b->panels, panel = c % b->panels, col = b->cols.begin + panel * PANEL;
        struct span p = chunk_span(block, g->k, b->k.length);
        const bf16 *at = (const bf16 *)g->b + (g->trans_b ? col * ldb + p.begin : p.begin * ldb + col);
        pack_panel((struct operand){at, ldb, g->trans_b}, b->cols.end - col, p.end - p.begin, AMX_B,
                   packed_panel(b, block, panel, chunk_count(p.end - p.begin, AMX_K)));
    }
}

/* All rows of c, the columns of `b`. */
static void part_run(const struct gemm_args *g, const struct packed *b)
{
    pack_b(g, b);
    const int64_t grain_n = g->cdt == DTYPE_F32 || b->k.count == 1 ? CHUNK_N : CHUNK_N_LOCAL;
    const int64_t width = b->cols.end - b->cols.begin, strips = chunk_count(width, grain_n);
    int64_t grain_m = CHUNK_M;
    while (grain_m > PANEL && strips * chunk_count(g->m, grain_m) < 4 * parallel_threads()) grain_m /= 2;
    const int64_t bands = chunk_count(g->m, grain_m);
    PARALLEL_CHUNKS(c, strips * bands)
    {
        struct span cols = chunk_span(c / bands, width, grain_n);
        struct chunk w = {.g = g,
                          .b = b,
                          .rows = chunk_span(c % bands, g->m, grain_m),
                          .cols = {cols.begin + b->cols.begin, cols.end + b->cols.begin}};
        amx_begin();
        chunk_run(&w);
        amx_end();
    }
}

/* What is not ours: F32, and few rows. */
static status others(const struct gemm_args *g, dev_stream s)
{
    struct ops o;
    simd_gemm_v4(&o);
    return o.gemm(g, s);
}

static status gemm(const struct gemm_args *g, dev_stream s)
{
    if (g->dt != DTYPE_BF16 || g->m <= FEW_ROWS) return others(g, s);
    CHECK(g->cdt == DTYPE_BF16 || g->cdt == DTYPE_F32, "product of BF16 into %s", dtype_name(g->cdt));
    CHECK(g->accum == ACCUM_STORE || g->cdt == DTYPE_F32, "accumulation in %s", dtype_name(g->cdt));
    CHECK(g->m >= 0 && g->n >= 0 && g->k > 0, "product %ld x %ld x %ld", (long)g->m, (long)g->n, (long)g->k);
    struct packed b = {.k = k_blocks(g->k)};
    const int64_t depth = b.k.count * b.k.length, fit = SHARED_MAX / (int64_t)sizeof(bf16) / depth;
    const int64_t width = fit < CHUNK_N ? CHUNK_N : fit / CHUNK_N * CHUNK_N;
    for (int64_t j = 0; j < g->n; j += width) {
        b.cols = (struct span){j, j + width < g->n ? j + width : g->n};
        b.panels = chunk_count(b.cols.end - b.cols.begin, PANEL);
        b.base = workspace_get(WORKSPACE_SHARED, (size_t)(b.panels * PANEL * depth) * sizeof(bf16));
        part_run(g, &b);
    }
    return STATUS_OK;
}

void amx_gemm(struct ops *o)
{
    o->gemm = gemm;
}
