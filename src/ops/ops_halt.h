/* Ops of adaptive computation time: a head that learns after how many segments a document is done (HRM, arXiv:2506.21734, section 2).
 * Included by ops.h; its conventions hold. */
#ifndef INGOT_OPS_OPS_HALT_H
#define INGOT_OPS_OPS_HALT_H
#include "tensor/dtype.h"
#include <stdint.h>

/* q[i] = w z[last row of document i] + b: (halt, continue). 0 for a document without rows. */
struct halt_fwd_args {
    const void *z;              /* [rows, d] dt */
    const void *w, *b;          /* [2, d], [2] dt */
    void *q;                    /* [docs, 2] A = */
    const int32_t *cu_seqlens;
    int64_t docs, d;
    dtype dt;
};

/* From what the head says behind each segment m = 1..segments of a document to how many it takes part in:
 *   stop[i] = the first m >= least with q[m-1][i][0] > q[m-1][i][1], or `segments`
 * least is 1, or with probability `explore` drawn evenly from 2..segments; the draw is a pure function of *step and the document's tokens.
 * masked[m-1][t] = targets[t] where m <= stop of t's document, else TARGET_IGNORE. */
struct halt_stop_args {
    const void *q;              /* [segments, docs, 2] A */
    const int32_t *tokens, *targets;    /* [rows] */
    const int32_t *cu_seqlens;
    const uint64_t *step;       /* in the set's memory */
    int32_t *stop;              /* [docs] = */
    int32_t *masked;            /* [segments, rows] = */
    int64_t docs, rows, segments;
    double explore;
    dtype dt;                   /* q is of its A */
};

/* The head's loss behind segment m, of the documents that take part and have targets, and its gradient:
 *   loss = sum over documents of (bce(q[i][0], right) + bce(q[i][1], worth)) / 2,   bce(x, p) = log(1 + e^x) - p x
 *   right = 1 where every target of the document is the likeliest token, else 0
 *   worth = sigmoid(max of q_next[i]), or sigmoid(q_next[i][0]) behind the last segment: what one segment more would promise, a constant
 *   dq = *scale (sigmoid(q) - (right, worth)) / 2;   dz[last row] += w^T dq;   dw += dq z^T;   db += dq */
struct halt_bwd_args {
    const void *q, *q_next;     /* [docs, 2] A */
    const int32_t *stop;        /* [docs] */
    const int32_t *targets;     /* [rows] */
    const void *hits;           /* [rows] A: 1 where the target is the likeliest token */
    const void *z, *w;
    const int32_t *cu_seqlens;
    const double *scale;        /* both in the set's memory */
    double *loss_sum;           /* += */
    void *dz;                   /* [rows, d] dt += */
    void *dw, *db;              /* [2, d], [2] A += */
    int64_t docs, d, m, segments;
    dtype dt;
};
#endif
