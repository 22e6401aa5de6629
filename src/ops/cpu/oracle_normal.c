#include "base/parallel.h"
#include "base/rng.h"
#include "ops/cpu/oracle.h"

static status normal(const struct normal_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_F64, "numbers of %s", dtype_name(a->dt));
    const int64_t grain = 65536;
    PARALLEL_CHUNKS(c, chunk_count(a->count, grain))
    {
        struct span part = chunk_span(c, a->count, grain);
        for (int64_t k = part.begin; k < part.end; k++) {
            const int64_t at = a->width ? a->first + k / a->width * a->stride + k % a->width : k;
            put(a->x, k, a->dt, a->std * rng_normal(a->seed, RNG_INIT, a->key, (uint64_t)at));
        }
    }
    return STATUS_OK;
}

void oracle_normal(struct ops *o)
{
    o->normal = normal;
}
