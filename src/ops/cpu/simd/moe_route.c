/* Routers of mixtures of experts. A token's scores stay in the L1 cache. Slots are sorted by counting: each chunk of
 * tokens counts its choices, a scan over experts, then over chunks, converts counts to positions, and each chunk
 * places its own slots in order. The order is therefore by expert and token for every number of threads. */
#include "base/parallel.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include <math.h>

enum {
    TOKENS = 512,
    PADDED = MOE_EXPERTS_MAX + 16
}; /* tokens per chunk; floats for a row and a register after it */

struct scores {
    float s[PADDED]; /* reads go past the last expert: -infinity or 0, as the reader needs */
    float sum, lse;
};

static void pad(float *row, int64_t count, float with)
{
    for (int64_t i = count; i < count + VEC && i < PADDED; i++) row[i] = with;
}

static float row_max(const float *row, int64_t count)
{
    vf top = vec_set(-INFINITY);
    for (int64_t i = 0; i < count; i += VEC) top = vec_max(vec_load(row, i, VEC, DTYPE_F32), top);
    return vec_top(top);
}

static float row_sum(const float *row, int64_t count)
{
    vf sum = {0};
    for (int64_t i = 0; i < count; i += VEC) sum += vec_load(row, i, VEC, DTYPE_F32);
    return vec_sum(sum);
}

/* e^(l - top) of all, and their sum. A maximum that is not finite leaves NaN everywhere, as in the oracle. */
static float exponentials(const float *logits, int64_t count, float top, float *out)
{
    for (int64_t i = 0; i < count; i += VEC)
        vec_store(out, i, VEC, DTYPE_F32, vec_exp(vec_load(logits, i, vec_n(count - i), DTYPE_F32) - top));
    pad(out, count, 0);
    return row_sum(out, count);
}

static void score(const struct route_rule *r, const float *logits, struct scores *out)
{
    float row[PADDED];
    const int64_t count = r->experts;
    memcpy(row, logits, (size_t)count * sizeof *row);
    pad(row, count, -INFINITY);
    const float top = row_max(row, count), sum = exponentials(row, count, top, out->s);
    out->lse = top + logf(sum);
    for (int64_t i = 0; i < count; i += VEC) {
        const vf l = vec_clamp(vec_load(row, i, VEC, DTYPE_F32), -SIGMOID_END, SIGMOID_END),
                 e = vec_load(out->s, i, VEC, DTYPE_F32);
        vec_store(out->s, i, VEC, DTYPE_F32, r->score == ROUTE_SIGMOID ? vec_sigmoid(l).yes : e / sum);
    }
    pad(out->s, count, 0);
    out->sum = row_sum(out->s, count);
}

/* ---- forward */

/* The candidates: experts that are taken or excluded become -infinity. */
struct choice {
    float value[PADDED];
    bool taken[PADDED];
};

/* The first of the largest candidates. */
static int64_t take_best(struct choice *c, int64_t begin, int64_t count)
{
    const float top = begin == 0 ? row_max(c->value, count) : -INFINITY;
    int64_t best = -1;
    for (int64_t i = begin; i < begin + count; i++) {
        if (c->taken[i]) continue;
        if (best < 0 || c->value[i] > c->value[best]) best = i;
        if (begin == 0 && c->value[i] == top) break;
    }
    CHECK(best >= 0, "nothing is left of %ld", (long)count);
    return best;
}

static void take(struct choice *c, int64_t i)
{
    c->taken[i] = true;
    c->value[i] = -INFINITY;
}

static void keep_groups(const struct route_rule *r, struct choice *c)
{
    const int64_t size = r->experts / r->groups;
    struct choice sums = {0};
    for (int64_t g = 0; g < r->groups; g++) {
        const int64_t first = take_best(c, g * size, size);
        float sum = c->value[first];
        c->taken[first] = true; /* restored below */
        if (size > 1) sum += c->value[take_best(c, g * size, size)];
        c->taken[first] = false;
        sums.value[g] = sum;
    }
    pad(sums.value, r->groups, -INFINITY);
    for (int64_t i = 0; i < r->groups_kept; i++) take(&sums, take_best(&sums, 0, r->groups));
    for (int64_t e = 0; e < r->experts; e++)
        if (!sums.taken[e / size]) take(c, e);
}

static void route_token(const struct route_fwd_args *a, int64_t t)
{
    const struct route_rule *r = &a->rule;
    const float *bias = a->bias;
    struct scores s;
    struct choice c;
    float sum = 0, scale = (float)r->scale;
    score(r, (const float *)a->logits + t * r->experts, &s);
    memset(c.taken, 0, (size_t)r->experts);
    for (int64_t e = 0; e < r->experts; e++) {
        const float value = s.s[e] + (bias ? bias[e] : 0);
        c.value[e] = isnan(value) ? -INFINITY : value;
    }
    pad(c.value, r->experts, -INFINITY);
    if (r->groups_kept < r->groups) keep_groups(r, &c);
    int32_t *expert = a->expert + t * r->top_k;
    float *weight = (float *)a->weight + t * r->top_k;
    for (int64_t j = 0; j < r->top_k; j++) {
        expert[j] = (int32_t)take_best(&c, 0, r->experts);
        take(&c, expert[j]);
        sum += s.s[expert[j]];
    }
    for (int64_t j = 0; j < r->top_k; j++)
        weight[j] = scale * s.s[expert[j]] / (r->normalize ? sum + 1e-20f : 1);
}

/* From the chunks' counts in a->scratch, [chunks][experts], to the rows before each chunk's within an expert;
 * offsets and counts. */
static void scan(const struct route_fwd_args *a, int64_t chunks)
{
    int32_t *before = a->scratch;
    int64_t at = 0;
    for (int64_t e = 0; e < a->rule.experts; e++) {
        int32_t demand = 0;
        for (int64_t c = 0; c < chunks; c++) {
            int32_t *cell = &before[c * a->rule.experts + e], count = *cell;
            *cell = demand;
            demand += count;
        }
        const int64_t rows = a->capacity && demand > a->capacity ? a->capacity : demand;
        a->demand[e] = demand;
        a->offsets[e] = (int32_t)at;
        a->counts[e] = (int32_t)rows;
        at += (rows + a->align - 1) / a->align * a->align;
    }
    a->offsets[a->rule.experts] = (int32_t)at;
}

static void place_slots(const struct route_fwd_args *a, struct span rows, int32_t *before)
{
    const int64_t k = a->rule.top_k;
    for (int64_t i = rows.begin * k; i < rows.end * k; i++) {
        const int32_t e = a->expert[i], row = before[e]++;
        const bool fits = !a->capacity || row < a->capacity;
        a->place[i] = fits ? a->offsets[e] + row : -1;
        if (fits) a->source[a->place[i]] = (int32_t)i;
    }
}

static status route_fwd(const struct route_fwd_args *a, dev_stream s)
{
    (void)s;
    const struct route_rule *r = &a->rule;
    const int64_t chunks = chunk_count(a->rows, TOKENS),
                  rows_max = moe_rows_max(a->rows, r->top_k, r->experts, a->align);
    int32_t *counted = a->scratch;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "a router of %s", dtype_name(a->dt));
    CHECK(r->experts <= MOE_EXPERTS_MAX && r->top_k <= MOE_TOP_K_MAX, "%ld of %ld experts", (long)r->top_k,
          (long)r->experts);
    CHECK(rows_max <= INT32_MAX, "%ld sorted rows", (long)rows_max);
    memset(counted, 0, (size_t)(chunks * r->experts) * sizeof *counted);
    PARALLEL_CHUNKS(c, chunks)
    {
        const struct span rows = chunk_span(c, a->rows, TOKENS);
        for (int64_t t = rows.begin; t < rows.end && a->part != ROUTE_PLACE; t++) route_token(a, t);
        for (int64_t i = rows.begin * r->top_k; i < rows.end * r->top_k; i++)
            counted[c * r->experts + a->expert[i]]++;
    }
    if (a->part == ROUTE_CHOOSE) return STATUS_OK;
    if (a->whole && a->capacity) {
        route_place_part(a);
        return STATUS_OK;
    }
    scan(a, chunks);
    memset(a->source, 0xFF, (size_t)rows_max * sizeof *a->source); /* -1 */
    PARALLEL_CHUNKS(c, chunks)
    {
        place_slots(a, chunk_span(c, a->rows, TOKENS), counted + c * r->experts);
    }
    return STATUS_OK;
}

/* ---- backward */

/* Into ds: the gradient of the chosen scores. */
static void chosen_bwd(const struct route_bwd_args *a, const struct scores *s, int64_t t, float *ds)
{
    const struct route_rule *r = &a->rule;
    const float *dweight = a->dweight, scale = (float)r->scale;
    float dw[MOE_TOP_K_MAX], sum = 1e-20f, along = 0;
    const int32_t *expert = a->expert + t * r->top_k;
    for (int64_t j = 0; j < r->top_k; j++) {
        dw[j] = a->place[t * r->top_k + j] < 0 ? 0 : dweight[t * r->top_k + j];
        sum += s->s[expert[j]];
        along += s->s[expert[j]] * dw[j];
    }
    for (int64_t j = 0; j < r->top_k; j++)
        ds[expert[j]] = scale * (r->normalize ? (dw[j] - along / sum) / sum : dw[j]);
}

/* Counts experts by `demand` over `tokens` tokens; returns the token's cost without the coefficient. */
static float aux_bwd(const struct route_bwd_args *a, const struct scores *s, const int32_t *demand,
                     double tokens, float factor, float *ds)
{
    const struct route_rule *r = &a->rule;
    const float even = (float)((double)r->experts / ((double)r->top_k * tokens)), inverse = 1 / s->sum;
    float shares = 0;
    for (int64_t e = 0; e < r->experts; e++) shares += even * (float)demand[e] * s->s[e];
    shares *= inverse;
    for (int64_t e = 0; e < r->experts; e++) ds[e] += factor * (even * (float)demand[e] - shares) * inverse;
    return shares;
}

struct counted {
    const int32_t *demand;
    double tokens;
};

static void route_token_bwd(const struct route_bwd_args *a, int64_t t, struct counted in, float g)
{
    const struct route_rule *r = &a->rule;
    const float *logits = (const float *)a->logits + t * r->experts, aux = (float)a->aux, z = (float)a->z;
    struct scores s;
    float ds[PADDED] = {0}, back = 0, cost = 0;
    score(r, logits, &s);
    chosen_bwd(a, &s, t, ds);
    if (aux != 0) cost += aux * aux_bwd(a, &s, in.demand, in.tokens, g * aux, ds);
    if (z != 0) cost += z * s.lse * s.lse;
    vf along = {0};
    for (int64_t i = 0; i < r->experts; i += VEC)
        along += vec_load(ds, i, VEC, DTYPE_F32) * vec_load(s.s, i, VEC, DTYPE_F32);
    back = vec_sum(along);
    for (int64_t i = 0; i < r->experts; i += VEC) {
        const int n = vec_n(r->experts - i);
        const vf p = vec_load(s.s, i, VEC, DTYPE_F32), d = vec_load(ds, i, VEC, DTYPE_F32),
                 l = vec_load(logits, i, n, DTYPE_F32);
        vf dl = p * (r->score == ROUTE_SOFTMAX ? d - back : d * (1 - p));
        if (z != 0) dl += g * z * 2 * s.lse * vec_exp(l - s.lse);
        vec_store(a->dlogits, t * r->experts + i, n, a->dt, dl);
    }
    if (a->cost) ((float *)a->cost)[t] = cost;
}

/* The tokens of the document of which the call's rows `d` are a part. */
static struct span tokens_of(const struct route_bwd_args *a, int64_t d)
{
    const struct route_whole *w = a->whole;
    if (w == NULL || a->cu_seqlens[d] == a->cu_seqlens[d + 1])
        return (struct span){a->cu_seqlens[d], a->cu_seqlens[d + 1]};
    const int64_t doc = route_document_of(w->cu_seqlens, w->docs, route_token_of(w, a->cu_seqlens[d]));
    return (struct span){w->cu_seqlens[doc], w->cu_seqlens[doc + 1]};
}

/* Each document's counts, [docs][experts], into the scratch. */
static void count_documents(const struct route_bwd_args *a)
{
    const int64_t k = a->rule.top_k;
    int32_t *counts = a->scratch;
    PARALLEL_CHUNKS(d, a->docs)
    {
        int32_t *own = counts + d * a->rule.experts;
        const struct span tokens = tokens_of(a, d);
        const struct route_whole rows = {.expert = a->expert};
        route_count(a->whole ? a->whole : &rows, k, tokens.begin, tokens.end, a->rule.experts, own);
    }
}

static status route_bwd(const struct route_bwd_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "a router of %s", dtype_name(a->dt));
    const bool by_document = a->aux != 0 && a->aux_kind == ROUTE_AUX_SEQUENCE;
    const float g = a->grad_scale && (a->aux != 0 || a->z != 0) ? (float)*a->grad_scale : 0;
    int32_t all[MOE_EXPERTS_MAX];
    struct counted each = {.demand = a->demand, .tokens = (double)a->rows};
    if (by_document) count_documents(a);
    if (a->whole) {
        route_count(a->whole, a->rule.top_k, 0, a->whole->rows, a->rule.experts, all);
        each = (struct counted){all, (double)a->whole->rows};
    }
    PARALLEL_CHUNKS(c, chunk_count(a->rows, TOKENS))
    {
        const struct span rows = chunk_span(c, a->rows, TOKENS);
        struct counted in = each;
        for (int64_t t = rows.begin; t < rows.end; t++) {
            if (by_document) {
                const int64_t d = route_document_of(a->cu_seqlens, a->docs, t);
                const struct span tokens = tokens_of(a, d);
                in.demand = (const int32_t *)a->scratch + d * a->rule.experts;
                in.tokens = (double)(tokens.end - tokens.begin);
            }
            route_token_bwd(a, t, in, g);
        }
    }
    for (int64_t e = 0; a->load && e < a->rule.experts; e++) ((float *)a->load)[e] += (float)a->demand[e];
    const int64_t slots = a->dropped ? a->rows * a->rule.top_k : 0;
    for (int64_t i = 0; i < slots; i++) a->dropped[0] += a->place[i] < 0;
    if (a->dropped) a->dropped[1] += (double)slots;
    return STATUS_OK;
}

void SIMD(simd_moe_route)(struct ops *o)
{
    o->route_fwd = route_fwd;
    o->route_bwd = route_bwd;
}
