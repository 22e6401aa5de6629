/* whole: the rows of a micro-batch that the other ranks of a tensor-parallel group hold (sequence parallelism, arXiv:2205.05198).
 *
 * Of t ranks, rank r holds rows [r n/t, (r + 1) n/t) of the residual stream: norms, residual adds and what backward keeps of them are of
 * these alone. Between the stream and the products of a branch lie two exchanges, the same forward and backward:
 *
 *     y [n/t, D] -- whole_gather --> in [n, D] -- the branch, with this rank's heads or columns --> out [n, D] -- whole_sum --> [n/t, D]
 *
 * out is a part of a sum: the ranks' parts are added up in F32, in an order that depends on t alone, rounded once, and each rank gets its
 * rows. What backward reads is the stream's part, which is gathered again.
 *
 * Where a device does both at once, exchanges go on beside the products of a branch that reads y and dout, and forms out and dy, by
 * nn/linear.h alone: a product takes the rows of its own rank first, then those of the others as they come, and forms what is summed in the
 * order in which the others wait for it, its own rows last:
 *
 *     rank r    computes  rows r | r - 1 | r - 2 ...            rows r + 1 | r + 2 | ... | r
 *               beside    from r - 1 | from r - 2 ...                      | to r + 1 | to r + 2 ...  then all are added up
 *
 * Backward gathers dout so, y behind it, for the gradient of the weights alone; that gradient is formed while the sums of dy travel.
 *
 * One rank: there is nothing to exchange, and `in` and `out` are the stream's own tensors. */
#ifndef INGOT_NN_WHOLE_H
#define INGOT_NN_WHOLE_H
#include "nn/run.h"
#include "parallel/aside.h"

struct whole {
    int shares;                 /* ranks */
    struct tensor in, out;      /* [N, D] dt, scratch: not there with one rank */
    struct tensor parts;        /* [N, D] what the others have formed of this rank's rows: beside `in`, which backward still reads; else there */
};

/* Rows of the stream: `l` is of a micro-batch. */
struct lay whole_part(const struct lay *l);
void whole_lay(struct whole *w, int64_t d, const struct lay *l);
void whole_rows(struct whole *w, int64_t rows);

/* *all: the rows of all ranks, in `to` (w's in or out); `part` itself with one rank. */
status whole_gather(struct tensor to, struct tensor part, struct tensor *all, const struct run *r) WARN_UNUSED;
/* Where a branch stores what is summed into `part`. */
static inline struct tensor whole_out(const struct whole *w, struct tensor part) { return w->out.rank ? w->out : part; }
/* part = this rank's rows of the sum of the ranks' w->out. Overwrites w->parts. */
status whole_sum(const struct whole *w, struct tensor part, const struct run *r) WARN_UNUSED;
/* The same where all ranks have formed all of w->out. */
status whole_keep(const struct whole *w, struct tensor part, const struct run *r) WARN_UNUSED;

/* What all must have the same bits of: each rank forms its rows, whole_own, of what is gathered in its place. */
struct tensor whole_own(struct tensor all, const struct run *r);
status whole_fill(struct tensor all, const char *name, const struct run *r) WARN_UNUSED;

/* ---- beside the products */

/* What is on its way, between a branch's beginning and its end. */
enum { WHOLE_RANKS_MAX = 32 };  /* more than that exchange before and behind */
struct whole_way {
    struct aside *aside;
    int rank, ranks;
    struct whole_coming {
        struct tensor all, part;    /* all.data NULL: nothing */
        int begun;                  /* steps: rows of rank - 1, rank - 2, ... and this rank's own */
        struct event came[WHOLE_RANKS_MAX];     /* by step */
    } coming[2];
    const struct whole *leaving;    /* its `out` is sent as it is formed; NULL: nothing is */
    int formed;                     /* blocks of it */
};
/* One rank, or very many: nothing, and w->aside stays NULL. */
status whole_way_open(struct whole_way *w, struct aside *aside, const struct comm *tp) WARN_UNUSED;
void whole_way_close(struct whole_way *w);
/* Nothing is on its way any more: what was queued is thrown away. */
void whole_way_forget(struct whole_way *w);

/* The two exchanges of a branch. BESIDE: *all is read, and what whole_begin_sum returns is formed, by nn/linear.h alone; two gathers and one sum
 * at a time. On the host each step of them is done when somebody waits for it. */
enum whole_how { WHOLE_BETWEEN, WHOLE_BESIDE };
status whole_begin(struct tensor to, struct tensor part, enum whole_how how, struct tensor *all, const struct run *r) WARN_UNUSED;
struct tensor whole_begin_sum(const struct whole *w, struct tensor part, enum whole_how how, const struct run *r);

/* For nn/linear.h: a product of rows of x to rows of y is one of whole_blocks of them, each between enter and leave; and what reads all of x
 * comes behind whole_wait. */
int whole_blocks(struct tensor x, struct tensor y, const struct run *r);
status whole_enter(int k, struct tensor *x, struct tensor *y, const struct run *r) WARN_UNUSED;
status whole_leave(int k, struct tensor x, struct tensor y, const struct run *r) WARN_UNUSED;
status whole_wait(struct tensor x, const struct run *r) WARN_UNUSED;
#endif
