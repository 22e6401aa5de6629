// Documents and windows: which rows see each other, as attention's custom kernels read them. Both limits never
// decrease along the packed rows, so the first and the last row of a block bound what the block sees.
#pragma once
#include "ops/cuda/device.cuh"
#include <limits.h>

struct attn_docs {
    const int32_t *cu;  // [docs + 1]
    int docs, rows;
    int uniform;        // length of every document; 0: look into cu
    int window;         // 0: none
};

template <typename ARGS> static inline attn_docs attn_docs_of(const ARGS *a)
{
    CHECK(a->heads > 0 && a->heads_kv > 0 && a->heads % a->heads_kv == 0, "%lld heads on %lld kv heads",
          (long long)a->heads, (long long)a->heads_kv);
    CHECK(a->rows < INT_MAX && a->docs > 0 && a->docs < INT_MAX, "%lld rows, %lld documents", (long long)a->rows,
          (long long)a->docs);
    CHECK(a->window >= 0, "window %lld", (long long)a->window);
    attn_docs d = {a->cu_seqlens, (int)a->docs, (int)a->rows, 0, 0};
    if (a->docs == 1 || a->docs * a->len_max == a->rows) d.uniform = (int)(a->rows / a->docs);
    if (a->window < a->rows) d.window = (int)a->window;
    return d;
}

struct doc_span { int begin, end; };

// The document of row t < rows. Empty documents have no row: the search finds the last one that begins at or before
// t.
__device__ inline doc_span doc_of(const attn_docs &d, int t)
{
    if (d.uniform) {
        int begin = t / d.uniform * d.uniform;
        return {begin, begin + d.uniform};
    }
    int lo = 0, hi = d.docs; // cu[lo] <= t < cu[hi]
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (__ldg(d.cu + mid) <= t) lo = mid;
        else hi = mid;
    }
    return {__ldg(d.cu + lo), __ldg(d.cu + hi)};
}
// Row t sees rows [first_key(t), t].
__device__ inline int first_key(const attn_docs &d, int t)
{
    int begin = doc_of(d, t).begin;
    return d.window && t - begin >= d.window ? t - d.window + 1 : begin;
}
// Row u is seen by rows [u, query_end(u)).
__device__ inline int query_end(const attn_docs &d, int u)
{
    int end = doc_of(d, u).end;
    return d.window && end - u > d.window ? u + d.window : end;
}

// Item i of a walk over all blocks of rows of all heads. All heads of a block are consecutive; with many heads,
// HEADS of them over BLOCKS blocks before the next ones, so what blocks of one head read stays in L2 whatever the
// number of heads. Blocks of one head come in ascending order. (H200, 4096 rows, 128 heads of 192/128, forward /
// backward: 621 / 436 TFLOP/s; with all heads of a block at once 496 / 409.)
struct walk_item { int block, head; };
template <int HEADS = 32, int BLOCKS = 8> __device__ inline walk_item walk_at(int i, int blocks, int heads, int group)
{
    const int most = HEADS * group, far = i / (BLOCKS * heads) * BLOCKS, high = min(BLOCKS, blocks - far);
    const int at = i - far * heads, first = at / (most * high) * most, width = min(most, heads - first),
              left = at - first * high;
    return {far + left / width, first + left % width};
}

// delta = <do, o> of every row and head into [heads, rows] F32 (attn_reference.cu).
void attn_delta_queue(const struct attn_bwd_args *a, float *delta, cudaStream_t queue);
// F32 in tiles (attn_f32.cu), head dims of multiples of 4 up to 128, operands on 16-byte boundaries. bwd reads delta
// from a->scratch.
void attn_f32_fwd_queue(const struct attn_fwd_args *a, cudaStream_t queue);
void attn_f32_bwd_queue(const struct attn_bwd_args *a, cudaStream_t queue);
