/* GEMMs in f32, for F32 and BF16 operands (BF16 is widened during packing), after BLIS (Van Zee & van de Geijn, TOMS
 * 2015). Both operands are packed such that the micro-kernel (gemm_kernel.h), MR x NR accumulators in registers, reads
 * them sequentially. Compiled once more for ARM with bf16, for BF16 operands alone, which then stay BF16.
 *
 *   packed B   shared: [k block][panel of NR columns][k][NR]     packed once per call by all threads
 *   packed A   per thread: [panel of MR rows][k][MR]             packed per chunk and k block
 *
 * A panel of B (NR columns) stays in L1 while the chunk's A streams from L2. From both the micro-kernel runs near its
 * peak, so the goal is to have data in the cache when it is needed: packing prefetches memory, and a micro-kernel
 * call starts by prefetching its part of c. k is cut into equal blocks of at most KC_MAX, depending only on k, and
 * the sum of an element goes through k in order, whatever the chunk grid. Neither threads nor the grid therefore
 * change a bit. GEMMs of few rows (generation) are memory bound: W is then read in place, once.
 *
 * FP8 operands are decoded during packing, with the scales in the packed values (f8_vec.h): all else is the same. */
#include "base/clock.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/simd/f8_vec.h"
#include "ops/cpu/simd/gemm_kernel.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/transpose.h"
#include "base/parallel.h"
#include "base/status.h"
#include "ops/cpu/workspace.h"

#include <assert.h>

enum { CHUNK_M = 96 / MR * MR * (NR == 48 ? 2 : 1), CHUNK_N = 768, SHARED_MAX = 16 << 20, FEW_ROWS = 8 };
static_assert(CHUNK_N % NR == 0 && CHUNK_M % MR == 0, "chunks are whole panels");

/* rows x cols of f32 to bf16. */
static void narrow(const float *src, int64_t ld, int64_t rows, int64_t cols, bf16 *dst, int64_t ldd)
{
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            uint32_t u;
            memcpy(&u, &src[i * ld + j], 4);
            uint32_t nan = (u & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0;
            uint32_t r = nan ? u | nan : u + 0x7fffu + (u >> 16 & 1);
            dst[i * ldd + j] = (bf16)(r >> 16);
        }
    }
}

/* What a chunk starts from: zeros, the bias, an addend, or what c holds; returns whether the matmuls are added to it. */
static bool chunk_begin(const struct gemm_args *g, float *c, int64_t ldc, struct span rows, struct span cols)
{
    if (g->accum == ACCUM_ADD && !gemm_bias(g)) return true;
    for (int64_t i = 0; gemm_addend(g) && i < rows.end - rows.begin; i++) {
        for (int64_t j = 0; j < cols.end - cols.begin; j++)
            c[i * ldc + j] = load1(gemm_addend(g), (rows.begin + i) * g->n + cols.begin + j, g->cdt);
    }
    if (gemm_addend(g)) return true;
    if (!gemm_bias(g)) return false;
    for (int64_t i = 0; i < rows.end - rows.begin; i++) {
        for (int64_t j = 0; j < cols.end - cols.begin; j++) {
            float b = load1(gemm_bias(g), cols.begin + j, gemm_bias_dt(g));
            c[i * ldc + j] = g->accum == ACCUM_ADD ? c[i * ldc + j] + b : b;
        }
    }
    return true;
}

/* Packed B: the k blocks of `k` of the columns `cols`, in `panels` panels. */
struct packed {
    elem *base;
    struct span cols, k;
    int64_t panels;
};

static const elem *packed_at(const struct packed *b, int64_t p, int64_t kc, int64_t col)
{
    return b->base + (p - b->k.begin) * b->panels * NR + (col - b->cols.begin) * kc;
}

struct chunk {
    const struct gemm_args *g;
    const struct packed *b;
    struct span rows, cols;
    int exponent; /* FP8: of a's packed values */
};

/* The blocks of k are equal but for the last, and whole vectors of packing. */
static int64_t k_step(int64_t k)
{
    const int64_t step = chunk_count(k, chunk_count(k, KC_MAX));
    return (step + 7) / 8 * 8;
}

/* The depth of a panel of kc. */
static int64_t in_units(int64_t kc)
{
    return (kc + K_UNIT - 1) / K_UNIT * K_UNIT;
}

/* Index in a's memory of op(a)'s [row, p]. */
static int64_t a_index(const struct gemm_args *g, int64_t row, int64_t p)
{
    return g->a.trans ? p * g->m + row : row * g->k + p;
}

/* The edge of a chunk with less than MR rows or NR columns. */
static void micro_edge(int64_t m, int64_t n, int64_t kc, const elem *a, const elem *b, float *c, int64_t ldc,
                       bool add)
{
    _Alignas(64) float edge[MR * NR];
    micro(kc, a, b, edge, NR, false, b);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++)
            c[i * ldc + j] = add ? c[i * ldc + j] + edge[i * NR + j] : edge[i * NR + j];
    }
}

/* c (+)= packed a times packed b, panels of depth kc. The first matmuls of a panel of B prefetch the next one. */
static void block_run(int64_t m, int64_t n, int64_t kc, const elem *a, const elem *b, float *c, int64_t ldc,
                      bool add)
{
    enum { CALLS = NR / AHEAD };
    for (int64_t j = 0; j < n; j += NR, b += kc * NR) {
        const int64_t nr = n - j < NR ? n - j : NR;
        const elem *next = nr == n - j ? b : b + kc * NR;
        for (int64_t i = 0; i < m; i += MR) {
            const int64_t mr = m - i < MR ? m - i : MR;
            float *to = c + i * ldc + j;
            if (mr == MR && nr == NR)
                micro(kc, a + i * kc, b, to, ldc, add, i < CALLS * MR ? next + i / MR * kc * AHEAD : b);
            else
                micro_edge(mr, nr, kc, a + i * kc, b, to, ldc, add);
        }
    }
}

static void chunk_run(const struct chunk *w)
{
    const struct gemm_args *g = w->g;
    const int64_t m = w->rows.end - w->rows.begin, n = w->cols.end - w->cols.begin;
    elem *a = workspace_get(WORKSPACE_MINE, (size_t)(CHUNK_M * KC_MAX + REACH) * sizeof *a +
                                                (size_t)(CHUNK_M * CHUNK_N) * sizeof(float));
    const bool wide = g->cdt == DTYPE_F32;
    float *c = wide ? (float *)g->c + w->rows.begin * g->n + w->cols.begin
                    : (float *)(void *)(a + CHUNK_M * KC_MAX + REACH);
    const int64_t ldc = wide ? g->n : CHUNK_N;
    bool add = w->b->k.begin > 0 || chunk_begin(g, c, ldc, w->rows, w->cols);
    const int64_t step = k_step(g->k), end = w->b->k.end;
    for (int64_t p = w->b->k.begin; p < end; p += step, add = true) {
        const int64_t kc = end - p < step ? end - p : step;
        pack(g->a.data, a_index(g, w->rows.begin, p), g->a.trans ? g->m : g->k, !g->a.trans, m, kc, MR, a,
             g->a.dt, w->exponent);
        block_run(m, n, in_units(kc), a, packed_at(w->b, p, in_units(kc), w->cols.begin), c, ldc, add);
    }
    if (!wide) narrow(c, ldc, m, n, (bf16 *)g->c + w->rows.begin * g->n + w->cols.begin, g->n);
}

static void pack_b(const struct gemm_args *g, const struct packed *b)
{
    enum { GROUP = 4 }; /* panels */
    const int64_t ldb = g->b.trans ? g->k : g->n, groups = chunk_count(b->panels, GROUP), step = k_step(g->k);
    const int exponent = f8_exponents(g).b;
    PARALLEL_CHUNKS(c, groups * chunk_count(b->k.end - b->k.begin, step))
    {
        const struct span k = chunk_span(c / groups, b->k.end - b->k.begin, step),
                          cols = chunk_span(c % groups, b->cols.end - b->cols.begin, GROUP * NR);
        const int64_t p = b->k.begin + k.begin, j = b->cols.begin + cols.begin, kc = k.end - k.begin;
        pack(g->b.data, g->b.trans ? j * ldb + p : p * ldb + j, ldb, g->b.trans, cols.end - cols.begin, kc,
             NR, b->base + k.begin * b->panels * NR + cols.begin * in_units(kc), g->b.dt, exponent);
    }
}

/* Into how many bands the rows are cut beside `strips` of columns. More chunks even out unequal processors, but a panel of B that is
 * fetched for few rows is not worth it: eight chunks for each thread while bands are tall, two while they are not low; and where
 * they are few, as many for each thread. */
static int64_t bands_of(int64_t panels, int64_t strips)
{
    enum { TALL = 8, LOW = 3, MANY = 8, FEW = 2 }; /* panels; chunks for each thread */
    const int64_t threads = parallel_threads();
    int64_t bands = chunk_count(panels * MR, CHUNK_M);
    while (bands < panels / TALL && strips * bands < MANY * threads) bands++;
    while (bands < panels / LOW && strips * bands < FEW * threads) bands++;
    while (bands < panels / LOW && strips * bands < MANY * threads && strips * bands % threads != 0) bands++;
    return bands;
}

/* All rows of c, the columns of `b`. */
static void part_run(const struct gemm_args *g, const struct packed *b)
{
    pack_b(g, b);
    const int64_t width = b->cols.end - b->cols.begin, strips = chunk_count(width, CHUNK_N),
                  panels = chunk_count(g->m, MR), bands = bands_of(panels, strips);
    const int exponent = f8_exponents(g).a;
    PARALLEL_CHUNKS(c, strips * bands)
    {
        const struct span cols = chunk_span(c / bands, width, CHUNK_N);
        const int64_t begin = c % bands * panels / bands * MR, end = (c % bands + 1) * panels / bands * MR;
        const struct chunk w = {.g = g,
                                .b = b,
                                .rows = {begin, end < g->m ? end : g->m},
                                .cols = {cols.begin + b->cols.begin, cols.end + b->cols.begin},
                                .exponent = exponent};
        chunk_run(&w);
    }
}

/* Few rows times W^T: dot products along the rows of W. Rows of a are widened once per call, and a piece of W once for
 * AT_ONCE of them. */
#ifdef __AVX512F__
enum { AT_ONCE = 4 }; /* sums of 4 vectors each: half the registers */
#else
enum { AT_ONCE = 2 };
#endif

static const float *few_widened(const struct gemm_args *g)
{
    if (g->a.dt == DTYPE_F32) return g->a.data;
    const int64_t count = g->m * g->k;
    float *wide = workspace_get(WORKSPACE_SHARED, (size_t)count * sizeof *wide);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) store8(wide + i, load8(g->a.data, i, DTYPE_BF16));
    for (; i < count; i++) wide[i] = load1(g->a.data, i, DTYPE_BF16);
    return wide;
}

static inline void few_store(const struct gemm_args *g, int64_t i, int64_t j, float sum, dtype dt)
{
    const int64_t at = i * g->n + j;
    if (gemm_bias(g)) sum += load1(gemm_bias(g), j, dt);
    if (g->accum == ACCUM_ADD) sum += ((const float *)g->c)[at];
    if (g->cdt == DTYPE_F32)
        ((float *)g->c)[at] = sum;
    else
        ((bf16 *)g->c)[at] = bf16_from_f32(sum);
}

/* Column j of `rows` rows from row i on; `rows` is a constant where this is inlined. */
static inline __attribute__((always_inline)) void few_dots(const struct gemm_args *g, const float *a,
                                                           int64_t i, int rows, int64_t j, dtype dt)
{
    f32x8 acc[AT_ONCE][4] = {0};
    int64_t p = 0;
    for (; p + 32 <= g->k; p += 32) {
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) {
            const f32x8 w = load8(g->b.data, j * g->k + p + 8 * u, dt);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                acc[r][u] = fused8(load8(a, (i + r) * g->k + p + 8 * u, DTYPE_F32), w, acc[r][u]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        float sum = sum8(add8(add8(acc[r][0], acc[r][1]), add8(acc[r][2], acc[r][3])));
        for (int64_t q = p; q < g->k; q++) sum += a[(i + r) * g->k + q] * load1(g->b.data, j * g->k + q, dt);
        few_store(g, i + r, j, sum, dt);
    }
}

static inline __attribute__((always_inline)) void few_cols(const struct gemm_args *g, const float *a,
                                                           struct span cols, dtype dt)
{
    for (int64_t j = cols.begin; j < cols.end; j++) {
        int64_t i = 0;
        for (; i + AT_ONCE <= g->m; i += AT_ONCE) few_dots(g, a, i, AT_ONCE, j, dt);
        for (; i < g->m; i++) few_dots(g, a, i, 1, j, dt);
    }
}

static void few_rows(const struct gemm_args *g)
{
    enum { GRAIN = 64 };
    const float *a = few_widened(g);
    PARALLEL_CHUNKS(c, chunk_count(g->n, GRAIN))
    {
        struct span cols = chunk_span(c, g->n, GRAIN);
        if (g->a.dt == DTYPE_F32)
            few_cols(g, a, cols, DTYPE_F32);
        else
            few_cols(g, a, cols, DTYPE_BF16);
    }
}

static bool supports(const struct gemm_args *g, dev_stream s)
{
    (void)s;
    switch (g->epilogue.kind) {
    case EPILOGUE_NONE:
    case EPILOGUE_BIAS: return true;
    case EPILOGUE_ADD: return gemm_fp8(g);
    case EPILOGUE_SWIGLU_FWD:
    case EPILOGUE_SWIGLU_BWD:
    case EPILOGUE_ROPE: break;
    }
    return false;
}

static status gemm(const struct gemm_args *g, dev_stream s)
{
    const bool fp8 = gemm_fp8(g);
    if (fp8) f8_check(g);
    CHECK(fp8 || (gemm_dt(g) == DTYPE_F32 && sizeof(elem) == sizeof(float)) || g->a.dt == DTYPE_BF16,
          "the fast set has no GEMMs in %s", dtype_name(g->a.dt));
    CHECK(fp8 || g->cdt == g->a.dt || g->cdt == DTYPE_F32, "GEMM of %s into %s", dtype_name(g->a.dt),
          dtype_name(g->cdt));
    CHECK(g->accum == ACCUM_STORE || g->cdt == DTYPE_F32, "accumulation in %s", dtype_name(g->cdt));
    CHECK(supports(g, s), "the fast set fuses a bias alone");
    CHECK(g->m >= 0 && g->n >= 0 && g->k > 0, "GEMM %ld x %ld x %ld", (long)g->m, (long)g->n, (long)g->k);
    if (g->m == 0 || g->n == 0) return STATUS_OK;
    if (g->m <= FEW_ROWS && !g->a.trans && g->b.trans && !fp8) {
        few_rows(g);
        return STATUS_OK;
    }
    /* If c itself holds partial sums, a long k is split so that packed B stays in cache. */
    const int64_t elems = SHARED_MAX / (int64_t)sizeof(elem), step = k_step(g->k),
                  fit = elems / CHUNK_N / step * step, depth = g->cdt == DTYPE_F32 && g->k > fit ? fit : g->k;
    int64_t width = elems / depth / CHUNK_N * CHUNK_N;
    if (width < CHUNK_N) width = CHUNK_N;
    for (int64_t j = 0; j < g->n; j += width) {
        for (int64_t p = 0; p < g->k; p += depth) {
            struct packed b = {.cols = {j, j + width < g->n ? j + width : g->n},
                               .k = {p, p + depth < g->k ? p + depth : g->k}};
            b.panels = chunk_count(b.cols.end - j, NR);
            b.base = workspace_get(WORKSPACE_SHARED,
                                   (size_t)(b.panels * NR * in_units(b.k.end - p)) * sizeof *b.base);
            part_run(g, &b);
        }
    }
    return STATUS_OK;
}

void SIMD(simd_gemm)(struct ops *o)
{
    o->gemm = gemm;
    o->gemm_supports = supports;
}

double SIMD(simd_peak)(void)
{
    enum { DEPTH = 96, CALLS = 1000, RUNS = 20 };
    double best = 1e9;
    for (int r = 0; r < RUNS; r++) {
        double begin = clock_s();
        PARALLEL_CHUNKS(c, parallel_threads())
        {
            _Alignas(64) elem a[DEPTH * MR], b[DEPTH * NR];
            _Alignas(64) float d[MR * NR] = {0};
            for (int i = 0; i < DEPTH * MR; i++) a[i] = elem_of(0.75f);
            for (int i = 0; i < DEPTH * NR; i++) b[i] = elem_of(-1.25f);
            for (int i = 0; i < CALLS; i++) micro(DEPTH, a, b, d, NR, true, b);
        }
        double time = clock_s() - begin;
        if (time < best) best = time;
    }
    return 2.0 * MR * NR * DEPTH * CALLS * parallel_threads() / best;
}
