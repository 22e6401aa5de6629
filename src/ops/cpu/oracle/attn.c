#include "base/parallel.h"
#include "base/int_math.h"
#include "ops/cpu/oracle/oracle.h"
#include <math.h>

/* Nothing is stored between rows: each loop recomputes the scores that it needs and reads like its formula. */

static double dot(const void *x, int64_t x_at, const void *y, int64_t y_at, int64_t head_dim, dtype dt)
{
    double sum = 0;
    for (int64_t i = 0; i < head_dim; i++) sum += get(x, x_at + i, dt) * get(y, y_at + i, dt);
    return sum;
}

static void check_heads(int64_t heads, int64_t heads_kv, int64_t head_dim, int64_t head_dim_v, int64_t window)
{
    CHECK(heads > 0 && heads_kv > 0 && heads % heads_kv == 0, "%lld heads on %lld kv heads", (long long)heads,
          (long long)heads_kv);
    CHECK(head_dim > 0 && head_dim_v > 0 && int64_max(head_dim, head_dim_v) <= ORACLE_HD_MAX,
          "head_dim %lld and %lld, the oracle takes up to %d", (long long)head_dim, (long long)head_dim_v,
          ORACLE_HD_MAX);
    CHECK(window >= 0, "window %lld", (long long)window);
}

static void check_docs(const int32_t *cu, const struct attn_doc *split, int64_t docs, int64_t rows)
{
    if (split) return;
    CHECK(docs >= 0 && cu[0] == 0 && cu[docs] == rows, "%lld documents end at %d of %lld rows",
          (long long)docs, cu[docs], (long long)rows);
    for (int64_t i = 0; i < docs; i++)
        CHECK(cu[i] <= cu[i + 1], "document %lld ends at %d before it begins at %d", (long long)i, cu[i + 1],
              cu[i]);
}

static struct attn_doc doc_of(const int32_t *cu, const struct attn_doc *split, int64_t i)
{
    if (split) return split[i];
    return (struct attn_doc){cu[i], cu[i + 1] - cu[i], {{cu[i], cu[i + 1] - cu[i], 0}}};
}

/* The keys that query i of a part sees. */
static struct span keys_of(const struct attn_doc *d, const struct attn_queries *part, int64_t i,
                           int64_t window)
{
    const int64_t at = i + part->shift, end = int64_min(at + 1, d->keys);
    return (struct span){d->key + (window ? int64_max(0, at - window + 1) : 0), d->key + end};
}

/* o = softmax(scale q k^T) v for one query over keys u in [first, last]; returns the log sum exp. */
static double attend(const void *q, int64_t q_at, const void *k, const void *v, int64_t k_at, int64_t v_at,
                     int64_t k_stride, int64_t v_stride, struct span keys, int64_t head_dim,
                     int64_t head_dim_v, double scale, dtype dt, double *o)
{
    double max = -INFINITY, sum = 0;
    for (int64_t u = keys.begin; u < keys.end; u++)
        max = fmax(max, scale * dot(q, q_at, k, u * k_stride + k_at, head_dim, dt));
    for (int64_t i = 0; i < head_dim_v; i++) o[i] = 0;
    for (int64_t u = keys.begin; u < keys.end; u++) {
        double p = exp(scale * dot(q, q_at, k, u * k_stride + k_at, head_dim, dt) - max);
        sum += p;
        for (int64_t i = 0; i < head_dim_v; i++) o[i] += p * get(v, u * v_stride + v_at + i, dt);
    }
    if (sum == 0) return -INFINITY;
    for (int64_t i = 0; i < head_dim_v; i++) o[i] /= sum;
    return max + log(sum);
}

/* o and lse of a query together with what they were; returns the new lse. */
static double take_in(const struct attn_fwd_args *a, int64_t t, int64_t h, double *o, double lse)
{
    const double was = get(a->lse, h * a->rows + t, dtype_acc(a->dt)), max = fmax(was, lse);
    if (max == -INFINITY) return max;
    const double sum = exp(was - max) + exp(lse - max);
    for (int64_t j = 0; j < a->head_dim_v; j++)
        o[j] = (exp(was - max) * get(a->o, (t * a->heads + h) * a->head_dim_v + j, a->dt) +
                exp(lse - max) * o[j]) /
               sum;
    return max + log(sum);
}

static void fwd_part(const struct attn_fwd_args *a, const struct attn_doc *doc,
                     const struct attn_queries *part, int64_t h)
{
    const int64_t group = a->heads / a->heads_kv, at_q = h * a->head_dim, at_k = h / group * a->head_dim,
                  at_v = h / group * a->head_dim_v;
    for (int64_t i = 0; i < part->rows; i++) {
        const int64_t t = part->row + i;
        double o[ORACLE_HD_MAX];
        double lse = attend(a->q, t * a->q_stride + at_q, a->k, a->v, at_k, at_v, a->k_stride, a->v_stride,
                            keys_of(doc, part, i, a->window), a->head_dim, a->head_dim_v, a->scale, a->dt, o);
        if (a->more) lse = take_in(a, t, h, o, lse);
        for (int64_t j = 0; j < a->head_dim_v; j++)
            put(a->o, (t * a->heads + h) * a->head_dim_v + j, a->dt, o[j]);
        if (a->lse) put(a->lse, h * a->rows + t, dtype_acc(a->dt), lse);
    }
}

static status attn_fwd(const struct attn_fwd_args *a, dev_stream stream)
{
    (void)stream;
    check_dt(a->dt);
    check_heads(a->heads, a->heads_kv, a->head_dim, a->head_dim_v, a->window);
    check_docs(a->cu_seqlens, a->cp_docs, a->docs, a->rows);
    CHECK(a->q_stride >= a->heads * a->head_dim, "q_stride %lld", (long long)a->q_stride);
    CHECK(a->k_stride >= a->heads_kv * a->head_dim && a->v_stride >= a->heads_kv * a->head_dim_v,
          "k_stride %lld v_stride %lld", (long long)a->k_stride, (long long)a->v_stride);
    PARALLEL_CHUNKS(c, a->docs * a->heads)
    {
        const struct attn_doc doc = doc_of(a->cu_seqlens, a->cp_docs, c / a->heads);
        for (int part = 0; part < 2; part++) fwd_part(a, &doc, &doc.part[part], c % a->heads);
    }
    return STATUS_OK;
}

/* P and dS of row t, query head h, key u. */
struct prob {
    double p, ds;
};
static struct prob prob_at(const struct attn_bwd_args *a, int64_t t, int64_t h, int64_t u)
{
    dtype acc = dtype_acc(a->dt);
    int64_t at_q = t * a->q_stride + h * a->head_dim, at_o = (t * a->heads + h) * a->head_dim_v,
            h_kv = h / (a->heads / a->heads_kv);
    double score = a->scale * dot(a->q, at_q, a->k, u * a->k_stride + h_kv * a->head_dim, a->head_dim, a->dt);
    double p = exp(score - get(a->lse, h * a->rows + t, acc));
    double dp = dot(a->do_, at_o, a->v, u * a->v_stride + h_kv * a->head_dim_v, a->head_dim_v, a->dt);
    return (struct prob){p, p * (dp - get(a->scratch, h * a->rows + t, acc))};
}

static void keep(const struct attn_bwd_args *a, void *to, int64_t at, double x)
{
    put(to, at, a->dt, x + (a->more ? get(to, at, a->dt) : 0));
}

static void delta_and_dq(const struct attn_bwd_args *a, const struct attn_doc *doc,
                         const struct attn_queries *part, int64_t h)
{
    int64_t kv = h / (a->heads / a->heads_kv) * a->head_dim;
    for (int64_t row = 0; row < part->rows; row++) {
        const int64_t t = part->row + row, at_o = (t * a->heads + h) * a->head_dim_v;
        const struct span keys = keys_of(doc, part, row, a->window);
        put(a->scratch, h * a->rows + t, dtype_acc(a->dt),
            dot(a->do_, at_o, a->o, at_o, a->head_dim_v, a->dt));
        double dq[ORACLE_HD_MAX] = {0};
        for (int64_t u = keys.begin; u < keys.end; u++) {
            struct prob x = prob_at(a, t, h, u);
            for (int64_t i = 0; i < a->head_dim; i++)
                dq[i] += x.ds * get(a->k, u * a->k_stride + kv + i, a->dt);
        }
        for (int64_t i = 0; i < a->head_dim; i++)
            keep(a, a->dq, t * a->dq_stride + h * a->head_dim + i, a->scale * dq[i]);
    }
}

struct key_grads {
    double dk[ORACLE_HD_MAX], dv[ORACLE_HD_MAX];
};
/* Adds what the queries of a part that see key `key + j` give it, of head h. */
static void add_queries(const struct attn_bwd_args *a, const struct attn_doc *doc,
                        const struct attn_queries *part, int64_t j, int64_t h, struct key_grads *g)
{
    const int64_t first = int64_max(0, j - part->shift),
                  end = a->window ? int64_min(part->rows, j - part->shift + a->window) : part->rows;
    for (int64_t t = part->row + first; t < part->row + end; t++) {
        struct prob x = prob_at(a, t, h, doc->key + j);
        for (int64_t i = 0; i < a->head_dim; i++)
            g->dk[i] += x.ds * get(a->q, t * a->q_stride + h * a->head_dim + i, a->dt);
        for (int64_t i = 0; i < a->head_dim_v; i++)
            g->dv[i] += x.p * get(a->do_, (t * a->heads + h) * a->head_dim_v + i, a->dt);
    }
}

static void dk_and_dv(const struct attn_bwd_args *a, const struct attn_doc *doc, int64_t h_kv)
{
    int64_t group = a->heads / a->heads_kv;
    for (int64_t j = 0; j < doc->keys; j++) {
        struct key_grads g = {{0}, {0}};
        const int64_t u = doc->key + j;
        for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++)
            for (int part = 0; part < 2; part++) add_queries(a, doc, &doc->part[part], j, h, &g);
        for (int64_t i = 0; i < a->head_dim; i++)
            keep(a, a->dk, u * a->dk_stride + h_kv * a->head_dim + i, a->scale * g.dk[i]);
        for (int64_t i = 0; i < a->head_dim_v; i++)
            keep(a, a->dv, u * a->dv_stride + h_kv * a->head_dim_v + i, g.dv[i]);
    }
}

static status attn_bwd(const struct attn_bwd_args *a, dev_stream stream)
{
    (void)stream;
    check_dt(a->dt);
    check_heads(a->heads, a->heads_kv, a->head_dim, a->head_dim_v, a->window);
    check_docs(a->cu_seqlens, a->cp_docs, a->docs, a->rows);
    CHECK(int64_min(a->q_stride, a->dq_stride) >= a->heads * a->head_dim, "q_stride %lld dq_stride %lld",
          (long long)a->q_stride, (long long)a->dq_stride);
    CHECK(a->k_stride >= a->heads_kv * a->head_dim && a->v_stride >= a->heads_kv * a->head_dim_v,
          "k_stride %lld v_stride %lld", (long long)a->k_stride, (long long)a->v_stride);
    CHECK(a->dk_stride >= a->heads_kv * a->head_dim && a->dv_stride >= a->heads_kv * a->head_dim_v,
          "dk_stride %lld dv_stride %lld", (long long)a->dk_stride, (long long)a->dv_stride);
    CHECK(a->scratch || a->rows == 0, "no scratch");
    PARALLEL_CHUNKS(c, a->docs * a->heads)
    {
        const struct attn_doc doc = doc_of(a->cu_seqlens, a->cp_docs, c / a->heads);
        for (int part = 0; part < 2; part++) delta_and_dq(a, &doc, &doc.part[part], c % a->heads);
    }
    PARALLEL_CHUNKS(c, a->docs * a->heads_kv)
    {
        const struct attn_doc doc = doc_of(a->cu_seqlens, a->cp_docs, c / a->heads_kv);
        dk_and_dv(a, &doc, c % a->heads_kv);
    }
    return STATUS_OK;
}

static status attn_decode(const struct attn_decode_args *a, dev_stream stream)
{
    (void)stream;
    check_dt(a->dt);
    check_heads(a->heads, a->heads_kv, a->head_dim, a->head_dim_v, a->window);
    CHECK(a->k_stride >= a->heads_kv * a->head_dim && a->v_stride >= a->heads_kv * a->head_dim_v,
          "k_stride %lld v_stride %lld", (long long)a->k_stride, (long long)a->v_stride);
    int64_t group = a->heads / a->heads_kv;
    PARALLEL_CHUNKS(c, a->batch * a->heads)
    {
        int64_t b = c / a->heads, h = c % a->heads, length = a->lengths[b];
        CHECK(length > 0 && length <= a->capacity, "sequence %lld has %lld rows, its cache %lld",
              (long long)b, (long long)length, (long long)a->capacity);
        int64_t at_k = b * a->capacity * a->k_stride + h / group * a->head_dim,
                at_v = b * a->capacity * a->v_stride + h / group * a->head_dim_v;
        struct span keys = {a->window ? int64_max(0, length - a->window) : 0, length};
        double o[ORACLE_HD_MAX];
        attend(a->q, b * (a->q_stride ? a->q_stride : a->heads * a->head_dim) + h * a->head_dim, a->k_cache,
               a->v_cache, at_k, at_v, a->k_stride, a->v_stride, keys, a->head_dim, a->head_dim_v, a->scale,
               a->dt, o);
        for (int64_t i = 0; i < a->head_dim_v; i++) put(a->o, c * a->head_dim_v + i, a->dt, o[i]);
    }
    return STATUS_OK;
}

void oracle_attn(struct ops *o)
{
    o->attn_fwd = attn_fwd;
    o->attn_bwd = attn_bwd;
    o->attn_decode = attn_decode;
}
