// The router's ops. A warp has a token, a lane every 32nd expert; a block has MOE_ROUTE_TOKENS tokens.
//
//   choose   scores, choices and weights of each token; per block, how many slots chose each expert
//            -> histogram [blocks, experts]
//   scan     one block: exclusive sums of the histogram over blocks, per expert;
//            -> demand, counts, offsets
//   place    a thread per expert assigns sorted rows to its block's slots in order
//            -> place, source
//
// With context parallelism the choices come first alone. Where a capacity is the whole micro-batch's, `limits` finds
// the first of its tokens whose slot does not fit any more, per expert; `fitting` counts the slots here that do.
//
// So places are a function of the choices alone. Atomics count integers, so their order does not matter.
//
// Without a bias, experts are compared by logits: the same order as by scores, but two logits whose scores round to
// one number, or to 0, still differ.
#include "ops/cuda/device.cuh"
extern "C" {
#include "ops/cuda/moe_backends.h"
}

namespace {

enum { THREADS = 256, WARPS = THREADS / WARP, SCAN_THREADS = 1024, COUNT_BLOCKS = 256 };
constexpr uint32_t ALL = 0xffffffffu;

// A lane's scores: of experts lane, lane + 32, ..; 0 past the last expert.
template <int PER> struct scores {
    float logit[PER], s[PER], sum, lse;
};

// WANT_LSE: also sum of s, and lse where the score is a sigmoid.
template <int PER, bool WANT_LSE>
__device__ inline void score(scores<PER> &x, const float *logits, const route_rule &rule, int lane)
{
    const int experts = (int)rule.experts;
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        x.logit[i] = lane + WARP * i < experts ? logits[lane + WARP * i] : -INFINITY;
        top = fmaxf(top, x.logit[i]);
    }
    if (rule.score == ROUTE_SOFTMAX || WANT_LSE) {
        top = warp_max(top);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            x.s[i] = lane + WARP * i < experts ? expf(x.logit[i] - top) : 0;
            sum += x.s[i];
        }
        sum = warp_sum(sum);
        x.lse = top + logf(sum);
    }
    x.sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        if (rule.score == ROUTE_SOFTMAX) x.s[i] /= sum;
        else x.s[i] = lane + WARP * i < experts ? 1 / (1 + expf(-x.logit[i])) : 0;
        x.sum += x.s[i];
    }
    if (WANT_LSE || rule.score == ROUTE_SOFTMAX) x.sum = warp_sum(x.sum);
}
// The score of any expert, in every lane.
template <int PER> __device__ inline float score_of(const scores<PER> &x, int expert)
{
    float mine = 0;
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (expert / WARP == i) mine = x.s[i];
    return __shfl_sync(ALL, mine, expert % WARP);
}

// Floats as integers in the same order; above 0.
__device__ inline uint32_t order_of(float x)
{
    const int bits = __float_as_int(x + 0.0f); // -0 is 0
    return bits < 0 ? ~(uint32_t)bits : (uint32_t)bits | 0x80000000u;
}

// Of a warp: choices of all experts, sums of the groups, and which are kept.
struct group_room {
    float choice[MOE_EXPERTS_MAX], sums[MOE_EXPERTS_MAX];
    bool kept[MOE_EXPERTS_MAX];
};
// room.choice is filled: keeps the groups whose two best have the highest sums; of equal ones the first.
__device__ inline void keep_groups(group_room &room, const route_rule &rule, int lane)
{
    const int groups = (int)rule.groups, size = (int)rule.experts / groups;
    for (int g = lane; g < groups; g += WARP) {
        float first = -INFINITY, second = -INFINITY;
        for (int i = 0; i < size; i++) {
            const float c = room.choice[g * size + i];
            if (c > first) {
                second = first;
                first = c;
            } else if (c > second) {
                second = c;
            }
        }
        room.sums[g] = size > 1 ? first + second : first;
    }
    __syncwarp();
    for (int g = lane; g < groups; g += WARP) {
        int ahead = 0;
        for (int h = 0; h < groups; h++)
            ahead += room.sums[h] > room.sums[g] || (room.sums[h] == room.sums[g] && h < g);
        room.kept[g] = ahead < (int)rule.groups_kept;
    }
    __syncwarp();
}

template <int PER> __global__ void __launch_bounds__(THREADS) choose_kernel(const route_fwd_args a, int *histogram)
{
    extern __shared__ group_room rooms[]; // WARPS of them, if groups are excluded
    __shared__ int chosen[MOE_EXPERTS_MAX];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, experts = (int)a.rule.experts,
              k = (int)a.rule.top_k;
    const float *bias = (const float *)a.bias;
    const bool groups = a.rule.groups_kept < a.rule.groups;
    for (int e = threadIdx.x; e < experts; e += THREADS) chosen[e] = 0;
    __syncthreads();
    const int64_t first = (int64_t)blockIdx.x * MOE_ROUTE_TOKENS;
    const int tokens = (int)min((int64_t)MOE_ROUTE_TOKENS, a.rows - first);
    for (int i = warp; i < tokens; i += WARPS) {
        const int64_t t = first + i;
        scores<PER> x;
        score<PER, false>(x, (const float *)a.logits + t * experts, a.rule, lane);
        const bool by_logit = bias == NULL && !groups, none = a.rule.score == ROUTE_SOFTMAX && isnan(x.sum);
        uint32_t key[PER]; // 0: taken, or no expert
#pragma unroll
        for (int p = 0; p < PER; p++) {
            const int e = lane + WARP * p;
            float c = by_logit ? x.logit[p] : x.s[p] + (bias && e < experts ? bias[e] : 0);
            if (isnan(c) || none) c = -INFINITY;
            key[p] = e < experts ? order_of(c) : 0;
            if (groups && e < experts) rooms[warp].choice[e] = c;
        }
        if (groups) {
            __syncwarp();
            keep_groups(rooms[warp], a.rule, lane);
            const int size = experts / (int)a.rule.groups;
#pragma unroll
            for (int p = 0; p < PER; p++)
                if (lane + WARP * p < experts && !rooms[warp].kept[(lane + WARP * p) / size]) key[p] = 0;
            __syncwarp();
        }
        int mine = 0; // lane j: the j-th choice
        float weight = 0, sum = 0;
        for (int j = 0; j < k; j++) {
            uint32_t best = 0, at = ALL;
#pragma unroll
            for (int p = 0; p < PER; p++) best = max(best, key[p]);
            best = __reduce_max_sync(ALL, best);
#pragma unroll
            for (int p = PER - 1; p >= 0; p--)
                if (key[p] == best) at = lane + WARP * p;
            at = __reduce_min_sync(ALL, at);
#pragma unroll
            for (int p = 0; p < PER; p++)
                if (at == (uint32_t)(lane + WARP * p)) key[p] = 0;
            const float s = score_of(x, (int)at);
            sum += s;
            if (lane == j) {
                mine = (int)at;
                weight = s;
            }
        }
        if (lane < k) {
            const float scale = (float)a.rule.scale;
            a.expert[t * k + lane] = mine;
            ((float *)a.weight)[t * k + lane] = a.rule.normalize ? scale * weight / (sum + 1e-20f) : scale * weight;
            atomicAdd(chosen + mine, 1);
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += THREADS) histogram[(int64_t)blockIdx.x * experts + e] = chosen[e];
}

// `width`: experts rounded up to a power of 2, at least WARP. Thread (part, e): one part of the blocks each.
__global__ void __launch_bounds__(SCAN_THREADS)
    scan_kernel(const route_fwd_args a, int *histogram, int blocks, int width, bool counts_demand)
{
    __shared__ int sums[SCAN_THREADS], room[MOE_EXPERTS_MAX];
    const int e = threadIdx.x % width, part = threadIdx.x / width, parts = SCAN_THREADS / width,
              experts = (int)a.rule.experts;
    const int each = (blocks + parts - 1) / parts, from = min(part * each, blocks), to = min(from + each, blocks);
    int sum = 0;
    if (e < experts)
#pragma unroll 8
        for (int b = from; b < to; b++) sum += histogram[(int64_t)b * experts + e];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (e < experts) {
        int before = 0, total = 0;
        for (int p = 0; p < parts; p++) {
            if (p == part) before = total;
            total += sums[p * width + e];
        }
#pragma unroll 8
        for (int b = from; b < to; b++) {
            const int here = histogram[(int64_t)b * experts + e];
            histogram[(int64_t)b * experts + e] = before;
            before += here;
        }
        if (part == 0) {
            const int fit = a.capacity && total > a.capacity ? (int)a.capacity : total;
            if (counts_demand) a.demand[e] = total;
            a.counts[e] = fit;
            room[e] = (int)((fit + a.align - 1) / a.align * a.align);
        }
    }
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    const int lane = threadIdx.x, run = (experts + WARP - 1) / WARP, begin = min(lane * run, experts),
              end = min(begin + run, experts);
    int mine = 0;
    for (int i = begin; i < end; i++) mine += room[i];
    int upto = mine;
    for (int d = 1; d < WARP; d *= 2) {
        const int other = __shfl_up_sync(ALL, upto, d);
        if (lane >= d) upto += other;
    }
    int at = upto - mine;
    for (int i = begin; i < end; i++) {
        a.offsets[i] = at;
        at += room[i];
    }
    if (lane == WARP - 1) a.offsets[experts] = at;
}

// ops_route.h: route_token_of, route_document_of. With ranks 0 the rows are the tokens.
__device__ inline int64_t token_of(const route_whole &w, int64_t row)
{
    if (w.ranks == 0) return row;
    const int64_t share = w.length / w.ranks, chunk = share / 2, at = row % share;
    const int64_t which = at < chunk ? w.rank : 2 * w.ranks - 1 - w.rank;
    return row / share * w.length + which * chunk + at % chunk;
}
__device__ inline int64_t document_of(const int32_t *cu, int64_t docs, int64_t token)
{
    int64_t low = 0, high = docs - 1; // the last document that does not begin behind the token
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (cu[middle] <= token) low = middle;
        else high = middle - 1;
    }
    return low;
}

// A block for each expert: the token of slot number `capacity` of those that chose it, or the number of tokens.
__global__ void __launch_bounds__(SCAN_THREADS) limits_kernel(const route_fwd_args a, const route_whole w, int *limits)
{
    __shared__ int sums[SCAN_THREADS / WARP];
    const int e = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, k = (int)a.rule.top_k;
    const int64_t slots = w.rows * k, capacity = a.capacity;
    int64_t before = 0;
    if (threadIdx.x == 0) limits[e] = (int)w.rows;
    __syncthreads();
    for (int64_t first = 0; first < slots && before <= capacity; first += SCAN_THREADS) {
        const int64_t i = first + threadIdx.x;
        const bool mine = i < slots && w.expert[i] == e;
        const uint32_t found = __ballot_sync(ALL, mine);
        if (lane == 0) sums[warp] = __popc(found);
        __syncthreads();
        int64_t at = before;
        for (int v = 0; v < SCAN_THREADS / WARP; v++) {
            if (v < warp) at += sums[v];
            before += sums[v];
        }
        if (mine && at + __popc(found & ((1u << lane) - 1)) == capacity) limits[e] = (int)(i / k);
        __syncthreads();
    }
}

// PLACE alone: counts the slots of each block by expert; with limits those before their expert's limit, and all of them
// in demand, which is 0 before.
__global__ void __launch_bounds__(THREADS)
    fitting_kernel(const route_fwd_args a, const route_whole w, const int *limits, int *histogram)
{
    __shared__ int chosen[MOE_EXPERTS_MAX], fit[MOE_EXPERTS_MAX];
    const int experts = (int)a.rule.experts, k = (int)a.rule.top_k;
    const int64_t first = (int64_t)blockIdx.x * MOE_ROUTE_TOKENS * k;
    const int count = (int)min((int64_t)MOE_ROUTE_TOKENS * k, a.rows * k - first);
    for (int e = threadIdx.x; e < experts; e += THREADS) chosen[e] = fit[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int e = a.expert[first + i];
        atomicAdd(chosen + e, 1);
        if (!limits || token_of(w, (first + i) / k) < limits[e]) atomicAdd(fit + e, 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        histogram[(int64_t)blockIdx.x * experts + e] = fit[e];
        if (limits && chosen[e]) atomicAdd(a.demand + e, chosen[e]);
    }
}

// A thread for each expert.
__global__ void __launch_bounds__(MOE_EXPERTS_MAX)
    place_kernel(const route_fwd_args a, const int *histogram, const route_whole w, const int *limits)
{
    __shared__ int slots[MOE_ROUTE_TOKENS * MOE_TOP_K_MAX];
    const int experts = (int)a.rule.experts, k = (int)a.rule.top_k, e = threadIdx.x;
    const int64_t first = (int64_t)blockIdx.x * MOE_ROUTE_TOKENS * k;
    const int count = (int)min((int64_t)MOE_ROUTE_TOKENS * k, a.rows * k - first);
    for (int i = threadIdx.x; i < count; i += blockDim.x) slots[i] = a.expert[first + i];
    __syncthreads();
    if (e >= experts) return;
    int rank = histogram[(int64_t)blockIdx.x * experts + e];
    const int offset = a.offsets[e], fit = a.counts[e], limit = limits ? limits[e] : 0;
#pragma unroll 4
    for (int i = 0; i < count; i++) {
        if (slots[i] != e) continue;
        if (limits && token_of(w, (first + i) / k) >= limit) {
            a.place[first + i] = -1;
            continue;
        }
        const int row = rank < fit ? offset + rank : -1;
        a.place[first + i] = row;
        if (row >= 0) a.source[row] = (int)(first + i);
        rank++;
    }
}

// ---- Backward.

// Whose choices the auxiliary loss counts.
struct counted {
    const int *counts;      // [experts], or with cu [docs, experts]
    const int32_t *cu;      // documents of `tokens` tokens; NULL: they count together
    int64_t docs, tokens;
    const int32_t *expert;  // [tokens, k]
    route_whole whole;      // where the call's rows lie among the tokens; ranks 0: they are the tokens
};

// counts are 0 before.
__global__ void __launch_bounds__(THREADS) count_kernel(const counted c, const route_rule rule, int *counts)
{
    __shared__ int chosen[MOE_EXPERTS_MAX];
    const int experts = (int)rule.experts;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, slots = c.tokens * rule.top_k;
    if (c.cu) {
        if (i < slots)
            atomicAdd(counts + document_of(c.cu, c.docs, i / rule.top_k) * experts + c.expert[i], 1);
        return;
    }
    for (int e = threadIdx.x; e < experts; e += THREADS) chosen[e] = 0;
    __syncthreads();
    for (int64_t j = i; j < slots; j += (int64_t)gridDim.x * THREADS) atomicAdd(chosen + c.expert[j], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += THREADS)
        if (chosen[e]) atomicAdd(counts + e, chosen[e]);
}

template <typename T, int PER>
__global__ void __launch_bounds__(THREADS) route_bwd_kernel(const route_bwd_args a, const counted c)
{
    const int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const int lane = threadIdx.x % WARP, experts = (int)a.rule.experts, k = (int)a.rule.top_k;
    if (a.load && blockIdx.x == 0)
        for (int e = threadIdx.x; e < experts; e += THREADS) ((float *)a.load)[e] += (float)a.demand[e];
    if (t >= a.rows) return;
    scores<PER> x;
    score<PER, true>(x, (const float *)a.logits + t * experts, a.rule, lane);
    const int chosen = lane < k ? a.expert[t * k + lane] : 0;
    if (a.dropped) { // whole numbers: their sum is the same in any order
        const unsigned lost = __ballot_sync(ALL, lane < k && a.place[t * k + lane] < 0);
        if (lane == 0 && lost) atomicAdd(a.dropped, (double)__popc(lost));
        if (lane == 0 && t == 0) atomicAdd(a.dropped + 1, (double)(a.rows * k));
    }
    const float dw = lane < k && a.place[t * k + lane] >= 0 ? ((const float *)a.dweight)[t * k + lane] : 0;
    float v_sum = 1e-20f, along = 0;
    for (int j = 0; j < k; j++) {
        const float v = score_of(x, __shfl_sync(ALL, chosen, j));
        v_sum += v;
        along += v * __shfl_sync(ALL, dw, j);
    }
    const float scale = (float)a.rule.scale,
                dv = a.rule.normalize ? scale * ((dw - along / v_sum) / v_sum) : scale * dw;
    float ds[PER] = {};
    for (int j = 0; j < k; j++) {
        const int e = __shfl_sync(ALL, chosen, j);
        const float d = __shfl_sync(ALL, dv, j);
#pragma unroll
        for (int p = 0; p < PER; p++)
            if (e == lane + WARP * p) ds[p] = d;
    }
    const float g = a.grad_scale && (a.aux != 0 || a.z != 0) ? (float)*a.grad_scale : 0;
    float shares = 0;
    if (a.aux != 0) {
        const int *demand = c.counts;
        float tokens = (float)c.tokens;
        if (c.cu) {
            const int64_t doc = document_of(c.cu, c.docs, token_of(c.whole, t));
            demand += doc * experts;
            tokens = (float)(c.cu[doc + 1] - c.cu[doc]);
        }
        const float even = (float)experts / ((float)k * tokens);
        float share[PER];
#pragma unroll
        for (int p = 0; p < PER; p++) {
            share[p] = lane + WARP * p < experts ? even * (float)demand[lane + WARP * p] : 0;
            shares += share[p] * x.s[p];
        }
        shares = warp_sum(shares) / x.sum;
#pragma unroll
        for (int p = 0; p < PER; p++) ds[p] += g * (float)a.aux * (share[p] - shares) / x.sum;
    }
    float back = 0;
#pragma unroll
    for (int p = 0; p < PER; p++) back += ds[p] * x.s[p];
    back = warp_sum(back);
#pragma unroll
    for (int p = 0; p < PER; p++) {
        const int e = lane + WARP * p;
        if (e >= experts) continue;
        float dl = a.rule.score == ROUTE_SOFTMAX ? x.s[p] * (ds[p] - back) : x.s[p] * (ds[p] / (1 + expf(x.logit[p])));
        if (a.z != 0) dl += g * (float)a.z * 2 * x.lse * expf(x.logit[p] - x.lse);
        ((T *)a.dlogits)[t * experts + e] = from_f32<T>(dl);
    }
    if (a.cost && lane == 0)
        ((float *)a.cost)[t] = (a.aux != 0 ? (float)a.aux * shares : 0) + (a.z != 0 ? (float)a.z * x.lse * x.lse : 0);
}

// ---- Balancing: a warp per router.

__global__ void __launch_bounds__(SCAN_THREADS) balance_kernel(const balance_args a)
{
    __shared__ float highest[WARP], lowest[WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (!isfinite(a.scalars->grad_norm)) return;
    float most = 0, least = INFINITY;
    for (int64_t r = warp; r < a.row_count; r += SCAN_THREADS / WARP) {
        const update_chunk row = a.rows[r];
        double sum = 0;
        for (int i = lane; i < row.count; i += WARP) sum += a.load[row.begin + i];
        sum = warp_sum(sum);
        const double mean = sum / row.count;
        if (sum == 0) continue;
        for (int i = lane; i < row.count; i += WARP) {
            const double c = a.load[row.begin + i];
            float *const bias = a.bias + row.begin - row.v_offset + i;
            *bias = (float)(*bias + a.rate * ((c < mean) - (c > mean)));
            most = fmaxf(most, (float)(c / mean));
            least = fminf(least, (float)(c / mean));
            a.load[row.begin + i] = 0;
        }
    }
    most = warp_max(most);
    least = -warp_max(-least);
    if (lane == 0) {
        highest[warp] = most;
        lowest[warp] = least;
    }
    __syncthreads();
    if (warp) return;
    most = warp_max(highest[lane]);
    least = -warp_max(-lowest[lane]);
    if (lane == 0) {
        a.scalars->load_max = most;
        a.scalars->load_min = isfinite(least) ? least : 0;
    }
}

// ---- Launchers.

#define BY_EXPERTS(experts, ...)                                                                                       \
    do {                                                                                                               \
        if ((experts) <= 2 * WARP) {                                                                                   \
            enum { PER = 2 };                                                                                          \
            __VA_ARGS__;                                                                                               \
        } else if ((experts) <= 8 * WARP) {                                                                            \
            enum { PER = 8 };                                                                                          \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            enum { PER = MOE_EXPERTS_MAX / WARP };                                                                     \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

void check_rule(const route_rule &r)
{
    CHECK(r.experts >= 1 && r.experts <= MOE_EXPERTS_MAX, "%lld experts", (long long)r.experts);
    CHECK(r.top_k >= 1 && r.top_k <= MOE_TOP_K_MAX && r.top_k <= r.experts, "%lld choices", (long long)r.top_k);
    CHECK(r.groups >= 1 && r.experts % r.groups == 0, "%lld groups", (long long)r.groups);
}

} // namespace

// PLACE: what it counts is the choices that it is given.
static void count_given(const route_fwd_args *a, const route_whole &w, int *limits, int blocks, int *histogram,
                        cudaStream_t queue)
{
    if (limits) {
        cudaMemsetAsync(a->demand, 0, (size_t)a->rule.experts * sizeof *a->demand, queue);
        limits_kernel<<<(unsigned)a->rule.experts, SCAN_THREADS, 0, queue>>>(*a, w, limits);
    }
    if (blocks) fitting_kernel<<<blocks, THREADS, 0, queue>>>(*a, w, limits, histogram);
}

extern "C" status cuda_route_fwd(const struct route_fwd_args *a, dev_stream s)
{
    const int64_t rows_max = moe_rows_max(a->rows, a->rule.top_k, a->rule.experts, a->align), experts = a->rule.experts;
    const int blocks = (int)((a->rows + MOE_ROUTE_TOKENS - 1) / MOE_ROUTE_TOKENS);
    const bool limited = a->part == ROUTE_PLACE && a->whole && a->capacity;
    const route_whole w = a->whole ? *a->whole : route_whole{};
    int *histogram = (int *)a->scratch, width = WARP, *limits = NULL;
    check_rule(a->rule);
    CHECK(a->align >= 1 && rows_max <= INT32_MAX, "%lld sorted rows", (long long)rows_max);
    CHECK(!limited || a->rows * w.ranks == w.rows, "%lld rows of %lld on %d ranks", (long long)a->rows,
          (long long)w.rows, w.ranks);
    while (width < experts) width *= 2;
    const size_t room = a->rule.groups_kept < a->rule.groups ? WARPS * sizeof(group_room) : 0;
    if (blocks && a->part != ROUTE_PLACE)
        BY_EXPERTS(experts, {
            cudaFuncSetAttribute(choose_kernel<PER>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 WARPS * sizeof(group_room));
            choose_kernel<PER><<<blocks, THREADS, room, queue_of(s)>>>(*a, histogram);
        });
    if (a->part == ROUTE_CHOOSE) return cuda_set_launched(s, "route_fwd");
    if (limited) limits = (int *)cuda_set_workspace(s, (size_t)experts * sizeof *limits, "route_fwd");
    if (a->part == ROUTE_PLACE) count_given(a, w, limits, blocks, histogram, queue_of(s));
    cudaMemsetAsync(a->source, 0xff, (size_t)rows_max * sizeof *a->source, queue_of(s)); // a failure shows below
    scan_kernel<<<1, SCAN_THREADS, 0, queue_of(s)>>>(*a, histogram, blocks, width, !limited);
    if (blocks) place_kernel<<<blocks, width, 0, queue_of(s)>>>(*a, histogram, w, limits);
    return cuda_set_launched(s, "route_fwd");
}

// Counts what is not counted yet: by document into the scratch, over the whole micro-batch into the workspace.
static counted count(const route_bwd_args *a, dev_stream s)
{
    const bool documents = a->aux_kind == ROUTE_AUX_SEQUENCE;
    counted c = {a->demand, NULL, 0, a->rows, a->expert, {}};
    if (a->aux == 0) return c;
    if (a->whole) {
        c.whole = *a->whole;
        c.tokens = c.whole.rows;
        c.expert = c.whole.expert;
    }
    if (!documents && !a->whole) return c; // the call's: demand
    c.docs = documents ? (a->whole ? c.whole.docs : a->docs) : 1;
    if (documents) c.cu = a->whole ? c.whole.cu_seqlens : a->cu_seqlens;
    const size_t bytes = (size_t)(c.docs * a->rule.experts) * sizeof(int);
    int *counts = documents ? (int *)a->scratch : (int *)cuda_set_workspace(s, bytes, "route_bwd");
    int64_t blocks = (c.tokens * a->rule.top_k + THREADS - 1) / THREADS;
    if (!documents && blocks > COUNT_BLOCKS) blocks = COUNT_BLOCKS;
    cudaMemsetAsync(counts, 0, bytes, queue_of(s));
    count_kernel<<<(unsigned)blocks, THREADS, 0, queue_of(s)>>>(c, a->rule, counts);
    c.counts = counts;
    return c;
}

extern "C" status cuda_route_bwd(const struct route_bwd_args *a, dev_stream s)
{
    check_rule(a->rule);
    if (a->rows == 0) return STATUS_OK;
    const counted c = count(a, s);
    const unsigned blocks = (unsigned)((a->rows + WARPS - 1) / WARPS);
    BY_DTYPE(a->dt,
             BY_EXPERTS(a->rule.experts, (route_bwd_kernel<T, PER><<<blocks, THREADS, 0, queue_of(s)>>>(*a, c))));
    return cuda_set_launched(s, "route_bwd");
}

extern "C" status cuda_balance(const struct balance_args *a, dev_stream s)
{
    if (a->row_count == 0) return STATUS_OK;
    balance_kernel<<<1, SCAN_THREADS, 0, queue_of(s)>>>(*a);
    return cuda_set_launched(s, "balance");
}
