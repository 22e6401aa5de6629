#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"

struct shape {
    const int32_t *positions;
    int64_t rows, heads, nope, half, pos_count;
    dtype dt;
};

static void check_shape(const struct shape *a)
{
    check_dt(a->dt);
    CHECK(a->heads > 0 && a->nope >= 0 && a->half > 0, "%lld heads of %lld and 2 x %lld", (long long)a->heads,
          (long long)a->nope, (long long)a->half);
    for (int64_t t = 0; t < a->rows; t++)
        CHECK(a->positions[t] >= 0 && a->positions[t] < a->pos_count,
              "position %d of row %lld is outside [0, %lld)", a->positions[t], (long long)t,
              (long long)a->pos_count);
}

struct pair {
    double x, y;
};
static struct pair rotated(struct pair p, const void *cosines, const void *sines, int64_t at, dtype acc,
                           double sign)
{
    double c = get(cosines, at, acc), s = sign * get(sines, at, acc);
    return (struct pair){p.x * c - p.y * s, p.y * c + p.x * s};
}
static struct pair pair_get(const void *p, int64_t at, dtype dt)
{
    return (struct pair){get(p, at, dt), get(p, at + 1, dt)};
}
static void pair_put(void *p, int64_t at, dtype dt, struct pair v)
{
    put(p, at, dt, v.x);
    put(p, at + 1, dt, v.y);
}

static status mla_rope_fwd(const struct mla_rope_fwd_args *a, dev_stream stream)
{
    (void)stream;
    check_shape(&(struct shape){a->positions, a->rows, a->heads, a->nope, a->half, a->pos_count, a->dt});
    const int64_t head_dim = a->nope + 2 * a->half, wide = a->heads * head_dim;
    const dtype dt = a->dt, acc = dtype_acc(dt);
    CHECK(!a->q || a->q_stride >= wide, "q_stride %lld", (long long)a->q_stride);
    PARALLEL_CHUNKS(t, a->rows)
    {
        const int64_t angle = a->positions[t] * a->half;
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t q = t * a->q_stride + h * head_dim + a->nope, k = t * wide + h * head_dim;
            for (int64_t i = 0; a->k && i < a->nope; i++)
                put(a->k, k + i, dt, get(a->k_nope, t * a->k_nope_stride + h * a->nope + i, dt));
            for (int64_t i = 0; i < a->half; i++) {
                if (a->q)
                    pair_put(a->q, q + 2 * i, dt,
                             rotated(pair_get(a->q, q + 2 * i, dt), a->cos, a->sin, angle + i, acc, 1));
                if (!a->k) continue;
                const struct pair p = pair_get(a->k_rope, t * a->k_rope_stride + 2 * i, dt);
                pair_put(a->k, k + a->nope + 2 * i, dt, rotated(p, a->cos, a->sin, angle + i, acc, 1));
            }
        }
    }
    return STATUS_OK;
}

static status mla_rope_bwd(const struct mla_rope_bwd_args *a, dev_stream stream)
{
    (void)stream;
    check_shape(&(struct shape){a->positions, a->rows, a->heads, a->nope, a->half, a->pos_count, a->dt});
    const int64_t head_dim = a->nope + 2 * a->half, wide = a->heads * head_dim;
    const dtype dt = a->dt, acc = dtype_acc(dt);
    CHECK(!a->dq || a->dq_stride >= wide, "dq_stride %lld", (long long)a->dq_stride);
    PARALLEL_CHUNKS(t, a->rows)
    {
        const int64_t angle = a->positions[t] * a->half;
        for (int64_t h = 0; h < a->heads; h++) {
            const int64_t q = t * a->dq_stride + h * head_dim + a->nope, k = t * wide + h * head_dim;
            for (int64_t i = 0; a->dk && i < a->nope; i++)
                put(a->dk_nope, t * a->dk_nope_stride + h * a->nope + i, dt, get(a->dk, k + i, dt));
            for (int64_t i = 0; a->dq && i < a->half; i++)
                pair_put(a->dq, q + 2 * i, dt,
                         rotated(pair_get(a->dq, q + 2 * i, dt), a->cos, a->sin, angle + i, acc, -1));
        }
        for (int64_t i = 0; a->dk && i < a->half; i++) {
            struct pair sum = {0, 0};
            for (int64_t h = 0; h < a->heads; h++) {
                const struct pair p = pair_get(a->dk, t * wide + h * head_dim + a->nope + 2 * i, dt);
                sum = (struct pair){sum.x + p.x, sum.y + p.y};
            }
            pair_put(a->dk_rope, t * a->dk_rope_stride + 2 * i, dt,
                     rotated(sum, a->cos, a->sin, angle + i, acc, -1));
        }
    }
    return STATUS_OK;
}

void oracle_mla(struct ops *o)
{
    o->mla_rope_fwd = mla_rope_fwd;
    o->mla_rope_bwd = mla_rope_bwd;
}
