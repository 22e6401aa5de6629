/* Where Hopper's set does a pass at the end of the GEMM beside it, or in attention, because it is faster there (measured: docs/PERF.md): the ops
 * ask, and plans count the same. */
#ifndef INGOT_OPS_FUSION_H
#define INGOT_OPS_FUSION_H

/* GEMMs that end with SwiGLU or a rotation, of rows of d elements. With fewer rows or less depth the two apart are as fast: few tiles; few
 * steps, beside which tiles cannot be ended in time. */
enum { FUSION_ROWS_MIN = 1024, SWIGLU_DEPTH_MIN_FWD = 768, SWIGLU_DEPTH_MIN_BWD = 1024 };
/* With d 768 and 1024 the rotated projection is faster than the two apart, with 2048 and 4096 5 to 6 % slower: few columns are few tiles. */
enum { ROPE_DEPTH_MIN = 768, ROPE_DEPTH_MAX = 1024 };
/* Attention's backward turns dq and dk of heads of 64, where one thread has both elements of a pair. It costs registers in every step, the pass
 * that it spares a time by the row: one H200, a layer, us, 32 x 2048 rows with 16/8 heads 60 of 108, 8 x 4096 with 32/8 80 of 84. */
enum { ROPE_HEAD = 64, ROPE_LENGTH_MAX = 2048 };
#endif
