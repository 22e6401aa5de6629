// Codes with scales of their own: quantize_blocks (ops/ops_fp8.h), for every format by one kernel.
//
// A block takes a tile of 128 x 128 into shared memory, as F32: it holds whole blocks of every format, of lines along
// rows and along columns. A thread has 16 elements of a line at a time: they are rotated, measured and encoded by it.
// A row of the tile has a float more, so that neither direction has bank conflicts.
extern "C" {
#include "ops/block_scale.h"
}
#include "ops/cuda/rowwise.cuh"

namespace {

enum { TILE = 128, LD = TILE + 1, GROUP = 16, ALONG = TILE / GROUP, GROUPS = TILE * ALONG, THREADS = 256 };

struct tile_smem {
    float x[TILE * LD];
    uint32_t amax[GROUPS]; // of blocks
};

// Where a tile lies, in lines and elements along them.
struct place_of {
    const quantize_blocks_args &a;
    int64_t lines, length, line0, at0;
    __device__ place_of(const quantize_blocks_args &args) : a(args)
    {
        lines = a.columns ? a.n : a.rows;
        length = a.columns ? a.rows : a.n;
        const int64_t wide = (length + TILE - 1) / TILE;
        line0 = blockIdx.x / wide * TILE;
        at0 = blockIdx.x % wide * TILE;
    }
    __device__ int shared(int line, int at) const { return a.columns ? at * LD + line : line * LD + at; }
    __device__ bool has(int line) const { return line0 + line < lines; }
};

template <typename T> __device__ inline void tile_load(const place_of &p, tile_smem &t)
{
    const int64_t row0 = p.a.columns ? p.at0 : p.line0, col0 = p.a.columns ? p.line0 : p.at0;
    for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
        const int64_t row = row0 + i / TILE, col = col0 + i % TILE;
        t.x[i / TILE * LD + i % TILE] =
            row < p.a.rows && col < p.a.n ? to_f32(((const T *)p.a.x)[row * p.a.n + col]) : 0.f;
    }
    __syncthreads();
    if (!p.a.hadamard) return;
    for (int g = threadIdx.x; g < GROUPS; g += THREADS) {
        float x[GROUP];
#pragma unroll
        for (int i = 0; i < GROUP; i++) x[i] = t.x[p.shared(g % TILE, g / TILE * GROUP + i)];
        block_rotate(x);
#pragma unroll
        for (int i = 0; i < GROUP; i++) t.x[p.shared(g % TILE, g / TILE * GROUP + i)] = x[i];
    }
    __syncthreads();
}

__device__ inline uint32_t group_amax(const place_of &p, const tile_smem &t, int g)
{
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < GROUP; i++) most = max(most, block_magnitude(t.x[p.shared(g % TILE, g / TILE * GROUP + i)]));
    return most;
}

// The slot of the block that has group g: `line` of the tile, and `along`, number of the group in it.
__device__ inline int slot_of(const quantize_blocks_args &a, int line, int along)
{
    switch (a.format) {
    case BLOCKS_B128: return a.square ? 0 : line;
    case BLOCKS_MX: return along / 2 * TILE + line;
    case BLOCKS_NV: return a.square ? along * (TILE / GROUP) + line / GROUP : along * TILE + line;
    default: return 0;
    }
}

__device__ inline void scale_put(const place_of &p, int line, int along, const struct block_scale &s)
{
    const int each = (int)block_length(p.a.format) / GROUP;
    const bool bytes = p.a.format != BLOCKS_B128;
    if (along % each || (!bytes && p.a.square && line > 0)) return;
    const int64_t at = block_scale_at(p.a.format, p.a.square, p.lines, p.length, p.line0 + line,
                                      (p.at0 / GROUP + along) / each);
    if (bytes) ((uint8_t *)p.a.scales)[at] = s.code;
    else ((float *)p.a.scales)[at] = s.decode;
}

// Codes of one group, and their values in its place.
__device__ inline void group_encode(const place_of &p, tile_smem &t, int g, const struct block_scale &s)
{
    const int line = g % TILE, along = g / TILE;
    const int64_t at = p.at0 + along * GROUP, ld = (p.length + GROUP - 1) / GROUP * GROUP;
    uint8_t codes[GROUP];
    rng_block words = {};
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        if (p.a.stochastic && i % 8 == 0)
            words = rng_at(p.a.seed, RNG_CODES, p.a.scalars->step,
                           p.a.first + (uint64_t)((p.line0 + line) * ld + at + i) / 8);
        const int random = p.a.stochastic ? (int)(words.u[i % 8 / 2] >> i % 2 * 16 & 0xffff) : BLOCK_NEAREST;
        float *x = &t.x[p.shared(line, along * GROUP + i)];
        codes[i] = at + i < p.length ? block_encode(p.a.format, *x, s.encode, random) : 0;
        *x = block_value(p.a.format, codes[i], s.decode);
    }
    if (!p.a.codes) return;
    uint8_t *to = p.a.codes + (p.line0 + line) * block_ld(p.a.format, p.length);
    if (p.a.format == BLOCKS_NV)
        for (int i = 0; i < GROUP; i += 2) to[(at + i) / 2] = (uint8_t)(codes[i] | codes[i + 1] << 4);
    else
        for (int i = 0; i < GROUP; i++) to[at + i] = codes[i];
}

__device__ inline void values_store(const place_of &p, const tile_smem &t)
{
    const int64_t row0 = p.a.columns ? p.at0 : p.line0, col0 = p.a.columns ? p.line0 : p.at0;
    for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
        const int64_t row = row0 + i / TILE, col = col0 + i % TILE;
        if (row < p.a.rows && col < p.a.n)
            ((__nv_bfloat16 *)p.a.values)[row * p.a.n + col] = __float2bfloat16_rn(t.x[i / TILE * LD + i % TILE]);
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) amax_kernel(const quantize_blocks_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    tile_smem &t = *reinterpret_cast<tile_smem *>(shared);
    const place_of p(a);
    uint32_t most = 0;
    tile_load<T>(p, t);
    for (int g = threadIdx.x; g < GROUPS; g += THREADS) most = max(most, group_amax(p, t, g));
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % WARP == 0) atomicMax((unsigned *)a.tensor, most);
}

template <typename T> __global__ void __launch_bounds__(THREADS) blocks_kernel(const quantize_blocks_args a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    tile_smem &t = *reinterpret_cast<tile_smem *>(shared);
    const place_of p(a);
    const float tensor =
        block_tensor_scale(a.format) ? block_tensor_encode(a.format, __float_as_uint(a.tensor[0]), a.exact) : 1.f;
    if (block_tensor_scale(a.format) && blockIdx.x == 0 && threadIdx.x == 0) a.tensor[1] = 1 / tensor;
    for (int g = threadIdx.x; g < GROUPS; g += THREADS) t.amax[g] = 0;
    tile_load<T>(p, t);
    const bool blocks = block_length(a.format) > 0;
    for (int g = threadIdx.x; blocks && g < GROUPS; g += THREADS)
        atomicMax(&t.amax[slot_of(a, g % TILE, g / TILE)], group_amax(p, t, g));
    __syncthreads();
    for (int g = threadIdx.x; g < GROUPS; g += THREADS) {
        const int line = g % TILE, along = g / TILE;
        if (!p.has(line) || p.at0 + along * GROUP >= p.length) continue;
        const struct block_scale s = block_scale_of(a.format, t.amax[slot_of(a, line, along)], tensor);
        if (blocks && a.scales) scale_put(p, line, along, s);
        group_encode(p, t, g, s);
    }
    __syncthreads();
    if (a.values) values_store(p, t);
}

template <typename T> status launch(const struct quantize_blocks_args *a, dev_stream s)
{
    const int64_t tiles = ((a->rows + TILE - 1) / TILE) * ((a->n + TILE - 1) / TILE);
    const int bytes = (int)sizeof(tile_smem);
    cudaFuncSetAttribute(amax_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaFuncSetAttribute(blocks_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (block_tensor_scale(a->format)) {
        cudaMemsetAsync(a->tensor, 0, sizeof(float), queue_of(s)); // a failure shows at the launch, as those below
        amax_kernel<T><<<(unsigned)tiles, THREADS, bytes, queue_of(s)>>>(*a);
        TRY(cuda_set_launched(s, "quantize_blocks"));
    }
    if (a->scales) {
        const int64_t lines = quantize_blocks_lines(a), length = quantize_blocks_length(a);
        cudaMemsetAsync(a->scales, 0, block_scale_bytes(a->format, a->square, lines, length), queue_of(s));
    }
    blocks_kernel<T><<<(unsigned)tiles, THREADS, bytes, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "quantize_blocks");
}

status quantize_blocks(const struct quantize_blocks_args *a, dev_stream s)
{
    quantize_blocks_check(a);
    if (a->rows == 0 || a->n == 0) return STATUS_OK;
    BY_DTYPE(a->dt, return launch<T>(a, s));
}

__global__ void factors_kernel(const float *a, const float *b, float beta, float *out)
{
    out[0] = a[0] * b[0];
    out[1] = beta;
}

} // namespace

extern "C" void cuda_block_factors(const float *a, const float *b, float beta, float *out, dev_stream s)
{
    factors_kernel<<<1, 1, 0, queue_of(s)>>>(a, b, beta, out);
}

extern "C" void cuda_blocks_slots(struct ops *o)
{
    o->quantize_blocks = quantize_blocks;
}
