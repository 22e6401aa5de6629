#include "parallel/grad_reduce.h"
#include "dev/dev.h"

static bool power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static int trailing_zeros(int64_t n)
{
    int levels = 0;
    while (n > 0 && (n >> levels & 1) == 0) levels++;
    return levels;
}

int grad_reduce_pending(int64_t groups)
{
    const int levels = trailing_zeros(groups);
    return levels + (groups >> levels > 1);
}

status grad_reduce_check(int64_t groups, int64_t micro_count, int ranks, enum grad_reduce_place place)
{
    if (micro_count % ranks != 0)
        return FAIL(
            STATUS_CONFIG,
            "the %lld micro-batches of a step cannot be dealt to %d ranks: train.batch_tokens must be a "
            "multiple of ranks x train.micro_batch x train.sequence_length",
            (long long)micro_count, ranks);
    if (groups == 0) return STATUS_OK;
    const bool any = ranks == 1 || place == GRAD_REDUCE_FIRST;
    if (groups % ranks != 0 || (!any && !power_of_two(groups / ranks)))
        return FAIL(STATUS_CONFIG,
                    "train.gradient_groups %lld must be the number of ranks (%d) times a power of two",
                    (long long)groups, ranks);
    if (micro_count % groups != 0)
        return FAIL(STATUS_CONFIG,
                    "train.gradient_groups %lld does not divide the %lld micro-batches of a step",
                    (long long)groups, (long long)micro_count);
    return STATUS_OK;
}

/* Scratch of the reduction of the largest unit. */
static size_t scratch_bytes(const struct mesh *mesh, const struct params *p)
{
    size_t most = 0;
    for (int u = 0; u < p->unit_count; u++) {
        const int64_t count = p->units[u].is_local && !params_sparse(p, u) ? p->units[u].count : 0;
        const int shards = p->zero ? p->units[u].shards : 1,
                  copies = mesh_data_of(mesh, p->units[u].experts).copies;
        const size_t inside = comm_reduce_scatter_scratch(shards, count / shards, DTYPE_F32),
                     across = comm_all_reduce_scratch(copies, count / shards, DTYPE_F32);
        if (inside > most) most = inside;
        if (across > most) most = across;
    }
    return most;
}

void grad_reduce_layout(struct grad_reduce *s, const struct mesh *mesh, int64_t groups,
                        const struct params *p, struct arena *a)
{
    const int ranks = mesh ? mesh->shape.dp : 1;
    *s = (struct grad_reduce){
        .mesh = mesh, .groups = groups ? (int)(groups / ranks) : 1, .total = params_grads(p)};
    s->levels = trailing_zeros(s->groups);
    s->trees = s->groups >> s->levels;
    const int waiting = grad_reduce_pending(s->groups);
    if (waiting > 0) {
        s->grads = arena_take(a, (size_t)(waiting * s->total) * sizeof *s->grads, "gradients of groups");
        s->losses =
            arena_take(a, (size_t)waiting * GRAD_REDUCE_LOSSES * sizeof *s->losses, "losses of groups");
    }
    if (mesh && mesh_dp_cp(&mesh->shape) > 1)
        s->scratch = arena_take(a, scratch_bytes(mesh, p), "scratch of gradient reductions");
}

/* Tree by tree; within a tree the bits of k in reverse, so groups that are added to each other are consecutive. */
int grad_reduce_group(const struct grad_reduce *s, int k)
{
    int group = 0;
    for (int bit = 0; bit < s->levels; bit++) group |= (k >> bit & 1) << (s->levels - 1 - bit);
    return (k >> s->levels) + s->trees * group;
}

static status fold(const struct grad_reduce *s, int level, enum accumulate_what what,
                   const struct grad_reduce_part *part, const struct grad_reduce_sums *sums,
                   const struct ops *ops, dev_stream stream)
{
    if (part->count > 0)
        TRY(ops->accumulate_tree(
            &(struct accumulate_tree_args){.what = what,
                                           .x = sums->grad + part->begin,
                                           .kept = s->grads + level * s->total + part->begin,
                                           .count = part->count,
                                           .dt = DTYPE_F32},
            stream));
    if (sums->losses == NULL) return STATUS_OK;
    return ops->accumulate_tree(&(struct accumulate_tree_args){.what = what,
                                                               .x = sums->losses,
                                                               .kept = s->losses + level * GRAD_REDUCE_LOSSES,
                                                               .count = GRAD_REDUCE_LOSSES,
                                                               .dt = DTYPE_F64},
                                stream);
}

status grad_reduce_accumulate_part(const struct grad_reduce *s, int k, const struct grad_reduce_part *part,
                                   const struct grad_reduce_sums *sums, const struct ops *ops,
                                   dev_stream stream)
{
    const int tree = k >> s->levels, in_tree = k - (tree << s->levels);
    int level = 0;
    for (; in_tree >> level & 1; level++) TRY(fold(s, level, TREE_ADD, part, sums, ops, stream));
    if (level == s->levels && tree > 0) TRY(fold(s, level, TREE_ADD, part, sums, ops, stream));
    const bool last = level == s->levels && tree == s->trees - 1;
    return last ? STATUS_OK : fold(s, level, TREE_KEEP, part, sums, ops, stream);
}

status grad_reduce_accumulate(const struct grad_reduce *s, int k, const struct grad_reduce_sums *sums,
                              const struct ops *ops, dev_stream stream)
{
    return grad_reduce_accumulate_part(s, k, &(struct grad_reduce_part){.count = s->total}, sums, ops,
                                       stream);
}

/* Gradients that accumulate must be zero before the next step. The optimizer zeroes this rank's shard; this, the rest. */
static status clear_others(const struct params *p, const struct param_unit *u, dev_stream stream)
{
    for (int i = u->first; i < u->last; i++) {
        const struct param_local_range h = params_local_range(p, i);
        float *g = params_grad(p, i);
        if (p->rows[i].gemm_overwrites_grad) continue;
        TRY(dev_zero(stream, g, (size_t)h.from * sizeof *g));
        TRY(dev_zero(stream, g + h.to, (size_t)(p->rows[i].count - h.to) * sizeof *g));
    }
    return STATUS_OK;
}

status grad_reduce_unit(const struct grad_reduce *s, const struct params *p, int unit, dev_stream stream)
{
    const struct param_unit *u = &p->units[unit];
    if (!u->is_local || params_sparse(p, unit) || s->mesh == NULL || s->mesh->dp_cp == NULL) return STATUS_OK;
    const struct mesh_data data = mesh_data_of(s->mesh, u->experts);
    if (p->zero == 0)
        return comm_all_reduce(data.all, "gradients", u->grad, u->count, DTYPE_F32, s->scratch, stream);
    const int64_t part = u->count / u->shards;
    float *own = p->zero == 1 ? (float *)u->grad + u->shard * part : (float *)p->grad + u->shard_offset;
    TRY(comm_reduce_scatter(data.inside, "gradients", u->grad, own, part, DTYPE_F32, s->scratch, stream));
    TRY(comm_all_reduce(data.across, "parts of gradients", own, part, DTYPE_F32, s->scratch, stream));
    return p->zero == 1 && !p->overlaid ? clear_others(p, u, stream) : STATUS_OK;
}

status grad_reduce_losses(const struct grad_reduce *s, double *losses, dev_stream stream)
{
    return s->mesh ? comm_all_reduce_f64(s->mesh->dp_cp, "losses", losses, GRAD_REDUCE_LOSSES, stream)
                   : STATUS_OK;
}
