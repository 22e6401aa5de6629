// Barriers between GPUs, in kernels of one block, which take little from overlapped work. The kernel that copies a rank's
// own part while copy engines copy the others'. And the kernel that reads rows from other GPUs, as many as they have.
extern "C" {
#include "comm/gpu/cuda/p2p_comm.h"
}

#include <cuda_runtime.h>

namespace {

__device__ inline void tell(uint32_t *flag, uint32_t value)
{
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline uint32_t heard(const uint32_t *flag)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
// Polls host memory rarely: it is on the other side of PCIe.
__device__ inline void until(const uint32_t *flag, uint32_t value, volatile uint32_t *abort_flag)
{
    for (int k = 1; int32_t(heard(flag) - value) < 0; k++) {
        __nanosleep(100);
        if (k % 1024 == 0 && *abort_flag) return;
    }
}

__global__ void p2p_barrier_kernel(const p2p_comm_barrier m)
{
    const int r = int(threadIdx.x);
    const uint32_t mine = *m.barrier_count + 1;
    __syncthreads();
    if (r == m.rank) *m.barrier_count = mine;
    if (r >= m.ranks || r == m.rank) return;
    tell(m.barrier_arrived[r], mine);
    until(m.come + r, mine, m.abort_flag);
    __threadfence_system();
}

__global__ void wait_kernel(const p2p_comm_wait w)
{
    until(w.flag, *w.count + uint32_t(w.plus), w.abort_flag);
    __threadfence_system();
}

__global__ void tell_kernel(uint32_t *count, uint32_t *flag)
{
    const uint32_t value = *count + 1;
    *count = value;
    tell(flag, value);
}

enum { COPY_BLOCKS = 16, COPY_THREADS = 1024, COPY_EACH = 4 };

__global__ void __launch_bounds__(COPY_THREADS) copy_kernel(float4 *to, const float4 *from, int64_t count)
{
    const int64_t apart = COPY_BLOCKS * COPY_THREADS;
    int64_t i = int64_t(blockIdx.x) * COPY_THREADS + threadIdx.x;
    for (; i + (COPY_EACH - 1) * apart < count; i += COPY_EACH * apart) {
        float4 x[COPY_EACH];
#pragma unroll
        for (int k = 0; k < COPY_EACH; k++) x[k] = __ldcs(from + i + k * apart);
#pragma unroll
        for (int k = 0; k < COPY_EACH; k++) __stcs(to + i + k * apart, x[k]);
    }
    for (; i < count; i += apart) to[i] = from[i];
}

enum { ROWS_BLOCKS = 64, ROWS_THREADS = 512, ROWS_EACH = 4 };

// The rows of a rank for another one are consecutive on both sides: a copy whose length and places the GPU knows. Each
// block begins with another rank. Loads bypass L1, which does not see other GPUs' writes.
template <typename V> __global__ void __launch_bounds__(ROWS_THREADS) rows_kernel(const p2p_comm_rows a)
{
    const int64_t row = int64_t(a.bytes / sizeof(V)), apart = int64_t(gridDim.x) * ROWS_THREADS;
    for (int k = 0; k < a.ranks; k++) {
        const int r = (a.rank + k + int(blockIdx.x)) % a.ranks;
        int64_t before_there = 0, before_here = 0;
        for (int j = 0; j < a.rank; j++) before_there += a.counts[r * a.ranks + j];
        for (int j = 0; j < r; j++) before_here += a.counts[j * a.ranks + a.rank];
        const V *from = reinterpret_cast<const V *>(a.in[r]) + before_there * row;
        V *to = reinterpret_cast<V *>(a.recv) + before_here * row;
        const int64_t count = a.counts[r * a.ranks + a.rank] * row;
        int64_t i = int64_t(blockIdx.x) * ROWS_THREADS + threadIdx.x;
        for (; i + (ROWS_EACH - 1) * apart < count; i += ROWS_EACH * apart) {
            V x[ROWS_EACH];
#pragma unroll
            for (int u = 0; u < ROWS_EACH; u++) x[u] = __ldcg(from + i + u * apart);
#pragma unroll
            for (int u = 0; u < ROWS_EACH; u++) to[i + u * apart] = x[u];
        }
        for (; i < count; i += apart) to[i] = __ldcg(from + i);
    }
}

status launched(const char *what)
{
    const cudaError_t err = cudaGetLastError();
    if (err == cudaSuccess) return STATUS_OK;
    return FAIL(STATUS_DEVICE, "%s: %s (%s)", what, cudaGetErrorString(err), cudaGetErrorName(err));
}

} // namespace

extern "C" status p2p_comm_barrier_queue(const struct p2p_comm_barrier *m, struct stream *s)
{
    p2p_barrier_kernel<<<1, unsigned(m->ranks), 0, static_cast<cudaStream_t>(s->queue)>>>(*m);
    return launched("meeting of GPUs");
}

extern "C" status p2p_comm_wait_queue(const struct p2p_comm_wait *w, struct stream *s)
{
    wait_kernel<<<1, 1, 0, static_cast<cudaStream_t>(s->queue)>>>(*w);
    return launched("wait for a message");
}

extern "C" status p2p_comm_signal_queue(uint32_t *count, uint32_t *flag, struct stream *s)
{
    tell_kernel<<<1, 1, 0, static_cast<cudaStream_t>(s->queue)>>>(count, flag);
    return launched("word of a message");
}

extern "C" status p2p_comm_rows_queue(const struct p2p_comm_rows *a, struct stream *s)
{
    uintptr_t bits = reinterpret_cast<uintptr_t>(a->recv) | a->bytes;
    for (int r = 0; r < a->ranks; r++) bits |= reinterpret_cast<uintptr_t>(a->in[r]);
    CHECK(bits % 2 == 0 && a->ranks <= P2P_RANKS_MAX, "rows of %zu bytes of %d ranks", a->bytes, a->ranks);
    const cudaStream_t queue = static_cast<cudaStream_t>(s->queue);
    if (bits % sizeof(float4) == 0) rows_kernel<float4><<<ROWS_BLOCKS, ROWS_THREADS, 0, queue>>>(*a);
    else if (bits % sizeof(float) == 0) rows_kernel<float><<<ROWS_BLOCKS, ROWS_THREADS, 0, queue>>>(*a);
    else rows_kernel<unsigned short><<<ROWS_BLOCKS, ROWS_THREADS, 0, queue>>>(*a);
    return launched("rows of GPUs");
}

extern "C" status p2p_comm_copy_queue(void *to, const void *from, size_t bytes, struct stream *s)
{
    copy_kernel<<<COPY_BLOCKS, COPY_THREADS, 0, static_cast<cudaStream_t>(s->queue)>>>(static_cast<float4 *>(to), static_cast<const float4 *>(from),
                                                                                      int64_t(bytes / sizeof(float4)));
    return launched("copy of the own part");
}
