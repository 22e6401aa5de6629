#include "parallel/unit_grad.h"

status unit_grad_clear(const struct params *p, int first, int last, dev_stream s)
{
    const struct param_unit *u = &p->units[p->rows[first].unit];
    int64_t from =
        p->rows[first].offset - u->begin; /* rows that no GEMM stores, up to the next that one does */
    for (int i = first; i <= last; i++) {
        if (i < last && !p->rows[i].gemm_overwrites_grad) continue;
        const int64_t to = i < u->last ? p->rows[i].offset - u->begin : u->count;
        if (to > from) TRY(dev_zero(s, (float *)u->grad + from, (size_t)(to - from) * sizeof(float)));
        if (i < last) from = to + p->rows[i].count;
    }
    return STATUS_OK;
}

status unit_grad_begin(const struct params *p, int first, int last, dev_stream s)
{
    return p->overlaid ? unit_grad_clear(p, first, last, s) : STATUS_OK;
}

status unit_grad_unshard(const struct params *p, int64_t unit, dev_stream s)
{
    TRY(params_unshard(p, unit, UNIT_BACKWARD));
    return unit_grad_begin(p, p->units[unit].first, p->units[unit].last, s);
}
