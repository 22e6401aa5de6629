#include "parallel/sync.h"

static bool power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

status sync_check(int64_t groups, int64_t micro_count, int ranks)
{
    if (micro_count % ranks != 0)
        return FAIL(
            STATUS_CONFIG,
            "the %lld micro-batches of a step cannot be dealt to %d ranks: train.batch_tokens must be a "
            "multiple of ranks x train.micro_batch x train.sequence_length",
            (long long)micro_count, ranks);
    if (groups == 0) return STATUS_OK;
    if (groups % ranks != 0 || !power_of_two(groups / ranks) || groups / ranks > 1 << SYNC_LEVELS_MAX)
        return FAIL(STATUS_CONFIG,
                    "train.gradient_groups %lld must be the number of ranks (%d) times a power of two",
                    (long long)groups, ranks);
    if (micro_count % groups != 0)
        return FAIL(STATUS_CONFIG,
                    "train.gradient_groups %lld does not divide the %lld micro-batches of a step",
                    (long long)groups, (long long)micro_count);
    return STATUS_OK;
}

void sync_lay(struct sync *s, const struct mesh *mesh, int64_t groups, int64_t total, struct arena *a)
{
    const int ranks = mesh ? mesh->shape.dp : 1;
    *s = (struct sync){
        .comm = mesh ? mesh->dp : NULL, .groups = groups ? (int)(groups / ranks) : 1, .total = total};
    while (1 << s->levels < s->groups) s->levels++;
    if (s->levels > 0) {
        s->grads = arena_take(a, (size_t)(s->levels * total) * sizeof *s->grads, "gradients of groups");
        s->losses = arena_take(a, (size_t)s->levels * SYNC_LOSSES * sizeof *s->losses, "losses of groups");
    }
    if (ranks > 1)
        s->scratch = arena_take(a, comm_sum_scratch(ranks, total, DTYPE_F32), "gradients on their way");
}

/* The bits of k in reverse: groups that are added to each other come one after the other. */
int sync_group(const struct sync *s, int k)
{
    int group = 0;
    for (int bit = 0; bit < s->levels; bit++) group |= (k >> bit & 1) << (s->levels - 1 - bit);
    return group;
}

static status fold(const struct sync *s, int level, enum fold_what what, const struct sync_part *part,
                   const struct sync_sums *sums, const struct ops *ops, dev_stream stream)
{
    if (part->count > 0)
        TRY(ops->fold(&(struct fold_args){.what = what,
                                          .x = sums->grad + part->begin,
                                          .kept = s->grads + level * s->total + part->begin,
                                          .count = part->count,
                                          .dt = DTYPE_F32},
                      stream));
    if (sums->losses == NULL) return STATUS_OK;
    return ops->fold(&(struct fold_args){.what = what,
                                         .x = sums->losses,
                                         .kept = s->losses + level * SYNC_LOSSES,
                                         .count = SYNC_LOSSES,
                                         .dt = DTYPE_F64},
                     stream);
}

status sync_fold_part(const struct sync *s, int k, const struct sync_part *part, const struct sync_sums *sums,
                      const struct ops *ops, dev_stream stream)
{
    int level = 0;
    for (; k >> level & 1; level++) TRY(fold(s, level, FOLD_ADD, part, sums, ops, stream));
    return level < s->levels ? fold(s, level, FOLD_KEEP, part, sums, ops, stream) : STATUS_OK;
}

status sync_fold(const struct sync *s, int k, const struct sync_sums *sums, const struct ops *ops,
                 dev_stream stream)
{
    return sync_fold_part(s, k, &(struct sync_part){.count = s->total}, sums, ops, stream);
}

status sync_ranks(const struct sync *s, const struct sync_sums *sums)
{
    TRY(comm_sum(s->comm, "gradients", sums->grad, s->total, DTYPE_F32, s->scratch));
    return comm_sum_f64(s->comm, "losses", sums->losses, SYNC_LOSSES);
}
