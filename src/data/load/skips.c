#include "data/load/skips.h"

int64_t skips_batch(const struct skips *s, int64_t step)
{
    int64_t batch = step;
    for (int i = 0; s && i < s->count && s->list[i].from <= batch; i++)
        batch += s->list[i].to - s->list[i].from;
    return batch;
}

status skips_add(struct skips *s, int64_t from, int64_t to)
{
    CHECK(from >= 0 && to > from, "steps %lld to %lld", (long long)from, (long long)to);
    /* All that is left out between the two already goes into the new range. */
    struct skip add = {skips_batch(s, from), skips_batch(s, to - 1) + 1};
    struct skips out = {0};
    int i = 0;
    for (; i < s->count && s->list[i].to < add.from; i++) out.list[out.count++] = s->list[i];
    for (; i < s->count && s->list[i].from <= add.to; i++) {
        if (s->list[i].from < add.from) add.from = s->list[i].from;
        if (s->list[i].to > add.to) add.to = s->list[i].to;
    }
    if (out.count + 1 + s->count - i > SKIPS_MAX)
        return FAIL(STATUS_CONFIG, "the run leaves out more than %d ranges of data already", SKIPS_MAX);
    out.list[out.count++] = add;
    for (; i < s->count; i++) out.list[out.count++] = s->list[i];
    *s = out;
    return STATUS_OK;
}
