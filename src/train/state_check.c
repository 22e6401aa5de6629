/* Whether the state is finite. */
#include "base/parallel.h"
#include "train/state_int.h"

enum { GRAIN = 1 << 20 };

static bool span_finite(const void *data, struct span s, dtype dt)
{
    const uint32_t exponent = 0x7f800000; /* all ones: infinite or not a number */
    int bad = 0;
    if (dt == DTYPE_BF16) {
        const bf16 *bits = data;
        for (int64_t k = s.begin; k < s.end; k++) bad |= (bits[k] & exponent >> 16) == exponent >> 16;
    } else {
        const uint32_t *bits = data;
        for (int64_t k = s.begin; k < s.end; k++) bad |= (bits[k] & exponent) == exponent;
    }
    return !bad;
}

static bool all_finite(const void *data, int64_t n, dtype dt)
{
    _Atomic bool bad = false;
    if (dt == DTYPE_U8) return true; /* codes */
    PARALLEL_CHUNKS(c, chunk_count(n, GRAIN))
    if (!span_finite(data, chunk_span(c, n, GRAIN), dt)) bad = true;
    return !bad;
}

/* The tag of the first tensor with an element on this rank that is not finite, or one past the last. */
int64_t state_first_bad(const struct state *s)
{
    const struct params *p = &s->t->decoder.params;
    for (int k = 0; k < STATE_ARRAYS; k++)
        for (int i = 0; i < p->count; i++) {
            const struct param_local_range held = params_local_range(p, i);
            if (!state_has_row(s, k, i)) continue;
            if (!all_finite(state_part(s, k, i, &held), state_blocks(&s->list[k], held.to - held.from),
                            s->list[k].dt))
                return (int64_t)k * p->count + i;
        }
    return (int64_t)STATE_ARRAYS * p->count;
}

status state_check(const struct state *s)
{
    const int64_t mine = state_first_bad(s);
    int64_t all[COMM_RANKS_MAX], first = mine;
    TRY(comm_all_gather(s->t->mesh.world, "finite", &mine, all, sizeof mine, NULL));
    for (int r = 0; r < comm_ranks(s->t->mesh.world); r++)
        if (all[r] < first) first = all[r];
    return state_judge(s, first);
}

status state_judge(const struct state *s, int64_t first)
{
    const struct params *p = &s->t->decoder.params;
    if (first == (int64_t)STATE_ARRAYS * p->count) return STATUS_OK;
    return FAIL(STATUS_NUMERIC,
                "%s/%s is not finite after step %lld: training diverged, and this is not saved",
                s->list[first / p->count].prefix, p->rows[first % p->count].name, (long long)s->t->step);
}
