// F32 to BF16 and back. A vector is 16 bytes of f32 and 8 of bf16: neighbours touch neighbouring bytes on both sides. NaN keeps its upper bits, as dtype.h's bf16_from_f32 does, so that both sets
// give the same bits.
#include "ops/cuda/rowwise.cuh"
extern "C" {
#include "ops/rounding.h"
}

namespace {

enum { THREADS = 256, AHEAD = 8, ELEMENTS = 4 };

__device__ inline __nv_bfloat16 convert(float x, __nv_bfloat16)
{
    __nv_bfloat16_raw nan = {(unsigned short)(__float_as_uint(x) >> 16 | 0x40)};
    return x != x ? __nv_bfloat16(nan) : __float2bfloat16_rn(x);
}
__device__ inline float convert(__nv_bfloat16 x, float)
{
    return to_f32(x);
}

// The elements that make no whole vector, at the end, are done one by one in the first block.
template <typename From, typename To, int W>
__global__ void __launch_bounds__(THREADS) cast_kernel(const From *x, To *y, int64_t count)
{
    int64_t vectors = count / W, first = (int64_t)blockIdx.x * AHEAD * THREADS + threadIdx.x, rest = vectors * W + threadIdx.x;
    vec<From, W> v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (first + k * THREADS < vectors) v[k] = load_vec_once<W>(x + (first + k * THREADS) * W);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        if (first + k * THREADS >= vectors) continue;
        vec<To, W> out;
        for (int j = 0; j < W; j++) out.v[j] = convert(v[k].v[j], To());
        store_vec(y + (first + k * THREADS) * W, out);
    }
    if (blockIdx.x == 0 && rest < count) y[rest] = convert(x[rest], To());
}

template <typename From, typename To> void cast_launch(const struct cast_args *a, dev_stream s)
{
    const From *x = (const From *)a->x;
    To *y = (To *)a->y;
    bool wide = aligned16(x) && aligned16(y);
    int64_t width = wide ? ELEMENTS : 1, vectors = (a->count + width - 1) / width;
    unsigned blocks = (unsigned)((vectors + AHEAD * THREADS - 1) / (AHEAD * THREADS));
    if (wide)
        cast_kernel<From, To, ELEMENTS><<<blocks, THREADS, 0, queue_of(s)>>>(x, y, a->count);
    else
        cast_kernel<From, To, 1><<<blocks, THREADS, 0, queue_of(s)>>>(x, y, a->count);
}

status cast(const struct cast_args *a, dev_stream s)
{
    if (a->count == 0) return STATUS_OK;
    CHECK(a->y != a->x, "cast in place");
    if (a->from == a->to) return dev_copy(s, a->y, a->x, (size_t)a->count * dtype_bytes(a->from));
    if (a->from == DTYPE_F32 && a->to == DTYPE_BF16)
        cast_launch<float, __nv_bfloat16>(a, s);
    else if (a->from == DTYPE_BF16 && a->to == DTYPE_F32)
        cast_launch<__nv_bfloat16, float>(a, s);
    else
        CHECK(0, "cast from %s to %s", dtype_name(a->from), dtype_name(a->to));
    return cuda_set_launched(s, "cast");
}

// At the beginning of a run, and after a step of the few rows that are read in F32.
__global__ void __launch_bounds__(THREADS) halves_kernel(const halves_args a)
{
    const int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.count; i += stride) {
        if (a.way == HALVES_JOIN) {
            a.x[i] = __uint_as_float(rounding_joined(a.upper[i], a.low[i]));
            continue;
        }
        const struct half_pair h = rounding_halves(__float_as_uint(a.x[i]));
        a.upper[i] = h.upper;
        if (a.low) a.low[i] = h.low;
    }
}

status halves(const struct halves_args *a, dev_stream s)
{
    CHECK(a->way == HALVES_SPLIT || a->low, "an upper half alone");
    if (a->count == 0) return STATUS_OK;
    const int64_t blocks = (a->count + THREADS - 1) / THREADS, most = cuda_set(s)->multiprocessors * 8;
    halves_kernel<<<(unsigned)(blocks < most ? blocks : most), THREADS, 0, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "halves");
}

template <typename T> __global__ void __launch_bounds__(THREADS) fold_kernel(T *x, T *kept, int64_t count, bool keep)
{
    const int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
        const T v = x[i];
        if (keep) kept[i] = v;
        x[i] = keep ? T(0) : v + kept[i];
    }
}

status fold(const struct fold_args *a, dev_stream s)
{
    if (a->count == 0) return STATUS_OK;
    const int64_t blocks = (a->count + THREADS - 1) / THREADS, most = cuda_set(s)->multiprocessors * 8;
    const unsigned grid = (unsigned)(blocks < most ? blocks : most);
    if (a->dt == DTYPE_F32)
        fold_kernel<<<grid, THREADS, 0, queue_of(s)>>>((float *)a->x, (float *)a->kept, a->count, a->what == FOLD_KEEP);
    else
        fold_kernel<<<grid, THREADS, 0, queue_of(s)>>>((double *)a->x, (double *)a->kept, a->count, a->what == FOLD_KEEP);
    return cuda_set_launched(s, "fold");
}

} // namespace

extern "C" void cuda_cast_slots(struct ops *o)
{
    o->cast = cast;
    o->halves = halves;
    o->fold = fold;
}
