/* Converts a call of attn_fwd or attn_bwd to cuDNN cases and computes their memory. Pure arithmetic: the planner uses
 * it too.
 *
 * The deterministic backward has a workspace of b h sq skv bf16 values (s rounded up to tiles). It therefore runs in
 * parts with a workspace of at most SDPA_BUDGET: some of the sequences, or some kv heads of one sequence. Documents
 * of different lengths (ragged) must run in one part: their workspace is sized for the static maximum of documents. A
 * custom kernel is faster for short documents. */
#ifndef INGOT_OPS_CUDA_ATTN_CUDNN_PARTS_H
#define INGOT_OPS_CUDA_ATTN_CUDNN_PARTS_H
#include "ops/cuda/attn_cudnn_graph.h"

#define SDPA_BUDGET ((size_t)1 << 30) /* 64 and 192 MiB, which keep dS in L2, were slower: docs/perf-log */
enum { SDPA_DOCS_MAX = 4096 };  /* also documents x heads < 65536, which is one grid dimension */

/* True if all documents have len_max rows. */
bool sdpa_dense(const struct attn_shape *shape);

/* One part of the backward: `b` sequences, or one sequence and `hk` of its kv heads. Ragged documents run in one
 * part. Both are 0 if one kv head alone exceeds the budget. */
struct sdpa_part { int64_t b, hk; };
struct sdpa_part sdpa_part(const struct attn_shape *shape);

/* The shape of a call, with the smallest len_max that rows and docs allow. The functions above and below expect such
 * a shape. */
struct attn_shape sdpa_shape_fwd(const struct attn_fwd_args *a);
struct attn_shape sdpa_shape_bwd(const struct attn_bwd_args *a);
struct sdpa_case sdpa_case_fwd(const struct attn_fwd_args *a);
struct sdpa_case sdpa_case_bwd(const struct attn_bwd_args *a, struct sdpa_part part);
/* Bytes of the atomic accumulator for the same part; it reuses the deterministic plan's workspace. 0 for ragged
 * documents, which have no accumulator. */
size_t sdpa_accumulator(const struct sdpa_case *c);
/* True if the deterministic scratch is large enough for the accumulator: the whole batch then runs at once with
 * atomic adds. */
bool sdpa_atomic_fits(const struct attn_shape *shape);

/* Offsets into the scratch. Every size grows with rows, docs and len_max, so a scratch for the largest call fits all
 * calls. */
struct sdpa_layout {
    size_t stats;       /* f32 [rows x heads]: lse if the caller does not want it; delta in backward */
    size_t lengths;     /* i32 [docs] */
    size_t offsets;     /* i64 [docs+1] per operand, consecutive */
    size_t offsets_each;
    size_t plan, plan_bytes;            /* cuDNN's workspace */
    size_t k_full, v_full, dk, dv;      /* ragged backward with grouped heads */
    size_t total;
};
struct sdpa_layout sdpa_layout(const struct attn_shape *shape, enum attn_pass pass);
#endif
