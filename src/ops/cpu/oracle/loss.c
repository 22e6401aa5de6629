#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"
#include <math.h>

static status softcap(const struct softcap_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->cap > 0, "a cap of %g", a->cap);
    PARALLEL_CHUNKS(i, a->count)
    {
        put(a->z, i, a->dt, a->cap * tanh(get(a->z, i, a->dt) / a->cap));
    }
    return STATUS_OK;
}

/* Slope of softcap where it gave z. */
static double softcap_slope(double z, double cap)
{
    return cap > 0 ? 1 - z / cap * (z / cap) : 1;
}

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
        const double z_term = a->z_loss * lse * lse, apart = a->z_term ? 0 : z_term;
        if (a->z_term) put(a->z_term, t, acc, z_term);
        put(a->loss, t, acc, ignored ? 0 : lse - get(a->logits, at + target, ldt) + apart);
        for (int64_t j = 0; a->dlogits && j < a->vocab; j++) {
            double dz = 0;
            if (!ignored && j < a->vocab_used) {
                const double z = get(a->logits, at + j, ldt), p = exp(z - lse);
                dz = *a->grad_scale * ((1 + 2 * a->z_loss * lse) * p - (j == target ? 1 : 0)) *
                     softcap_slope(z, a->cap);
            }
            put(a->dlogits, at + j, a->dt, dz);
        }
    }
    return STATUS_OK;
}

static status top1_correct(const struct top1_correct_args *a, dev_stream s)
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

/* This rank's column of a row's target, or -1. CHECK: the target is an id of the full vocabulary. */
static int64_t column_here(int64_t target, int64_t vocab, int slice, int slices)
{
    CHECK(target >= 0 && target < vocab * slices, "target %lld is outside [0, %lld)", (long long)target,
          (long long)(vocab * slices));
    return target / vocab == slice ? target % vocab : -1;
}

static status vocab_xent_partial(const struct vocab_xent_partial_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt), ldt = a->ldt;
    CHECK(ldt == acc || ldt == a->dt, "logits of %s", dtype_name(ldt));
    PARALLEL_CHUNKS(t, a->rows)
    {
        double part[XENT_PARTS] = {0};
        if (a->targets[t] != TARGET_IGNORE) {
            const int64_t at = t * a->vocab,
                          target = column_here(a->targets[t], a->vocab, a->slice, a->slices);
            part[XENT_MAX] = part[XENT_TARGET] = part[XENT_OTHERS] = -INFINITY;
            for (int64_t j = 0; j < a->vocab; j++) {
                const double z = get(a->logits, at + j, ldt);
                part[XENT_MAX] = fmax(part[XENT_MAX], z);
                if (j == target)
                    part[XENT_TARGET] = z;
                else
                    part[XENT_OTHERS] = fmax(part[XENT_OTHERS], z);
            }
            for (int64_t j = 0; j < a->vocab; j++)
                part[XENT_SUM] += exp(get(a->logits, at + j, ldt) - part[XENT_MAX]);
        }
        for (int i = 0; i < XENT_PARTS; i++) put(a->part, t * XENT_PARTS + i, acc, part[i]);
    }
    return STATUS_OK;
}

/* Combines the row's parts of all ranks. */
static void parts_join(const struct vocab_xent_finish_args *a, int64_t t, double whole[XENT_PARTS])
{
    const dtype acc = dtype_acc(a->dt);
    whole[XENT_MAX] = whole[XENT_OTHERS] = -INFINITY;
    whole[XENT_SUM] = 0;
    for (int k = 0; k < a->slices; k++) {
        const int64_t at = (k * a->rows + t) * XENT_PARTS;
        whole[XENT_MAX] = fmax(whole[XENT_MAX], get(a->parts, at + XENT_MAX, acc));
        whole[XENT_OTHERS] = fmax(whole[XENT_OTHERS], get(a->parts, at + XENT_OTHERS, acc));
        if (a->targets[t] / a->vocab == k) whole[XENT_TARGET] = get(a->parts, at + XENT_TARGET, acc);
    }
    for (int k = 0; k < a->slices; k++) {
        const int64_t at = (k * a->rows + t) * XENT_PARTS;
        whole[XENT_SUM] +=
            get(a->parts, at + XENT_SUM, acc) * exp(get(a->parts, at + XENT_MAX, acc) - whole[XENT_MAX]);
    }
}

static status vocab_xent_finish(const struct vocab_xent_finish_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt), ldt = a->ldt;
    CHECK(ldt == acc || ldt == a->dt, "logits of %s", dtype_name(ldt));
    CHECK(a->dlogits != a->logits || a->dt == ldt, "dlogits in place of logits of another type");
    PARALLEL_CHUNKS(t, a->rows)
    {
        const bool ignored = a->targets[t] == TARGET_IGNORE;
        double whole[XENT_PARTS] = {0}, lse = 0;
        int64_t target = -1;
        if (!ignored) {
            target = column_here(a->targets[t], a->vocab, a->slice, a->slices);
            parts_join(a, t, whole);
            lse = whole[XENT_MAX] + log(whole[XENT_SUM]);
        }
        const double z_term = a->z_loss * lse * lse, apart = a->z_term ? 0 : z_term;
        if (a->z_term) put(a->z_term, t, acc, z_term);
        put(a->loss, t, acc, ignored ? 0 : lse - whole[XENT_TARGET] + apart);
        if (a->hits) put(a->hits, t, acc, !ignored && whole[XENT_TARGET] > whole[XENT_OTHERS]);
        for (int64_t j = 0, at = t * a->vocab; a->dlogits && j < a->vocab; j++) {
            double dz = 0;
            if (!ignored) {
                const double z = get(a->logits, at + j, ldt), p = exp(z - lse);
                dz = *a->grad_scale * ((1 + 2 * a->z_loss * lse) * p - (j == target ? 1 : 0)) *
                     softcap_slope(z, a->cap);
            }
            put(a->dlogits, at + j, a->dt, dz);
        }
    }
    return STATUS_OK;
}

void oracle_loss(struct ops *o)
{
    o->vocab_xent_partial = vocab_xent_partial;
    o->vocab_xent_finish = vocab_xent_finish;
    o->top1_correct = top1_correct;
    o->xent = xent;
    o->softcap = softcap;
}
