#include "parallel/mesh.h"

/* What this version cannot do yet, said before a device is touched. */
static status check_served(const struct mesh_shape *m)
{
    if (m->tp > 1) return FAIL(STATUS_CONFIG, "parallel.tensor %d: not served yet; set it to 1", m->tp);
    if (m->pp > 1) return FAIL(STATUS_CONFIG, "parallel.pipeline %d: not served yet; set it to 1", m->pp);
    if (m->zero > 0) return FAIL(STATUS_CONFIG, "parallel.zero %d: not served yet; set it to 0", m->zero);
    return STATUS_OK;
}

status mesh_shape(const struct spec *s, int ranks, struct mesh_shape *out)
{
    const struct run_spec *r = &s->run;
    const int64_t model = r->parallel_tensor * r->parallel_pipeline;
    if (ranks % model != 0)
        return FAIL(STATUS_CONFIG,
                    "parallel.tensor x parallel.pipeline = %lld x %lld cannot be made of %d rank%s; start a "
                    "multiple of %lld: ingot launch -n %lld -- train ...",
                    (long long)r->parallel_tensor, (long long)r->parallel_pipeline, ranks,
                    ranks == 1 ? "" : "s", (long long)model, (long long)model);
    *out = (struct mesh_shape){.pp = (int)r->parallel_pipeline,
                               .dp = (int)(ranks / model),
                               .tp = (int)r->parallel_tensor,
                               .chunks = (int)r->parallel_chunks,
                               .schedule = (enum pipe)r->parallel_schedule,
                               .zero = (int)r->parallel_zero};
    out->shard = r->parallel_shard ? (int)r->parallel_shard : out->dp;
    if (r->parallel_shard > 0 && out->zero == 0)
        return FAIL(STATUS_CONFIG, "parallel.shard %lld does nothing without parallel.zero",
                    (long long)r->parallel_shard);
    if (s->model.hrm_cycles > 0 && (model > 1 || out->zero > 2))
        return FAIL(STATUS_CONFIG,
                    "model.hrm_cycles: hierarchical reasoning is served by data parallelism alone; leave out "
                    "parallel.%s",
                    out->pp > 1   ? "pipeline"
                    : out->tp > 1 ? "tensor"
                                  : "zero: 3");
    if (out->dp % out->shard != 0)
        return FAIL(STATUS_CONFIG, "parallel.shard %d does not divide the %d data-parallel ranks", out->shard,
                    out->dp);
    if (out->chunks > 1 && out->schedule != PIPE_INTERLEAVED)
        return FAIL(STATUS_CONFIG, "parallel.chunks %d needs parallel.schedule: interleaved", out->chunks);
    return check_served(out);
}

struct mesh mesh_place(const struct mesh_shape *shape, int rank)
{
    return (struct mesh){.shape = *shape,
                         .tp_rank = rank % shape->tp,
                         .dp_rank = rank / shape->tp % shape->dp,
                         .pp_rank = rank / shape->tp / shape->dp};
}

status mesh_open(struct mesh *m, const struct mesh_shape *shape, struct comm *world)
{
    *m = mesh_place(shape, comm_rank(world));
    m->world = world;
    TRY(comm_split(world, "tp", m->pp_rank * shape->dp + m->dp_rank, m->tp_rank, &m->tp));
    TRY(comm_split(world, "dp", m->pp_rank * shape->tp + m->tp_rank, m->dp_rank, &m->dp));
    return comm_split(world, "pp", m->dp_rank * shape->tp + m->tp_rank, m->pp_rank, &m->pp);
}
