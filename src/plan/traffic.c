#include "plan/traffic.h"
#include "plan/assume.h"

#include <math.h>

/* Nodes that a group of ranks touches, and how many of them are in the node with fewest. */
struct spread {
    int nodes, fewest;
};

/* The group whose first rank is device `first`. */
static struct spread spread_from(const struct cluster *c, int64_t first, int ranks, int stride)
{
    struct spread s = {0, ranks};
    if (stride % c->node == 0) return (struct spread){ranks, 1};
    if (c->node % stride == 0 && first < stride) { /* node / stride of them in each node, from the first on */
        const int each = c->node / stride, rest = ranks % each;
        return (struct spread){(ranks + each - 1) / each, rest > 0 ? rest : each};
    }
    for (int i = 0; i < ranks; s.nodes++) {
        const int64_t at = first + (int64_t)i * stride, next = (at / c->node + 1) * c->node;
        int64_t here = (next - at + stride - 1) / stride; /* ranks before the next node */
        if (here > ranks - i) here = ranks - i;
        if (here < s.fewest) s.fewest = (int)here;
        i += (int)here;
    }
    return s;
}

/* The worst of all groups: a group starts at each device of the first `stride` of every block of ranks x stride. */
static struct spread spread_of(const struct cluster *c, int ranks, int stride)
{
    const int64_t block = (int64_t)ranks * stride;
    struct spread worst = spread_from(c, 0, ranks, stride);
    if (c->node % block == 0 || (block % c->node == 0 && (c->node % stride == 0 || stride % c->node == 0)))
        return worst; /* all groups lie alike */
    for (int64_t start = 0, k = 0; start + block <= c->devices && k < c->node; start += block, k++)
        for (int64_t first = start; first < start + stride && first < start + c->node; first++) {
            const struct spread s = spread_from(c, first, ranks, stride);
            if (s.nodes > worst.nodes || (s.nodes == worst.nodes && s.fewest < worst.fewest)) worst = s;
        }
    return worst;
}

/* What a ring gets of its NICs where it crosses a pod's border; 1: no border, or uplinks enough. */
static double pod_share(const struct cluster *c, int ranks, int stride, int inside)
{
    const struct machine *m = c->machine;
    if (m->pod <= 0 || m->spine <= 0 || (int64_t)ranks * stride <= m->pod) return 1;
    const double here = fmax(1, (double)m->pod / stride); /* ranks of the group in a pod */
    return fmin(1, here * m->spine / inside);
}

struct axis traffic_axis(const struct cluster *c, int ranks, int stride)
{
    const struct machine *m = c->machine;
    const struct spread at = spread_of(c, ranks, stride);
    const int inside = at.fewest, nodes = at.nodes;
    const bool trees = c->assume && c->assume->trees > 0 && nodes > 1,
               sharp = c->assume && c->assume->sharp > 0 && nodes > 1;
    const double net = inside * m->net_rate * pod_share(c, ranks, stride, inside);
    return (struct axis){
        .ranks = ranks,
        .stride = stride,
        .nodes = nodes,
        .inside = inside,
        .rate = nodes > 1 && net < m->link_rate ? net : m->link_rate,
        .latency = m->latency_base + (ranks - nodes) * m->latency_hop + (nodes - 1) * m->latency_net,
        .tree_latency =
            trees ? m->latency_base + 2 * ((inside - 1) * m->latency_hop + ceil(log2(nodes)) * m->latency_net)
                  : 0,
        .sharp_link = sharp ? m->link_rate : 0,
        .sharp_net = m->net_rate * inside,
        .sharp_latency = m->latency_base + 2 * (inside - 1) * m->latency_hop + 2 * m->latency_net};
}

double traffic_all_gather_bytes(const struct axis *a, double bytes)
{
    return bytes * (a->ranks - 1) / a->ranks;
}

double traffic_all_reduce_bytes(const struct axis *a, double bytes)
{
    return 2 * traffic_all_gather_bytes(a, bytes);
}

double traffic_all_gather_s(const struct axis *a, double bytes)
{
    return a->ranks > 1 ? a->latency + traffic_all_gather_bytes(a, bytes) / a->rate : 0;
}

double traffic_all_reduce_s(const struct axis *a, double bytes)
{
    if (a->ranks <= 1) return 0;
    const double tree_share = 0.92;
    const double ring = 2 * traffic_all_gather_s(a, bytes),
                 tree = a->tree_latency + traffic_all_reduce_bytes(a, bytes) / (a->rate * tree_share);
    const double sharp =
        a->sharp_latency +
        fmax(2 * bytes * (a->inside - 1) / a->inside / fmax(a->sharp_link, 1), bytes / a->sharp_net);
    const double best = a->tree_latency > 0 && tree < ring ? tree : ring;
    return a->sharp_link > 0 && sharp < best ? sharp : best;
}

/* What a NIC keeps of its rate if `ranks` of a pod send to another pod at once. */
static double uplink_share(const struct cluster *c, double ranks)
{
    const struct machine *m = c->machine;
    if (m->pod <= 0 || m->spine <= 0 || c->devices <= m->pod) return 1;
    return fmin(1, m->spine * m->pod / fmin(ranks, m->pod));
}

double traffic_send_s(const struct cluster *c, const struct axis *a, double bytes)
{
    const struct machine *m = c->machine;
    if (a->nodes == 1) return m->latency_base + bytes / m->link_rate;
    /* Some neighbours are on different nodes, and all wait for them. */
    return m->latency_base + m->latency_net + bytes / (m->net_rate * uplink_share(c, a->stride));
}

double traffic_ring_shift_s(const struct cluster *c, const struct axis *a, int step, double bytes)
{
    return traffic_send_s(c, &(struct axis){.nodes = a->nodes, .stride = a->stride * step}, bytes);
}

double traffic_all_to_all_s(const struct cluster *c, const struct axis *a, double bytes, double crossing)
{
    const struct machine *m = c->machine;
    if (a->ranks <= 1) return 0;
    const double part = bytes / a->ranks, others = a->nodes > 1 ? a->ranks - a->inside : 0;
    double net = others * part;
    if (crossing > 0) net = fmin(net, bytes * crossing * (a->nodes - 1) / a->nodes);
    const bool pods = m->pod > 0 && (int64_t)a->ranks * a->stride > m->pod;
    const double rate = m->net_rate * (pods ? uplink_share(c, m->pod) : 1);
    const double link = (a->ranks - 1 - (m->rails ? 0 : others)) * part / m->link_rate;
    return m->latency_base + (a->nodes > 1 ? m->latency_net : m->latency_hop) + fmax(link, net / rate);
}

double traffic_tensor_bytes(const struct axis *tp, double bytes)
{
    return 10 * traffic_all_gather_bytes(tp, bytes);
}

double traffic_stage_bytes(double bytes, int tp)
{
    return bytes / tp;
}

struct state_traffic traffic_state(int zero, double count, double weight)
{
    return (struct state_traffic){.scatter = 4 * count,
                                  .gather = zero == 0 ? 0 : weight * count * (zero == 3 ? 2 : 1),
                                  .each_micro = zero >= 2};
}
