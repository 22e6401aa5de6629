/* Ops of adaptive computation time: a head learns after how many segments a document is finished (HRM,
 * arXiv:2506.21734, section 2). Included by ops.h, whose conventions apply. */
#ifndef INGOT_OPS_OPS_HALT_H
#define INGOT_OPS_OPS_HALT_H
#include "tensor/dtype.h"
#include <stdint.h>

/* q[i] = w z[last row of document i] + b: (halt, continue). 0 for an empty document. */
struct halt_fwd_args {
    const void *z;              /* [rows, d] dt */
    const void *w, *b;          /* [2, d], [2] dt */
    void *q;                    /* [docs, 2] A = */
    const int32_t *cu_seqlens;
    int64_t docs, d;
    dtype dt;
};

/* Computes how many segments a document takes part in, from the head's outputs after segments m = 1..segments:
 *   stop[i] = the first m >= least with q[m-1][i][0] > q[m-1][i][1], or `segments`
 * least is 1 or, with probability `explore`, uniform in 2..segments. The draw is a pure function of *step and the
 * document's tokens. masked[m-1][t] = targets[t] if m <= stop of t's document, else TARGET_IGNORE. */
struct halt_stop_args {
    const void *q;              /* [segments, docs, 2] A */
    const int32_t *tokens, *targets;    /* [rows] */
    const int32_t *cu_seqlens;
    const uint64_t *step;       /* in the set's memory */
    int32_t *stop;              /* [docs] = */
    int32_t *masked;            /* [segments, rows] = */
    int64_t docs, rows, segments;
    double explore;
    dtype dt;                   /* q has type A of dt */
};

/* The loss of the halting head after segment m, over the documents that take part and have targets, and its gradient:
 *   loss = sum over documents of (bce(q[i][0], right) + bce(q[i][1], worth)) / 2,   bce(x, p) = log(1 + e^x) - p x
 *   right = 1 if every target of the document is the argmax, else 0
 *   worth = sigmoid(max of q_next[i]), or sigmoid(q_next[i][0]) after the last segment: the predicted value of one more
 *           segment, treated as a constant
 *   dq = *scale (sigmoid(q) - (right, worth)) / 2;   dz[last row] += w^T dq;   dw += dq z^T;   db += dq */
struct halt_bwd_args {
    const void *q, *q_next;     /* [docs, 2] A */
    const int32_t *stop;        /* [docs] */
    const int32_t *targets;     /* [rows] */
    const void *hits;           /* [rows] A: 1 if the target is the argmax */
    const void *z, *w;
    const int32_t *cu_seqlens;
    const double *scale;        /* scale and loss_sum are in the set's memory */
    double *loss_sum;           /* += */
    void *dz;                   /* [rows, d] dt += */
    void *dw, *db;              /* [2, d], [2] A += */
    int64_t docs, d, m, segments;
    dtype dt;
};
#endif
