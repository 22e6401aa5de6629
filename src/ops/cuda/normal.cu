// Initial weights, drawn on the device: a billion normal numbers take a second on many cores, and milliseconds
// here.
#include "ops/cuda/device.cuh"
extern "C" {
#include "ops/rounding.h"
}

enum { THREADS = 256 };

__device__ inline double to_unit(uint32_t hi, uint32_t lo)
{
    return (double)(((uint64_t)hi << 32 | lo) >> 11) * 0x1p-53;
}

__global__ void __launch_bounds__(THREADS)
normal_kernel(const normal_args a)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.count; i += step) {
        const int64_t at = a.width ? a.first + i / a.width * a.stride + i % a.width : i;
        rng_block r = rng_at(a.seed, RNG_INIT, a.key, (uint64_t)at);
        double u1 = 1.0 - to_unit(r.u[0], r.u[1]), u2 = to_unit(r.u[2], r.u[3]); // as base/rng.c
        const float x = (float)(a.std * (sqrt(-2.0 * log(u1)) * cos(2.0 * 3.14159265358979323846 * u2)));
        const half_pair h = rounding_halves(__float_as_uint(x));
        if (a.dt == DTYPE_F32)
            static_cast<float *>(a.x)[i] = x;
        else
            static_cast<uint16_t *>(a.x)[i] = h.upper;
        if (a.master_residual) a.master_residual[i] = h.low;
    }
}

static status normal(const struct normal_args *a, dev_stream s)
{
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "numbers of %s", dtype_name(a->dt));
    CHECK(a->dt == DTYPE_BF16 || a->master_residual == NULL, "halves of %s", dtype_name(a->dt));
    if (a->count == 0) return STATUS_OK;
    int64_t wanted = (a->count + THREADS - 1) / THREADS, most = (int64_t)cuda_set(s)->multiprocessors * 8;
    normal_kernel<<<(unsigned)(wanted < most ? wanted : most), THREADS, 0, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "normal");
}

extern "C" void cuda_normal_slots(struct ops *o)
{
    o->normal = normal;
}
