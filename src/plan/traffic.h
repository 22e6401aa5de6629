/* Bytes and time of collectives between the ranks of one mesh axis.
 *
 * Rank order is tp fastest, then dp, then pp; ranks fill nodes in that order, so an axis is every `stride`-th rank. A
 * ring over several nodes uses each node's NICs g times at once; g is its ranks per node, and other rings use the
 * other ranks' GPUs:
 *     T = start + hops + bytes on the wire of a rank / min(link, g * net)
 *     bytes: all-reduce 2 (n-1)/n S, others (n-1)/n S
 * With --assume trees=1 an all-reduce over nodes takes a tree where that starts sooner: NCCL's, with 0.92 of a ring's
 * rate. A ring crosses the border of a pod (machine.h) once: with r ranks in the pod, whose uplinks carry r rings'
 * NICs times `spine`, it is slower by g / (r spine) if that is more than 1. A pipeline's messages cross it all at
 * once.
 * With --assume sharp=1 the network's switches add an all-reduce over nodes: ranks of a node reduce-scatter over their
 * links, each sends its part up once and receives the sum, and they all-gather: 2 (g-1)/g S on links, S/g on
 * the network, both at once. A pod's border then costs nothing.
 * There are n - nodes hops in nodes and nodes - 1 hops between nodes (all-reduce: twice), as in NCCL's model of its
 * rings. */
#ifndef INGOT_PLAN_TRAFFIC_H
#define INGOT_PLAN_TRAFFIC_H
#include "plan/machine.h"

struct axis {
    int ranks, stride, nodes, inside; /* ranks: of the group, each `stride` after the last; nodes: that hold
                                         them; inside: ranks in the node with fewest */
    double rate;            /* bytes/s of a ring */
    double latency;         /* seconds of a ring around all ranks */
    double tree_latency;    /* seconds up and down a tree over all ranks; 0: no trees */
    double sharp_link, sharp_net, sharp_latency; /* all-reduce in the network's switches (SHARP): bytes/s inside a node
                                                    and to the network, seconds; 0: not available */
};
/* The axis's group with the worst placement: on most nodes, then with fewest ranks in one of them. */
struct axis traffic_axis(const struct cluster *c, int ranks, int stride);

/* Bytes that a rank sends for a tensor of `bytes` in total: all-gather or reduce-scatter over the axis; all-reduce. */
double traffic_all_gather_bytes(const struct axis *a, double bytes);
double traffic_all_reduce_bytes(const struct axis *a, double bytes);
double traffic_all_gather_s(const struct axis *a, double bytes); /* also reduce-scatter; 0 for one rank */
double traffic_all_reduce_s(const struct axis *a, double bytes);
double traffic_send_s(const struct cluster *c, const struct axis *a, double bytes); /* to the next rank of the axis */
/* All-to-all: a rank has `bytes` for all ranks of the axis in equal parts, its own part included. Links and network
 * work at the same time; each rank uses its own NIC. `crossing`: at most this fraction of the bytes crosses the
 * network, and is copied inside the node that it reaches; 0: every part crosses it. */
double traffic_all_to_all_s(const struct cluster *c, const struct axis *a, double bytes, double crossing);
/* Seconds of a step of a ring of point-to-point messages: every rank sends `bytes` to the rank `step` after it. */
double traffic_ring_shift_s(const struct cluster *c, const struct axis *a, int step, double bytes);

/* Bytes that a rank sends for tensor parallelism with sequence parallelism, per layer and micro-batch. Activations of
 * `bytes` (all ranks) are gathered twice and scattered twice forward; gathered four times (two of them gather x
 * again, which saves memory) and scattered twice backward. */
double traffic_tensor_bytes(const struct axis *tp, double bytes);
/* A pipeline message: the residual stream of a micro-batch; each tp rank stores and sends its part. */
double traffic_stage_bytes(double bytes, int tp);
/* State traffic of a step under ZeRO stage `zero`: `count` parameters of this rank before sharding, weights of
 * `weight` bytes, gradients in fp32. */
struct state_traffic {
    double scatter, gather; /* total bytes of the full tensors: gradients, weights; per step, or per micro-batch with
                               each_micro */
    bool each_micro;        /* ZeRO 2 scatters, and 3 also gathers (twice), in each micro-batch */
};
struct state_traffic traffic_state(int zero, double count, double weight);
#endif
