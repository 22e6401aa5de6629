/* From which sizes on Hopper's set fuses an epilogue, because it is faster there (measured: docs/PERF.md). The op set asks for a call, the
 * planner for a shape: both by these functions. Rows: tokens of a micro-batch; k: the GEMM's depth. */
#ifndef INGOT_OPS_FUSION_H
#define INGOT_OPS_FUSION_H
#include <stdbool.h>
#include <stdint.h>

/* With fewer rows the two ops apart are as fast: there are few tiles. */
enum { FUSION_ROWS_MIN = 1024 };

/* With less depth there are too few steps to hide a tile's epilogue behind the next tile's main loop. */
static inline bool fusion_swiglu_fwd(int64_t rows, int64_t k) { return rows >= FUSION_ROWS_MIN && k >= 768; }
static inline bool fusion_swiglu_bwd(int64_t rows, int64_t k) { return rows >= FUSION_ROWS_MIN && k >= 1024; }

/* With k 768 and 1024 the projection with RoPE is faster than the two apart, with 2048 and 4096 5 to 6 % slower: few columns are few tiles. */
static inline bool fusion_rope_fwd(int64_t rows, int64_t k) { return rows >= FUSION_ROWS_MIN && k >= 768 && k <= 1024; }

/* Attention's backward rotates dq and dk of heads of 64, where one thread has both elements of a pair. It costs registers in every step, the
 * pass that it saves costs time per row: one H200, a layer, us, 32 x 2048 rows with 16/8 heads 60 of 108, 8 x 4096 with 32/8 80 of 84. */
static inline bool fusion_rope_bwd(int64_t hd, int64_t length) { return hd == 64 && length <= 2048; }
#endif
