#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"

/* A copy: exact in every dtype, so the CPU set uses it too. */
static status kv_cache_append(const struct kv_cache_append_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const size_t element = dtype_bytes(a->dt);
    for (int64_t b = 0; b < a->batch; b++) {
        const int64_t length = a->lengths[b];
        CHECK(length > 0 && length <= a->capacity, "sequence %lld has %lld rows, its cache %lld",
              (long long)b, (long long)length, (long long)a->capacity);
        for (int i = 0; i < 2; i++) {
            const struct cache_part *p = &a->part[i];
            if (p->width == 0) continue;
            memcpy((char *)p->cache + (size_t)((b * a->capacity + length - 1) * p->stride) * element,
                   (const char *)p->x + (size_t)(b * p->x_stride) * element, (size_t)p->width * element);
        }
    }
    return STATUS_OK;
}

static status per_head_gemm(const struct per_head_gemm_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->a_head >= a->k + a->tail && a->c_head >= a->n + a->tail,
          "heads of %lld and %lld, %lld and %lld apart", (long long)(a->k + a->tail),
          (long long)(a->n + a->tail), (long long)a->a_head, (long long)a->c_head);
    PARALLEL_CHUNKS(i, a->rows * a->heads)
    {
        const int64_t h = i % a->heads, from = i / a->heads * a->a_stride + h * a->a_head,
                      to = i / a->heads * a->c_stride + h * a->c_head, w = h * a->k * a->n;
        for (int64_t j = 0; j < a->n; j++) {
            double sum = 0;
            for (int64_t p = 0; p < a->k; p++)
                sum += get(a->a, from + p, a->dt) *
                       get(a->w, w + (a->trans ? j * a->k + p : p * a->n + j), a->dt);
            put(a->c, to + j, a->dt, sum);
        }
        for (int64_t j = 0; j < a->tail; j++)
            put(a->c, to + a->n + j, a->dt, get(a->a, from + a->k + j, a->dt));
    }
    return STATUS_OK;
}

void oracle_generate(struct ops *o)
{
    o->kv_cache_append = kv_cache_append;
    o->per_head_gemm = per_head_gemm;
}
