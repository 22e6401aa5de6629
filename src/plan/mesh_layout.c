/* Memory of a rank of a mesh as the run lays it out. */
#include "plan/mesh_plan_int.h"

#include <math.h>

/* What a run of this variant asks plan_layout for. */
static struct plan_layout_args args_of(const struct mesh_plan *p, const struct mesh_result *r,
                                       struct spec *copy, const struct mesh *mesh)
{
    const struct mesh_variant *v = &r->variant;
    *copy = p->spec;
    copy->run.train_micro_batch = v->micro_batch, copy->run.train_recompute = (int)v->recompute;
    struct plan_layout_args args = plan_args(copy, mesh);
    args.ops = &p->ops, args.kind = p->cluster.machine->kind;
    args.sets = v->mesh.pp > 1 ? r->stages[mesh->pp_rank].slots : 0;
    args.stores = r->stages[mesh->pp_rank].stores;
    if (v->mesh.zero >= 2) args.gradient_groups = plan_micro_count(copy); /* every micro-batch is one */
    return args;
}

/* `like` NULL: of the rank; else only its state, beside the activations of another rank of its stage. */
static status layout_rank(const struct mesh_plan *p, const struct mesh_result *r, int rank,
                          const struct mesh_memory *like, struct mesh_memory *out)
{
    struct spec copy;
    struct decoder d;
    struct rank_state state;
    struct activations a = {0};
    struct memory m = {0};
    const struct mesh mesh = mesh_place(&r->variant.mesh, rank);
    const struct mesh_stage *stage = &r->stages[mesh.pp_rank];
    struct plan_layout_args args = args_of(p, r, &copy, &mesh);
    args.state_alone = like != NULL;
    TRY(decoder_init(&d, &copy.model, &mesh));
    const status st = plan_layout(&m, &d, &state, &a, &args);
    activations_fini(&a);
    decoder_fini(&d);
    TRY(st);
    const double weights = fmin(stage->unit_weights, (double)m.param.peak),
                 gradients = fmin(stage->memory.buffers - stage->unit_weights, (double)m.grad.peak);
    *out = (struct mesh_memory){.weights = (double)m.param.peak - weights,
                                .grads = (double)m.grad.peak - gradients,
                                .optim = (double)m.optim.peak,
                                .act = like ? like->act : (double)m.act.peak,
                                .scratch = fmax((double)m.scratch.peak, like ? like->scratch : 0),
                                .buffers = gradients + weights,
                                .inputs = (double)m.input.peak,
                                .communication = stage->memory.communication};
    return STATUS_OK;
}

status mesh_plan_layout_rank(const struct mesh_plan *p, const struct mesh_result *r, int rank,
                             struct mesh_memory *out)
{
    return layout_rank(p, r, rank, NULL, out);
}

/* Shards differ where tensor-parallel ranks sum gradients that each of them has whole (parallel/tp_grad.h): of many, the
 * outermost are looked at. */
enum { SHARDS_LOOKED = 8 };
static int shard_looked(const struct mesh_shape *m, int i)
{
    return i < SHARDS_LOOKED / 2 || m->shard <= SHARDS_LOOKED ? i : m->shard - SHARDS_LOOKED + i;
}

/* The fullest rank of a stage. */
static status layout_stage(const struct mesh_plan *p, struct mesh_result *r, int stage)
{
    const struct mesh_shape *m = &r->variant.mesh;
    const bool differ = m->zero > 0 && m->tp > 1;
    const int shards = !differ ? 1 : m->shard < SHARDS_LOOKED ? m->shard : SHARDS_LOOKED;
    struct mesh_memory first, most, laid;
    TRY(layout_rank(p, r, stage * mesh_dp_cp(m) * m->tp, NULL, &first));
    r->stages[stage].first_bytes = mesh_memory_sum(&first);
    most = first;
    for (int i = 1; i < shards; i++) {
        TRY(layout_rank(p, r, (stage * mesh_dp_cp(m) + shard_looked(m, i)) * m->tp, &first, &laid));
        if (mesh_memory_sum(&laid) > mesh_memory_sum(&most)) most = laid;
    }
    r->stages[stage].memory = most;
    return STATUS_OK;
}

static void set_fits(const struct mesh_plan *p, struct mesh_result *r)
{
    r->fits = mesh_fits(p, r);
}

status mesh_plan_layout_fullest(const struct mesh_plan *p, struct mesh_result *r)
{
    if (assume_memory(&p->assume)) return STATUS_OK; /* no run lays it out */
    TRY(layout_stage(p, r, r->fullest));
    set_fits(p, r);
    return STATUS_OK;
}

status mesh_plan_layout(const struct mesh_plan *p, struct mesh_result *r)
{
    const int pp = r->variant.mesh.pp;
    if (assume_memory(&p->assume)) return STATUS_OK;
    for (int i = 0; i < pp; i++) TRY(layout_stage(p, r, i));
    r->fullest = 0;
    for (int i = 1; i < pp; i++)
        if (mesh_memory_sum(&r->stages[i].memory) > mesh_result_bytes(r)) r->fullest = i;
    set_fits(p, r);
    return STATUS_OK;
}
