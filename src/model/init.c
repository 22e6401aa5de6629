#include "model/init.h"
#include "base/parallel.h"
#include "base/rng.h"

#include <math.h>
#include <xxhash.h>

void init_weights(struct decoder *d, uint64_t seed)
{
    struct params *p = &d->params;
    dtype acc = dtype_acc(p->dt);
    for (int i = 0; i < p->count; i++) {
        const struct param *row = &p->rows[i];
        void *master = params_master(p, i), *weight = params_weight(p, i);
        bool normal = row->role != ROLE_NORM && row->role != ROLE_BIAS;
        double std = d->spec.init_std;
        if (row->role == ROLE_RESIDUAL) std /= sqrt(2.0 * (double)d->spec.layer_count);
        uint64_t key = XXH64(row->name, strlen(row->name), 0);
        const int64_t grain = 65536;
        PARALLEL_CHUNKS(c, chunk_count(row->count, grain))
        {
            struct span s = chunk_span(c, row->count, grain);
            for (int64_t k = s.begin; k < s.end; k++) {
                dtype_store(master, k, acc,
                            normal ? std * rng_normal(seed, RNG_INIT, key, (uint64_t)k)
                                   : (double)row->init_value);
                if (p->dt == DTYPE_BF16) dtype_store(weight, k, p->dt, dtype_load(master, k, acc));
            }
        }
    }
}

status init_sync(struct decoder *d, const struct run *r)
{
    const struct params *p = &d->params;
    if (p->dt != DTYPE_BF16) return STATUS_OK;
    return r->ops->cast(
        &(struct cast_args){
            .x = p->master, .y = p->weight, .count = p->total, .from = DTYPE_F32, .to = DTYPE_BF16},
        r->stream);
}
