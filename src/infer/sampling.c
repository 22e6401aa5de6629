/* Drawing a token. By definition the candidates are sorted by logit and their probabilities added in that order
 * (sample_sorted). To sort a whole vocabulary costs more than a step of a small model on a GPU, and a draw reads a few
 * candidates: so they are sorted band by band from the top, and the sum over the others is bounded by one in another
 * order. Where the bounds do not decide, the definition does: the same token in every case. */
#include "base/parallel.h"
#include "base/rng.h"
#include "infer/generate.h"

#include <math.h>
#include <stdlib.h>

struct choice {
    float logit;
    int32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

struct draw {
    const float *logits;
    int64_t vocab, count; /* count: candidates, the most likely ones */
    const struct sampling *s;
    double u;              /* uniform in [0, 1) */
    float top;             /* the highest logit */
    struct choice *sorted; /* [vocab]; the first `ready` are in their final order */
    int64_t ready;
    int64_t band; /* bands sorted so far */
};

static double weight(const struct draw *d, float logit)
{
    return exp((double)(logit - d->top) / d->s->temperature);
}

/* ------------------------------------------------------------------ the definition */

static int32_t sample_sorted(struct draw *d)
{
    struct choice *c = d->sorted;
    for (int64_t i = 0; i < d->vocab; i++) c[i] = (struct choice){d->logits[i], (int32_t)i};
    qsort(c, (size_t)d->vocab, sizeof *c, by_logit);
    double sum = 0, kept = 0;
    for (int64_t i = 0; i < d->count; i++) sum += weight(d, c[i].logit);
    /* The nucleus: the smallest set of most likely tokens whose probabilities reach top_p (Holtzman et al., arXiv:1904.09751). */
    int64_t n = 0, pick = 0;
    while (n < d->count && (n == 0 || kept < d->s->top_p * sum)) kept += weight(d, c[n++].logit);
    double at = d->u * kept;
    for (; pick + 1 < n && at >= weight(d, c[pick].logit); pick++) at -= weight(d, c[pick].logit);
    return c[pick].id;
}

/* ------------------------------------------------------------------ the short way */

/* Sums of n positive terms in two orders differ by at most 2 n roundoffs of 1.1e-16, relatively. */
enum { TERMS_MAX = 1 << 20 };
static const double DOUBT = 1e-9;

/* Sorts the next band of logits, 4 temperatures wide; the last one takes the rest. False: all are sorted. */
static bool next_band(struct draw *d)
{
    enum { BANDS = 12 };
    const float width = (float)(4 * d->s->temperature), from = (float)d->band * width,
                to = d->band + 1 < BANDS ? (float)(d->band + 1) * width : INFINITY;
    if (d->ready == d->vocab || d->band == BANDS) return false;
    int64_t n = d->ready;
    for (int64_t i = 0; i < d->vocab; i++) {
        const float below = d->top - d->logits[i];
        if (below >= from && !(below >= to)) d->sorted[n++] = (struct choice){d->logits[i], (int32_t)i};
    }
    qsort(d->sorted + d->ready, (size_t)(n - d->ready), sizeof *d->sorted, by_logit);
    d->ready = n;
    d->band++;
    return true;
}

/* Candidate i by likelihood; NULL: there are no more. */
static const struct choice *candidate(struct draw *d, int64_t i)
{
    while (i >= d->ready)
        if (!next_band(d)) return NULL;
    return &d->sorted[i];
}

static double sum_of_all(const struct draw *d)
{
    enum { GRAIN = 4096, CHUNKS_MAX = 1024 };
    double part[CHUNKS_MAX], sum = 0;
    const int64_t grain = d->vocab > (int64_t)GRAIN * CHUNKS_MAX ? chunk_count(d->vocab, CHUNKS_MAX) : GRAIN,
                  chunks = chunk_count(d->vocab, grain);
    PARALLEL_CHUNKS(c, chunks)
    {
        const struct span span = chunk_span(c, d->vocab, grain);
        part[c] = 0;
        for (int64_t i = span.begin; i < span.end; i++) part[c] += weight(d, d->logits[i]);
    }
    for (int64_t c = 0; c < chunks; c++) sum += part[c];
    return sum;
}

/* The candidate at which the sum of the weights exceeds a value between low and high; -1: in doubt. */
static int32_t pick_between(struct draw *d, int64_t n, double low, double high)
{
    for (int64_t i = 0; i < n; i++) {
        const struct choice *c = candidate(d, i);
        if (c == NULL) return -1;
        const double w = weight(d, c->logit);
        if (i + 1 == n || high < w) return c->id;
        if (low < w) return -1;
        low -= w;
        high -= w;
    }
    return -1;
}

/* Sums of the first `count` candidates, as defined. False: there are fewer, as of logits that are not numbers. */
static bool sum_of_first(struct draw *d, double *sum)
{
    *sum = 0;
    for (int64_t i = 0; i < d->count; i++) {
        const struct choice *c = candidate(d, i);
        if (c == NULL) return false;
        *sum += weight(d, c->logit);
    }
    return true;
}

/* The token, or -1: in doubt. */
static int32_t sample_short(struct draw *d)
{
    const bool all = d->count == d->vocab;
    double sum, kept = 0;
    if (d->vocab > TERMS_MAX) return -1;
    if (!all && !sum_of_first(d, &sum)) return -1;
    if (all) sum = sum_of_all(d);
    const double doubt = all ? DOUBT * sum : 0;
    if (!(sum < INFINITY)) return -1;
    if (all && d->s->top_p >= 1) { /* kept is the sum */
        const double at = d->u * sum;
        return pick_between(d, d->vocab, at - 2 * doubt, at + 2 * doubt);
    }
    int64_t n = 0;
    while (n < d->count && (n == 0 || kept < d->s->top_p * (sum + doubt))) {
        if (n > 0 && kept >= d->s->top_p * (sum - doubt) && doubt > 0) return -1;
        const struct choice *c = candidate(d, n++);
        if (c == NULL) return -1;
        kept += weight(d, c->logit);
    }
    return pick_between(d, n, d->u * kept, d->u * kept);
}

static int32_t most_likely(const float *logits, int64_t vocab)
{
    int32_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

int32_t generate_sample(const float *logits, int64_t vocab, const struct sampling *s, uint64_t index)
{
    const int32_t best = most_likely(logits, vocab);
    if (s->temperature == 0) return best;
    struct draw d = {.logits = logits,
                     .vocab = vocab,
                     .count = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab,
                     .s = s,
                     .u = rng_uniform(s->seed, RNG_SAMPLE, 0, index),
                     .top = logits[best],
                     .sorted = malloc((size_t)vocab * sizeof *d.sorted)};
    MEMORY_CHECK(d.sorted != NULL, "no memory for %lld choices", (long long)vocab);
    int32_t id = sample_short(&d);
    if (id < 0) id = sample_sorted(&d);
    free(d.sorted);
    return id;
}
