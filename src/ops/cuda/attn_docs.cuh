// Documents and windows: which rows see each other, as attention's custom kernels read them. All limits never
// decrease along the packed rows, so the first and the last row of a block bound what the block sees.
//
// With `cp_docs`, queries and keys are different rows (ops.h: attn_doc). Still a query row sees an interval of keys,
// and a key row is seen by an interval of query rows.
#pragma once
#include "ops/cuda/device.cuh"
#include <limits.h>

struct attn_docs {
    const int32_t *cu;  // [docs + 1]
    int docs, rows;
    int uniform;        // length of every document; 0: look into cu
    int window;         // 0: none
    int keys;           // rows of k and v
    const attn_doc *split; // [docs]; NULL: cu
};

template <typename ARGS> static inline attn_docs attn_docs_of(const ARGS *a)
{
    CHECK(a->heads > 0 && a->heads_kv > 0 && a->heads % a->heads_kv == 0, "%lld heads on %lld kv heads",
          (long long)a->heads, (long long)a->heads_kv);
    CHECK(a->rows < INT_MAX && a->docs > 0 && a->docs < INT_MAX, "%lld rows, %lld documents", (long long)a->rows,
          (long long)a->docs);
    CHECK(a->window >= 0, "window %lld", (long long)a->window);
    const int64_t keys = a->cp_docs ? a->keys : a->rows;
    CHECK(keys < INT_MAX && !a->more, "%lld keys", (long long)keys);
    attn_docs d = {a->cu_seqlens, (int)a->docs, (int)a->rows, 0, 0, (int)keys, a->cp_docs};
    if (!a->cp_docs && (a->docs == 1 || a->docs * a->len_max == a->rows)) d.uniform = (int)(a->rows / a->docs);
    if (a->window < keys) d.window = (int)a->window;
    return d;
}

struct doc_span { int begin, end; };
struct key_span { int first, last; };    // that a query row sees
struct query_span { int begin, end; };   // rows that see a key: none if end <= begin

// The document of row t < rows, without split. Empty documents have no row: the search finds the last one that begins
// at or before t.
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

// ---- With split.

__device__ inline int4 doc_head(const attn_doc *p) { return __ldg((const int4 *)p); } // key, keys, part[0].row, rows
__device__ inline int4 doc_tail(const attn_doc *p) { return __ldg((const int4 *)p + 1); } // part[0].shift, part[1]

// The last document that `begins(document)` at or before x; 0 if none does.
template <typename F> __device__ inline int split_search(const attn_docs &d, int x, F begins)
{
    int lo = 0, hi = d.docs;
    while (hi - lo > 1) {
        const int mid = lo + (hi - lo) / 2;
        if (begins(d.split + mid) <= x) lo = mid;
        else hi = mid;
    }
    return lo;
}
__device__ inline key_span split_keys(const attn_docs &d, int t)
{
    const attn_doc *p = d.split + split_search(d, t, [](const attn_doc *x) {
        const int4 head = doc_head(x);
        return head.w > 0 ? head.z : doc_tail(x).y;
    });
    const int4 head = doc_head(p), tail = doc_tail(p);
    const int at = tail.z > 0 && t >= tail.y ? t - tail.y + tail.w : t - head.z + tail.x; // its place in the document
    return {head.x + (d.window && at >= d.window ? at - d.window + 1 : 0), head.x + min(at, head.y - 1)};
}
// The first query row at place `at` of a document or after it; `end`: of the rows behind the document's.
__device__ inline int split_row(int4 head, int4 tail, int at, int end)
{
    const int i = max(at - tail.x, 0), j = max(at - tail.w, 0);
    return i < head.w ? head.z + i : j < tail.z ? tail.y + j : end;
}
__device__ inline query_span split_queries(const attn_docs &d, int u)
{
    const attn_doc *p = d.split + split_search(d, u, [](const attn_doc *x) { return __ldg(&x->key); });
    const int4 head = doc_head(p), tail = doc_tail(p);
    const int at = u - head.x, end = tail.z > 0 ? tail.y + tail.z : head.z + head.w;
    if (at < 0) return {0, 0}; // before the first document
    if (at >= head.y) return {end, end};
    return {split_row(head, tail, at, end), d.window ? split_row(head, tail, at + d.window, end) : end};
}

// ----

__device__ inline key_span keys_of(const attn_docs &d, int t)
{
    if (d.split) return split_keys(d, t);
    const int begin = doc_of(d, t).begin;
    return {d.window && t - begin >= d.window ? t - d.window + 1 : begin, t};
}
__device__ inline query_span queries_of(const attn_docs &d, int u)
{
    if (d.split) return split_queries(d, u);
    const int end = doc_of(d, u).end;
    return {u, d.window && end - u > d.window ? u + d.window : end};
}
__device__ inline int first_key(const attn_docs &d, int t) { return keys_of(d, t).first; }
__device__ inline int query_end(const attn_docs &d, int u) { return queries_of(d, u).end; }

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
