/* How one call of attn_fwd or attn_bwd becomes cuDNN cases, and what memory it takes: arithmetic alone, for the planner too.
 *
 * Deterministic backward has a workspace of b h sq skv bf16 values (s rounded up to tiles), so it runs in parts of some sequences, or of
 * some kv heads of one sequence, whose workspace stays within SDPA_BUDGET. Documents of different lengths (ragged) run in one
 * part or not at all: the workspace counts the static maximum of documents, and an own kernel serves short documents better. */
#ifndef INGOT_OPS_CUDA_ATTN_CUDNN_PARTS_H
#define INGOT_OPS_CUDA_ATTN_CUDNN_PARTS_H
#include "ops/cuda/attn_cudnn_graph.h"

#define SDPA_BUDGET ((size_t)1 << 30) /* 64 and 192 MiB, to keep dS in L2, were slower: docs/PERF.md */
enum { SDPA_DOCS_MAX = 4096 };  /* and documents x heads < 65536: they are one dimension of a grid */

/* All documents have len_max rows. */
bool sdpa_dense(const struct attn_shape *shape);

/* Backward of `b` sequences, or of one sequence and `hk` of its kv heads, at a time; all of ragged ones. Both 0: one kv head alone is
 * beyond the budget. */
struct sdpa_part { int64_t b, hk; };
struct sdpa_part sdpa_part(const struct attn_shape *shape);

/* Of a call; len_max as small as rows and docs say. The functions above and below take such shapes. */
struct attn_shape sdpa_shape_fwd(const struct attn_fwd_args *a);
struct attn_shape sdpa_shape_bwd(const struct attn_bwd_args *a);
struct sdpa_case sdpa_case_fwd(const struct attn_fwd_args *a);
struct sdpa_case sdpa_case_bwd(const struct attn_bwd_args *a, struct sdpa_part part);
/* The same part with atomic adds: its accumulator takes this many bytes of the deterministic plan's workspace. 0: ragged documents have none. */
size_t sdpa_accumulator(const struct sdpa_case *c);
/* With atomic adds the whole batch runs at once, if the deterministic scratch has room for its accumulator. */
bool sdpa_atomic_fits(const struct attn_shape *shape);

/* Offsets into the scratch. Every size grows with rows, docs and len_max: a scratch for the largest call serves all. */
struct sdpa_layout {
    size_t stats;       /* f32 [rows x heads]: lse that nobody asked for, delta in backward */
    size_t lengths;     /* i32 [docs] */
    size_t offsets;     /* i64 [docs+1] per operand, one after the other */
    size_t offsets_each;
    size_t plan, plan_bytes;            /* cuDNN's workspace */
    size_t k_full, v_full, dk, dv;      /* ragged backward with grouped heads */
    size_t total;
};
struct sdpa_layout sdpa_layout(const struct attn_shape *shape, enum attn_pass pass);
#endif
