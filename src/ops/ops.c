#include "ops/ops.h"
#include "ops/cpu/oracle.h"
#include <stdio.h>

void ops_oracle(struct ops *o)
{
    *o = (struct ops){.name = "oracle"};
    oracle_gemm(o);
    oracle_embed(o);
    oracle_norm(o);
    oracle_rope(o);
    oracle_attn(o);
    oracle_act(o);
    oracle_xent(o);
    oracle_optim(o);
}

status ops_check(const struct ops *o)
{
    char missing[512];
    size_t used = 0;
    int count = 0;
    const struct {
        const char *name;
        bool set;
    } slots[] = {
#define X(op) {#op, o->op != NULL},
        OPS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        if (slots[i].set) continue;
        count++;
        size_t room = sizeof missing - used;
        int n = snprintf(missing + used, room, " %s", slots[i].name);
        if (n > 0 && (size_t)n < room) used += (size_t)n; /* a name that does not fit is still counted */
    }
    if (count == 0) return STATUS_OK;
    return FAIL(STATUS_INTERNAL, "op set '%s' lacks %d ops:%.*s", o->name ? o->name : "?", count, (int)used,
                missing);
}

size_t attn_bwd_scratch(int64_t rows, int64_t heads, dtype dt)
{
    CHECK(rows >= 0 && heads >= 0, "rows %lld heads %lld", (long long)rows, (long long)heads);
    return (size_t)rows * (size_t)heads * dtype_bytes(dtype_acc(dt));
}
