// FP8 codes of the experts' sorted rows: quantize's squares (fp8.cuh) over as many rows as the device has counted.
// Bound: memory. A block makes the codes of 128 x 128 elements, or gathers those of 128 rows, and stores them by rows
// from registers and by columns through shared memory. Squares behind the last row are empty.
#include "ops/cuda/fp8.cuh"
extern "C" {
#include "ops/cuda/moe_backends.h"
}

namespace {

enum { THREADS = code_square::THREADS, EACH = code_square::EACH };

// W: elements of an access to x.
template <typename T, int W, bool E5M2, bool TRANS>
__global__ void __launch_bounds__(THREADS, sizeof(T) == 2 ? 4 : 2)
    codes_kernel(const expert_codes_args a, const code_out o)
{
    __shared__ __align__(16) uint8_t tile[TRANS ? code_square::TILE_BYTES : 16];
    __shared__ uint32_t exchange[WARP];
    const code_square square(a.offsets[a.experts], a.n);
    if (square.rows <= 0) return;
    const float scale = o.scale_now();
    vec<T, 8> v[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        v[i] = vec<T, 8>{};
        if (square.has(i)) v[i] = load_eight_once<W>((const T *)a.x + square.at(i, a.n));
    }
    amax_of<T> most;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        most.add(v[i]);
        square.put(o, TRANS ? tile : nullptr, i, codes_of(v[i], scale, E5M2), a.n, 0);
    }
    if (TRANS) {
        __syncthreads();
        square.store(o.panel_of(square.row0, a.n), tile, 0);
    }
    amax_store_block(most.bits(), o.amax, exchange);
}

// Codes by token to transposed codes of sorted rows; all of a thread's loads are under way before the first is used.
__global__ void __launch_bounds__(THREADS, 4) gather_kernel(const expert_codes_args a, const code_out o)
{
    __shared__ __align__(16) uint8_t tile[code_square::TILE_BYTES];
    const code_square square(a.offsets[a.experts], a.n);
    if (square.rows <= 0) return;
    codes_vec<8> v[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int slot = square.has(i) ? a.source[square.row0 + square.slot + i * code_square::STEP] : -1;
        const uint8_t *from = (const uint8_t *)a.x + slot / (int)a.top_k * a.n + square.column0 + square.column;
        v[i] = codes_vec<8>{};
        if (slot >= 0) v[i] = *reinterpret_cast<const codes_vec<8> *>(from);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) square.put(o, tile, i, v[i], a.n, 0);
    __syncthreads();
    square.store(o.panel_of(square.row0, a.n), tile, 0);
}

template <typename T, int W>
void queue_codes(const expert_codes_args &a, const code_out &o, unsigned grid, dev_stream s)
{
    auto *kernel = o.e5m2 ? (o.codes_t ? codes_kernel<T, W, true, true> : codes_kernel<T, W, true, false>)
                          : (o.codes_t ? codes_kernel<T, W, false, true> : codes_kernel<T, W, false, false>);
    kernel<<<grid, THREADS, 0, queue_of(s)>>>(a, o);
}

} // namespace

extern "C" status cuda_expert_codes(const struct expert_codes_args *a, dev_stream s)
{
    const int64_t rows = moe_rows_max(a->rows, a->top_k, a->experts, a->align);
    expert_codes_check(a);
    CHECK(a->n % 8 == 0, "rows of experts of %lld on a GPU: multiples of 8", (long long)a->n);
    code_out o = code_out_of(&a->q, rows, a->n, "experts' rows");
    if (a->rows == 0 || !quantized_asked(&a->q)) return STATUS_OK;
    o.ld = a->ld;
    const unsigned grid = code_square::grid(rows, a->n);
    if (a->gather) {
        CHECK(aligned16(a->x), "codes of rows at %p: not at 16 bytes", a->x);
        gather_kernel<<<grid, THREADS, 0, queue_of(s)>>>(*a, o);
        return cuda_set_launched(s, "expert_codes (gather)");
    }
    BY_DTYPE(a->dt, {
        if (aligned16(a->x)) queue_codes<T, WIDE<T>>(*a, o, grid, s);
        else queue_codes<T, 1>(*a, o, grid, s);
    });
    return cuda_set_launched(s, "expert_codes");
}
