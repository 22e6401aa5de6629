/* The sizes from which Hopper's op set fuses an epilogue because fusion is faster (measured: docs/perf-log). The op
 * set uses these functions for a call, the planner for a shape. Rows: tokens of a micro-batch; k: the depth of the
 * GEMM. */
#ifndef INGOT_OPS_FUSION_H
#define INGOT_OPS_FUSION_H
#include <stdbool.h>
#include <stdint.h>

/* With fewer rows there are few tiles, and two separate ops are as fast. */
enum { FUSION_ROWS_MIN = 1024 };

/* With a smaller k there are too few steps to hide a tile's epilogue behind the next tile's main loop. */
static inline bool fusion_swiglu_fwd(int64_t rows, int64_t k) { return rows >= FUSION_ROWS_MIN && k >= 768; }
static inline bool fusion_swiglu_bwd(int64_t rows, int64_t k) { return rows >= FUSION_ROWS_MIN && k >= 1024; }

/* At k = 768 and 1024 the projection with fused RoPE is faster than two ops. At 2048 and 4096 it is 5 to 6 % slower:
 * few columns give few tiles. */
static inline bool fusion_rope_fwd(int64_t rows, int64_t k) { return rows >= FUSION_ROWS_MIN && k >= 768 && k <= 1024; }

/* Attention's backward rotates dq and dk for heads of 64, where one thread holds both elements of a pair. This costs
 * registers in every step; the pass that it saves costs time per row. On one H200, us per layer: 32 x 2048 rows with
 * 16/8 heads 60 of 108, 8 x 4096 with 32/8 heads 80 of 84. */
static inline bool fusion_rope_bwd(int64_t head_dim, int64_t length) { return head_dim == 64 && length <= 2048; }
#endif
