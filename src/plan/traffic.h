/* What collectives send and how long they take, between the ranks of one axis of a mesh.
 *
 * Ranks are numbered tp fastest, then dp, then pp, and fill nodes in that order; so an axis is every `stride`-th rank. A ring over ranks of
 * several nodes passes each node's NICs g times at once, g being its ranks in a node (other rings use the other ranks' GPUs):
 *     T = start + hops + bytes on the wire of a rank / min(link, g * net)          bytes: all-reduce 2 (n-1)/n S, the others (n-1)/n S
 * with n - nodes hops inside and nodes - 1 between nodes (all-reduce: twice), as NCCL's own model of its rings. */
#ifndef INGOT_PLAN_TRAFFIC_H
#define INGOT_PLAN_TRAFFIC_H
#include "plan/machine.h"

struct axis {
    int ranks, inside;      /* of the group; of them in a node */
    double rate;            /* bytes/s of a ring */
    double latency;         /* seconds of a ring around all ranks */
};
struct axis traffic_axis(const struct cluster *c, int ranks, int stride);

/* Bytes that a rank sends: of a tensor of `bytes` in all, gathered from or scattered (summed) to the axis; summed for all. */
double traffic_gather_bytes(const struct axis *a, double bytes);
double traffic_sum_bytes(const struct axis *a, double bytes);
double traffic_gather_s(const struct axis *a, double bytes);  /* reduce-scatter, too; 0 for one rank */
double traffic_sum_s(const struct axis *a, double bytes);
double traffic_send_s(const struct cluster *c, int stride, double bytes);  /* to the rank `stride` further */

/* Tensor parallel with sequence parallel, of one layer and micro-batch: activations of `bytes` (whole) are gathered twice and scattered twice
 * forward, gathered four times (twice to save memory: x once more) and scattered twice backward: bytes that a rank sends. */
double traffic_tensor_bytes(const struct axis *tp, double bytes);
/* A message of a pipeline: the stream of a micro-batch, of which each rank of tp holds and sends its part. */
double traffic_stage_bytes(double bytes, int tp);
/* State of a step under ZeRO `zero`, of `count` parameters on this rank before sharding, weights of `weight` bytes and gradients in fp32. */
struct state_traffic {
    double scatter, gather; /* bytes of the whole tensors in sum: gradients, weights; per step, or per micro-batch under `each_micro` */
    bool each_micro;        /* ZeRO 2 scatters, 3 also gathers (twice) for each micro-batch */
};
struct state_traffic traffic_state(int zero, double count, double weight);
#endif
