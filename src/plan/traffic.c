#include "plan/traffic.h"

struct axis traffic_axis(const struct cluster *c, int ranks, int stride)
{
    const struct machine *m = c->machine;
    int inside = c->node / stride;
    if (inside < 1) inside = 1;
    if (inside > ranks) inside = ranks;
    const int nodes = (ranks + inside - 1) / inside;
    const double net = inside * m->net_rate;
    return (struct axis){.ranks = ranks,
                         .inside = inside,
                         .rate = nodes > 1 && net < m->link_rate ? net : m->link_rate,
                         .latency = m->latency_base + (ranks - nodes) * m->latency_hop +
                                    (nodes - 1) * m->latency_net};
}

double traffic_gather_bytes(const struct axis *a, double bytes)
{
    return bytes * (a->ranks - 1) / a->ranks;
}

double traffic_sum_bytes(const struct axis *a, double bytes)
{
    return 2 * traffic_gather_bytes(a, bytes);
}

double traffic_gather_s(const struct axis *a, double bytes)
{
    return a->ranks > 1 ? a->latency + traffic_gather_bytes(a, bytes) / a->rate : 0;
}

double traffic_sum_s(const struct axis *a, double bytes)
{
    return 2 * traffic_gather_s(a, bytes);
}

double traffic_send_s(const struct cluster *c, int stride, double bytes)
{
    const struct machine *m = c->machine;
    const bool near =
        2 * stride <= c->node; /* else some neighbours are on different nodes, and all wait for them */
    return near ? m->latency_base + bytes / m->link_rate
                : m->latency_base + m->latency_net + bytes / m->net_rate;
}

double traffic_tensor_bytes(const struct axis *tp, double bytes)
{
    return 10 * traffic_gather_bytes(tp, bytes);
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
