// The ops around the delta rule: convolution with SiLU, gates, gated norm. Bound: memory bandwidth. Traffic per
// row:
//
//   convolution   forward reads x, writes y; backward reads dy and x, writes dx: 2 and 3 times channels
//   gated norm    forward reads x and z, writes y; backward reads dy, x, z, writes dx and dz: 3 and 5 times heads d
//
// Convolution: a thread keeps W neighbouring channels and walks down a run of rows. The rows that taps read stay in
// registers; only the first width - 1 rows of a run are read twice. Backward walks down, too: dp of row t is
// computed at t, and dx of row t - (width - 1) as soon as its last dp is known. Taps `dilation` rows apart read
// every dilation-th row: runs are then interleaved and walk with that stride (GAPS; else the stride is a constant
// 1).
//
// Sums over rows (dw, dA_log, ...) are a thread's own in row order, then the block's runs in order, then
// partials.cuh.
#include "ops/cuda/docs.cuh"
#include "ops/cuda/partials.cuh"
#include "ops/cuda/rowwise.cuh"
extern "C" {
#include "ops/cuda/gdn_kernels.h"
}

namespace {

__device__ inline float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
__device__ inline float silu(float x) { return __fdividef(x, 1.f + __expf(-x)); }

// ---- convolution

enum { RUNS = 8, BATCH = 4, RUN_MIN = 16 }; // runs per block; rows loaded together; rows per run

struct conv {
    const void *x, *w, *bias, *before, *dy;
    void *out;      // y, or dx
    float *partial; // [blocks of runs][channels width | channels: with bias]
    int64_t x_stride, dy_stride, out_stride;
    const int32_t *cu;
    int docs, rows, channels, width, rows_each, columns; // columns: blocks side by side
    int dilation;
};

// The rows of a run: first, first + step, ... before last.
struct conv_run {
    int first, last, step;
};
template <bool GAPS> __device__ inline conv_run conv_run_of(const conv &a)
{
    const int step = GAPS ? a.dilation : 1, span = a.rows_each * step,
              run = blockIdx.x / a.columns * RUNS + threadIdx.y;
    const int begin = min(run / step * span, a.rows);
    return {min(begin + run % step, a.rows), min(begin + span, a.rows), step};
}

// What a thread of either pass keeps: K taps of W channels. Taps before the last `width` are 0.
template <typename T, int W, int K> struct taps {
    float w[K][W], bias[W], x[K][W]; // x[j]: row t - (K-1 - j) step
    int c;                           // first channel

    __device__ taps(const conv &a, int c_) : c(c_)
    {
        for (int i = 0; i < W; i++) bias[i] = a.bias ? to_f32(((const T *)a.bias)[c + i]) : 0;
        for (int j = 0; j < K; j++)
            for (int i = 0; i < W; i++) {
                const int tap = j - (K - a.width);
                w[j][i] = tap >= 0 ? to_f32(((const T *)a.w)[(int64_t)(c + i) * a.width + tap]) : 0;
            }
    }
    // The rows before `t`: of its document, or from the cache, where document `begin` begins at row `begin`.
    __device__ void look_back(const conv &a, int t, int begin, int step)
    {
        for (int j = 0; j < K; j++)
            for (int i = 0; i < W; i++) x[j][i] = 0;
        for (int j = K - a.width; j < K - 1; j++) {
            const int from = t - (K - 1 - j) * step, kept = (a.width - 1) * step;
            vec<T, W> v;
            if (from >= begin)
                v = load_vec<W>((const T *)a.x + (int64_t)from * a.x_stride + c);
            else if (a.before && from >= begin - kept)
                v = load_vec<W>((const T *)a.before + (from - begin + (int64_t)(begin + 1) * kept) * a.channels + c);
            else
                continue;
            float f[W];
            widen(v, f);
            // Writes x[j + 1]; `push` moves it. A loop over constant indices keeps the window in registers.
            for (int k = 1; k < K; k++)
                if (k == j + 1)
                    for (int i = 0; i < W; i++) x[k][i] = f[i];
        }
    }
    __device__ void forget()
    {
        for (int j = 0; j < K; j++)
            for (int i = 0; i < W; i++) x[j][i] = 0;
    }
    __device__ void push(const vec<T, W> &v)
    {
        for (int j = 0; j + 1 < K; j++)
            for (int i = 0; i < W; i++) x[j][i] = x[j + 1][i];
        float f[W];
        widen(v, f);
        for (int i = 0; i < W; i++) x[K - 1][i] = f[i];
    }
    __device__ float before_silu(int i) const
    {
        float p = bias[i];
        for (int j = 0; j < K; j++) p += w[j][i] * x[j][i];
        return p;
    }
};

template <typename T, int W, int K, bool GAPS>
__global__ void __launch_bounds__(RUNS *WARP) conv_fwd_kernel(const conv a)
{
    const int c = (blockIdx.x % a.columns * WARP + threadIdx.x) * W;
    const conv_run run = conv_run_of<GAPS>(a);
    if (c >= a.channels || run.first >= run.last) return;
    doc_cursor doc(a.cu, a.docs, run.first);
    taps<T, W, K> at(a, c);
    at.look_back(a, run.first, doc.begin, run.step);
    for (int t0 = run.first; t0 < run.last; t0 += BATCH * run.step) {
        vec<T, W> raw[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int t = t0 + i * run.step;
            if (t < run.last) raw[i] = load_vec<W>((const T *)a.x + (int64_t)t * a.x_stride + c);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int t = t0 + i * run.step;
            if (t >= run.last) break;
            if (t >= doc.end) {
                doc.advance(t);
                at.forget();
            }
            at.push(raw[i]);
            float y[W];
            for (int j = 0; j < W; j++) y[j] = silu(at.before_silu(j));
            store_vec((T *)a.out + (int64_t)t * a.out_stride + c, narrow<T>(y));
        }
    }
}

// The block's runs, added in order; [c][tap], then the bias.
template <int W, int K>
__device__ inline void conv_leave(const conv &a, const float (&dw)[K][W], const float (&db)[W], int c, float *shared)
{
    constexpr int EACH = (K + 1) * W;
    float *mine = shared + (threadIdx.y * WARP + threadIdx.x) * EACH;
    for (int j = 0; j < K; j++)
        for (int i = 0; i < W; i++) mine[j * W + i] = dw[j][i];
    for (int i = 0; i < W; i++) mine[K * W + i] = db[i];
    __syncthreads();
    if (threadIdx.y != 0 || c >= a.channels) return;
    float *to = a.partial + (int64_t)(blockIdx.x / a.columns) * a.channels * (a.width + (a.bias != NULL));
    for (int j = K - a.width; j < K + (a.bias != NULL); j++)
        for (int i = 0; i < W; i++) {
            float sum = 0;
            for (int r = 0; r < RUNS; r++) sum += shared[(r * WARP + threadIdx.x) * EACH + j * W + i];
            if (j < K)
                to[(int64_t)(c + i) * a.width + j - (K - a.width)] = sum;
            else
                to[(int64_t)a.channels * a.width + c + i] = sum;
        }
}

template <typename T, int W, int K, bool GAPS>
__global__ void __launch_bounds__(RUNS *WARP, 2) conv_bwd_kernel(const conv a)
{
    __shared__ float shared[RUNS * WARP * (K + 1) * W];
    const int c = (blockIdx.x % a.columns * WARP + threadIdx.x) * W;
    const conv_run run = conv_run_of<GAPS>(a);
    const int first = run.first, last = run.last, step = run.step,
              stop = last > first && c < a.channels ? last + (K - 1) * step : first;
    float dw[K][W] = {}, db[W] = {}, dp[K][W] = {}; // dp[i]: of row u + i step
    if (stop > first) {
        doc_cursor doc(a.cu, a.docs, first), doc_u = doc;
        taps<T, W, K> at(a, c);
        at.look_back(a, first, doc.begin, step);
        for (int t0 = first; t0 < stop; t0 += BATCH * step) {
            vec<T, W> raw[BATCH], raw_dy[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int t = t0 + i * step;
                if (t >= a.rows || t >= stop) break;
                raw[i] = load_vec<W>((const T *)a.x + (int64_t)t * a.x_stride + c);
                raw_dy[i] = load_vec<W>((const T *)a.dy + (int64_t)t * a.dy_stride + c);
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int t = t0 + i * step, u = t - (K - 1) * step;
                if (t >= stop) break;
                for (int j = 0; j + 1 < K; j++)
                    for (int k = 0; k < W; k++) dp[j][k] = dp[j + 1][k];
                if (t < a.rows) {
                    if (t >= doc.end) {
                        doc.advance(t);
                        at.forget();
                    }
                    at.push(raw[i]);
                    float dy[W];
                    widen(raw_dy[i], dy);
                    for (int k = 0; k < W; k++) {
                        const float p = at.before_silu(k), sg = sigmoid(p);
                        dp[K - 1][k] = dy[k] * sg * (1.f + p * (1.f - sg));
                    }
                }
                if (t < last) {
                    for (int j = 0; j < K; j++)
                        for (int k = 0; k < W; k++) dw[j][k] += dp[K - 1][k] * at.x[j][k];
                    for (int k = 0; k < W; k++) db[k] += dp[K - 1][k];
                }
                if (u < first) continue;
                doc_u.advance(u);
                float dx[W] = {};
                for (int j = 0; j < K; j++)
                    if (u + j * step < doc_u.end)
                        for (int k = 0; k < W; k++) dx[k] += at.w[K - 1 - j][k] * dp[j][k];
                store_vec((T *)a.out + (int64_t)u * a.out_stride + c, narrow<T>(dx));
            }
        }
    }
    conv_leave<W, K>(a, dw, db, c, shared);
}

// Models have four taps. Other counts, and unaligned operands, use the window of CONV_WIDTH_MAX and one channel per
// thread.
enum { CONV_W = 4, CONV_K = 4 };
template <typename T> bool conv_wide(const conv &a)
{
    const size_t align = sizeof(vec<T, CONV_W>);
    const int64_t strides = a.x_stride | a.dy_stride | a.out_stride | a.channels;
    const uintptr_t places = (uintptr_t)a.x | (uintptr_t)a.dy | (uintptr_t)a.out | (uintptr_t)a.before;
    return a.width == CONV_K && strides % CONV_W == 0 && places % align == 0;
}

// `waves`: blocks per multiprocessor, and at least one row of blocks. `width`: of a partial sum, or 0. Interleaved
// runs are as many as taps are rows apart, and fit in a row of blocks.
static_assert(int(CONV_DILATION_MAX) <= int(RUNS), "runs in one another");
void conv_cut(conv &a, int lanes, int waves, int64_t width, dev_stream s)
{
    a.columns = (a.channels + WARP * lanes - 1) / (WARP * lanes);
    int64_t blocks = (a.rows + RUNS * RUN_MIN - 1) / (RUNS * RUN_MIN),
            most = waves * (int64_t)cuda_set(s)->multiprocessors / a.columns;
    if (most < 1) most = 1;
    if (width > 0) most = partials_fit(most, width);
    if (blocks > most) blocks = most;
    const int64_t runs = blocks * RUNS / a.dilation * a.dilation;
    a.rows_each = (int)((a.rows + runs - 1) / runs);
}
unsigned conv_blocks(const conv &a)
{
    const int span = a.rows_each * a.dilation, runs = (a.rows + span - 1) / span * a.dilation;
    return (unsigned)((runs + RUNS - 1) / RUNS) * (unsigned)a.columns;
}

template <typename T, bool GAPS> void conv_fwd_queue(const conv &a, bool wide, unsigned blocks, dev_stream s)
{
    const dim3 block(WARP, RUNS);
    if (wide)
        conv_fwd_kernel<T, CONV_W, CONV_K, GAPS><<<blocks, block, 0, queue_of(s)>>>(a);
    else
        conv_fwd_kernel<T, 1, CONV_WIDTH_MAX, GAPS><<<blocks, block, 0, queue_of(s)>>>(a);
}
template <typename T> void conv_fwd_launch(conv a, dev_stream s)
{
    const bool wide = conv_wide<T>(a);
    conv_cut(a, wide ? CONV_W : 1, 16, 0, s);
    if (a.before && a.docs > 1) a.rows_each = 1; // a run looks back where it begins
    if (a.dilation == 1)
        conv_fwd_queue<T, false>(a, wide, conv_blocks(a), s);
    else
        conv_fwd_queue<T, true>(a, wide, conv_blocks(a), s);
}

template <typename T, bool GAPS> void conv_bwd_queue(const conv &a, bool wide, unsigned blocks, dev_stream s)
{
    const dim3 block(WARP, RUNS);
    if (wide)
        conv_bwd_kernel<T, CONV_W, CONV_K, GAPS><<<blocks, block, 0, queue_of(s)>>>(a);
    else
        conv_bwd_kernel<T, 1, CONV_WIDTH_MAX, GAPS><<<blocks, block, 0, queue_of(s)>>>(a);
}
template <typename T> void conv_bwd_launch(conv a, float *dw, float *dbias, dev_stream s)
{
    const bool wide = conv_wide<T>(a);
    const int lanes = wide ? CONV_W : 1;
    const int64_t width = (int64_t)a.channels * (a.width + (a.bias != NULL));
    conv_cut(a, lanes, 2, width, s); // blocks resident on a multiprocessor: more would wait for them to end
    const unsigned blocks = conv_blocks(a), row_blocks = blocks / (unsigned)a.columns;
    a.partial = (float *)cuda_set_workspace(s, sizeof(float) * (size_t)width * row_blocks, "conv_bwd");
    if (a.dilation == 1)
        conv_bwd_queue<T, false>(a, wide, blocks, s);
    else
        conv_bwd_queue<T, true>(a, wide, blocks, s);
    partials_add(s, a.partial, row_blocks, width, (int64_t)a.channels * a.width, dw, dbias);
}

void conv_check(int64_t rows, int64_t docs, int64_t channels, int64_t width, int64_t dilation)
{
    CHECK(dilation >= 0 && dilation <= CONV_DILATION_MAX, "taps %lld rows apart", (long long)dilation);
    CHECK(width >= 2 && width <= CONV_WIDTH_MAX, "a convolution over %lld rows", (long long)width);
    CHECK(rows < INT32_MAX - 128 && docs < INT32_MAX && channels < INT32_MAX / 16,
          "%lld rows, %lld documents, %lld channels", (long long)rows, (long long)docs, (long long)channels);
}

// ---- gates: a block takes 32 heads and a range of rows

struct gates {
    const void *a, *b;
    const float *a_log, *dt_bias, *dg, *dbeta;
    float *g, *beta, *partial; // partial: [blocks][dA_log: heads | ddt_bias: heads]
    void *da, *db;
    int64_t rows, stride, d_stride, rows_each;
    int heads;
};

__device__ inline float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }
__device__ inline float sigmoid_exact(float x) { return 1.f / (1.f + expf(-x)); }

template <typename T> __global__ void __launch_bounds__(RUNS *WARP) gates_fwd_kernel(const gates x)
{
    const int h = blockIdx.y * WARP + threadIdx.x;
    if (h >= x.heads) return;
    const float rate = expf(x.a_log[h]), bias = x.dt_bias[h];
    const int64_t first = blockIdx.x * x.rows_each, last = min(first + x.rows_each, x.rows);
    for (int64_t t = first + threadIdx.y; t < last; t += RUNS) {
        x.g[t * x.heads + h] = -rate * softplus(to_f32(((const T *)x.a)[t * x.stride + h]) + bias);
        x.beta[t * x.heads + h] = sigmoid_exact(to_f32(((const T *)x.b)[t * x.stride + h]));
    }
}

template <typename T> __global__ void __launch_bounds__(RUNS *WARP) gates_bwd_kernel(const gates x)
{
    __shared__ float sums[2][RUNS][WARP];
    const int h = blockIdx.y * WARP + threadIdx.x;
    float da_log = 0, ddt_bias = 0;
    if (h < x.heads) {
        const float rate = expf(x.a_log[h]), bias = x.dt_bias[h];
        const int64_t first = blockIdx.x * x.rows_each, last = min(first + x.rows_each, x.rows);
        for (int64_t t = first + threadIdx.y; t < last; t += RUNS) {
            const float at = to_f32(((const T *)x.a)[t * x.stride + h]) + bias, dg = x.dg[t * x.heads + h] * rate;
            const float da = -dg * sigmoid_exact(at), beta = sigmoid_exact(to_f32(((const T *)x.b)[t * x.stride + h]));
            da_log -= dg * softplus(at);
            ddt_bias += da;
            ((T *)x.da)[t * x.d_stride + h] = from_f32<T>(da);
            ((T *)x.db)[t * x.d_stride + h] = from_f32<T>(x.dbeta[t * x.heads + h] * beta * (1.f - beta));
        }
    }
    sums[0][threadIdx.y][threadIdx.x] = da_log;
    sums[1][threadIdx.y][threadIdx.x] = ddt_bias;
    __syncthreads();
    if (threadIdx.y >= 2 || h >= x.heads) return;
    float sum = 0;
    for (int r = 0; r < RUNS; r++) sum += sums[threadIdx.y][r][threadIdx.x];
    x.partial[((int64_t)blockIdx.x * 2 + threadIdx.y) * x.heads + h] = sum;
}

// Rows per block: enough blocks for the GPU, at least RUN_MIN rows per thread.
dim3 gates_cut(gates &x, dev_stream s)
{
    const int tiles = (x.heads + WARP - 1) / WARP;
    int64_t blocks = 4 * (int64_t)cuda_set(s)->multiprocessors / tiles + 1,
            most = (x.rows + RUNS * RUN_MIN - 1) / (RUNS * RUN_MIN);
    if (blocks > most) blocks = most;
    x.rows_each = (x.rows + blocks - 1) / blocks;
    return dim3((unsigned)((x.rows + x.rows_each - 1) / x.rows_each), (unsigned)tiles);
}

// ---- the gated norm: rows of one head. `lanes` neighbours hold a row, W elements each.

enum { NORM_THREADS = 256, NORM_ROWS = 2 }; // rows that a thread loads together

struct gated {
    const void *x, *z, *w, *dy;
    void *out, *dz; // y, or dx
    float *rstd, *partial;
    uint32_t rows, heads; // rows: of all heads
    int64_t z_stride, dz_stride;
    int d, lanes;
    float eps;
};

__device__ inline float lanes_sum(float x, int lanes)
{
    for (int d = lanes / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}
__device__ inline int64_t gate_at(const gated &a, uint32_t row, int64_t stride)
{
    return (int64_t)(row / a.heads) * stride + (int64_t)(row % a.heads) * a.d;
}

// All lanes of a warp take part in the sums: rows past the last are computed from zeros and not stored.
template <typename T, int W> __global__ void __launch_bounds__(NORM_THREADS) gated_fwd_kernel(const gated a)
{
    const int lane = threadIdx.x % a.lanes, c = lane * W, groups = NORM_THREADS / a.lanes;
    const bool has = c < a.d;
    vec<T, W> w = {};
    if (has) w = load_vec<W>((const T *)a.w + c);
    const uint32_t step = gridDim.x * groups, first = blockIdx.x * groups;
    for (uint64_t base = first; base < a.rows; base += (uint64_t)step * NORM_ROWS) {
        vec<T, W> x[NORM_ROWS] = {}, z[NORM_ROWS] = {};
#pragma unroll
        for (int i = 0; i < NORM_ROWS; i++) {
            const uint64_t row = base + (uint64_t)i * step + threadIdx.x / a.lanes;
            if (row >= a.rows || !has) continue;
            x[i] = load_vec<W>((const T *)a.x + (int64_t)row * a.d + c);
            z[i] = load_vec<W>((const T *)a.z + gate_at(a, (uint32_t)row, a.z_stride) + c);
        }
#pragma unroll
        for (int i = 0; i < NORM_ROWS; i++) {
            const uint64_t row = base + (uint64_t)i * step + threadIdx.x / a.lanes;
            float f[W], fz[W], fw[W], squares = 0;
            widen(x[i], f);
            widen(z[i], fz);
            widen(w, fw);
            for (int j = 0; j < W; j++) squares += f[j] * f[j];
            const float rstd = 1 / sqrtf(lanes_sum(squares, a.lanes) / a.d + a.eps);
            for (int j = 0; j < W; j++) f[j] = f[j] * rstd * fw[j] * silu(fz[j]);
            if (row >= a.rows) continue;
            if (has) store_vec((T *)a.out + (int64_t)row * a.d + c, narrow<T>(f));
            if (a.rstd && lane == 0) a.rstd[row] = rstd;
        }
    }
}

template <typename T, int W> __global__ void __launch_bounds__(NORM_THREADS) gated_bwd_kernel(const gated a)
{
    __shared__ float shared[NORM_THREADS * W];
    const int lane = threadIdx.x % a.lanes, c = lane * W, groups = NORM_THREADS / a.lanes;
    const bool has = c < a.d;
    vec<T, W> w = {};
    if (has) w = load_vec<W>((const T *)a.w + c);
    float dw[W] = {};
    const uint32_t step = gridDim.x * groups, first = blockIdx.x * groups;
    for (uint64_t base = first; base < a.rows; base += (uint64_t)step * NORM_ROWS) {
        vec<T, W> x[NORM_ROWS] = {}, z[NORM_ROWS] = {}, dy[NORM_ROWS] = {};
        float rstd[NORM_ROWS] = {};
#pragma unroll
        for (int i = 0; i < NORM_ROWS; i++) {
            const uint64_t row = base + (uint64_t)i * step + threadIdx.x / a.lanes;
            if (row >= a.rows || !has) continue;
            x[i] = load_vec<W>((const T *)a.x + (int64_t)row * a.d + c);
            dy[i] = load_vec<W>((const T *)a.dy + (int64_t)row * a.d + c);
            z[i] = load_vec<W>((const T *)a.z + gate_at(a, (uint32_t)row, a.z_stride) + c);
            rstd[i] = a.rstd[row];
        }
#pragma unroll
        for (int i = 0; i < NORM_ROWS; i++) {
            const uint64_t row = base + (uint64_t)i * step + threadIdx.x / a.lanes;
            float f[W], fz[W], fw[W], fd[W], mean = 0, dz[W];
            widen(x[i], f);
            widen(z[i], fz);
            widen(w, fw);
            widen(dy[i], fd);
            for (int j = 0; j < W; j++) {
                // dn: gradient behind the gate
                const float sg = sigmoid(fz[j]), xh = f[j] * rstd[i], dn = fd[j] * fz[j] * sg;
                dz[j] = fd[j] * fw[j] * xh * sg * (1.f + fz[j] * (1.f - sg));
                dw[j] += dn * xh;
                mean += fw[j] * dn * xh;
                f[j] = xh;
                fd[j] = fw[j] * dn;
            }
            mean = lanes_sum(mean, a.lanes) / a.d;
            for (int j = 0; j < W; j++) f[j] = rstd[i] * (fd[j] - f[j] * mean);
            if (row >= a.rows || !has) continue;
            store_vec((T *)a.out + (int64_t)row * a.d + c, narrow<T>(f));
            store_vec((T *)a.dz + gate_at(a, (uint32_t)row, a.dz_stride) + c, narrow<T>(dz));
        }
    }
    for (int j = 0; j < W; j++) shared[threadIdx.x * W + j] = dw[j];
    __syncthreads();
    for (int j = threadIdx.x; j < a.d; j += NORM_THREADS) {
        float sum = 0;
        for (int g = 0; g < groups; g++) sum += shared[g * a.lanes * W + j];
        a.partial[(int64_t)blockIdx.x * a.d + j] = sum;
    }
}

// Any width and alignment: a block per row, an element per access. Slow.
enum { NORM_WIDTH_MAX = 12 << 10 };
template <typename T> __global__ void __launch_bounds__(NORM_THREADS) gated_any_fwd_kernel(const gated a)
{
    __shared__ float exchange[WARP];
    const T *x = (const T *)a.x, *z = (const T *)a.z, *w = (const T *)a.w;
    for (uint64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const int64_t at = (int64_t)row * a.d, z_at = gate_at(a, (uint32_t)row, a.z_stride);
        float squares = 0;
        for (int j = threadIdx.x; j < a.d; j += NORM_THREADS) squares += to_f32(x[at + j]) * to_f32(x[at + j]);
        const float rstd = 1 / sqrtf(block_sum(squares, exchange) / a.d + a.eps);
        for (int j = threadIdx.x; j < a.d; j += NORM_THREADS)
            ((T *)a.out)[at + j] = from_f32<T>(to_f32(x[at + j]) * rstd * to_f32(w[j]) * silu(to_f32(z[z_at + j])));
        if (a.rstd && threadIdx.x == 0) a.rstd[row] = rstd;
    }
}
template <typename T> __global__ void __launch_bounds__(NORM_THREADS) gated_any_bwd_kernel(const gated a)
{
    __shared__ float exchange[WARP];
    extern __shared__ float dw[]; // [d]: each thread adds to its own columns
    const T *x = (const T *)a.x, *z = (const T *)a.z, *w = (const T *)a.w, *dy = (const T *)a.dy;
    for (int j = threadIdx.x; j < a.d; j += NORM_THREADS) dw[j] = 0;
    for (uint64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const int64_t at = (int64_t)row * a.d, z_at = gate_at(a, (uint32_t)row, a.z_stride),
                      dz_at = gate_at(a, (uint32_t)row, a.dz_stride);
        const float rstd = a.rstd[row];
        float mean = 0;
        for (int j = threadIdx.x; j < a.d; j += NORM_THREADS) {
            const float dn = to_f32(dy[at + j]) * silu(to_f32(z[z_at + j])), xh = to_f32(x[at + j]) * rstd;
            mean += to_f32(w[j]) * dn * xh;
            dw[j] += dn * xh;
        }
        mean = block_sum(mean, exchange) / a.d;
        for (int j = threadIdx.x; j < a.d; j += NORM_THREADS) {
            const float fz = to_f32(z[z_at + j]), sg = sigmoid(fz), xh = to_f32(x[at + j]) * rstd,
                        wd = to_f32(w[j]) * to_f32(dy[at + j]);
            ((T *)a.dz)[dz_at + j] = from_f32<T>(wd * xh * sg * (1.f + fz * (1.f - sg)));
            ((T *)a.out)[at + j] = from_f32<T>(rstd * (wd * fz * sg - xh * mean));
        }
    }
    for (int j = threadIdx.x; j < a.d; j += NORM_THREADS) a.partial[(int64_t)blockIdx.x * a.d + j] = dw[j];
}

// Lanes per row: a power of two of at most a warp; 0: the wide kernels do not support it.
template <typename T> int gated_lanes(const gated &a)
{
    constexpr int W = WIDE<T>;
    const uintptr_t places =
        (uintptr_t)a.x | (uintptr_t)a.z | (uintptr_t)a.w | (uintptr_t)a.dy | (uintptr_t)a.out | (uintptr_t)a.dz;
    if (a.d % W != 0 || a.d > WARP * W || places % 16 != 0 || (a.z_stride | a.dz_stride) % W != 0) return 0;
    int lanes = 1;
    while (lanes * W < a.d) lanes *= 2;
    return lanes;
}
// Persistent blocks.
int64_t gated_blocks(const gated &a, dev_stream s)
{
    const int64_t each = a.lanes ? NORM_THREADS / a.lanes : 1, need = (a.rows + each - 1) / each,
                  most = 8 * (int64_t)cuda_set(s)->multiprocessors;
    return need < most ? need : most;
}
gated gated_of(int64_t rows, int64_t heads, int64_t d)
{
    CHECK(d > 0 && d <= NORM_WIDTH_MAX && heads > 0 && rows < (int64_t)UINT32_MAX / heads,
          "%lld rows of %lld heads of %lld", (long long)rows, (long long)heads, (long long)d);
    gated g = {};
    g.rows = (uint32_t)(rows * heads), g.heads = (uint32_t)heads, g.d = (int)d;
    return g;
}

template <typename T> void gated_fwd_launch(gated a, dev_stream s)
{
    a.lanes = gated_lanes<T>(a);
    const unsigned blocks = (unsigned)gated_blocks(a, s);
    if (a.lanes)
        gated_fwd_kernel<T, WIDE<T>><<<blocks, NORM_THREADS, 0, queue_of(s)>>>(a);
    else
        gated_any_fwd_kernel<T><<<blocks, NORM_THREADS, 0, queue_of(s)>>>(a);
}
template <typename T> void gated_bwd_launch(gated a, float *dw, dev_stream s)
{
    a.lanes = gated_lanes<T>(a);
    const int64_t blocks = partials_fit(gated_blocks(a, s), a.d);
    a.partial = (float *)cuda_set_workspace(s, sizeof(float) * (size_t)(blocks * a.d), "gated_norm_bwd");
    if (a.lanes)
        gated_bwd_kernel<T, WIDE<T>><<<(unsigned)blocks, NORM_THREADS, 0, queue_of(s)>>>(a);
    else
        gated_any_bwd_kernel<T><<<(unsigned)blocks, NORM_THREADS, sizeof(float) * (size_t)a.d, queue_of(s)>>>(a);
    partials_add(s, a.partial, blocks, a.d, a.d, dw, NULL);
}

} // namespace

extern "C" status cuda_conv_fwd(const struct conv_fwd_args *a, dev_stream s)
{
    conv_check(a->rows, a->docs, a->channels, a->width, a->dilation);
    CHECK(!a->before || a->docs == 1 || a->docs == a->rows, "rows before the first of %lld in %lld documents",
          (long long)a->rows, (long long)a->docs);
    if (a->rows == 0 || a->channels == 0) return STATUS_OK;
    conv c = {};
    c.x = a->x, c.w = a->w, c.bias = a->bias, c.before = a->before, c.out = a->y;
    c.x_stride = a->x_stride, c.out_stride = a->y_stride, c.cu = a->cu_seqlens;
    c.docs = (int)a->docs, c.rows = (int)a->rows, c.channels = (int)a->channels, c.width = (int)a->width;
    c.dilation = (int)conv_dilation(a->dilation);
    BY_DTYPE(a->dt, conv_fwd_launch<T>(c, s));
    return cuda_set_launched(s, "conv_fwd");
}

extern "C" status cuda_conv_bwd(const struct conv_bwd_args *a, dev_stream s)
{
    conv_check(a->rows, a->docs, a->channels, a->width, a->dilation);
    if (a->rows == 0 || a->channels == 0) return STATUS_OK;
    conv c = {};
    c.x = a->x, c.w = a->w, c.bias = a->bias, c.dy = a->dy, c.out = a->dx;
    c.x_stride = a->x_stride, c.dy_stride = a->dy_stride, c.out_stride = a->dx_stride, c.cu = a->cu_seqlens;
    c.docs = (int)a->docs, c.rows = (int)a->rows, c.channels = (int)a->channels, c.width = (int)a->width;
    c.dilation = (int)conv_dilation(a->dilation);
    BY_DTYPE(a->dt, conv_bwd_launch<T>(c, (float *)a->dw, (float *)a->dbias, s));
    return cuda_set_launched(s, "conv_bwd");
}

extern "C" status cuda_gates_fwd(const struct gates_fwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    gates x = {};
    x.a = a->a, x.b = a->b, x.a_log = (const float *)a->a_log, x.dt_bias = (const float *)a->dt_bias;
    x.g = (float *)a->g, x.beta = (float *)a->beta, x.rows = a->rows, x.stride = a->stride, x.heads = (int)a->heads;
    const dim3 grid = gates_cut(x, s), block(WARP, RUNS);
    BY_DTYPE(a->dt, (gates_fwd_kernel<T><<<grid, block, 0, queue_of(s)>>>(x)));
    return cuda_set_launched(s, "gates_fwd");
}

extern "C" status cuda_gates_bwd(const struct gates_bwd_args *a, dev_stream s)
{
    if (a->rows == 0) return STATUS_OK;
    gates x = {};
    x.a = a->a, x.b = a->b, x.a_log = (const float *)a->a_log, x.dt_bias = (const float *)a->dt_bias;
    x.dg = (const float *)a->dg, x.dbeta = (const float *)a->dbeta, x.da = a->da, x.db = a->db;
    x.rows = a->rows, x.stride = a->stride, x.d_stride = a->d_stride, x.heads = (int)a->heads;
    const dim3 grid = gates_cut(x, s), block(WARP, RUNS);
    x.partial = (float *)cuda_set_workspace(s, sizeof(float) * 2 * (size_t)a->heads * grid.x, "gates_bwd");
    BY_DTYPE(a->dt, (gates_bwd_kernel<T><<<grid, block, 0, queue_of(s)>>>(x)));
    partials_add(s, x.partial, grid.x, 2 * a->heads, a->heads, (float *)a->da_log, (float *)a->ddt_bias);
    return cuda_set_launched(s, "gates_bwd");
}

extern "C" status cuda_gated_norm_fwd(const struct gated_norm_fwd_args *a, dev_stream s)
{
    gated g = gated_of(a->rows, a->heads, a->d);
    if (a->rows == 0) return STATUS_OK;
    g.x = a->x, g.z = a->z, g.w = a->w, g.out = a->y, g.rstd = (float *)a->rstd, g.z_stride = a->z_stride,
    g.eps = (float)a->eps;
    BY_DTYPE(a->dt, gated_fwd_launch<T>(g, s));
    return cuda_set_launched(s, "gated_norm_fwd");
}

extern "C" status cuda_gated_norm_bwd(const struct gated_norm_bwd_args *a, dev_stream s)
{
    gated g = gated_of(a->rows, a->heads, a->d);
    if (a->rows == 0) return STATUS_OK;
    g.x = a->x, g.z = a->z, g.w = a->w, g.dy = a->dy, g.out = a->dx, g.dz = a->dz;
    g.rstd = (float *)(uintptr_t)a->rstd, g.z_stride = a->z_stride, g.dz_stride = a->dz_stride;
    BY_DTYPE(a->dt, gated_bwd_launch<T>(g, (float *)a->dw, s));
    return cuda_set_launched(s, "gated_norm_bwd");
}
