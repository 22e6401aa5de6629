/* Ops on token ids: whole numbers, so the oracle's loops are also the CPU's. */
#include "base/parallel.h"
#include "ops/cpu/oracle.h"

static status ahead(const struct ahead_args *a, dev_stream s)
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

void oracle_tokens(struct ops *o)
{
    o->ahead = ahead;
}
