/* A halting head on the last row of each document. The CPU set uses the oracle's loops too. */
#include "base/parallel.h"
#include "base/rng.h"
#include "ops/cpu/oracle/oracle.h"

static status halt_fwd(const struct halt_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(i, a->docs)
    {
        const int64_t last = a->cu_seqlens[i + 1] - 1;
        const bool empty = last < a->cu_seqlens[i];
        for (int64_t k = 0; k < 2; k++) {
            double sum = empty ? 0 : get(a->b, k, a->dt);
            for (int64_t j = 0; !empty && j < a->d; j++)
                sum += get(a->w, k * a->d + j, a->dt) * get(a->z, last * a->d + j, a->dt);
            put(a->q, 2 * i + k, dtype_acc(a->dt), sum);
        }
    }
    return STATUS_OK;
}

/* FNV-1a over the ids of a document: its position in a batch and its rank do not matter. */
static uint64_t name_of(const struct halt_stop_args *a, int64_t doc)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (int64_t t = a->cu_seqlens[doc]; t < a->cu_seqlens[doc + 1]; t++)
        hash = (hash ^ (uint32_t)a->tokens[t]) * 0x100000001B3u;
    return hash;
}

static int64_t least_segments(const struct halt_stop_args *a, int64_t doc)
{
    if (a->explore <= 0 || a->segments < 2) return 1;
    const struct rng_block r = rng_at(*a->step, RNG_HALT, name_of(a, doc), 0);
    if ((double)r.u[0] * 0x1p-32 >= a->explore) return 1;
    return 2 + (int64_t)(r.u[1] % (uint64_t)(a->segments - 1));
}

static status halt_stop(const struct halt_stop_args *a, dev_stream s)
{
    (void)s;
    const dtype acc = dtype_acc(a->dt);
    PARALLEL_CHUNKS(i, a->docs)
    {
        const int64_t least = least_segments(a, i);
        int64_t m = 1;
        for (; m < a->segments; m++) {
            const int64_t at = 2 * ((m - 1) * a->docs + i);
            if (m >= least && get(a->q, at, acc) > get(a->q, at + 1, acc)) break;
        }
        a->stop[i] = (int32_t)m;
        for (int64_t k = 0; k < a->segments; k++)
            for (int64_t t = a->cu_seqlens[i]; t < a->cu_seqlens[i + 1]; t++)
                a->masked[k * a->rows + t] = k < m ? a->targets[t] : TARGET_IGNORE;
    }
    return STATUS_OK;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double bce(double x, double p)
{
    return fmax(x, 0) + log1p(exp(-fabs(x))) - p * x;
}

/* 1: all targets were hit, 0: not all, -1: there is none. */
static int all_right(const struct halt_bwd_args *a, int64_t doc)
{
    int right = -1;
    for (int64_t t = a->cu_seqlens[doc]; t < a->cu_seqlens[doc + 1]; t++)
        if (a->targets[t] != TARGET_IGNORE)
            right = right != 0 && get(a->hits, t, dtype_acc(a->dt)) > 0 ? 1 : 0;
    return right;
}

/* The gradient of document i's q, and its loss; false: the document does not count. */
static bool of_document(const struct halt_bwd_args *a, int64_t i, double dq[2], double *loss)
{
    const dtype acc = dtype_acc(a->dt);
    const int right = a->stop[i] < a->m ? -1 : all_right(a, i);
    if (right < 0) return false;
    const double halt = get(a->q_next, 2 * i, acc), more = get(a->q_next, 2 * i + 1, acc),
                 goal[2] = {right, sigmoid(a->m < a->segments ? fmax(halt, more) : halt)};
    *loss = 0;
    for (int k = 0; k < 2; k++) {
        const double q = get(a->q, 2 * i + k, acc);
        *loss += bce(q, goal[k]) / 2;
        dq[k] = *a->scale * (sigmoid(q) - goal[k]) / 2;
    }
    return true;
}

static void add(void *x, int64_t at, dtype dt, double value)
{
    put(x, at, dt, get(x, at, dt) + value);
}

/* Document after document: there are few, and their sums have one order. */
static status halt_bwd(const struct halt_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt);
    for (int64_t i = 0; i < a->docs; i++) {
        const int64_t last = a->cu_seqlens[i + 1] - 1;
        double dq[2], loss;
        if (!of_document(a, i, dq, &loss)) continue;
        *a->loss_sum += loss;
        for (int64_t k = 0; k < 2; k++) add(a->db, k, acc, dq[k]);
        for (int64_t j = 0; j < a->d; j++) {
            const double z = get(a->z, last * a->d + j, a->dt);
            add(a->dz, last * a->d + j, a->dt,
                dq[0] * get(a->w, j, a->dt) + dq[1] * get(a->w, a->d + j, a->dt));
            add(a->dw, j, acc, dq[0] * z);
            add(a->dw, a->d + j, acc, dq[1] * z);
        }
    }
    return STATUS_OK;
}

void oracle_halt(struct ops *o)
{
    o->halt_fwd = halt_fwd;
    o->halt_stop = halt_stop;
    o->halt_bwd = halt_bwd;
}
