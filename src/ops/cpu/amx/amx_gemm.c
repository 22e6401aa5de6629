/* bf16 GEMMs on AMX: f32 sums of bf16 pairs in 16 x 16 tiles, with four accumulators (32 x 32 of c) at a time.
 *
 * A tile register has 16 rows of 64 bytes. Operand A is read as [line][32 k], operand B as [16 pairs of k][line];
 * each entry is a pair (k, k+1). Both are packed into panels of 32 lines, [k / 32][2 tiles][16][16 pairs], padded
 * with zeros:
 *
 *   packed B   shared: [k block][panel][k / 32]...     packed once per call by all threads
 *   packed A   per thread: [panel][k / 32]...          packed per chunk and k block
 *
 * One panel of B stays in L1 while the chunk's A streams from L2. The k blocks depend only on k, and an element's sum
 * goes through them in order. Neither threads nor the chunk grid therefore change a bit. Subnormal inputs count as
 * zero, as the instruction defines.
 *
 * FP8 operands are decoded during packing, with the scales in the packed values (simd/f8_vec.h): all else is the same. */
#include "base/clock.h"
#include "base/parallel.h"
#include "base/status.h"
#include "ops/cpu/amx/amx.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/workspace.h"

enum {
    KC = 768,              /* longest k block if there is only one: no partial sums */
    KC_OF_MANY = 512,      /* with several: a panel of B leaves space in L1 */
    PANEL = 32,            /* lines per panel */
    CHUNK_M = 256,         /* rows of c per chunk, halved for small problems */
    CHUNK_N = 1024,        /* columns, if c itself holds partial sums */
    CHUNK_N_LOCAL = 512,   /* columns, if a local f32 copy does */
    SHARED_MAX = 16 << 20, /* packed B per pass, bytes */
    STREAM_MIN = 16 << 20, /* elements of c */
    FEW_ROWS = 8
};

/* The k blocks of a matmul: equal lengths, whole tiles. */
struct blocks {
    int64_t length, count;
};

static struct blocks k_blocks(int64_t k)
{
    int64_t count = k <= KC ? 1 : chunk_count(k, KC_OF_MANY),
            length = chunk_count(chunk_count(k, count), AMX_K) * AMX_K;
    return (struct blocks){length, chunk_count(k, length)};
}

/* Layout of an operand. Line l, index p of k is at p + l ld if memory runs along k, else at l + p ld. */
struct source {
    const bf16 *at;
    int64_t ld;
    bool along;
};

/* Packs lines [0, lines) of k [0, depth) into consecutive panels, in memory order: rows of many lines, or
 * lines of many k. */
static void pack(struct source x, int64_t lines, int64_t depth, enum amx_side side, bf16 *dst)
{
    const int64_t steps = chunk_count(depth, AMX_K), panels = chunk_count(lines, PANEL);
    for (int64_t c = 0; c < steps * panels; c++) {
        const int64_t step = x.along ? c % steps : c / panels, panel = x.along ? c / steps : c % panels;
        const int64_t p = step * AMX_K;
        bf16 *to = dst + (panel * steps + step) * 2 * AMX_TILE;
        /* Rows of k are pages apart, so the hardware prefetcher does not follow them. */
        for (int64_t q = p + AMX_K; !x.along && q < p + 2 * AMX_K && q < depth; q++)
            __builtin_prefetch(x.at + q * x.ld + panel * PANEL);
        for (int64_t l = panel * PANEL; l < (panel + 1) * PANEL; l += AMX_LINES, to += AMX_TILE) {
            const bf16 *src = x.at + (x.along ? l * x.ld + p : p * x.ld + l);
            if (x.along)
                amx_pack_along(src, x.ld, lines - l, depth - p, side, to);
            else
                amx_pack_across(src, x.ld, lines - l, depth - p, side, to);
        }
    }
}

/* The same from FP8 codes, contiguous along k. */
static void pack_codes(const uint8_t *at, int64_t ld, int64_t lines, int64_t depth, enum amx_side side,
                       bf16 *dst, const struct f8_decoder *d)
{
    for (int64_t panel = 0; panel < lines; panel += PANEL)
        for (int64_t p = 0; p < depth; p += AMX_K)
            for (int64_t l = panel; l < panel + PANEL; l += AMX_LINES, dst += AMX_TILE)
                amx_pack_codes(at + l * ld + p, ld, lines - l, depth - p, side, dst, d);
}

/* Lines of an operand from its element `at` on. `exponent`: FP8 codes times 2^exponent. */
static void pack_operand(struct operand o, int64_t at, struct source x, int64_t lines, int64_t depth,
                         enum amx_side side, bf16 *dst, int exponent)
{
    if (o.scales == SCALES_TENSOR) {
        const struct f8_decoder d = f8_decoder(o.dt, exponent);
        pack_codes((const uint8_t *)o.data + at, x.ld, lines, depth, side, dst, &d);
        return;
    }
    x.at = (const bf16 *)o.data + at;
    pack(x, lines, depth, side, dst);
}

/* Epilogue of a block: out = bf16(tile (+ sum) (+ bias)); without `out`, sum = the same in f32. */
struct finish {
    const float *tile; /* [PANEL, PANEL] */
    float *sum;
    bf16 *out;
    const bf16 *bias;
    int64_t sum_ld, out_ld, rows, cols;
    bool add;    /* read sum */
    bool stream; /* sum is aligned, of full width and read late: streaming stores */
};

static inline __attribute__((always_inline)) void finish_row(const struct finish *f, int64_t i)
{
    const __mmask32 mask = amx_mask(f->cols);
    const __mmask16 lo = (__mmask16)mask, hi = (__mmask16)(mask >> 16);
    __m512 x = _mm512_load_ps(f->tile + i * PANEL), y = _mm512_load_ps(f->tile + i * PANEL + 16);
    float *sum = f->sum + i * f->sum_ld;
    if (f->add) {
        x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(lo, sum));
        y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(hi, sum + 16));
    }
    if (f->bias) {
        __m512 bx, by;
        amx_widen(_mm512_maskz_loadu_epi16(mask, f->bias), &bx, &by);
        x = _mm512_add_ps(x, bx);
        y = _mm512_add_ps(y, by);
    }
    if (f->out) {
        _mm512_mask_storeu_epi16(f->out + i * f->out_ld, mask, (__m512i)_mm512_cvtne2ps_pbh(y, x));
    } else if (f->stream) {
        _mm512_stream_ps(sum, x);
        _mm512_stream_ps(sum + 16, y);
    } else {
        _mm512_mask_storeu_ps(sum, lo, x);
        _mm512_mask_storeu_ps(sum + 16, hi, y);
    }
}

/* Prefetches row i of what finish_row will access; its rows are pages apart, so the hardware prefetcher does
 * not help. */
static inline __attribute__((always_inline)) void finish_prefetch(const struct finish *f, int64_t i)
{
    if (f->out) __builtin_prefetch(f->out + i * f->out_ld, 1);
    if (f->stream || (f->out && !f->add)) return;
    __builtin_prefetch(f->sum + i * f->sum_ld, 1);
    __builtin_prefetch(f->sum + i * f->sum_ld + 16, 1);
}

/* The part of packed B that comes next, and how many of its lines each k step prefetches. */
struct ahead {
    const char *at;
    int64_t lines;
};

/* tile[32, 32] = A panel times B panel over `steps` tiles of k. Meanwhile finishes the block before it, a few
 * rows per step, and prefetches for this one. A comes from L2 and is loaded with a hint not to displace B in
 * L1: that took the bare k loop from 0.72 to 0.97 of its L1-resident speed at 16 steps (Sapphire Rapids, best
 * of 60 runs). Whole GEMMs stay well below that. */
__attribute__((noinline)) static void micro(int64_t steps, const bf16 *a, const bf16 *b, float *tile,
                                            const struct finish *before, const struct finish *now,
                                            struct ahead *next)
{
    const int64_t row = PANEL * (int64_t)sizeof *tile,
                  per_step = steps < PANEL / 2 ? (PANEL + steps - 1) / steps : 2;
    int64_t done = 0;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t p = 0; p < steps; p++, a += 2 * AMX_TILE, b += 2 * AMX_TILE) {
        _tile_stream_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + AMX_TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_stream_loadd(5, a + AMX_TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        for (int64_t i = 0; i < next->lines; i++, next->at += 64) __builtin_prefetch(next->at, 0, 2);
        const int64_t stop = done + per_step < before->rows ? done + per_step : before->rows;
        for (; done < stop; done++) finish_row(before, done);
        for (int64_t i = p * per_step; i < (p + 1) * per_step && i < now->rows; i++) finish_prefetch(now, i);
    }
    _tile_stored(0, tile, row);
    _tile_stored(1, tile + 16, row);
    _tile_stored(2, tile + 16 * PANEL, row);
    _tile_stored(3, tile + 16 * PANEL + 16, row);
}

/* Packed B: each of its panels has `length` k per k block, without gaps. */
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
    int exponent; /* FP8: of a's packed values */
};

/* One k block of a chunk. `to`: where its first element goes. */
static void chunk_block(const struct chunk *w, const bf16 *a, const bf16 *b, int64_t steps, struct finish to)
{
    const int64_t m = w->rows.end - w->rows.begin, n = w->cols.end - w->cols.begin,
                  panel = steps * 2 * AMX_TILE;
    _Alignas(64) float tiles[2][PANEL * PANEL];
    struct finish last = {.rows = 0};
    int parity = 0;
    /* A panel of B is 32 lines per step over k; the panel after this one comes from beyond L2. */
    const int64_t share = chunk_count(32, chunk_count(m, PANEL));
    for (int64_t j = 0; j < n; j += PANEL, b += panel) {
        struct ahead next = {(const char *)(b + panel), j + PANEL < n ? share : 0};
        for (int64_t i = 0; i < m; i += PANEL, parity ^= 1) {
            struct finish now = to;
            now.tile = tiles[parity];
            now.rows = m - i < PANEL ? m - i : PANEL;
            now.cols = n - j < PANEL ? n - j : PANEL;
            now.sum = to.sum + i * to.sum_ld + j;
            if (to.out) now.out = to.out + i * to.out_ld + j;
            if (to.bias) now.bias = to.bias + j;
            now.stream = to.stream && now.cols == PANEL;
            micro(steps, a + i / PANEL * panel, b, tiles[parity], &last, &now, &next);
            last = now;
        }
    }
    for (int64_t i = 0; i < last.rows; i++) finish_row(&last, i);
}

/* What the sums of a chunk are added to. */
static void chunk_addend(const struct chunk *w, float *sum, int64_t ld)
{
    const struct gemm_args *g = w->g;
    const int64_t n = w->cols.end - w->cols.begin;
    for (int64_t i = w->rows.begin; i < w->rows.end; i++, sum += ld) {
        const int64_t at = i * g->n + w->cols.begin;
        if (g->cdt == DTYPE_F32)
            memcpy(sum, (const float *)gemm_addend(g) + at, (size_t)n * sizeof *sum);
        else
            for (int64_t j = 0; j < n; j++) sum[j] = bf16_to_f32(((const bf16 *)gemm_addend(g))[at + j]);
    }
}

static void chunk_run(const struct chunk *w)
{
    const struct gemm_args *g = w->g;
    const struct blocks *k = &w->b->k;
    const int64_t m = w->rows.end - w->rows.begin, lda = g->a.trans ? g->m : g->k;
    const size_t a_bytes = CHUNK_M * KC * sizeof(bf16);
    char *mine = workspace_get(WORKSPACE_MINE, a_bytes + CHUNK_M * CHUNK_N_LOCAL * sizeof(float));
    bf16 *a = (bf16 *)(void *)mine;
    const bool wide = g->cdt == DTYPE_F32, added = gemm_addend(g) != NULL;
    const int64_t first = w->rows.begin * g->n + w->cols.begin;
    struct finish to = {.sum = (float *)(void *)(mine + a_bytes), .sum_ld = CHUNK_N_LOCAL, .out_ld = g->n};
    if (wide) to.sum = (float *)g->c + first, to.sum_ld = g->n;
    if (added) chunk_addend(w, to.sum, to.sum_ld);
    to.stream = wide && k->count == 1 && g->accum == ACCUM_STORE && !added && g->n % 16 == 0 &&
                g->m * g->n >= STREAM_MIN && (uintptr_t)g->c % 64 == 0;
    for (int64_t block = 0; block < k->count; block++) {
        struct span p = chunk_span(block, g->k, k->length);
        const int64_t steps = chunk_count(p.end - p.begin, AMX_K);
        const int64_t at = g->a.trans ? p.begin * lda + w->rows.begin : w->rows.begin * lda + p.begin;
        pack_operand(g->a, at, (struct source){.ld = lda, .along = !g->a.trans}, m, p.end - p.begin, AMX_A, a,
                     w->exponent);
        to.add = block > 0 || g->accum == ACCUM_ADD || added;
        if (block == k->count - 1) {
            to.out = wide ? NULL : (bf16 *)g->c + first;
            to.bias = gemm_bias(g) ? (const bf16 *)gemm_bias(g) + w->cols.begin : NULL;
        }
        chunk_block(w, a, packed_panel(w->b, block, (w->cols.begin - w->b->cols.begin) / PANEL, steps), steps,
                    to);
    }
}

static void pack_b(const struct gemm_args *g, const struct packed *b)
{
    enum { GRAIN = 8 }; /* panels */
    const int64_t ldb = g->b.trans ? g->k : g->n, groups = chunk_count(b->panels, GRAIN);
    const int exponent = f8_exponents(g).b;
    PARALLEL_CHUNKS(c, groups * b->k.count)
    {
        const int64_t block = c / groups, panel = c % groups * GRAIN, col = b->cols.begin + panel * PANEL;
        const int64_t lines = b->cols.end - col < GRAIN * PANEL ? b->cols.end - col : GRAIN * PANEL;
        struct span p = chunk_span(block, g->k, b->k.length);
        pack_operand(g->b, g->b.trans ? col * ldb + p.begin : p.begin * ldb + col,
                     (struct source){.ld = ldb, .along = g->b.trans}, lines, p.end - p.begin, AMX_B,
                     packed_panel(b, block, panel, chunk_count(p.end - p.begin, AMX_K)), exponent);
    }
}

/* All rows of c, the columns of `b`. */
static void part_run(const struct gemm_args *g, const struct packed *b)
{
    pack_b(g, b);
    const bool local = g->cdt != DTYPE_F32 && (b->k.count > 1 || gemm_addend(g));
    const int64_t grain_n = local ? CHUNK_N_LOCAL : CHUNK_N;
    const int exponent = f8_exponents(g).a;
    const int64_t width = b->cols.end - b->cols.begin, strips = chunk_count(width, grain_n);
    int64_t grain_m = CHUNK_M;
    while (grain_m > PANEL && strips * chunk_count(g->m, grain_m) < 4 * parallel_threads()) grain_m /= 2;
    const int64_t bands = chunk_count(g->m, grain_m);
    PARALLEL_CHUNKS(c, strips * bands)
    {
        struct span cols = chunk_span(c / bands, width, grain_n);
        const struct chunk w = {.g = g,
                                .b = b,
                                .rows = chunk_span(c % bands, g->m, grain_m),
                                .cols = {cols.begin + b->cols.begin, cols.end + b->cols.begin},
                                .exponent = exponent};
        amx_begin();
        chunk_run(&w);
        amx_end();
        _mm_sfence(); /* streaming stores */
    }
}

/* Few rows: another set does them. */
static status others(const struct gemm_args *g, dev_stream s)
{
    struct ops o;
    simd_gemm_v4(&o);
    return o.gemm(g, s);
}

static status gemm(const struct gemm_args *g, dev_stream s)
{
    const bool fp8 = gemm_fp8(g);
    if (fp8) f8_check(g);
    CHECK(fp8 || gemm_dt(g) == DTYPE_BF16, "GEMM of %s on AMX", dtype_name(g->a.dt));
    if (g->m <= FEW_ROWS) return others(g, s);
    CHECK(g->cdt == DTYPE_BF16 || g->cdt == DTYPE_F32, "GEMM of BF16 into %s", dtype_name(g->cdt));
    CHECK(g->accum == ACCUM_STORE || g->cdt == DTYPE_F32, "accumulation in %s", dtype_name(g->cdt));
    CHECK(g->epilogue.kind == EPILOGUE_NONE || g->epilogue.kind == EPILOGUE_BIAS ||
              (fp8 && g->epilogue.kind == EPILOGUE_ADD),
          "the fast set fuses a bias alone");
    CHECK(g->m >= 0 && g->n >= 0 && g->k > 0, "GEMM %ld x %ld x %ld", (long)g->m, (long)g->n, (long)g->k);
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

double amx_peak(void)
{
    enum { STEPS = 8, CALLS = 1000, RUNS = 20 };
    double best = 1e9;
    for (int r = 0; r < RUNS; r++) {
        double begin = clock_s();
        PARALLEL_CHUNKS(c, parallel_threads())
        {
            _Alignas(64) bf16 a[STEPS * 2 * AMX_TILE], b[STEPS * 2 * AMX_TILE];
            _Alignas(64) float tile[PANEL * PANEL];
            const struct finish none = {.rows = 0};
            struct ahead nothing = {0};
            for (int i = 0; i < STEPS * 2 * AMX_TILE; i++) a[i] = b[i] = bf16_from_f32(0.75f);
            amx_begin();
            for (int i = 0; i < CALLS; i++) micro(STEPS, a, b, tile, &none, &none, &nothing);
            amx_end();
        }
        double time = clock_s() - begin;
        if (time < best) best = time;
    }
    return 2.0 * PANEL * PANEL * AMX_K * STEPS * CALLS * parallel_threads() / best;
}
