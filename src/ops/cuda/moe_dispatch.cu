// Where rows of other ranks lie (ops_moe.h: dispatch_sort), found on the device: the host never learns a count.
//
//   tables   one block: from the counts of all ranks, where each rank's rows for each expert of this rank begin, in the
//            order of arrival and in that of the experts
//   places   a warp per rank and expert writes source and place of its rows; others the padding, and tokens
#include "ops/cuda/device.cuh"
extern "C" {
#include "ops/cuda/moe_backends.h"
}

namespace {

enum { TABLE_THREADS = 1024, THREADS = 256, WARPS = THREADS / WARP, BLOCKS = 256 };

// Exclusive sums of the block's threads; *total: of all.
__device__ inline int block_scan(int x, int *total)
{
    __shared__ int warps[TABLE_THREADS / WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int sum = x;
#pragma unroll
    for (int d = 1; d < WARP; d *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += before;
    }
    __syncthreads(); // all have read what the call before left
    if (lane == WARP - 1) warps[warp] = sum;
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < TABLE_THREADS / WARP; w++) {
        if (w < warp) before += warps[w];
        all += warps[w];
    }
    *total = all;
    return before + sum - x;
}

// starts[k local + e]: {first arrived row, first sorted row} of rank k's rows for own expert e.
__global__ void __launch_bounds__(TABLE_THREADS) tables_kernel(const dispatch_sort_args a, int2 *starts)
{
    const int ranks = (int)a.ranks, local = (int)(a.experts / a.ranks), thread = threadIdx.x;
    const int *mine = a.every + a.rank * local;
    for (int i = thread; i < ranks * ranks; i += TABLE_THREADS) {
        int64_t rows = 0;
        for (int e = 0; e < local; e++) rows += a.every[i / ranks * a.experts + i % ranks * local + e];
        a.pairs[i] = rows;
        a.pairs[ranks * ranks + i % ranks * ranks + i / ranks] = rows;
    }
    int done = 0, all;
    for (int first = 0; first < ranks * local; first += TABLE_THREADS) {
        const int i = first + thread, rows = i < ranks * local ? mine[i / local * a.experts + i % local] : 0;
        const int before = block_scan(rows, &all);
        if (i < ranks * local) starts[i].x = done + before;
        done += all;
    }
    if (thread == 0) a.counts[local] = done;
    done = 0;
    for (int first = 0; first < local; first += TABLE_THREADS) {
        const int e = first + thread, align = (int)a.align;
        int rows = 0;
        for (int k = 0; k < ranks && e < local; k++) rows += mine[k * a.experts + e];
        const int room = (rows + align - 1) / align * align, before = done + block_scan(room, &all);
        done += all;
        if (e >= local) continue;
        a.counts[e] = rows;
        a.offsets[e] = before;
        for (int k = 0, at = before; k < ranks; k++) {
            starts[k * local + e].y = at;
            at += mine[k * a.experts + e];
        }
    }
    if (thread == 0) a.offsets[local] = done;
}

__global__ void __launch_bounds__(THREADS) places_kernel(const dispatch_sort_args a, const int2 *starts)
{
    const int ranks = (int)a.ranks, local = (int)(a.experts / a.ranks), lane = threadIdx.x % WARP,
              first = blockIdx.x * WARPS + threadIdx.x / WARP, step = gridDim.x * WARPS;
    const int *mine = a.every + a.rank * local;
    for (int i = first; i < ranks * local; i += step) {
        const int2 at = starts[i];
        const int rows = mine[i / local * a.experts + i % local];
        for (int j = lane; j < rows; j += WARP) {
            a.source[at.y + j] = at.x + j;
            a.place[at.x + j] = at.y + j;
        }
    }
    for (int e = first; e < local; e += step)
        for (int j = a.offsets[e] + a.counts[e] + lane; j < a.offsets[e + 1]; j += WARP) a.source[j] = -1;
    for (int64_t i = (int64_t)first * WARP + lane; i < a.slot_count; i += (int64_t)step * WARP)
        a.tokens[i] = a.slots[i] < 0 ? -1 : a.slots[i] / (int)a.top_k;
}

} // namespace

extern "C" status cuda_dispatch_sort(const struct dispatch_sort_args *a, dev_stream s)
{
    const size_t bytes = (size_t)a->experts * sizeof(int2);
    CHECK(a->ranks >= 1 && a->experts % a->ranks == 0, "%lld experts on %lld ranks", (long long)a->experts,
          (long long)a->ranks);
    int2 *starts = (int2 *)cuda_set_workspace(s, bytes, "dispatch_sort"); // ranks x experts of a rank
    tables_kernel<<<1, TABLE_THREADS, 0, queue_of(s)>>>(*a, starts);
    places_kernel<<<BLOCKS, THREADS, 0, queue_of(s)>>>(*a, starts);
    return cuda_set_launched(s, "dispatch_sort");
}
