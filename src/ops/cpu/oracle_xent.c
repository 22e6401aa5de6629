#include "base/parallel.h"
#include "ops/cpu/oracle.h"
#include <math.h>

static double logsumexp(const void *z, int64_t at, int64_t count, dtype dt)
{
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < count; j++) max = fmax(max, get(z, at + j, dt));
    for (int64_t j = 0; j < count; j++) sum += exp(get(z, at + j, dt) - max);
    return max + log(sum);
}

static status xent(const struct xent_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->vocab_used > 0 && a->vocab_used <= a->vocab, "%lld of %lld columns are used",
          (long long)a->vocab_used, (long long)a->vocab);
    dtype acc = dtype_acc(a->dt), ldt = a->ldt;
    CHECK(ldt == acc || ldt == a->dt, "logits of %s", dtype_name(ldt));
    CHECK(a->dlogits != a->logits || a->dt == ldt, "dlogits in place of logits of another type");
    PARALLEL_CHUNKS(t, a->rows)
    {
        int64_t at = t * a->vocab, target = a->targets[t];
        bool ignored = target == TARGET_IGNORE;
        CHECK(ignored || (target >= 0 && target < a->vocab_used),
              "target %lld of row %lld is outside [0, %lld)", (long long)target, (long long)t,
              (long long)a->vocab_used);
        double lse = ignored ? 0 : logsumexp(a->logits, at, a->vocab_used, ldt);
        put(a->loss, t, acc, ignored ? 0 : lse - get(a->logits, at + target, ldt) + a->z_loss * lse * lse);
        for (int64_t j = 0; a->dlogits && j < a->vocab; j++) {
            double dz = 0;
            if (!ignored && j < a->vocab_used) {
                double p = exp(get(a->logits, at + j, ldt) - lse);
                dz = *a->grad_scale * ((1 + 2 * a->z_loss * lse) * p - (j == target ? 1 : 0));
            }
            put(a->dlogits, at + j, a->dt, dz);
        }
    }
    return STATUS_OK;
}

static status hits(const struct hits_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt), ldt = a->ldt;
    CHECK(ldt == acc || ldt == a->dt, "logits of %s", dtype_name(ldt));
    PARALLEL_CHUNKS(t, a->rows)
    {
        const int64_t at = t * a->vocab, target = a->targets[t];
        const bool ignored = target == TARGET_IGNORE;
        CHECK(ignored || (target >= 0 && target < a->vocab_used),
              "target %lld of row %lld is outside [0, %lld)", (long long)target, (long long)t,
              (long long)a->vocab_used);
        int64_t reach = 0;
        for (int64_t j = 0; j < a->vocab_used && !ignored; j++)
            reach += get(a->logits, at + j, ldt) >= get(a->logits, at + target, ldt);
        put(a->hits, t, acc, reach == 1);
    }
    return STATUS_OK;
}

void oracle_xent(struct ops *o)
{
    o->hits = hits;
    o->xent = xent;
}
