/* Matrix products in f32, for F32 and BF16 operands (BF16 is widened while packing), after BLIS (Van Zee & van de Geijn, TOMS
 * 2015): both operands are packed so that the micro-kernel, MR x NR accumulators in registers, reads them front to back.
 *
 *   packed B   shared: [k block][panel of NR columns][k][NR]     made once per call by all threads
 *   packed A   a worker's own: [panel of MR rows][k][MR]         made per chunk and k block
 *
 * A panel of A (MR x KC) lies in L1, the chunk's part of B (KC x CHUNK_N) in L2. From both the micro-kernel runs at its peak
 * (Sapphire Rapids: 135 GFLOP/s per core), so what counts is that nothing is cold when it is needed: packing asks for memory
 * ahead, and a micro-kernel call begins by asking for its part of c. The sum of an element runs over k in order, in blocks of KC,
 * whatever the chunk grid is: so threads, and even the grid, do not change a bit.
 * Few rows (generation) are memory bound: W is then read in place, once. */
#include "base/clock.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/simd/simd.h"
#include "base/parallel.h"
#include "base/status.h"
#include "ops/cpu/workspace.h"

#include <assert.h>

#include <immintrin.h>

#ifdef __AVX512F__
enum { VL = 16, MR = 8 };
#else
enum { VL = 8, MR = 4 };
#endif
enum {
    NV = 3,
    NR = NV * VL,
    KC = 256,
    CHUNK_M = 24 * MR,
    CHUNK_N = 768,
    SHARED_MAX = 16 << 20,
    FEW_ROWS = 8
};
static_assert(CHUNK_N % NR == 0, "chunks are whole panels");
typedef float vf __attribute__((vector_size(VL * 4)));
typedef float vfu __attribute__((vector_size(VL * 4), aligned(4)));

/* c[MR, NR] (+)= a[kc][MR]^T b[kc][NR]. */
__attribute__((noinline)) static void micro(int64_t kc, const float *a, const float *b, float *c, int64_t ldc,
                                            bool add)
{
    vf acc[MR][NV] = {0};
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
#pragma GCC unroll 3
        for (int v = 0; v < NV; v++) __builtin_prefetch(c + i * ldc + v * VL, 1);
    }
    for (int64_t p = 0; p < kc; p++, a += MR, b += NR) {
        vf b0 = *(const vf *)b, b1 = *(const vf *)(b + VL), b2 = *(const vf *)(b + 2 * VL);
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            vf ai = a[i] - (vf){0};
            acc[i][0] += ai * b0;
            acc[i][1] += ai * b1;
            acc[i][2] += ai * b2;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
#pragma GCC unroll 3
        for (int v = 0; v < NV; v++) {
            vfu *at = (vfu *)(c + i * ldc + v * VL);
            *at = add ? *at + acc[i][v] : acc[i][v];
        }
    }
}

static inline __m256 load8(const void *p, int64_t i, dtype dt)
{
    if (dt == DTYPE_F32) return _mm256_loadu_ps((const float *)p + i);
    __m128i h = _mm_loadu_si128((const __m128i *)((const bf16 *)p + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline float load1(const void *p, int64_t i, dtype dt)
{
    return dt == DTYPE_F32 ? ((const float *)p)[i] : bf16_to_f32(((const bf16 *)p)[i]);
}

/* Eight rows of eight, transposed: dst[j * ld + i] = src[i * stride + j]. */
static inline void transpose8(const void *src, int64_t at, int64_t stride, float *dst, int64_t ld, dtype dt)
{
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) r[i] = load8(src, at + i * stride, dt);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(dst + i * ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(dst + (i + 4) * ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* One panel of `width` lines of an operand into dst[depth][width]; lines from `lines` on are zeros. `along`: the operand's memory
 * runs along k ([line, k], stride ld), else along lines ([k, line]). */
static inline void pack_panel(const void *src, int64_t at, int64_t ld, bool along, int64_t lines,
                              int64_t depth, int width, float *dst, dtype dt)
{
    int64_t full_lines = along || lines == width ? lines / 8 * 8 : 0,
            full_depth = along ? depth / 8 * 8 : depth;
    if (along) {
        for (int64_t p = 0; p < full_depth; p += 8) {
            for (int64_t i = 0; i < full_lines; i += 8) {
                transpose8(src, at + i * ld + p, ld, dst + p * width + i, width, dt);
            }
        }
    } else {
        for (int64_t p = 0; p < full_depth; p++) {
            for (int64_t i = 0; i < full_lines; i += 8) {
                _mm256_storeu_ps(dst + p * width + i, load8(src, at + p * ld + i, dt));
            }
        }
    }
    for (int64_t p = 0; p < depth; p++) {
        for (int64_t i = p < full_depth ? full_lines : 0; i < width; i++) {
            dst[p * width + i] =
                i >= lines ? 0.0f : load1(src, along ? at + i * ld + p : at + p * ld + i, dt);
        }
    }
}

/* Lines [0, lines) into consecutive panels. Memory that runs along lines is walked a few k at a time through all panels: a panel
 * alone would take half a cache line from each of `depth` pages. */
static void pack(const void *src, int64_t at, int64_t ld, bool along, int64_t lines, int64_t depth, int width,
                 float *dst, dtype dt)
{
    const int64_t step = along ? depth : 8;
    for (int64_t p = 0; p < depth; p += step) {
        const int64_t deep = depth - p < step ? depth - p : step;
        for (int64_t i = 0; i < lines; i += width) {
            /* Rows of k lie on pages apart, which no hardware prefetcher follows. */
            for (int64_t q = p + step; q < p + 2 * step && q < depth; q++)
                __builtin_prefetch((const char *)src + (at + q * ld + i) * (int64_t)dtype_bytes(dt));
            const int64_t from = at + (along ? i * ld + p : p * ld + i),
                          some = lines - i < width ? lines - i : width;
            float *to = dst + i * depth + p * width;
            if (dt == DTYPE_F32)
                pack_panel(src, from, ld, along, some, deep, width, to, DTYPE_F32);
            else
                pack_panel(src, from, ld, along, some, deep, width, to, DTYPE_BF16);
        }
    }
}

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

/* What a chunk starts from: zeros, the bias, or what c holds; returns whether the products are added to it. */
static bool chunk_begin(const struct gemm_args *g, float *c, int64_t ldc, struct span rows, struct span cols)
{
    if (g->accum == ACCUM_ADD && !g->bias) return true;
    if (!g->bias) return false;
    for (int64_t i = 0; i < rows.end - rows.begin; i++) {
        for (int64_t j = 0; j < cols.end - cols.begin; j++) {
            float b = load1(g->bias, cols.begin + j, g->dt);
            c[i * ldc + j] = g->accum == ACCUM_ADD ? c[i * ldc + j] + b : b;
        }
    }
    return true;
}

/* Packed B: every k block of the columns `cols`, in `panels` panels. */
struct packed {
    float *base;
    struct span cols;
    int64_t panels;
};

static const float *packed_at(const struct packed *b, int64_t p, int64_t kc, int64_t col)
{
    return b->base + p * b->panels * NR + (col - b->cols.begin) * kc;
}

struct chunk {
    const struct gemm_args *g;
    const struct packed *b;
    struct span rows, cols;
};

static struct span k_block(const struct gemm_args *g, int64_t p)
{
    return (struct span){p, g->k - p < KC ? g->k : p + KC};
}

/* Index in a's memory of op(a)'s [row, p]. */
static int64_t a_index(const struct gemm_args *g, int64_t row, int64_t p)
{
    return g->trans_a ? p * g->m + row : row * g->k + p;
}

/* c (+)= packed a times packed b. */
static void block_run(int64_t m, int64_t n, int64_t kc, const float *a, const float *b, float *c, int64_t ldc,
                      bool add)
{
    for (int64_t i = 0; i < m; i += MR, a += MR * kc) {
        const int64_t mr = m - i < MR ? m - i : MR;
        const float *bj = b;
        for (int64_t j = 0; j < n; j += NR, bj += kc * NR) {
            const int64_t nr = n - j < NR ? n - j : NR;
            float *to = c + i * ldc + j;
            if (mr == MR && nr == NR) {
                micro(kc, a, bj, to, ldc, add);
                continue;
            }
            _Alignas(64) float edge[MR * NR];
            micro(kc, a, bj, edge, NR, false);
            for (int64_t r = 0; r < mr; r++) {
                for (int64_t q = 0; q < nr; q++)
                    to[r * ldc + q] = add ? to[r * ldc + q] + edge[r * NR + q] : edge[r * NR + q];
            }
        }
    }
}

static void chunk_run(const struct chunk *w)
{
    const struct gemm_args *g = w->g;
    const int64_t m = w->rows.end - w->rows.begin, n = w->cols.end - w->cols.begin;
    float *a =
        workspace_get(WORKSPACE_MINE, ((size_t)(CHUNK_M * KC) + (size_t)(CHUNK_M * CHUNK_N)) * sizeof *a);
    const bool wide = g->cdt == DTYPE_F32;
    float *c = wide ? (float *)g->c + w->rows.begin * g->n + w->cols.begin : a + CHUNK_M * KC;
    const int64_t ldc = wide ? g->n : CHUNK_N;
    bool add = chunk_begin(g, c, ldc, w->rows, w->cols);
    for (int64_t p = 0; p < g->k; p += KC, add = true) {
        const struct span k = k_block(g, p);
        const int64_t kc = k.end - p;
        pack(g->a, a_index(g, w->rows.begin, p), g->trans_a ? g->m : g->k, !g->trans_a, m, kc, MR, a, g->dt);
        block_run(m, n, kc, a, packed_at(w->b, p, kc, w->cols.begin), c, ldc, add);
    }
    if (!wide) narrow(c, ldc, m, n, (bf16 *)g->c + w->rows.begin * g->n + w->cols.begin, g->n);
}

static void pack_b(const struct gemm_args *g, const struct packed *b)
{
    enum { GROUP = 4 }; /* panels */
    const int64_t ldb = g->trans_b ? g->k : g->n, groups = chunk_count(b->panels, GROUP);
    PARALLEL_CHUNKS(c, groups * chunk_count(g->k, KC))
    {
        const struct span k = k_block(g, c / groups * KC),
                          cols = chunk_span(c % groups, b->cols.end - b->cols.begin, GROUP * NR);
        const int64_t j = b->cols.begin + cols.begin, kc = k.end - k.begin;
        pack(g->b, g->trans_b ? j * ldb + k.begin : k.begin * ldb + j, ldb, g->trans_b, cols.end - cols.begin,
             kc, NR, b->base + k.begin * b->panels * NR + cols.begin * kc, g->dt);
    }
}

/* All rows of c, the columns of `b`. */
static void part_run(const struct gemm_args *g, const struct packed *b)
{
    pack_b(g, b);
    const int threads = parallel_threads();
    const int64_t width = b->cols.end - b->cols.begin, strips = chunk_count(width, CHUNK_N);
    int64_t grain = CHUNK_M;
    while (grain > 3 * MR && strips * chunk_count(g->m, grain) < 2 * threads) grain /= 2;
    const int64_t bands = chunk_count(g->m, grain);
    PARALLEL_CHUNKS(c, strips * bands)
    {
        const struct span cols = chunk_span(c / bands, width, CHUNK_N);
        const struct chunk w = {.g = g,
                                .b = b,
                                .rows = chunk_span(c % bands, g->m, grain),
                                .cols = {cols.begin + b->cols.begin, cols.end + b->cols.begin}};
        chunk_run(&w);
    }
}

/* Few rows times W^T: dot products along the rows of W. */
static inline void few_cols(const struct gemm_args *g, struct span cols, dtype dt)
{
    for (int64_t j = cols.begin; j < cols.end; j++) {
        for (int64_t i = 0; i < g->m; i++) {
            __m256 acc[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                             _mm256_setzero_ps()};
            int64_t p = 0;
            for (; p + 32 <= g->k; p += 32) {
#pragma GCC unroll 4
                for (int u = 0; u < 4; u++) {
                    __m256 x = load8(g->a, i * g->k + p + 8 * u, dt),
                           w = load8(g->b, j * g->k + p + 8 * u, dt);
                    acc[u] = _mm256_fmadd_ps(x, w, acc[u]);
                }
            }
            __m256 s = (acc[0] + acc[1]) + (acc[2] + acc[3]);
            float sum = ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
            for (; p < g->k; p++) sum += load1(g->a, i * g->k + p, dt) * load1(g->b, j * g->k + p, dt);
            if (g->bias) sum += load1(g->bias, j, dt);
            int64_t at = i * g->n + j;
            if (g->accum == ACCUM_ADD) sum += ((const float *)g->c)[at];
            if (g->cdt == DTYPE_F32)
                ((float *)g->c)[at] = sum;
            else
                ((bf16 *)g->c)[at] = bf16_from_f32(sum);
        }
    }
}

static void few_rows(const struct gemm_args *g)
{
    enum { GRAIN = 64 };
    PARALLEL_CHUNKS(c, chunk_count(g->n, GRAIN))
    {
        struct span cols = chunk_span(c, g->n, GRAIN);
        if (g->dt == DTYPE_F32)
            few_cols(g, cols, DTYPE_F32);
        else
            few_cols(g, cols, DTYPE_BF16);
    }
}

static status gemm(const struct gemm_args *g, dev_stream s)
{
    (void)s;
    CHECK(g->dt == DTYPE_F32 || g->dt == DTYPE_BF16, "the fast set has no products in %s", dtype_name(g->dt));
    CHECK(g->cdt == g->dt || g->cdt == DTYPE_F32, "product of %s into %s", dtype_name(g->dt),
          dtype_name(g->cdt));
    CHECK(g->accum == ACCUM_STORE || g->cdt == DTYPE_F32, "accumulation in %s", dtype_name(g->cdt));
    CHECK(g->m >= 0 && g->n >= 0 && g->k > 0, "product %ld x %ld x %ld", (long)g->m, (long)g->n, (long)g->k);
    if (g->m == 0 || g->n == 0) return STATUS_OK;
    if (g->m <= FEW_ROWS && !g->trans_a && g->trans_b) {
        few_rows(g);
        return STATUS_OK;
    }
    int64_t width = SHARED_MAX / (int64_t)sizeof(float) / g->k / CHUNK_N * CHUNK_N;
    if (width < CHUNK_N) width = CHUNK_N;
    for (int64_t j = 0; j < g->n; j += width) {
        struct packed b = {.cols = {j, j + width < g->n ? j + width : g->n}};
        b.panels = chunk_count(b.cols.end - j, NR);
        b.base = workspace_get(WORKSPACE_SHARED, (size_t)(b.panels * NR * g->k) * sizeof *b.base);
        part_run(g, &b);
    }
    return STATUS_OK;
}

void SIMD(simd_gemm)(struct ops *o)
{
    o->gemm = gemm;
}

double SIMD(simd_peak)(void)
{
    enum { DEPTH = 96, CALLS = 1000, RUNS = 20 };
    double best = 1e9;
    for (int r = 0; r < RUNS; r++) {
        double begin = clock_s();
        PARALLEL_CHUNKS(c, parallel_threads())
        {
            _Alignas(64) float a[DEPTH * MR], b[DEPTH * NR], d[MR * NR] = {0};
            for (int i = 0; i < DEPTH * MR; i++) a[i] = 0.75f;
            for (int i = 0; i < DEPTH * NR; i++) b[i] = -1.25f;
            for (int i = 0; i < CALLS; i++) micro(DEPTH, a, b, d, NR, true);
        }
        double time = clock_s() - begin;
        if (time < best) best = time;
    }
    return 2.0 * MR * NR * DEPTH * CALLS * parallel_threads() / best;
}
