#include "data/load/mixture.h"
#include "data/load/shuffle.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* What each source gave before a block. */
struct mark {
    int64_t before[MIXTURE_SOURCES];
    double owed[MIXTURE_SOURCES];
};
struct mixture {
    struct mixture_source sources[MIXTURE_SOURCES];
    int count;
    enum mixture_curve curve;
    uint64_t seed;
    int64_t stride;     /* blocks between marks */
    int64_t mark_count; /* marks [0, mark_count) are filled */
    struct mark *marks;
};

static double weight_at(const struct mixture_source *s, enum mixture_curve curve, double at)
{
    if (s->point_count == 0) return (double)s->samples;
    int next = 0;
    while (next < s->point_count && s->points[next].at <= at) next++;
    if (next == 0) return s->points[0].weight;
    const struct mixture_point *a = &s->points[next - 1], *b = a + 1;
    if (next == s->point_count || curve == MIXTURE_STEP) return a->weight;
    return a->weight + (b->weight - a->weight) * (at - a->at) / (b->at - a->at);
}

/* Samples that the source can still give. */
static int64_t left_of(const struct mixture_source *s, int64_t given)
{
    if (s->epochs_max <= 0) return INT64_MAX;
    double limit = floor(s->epochs_max * (double)s->samples);
    return limit >= 9e18 ? INT64_MAX : (int64_t)limit - given;
}

/* The source that is owed most (sign 1) or least (sign -1), the first of equals; -1: none can give. Sources
 * that ended in the block or have weight 0 want -INFINITY. */
static int most_deserving(const struct mixture_cursor *c, const double *want, const int64_t *left, int count,
                          int sign)
{
    int best = -1;
    for (int s = 0; s < count; s++) {
        bool can = isfinite(want[s]) && (sign > 0 ? c->count[s] < left[s] : c->count[s] > 0);
        if (can && (best < 0 || sign * (want[s] - c->count[s]) > sign * (want[best] - c->count[best])))
            best = s;
    }
    return best;
}

/* Ends sources that should give more than they have left: they give that, and the others share the rest by
 * weight. Fills `want` of the others. Returns the samples of ended sources. */
static int share_block(const struct mixture *m, struct mixture_cursor *c, double *weight, const int64_t *left,
                       double *want)
{
    int taken = 0;
    for (bool ended = true; ended;) {
        double sum = 0, owed = 0;
        ended = false;
        for (int s = 0; s < m->count; s++) {
            sum += weight[s];
            owed += weight[s] > 0 ? c->owed[s] : 0;
        }
        for (int s = 0; s < m->count && !ended; s++) {
            want[s] = -INFINITY;
            if (weight[s] <= 0) continue;
            want[s] = c->owed[s] + weight[s] / sum * (MIXTURE_BLOCK - taken - owed);
            if (want[s] < (double)left[s] || taken + left[s] > MIXTURE_BLOCK) continue;
            c->count[s] = (int)left[s];
            taken += c->count[s];
            weight[s] = 0;
            ended = true;
        }
    }
    return taken;
}

/* Fills the counts of the block; c->before and c->owed are those at its beginning. */
static void fill_block(const struct mixture *m, struct mixture_cursor *c, int64_t block)
{
    double weight[MIXTURE_SOURCES], want[MIXTURE_SOURCES];
    int64_t left[MIXTURE_SOURCES];
    const double middle = ((double)block + 0.5) * MIXTURE_BLOCK;
    for (int s = 0; s < m->count; s++) {
        left[s] = left_of(&m->sources[s], c->before[s]);
        weight[s] = left[s] > 0 ? weight_at(&m->sources[s], m->curve, middle) : 0;
        c->count[s] = 0;
    }
    int total = share_block(m, c, weight, left, want);
    for (int s = 0; s < m->count; s++) {
        if (!isfinite(want[s])) continue;
        if (want[s] >= 1) c->count[s] = (int)(want[s] < (double)left[s] ? want[s] : (double)left[s]);
        total += c->count[s];
    }
    while (total != MIXTURE_BLOCK) {
        int sign = total < MIXTURE_BLOCK ? 1 : -1, s = most_deserving(c, want, left, m->count, sign);
        if (s < 0) break; /* all sources have ended */
        c->count[s] += sign;
        total += sign;
    }
    for (int s = 0; s < m->count; s++) c->owed[s] = isfinite(want[s]) ? want[s] - c->count[s] : 0;
    c->total = total;
    c->block = block + 1;
}

static void next_block(const struct mixture *m, struct mixture_cursor *c)
{
    for (int s = 0; s < m->count; s++) c->before[s] += c->count[s];
    fill_block(m, c, c->block);
}

static void first_block(const struct mixture *m, struct mixture_cursor *c)
{
    *c = (struct mixture_cursor){0};
    fill_block(m, c, 0);
}

static void seek(const struct mixture *m, struct mixture_cursor *c, int64_t block)
{
    int64_t mark = block / m->stride;
    if (mark >= m->mark_count) mark = m->mark_count - 1;
    if (c->block == 0 || c->block - 1 > block || c->block - 1 < mark * m->stride) {
        if (mark <= 0) {
            first_block(m, c);
        } else {
            memcpy(c->before, m->marks[mark].before, sizeof c->before);
            memcpy(c->owed, m->marks[mark].owed, sizeof c->owed);
            fill_block(m, c, mark * m->stride);
        }
    }
    while (c->block - 1 < block) next_block(m, c);
}

static status over(const struct mixture *m, int64_t samples)
{
    if (m->count == 1)
        return FAIL(STATUS_CONFIG,
                    "the source of data.train is over after %lld samples (epochs_max %g of %lld): raise its "
                    "epochs_max, or shorten the run",
                    (long long)samples, m->sources[0].epochs_max, (long long)m->sources[0].samples);
    return FAIL(STATUS_CONFIG,
                "after %lld samples no source of data.train has both a weight and samples left: raise "
                "epochs_max, or shorten the run",
                (long long)samples);
}

/* The pass over the whole run. */
static status look_through(struct mixture *m, int64_t samples_total)
{
    int64_t blocks = samples_total / MIXTURE_BLOCK + (samples_total % MIXTURE_BLOCK != 0);
    m->stride = blocks / MIXTURE_MARKS + 1;
    m->marks = calloc((size_t)(blocks / m->stride + 1), sizeof *m->marks);
    if (!m->marks) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the marks of a mixture");
    struct mixture_cursor c = {0};
    for (int64_t b = 0; b < blocks; b++) {
        struct mark now;
        memcpy(now.owed, c.owed, sizeof now.owed); /* filling the block changes them */
        if (b == 0)
            first_block(m, &c);
        else
            next_block(m, &c);
        if (b % m->stride == 0) {
            memcpy(now.before, c.before, sizeof now.before);
            m->marks[m->mark_count++] = now;
        }
        int64_t need = samples_total - b * MIXTURE_BLOCK;
        if (c.total < MIXTURE_BLOCK && c.total < need) return over(m, b * MIXTURE_BLOCK + c.total);
    }
    return STATUS_OK;
}

status mixture_open(struct mixture **out, const struct mixture_source *sources, int count,
                    enum mixture_curve curve, uint64_t seed, int64_t samples_total)
{
    CHECK(count > 0 && count <= MIXTURE_SOURCES, "%d sources", count);
    struct mixture *m = *out = calloc(1, sizeof *m);
    if (!m) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a mixture");
    memcpy(m->sources, sources, (size_t)count * sizeof *sources);
    m->count = count;
    m->curve = curve;
    m->seed = shuffle_seed(seed, MIXTURE_SOURCES);
    status st = STATUS_OK;
    if (count > 1)
        st = look_through(m, samples_total);
    else if (left_of(&m->sources[0], samples_total) < 0)
        st = over(m, left_of(&m->sources[0], 0));
    if (st != STATUS_OK) mixture_close(m), *out = NULL;
    return st;
}

void mixture_close(struct mixture *m)
{
    if (m) free(m->marks);
    free(m);
}

status mixture_at(const struct mixture *m, struct mixture_cursor *c, int64_t index, int *source,
                  int64_t *ordinal)
{
    CHECK(index >= 0, "sample %lld", (long long)index);
    *source = 0;
    *ordinal = index;
    if (m->count == 1)
        return left_of(&m->sources[0], index) > 0 ? STATUS_OK : over(m, left_of(&m->sources[0], 0));
    int64_t block = index / MIXTURE_BLOCK;
    int place = (int)(index % MIXTURE_BLOCK), s = 0;
    seek(m, c, block);
    if (place >= c->total) return over(m, block * MIXTURE_BLOCK + c->total);
    place = (int)shuffle_at(m->seed, block, c->total, place);
    for (; place >= c->count[s]; s++) place -= c->count[s];
    *source = s;
    *ordinal = c->before[s] + place;
    return STATUS_OK;
}

void mixture_given(const struct mixture *m, struct mixture_cursor *c, int64_t index, double *given)
{
    given[0] = (double)index;
    if (m->count == 1) return;
    seek(m, c, index / MIXTURE_BLOCK);
    double part = c->total ? (double)(index % MIXTURE_BLOCK) / c->total : 0;
    for (int s = 0; s < m->count; s++) given[s] = (double)c->before[s] + part * c->count[s];
}
