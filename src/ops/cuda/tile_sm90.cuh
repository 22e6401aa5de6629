// Building blocks of warp-specialised kernels on Hopper (sm_90a): attention, GEMMs, linear attention.
//
//   what                           here                                      PTX
//   tile in shared memory          slab_offset, SLAB_ROW                     128-byte swizzle
//   matmul of a warpgroup          wgmma_ss, wgmma_rs                        wgmma.mma_async m64nNk16, bf16 -> f32
//                                  wgmma_codes, wgmma_codes_rs               m64nNk32, E4M3 or E5M2, E4M3 -> f32
//     operands                     operand_k, operand_mn, operand_blocks,    matrix descriptors
//                                  step_k, step_mn
//     ordering                     wgmma_fence, _commit, _wait, hold         wgmma.fence, commit_group, wait_group
//     accumulator layout           acc_row, acc_col; pack_a, rows_store
//   waiting                        mbar_*; pipeline: producer_*, consumer_*  mbarrier
//   copies by one thread           tma_load, tma_store, bulk_load,           cp.async.bulk(.tensor)
//                                  bulk_load_once, bulk_add_f32, bulk_wait   cp.reduce.async.bulk
//     maps, made on the host       tile_map_rows, _heads                     cuTensorMapEncodeTiled
//   pairs of blocks                pair_*, tma_load_both, launch_pairs       clusters, multicast
//   registers                      registers_take, _give                     setmaxnreg
//   warps, named barriers          one_lane, named_sync, named_arrive        elect.sync, bar.sync, bar.arrive
//   8 x 8 matrices                 store8x8x4, load8x8x4, turned_codes       stmatrix, ldmatrix
//
// Only sm_90a code may call the device part: bodies of such kernels are inside #ifdef TILE90, so other
// architectures of a build get empty kernels that are never launched.
//
// Tile: R rows x C columns of bf16, C a multiple of 64, is stored as C / 64 slabs of R rows of 128 bytes. The
// 16-byte chunk c of a slab's row r is at chunk c ^ (r & 7). A slab begins at a multiple of 1024 bytes, so R is a
// multiple of 8. TMA with maps from tile_map_rows writes and reads this layout; operand_k and operand_mn describe
// it.
//
// Accumulator: d[N / 2] of m64nN in a thread of the warpgroup. Element i is row acc_row(i), column acc_col(i) of
// the 64 x N tile. Elements 8 k .. 8 k + 7, rounded and packed by pack_a, are operand A of the k-th k16 step of a
// following matmul over these columns.
//
// Proxies: wgmma reads shared memory through the async proxy. Data that threads wrote need fence_async() by the
// writers and then a barrier before wgmma or TMA reads them. Data that TMA wrote need only the wait on its
// mbarrier.
#pragma once
#include "ops/cuda/device.cuh"
#include <cuda.h>
#include <cudaTypedefs.h>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define TILE90 1
#endif

enum { WARPGROUP = 128, SLAB_COLS = 64, SLAB_ROW = 128 }; // threads; bf16 columns and bytes of a slab's row

// ---- Addresses in the shared window: 32 bits.

__device__ inline uint32_t shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Bytes from the start of a slab to row, col (below 64).
__device__ constexpr uint32_t slab_offset(int row, int col)
{
    return row * SLAB_ROW + (((col >> 3) ^ (row & 7)) << 4) + (col & 7) * 2;
}

// ---- Operands of wgmma. `at`: shared address of the first row and column.
//
//   operand_k        k runs along columns: A [64][k] or B [n][k]. Begins at a multiple of 8 rows.
//   operand_mn       k runs along rows: A [k][64] or B [k][n], the "transposed" forms. n above 64 continues `slab`
//                    bytes further.
//   operand_blocks   like operand_mn without a swizzle, in blocks of 8 rows and 8 columns, 128 bytes each, row by row;
//                    with the distance in bytes to the next block along n, and along k.
//
// The k-th k16 step of a matmul: operand_step(operand of the tile, its step_k or step_mn), one addition.

__device__ inline uint64_t operand_of(uint32_t at, uint32_t lead, uint32_t stride)
{
    return (uint64_t)1 << 62 | (uint64_t)(stride >> 4) << 32 | (uint64_t)(lead >> 4) << 16 | (at & 0x3ffff) >> 4;
}
__device__ inline uint64_t operand_k(uint32_t at) { return operand_of(at, 16, 8 * SLAB_ROW); }
__device__ inline uint64_t operand_mn(uint32_t at, uint32_t slab) { return operand_of(at, slab, 8 * SLAB_ROW); }
__device__ inline uint64_t operand_blocks(uint32_t at, uint32_t along_n, uint32_t along_k)
{
    return (uint64_t)(along_n >> 4) << 32 | (uint64_t)(along_k >> 4) << 16 | (at & 0x3ffff) >> 4;
}
// The operand `bytes` further (not past the end of the shared window).
__device__ inline uint64_t operand_step(uint64_t operand, uint32_t bytes)
{
    return (operand >> 32) << 32 | ((uint32_t)operand + (bytes >> 4));
}
// rows: of the tile: the distance of its slabs.
__device__ constexpr uint32_t step_k(int k, int rows) { return k / 4 * (rows * SLAB_ROW) + k % 4 * 32; }
__device__ constexpr uint32_t step_mn(int k) { return k * (16 * SLAB_ROW); }

// ---- Matmuls of a warpgroup: d = a b (add 0) or d += a b (add 1), asynchronous.
//
//   TA, TB     0: operand_k, 1: operand_mn
//   wgmma_rs   A in registers, from pack_a; they may be overwritten after the wait
//
// Order: wgmma_fence() before the first matmul and after other instructions wrote d or a; matmuls; wgmma_commit();
// wgmma_wait<P>() until at most P commits are open. The compiler does not know that d changes until the wait: call
// hold(d) after it (and before a fence, if d was computed), or reads of d move ahead. ptxas in turn moves a wait
// ahead of arithmetic in its basic block that does not depend on it: put what should overlap a matmul before a
// branch, or read it by an asm volatile before the wait.

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int PENDING> __device__ inline void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}
template <int COUNT> __device__ inline void hold(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int COUNT> __device__ inline void hold(uint32_t (&a)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(a[i])::"memory");
}

#define TILE90_R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TILE90_R16 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TILE90_R32 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define TILE90_R48 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TILE90_R64 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define TILE90_R80 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define TILE90_R96 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define TILE90_R112 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define TILE90_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TILE90_F16(i) TILE90_F4(i), TILE90_F4(i + 4), TILE90_F4(i + 8), TILE90_F4(i + 12)
#define TILE90_R_32 TILE90_R0 "," TILE90_R16
#define TILE90_R_48 TILE90_R_32 "," TILE90_R32
#define TILE90_R_64 TILE90_R_48 "," TILE90_R48
#define TILE90_R_96 TILE90_R_64 "," TILE90_R64 "," TILE90_R80
#define TILE90_R_128 TILE90_R_96 "," TILE90_R96 "," TILE90_R112
#define TILE90_F_32 TILE90_F16(0), TILE90_F16(16)
#define TILE90_F_48 TILE90_F_32, TILE90_F16(32)
#define TILE90_F_64 TILE90_F_48, TILE90_F16(48)
#define TILE90_F_96 TILE90_F_64, TILE90_F16(64), TILE90_F16(80)
#define TILE90_F_128 TILE90_F_96, TILE90_F16(96), TILE90_F16(112)
// The inputs are numbered after the N / 2 accumulators: p0, p1, ...
#define TILE90_SS(N, HALF, p0, p1, p2, p3, p4)                                                                         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p2 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" TILE90_R_##HALF "}, %" #p0 ", %" #p1     \
                 ", p, 1, 1, %" #p3 ", %" #p4 ";\n}\n"                                                                 \
                 : TILE90_F_##HALF                                                                                     \
                 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB))
#define TILE90_RS(N, HALF, p0, p1, p2, p3, p4, p5, p6)                                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p5 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" TILE90_R_##HALF "}, {%" #p0 ",%" #p1     \
                 ",%" #p2 ",%" #p3 "}, %" #p4 ", p, 1, 1, %" #p6 ";\n}\n"                                              \
                 : TILE90_F_##HALF                                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TB))

// FP8, m64nNk32: codes, A's E4M3 or E5M2, B's E4M3, both operand_k: 128 codes in a row of 128 bytes. A k32 step is
// 32 bytes, as a k16 step of bf16 is: operand_step(operand, k * 32).
#define TILE90_CODES(N, TYPE, HALF, p0, p1, p2)                                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p2 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." #TYPE ".e4m3 {" TILE90_R_##HALF "}, %" #p0 ", %"    \
                 #p1 ", p, 1, 1;\n}\n"                                                                                 \
                 : TILE90_F_##HALF                                                                                     \
                 : "l"(a), "l"(b), "r"(add))
template <int N, bool E5M2 = false>
__device__ inline void wgmma_codes(float (&d)[N / 2], uint64_t a, uint64_t b, int add)
{
    static_assert(N == 128 || N == 256, "widths that are written out below");
    if constexpr (N == 128 && !E5M2) TILE90_CODES(128, e4m3, 64, 64, 65, 66);
    if constexpr (N == 128 && E5M2) TILE90_CODES(128, e5m2, 64, 64, 65, 66);
    if constexpr (N == 256 && !E5M2) TILE90_CODES(256, e4m3, 128, 128, 129, 130);
    if constexpr (N == 256 && E5M2) TILE90_CODES(256, e5m2, 128, 128, 129, 130);
}

// A in registers: turned_codes. Of its formats one is E5M2: A's, or B's.
#define TILE90_CODES_RS(TYPE_A, TYPE_B)                                                                                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                          \
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32." #TYPE_A "." #TYPE_B " {" TILE90_R_32                    \
                 "}, {%32,%33,%34,%35}, %36, p, 1, 1;\n}\n"                                                            \
                 : TILE90_F_32                                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
template <bool A_E5M2>
__device__ inline void wgmma_codes_rs(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add)
{
    if constexpr (A_E5M2) TILE90_CODES_RS(e5m2, e4m3);
    else TILE90_CODES_RS(e4m3, e5m2);
}

template <int N, int TA = 0, int TB = 0>
__device__ inline void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int add)
{
    static_assert(N == 64 || N == 96 || N == 128 || N == 192 || N == 256, "widths that are written out below");
    if constexpr (N == 64) TILE90_SS(64, 32, 32, 33, 34, 35, 36);
    if constexpr (N == 96) TILE90_SS(96, 48, 48, 49, 50, 51, 52);
    if constexpr (N == 128) TILE90_SS(128, 64, 64, 65, 66, 67, 68);
    if constexpr (N == 192) TILE90_SS(192, 96, 96, 97, 98, 99, 100);
    if constexpr (N == 256) TILE90_SS(256, 128, 128, 129, 130, 131, 132);
}
template <int N, int TB = 0>
__device__ inline void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add)
{
    static_assert(N == 64 || N == 96 || N == 128 || N == 192 || N == 256, "widths that are written out below");
    if constexpr (N == 64) TILE90_RS(64, 32, 32, 33, 34, 35, 36, 37, 38);
    if constexpr (N == 96) TILE90_RS(96, 48, 48, 49, 50, 51, 52, 53, 54);
    if constexpr (N == 128) TILE90_RS(128, 64, 64, 65, 66, 67, 68, 69, 70);
    if constexpr (N == 192) TILE90_RS(192, 96, 96, 97, 98, 99, 100, 101, 102);
    if constexpr (N == 256) TILE90_RS(256, 128, 128, 129, 130, 131, 132, 133, 134);
}

// ---- Accumulators. `thread`: within the warpgroup.

__device__ inline int acc_row(int thread, int i) { return thread / WARP * 16 + (i / 2 % 2) * 8 + thread % WARP / 4; }
__device__ inline int acc_col(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

__device__ inline uint32_t two_bf16(float low, float high)
{
    __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&x);
}
// Operand A of the k-th k16 step from an accumulator.
template <int COUNT> __device__ inline void pack_a(uint32_t (&a)[4], const float (&d)[COUNT], int k)
{
    for (int j = 0; j < 4; j++) a[j] = two_bf16(d[8 * k + 2 * j], d[8 * k + 2 * j + 1]);
}

// Transposes among the four lanes of a row: r[k] of lane t becomes r[t] of lane k. Then a lane has 16 bytes of one
// chunk.
__device__ inline void quad_transpose(uint32_t (&r)[4], int lane)
{
#pragma unroll
    for (int d = 1; d <= 2; d *= 2)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t &low = r[d == 1 ? 2 * j : j], &high = r[d == 1 ? 2 * j + 1 : j + 2];
            const uint32_t got = __shfl_xor_sync(0xffffffffu, lane & d ? low : high, d);
            if (lane & d) low = got;
            else high = got;
        }
}
// Stores 64 rows of an accumulator to global memory as bf16. `to`: first row and column; the first `valid` rows
// exist; factor scales each of the thread's two rows.
template <int COUNT>
__device__ inline void rows_store(const float (&c)[COUNT], const float (&factor)[2], __nv_bfloat16 *to, int64_t stride,
                                  int valid)
{
    const int thread = threadIdx.x % WARPGROUP, lane = thread % WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = acc_row(thread, half * 2);
#pragma unroll
        for (int n = 0; n < COUNT / 4; n += 4) {
            uint32_t r[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                r[k] = two_bf16(c[4 * (n + k) + 2 * half] * factor[half], c[4 * (n + k) + 2 * half + 1] * factor[half]);
            quad_transpose(r, lane);
            if (row < valid)
                *reinterpret_cast<int4 *>(to + row * stride + (n + lane % 4) * 8) =
                    make_int4((int)r[0], (int)r[1], (int)r[2], (int)r[3]);
        }
    }
}

// Four 8 x 8 matrices of 16 bits between registers and shared memory (stmatrix, ldmatrix). Lane i addresses row i %
// 8 of matrix i / 8. Register j is matrix j in accumulator layout (row lane / 4, columns 2 (lane % 4) and + 1).
// _trans: the matrix is transposed.
__device__ inline void store8x8x4(uint32_t at, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at), "r"(r0), "r"(r1), "r"(r2),
                 "r"(r3)
                 : "memory");
}
__device__ inline void store8x8x4_trans(uint32_t at, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at), "r"(r0), "r"(r1),
                 "r"(r2), "r"(r3)
                 : "memory");
}
__device__ inline void load8x8x4(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ inline void load8x8x4_trans(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

// Operand A of a k32 step of codes whose sum runs along the rows of a slab: rows `row` to row + 31 of its 16-byte chunk
// `chunk` (both the warp's), a byte per row of A. Row i of the accumulator in a warp is the chunk's byte
// turned_row(i): the transposed loads bring pairs of bytes.
__device__ constexpr int turned_row(int i) { return i % 8 * 2 + i / 8; }
__device__ inline void turned_codes(uint32_t (&a)[4], uint32_t slab, int row, int chunk)
{
    const int lane = threadIdx.x % WARP, r = lane % 8;
    const int from = row + lane / 16 * 16 + r / 2 * 4 + lane / 8 % 2 * 2 + r % 2; // of the lane's matrix
    uint32_t x[4]; // rows 4 t and 4 t + 1 (t: lane % 4); 4 t + 2 and 4 t + 3; the same of the second sixteen
    load8x8x4_trans(x, slab + slab_offset(from, chunk * 8));
    a[0] = __byte_perm(x[0], x[1], 0x6420);
    a[1] = __byte_perm(x[0], x[1], 0x7531);
    a[2] = __byte_perm(x[2], x[3], 0x6420);
    a[3] = __byte_perm(x[2], x[3], 0x7531);
}

// ---- mbarriers: 8 bytes of shared memory each. A phase ends after `count` arrivals and all announced bytes. A
// waiter names the parity of the phase whose end it waits for: 0, 1, 0, ... Waiting for parity 1 on a fresh barrier
// returns at once, so a producer's first wait for an empty stage passes.

__device__ inline void mbar_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(count) : "memory");
}
// After the inits, by the same thread, before the block's barrier.
__device__ inline void mbar_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ inline void mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(bar) : "memory");
}
// Arrives and announces the bytes that copies will bring.
__device__ inline void mbar_arrive_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ inline bool mbar_try(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}
__device__ inline void mbar_wait(uint32_t bar, uint32_t parity)
{
    while (!mbar_try(bar, parity)) {}
}

// Position of a producer or consumer in a pipeline: the next stage, and the parity of its barriers' phase.
template <int STAGES> struct pipeline_state {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void next()
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// The barriers of a pipeline in shared memory, AT bytes from `base`: full of each stage, then empty of each. A
// stage's life:
//
//   producer   producer_acquire   waits until its readers have released the stage
//              producer_expect    arrives at full and announces bytes of copies; or
//              producer_commit    arrives at full: threads wrote the data
//   consumer   consumer_wait      waits until the stage is full
//              consumer_release   arrives at empty: this reader is done
template <int AT_, int STAGES_> struct pipeline {
    static constexpr int AT = AT_, STAGES = STAGES_, EMPTY = AT + 8 * STAGES, END = EMPTY + 8 * STAGES;
    using state = pipeline_state<STAGES>;

    __device__ static uint32_t full(uint32_t base, int stage) { return base + AT + 8 * stage; }
    __device__ static uint32_t empty(uint32_t base, int stage) { return base + EMPTY + 8 * stage; }
    // Initialises one stage's barriers: arrivals that end a phase of each. By the thread that calls mbar_init_done.
    __device__ static void init(uint32_t base, int stage, int producers, int consumers)
    {
        mbar_init(full(base, stage), producers);
        mbar_init(empty(base, stage), consumers);
    }
    __device__ static void producer_acquire(uint32_t base, const state &s)
    {
        mbar_wait(empty(base, s.stage), s.parity ^ 1);
    }
    __device__ static void producer_expect(uint32_t base, int stage, uint32_t bytes)
    {
        mbar_arrive_expect(full(base, stage), bytes);
    }
    __device__ static void producer_commit(uint32_t base, int stage) { mbar_arrive(full(base, stage)); }
    __device__ static void consumer_wait(uint32_t base, const state &s) { mbar_wait(full(base, s.stage), s.parity); }
    __device__ static void consumer_release(uint32_t base, int stage) { mbar_arrive(empty(base, stage)); }
};

// A field of a block's shared memory: COUNT pieces of BYTES bytes, from AT on. A layout is a list of fields, each
// AT the END of the one before; a pipeline is a field, too. The END of the last one is the block's shared memory.
template <int AT_, int BYTES_, int COUNT_ = 1> struct smem_field {
    static constexpr int AT = AT_, BYTES = BYTES_, COUNT = COUNT_, END = AT + BYTES * COUNT;

    __device__ static uint32_t at(uint32_t base, int i = 0) { return base + AT + i * BYTES; }
};

// ---- Copies by one thread. Loads complete on an mbarrier; stores and adds in groups of the thread that queued
// them.

__device__ inline void fence_async() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
__device__ inline void tma_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

// A box of a map from tile_map_rows: rows from `row` on, slabs from `slab` on (column / 64). Rows past the last are
// loaded as zeros and not stored; their bytes count for the barrier all the same. row may be negative.
__device__ inline void tma_load(uint32_t to, const CUtensorMap *map, uint32_t bar, int row, int slab)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5}], [%2];\n" ::"r"(to),
                 "l"(map), "r"(bar), "r"(0), "r"(row), "r"(slab)
                 : "memory");
}
__device__ inline void tma_store(const CUtensorMap *map, uint32_t from, int row, int slab)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n" ::"l"(map),
                 "r"(from), "r"(0), "r"(row), "r"(slab)
                 : "memory");
}
// A box of a map from tile_map_heads: rows from `row` on, heads from `head` on. Out of range: as above.
__device__ inline void tma_load_heads(uint32_t to, const CUtensorMap *map, uint32_t bar, int row, int head)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
                 "%3}], [%2];\n" ::"r"(to),
                 "l"(map), "r"(bar), "r"(0), "r"(head), "r"(row)
                 : "memory");
}
__device__ inline void tma_store_heads(const CUtensorMap *map, uint32_t from, int row, int head)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %2}], [%1];\n" ::"l"(map),
                 "r"(from), "r"(0), "r"(head), "r"(row)
                 : "memory");
}
// Contiguous bytes, a multiple of 16, both ends 16-byte aligned.
__device__ inline void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
__device__ inline void bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}
// The same for streams that are read once: evicted first from L2.
__device__ inline uint64_t policy_once()
{
    uint64_t x;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(x));
    return x;
}
__device__ inline void bulk_load_once(uint32_t to, const void *from, uint32_t bytes, uint32_t bar, uint64_t once)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;\n" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar), "l"(once)
                 : "memory");
}
// to[i] += from[i], f32, added in L2.
__device__ inline void bulk_add_f32(float *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
// Waits until at most PENDING groups have not read their source, or (bulk_wait) are not complete: visible to later
// writes of this thread.
template <int PENDING> __device__ inline void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(PENDING) : "memory");
}
template <int PENDING> __device__ inline void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

// ---- Pairs: clusters of two blocks, of which one may load for both and arrive at barriers of both.

__device__ inline int pair_rank()
{
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
    return rank;
}
__device__ inline void pair_sync() { asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;\n" ::: "memory"); }
// As tma_load, into both blocks of the pair.
__device__ inline void tma_load_both(uint32_t to, const CUtensorMap *map, uint32_t bar, int row, int slab)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%3, %4, %5}], "
                 "[%2], %6;\n" ::"r"(to),
                 "l"(map), "r"(bar), "r"(0), "r"(row), "r"(slab), "h"((uint16_t)3)
                 : "memory");
}
// The same for a map of four dimensions: a box at x, y of the middle two.
__device__ inline void tma_load_both(uint32_t to, const CUtensorMap *map, uint32_t bar, int x, int y, int slab)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%3, %4, %5, %6}], "
                 "[%2], %7;\n" ::"r"(to),
                 "l"(map), "r"(bar), "r"(0), "r"(x), "r"(y), "r"(slab), "h"((uint16_t)3)
                 : "memory");
}
// By a warp: one arrival at this barrier in each block.
__device__ inline void mbar_arrive_both(uint32_t bar)
{
    const int lane = threadIdx.x % WARP;
    if (lane < 2)
        asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                     "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(bar),
                     "r"(lane)
                     : "memory");
}

// ---- Warps.

// True in one lane of a converged warp.
__device__ inline bool one_lane()
{
    uint32_t is;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}\n" : "=r"(is));
    return is;
}
// A warpgroup changes the number of registers of its threads: a multiple of 8, from 24 to 240. Others must have
// given what one takes.
template <int COUNT> __device__ inline void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}
template <int COUNT> __device__ inline void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}
// Barrier `id`, 1 to 15 (0 is __syncthreads), of `threads` threads that sync or arrive.
__device__ inline void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// ---- Host side.

// As many pairs as pairs of multiprocessors. Errors are checked at the launch.
template <typename... P, typename... A>
static inline void launch_pairs(void (*kernel)(P...), int threads, int bytes, dev_stream s, const A &...arguments)
{
    cudaLaunchAttribute pairs = {};
    pairs.id = cudaLaunchAttributeClusterDimension;
    pairs.val.clusterDim = {2, 1, 1};
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3((unsigned)(cuda_set(s)->multiprocessors / 2 * 2));
    launch.blockDim = dim3((unsigned)threads);
    launch.dynamicSmemBytes = (size_t)bytes;
    launch.stream = queue_of(s);
    launch.attrs = &pairs;
    launch.numAttrs = 1;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    (void)cudaLaunchKernelEx(&launch, kernel, arguments...);
}

// A map of bf16 with RANK dimensions, the first of SLAB_COLS columns; strides of the others in bytes.
template <int RANK>
static inline status tile_map(CUtensorMap *map, dev_stream s, const void *base, const cuuint64_t (&dims)[RANK],
                              const cuuint64_t (&strides)[RANK - 1], const cuuint32_t (&box)[RANK])
{
    const auto encode = (PFN_cuTensorMapEncodeTiled_v12000)cuda_set(s)->tensor_map_encode;
    cuuint32_t steps[RANK];
    for (int i = 0; i < RANK; i++) steps[i] = 1;
    if (encode == NULL)
        return FAIL(STATUS_DEVICE, "the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12.0's");
    const CUresult got = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, RANK, (void *)(uintptr_t)base, dims, strides,
                                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (got != CUDA_SUCCESS)
        return FAIL(STATUS_INTERNAL, "a tensor map of %lld x %lld, %lld bytes apart: CUDA error %d", (long long)dims[1],
                    (long long)dims[2], (long long)strides[0], (int)got);
    return STATUS_OK;
}

// The map of a bf16 matrix: rows `stride` elements apart, of which `cols` are used (a multiple of 64). A box is
// box_rows (at most 256) rows of box_slabs slabs: a tile as above. base and stride are multiples of 16 bytes.
// Kernels take the map as a `const __grid_constant__ CUtensorMap`: captured graphs keep a copy.
static inline status tile_map_rows(CUtensorMap *map, dev_stream s, const void *base, int64_t rows, int64_t stride,
                                   int64_t cols, int box_rows, int box_slabs)
{
    CHECK(cols % SLAB_COLS == 0, "%lld columns", (long long)cols);
    return tile_map<3>(map, s, base, {SLAB_COLS, (cuuint64_t)rows, (cuuint64_t)(cols / SLAB_COLS)},
                       {(cuuint64_t)stride * 2, SLAB_ROW}, {SLAB_COLS, (cuuint32_t)box_rows, (cuuint32_t)box_slabs});
}
// The same for rows of `heads` heads of hd columns. A box is box_rows rows of box_heads heads: a tile of box_rows
// box_heads rows, the heads of a row in order, and hd columns.
static inline status tile_map_heads(CUtensorMap *map, dev_stream s, const void *base, int64_t rows, int64_t stride,
                                    int64_t heads, int hd, int box_rows, int box_heads)
{
    CHECK(hd % SLAB_COLS == 0, "heads of %d", hd);
    return tile_map<4>(map, s, base, {SLAB_COLS, (cuuint64_t)heads, (cuuint64_t)rows, (cuuint64_t)(hd / SLAB_COLS)},
                       {(cuuint64_t)hd * 2, (cuuint64_t)stride * 2, SLAB_ROW},
                       {SLAB_COLS, (cuuint32_t)box_heads, (cuuint32_t)box_rows, (cuuint32_t)(hd / SLAB_COLS)});
}
