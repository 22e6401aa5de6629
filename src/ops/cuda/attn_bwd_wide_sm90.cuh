// Shared by the kernels of attention's backward with heads of 192 and 128: attn_bwd_wide_sm90.cu (dK and dV, and
// the launches of all), attn_bwd_wide_dq_sm90.cu (dQ).
#pragma once
#include "ops/cuda/attn_docs.cuh"
#include "ops/cuda/tile_sm90.cuh"
extern "C" {
#include "ops/cuda/attn_backends.h"
}

enum { HD = 192, HDV = 128, GROUPS = 2, THREADS = (1 + GROUPS) * WARPGROUP, REGISTERS = 240, REGISTERS_LOAD = 24 };

// Tables of the first kernel, in attention's scratch. Rows are padded to a multiple of ROWS: padding has lse2 =
// inf, so its probabilities are 0, and nothing sees it.
enum { ROWS = 128 };
struct wide_scratch {
    float *lse2, *delta;        // [heads, rows_pad]; lse2 for exp2
    int *row_first, *row_end;   // [rows_pad]: first_key of a query row, query_end of a key row
    unsigned *tickets;          // [ticket_count]: two for each slab
    unsigned char *zeros;       // [TILE]
    unsigned char *tiles;       // dS of a slab
    int rows_pad, ticket_count;
};

// dS between the two kernels: tiles of 64 keys by 64 queries, bf16, in blocks of 8 keys by 8 queries, as wgmma
// reads them without a swizzle and as a warp's registers hold them: [16 keys][8 queries][8 keys], 128 bytes each. A
// pair is two tiles: of the first and the last 64 queries of a block of ROWS. The pairs of a block are consecutive,
// by keys, so dQ reads memory in order.
//
//   wide == 0   documents of whole blocks, or one document: the pairs of a document's block b are its first 2 b + 2
//               tiles of keys
//   else        `wide` pairs per block, as many tiles of keys as its rows can see: tile t is pair t % wide
//
// Unit: a document (wide == 0; else all rows) and a kv head with its group. Units are independent. Unit u is document
// u / heads_kv, kv head u % heads_kv. Slab: consecutive units whose tiles fit in memory.
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

// Index of the pair of one tile of keys and the first head of a kv head: at + (b - first) * (wide, or b - first +
// 1) for block b.
struct wide_column { int at, first; };
__device__ inline wide_column wide_column_of(const wide_args &a, int key_tile, int kv)
{
    const wide_layout &l = a.layout;
    const int doc = key_tile / 2 / l.blocks, first = doc * l.blocks, unit = doc * a.heads_kv + kv - a.unit0;
    return {unit * a.group * l.pairs + (l.wide ? key_tile % l.wide : key_tile - 2 * first), first};
}
// Address of the pair of block b and head h of the group.
__device__ inline unsigned char *wide_pair(const wide_args &a, wide_column c, int b, int h)
{
    const int down = b - c.first;
    return a.x.tiles +
           (int64_t)(h * a.layout.pairs + c.at + down * (a.layout.wide ? a.layout.wide : down + 1)) * (2 * TILE);
}

// Slots in shared memory through which a loader announces what comes next.
enum { SLOTS = 2 };

// Queues dQ of a slab: from stored dS, or recomputing.
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
// Reads a filled slot; the same in all lanes of a converged warp.
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
// d is dead here: else the compiler keeps it until the matmul that overwrites it, since that could read it.
template <int COUNT> __device__ inline void fresh(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "=f"(d[i]));
}
#endif // TILE90
