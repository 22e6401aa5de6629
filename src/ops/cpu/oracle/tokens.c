/* Ops on token ids, and Engram's gate. The CPU set uses the oracle's loops too. */
#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"

static status shift_tokens(const struct shift_tokens_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->k >= 0 && a->out != a->in, "%lld tokens ahead", (long long)a->k);
    PARALLEL_CHUNKS(d, a->docs)
    {
        const int64_t end = a->cu_seqlens[d + 1];
        for (int64_t t = a->cu_seqlens[d]; t < end; t++)
            a->out[t] = t + a->k < end ? a->in[t + a->k] : a->none;
    }
    return STATUS_OK;
}

/* x_k of row t of a document that begins at `begin`; false: it and everything before it are outside the
 * batch. */
static bool looked_up(const struct ngram_args *a, int64_t begin, int64_t t, int64_t k, int64_t *x)
{
    int32_t token = TOKEN_NONE;
    if (t - k >= begin)
        token = a->tokens[t - k];
    else if (a->before)
        token = a->before[(begin + 1) * (a->hash->order - 1) + (t - begin - k)]; /* document = row, or 0 */
    if (token == TOKEN_NONE) return false;
    *x = a->map ? a->map[token] : token;
    return true;
}

static void ngram_row(const struct ngram_args *a, int64_t begin, int64_t t)
{
    const struct ngram_hash *s = a->hash;
    int32_t *out = a->out + t * (s->order - 1) * s->heads;
    const int64_t pad = a->map ? a->map[s->pad] : s->pad;
    int64_t hash = 0, x = pad;
    bool there = true;
    for (int64_t k = 0; k < s->order; k++) {
        there = there && looked_up(a, begin, t, k, &x);
        hash ^= (there ? x : pad) * s->multipliers[k];
        if (k == 0) continue;
        for (int64_t i = (k - 1) * s->heads; i < k * s->heads; i++)
            out[i] = (int32_t)(hash % s->primes[i]) + s->offsets[i];
    }
}

static status ngram(const struct ngram_args *a, dev_stream s)
{
    (void)s;
    const struct ngram_hash *h = a->hash;
    CHECK(h->order >= 2 && h->order <= NGRAM_ORDER_MAX && (h->order - 1) * h->heads <= NGRAM_ROWS_MAX,
          "%lld heads of order %lld", (long long)h->heads, (long long)h->order);
    CHECK(!a->before || a->docs == 1 || a->docs == a->rows,
          "tokens before the first of %lld in %lld documents", (long long)a->rows, (long long)a->docs);
    PARALLEL_CHUNKS(d, a->docs)
    {
        const int64_t begin = a->cu_seqlens[d];
        for (int64_t t = begin; t < a->cu_seqlens[d + 1]; t++) ngram_row(a, begin, t);
    }
    return STATUS_OK;
}

static const double DELTA_MIN = 1e-6;

static double gate_of(double delta)
{
    const double root = sqrt(fmax(fabs(delta), DELTA_MIN)), q = delta > 0 ? root : delta < 0 ? -root : 0;
    return 1 / (1 + exp(-q));
}

static status ngram_gate_fwd(const struct ngram_gate_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(t, a->rows)
    {
        const int64_t at = t * a->d;
        double delta = 0;
        for (int64_t j = 0; j < a->d; j++) delta += get(a->a, at + j, a->dt) * get(a->b, at + j, a->dt);
        put(a->delta, t, dtype_acc(a->dt), delta / sqrt((double)a->d));
        const double alpha = gate_of(get(a->delta, t, dtype_acc(a->dt)));
        for (int64_t j = 0; j < a->d; j++) {
            put(a->u, at + j, a->dt, alpha * get(a->v, at + j, a->dt));
            put(a->sum, at + j, a->dt, get(a->h, at + j, a->dt) + get(a->u, at + j, a->dt));
        }
    }
    return STATUS_OK;
}

static status ngram_gate_bwd(const struct ngram_gate_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(t, a->rows)
    {
        const int64_t at = t * a->d;
        const double delta = get(a->delta, t, dtype_acc(a->dt)), alpha = gate_of(delta);
        double dalpha = 0;
        for (int64_t j = 0; j < a->d; j++) dalpha += get(a->du, at + j, a->dt) * get(a->v, at + j, a->dt);
        const double dq = dalpha * alpha * (1 - alpha),
                     slope = fabs(delta) > DELTA_MIN ? dq / (2 * sqrt(fabs(delta))) / sqrt((double)a->d) : 0;
        for (int64_t j = 0; j < a->d; j++) {
            const double na = get(a->a, at + j, a->dt), nb = get(a->b, at + j, a->dt);
            put(a->dv, at + j, a->dt, alpha * get(a->du, at + j, a->dt));
            put(a->da, at + j, a->dt, slope * nb);
            put(a->db, at + j, a->dt, slope * na);
        }
    }
    return STATUS_OK;
}

void oracle_tokens(struct ops *o)
{
    o->shift_tokens = shift_tokens;
    o->ngram = ngram;
    o->ngram_gate_fwd = ngram_gate_fwd;
    o->ngram_gate_bwd = ngram_gate_bwd;
}
