/* Ops on token ids: support_run.c says how cases become calls. */
#include "run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

RUN_CALL(ahead)

void run_ahead(const struct ops *o, const struct op_case *c, struct probe *p)
{
    const int32_t *cu = run_cu_seqlens(c, p);
    const int64_t rows = cu[c->docs];
    RUN(o, ahead, .in = probe_ids(p, "in", rows, 1000),
        .out = probe_out(p, "out", PROBE_OUT, DTYPE_I32, rows, TOL_EXACT), .none = -7, .cu_seqlens = cu,
        .k = c->k, .docs = c->docs, .rows = rows);
}
