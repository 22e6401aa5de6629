// RMSNorm in BF16 that also writes the FP8 form of its result: E4M3 of y in forward, E5M2 of dx in backward. Bound:
// memory bandwidth. Per element: 2 bytes of x and 2 of codes in forward (with a branch and its sum 6 and 2), 6 bytes of
// dy, s and dres, 2 of dx and 2 of codes in backward.
//
//   rows       as in norm.cu: groups, registers, order of a row's sums; so the same bits of rstd, sum, y and dx
//   tile       a block takes 16, 32 or 64 rows one after another, a round of its groups at a time, and leaves their
//              codes in shared memory. Behind the last round it stores them by columns: 64 rows are runs of 64 bytes.
//   overlap    the next rows are on their way meanwhile
//   dw         a block sums the rows of its tiles, another order than norm.cu's: other bits. It depends on the shape,
//              the number of multiprocessors, and what q asks for.
//   the rest   F32, unaligned rows, rows of which 16 do not fit in shared memory, the format that training does not
//              use: the kernels of norm.cu, then `quantize`.
#include "ops/cuda/fp8.cuh"
#include "ops/cuda/norm.cuh"

namespace {

// Where a group is: the tile's first row, and the round in it. All groups of a block make the same steps.
struct tile_walk {
    int64_t first, step, rows; // step: from tile to tile of the block
    int tile, count, index, round;
    __device__ tile_walk(const row_group &g, int tile_, int64_t rows_)
        : first((int64_t)blockIdx.x * tile_), step((int64_t)gridDim.x * tile_), rows(rows_), tile(tile_),
          count(g.count), index(g.index), round(0)
    {
    }
    __device__ int local() const { return round * count + index; }
    __device__ int64_t row() const { return first + local(); }
    __device__ bool has() const { return local() < tile && row() < rows; } // a row in this round
    __device__ void next()
    {
        round++;
        if (round * count >= tile) round = 0, first += step;
    }
};

// The codes of vector p of a row, to memory and to the tile.
template <int ROWS, int W, int P>
__device__ inline void leave_codes(const code_out &o, const tile_walk &at, const columns<W, P> &c, int p, int d,
                                   uint8_t *tile, const codes_vec<W> &codes)
{
    if (o.codes) store_codes(o.codes + at.row() * d + c.at[p], codes);
    if (o.codes_t) code_tile<ROWS>::put(tile, code_tile<ROWS>::width(d), at.local(), c.at[p], codes);
}
// Stores the tile if `at` was its last round.
template <int ROWS>
__device__ inline void leave_tile(const code_out &o, const tile_walk &at, const tile_walk &next, int d,
                                  const uint8_t *tile)
{
    if (!o.codes_t || next.round != 0) return;
    __syncthreads();
    const int rows = at.rows - at.first < ROWS ? (int)(at.rows - at.first) : ROWS;
    code_tile<ROWS>::store(tile, code_tile<ROWS>::width(d), o.codes_t, o.ld, at.first, 0, rows, d, threadIdx.x,
                           blockDim.x);
    __syncthreads();
}

template <typename T, int W, int P, int ROWS>
__global__ void __launch_bounds__(BLOCK) rmsnorm_fwd_codes_kernel(const norm_fwd a, const code_out o)
{
    __shared__ row_exchange<BLOCK, 1> exchange;
    __shared__ uint32_t most_exchange[WARP];
    extern __shared__ int4 space[]; // the tile
    row_group g(a.threads);
    const columns<W, P> c(g, a.d);
    row_part<T, W, P> x = {}, branch = {}, s = {}, w = {};
    const float scale = o.scale_now();
    amax_of<T> most;
    load_weight(w, a.w, c);
    tile_walk at(g, ROWS, a.rows);
    if (at.has()) {
        load_row(x, a.x, at.row() * a.x_stride, c);
        if (a.branch) load_row(branch, a.branch, at.row() * a.d, c);
    }
    while (at.first < a.rows) {
        const bool has = at.has();
        tile_walk next = at;
        next.next();
        if (has) form_sum(a, at.row() * a.d, c, x, branch, s);
        if (next.has()) {
            load_row(x, a.x, next.row() * a.x_stride, c);
            if (a.branch) load_row(branch, a.branch, next.row() * a.d, c);
        }
        float sum[1] = {squares(s, c, 0)};
        row_sum(g, sum, exchange);
        keep_narrow(s);
        keep_narrow(w);
        const float rstd = 1 / sqrtf(sum[0] / a.d + a.eps);
        for (int p = 0; p < P; p++) {
            if (!has || !c.has[p]) continue;
            float f[W], fw[W];
            widen(s.v[p], f);
            widen(w.v[p], fw);
            normalize<false>(f, fw, fw, 0, rstd, a.shift);
            const vec<T, W> y = narrow<T>(f);
            most.add(y);
            if (a.y) store_vec((T *)a.y + at.row() * a.y_stride + c.at[p], y);
            leave_codes<ROWS>(o, at, c, p, a.d, (uint8_t *)space, codes_of(y, scale, false));
        }
        if (has && g.rank == 0 && a.rstd) a.rstd[at.row()] = rstd;
        leave_tile<ROWS>(o, at, next, a.d, (const uint8_t *)space);
        at = next;
    }
    amax_store_block(most.bits(), o.amax, most_exchange);
}

template <typename T, int W, int P, int ROWS>
__global__ void __launch_bounds__(BLOCK)
    rmsnorm_bwd_codes_kernel(const norm_bwd a, const code_out o, int stages, int tile_vectors)
{
    __shared__ row_exchange<BLOCK, 1> exchange;
    __shared__ uint32_t most_exchange[WARP];
    extern __shared__ int4 space[]; // the tile, the rows ahead; at the end [d] floats when the block holds several rows
    row_group g(a.threads);
    const columns<W, P> c(g, a.d);
    row_part<T, W, P> w = {};
    uint8_t *tile = (uint8_t *)space;
    rows_ahead<T, W, P> rows(space + tile_vectors, stages);
    float dw[P * W] = {}, db[1] = {}, rstd = 0;
    const float scale = o.scale_now();
    amax_of<T> most;
    load_weight(w, a.w, c);
    tile_walk at(g, ROWS, a.rows), ahead = at; // ahead: of the next row to ask for
    for (int i = 0; i < stages; i++, ahead.next())
        rows.ask(a, ahead.has() ? ahead.row() : a.rows, a.dy_stride, a.s_stride, c);
    if (at.has()) rstd = a.rstd[at.row()];
    while (at.first < a.rows) {
        const bool has = at.has();
        tile_walk next = at;
        next.next();
        const float rstd_next = next.has() ? a.rstd[next.row()] : 0;
        float sums[1] = {};
        rows.wait();
        if (has) gradient_sums<false>(rows, w, c, a.shift, 0, rstd, sums);
        row_sum(g, sums, exchange);
        asm volatile("" ::: "memory"); // reading again is cheaper than registers
        keep_narrow(w);
        const float gx_mean = sums[0] / a.d;
        for (int p = 0; p < P; p++) {
            if (!has || !c.has[p]) continue;
            float f[W];
            gradient<false>(rows, w, c, p, a.dres != NULL, a.shift, 0, rstd, 0, gx_mean, f, dw, db);
            const vec<T, W> dx = narrow<T>(f);
            most.add(dx);
            store_vec((T *)a.dx + at.row() * a.dx_stride + c.at[p], dx);
            leave_codes<ROWS>(o, at, c, p, a.d, tile, codes_of(dx, scale, true));
        }
        rows.ask(a, ahead.has() ? ahead.row() : a.rows, a.dy_stride, a.s_stride, c);
        ahead.next();
        leave_tile<ROWS>(o, at, next, a.d, tile);
        rstd = rstd_next;
        at = next;
    }
    __syncthreads(); // the space is free: loads past the end had no elements
    leave_partial<W, P>(g, c, dw, (float *)space, a.partial + (int64_t)blockIdx.x * a.d, a.d);
    amax_store_block(most.bits(), o.amax, most_exchange);
}

// Bytes of shared memory that a block may have beside what the kernels have of their own.
int shared_most(dev_stream s)
{
    int of_block = 0;
    // The launch reports an error of this call.
    (void)cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, s->dev->index);
    return of_block - (int)(sizeof(row_exchange<BLOCK, 1>) + WARP * sizeof(uint32_t));
}

// Rows of a tile in `space` bytes: as many as fit, but no multiprocessor without a tile for it. 0: 16 do not fit.
int tile_rows(int64_t rows, int d, int space, int multiprocessors)
{
    const int width = code_tile<16>::width(d);
    int tile = 64;
    while (tile > 16 && (tile * width > space || (rows + tile - 1) / tile < multiprocessors)) tile /= 2;
    return tile * width <= space ? tile : 0;
}
int64_t tile_blocks(dev_stream s, int64_t rows, int tile)
{
    const int64_t tiles = (rows + tile - 1) / tile, most = cuda_set(s)->multiprocessors;
    return tiles < most ? tiles : most;
}

enum { W = 8, P_FWD = PACKS_FWD, P_BWD = 2 };

template <int ROWS> void fwd_start(const norm_fwd &a, const code_out &o, int64_t blocks, int shared, dev_stream s)
{
    const auto kernel = rmsnorm_fwd_codes_kernel<__nv_bfloat16, W, P_FWD, ROWS>;
    const unsigned block = (unsigned)(BLOCK / a.threads * a.threads);
    (void)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    kernel<<<(unsigned)blocks, block, (size_t)shared, queue_of(s)>>>(a, o); // shows a failure of the line above
}
template <int ROWS>
void bwd_start(const norm_bwd &a, const code_out &o, int64_t blocks, int stages, int tile_bytes, int shared,
               dev_stream s)
{
    const auto kernel = rmsnorm_bwd_codes_kernel<__nv_bfloat16, W, P_BWD, ROWS>;
    const unsigned block = (unsigned)(BLOCK / a.threads * a.threads);
    (void)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    kernel<<<(unsigned)blocks, block, (size_t)shared, queue_of(s)>>>(a, o, stages, tile_bytes / 16);
}

} // namespace

bool rmsnorm_fwd_codes(const struct rmsnorm_fwd_args *x, dev_stream s)
{
    bool aligned;
    norm_fwd a = rmsnorm_fwd_of(x, &aligned);
    const code_out o = code_out_of(&x->q, x->rows, x->d, "y");
    a.threads = aligned && a.d % W == 0 && a.x_stride % W == 0 ? group_threads(a.d, W, P_FWD) : 0;
    if (x->dt != DTYPE_BF16 || a.threads == 0 || (quantized_any(&x->q) && o.e5m2)) return false;
    const int tile = tile_rows(a.rows, a.d, o.codes_t ? shared_most(s) : INT32_MAX, cuda_set(s)->multiprocessors),
              shared = o.codes_t ? tile * code_tile<16>::width(a.d) : 0;
    if (tile == 0) return false;
    if (x->q.only && quantized_any(&x->q)) a.y = NULL;
    const int64_t blocks = tile_blocks(s, a.rows, tile);
    if (tile == 64) fwd_start<64>(a, o, blocks, shared, s);
    else if (tile == 32) fwd_start<32>(a, o, blocks, shared, s);
    else fwd_start<16>(a, o, blocks, shared, s);
    return true;
}

bool rmsnorm_bwd_codes(const struct rmsnorm_bwd_args *x, dev_stream s)
{
    bool aligned;
    norm_bwd a = rmsnorm_bwd_of(x, &aligned);
    const code_out o = code_out_of(&x->q, x->rows, x->d, "dx");
    aligned = aligned && a.d % W == 0 && a.dy_stride % W == 0 && a.s_stride % W == 0 && a.dx_stride % W == 0;
    a.threads = aligned ? group_threads(a.d, W, P_BWD) : 0;
    if (x->dt != DTYPE_BF16 || a.threads == 0 || (quantized_any(&x->q) && !o.e5m2)) return false;
    const int block = BLOCK / a.threads * a.threads, most = shared_most(s),
              row_bytes = rows_ahead<__nv_bfloat16, W, P_BWD>::ARRAYS * P_BWD * block * 16;
    int tile = 0;
    for (int ahead = 2; ahead > 0 && tile == 0; ahead--)
        tile = tile_rows(a.rows, a.d, o.codes_t ? most - ahead * row_bytes : INT32_MAX, cuda_set(s)->multiprocessors);
    if (tile == 0) return false;
    const int tile_bytes = o.codes_t ? tile * code_tile<16>::width(a.d) : 0, fit = (most - tile_bytes) / row_bytes,
              stages = fit < STAGES ? fit : STAGES;
    const int64_t tiles = tile_blocks(s, a.rows, tile), blocks = partials_fit(tiles, a.d);
    a.partial = (float *)cuda_set_workspace(s, sizeof(float) * (size_t)(blocks * a.d), "rmsnorm_bwd");
    const int shared = tile_bytes + stages * row_bytes;
    if (tile == 64) bwd_start<64>(a, o, blocks, stages, tile_bytes, shared, s);
    else if (tile == 32) bwd_start<32>(a, o, blocks, stages, tile_bytes, shared, s);
    else bwd_start<16>(a, o, blocks, stages, tile_bytes, shared, s);
    partials_add(s, a.partial, blocks, a.d, a.d, (float *)x->dw, NULL);
    return true;
}
