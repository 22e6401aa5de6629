// Runs the schedules of comm/gpu/p2p_schedule.h.
//
//   block b    of each rank has part b of every chunk from the first step to the last, every thread the same floats of
//              each part. So what a rank wrote itself needs no barrier to be read again, and ranks wait for each other
//              block by block: waits of one block overlap copies of others.
//   wait       one thread per partner polls a flag in its own GPU's memory, which the partner has written. Release and
//              acquire at system scope, and the block's barrier between the polling thread and the others, order data.
//              Data are loaded past L1, which does not see other GPUs' writes.
#include "comm/gpu/cuda/addend.cuh"
extern "C" {
#include "comm/gpu/p2p_schedule.h"
#include "dev/cuda/cuda_int.h"
}
#include <cuda_runtime.h>

namespace {

enum { THREADS = 512, EACH = 4 };
enum : unsigned { LOOKS = 1024 }; // polls between two looks at the clock and at host memory

struct kernel_args {
    p2p_schedule schedule;
    const float *memory[3][P2P_RANKS_MAX]; // by buffer and rank
    p2p_flags *flags[P2P_RANKS_MAX];
    int64_t count;   // floats of a chunk
    int64_t vectors; // of four floats, in a chunk
    int64_t part;    // of a block
    uint64_t deadline_ns;
    const volatile uint32_t *abort_flag;
    volatile unsigned char *mark;
};

__device__ inline uint64_t time_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__device__ inline uint32_t flag_load(const uint32_t *flag)
{
    uint32_t x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(flag) : "memory");
    return x;
}

__device__ inline void flag_store(uint32_t *flag, uint32_t x)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(x) : "memory");
}

// Polls less often after a long wait.
__device__ inline bool given_up(const kernel_args &a, unsigned look, uint64_t begin_ns)
{
    if (look > LOOKS) __nanosleep(100);
    if (look % LOOKS != 0) return false;
    return (a.abort_flag && *a.abort_flag) || (a.deadline_ns && time_ns() - begin_ns > a.deadline_ns);
}

__device__ inline bool wait_for(const kernel_args &a, const uint32_t *flag, uint32_t value)
{
    const uint64_t begin = time_ns();
    for (unsigned look = 1; int32_t(flag_load(flag) - value) < 0; look++)
        if (given_up(a, look, begin)) return false;
    return true;
}

// For diagnostics: which step a rank waits for. It orders nothing; a fence would cost as much as a small
// collective.
__device__ inline void leave_mark(const kernel_args &a)
{
    if (a.mark) *a.mark = 1;
}

// Signals some ranks that this block has reached a step, and waits for those of `wait`. After a timeout or an abort
// no further wait blocks: the kernel ends with wrong results and sets `lost`.
__device__ void meet(const kernel_args &a, uint32_t tell, uint32_t wait, uint32_t value, bool *lost)
{
    const int me = a.schedule.rank, other = int(threadIdx.x), block = int(blockIdx.x);
    __syncthreads();
    if (other < a.schedule.ranks) {
        if (tell >> other & 1) flag_store(&a.flags[other]->told[me][block], value);
        if ((wait >> other & 1) && !*lost && !wait_for(a, &a.flags[me]->told[other][block], value)) {
            a.flags[me]->lost = uint32_t(1 + other);
            *lost = true;
        }
    }
    __syncthreads();
}

__device__ inline float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// The order of sums of comm.h: terms FIRST, FIRST + APART, ...; even plus odd, recursively. W: the vector of T that
// is loaded.
template <typename T, int N, int FIRST, int APART, typename W, int R> __device__ inline addends<T, W> tree_of(const W (&x)[R])
{
    if constexpr (N == 1) {
        return addends_of<T>(x[FIRST]);
    } else {
        addends<T, W> sum = tree_of<T, (N + 1) / 2, FIRST, 2 * APART>(x);
        const addends<T, W> odd = tree_of<T, N / 2, FIRST + APART, 2 * APART>(x);
#pragma unroll
        for (int i = 0; i < addends<T, W>::COUNT; i++) sum.v[i] += odd.v[i];
        return sum;
    }
}
template <typename T, typename W, int R> __device__ inline W tree_sum(const W (&x)[R]) { return addends_rounded<T>(tree_of<T, R, 0, 1>(x)); }

__device__ inline float4 *chunk(const kernel_args &a, int rank, p2p_place p)
{
    float4 *memory = reinterpret_cast<float4 *>(const_cast<float *>(a.memory[p.buffer][rank]));
    return memory + p.chunk * a.vectors;
}

template <bool PLUS>
__device__ void move_part(const float4 *from, const float4 *plus, float4 *to, int64_t begin, int64_t end)
{
    int64_t i = begin + threadIdx.x;
    for (; i + (EACH - 1) * THREADS < end; i += EACH * THREADS) {
        float4 x[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++) x[u] = __ldcg(from + i + u * THREADS);
#pragma unroll
        for (int u = 0; u < EACH; u++) to[i + u * THREADS] = PLUS ? sum(x[u], __ldcg(plus + i + u * THREADS)) : x[u];
    }
    for (; i < end; i += THREADS) to[i] = PLUS ? sum(__ldcg(from + i), __ldcg(plus + i)) : __ldcg(from + i);
}

template <typename T, int R> __device__ void tree_part(const kernel_args &a, p2p_place from, float4 *to, int64_t begin, int64_t end)
{
    // Each rank begins with its own term, so not all read the same GPU first. Swapping the halves of a node of the
    // tree changes no bit, and with a power of two that is all this does.
    const int flip = (R & (R - 1)) == 0 ? a.schedule.rank : 0;
    const float4 *term[R];
#pragma unroll
    for (int k = 0; k < R; k++) term[k] = chunk(a, k ^ flip, from);
    int64_t i = begin + threadIdx.x;
    for (; i + THREADS < end; i += 2 * THREADS) {
        float4 x[R], y[R];
#pragma unroll
        for (int k = 0; k < R; k++) x[k] = __ldcg(term[k] + i), y[k] = __ldcg(term[k] + i + THREADS);
        to[i] = tree_sum<T>(x);
        to[i + THREADS] = tree_sum<T>(y);
    }
    for (; i < end; i += THREADS) {
        float4 x[R];
#pragma unroll
        for (int k = 0; k < R; k++) x[k] = __ldcg(term[k] + i);
        to[i] = tree_sum<T>(x);
    }
}

template <typename T, int R> __global__ void __launch_bounds__(THREADS, 1) p2p_schedule_kernel(const __grid_constant__ kernel_args a)
{
    __shared__ bool lost;
    const p2p_schedule &s = a.schedule;
    const int block = int(blockIdx.x);
    const uint32_t base = a.flags[s.rank]->base[block];
    const int64_t begin = block * a.part, end = begin + a.part < a.vectors ? begin + a.part : a.vectors;
    if (threadIdx.x == 0) lost = false;
    for (int k = 0; k < s.step_count; k++) {
        const p2p_schedule_step step = s.steps[k];
        const int moves = step.end - step.begin;
        meet(a, step.tell, step.wait, base + uint32_t(k) + 1, &lost);
        for (int i = 0; i < moves; i++) {
            const p2p_schedule_move m = s.moves[step.begin + (s.any_order ? (i + block) % moves : i)];
            const bool put = m.kind == P2P_PUT;
            const float4 *from = chunk(a, put ? s.rank : m.rank, m.from), *plus = chunk(a, s.rank, m.plus);
            float4 *to = chunk(a, put ? m.rank : s.rank, m.to);
            if (m.kind == P2P_TREE)
                tree_part<T, R>(a, m.from, to, begin, end);
            else if (m.kind == P2P_ADD)
                move_part<true>(from, plus, to, begin, end);
            else if (from != to)
                move_part<false>(from, nullptr, to, begin, end);
        }
    }
    // When the others have arrived, too, they have read everything and written this rank's parts.
    const uint32_t all = (1u << s.ranks) - 1 - (1u << s.rank);
    meet(a, all, all, base + s.step_count + 1u, &lost);
    if (threadIdx.x == 0) a.flags[s.rank]->base[block] = base + s.step_count + 1u;
    if (threadIdx.x == 0 && block == 0) leave_mark(a);
}

static_assert(offsetof(p2p_flags, ll_buffers) % 16 == 0 && sizeof(p2p_flags) % 16 == 0, "packets are stored and loaded as one");

// The two floats of a packet, once both carry this number.
__device__ inline bool packet_load(const uint32_t *at, uint32_t number, float2 *x)
{
    uint32_t a, b, m, n;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(m), "=r"(b), "=r"(n) : "l"(at) : "memory");
    *x = make_float2(__uint_as_float(a), __uint_as_float(b));
    return m == number && n == number;
}

__device__ inline void packet_store(uint32_t *at, uint32_t number, float2 x)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(__float_as_uint(x.x)), "r"(number),
                 "r"(__float_as_uint(x.y)), "r"(number)
                 : "memory");
}

__device__ bool packet_wait(const kernel_args &a, const uint32_t *at, uint32_t number, float2 *x)
{
    const uint64_t begin = time_ns();
    for (unsigned look = 1; !packet_load(at, number, x); look++)
        if (given_up(a, look, begin)) return false;
    return true;
}

// LL protocol: thread i of all has pair i. A box is reused two collectives later; the one in between proves that
// its owner has read it, since a rank sends only after its previous collective in the stream. So no wait is needed
// at the end.
template <typename T, int R> __global__ void __launch_bounds__(P2P_LL_THREADS, 1) p2p_ll_kernel(const __grid_constant__ kernel_args a)
{
    const int me = a.schedule.rank, block = int(blockIdx.x), thread = int(threadIdx.x), op = a.schedule.op;
    const bool splits = op == P2P_ALL_TO_ALL || op == P2P_REDUCE_SCATTER;
    const int64_t chunk = a.count / 2, pairs = op == P2P_ALL_REDUCE ? chunk * R : chunk;
    const int64_t i = int64_t(block) * P2P_LL_THREADS + thread;
    p2p_flags *mine = a.flags[me];
    const uint32_t number = mine->ll_number[block] + 1, parity = number % 2;
    const float2 *in = reinterpret_cast<const float2 *>(a.memory[P2P_IN][me]);
    float2 *out = reinterpret_cast<float2 *>(const_cast<float *>(a.memory[P2P_OUT][me]));
    float2 x[R];
    if (i < pairs) {
#pragma unroll
        for (int k = 1; k < R; k++) {
            const int p = (me + k) % R;
            packet_store(a.flags[p]->ll_buffers[parity][me][block][thread], number, in[splits ? p * chunk + i : i]);
        }
#pragma unroll
        for (int p = 0; p < R; p++)
            if (p == me)
                x[p] = in[splits ? p * chunk + i : i];
            else if (!packet_wait(a, mine->ll_buffers[parity][p][block][thread], number, &x[p]))
                mine->lost = uint32_t(1 + p);
        if (op == P2P_ALL_REDUCE || op == P2P_REDUCE_SCATTER)
            out[i] = tree_sum<T>(x);
        else
#pragma unroll
            for (int p = 0; p < R; p++) out[p * chunk + i] = x[p];
    }
    __syncthreads();
    if (thread == 0) mine->ll_number[block] = number;
    if (thread == 0 && block == 0) leave_mark(a);
}

using kernel = void (*)(kernel_args);
struct kernels {
    kernel collective[P2P_RANKS_MAX + 1], ll[P2P_RANKS_MAX + 1];
};
#define OF_RANKS(name, T) {nullptr, name<T, 1>, name<T, 2>, name<T, 3>, name<T, 4>, name<T, 5>, name<T, 6>, name<T, 7>, name<T, 8>}
static_assert(P2P_RANKS_MAX == 8, "a kernel for every number of ranks");

// Ops without sums use the kernels of F32.
const kernels *kernels_of(dtype dt)
{
    static const kernels f32 = {OF_RANKS(p2p_schedule_kernel, float), OF_RANKS(p2p_ll_kernel, float)},
                         f64 = {OF_RANKS(p2p_schedule_kernel, double), OF_RANKS(p2p_ll_kernel, double)},
                         bf16 = {OF_RANKS(p2p_schedule_kernel, __nv_bfloat16), OF_RANKS(p2p_ll_kernel, __nv_bfloat16)};
    CHECK(dt == DTYPE_F32 || dt == DTYPE_F64 || dt == DTYPE_BF16, "ranks do not add up %s", dtype_name(dt));
    return dt == DTYPE_F32 ? &f32 : dt == DTYPE_F64 ? &f64 : &bf16;
}

status launched(struct stream *s)
{
    cudaError_t err = cudaGetLastError();
    if (err == cudaSuccess && s->sync) err = cudaStreamSynchronize(cuda_queue(s));
    if (err == cudaSuccess) return STATUS_OK;
    return FAIL(STATUS_DEVICE, "p2p_schedule_launch on %s: %s (%s)", s->dev->name, cudaGetErrorString(err), cudaGetErrorName(err));
}

// Partial sums of BF16 would be rounded in transit; F64 has no such schedules.
bool adds_up_on_the_way(const p2p_schedule *s)
{
    for (int i = 0; i < s->move_count; i++)
        if (s->moves[i].kind == P2P_ADD) return true;
    return false;
}

void check(const struct p2p_schedule_args *a)
{
    const p2p_schedule *p = a->schedule;
    const int64_t units = p->ll ? 2 : 4;
    const uintptr_t align = p->ll ? P2P_LL_ALIGN : P2P_ALIGN;
    CHECK(a->blocks >= 1 && a->blocks <= P2P_BLOCKS_MAX, "%d blocks", a->blocks);
    CHECK(a->count >= 0 && a->count % units == 0, "chunks of %lld floats", (long long)a->count);
    CHECK(a->dt == DTYPE_F32 || !adds_up_on_the_way(p), "sums of %s on their way", dtype_name(a->dt));
    for (int r = 0; r < p->ranks; r++) {
        const uintptr_t at = reinterpret_cast<uintptr_t>(a->in[r]) | reinterpret_cast<uintptr_t>(a->out[r]) | reinterpret_cast<uintptr_t>(a->work[r]);
        CHECK(at % align == 0, "buffers of rank %d", r);
    }
}

} // namespace

status p2p_schedule_load(int ranks)
{
    const dtype dts[] = {DTYPE_F32, DTYPE_F64, DTYPE_BF16};
    cudaFuncAttributes loaded;
    for (dtype dt : dts) {
        TRY_CUDA(cudaFuncGetAttributes(&loaded, reinterpret_cast<const void *>(kernels_of(dt)->collective[ranks])));
        TRY_CUDA(cudaFuncGetAttributes(&loaded, reinterpret_cast<const void *>(kernels_of(dt)->ll[ranks])));
    }
    return STATUS_OK;
}

status p2p_schedule_launch(const struct p2p_schedule_args *a, struct stream *s)
{
    const struct p2p_schedule *p = a->schedule;
    kernel_args args = {*p, {}, {}, a->count, a->count / 4, 0, uint64_t(a->deadline_s * 1e9), a->abort_flag, a->mark};
    check(a);
    if (a->count == 0) return STATUS_OK;
    for (int r = 0; r < p->ranks; r++) {
        args.memory[P2P_IN][r] = a->in[r], args.memory[P2P_OUT][r] = a->out[r], args.memory[P2P_WORK][r] = a->work[r];
        args.flags[r] = a->flags[r];
    }
    if (p->ll) {
        const int64_t pairs = a->count / 2 * (p->op == P2P_ALL_REDUCE ? p->ranks : 1);
        CHECK(2 * pairs <= P2P_LL_FLOATS, "%lld floats are not little", (long long)(2 * pairs));
        const unsigned grid = unsigned((pairs + P2P_LL_THREADS - 1) / P2P_LL_THREADS);
        kernels_of(a->dt)->ll[p->ranks]<<<grid, P2P_LL_THREADS, 0, cuda_queue(s)>>>(args);
        return launched(s);
    }
    // Whole lines of 128 bytes, enough of them per block; the same on all ranks.
    int64_t blocks = (a->count + P2P_PART_FLOATS - 1) / P2P_PART_FLOATS;
    if (blocks > a->blocks) blocks = a->blocks;
    args.part = ((args.vectors + blocks - 1) / blocks + 7) / 8 * 8;
    kernels_of(a->dt)->collective[p->ranks]<<<unsigned(blocks), THREADS, 0, cuda_queue(s)>>>(args);
    return launched(s);
}
