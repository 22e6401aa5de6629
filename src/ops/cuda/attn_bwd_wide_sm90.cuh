// What the kernels of attention's backward with heads of 192 and 128 share: attn_bwd_wide_sm90.cu (dK and dV, and what
// queues all of them), attn_bwd_wide_dq_sm90.cu (dQ).
#pragma once
#include "ops/cuda/attn_docs.cuh"
#include "ops/cuda/tile_sm90.cuh"
extern "C" {
#include "ops/cuda/attn_backends.h"
}

enum { HD = 192, HDV = 128, GROUPS = 2, THREADS = (1 + GROUPS) * WARPGROUP, REGISTERS = 240, REGISTERS_LOAD = 24 };

// What a kernel that runs first makes, in attention's scratch. Rows are filled up to a multiple of ROWS: a row that
// does not exist has lse2 = inf, so that its probabilities are 0, and is seen by nothing.
enum { ROWS = 128 };
struct wide_scratch {
    float *lse2, *delta;        // [heads, rows_pad]; lse2 for exp2
    int *row_first, *row_end;   // [rows_pad]: first_key of a query row, query_end of a key row
    unsigned *tickets;          // [ticket_count]: two for each slab
    unsigned char *zeros;       // [TILE]
    unsigned char *tiles;       // dS of a slab
    int rows_pad, ticket_count;
};

// dS between the two kernels: tiles of 64 keys by 64 queries, bf16, in blocks of 8 keys by 8 queries as wgmma takes
// them without a swizzle and as a warp's registers hold them: [16 keys][8 queries][8 keys], 128 bytes each. Two tiles,
// of the first and the last 64 queries of a block of ROWS, are a pair; pairs of a block lie one after the other, by
// keys. So dQ reads on through memory.
//
//   wide == 0    documents of whole blocks, or one document: the pairs of a document's block b are its first 2 b + 2
//                tiles of keys
//   else         wide pairs for each block, as many tiles of keys as its rows can see: tile t is pair t % wide
//
// A unit is a document (wide == 0; else all rows) and a kv head with its group: what one needs nobody else does. Unit
// u: document u / heads_kv, kv head u % heads_kv. A slab is some units, one after the other, whose tiles there is
// memory for.
// bytes: to the next 8 keys, 8 queries, 16 keys
enum { TILE = 64 * 64 * 2, TILE_KEYS = 128, TILE_QUERIES = 256, TILE_STEP = TILE / 4 };
struct wide_layout {
    int wide;
    int blocks, pairs; // of a unit: of rows; of each of its heads
};

struct wide_args {
    wide_scratch x;
    __nv_bfloat16 *dq, *dk, *dv;
    int64_t dq_stride, dk_stride, dv_stride;
    int rows, heads, heads_kv, group;
    float scale, scale2;
    wide_layout layout;
    int unit0, units;           // of the slab
    unsigned *tickets;          // [2]: the slab's
};

// Pairs of one tile of keys and the first head of a kv head: that of block b is at + (b - first) * (wide, or b - first
// + 1).
struct wide_column { int at, first; };
__device__ inline wide_column wide_column_of(const wide_args &a, int key_tile, int kv)
{
    const wide_layout &l = a.layout;
    const int doc = key_tile / 2 / l.blocks, first = doc * l.blocks, unit = doc * a.heads_kv + kv - a.unit0;
    return {unit * a.group * l.pairs + (l.wide ? key_tile % l.wide : key_tile - 2 * first), first};
}
// Where the pair lies of block b and head h of the group.
__device__ inline unsigned char *wide_pair(const wide_args &a, wide_column c, int b, int h)
{
    const int down = b - c.first;
    return a.x.tiles +
           (int64_t)(h * a.layout.pairs + c.at + down * (a.layout.wide ? a.layout.wide : down + 1)) * (2 * TILE);
}

// Slots in shared memory in which a loader tells the others what comes next.
enum { SLOTS = 2 };

// Queue dQ of a slab: from what the other kernel stored, or alone.
void wide_dq_stored_queue(const wide_args &a, const CUtensorMap &k, int resident, cudaStream_t queue);
void wide_dq_alone_queue(const wide_args &a, const CUtensorMap &q, const CUtensorMap &k, const CUtensorMap &v,
                         const CUtensorMap &o, int resident, cudaStream_t queue);

#ifdef TILE90

__device__ inline int4 slot_read(uint32_t at)
{
    int4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}
__device__ inline void slot_write(uint32_t at, int4 x)
{
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
// A slot once it is filled, the same in all lanes of a converged warp.
__device__ inline int4 slot_take(uint32_t at, uint32_t full, uint32_t empty, uint32_t parity)
{
    mbar_wait(full, parity);
    int4 x = slot_read(at);
    x.x = __shfl_sync(0xffffffffu, x.x, 0);
    x.y = __shfl_sync(0xffffffffu, x.y, 0);
    x.z = __shfl_sync(0xffffffffu, x.z, 0);
    x.w = __shfl_sync(0xffffffffu, x.w, 0);
    if (threadIdx.x % WARP == 0) mbar_arrive(empty);
    return x;
}
// What was in d is of no use: else the compiler keeps it until the matmul that overwrites it, since that could read it.
template <int COUNT> __device__ inline void fresh(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "=f"(d[i]));
}
#endif // TILE90
