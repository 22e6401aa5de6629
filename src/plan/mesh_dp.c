/* What data parallelism costs a rank: sums of gradients and gathers of weights, less what compute hides. */
#include "plan/mesh_plan_int.h"

#include <math.h>

/* Exposed seconds of a transfer of all layers that overlaps a pass over them: what is longer than the pass,
 * and always one layer. overlap: the
 * fraction of the rest that does. */
static double uncovered(double transfer, double pass, int layers, double overlap)
{
    return layers > 0 ? mesh_paid(transfer, overlap * fmin(transfer, pass) * (layers - 1) / layers)
                      : transfer;
}

/* Parameters that the same ranks sum and shard: every rank of dp x cp, or of experts that other ranks shard, edp. */
struct data_axis {
    double count, summed; /* summed: without sparse tables */
    int ranks, shard, stride;
};
/* Per sum of gradients, and per gather of weights. */
struct data_traffic {
    double sum_s, gather_s, sum_bytes, gather_bytes;
};

/* ZeRO shards a copy over `shard` neighbours (parallel/mesh.h). All-reduces over copies follow each reduce-scatter.
 * Each unit of the parameter table is one collective. */
static struct data_traffic data_traffic(const struct mesh_plan *p, int zero, const struct data_axis *d,
                                        int units, double weight)
{
    if (d->count <= 0 || d->ranks <= 1) return (struct data_traffic){0};
    const struct axis inner = traffic_axis(&p->cluster, d->shard, d->stride),
                      outer = traffic_axis(&p->cluster, d->ranks / d->shard, d->stride * d->shard);
    const double scatter = p->assume.grad_bytes * d->summed,
                 gather = traffic_state(zero, d->count, weight).gather;
    return (struct data_traffic){.sum_s = units * (traffic_all_gather_s(&inner, scatter / units) +
                                                   traffic_all_reduce_s(&outer, scatter / units / d->shard)),
                                 .gather_s = units * traffic_all_gather_s(&inner, gather / units),
                                 .sum_bytes = traffic_all_gather_bytes(&inner, scatter) +
                                              traffic_all_reduce_bytes(&outer, scatter / d->shard),
                                 .gather_bytes = traffic_all_gather_bytes(&inner, gather)};
}

/* Seconds of other axes per micro-batch on the links that dp's rings take: the network, or links in a node. */
static double others_s(const struct mesh_plan *p, const struct mesh_shape *v, const struct rank_share *s,
                       int rank)
{
    const bool far = traffic_axis(&p->cluster, mesh_dp_cp(v), v->tp).nodes > 1;
    const int strides[] = {1, v->tp, v->tp};
    const int ranks[] = {v->tp, mesh_cp(v), s->ep};
    bool shares[3];
    double sum = 0;
    for (int i = 0; i < 3; i++)
        shares[i] = ranks[i] > 1 && (traffic_axis(&p->cluster, ranks[i], strides[i]).nodes > 1) == far;
    for (int c = 0; c < v->chunks; c++) {
        const struct mesh_range at = mesh_stage_range(v, s->layers, c * v->pp + rank);
        for (int64_t i = at.begin; i < at.end; i++) {
            const struct rank_share_layer *l = rank_share_at(s, at.begin, i);
            if (shares[0]) sum += 10 * s->gather_s;
            if (shares[1]) sum += l->context.forward + l->context.backward;
            if (shares[2]) sum += l->dispatch.forward + l->dispatch.backward;
        }
    }
    const struct axis pp = traffic_axis(&p->cluster, v->pp, v->tp * mesh_dp_cp(v));
    if (v->pp > 1 && (pp.nodes > 1) == far)
        sum += 2 * v->chunks * traffic_send_s(&p->cluster, &pp, traffic_stage_bytes(s->stream_bytes, v->tp));
    return sum;
}

struct mesh_dp_cost mesh_dp_cost(const struct mesh_plan *p, const struct mesh_result *r, int rank,
                                 const struct rank_share *s, const struct mesh_pass *t)
{
    const struct mesh_shape *v = &r->variant.mesh;
    const struct mesh_stage *stage = &r->stages[rank];
    struct mesh_dp_cost c = {0};
    if (mesh_dp_cp(v) == 1) return c;
    const double dense = stage->count - stage->experts;
    const struct data_axis all = {dense, dense - stage->tables, mesh_dp_cp(v), v->zero > 0 ? v->shard : 1,
                                  v->tp},
                           own = {stage->experts, stage->experts, mesh_dp_cp(v) / s->ep,
                                  mesh_expert_shards(v), v->tp * s->ep};
    const int ends = (rank == 0) + (rank == v->pp - 1);
    /* Codes are a byte each. */
    const double codes = dense > 0 ? stage->moved / dense : 0,
                 codes_experts = stage->experts > 0 ? stage->moved_experts / stage->experts : 0;
    const struct data_traffic x = data_traffic(p, v->zero, &all, stage->layers + ends,
                                               s->weight_bytes - codes * (s->weight_bytes - 1)),
                              y = data_traffic(p, v->zero, &own, stage->layers,
                                               s->weight_bytes - codes_experts * (s->weight_bytes - 1));
    const bool each_micro = v->zero >= 2;
    const double sums = each_micro ? r->micros : 1, gathers = v->zero == 3 ? sums : 1;
    const double wait = p->assume.contention > 0 ? p->assume.contention * others_s(p, v, s, rank) : 0;
    const double sum = x.sum_s + y.sum_s + wait, gather = x.gather_s + y.gather_s;
    c.sum.bytes = sums * (x.sum_bytes + y.sum_bytes) + gathers * (x.gather_bytes + y.gather_bytes);
    c.sum.seconds = sums * sum + gathers * gather;
    /* The first stages finish last: later stages reduce while earlier ones still compute. */
    const double slack = s->overlap_dp * rank * t->backward / v->chunks;
    /* New weights are gathered while the optimizer runs; those of Muon come last. */
    const double overlap = p->spec.run.optim_name != OPTIM_MUON ? s->overlap_dp : 0;
    const double moved = uncovered(gather, t->optim, stage->layers, overlap);
    if (v->zero < 2) {
        c.once = fmax(0, uncovered(sum, t->backward, stage->layers, s->overlap_dp) - slack) + moved;
    } else { /* gathers and reduce-scatters of a backward pass overlap it together */
        const double recompute = v->zero == 3 ? gather / 2 : 0;
        c.backward = uncovered(sum + recompute, t->backward, stage->layers, s->overlap_dp);
        c.forward = v->zero == 3 ? uncovered(gather / 2, t->forward, stage->layers, s->overlap_dp) : 0;
        c.once = v->zero == 2 ? moved : 0;
    }
    /* Sparse gradients of n-gram tables: all-gathered at the end of the step. */
    const struct axis every = traffic_axis(&p->cluster, mesh_dp_cp(v), v->tp);
    const double reads = stage->row_bytes - stage->rows * 4,
                 read_s = reads > 0 ? traffic_all_gather_s(&every, reads) : 0;
    c.sum.bytes += traffic_all_gather_bytes(&every, reads), c.sum.seconds += read_s, c.once += read_s;
    c.sum.exposed = c.once + r->micros * (c.forward + c.backward);
    return c;
}
