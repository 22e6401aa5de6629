/* sequence_parallel: all-gather and reduce-scatter of the rows of a micro-batch within a tensor-parallel group
 * (sequence parallelism, arXiv:2205.05198).
 *
 * Rank r of t holds rows [r n/t, (r + 1) n/t) of the residual stream. Norms, residual adds, and what backward keeps
 * of them use only these rows. Two collectives connect the residual stream to the GEMMs of a branch, in forward and
 * in backward:
 *
 *     y [n/t, D] -- sp_all_gather --> in [n, D] -- branch with this rank's heads or columns --> out [n, D]
 *     out [n, D] -- sp_reduce_scatter --> [n/t, D]
 *
 * out is a partial sum. The reduction is in F32, in an order that depends only on t, and rounds once; each rank gets
 * its rows. Backward keeps only the rank's rows and gathers them again.
 *
 * Overlap. On a device that supports it, the collectives of a branch overlap its GEMMs, if only nn/linear.h reads y
 * and dout and writes out and dy. A GEMM first processes the rows of its own rank, then those of the other ranks in
 * order of arrival. It writes the sum's rows in the order in which the other ranks need them, its own rows last:
 *
 *     rank r    GEMM      rows r | r - 1 | r - 2 ...            rows r + 1 | r + 2 | ... | r
 *               transfer  from r - 1 | from r - 2 ...                      | to r + 1 | to r + 2 ... then the reduction
 *
 * Backward gathers dout this way and y after it; y is only needed for the weight gradient, which is computed during
 * the reduce-scatter of dy.
 *
 * One rank: no communication; `in` and `out` are the residual stream's own tensors. */
#ifndef INGOT_NN_SEQUENCE_PARALLEL_H
#define INGOT_NN_SEQUENCE_PARALLEL_H
#include "parallel/exec.h"
#include "parallel/side_stream.h"

struct sp {
    int tp_size;                /* number of ranks */
    struct tensor in, out;      /* [N, D] dt, scratch: not allocated with one rank */
    struct tensor parts;        /* [N, D] the other ranks' partial sums of this rank's rows. Separate from `in` if
                                   backward still reads that; else the same memory */
};

/* The layout for this rank's rows of the residual stream, given that for the full micro-batch. */
struct layout sp_local_layout(const struct layout *l);
void sp_layout(struct sp *w, int64_t d, const struct layout *l);
void sp_rows(struct sp *w, int64_t rows);

/* Gathers the rows of all ranks in `to` (w->in or w->out). *all is `to`; with one rank, `part` itself. */
status sp_all_gather(struct tensor to, struct tensor part, struct tensor *all, const struct exec *r) WARN_UNUSED;
/* Where a branch stores its output before the reduction to `part`. */
static inline struct tensor sp_out(const struct sp *w, struct tensor part) { return w->out.rank ? w->out : part; }
/* part = this rank's rows of the sum of all ranks' w->out. Overwrites w->parts. */
status sp_reduce_scatter(const struct sp *w, struct tensor part, const struct exec *r) WARN_UNUSED;
/* part = this rank's rows of w->out, if every rank has computed all of w->out. */
status sp_keep_local(const struct sp *w, struct tensor part, const struct exec *r) WARN_UNUSED;

/* For values that must have equal bits on all ranks: each rank computes sp_local_rows, and an in-place all-gather
 * collects them. */
struct tensor sp_local_rows(struct tensor all, const struct exec *r);
status sp_all_gather_in_place(struct tensor all, const char *name, const struct exec *r) WARN_UNUSED;

/* ---- overlap with GEMMs */

/* State of the transfers while a branch runs. */
enum { SP_RANKS_MAX = 32 };  /* larger groups do not overlap */
struct sp_overlap {
    struct side_stream *side_stream;
    int rank, ranks;
    struct sp_gather {
        struct tensor all, part;    /* all.data NULL: no gather is active */
        int begun;                  /* number of steps started: rows of rank - 1, rank - 2, ..., and this rank's own */
        struct event came[SP_RANKS_MAX];     /* for each step: its rows have arrived */
    } coming[2];
    const struct sp *leaving;    /* its `out` is sent as it is computed; NULL: no reduction is active */
    int formed;                     /* number of computed blocks */
};
/* With one rank, or more than SP_RANKS_MAX, this does nothing and w->side_stream stays NULL. */
status sp_overlap_open(struct sp_overlap *w, struct side_stream *side, const struct comm *tp) WARN_UNUSED;
void sp_overlap_close(struct sp_overlap *w);
/* Discards all queued transfers; none is active afterwards. */
void sp_overlap_reset(struct sp_overlap *w);

/* The two collectives of a branch. With SP_OVERLAP, only nn/linear.h may read *all and write the tensor that
 * sp_reduce_scatter_begin returns. At most two gathers and one reduction are active. On the host, a step runs when
 * its result is waited for. */
enum sp_mode { SP_BLOCKING, SP_OVERLAP };
status sp_all_gather_begin(struct tensor to, struct tensor part, enum sp_mode how, struct tensor *all,
                           const struct exec *r) WARN_UNUSED;
struct tensor sp_reduce_scatter_begin(const struct sp *w, struct tensor part, enum sp_mode how, const struct exec *r);

/* For nn/linear.h: a GEMM from rows of x to rows of y is split in sp_blocks blocks, each between sp_block_begin and
 * sp_block_end. Call sp_wait before reading all of x. */
int sp_blocks(struct tensor x, struct tensor y, const struct exec *r);
status sp_block_begin(int k, struct tensor *x, struct tensor *y, const struct exec *r) WARN_UNUSED;
status sp_block_end(int k, struct tensor x, struct tensor y, const struct exec *r) WARN_UNUSED;
status sp_wait(struct tensor x, const struct exec *r) WARN_UNUSED;
#endif
