#include "base/parallel.h"
#include "ops/cpu/fast.h"
#include "ops/cpu/oracle/oracle.h"

#include <string.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* ---- the router */

static void check_rule(const struct route_rule *r)
{
    CHECK(r->experts >= 1 && r->experts <= MOE_EXPERTS_MAX, "%lld experts", (long long)r->experts);
    CHECK(r->top_k >= 1 && r->top_k <= MOE_TOP_K_MAX, "%lld choices", (long long)r->top_k);
    CHECK(r->groups >= 1 && r->experts % r->groups == 0, "%lld experts in %lld groups", (long long)r->experts,
          (long long)r->groups);
    CHECK(r->groups_kept >= 1 && r->groups_kept <= r->groups, "%lld of %lld groups",
          (long long)r->groups_kept, (long long)r->groups);
    CHECK(r->top_k <= r->experts / r->groups * r->groups_kept, "%lld choices of %lld experts",
          (long long)r->top_k, (long long)(r->experts / r->groups * r->groups_kept));
}

struct scores {
    double s[MOE_EXPERTS_MAX];
    double sum, lse;
};

static void score(const struct route_rule *r, const void *logits, int64_t t, dtype acc, struct scores *out)
{
    double top = -INFINITY, sum = 0;
    for (int64_t e = 0; e < r->experts; e++) top = fmax(top, get(logits, t * r->experts + e, acc));
    for (int64_t e = 0; e < r->experts; e++) sum += exp(get(logits, t * r->experts + e, acc) - top);
    out->lse = top + log(sum);
    out->sum = 0;
    for (int64_t e = 0; e < r->experts; e++) {
        const double l = get(logits, t * r->experts + e, acc);
        out->s[e] = r->score == ROUTE_SOFTMAX ? exp(l - top) / sum : sigmoid(l);
        out->sum += out->s[e];
    }
}

/* Index of the largest value that is not taken; of equal ones the first. */
static int64_t take_best(const double *value, bool *taken, int64_t count)
{
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || value[i] > value[best])) best = i;
    CHECK(best >= 0, "nothing is left of %lld", (long long)count);
    taken[best] = true;
    return best;
}

/* Removes all experts except those of the groups whose two best scores have the highest sums. */
static void keep_groups(const struct route_rule *r, const double *choice, bool *taken)
{
    const int64_t size = r->experts / r->groups;
    double sums[MOE_EXPERTS_MAX];
    bool kept[MOE_EXPERTS_MAX] = {false};
    for (int64_t g = 0; g < r->groups; g++) {
        bool used[MOE_EXPERTS_MAX] = {false};
        const double *of = choice + g * size;
        sums[g] = of[take_best(of, used, size)];
        if (size > 1) sums[g] += of[take_best(of, used, size)];
    }
    for (int64_t i = 0; i < r->groups_kept; i++) (void)take_best(sums, kept, r->groups);
    for (int64_t e = 0; e < r->experts; e++) taken[e] = !kept[e / size];
}

static void route_token(const struct route_fwd_args *a, int64_t t)
{
    const struct route_rule *r = &a->rule;
    const dtype acc = dtype_acc(a->dt);
    struct scores s;
    double choice[MOE_EXPERTS_MAX], sum = 0;
    bool taken[MOE_EXPERTS_MAX] = {false};
    score(r, a->logits, t, acc, &s);
    for (int64_t e = 0; e < r->experts; e++) {
        choice[e] = s.s[e] + (a->bias ? get(a->bias, e, acc) : 0);
        if (isnan(choice[e])) choice[e] = -INFINITY;
    }
    if (r->groups_kept < r->groups) keep_groups(r, choice, taken);
    int32_t *expert = a->expert + t * r->top_k;
    for (int64_t j = 0; j < r->top_k; j++) {
        expert[j] = (int32_t)take_best(choice, taken, r->experts);
        sum += s.s[expert[j]];
    }
    for (int64_t j = 0; j < r->top_k; j++)
        put(a->weight, t * r->top_k + j, acc, r->scale * s.s[expert[j]] / (r->normalize ? sum + 1e-20 : 1));
}

void route_count(const struct route_whole *w, int64_t top_k, int64_t from, int64_t to, int64_t experts,
                 int32_t *demand)
{
    memset(demand, 0, (size_t)experts * sizeof *demand);
    for (int64_t i = from * top_k; i < to * top_k; i++) demand[w->expert[i]]++;
}

/* Of the tokens of all ranks the first ones fit: place = 0, of the others -1. Returns the rows of each expert here. */
static void mark_fitting(const struct route_fwd_args *a, int32_t *rows)
{
    const int64_t k = a->rule.top_k;
    int32_t before[MOE_EXPERTS_MAX] = {0}; /* slots of the tokens up to `token` */
    int64_t token = 0;
    memset(rows, 0, (size_t)a->rule.experts * sizeof *rows);
    for (int64_t t = 0; t < a->rows; t++) {
        const int64_t own = route_token_of(a->whole, t);
        for (; token < own; token++)
            for (int64_t j = 0; j < k; j++) before[a->whole->expert[token * k + j]]++;
        for (int64_t j = 0; j < k; j++) {
            const int32_t e = a->expert[t * k + j];
            a->place[t * k + j] = before[e] < a->capacity ? 0 : -1;
            rows[e] += before[e] < a->capacity;
        }
    }
}

void route_place_part(const struct route_fwd_args *a)
{
    const struct route_rule *r = &a->rule;
    const int64_t slots = a->rows * r->top_k,
                  rows_max = moe_rows_max(a->rows, r->top_k, r->experts, a->align);
    CHECK(a->rows * a->whole->ranks == a->whole->rows, "%lld rows of %lld on %d ranks", (long long)a->rows,
          (long long)a->whole->rows, a->whole->ranks);
    memset(a->demand, 0, (size_t)r->experts * sizeof *a->demand);
    for (int64_t i = 0; i < slots; i++) a->demand[a->expert[i]]++;
    for (int64_t i = 0; i < rows_max; i++) a->source[i] = -1;
    mark_fitting(a, a->counts);
    int64_t at = 0;
    int32_t next[MOE_EXPERTS_MAX];
    for (int64_t e = 0; e < r->experts; e++) {
        a->offsets[e] = next[e] = (int32_t)at;
        at += (a->counts[e] + a->align - 1) / a->align * a->align;
    }
    a->offsets[r->experts] = (int32_t)at;
    for (int64_t i = 0; i < slots; i++) {
        if (a->place[i] < 0) continue;
        a->place[i] = next[a->expert[i]]++;
        a->source[a->place[i]] = (int32_t)i;
    }
}

static void sort_slots(const struct route_fwd_args *a)
{
    const struct route_rule *r = &a->rule;
    const int64_t slots = a->rows * r->top_k,
                  rows_max = moe_rows_max(a->rows, r->top_k, r->experts, a->align);
    memset(a->demand, 0, (size_t)r->experts * sizeof *a->demand);
    for (int64_t i = 0; i < slots; i++) a->demand[a->expert[i]]++;
    int64_t at = 0;
    for (int64_t e = 0; e < r->experts; e++) {
        const int64_t rows = a->capacity && a->demand[e] > a->capacity ? a->capacity : a->demand[e];
        a->offsets[e] = (int32_t)at;
        a->counts[e] = 0; /* until its slots are assigned */
        at += (rows + a->align - 1) / a->align * a->align;
    }
    a->offsets[r->experts] = (int32_t)at;
    for (int64_t i = 0; i < rows_max; i++) a->source[i] = -1;
    for (int64_t i = 0; i < slots; i++) {
        const int32_t e = a->expert[i];
        const bool fits = !a->capacity || a->counts[e] < a->capacity;
        a->place[i] = fits ? a->offsets[e] + a->counts[e]++ : -1;
        if (fits) a->source[a->place[i]] = (int32_t)i;
    }
}

static status route_fwd(const struct route_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    check_rule(&a->rule);
    const int64_t rows_max = moe_rows_max(a->rows, a->rule.top_k, a->rule.experts, a->align);
    CHECK(a->align >= 1 && rows_max <= INT32_MAX, "%lld sorted rows", (long long)rows_max);
    PARALLEL_CHUNKS(t, a->part == ROUTE_PLACE ? 0 : a->rows)
    {
        route_token(a, t);
    }
    if (a->part == ROUTE_CHOOSE) return STATUS_OK;
    if (a->whole && a->capacity)
        route_place_part(a);
    else
        sort_slots(a);
    return STATUS_OK;
}

/* Rows that share the counts of the auxiliary loss, and of how many tokens these are. */
struct scope {
    struct span rows;
    int64_t tokens;
    const int32_t *demand;
};

static void route_token_bwd(const struct route_bwd_args *a, const struct scope *in, int64_t t)
{
    const struct route_rule *r = &a->rule;
    const dtype acc = dtype_acc(a->dt);
    const double tokens = (double)in->tokens,
                 g = a->grad_scale && (a->aux != 0 || a->z != 0) ? *a->grad_scale : 0,
                 even = (double)r->experts / ((double)r->top_k * tokens);
    struct scores s;
    double ds[MOE_EXPERTS_MAX] = {0}, v_sum = 1e-20, along = 0, shares = 0, back = 0;
    score(r, a->logits, t, acc, &s);
    for (int64_t j = 0; j < r->top_k; j++) {
        const int64_t slot = t * r->top_k + j;
        const double v = s.s[a->expert[slot]], dw = a->place[slot] < 0 ? 0 : get(a->dweight, slot, acc);
        v_sum += v;
        along += v * dw;
    }
    for (int64_t j = 0; j < r->top_k; j++) {
        const int64_t slot = t * r->top_k + j;
        const double dw = a->place[slot] < 0 ? 0 : get(a->dweight, slot, acc);
        ds[a->expert[slot]] = r->scale * (r->normalize ? (dw - along / v_sum) / v_sum : dw);
    }
    /* q = s / sum s, and dq = g aux share */
    for (int64_t e = 0; e < r->experts; e++) shares += even * in->demand[e] * s.s[e] / s.sum;
    for (int64_t e = 0; e < r->experts; e++) {
        if (a->aux != 0) ds[e] += g * a->aux * (even * in->demand[e] - shares) / s.sum;
        back += ds[e] * s.s[e];
    }
    for (int64_t e = 0; e < r->experts; e++) {
        const double l = get(a->logits, t * r->experts + e, acc);
        double dl = s.s[e] * (r->score == ROUTE_SOFTMAX ? ds[e] - back : ds[e] * (1 - s.s[e]));
        if (a->z != 0) dl += g * a->z * 2 * s.lse * exp(l - s.lse);
        put(a->dlogits, t * r->experts + e, a->dt, dl);
    }
    if (a->cost)
        put(a->cost, t, acc, (a->aux != 0 ? a->aux * shares : 0) + (a->z != 0 ? a->z * s.lse * s.lse : 0));
}

static void route_scope_bwd(const struct route_bwd_args *a, const struct scope *in)
{
    PARALLEL_CHUNKS(c, in->rows.end - in->rows.begin)
    {
        route_token_bwd(a, in, in->rows.begin + c);
    }
}

static status route_bwd(const struct route_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    check_rule(&a->rule);
    const int64_t k = a->rule.top_k;
    const dtype acc = dtype_acc(a->dt);
    for (int64_t e = 0; a->load && e < a->rule.experts; e++)
        put(a->load, e, acc, get(a->load, e, acc) + a->demand[e]);
    for (int64_t i = 0; a->dropped && i < a->rows * k; i++) a->dropped[0] += a->place[i] < 0, a->dropped[1]++;
    int32_t demand[MOE_EXPERTS_MAX];
    /* One rank: its rows are all. */
    const struct route_whole own = {
        .expert = a->expert, .rows = a->rows, .length = 2 * a->rows, .ranks = 1, .cu_seqlens = a->cu_seqlens};
    const struct route_whole *w = a->whole ? a->whole : &own;
    if (a->aux == 0 || a->aux_kind == ROUTE_AUX_SWITCH) {
        route_count(w, k, 0, w->rows, a->rule.experts, demand);
        route_scope_bwd(a, &(struct scope){.rows = {0, a->rows}, .tokens = w->rows, .demand = demand});
        return STATUS_OK;
    }
    for (int64_t d = 0; d < a->docs; d++) {
        const struct span rows = {a->cu_seqlens[d], a->cu_seqlens[d + 1]};
        if (rows.begin == rows.end) continue;
        const int64_t doc =
            a->whole ? route_document_of(w->cu_seqlens, w->docs, route_token_of(w, rows.begin)) : d;
        const struct span tokens = {w->cu_seqlens[doc], w->cu_seqlens[doc + 1]};
        route_count(w, k, tokens.begin, tokens.end, a->rule.experts, demand);
        route_scope_bwd(a,
                        &(struct scope){.rows = rows, .tokens = tokens.end - tokens.begin, .demand = demand});
    }
    return STATUS_OK;
}

/* ---- GEMMs, expert by expert */

/* Row r of an operand, gathered or not. */
static int64_t row_of(const struct expert_gemm_args *a, enum expert_gather who, int64_t r)
{
    return a->gather == who ? a->source[r] / a->top_k : r;
}

/* Element i of n, j of k of an expert's matrix, as the pass stores it. */
static double weight_at(const struct expert_gemm_args *a, bool fp8, int64_t e, int64_t i, int64_t j)
{
    const bool trans = fp8 && a->pass == EXPERT_DGRAD;
    return get(a->b.data, trans ? j * a->experts * a->n + e * a->n + i : (e * a->n + i) * a->k + j, a->b.dt);
}

/* WGRAD: column c of sorted row r of an operand of `width`, the one that `who` names. */
static double sorted_at(const struct expert_gemm_args *a, enum expert_gather who, int64_t r, int64_t c)
{
    const struct operand *o = who == EXPERT_GATHER_A ? &a->a : &a->b;
    const int64_t width = who == EXPERT_GATHER_A ? a->n : a->k;
    const bool trans = o->scales == SCALES_TENSOR && a->gather != who;
    return get(o->data, trans ? expert_codes_at(width, a->ld, r, c) : row_of(a, who, r) * width + c, o->dt);
}

static double scale_of(const struct expert_gemm_args *a, bool fp8)
{
    return fp8 ? (double)*a->a.scale * (double)*a->b.scale : 1;
}

static void expert_rows(const struct expert_gemm_args *a, int64_t e)
{
    const bool fwd = a->pass == EXPERT_FWD, fp8 = expert_gemm_fp8(a);
    const int64_t in = fwd ? a->k : a->n, out = fwd ? a->n : a->k, begin = a->offsets[e],
                  real = begin + a->counts[e];
    const double scale = scale_of(a, fp8);
    PARALLEL_CHUNKS(c, a->offsets[e + 1] - begin)
    {
        const int64_t r = begin + c;
        for (int64_t j = 0; j < out; j++) {
            double sum = 0;
            for (int64_t i = 0; r < real && i < in; i++)
                sum += get(a->a.data, row_of(a, EXPERT_GATHER_A, r) * in + i, a->a.dt) *
                       weight_at(a, fp8, e, fwd ? j : i, fwd ? i : j);
            put(a->c, r * out + j, a->dt, sum * scale);
        }
    }
}

static void expert_wgrad(const struct expert_gemm_args *a, int64_t e)
{
    const dtype acc = dtype_acc(a->dt);
    const int64_t begin = a->offsets[e], end = begin + a->counts[e];
    const double scale = scale_of(a, expert_gemm_fp8(a));
    PARALLEL_CHUNKS(i, a->n)
    {
        for (int64_t j = 0; j < a->k; j++) {
            const int64_t at = (e * a->n + i) * a->k + j;
            double sum = a->accum == ACCUM_ADD ? get(a->c, at, acc) / scale : 0; /* a power of two */
            for (int64_t r = begin; r < end; r++)
                sum += sorted_at(a, EXPERT_GATHER_A, r, i) * sorted_at(a, EXPERT_GATHER_B, r, j);
            put(a->c, at, acc, sum * scale);
        }
    }
}

static status expert_gemm(const struct expert_gemm_args *a, dev_stream s)
{
    (void)s;
    if (!expert_gemm_fp8(a)) check_dt(expert_gemm_dt(a));
    CHECK(a->pass == EXPERT_WGRAD || a->accum == ACCUM_STORE, "rows of experts are not added to");
    CHECK(a->pass == EXPERT_WGRAD || a->gather != EXPERT_GATHER_B, "the experts' matrices have no tokens");
    for (int64_t e = 0; e < a->experts; e++) {
        if (a->pass == EXPERT_WGRAD)
            expert_wgrad(a, e);
        else
            expert_rows(a, e);
    }
    return STATUS_OK;
}

/* ---- codes of sorted rows */

static void codes_row(const struct expert_codes_args *a, int64_t r)
{
    const struct quantized *q = &a->q;
    const int64_t row = a->gather ? a->source[r] / a->top_k : r;
    for (int64_t j = 0; j < a->n; j++) {
        const double x = a->source[r] < 0 ? 0
                         : a->gather      ? get(a->x, row * a->n + j, q->dt)
                                          : get(a->x, row * a->n + j, a->dt) * (double)*q->scale;
        if (q->codes) put(q->codes, r * a->n + j, q->dt, x);
        if (q->codes_t) put(q->codes_t, expert_codes_at(a->n, a->ld, r, j), q->dt, x);
    }
}

static status expert_codes(const struct expert_codes_args *a, dev_stream s)
{
    (void)s;
    const int64_t rows = a->offsets[a->experts], end = quantized_ld(rows);
    expert_codes_check(a);
    if (!a->gather) {
        const struct quantized most = {.amax = a->q.amax, .dt = a->q.dt};
        check_dt(a->dt);
        oracle_quantized(&most, a->x, rows, a->n, a->dt);
    }
    if (!quantized_any(&a->q)) return STATUS_OK;
    PARALLEL_CHUNKS(r, rows)
    {
        codes_row(a, r);
    }
    for (int64_t j = 0; j < a->n && a->q.codes_t && rows < end; j++)
        memset((uint8_t *)a->q.codes_t + expert_codes_at(a->n, a->ld, rows, j), 0, (size_t)(end - rows));
    return STATUS_OK;
}

status cpu_expert_act_fwd_codes(const struct expert_act_fwd_args *a)
{
    const struct expert_codes_args m = expert_act_fwd_codes(a);
    return quantized_asked(&a->q) ? expert_codes(&m, NULL) : STATUS_OK;
}

status cpu_expert_act_bwd_codes(const struct expert_act_bwd_args *a)
{
    const struct expert_codes_args dup = expert_act_bwd_codes(a, false), m = expert_act_bwd_codes(a, true);
    if (quantized_asked(&a->q)) TRY(expert_codes(&dup, NULL));
    return quantized_asked(&a->mq) ? expert_codes(&m, NULL) : STATUS_OK;
}

/* ---- permutation and activation */

static status expert_act_fwd(const struct expert_act_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(r, a->offsets[a->experts])
    {
        const bool real = a->source[r] >= 0;
        const double w = real ? get(a->weight, a->source[r], dtype_acc(a->dt)) : 0;
        for (int64_t i = 0; i < a->f; i++) {
            const double gate = real ? get(a->up, r * 2 * a->f + i, a->dt) : 0,
                         up = real ? get(a->up, (r * 2 + 1) * a->f + i, a->dt) : 0;
            put(a->m, r * a->f + i, a->dt, w * gate * sigmoid(gate) * up);
        }
    }
    return cpu_expert_act_fwd_codes(a);
}

static status expert_act_bwd(const struct expert_act_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt);
    PARALLEL_CHUNKS(r, a->offsets[a->experts])
    {
        const bool real = a->source[r] >= 0;
        const double w = real ? get(a->weight, a->source[r], acc) : 0;
        double dw = 0;
        for (int64_t i = 0; i < a->f; i++) {
            const int64_t gate_at = r * 2 * a->f + i, up_at = gate_at + a->f, at = r * a->f + i;
            const double gate = real ? get(a->up, gate_at, a->dt) : 0,
                         up = real ? get(a->up, up_at, a->dt) : 0, dm = real ? get(a->dm, at, a->dt) : 0,
                         sg = sigmoid(gate), silu = gate * sg;
            dw += dm * silu * up;
            put(a->dup, gate_at, a->dt, w * dm * up * sg * (1 + gate * (1 - sg)));
            put(a->dup, up_at, a->dt, w * dm * silu);
            put(a->m, at, a->dt, w * silu * up);
        }
        if (real) put(a->dweight, a->source[r], acc, dw);
    }
    return cpu_expert_act_bwd_codes(a);
}

static status combine(const struct combine_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->base_dt == a->dt || a->base_dt == dtype_acc(a->dt), "%s with a base of %s", dtype_name(a->dt),
          dtype_name(a->base_dt));
    PARALLEL_CHUNKS(t, a->count ? *a->count : a->rows)
    {
        const double gate = a->gate ? sigmoid(get(a->gate, t, dtype_acc(a->dt))) : 1;
        for (int64_t i = 0; i < a->d; i++) {
            double sum = a->base ? gate * get(a->base, t * a->d + i, a->base_dt) : 0;
            for (int64_t j = 0; j < a->top_k; j++) {
                const int64_t r = a->place[t * a->top_k + j];
                if (r >= 0) sum += get(a->x, r * a->d + i, a->dt);
            }
            put(a->y, t * a->d + i, a->dt, sum);
        }
    }
    return STATUS_OK;
}

static status combine_gate_bwd(const struct combine_gate_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(t, a->rows)
    {
        const double gate = sigmoid(get(a->gate, t, dtype_acc(a->dt)));
        double along = 0;
        for (int64_t i = t * a->d; i < (t + 1) * a->d; i++) {
            const double dy = get(a->dy, i, a->dt);
            along += dy * get(a->base, i, a->dt);
            put(a->dbase, i, a->dt, gate * dy);
        }
        put(a->dgate, t, a->dt, along * gate * (1 - gate));
    }
    return STATUS_OK;
}

/* ---- rows of other ranks */

static status dispatch_sort(const struct dispatch_sort_args *a, dev_stream s)
{
    (void)s;
    const int64_t ranks = a->ranks, local = a->experts / ranks;
    const int32_t *every = a->every,
                  *mine = every + a->rank * local; /* of rank k for own expert e: k experts + e */
    CHECK(ranks >= 1 && a->experts % ranks == 0, "%lld experts on %lld ranks", (long long)a->experts,
          (long long)ranks);
    for (int64_t i = 0; i < ranks; i++)
        for (int64_t j = 0; j < ranks; j++) {
            int64_t rows = 0;
            for (int64_t e = 0; e < local; e++) rows += every[i * a->experts + j * local + e];
            a->pairs[i * ranks + j] = a->pairs[(ranks + j) * ranks + i] = rows;
        }
    int32_t arrived = 0, sorted = 0;
    for (int64_t e = 0; e < local; e++) {
        a->offsets[e] = sorted;
        a->counts[e] = 0; /* so far */
        for (int64_t k = 0; k < ranks; k++) sorted += mine[k * a->experts + e];
        for (; sorted % a->align != 0; sorted++) a->source[sorted] = -1;
    }
    a->offsets[local] = sorted;
    for (int64_t k = 0; k < ranks; k++)
        for (int64_t e = 0; e < local; e++)
            for (int32_t i = 0; i < mine[k * a->experts + e]; i++) {
                const int32_t to = a->offsets[e] + a->counts[e]++;
                a->source[to] = arrived;
                a->place[arrived++] = to;
            }
    a->counts[local] = arrived;
    for (int64_t i = 0; i < a->slot_count; i++)
        a->tokens[i] = a->slots[i] < 0 ? -1 : a->slots[i] / (int32_t)a->top_k;
    return STATUS_OK;
}

/* ---- balancing */

static void balance_row(const struct balance_args *a, const struct update_chunk *row, double *most,
                        double *least)
{
    double sum = 0;
    for (int64_t i = row->begin; i < row->begin + row->count; i++) sum += (double)a->load[i];
    const double mean = sum / row->count;
    if (sum == 0) return;
    for (int64_t i = row->begin; i < row->begin + row->count; i++) {
        const double c = (double)a->load[i];
        float *const bias = &a->bias[i - row->v_offset];
        *bias = (float)((double)*bias + a->rate * ((c < mean) - (c > mean)));
        *most = fmax(*most, c / mean);
        *least = fmin(*least, c / mean);
        a->load[i] = 0;
    }
}

static status balance(const struct balance_args *a, dev_stream s)
{
    (void)s;
    double most = 0, least = INFINITY;
    if (!isfinite(a->scalars->grad_norm)) return STATUS_OK;
    for (int64_t i = 0; i < a->row_count; i++) balance_row(a, &a->rows[i], &most, &least);
    a->scalars->load_max = most;
    a->scalars->load_min = isfinite(least) ? least : 0;
    return STATUS_OK;
}

/* The oracle needs none of it. But it reports the maximum of all CPU sets when a plan is laid out without
 * one. */
static size_t moe_scratch(const struct moe_shape *m, enum moe_memory what)
{
    const size_t row = (size_t)m->experts * sizeof(int32_t);
    switch (what) {
    case MOE_ROUTE_FWD: return (size_t)chunk_count(m->rows, MOE_CHUNK_TOKENS) * row;
    case MOE_ROUTE_BWD: return (size_t)m->docs * row;
    case MOE_GEMM: break;
    }
    return (size_t)(m->rows * m->top_k * m->d) * dtype_bytes(m->dt); /* gathered rows */
}

void oracle_moe(struct ops *o)
{
    o->route_fwd = route_fwd;
    o->route_bwd = route_bwd;
    o->expert_gemm = expert_gemm;
    o->expert_codes = expert_codes;
    o->expert_act_fwd = expert_act_fwd;
    o->expert_act_bwd = expert_act_bwd;
    o->combine = combine;
    o->combine_gate_bwd = combine_gate_bwd;
    o->dispatch_sort = dispatch_sort;
    o->balance = balance;
    o->moe_scratch = moe_scratch;
    o->expert_align = 1;
}
