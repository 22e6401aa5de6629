/* whole: the rows of a micro-batch that the other ranks of a tensor-parallel group hold (sequence parallelism, arXiv:2205.05198).
 *
 * Of t ranks, rank r holds rows [r n/t, (r + 1) n/t) of the residual stream: norms, residual adds and what backward keeps of them are of
 * these alone. Between the stream and the GEMMs of a branch lie two exchanges, the same forward and backward:
 *
 *     y [n/t, D] -- sp_all_gather --> in [n, D] -- the branch, with this rank's heads or columns --> out [n, D] -- sp_reduce_scatter --> [n/t, D]
 *
 * out is a part of a sum: the ranks' parts are added up in F32, in an order that depends on t alone, rounded once, and each rank gets its
 * rows. What backward reads is the stream's part, which is gathered again.
 *
 * Where a device does both at once, exchanges go on beside the GEMMs of a branch that reads y and dout, and forms out and dy, by
 * nn/linear.h alone: a GEMM takes the rows of its own rank first, then those of the others as they come, and forms what is summed in the
 * order in which the others wait for it, its own rows last:
 *
 *     rank r    computes  rows r | r - 1 | r - 2 ...            rows r + 1 | r + 2 | ... | r
 *               beside    from r - 1 | from r - 2 ...                      | to r + 1 | to r + 2 ...  then all are added up
 *
 * Backward gathers dout so, y behind it, for the gradient of the weights alone; that gradient is formed while the sums of dy travel.
 *
 * One rank: there is nothing to exchange, and `in` and `out` are the stream's own tensors. */
#ifndef INGOT_NN_SEQUENCE_PARALLEL_H
#define INGOT_NN_SEQUENCE_PARALLEL_H
#include "parallel/exec.h"
#include "parallel/side_stream.h"

struct sp {
    int shares;                 /* ranks */
    struct tensor in, out;      /* [N, D] dt, scratch: not there with one rank */
    struct tensor parts;        /* [N, D] what the others have formed of this rank's rows: beside `in`, which backward still reads; else there */
};

/* Rows of the stream: `l` is of a micro-batch. */
struct lay sp_local_lay(const struct lay *l);
void sp_lay(struct sp *w, int64_t d, const struct lay *l);
void sp_rows(struct sp *w, int64_t rows);

/* *all: the rows of all ranks, in `to` (w's in or out); `part` itself with one rank. */
status sp_all_gather(struct tensor to, struct tensor part, struct tensor *all, const struct exec *r) WARN_UNUSED;
/* Where a branch stores what is summed into `part`. */
static inline struct tensor sp_out(const struct sp *w, struct tensor part) { return w->out.rank ? w->out : part; }
/* part = this rank's rows of the sum of the ranks' w->out. Overwrites w->parts. */
status sp_reduce_scatter(const struct sp *w, struct tensor part, const struct exec *r) WARN_UNUSED;
/* The same where all ranks have formed all of w->out. */
status sp_keep_local(const struct sp *w, struct tensor part, const struct exec *r) WARN_UNUSED;

/* What all must have the same bits of: each rank forms its rows, sp_local_rows, of what is gathered in its place. */
struct tensor sp_local_rows(struct tensor all, const struct exec *r);
status sp_all_gather_in_place(struct tensor all, const char *name, const struct exec *r) WARN_UNUSED;

/* ---- beside the GEMMs */

/* What is on its way, between a branch's beginning and its end. */
enum { SP_RANKS_MAX = 32 };  /* more than that exchange before and behind */
struct sp_overlap {
    struct side_stream *side_stream;
    int rank, ranks;
    struct sp_gather {
        struct tensor all, part;    /* all.data NULL: nothing */
        int begun;                  /* steps: rows of rank - 1, rank - 2, ... and this rank's own */
        struct event came[SP_RANKS_MAX];     /* by step */
    } coming[2];
    const struct sp *leaving;    /* its `out` is sent as it is formed; NULL: nothing is */
    int formed;                     /* blocks of it */
};
/* One rank, or very many: nothing, and w->side_stream stays NULL. */
status sp_overlap_open(struct sp_overlap *w, struct side_stream *aside, const struct comm *tp) WARN_UNUSED;
void sp_overlap_close(struct sp_overlap *w);
/* Nothing is on its way any more: what was queued is thrown away. */
void sp_overlap_reset(struct sp_overlap *w);

/* The two exchanges of a branch. BESIDE: *all is read, and what sp_reduce_scatter_begin returns is formed, by nn/linear.h alone; two gathers and one sum
 * at a time. On the host each step of them is done when somebody waits for it. */
enum sp_mode { SP_BLOCKING, SP_OVERLAP };
status sp_all_gather_begin(struct tensor to, struct tensor part, enum sp_mode how, struct tensor *all, const struct exec *r) WARN_UNUSED;
struct tensor sp_reduce_scatter_begin(const struct sp *w, struct tensor part, enum sp_mode how, const struct exec *r);

/* For nn/linear.h: a GEMM of rows of x to rows of y is one of sp_blocks of them, each between enter and leave; and what reads all of x
 * comes behind sp_wait. */
int sp_blocks(struct tensor x, struct tensor y, const struct exec *r);
status sp_block_begin(int k, struct tensor *x, struct tensor *y, const struct exec *r) WARN_UNUSED;
status sp_block_end(int k, struct tensor x, struct tensor y, const struct exec *r) WARN_UNUSED;
status sp_wait(struct tensor x, const struct exec *r) WARN_UNUSED;
#endif
