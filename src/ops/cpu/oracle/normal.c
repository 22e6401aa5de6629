#include "base/parallel.h"
#include "base/rng.h"
#include "ops/cpu/oracle/oracle.h"

static status normal(const struct normal_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->dt == DTYPE_BF16 || a->master_residual == NULL, "halves of %s", dtype_name(a->dt));
    const int64_t grain = 65536;
    PARALLEL_CHUNKS(c, chunk_count(a->count, grain))
    {
        struct span part = chunk_span(c, a->count, grain);
        for (int64_t k = part.begin; k < part.end; k++) {
            const int64_t at = a->width ? a->first + k / a->width * a->stride + k % a->width : k;
            const double x = a->std * rng_normal(a->seed, RNG_INIT, a->key, (uint64_t)at);
            if (a->dt != DTYPE_BF16) {
                put(a->x, k, a->dt, x);
                continue;
            }
            const float narrow = (float)x;
            uint32_t bits;
            memcpy(&bits, &narrow, sizeof bits);
            const struct half_pair h = rounding_halves(bits);
            ((bf16 *)a->x)[k] = h.upper;
            if (a->master_residual) a->master_residual[k] = h.low;
        }
    }
    return STATUS_OK;
}

void oracle_normal(struct ops *o)
{
    o->normal = normal;
}
