#include "ops/ops.h"
#include "ops/cpu/oracle/oracle.h"
#include <stdio.h>

static size_t cpu_attn_scratch(const struct attn_shape *a, enum attn_pass pass)
{
    CHECK(a->rows >= 0 && a->heads >= 0, "rows %lld heads %lld", (long long)a->rows, (long long)a->heads);
    return pass == ATTN_FWD ? 0 : (size_t)a->rows * (size_t)a->heads * dtype_bytes(dtype_acc(a->dt));
}

static size_t cpu_workspace(int64_t tokens)
{
    (void)tokens;
    return 0;
}

void ops_oracle(struct ops *o)
{
    *o = (struct ops){.name = "oracle",
                      .attn_scratch = cpu_attn_scratch,
                      .workspace = cpu_workspace,
                      .logits_dt = dtype_acc,
                      .logits_max = (int64_t)64 << 20};
    oracle_gemm(o);
    oracle_embed(o);
    oracle_tokens(o);
    oracle_halt(o);
    oracle_generate(o);
    oracle_norm(o);
    oracle_rope(o);
    oracle_attn(o);
    oracle_mla(o);
    oracle_act(o);
    oracle_gdn(o);
    oracle_moe(o);
    oracle_ssm(o);
    oracle_loss(o);
    oracle_normal(o);
    oracle_optim(o);
    oracle_fp8(o);
    oracle_blocks(o);
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
