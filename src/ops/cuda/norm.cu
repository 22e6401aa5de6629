// Residual add and norm, forward and backward, in one pass each; column sums of biases. Bound: memory bandwidth.
//
//   blocks     persistent, 16 warps per multiprocessor, mostly one block
//   row        held by a group of threads, one warp if enough, so a block has several rows; each thread holds up to P
//              vectors, in fixed columns: element j of vector p of thread t = column (p * threads + t) * W + j
//   forward    loads the next row as soon as s is computed, before the row's own sums
//   backward   up to three rows in flight to shared memory: dw and db take the registers until the end (partials.cuh)
//   RMSNorm    LayerNorm with mean 0, without bias and without mean(g)
//   sums       f32: a thread's own elements in order, then a tree
//   unaligned  the same kernels with W = 1 if 16-byte loads are impossible (width, alignment) or the row is too wide
//              for P vectors per thread: slow. Widths up to 16384.
#include "ops/cuda/fp8.cuh"
#include "ops/cuda/norm.cuh"

namespace {

template <typename T, int W, int P, bool LAYER>
__global__ void __launch_bounds__(BLOCK) norm_fwd_kernel(const norm_fwd a)
{
    __shared__ row_exchange<BLOCK, 1> exchange;
    row_group g(a.threads);
    const columns<W, P> c(g, a.d);
    row_part<T, W, P> x = {}, branch = {}, s, w = {}, b = {};
    int64_t step = (int64_t)gridDim.x * g.count, row = (int64_t)blockIdx.x * g.count + g.index;
    load_weight(w, a.w, c);
    if (LAYER) load_weight(b, a.b, c);
    if (row < a.rows) {
        load_row(x, a.x, row * a.x_stride, c);
        if (a.branch) load_row(branch, a.branch, row * a.d, c);
    }
    for (; row < a.rows; row += step) {
        form_sum(a, row * a.d, c, x, branch, s);
        if (row + step < a.rows) {
            load_row(x, a.x, (row + step) * a.x_stride, c);
            if (a.branch) load_row(branch, a.branch, (row + step) * a.d, c);
        }
        float mean = 0, sum[1] = {0};
        if (LAYER) {
            for (int p = 0; p < P; p++) {
                float f[W];
                widen(s.v[p], f);
                for (int j = 0; j < W; j++) sum[0] += f[j];
            }
            row_sum(g, sum, exchange);
            keep_narrow(s);
            mean = sum[0] / a.d;
        }
        sum[0] = squares(s, c, mean);
        row_sum(g, sum, exchange);
        keep_narrow(s);
        keep_narrow(w);
        keep_narrow(b);
        float rstd = 1 / sqrtf(sum[0] / a.d + a.eps);
        for (int p = 0; p < P; p++) {
            float f[W], fw[W], fb[W];
            widen(s.v[p], f);
            widen(w.v[p], fw);
            widen(b.v[p], fb);
            normalize<LAYER>(f, fw, fb, mean, rstd, a.shift);
            if (c.has[p]) store_vec((T *)a.y + row * (LAYER ? a.d : a.y_stride) + c.at[p], narrow<T>(f));
        }
        if (g.rank == 0 && a.rstd) a.rstd[row] = rstd;
        if (LAYER && g.rank == 0 && a.mean) a.mean[row] = mean;
    }
}

template <typename T, int W, int P, bool LAYER>
__global__ void __launch_bounds__(BLOCK) norm_bwd_kernel(const norm_bwd a, int stages)
{
    __shared__ row_exchange<BLOCK, 1 + LAYER> exchange;
    extern __shared__ int4 space[]; // the rows ahead; at the end [d] floats when the block holds several rows
    typedef rows_ahead<T, W, P> ahead;
    row_group g(a.threads);
    const columns<W, P> c(g, a.d);
    // LayerNorm has no registers to spare
    const int dy_stride = LAYER ? a.d : a.dy_stride, s_stride = LAYER ? a.d : a.s_stride,
              dx_stride = LAYER ? a.d : a.dx_stride;
    row_part<T, W, P> w = {};
    ahead rows(space, stages);
    float dw[P * W] = {}, db[LAYER ? P * W : 1] = {}, mean = 0, rstd = 0;
    int64_t step = (int64_t)gridDim.x * g.count, row = (int64_t)blockIdx.x * g.count + g.index;
    load_weight(w, a.w, c);
    for (int i = 0; i < stages; i++) rows.ask(a, row + i * step, dy_stride, s_stride, c);
    if (row < a.rows) {
        rstd = a.rstd[row];
        if (LAYER) mean = a.mean[row];
    }
    for (; row < a.rows; row += step) {
        bool more = row + step < a.rows;
        float rstd_next = more ? a.rstd[row + step] : 0, mean_next = LAYER && more ? a.mean[row + step] : 0;
        float sums[1 + LAYER] = {}; // of g xhat, of g
        if (!ahead::IN_RING) rows.point(a, row, dy_stride, s_stride);
        rows.wait();
        gradient_sums<LAYER>(rows, w, c, a.shift, mean, rstd, sums);
        row_sum(g, sums, exchange);
        asm volatile("" ::: "memory"); // reading again is cheaper than registers
        keep_narrow(w);
        float gx_mean = sums[0] / a.d, g_mean = LAYER ? sums[LAYER] / a.d : 0;
        for (int p = 0; p < P; p++) {
            if (!c.has[p]) continue;
            float dx[W];
            gradient<LAYER>(rows, w, c, p, a.dres != NULL, a.shift, mean, rstd, g_mean, gx_mean, dx, dw, db);
            store_vec((T *)a.dx + row * dx_stride + c.at[p], narrow<T>(dx));
        }
        rows.ask(a, row + stages * step, dy_stride, s_stride, c);
        rstd = rstd_next;
        mean = mean_next;
    }
    if (row - g.index < a.rows) row_sum_none(g); // the block's first group had one row more
    __syncthreads(); // the space is free: loads past the end had no elements
    float *shared = (float *)space, *to = a.partial + (int64_t)blockIdx.x * (1 + LAYER) * a.d;
    leave_partial<W, P>(g, c, dw, shared, to, a.d);
    if constexpr (LAYER) leave_partial<W, P>(g, c, db, shared, to + a.d, a.d);
}

int64_t group_blocks(dev_stream s, int64_t rows, int threads)
{
    int64_t blocks = cuda_set(s)->multiprocessors, groups = BLOCK / threads, needed = (rows + groups - 1) / groups;
    return needed < blocks ? needed : blocks;
}

template <typename T, bool LAYER> void norm_fwd_launch(norm_fwd a, bool aligned, dev_stream s)
{
    constexpr int W = WIDE<T>, P = PACKS_FWD;
    int threads = aligned && a.d % W == 0 && a.x_stride % W == 0 && a.y_stride % W == 0 ? group_threads(a.d, W, P) : 0;
    bool wide = threads != 0;
    a.threads = wide ? threads : group_threads(a.d, 1, ELEMENTS);
    CHECK(a.threads > 0, "a norm of %d columns, the limit is %d", a.d, BLOCK * ELEMENTS);
    unsigned blocks = (unsigned)group_blocks(s, a.rows, a.threads), block = (unsigned)(BLOCK / a.threads * a.threads);
    if (wide)
        norm_fwd_kernel<T, W, P, LAYER><<<blocks, block, 0, queue_of(s)>>>(a);
    else
        norm_fwd_kernel<T, 1, ELEMENTS, LAYER><<<blocks, block, 0, queue_of(s)>>>(a);
}

template <typename T, int W, int P, bool LAYER>
void norm_bwd_start(norm_bwd a, int block_most, float *dw, float *db, dev_stream s)
{
    a.threads = group_threads(a.d, W, P);
    CHECK(a.threads > 0, "a norm of %d columns, the limit is %d", a.d, BLOCK * ELEMENTS);
    const int groups = a.threads < block_most ? block_most / a.threads : 1, block = groups * a.threads;
    const bool ring = rows_ahead<T, W, P>::IN_RING;
    const int row_bytes = rows_ahead<T, W, P>::ARRAYS * P * block * 16,
              stages = ring ? stages_of(s, block, row_bytes) : 1;
    const int shared = ring ? stages * row_bytes : groups > 1 ? (int)sizeof(float) * a.d : 0;
    const void *kernel = (const void *)norm_bwd_kernel<T, W, P, LAYER>;
    int resident = 0;
    // a failure shows at the launch
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    (void)cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, block, (size_t)shared);
    const int64_t width = (1 + LAYER) * (int64_t)a.d, needed = (a.rows + groups - 1) / groups,
                  most = (int64_t)cuda_set(s)->multiprocessors * (resident > 1 ? resident : 1);
    const int64_t blocks = partials_fit(needed < most ? needed : most, width);
    a.partial = (float *)cuda_set_workspace(s, sizeof(float) * (size_t)(blocks * width), "norm_bwd");
    norm_bwd_kernel<T, W, P, LAYER><<<(unsigned)blocks, (unsigned)block, (size_t)shared, queue_of(s)>>>(a, stages);
    partials_add(s, a.partial, blocks, width, a.d, dw, db);
}

// Two vectors per thread, so registers hold their sums; four for rows that are too wide. Measured on an H200:
// RMSNorm is faster with one block per multiprocessor and half the partial rows; LayerNorm with two.
template <typename T, bool LAYER> void norm_bwd_launch(norm_bwd a, bool aligned, float *dw, float *db, dev_stream s)
{
    constexpr int W = WIDE<T>;
    const bool wide = aligned && a.d % W == 0 && a.dy_stride % W == 0 && a.s_stride % W == 0 && a.dx_stride % W == 0;
    if (wide && group_threads(a.d, W, 2))
        norm_bwd_start<T, W, 2, LAYER>(a, LAYER ? BLOCK / 2 : BLOCK, dw, db, s);
    else if (wide && group_threads(a.d, W, 4))
        norm_bwd_start<T, W, 4, LAYER>(a, BLOCK, dw, db, s);
    else
        norm_bwd_start<T, 1, ELEMENTS, LAYER>(a, BLOCK, dw, db, s);
}

// The FP8 form of what another kernel has stored: a pass of its own.
status codes_apart(const struct quantized *q, const void *x, int64_t rows, int64_t n, dtype dt, dev_stream s)
{
    struct quantize_args a = {};
    a.x = x, a.q = *q, a.rows = rows, a.n = n, a.dt = dt;
    return cuda_quantize(&a, s);
}

status rmsnorm_fwd(const struct rmsnorm_fwd_args *a, dev_stream s)
{
    CHECK(a->d > 0, "d %lld", (long long)a->d);
    CHECK(a->sum || !a->branch, "a branch needs a place for its sum");
    CHECK(!a->x_stride || (a->x_stride >= a->d && !a->sum), "x_stride %lld", (long long)a->x_stride);
    if (a->rows == 0) return STATUS_OK;
    CHECK(!a->y_stride || a->y_stride >= a->d, "y_stride %lld", (long long)a->y_stride);
    CHECK(a->x_stride <= INT32_MAX && a->y_stride <= INT32_MAX, "strides %lld and %lld", (long long)a->x_stride,
          (long long)a->y_stride);
    CHECK(!quantized_asked(&a->q) || !a->y_stride || a->y_stride == a->d, "codes of y with y_stride %lld",
          (long long)a->y_stride);
    if (quantized_asked(&a->q) && rmsnorm_fwd_codes(a, s)) return cuda_set_launched(s, "rmsnorm_fwd with codes");
    bool aligned;
    const norm_fwd f = rmsnorm_fwd_of(a, &aligned);
    BY_DTYPE(a->dt, (norm_fwd_launch<T, false>(f, aligned, s)));
    if (quantized_asked(&a->q)) TRY(codes_apart(&a->q, a->y, a->rows, a->d, a->dt, s));
    return cuda_set_launched(s, "rmsnorm_fwd");
}

status layernorm_fwd(const struct layernorm_fwd_args *a, dev_stream s)
{
    CHECK(a->d > 0, "d %lld", (long long)a->d);
    CHECK(a->sum || !a->branch, "a branch needs a place for its sum");
    if (a->rows == 0) return STATUS_OK;
    norm_fwd f = {a->x,           a->branch, a->w,      a->b, a->sum,       a->y, (float *)a->mean,
                  (float *)a->rstd, a->rows,   (int)a->d,   (int)a->d, (int)a->d, 0,    (float)a->eps, 0};
    bool aligned = aligned16(a->x) && aligned16(a->branch) && aligned16(a->w) && aligned16(a->b) && aligned16(a->sum) &&
                   aligned16(a->y);
    BY_DTYPE(a->dt, (norm_fwd_launch<T, true>(f, aligned, s)));
    return cuda_set_launched(s, "layernorm_fwd");
}

status rmsnorm_bwd(const struct rmsnorm_bwd_args *a, dev_stream s)
{
    CHECK(a->d > 0, "d %lld", (long long)a->d);
    if (a->rows == 0) return STATUS_OK;
    CHECK(a->dy_stride <= INT32_MAX && a->s_stride <= INT32_MAX && a->dx_stride <= INT32_MAX,
          "strides %lld, %lld and %lld", (long long)a->dy_stride, (long long)a->s_stride, (long long)a->dx_stride);
    CHECK(!quantized_asked(&a->q) || !a->dx_stride || a->dx_stride == a->d, "codes of dx with dx_stride %lld",
          (long long)a->dx_stride);
    if (quantized_asked(&a->q) && rmsnorm_bwd_codes(a, s)) return cuda_set_launched(s, "rmsnorm_bwd with codes");
    bool aligned;
    const norm_bwd b = rmsnorm_bwd_of(a, &aligned);
    BY_DTYPE(a->dt, (norm_bwd_launch<T, false>(b, aligned, (float *)a->dw, NULL, s)));
    if (quantized_asked(&a->q)) TRY(codes_apart(&a->q, a->dx, a->rows, a->d, a->dt, s));
    return cuda_set_launched(s, "rmsnorm_bwd");
}

status layernorm_bwd(const struct layernorm_bwd_args *a, dev_stream s)
{
    CHECK(a->d > 0, "d %lld", (long long)a->d);
    CHECK(a->mean && a->db, "layernorm_bwd needs mean and db");
    if (a->rows == 0) return STATUS_OK;
    norm_bwd b = {a->dy, a->s,    a->w,    a->dres,   (const float *)a->mean, (const float *)a->rstd,
                  a->dx, NULL, a->rows, (int)a->d, (int)a->d, (int)a->d, (int)a->d, 0,         0};
    bool aligned = aligned16(a->dy) && aligned16(a->s) && aligned16(a->w) && aligned16(a->dres) && aligned16(a->dx);
    BY_DTYPE(a->dt, (norm_bwd_launch<T, true>(b, aligned, (float *)a->dw, (float *)a->db, s)));
    return cuda_set_launched(s, "layernorm_bwd");
}

// Column sums: a block takes 32 vectors of columns and a range of rows, each warp every eighth row.
enum { BIAS_WARPS = 8, BIAS_BLOCKS = 4, BIAS_AHEAD = 8 };

template <typename T, int W>
__global__ void __launch_bounds__(BIAS_WARPS *WARP, BIAS_BLOCKS)
    bias_bwd_kernel(const T *dy, float *partial, int64_t rows, int64_t n, int64_t rows_each)
{
    __shared__ float sums[BIAS_WARPS][WARP * W];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t first = (int64_t)blockIdx.x * WARP * W, column = first + lane * W;
    int64_t begin = blockIdx.y * rows_each, end = begin + rows_each < rows ? begin + rows_each : rows;
    float sum[W] = {};
    for (int64_t row = begin + warp; column < n && row < end; row += BIAS_WARPS * BIAS_AHEAD) {
        vec<T, W> x[BIAS_AHEAD] = {};
#pragma unroll
        for (int i = 0; i < BIAS_AHEAD; i++)
            if (row + i * BIAS_WARPS < end) x[i] = load_vec_once<W>(dy + (row + i * BIAS_WARPS) * n + column);
#pragma unroll
        for (int i = 0; i < BIAS_AHEAD; i++) {
            float f[W];
            widen(x[i], f);
            for (int j = 0; j < W; j++) sum[j] += f[j];
        }
    }
    for (int j = 0; j < W; j++) sums[warp][lane * W + j] = sum[j];
    __syncthreads();
    for (int i = threadIdx.x; i < WARP * W && first + i < n; i += BIAS_WARPS * WARP) {
        float total = 0;
        for (int k = 0; k < BIAS_WARPS; k++) total += sums[k][i];
        partial[blockIdx.y * n + first + i] = total;
    }
}

template <typename T, int W> void bias_bwd_launch(const struct bias_bwd_args *a, dev_stream s)
{
    int64_t tiles = (a->n + WARP * W - 1) / (WARP * W), resident = (int64_t)cuda_set(s)->multiprocessors * BIAS_BLOCKS;
    int64_t ranges = resident / tiles, useful = (a->rows + BIAS_WARPS * BIAS_AHEAD - 1) / (BIAS_WARPS * BIAS_AHEAD);
    ranges = partials_fit(ranges < 1 ? 1 : ranges < useful ? ranges : useful, a->n);
    int64_t rows_each = (a->rows + ranges - 1) / ranges;
    ranges = (a->rows + rows_each - 1) / rows_each;
    float *partial = (float *)cuda_set_workspace(s, sizeof(float) * (size_t)(ranges * a->n), "bias_bwd");
    dim3 grid((unsigned)tiles, (unsigned)ranges);
    bias_bwd_kernel<T, W>
        <<<grid, BIAS_WARPS * WARP, 0, queue_of(s)>>>((const T *)a->dy, partial, a->rows, a->n, rows_each);
    partials_add(s, partial, ranges, a->n, a->n, (float *)a->db, NULL);
}

status bias_bwd(const struct bias_bwd_args *a, dev_stream s)
{
    if (a->rows == 0 || a->n == 0) return STATUS_OK;
    BY_DTYPE(a->dt, {
        if (aligned16(a->dy) && a->n % WIDE<T> == 0)
            bias_bwd_launch<T, WIDE<T>>(a, s);
        else
            bias_bwd_launch<T, 1>(a, s);
    });
    return cuda_set_launched(s, "bias_bwd");
}

} // namespace

extern "C" void cuda_norm_slots(struct ops *o)
{
    o->rmsnorm_fwd = rmsnorm_fwd;
    o->rmsnorm_bwd = rmsnorm_bwd;
    o->layernorm_fwd = layernorm_fwd;
    o->layernorm_bwd = layernorm_bwd;
    o->bias_bwd = bias_bwd;
}
