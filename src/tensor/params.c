#include "tensor/params.h"
#include <stdio.h>
#include <stdlib.h>

int params_add(struct params *p, enum role role, float init_value, int64_t out, int64_t in, const char *fmt,
               ...)
{
    CHECK(p->master == NULL, "parameters are declared before they are laid out");
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? p->capacity * 2 : 64;
        p->rows = realloc(p->rows, (size_t)p->capacity * sizeof *p->rows);
        CHECK(p->rows != NULL, "no memory for %d parameter rows", p->capacity);
    }
    struct param *r = &p->rows[p->count];
    *r = (struct param){.role = role, .rank = in ? 2 : 1, .shape = {out, in}, .init_value = init_value};
    r->count = in ? out * in : out;
    r->offset = p->total;
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(r->name, sizeof r->name, fmt, ap);
    va_end(ap);
    CHECK(len > 0 && (size_t)len < sizeof r->name, "parameter name of %d characters", len);
    CHECK(params_find(p, r->name) < 0, "parameter %s declared twice", r->name);
    p->total += (r->count + 15) / 16 * 16;
    if (role != ROLE_BALANCE) p->unique += r->count;
    return p->count++;
}

int params_find(const struct params *p, const char *name)
{
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->rows[i].name, name) == 0) return i;
    return -1;
}

void params_free(struct params *p)
{
    free(p->rows);
    *p = (struct params){0};
}

void params_lay(struct params *p, const struct params_lay_args *a)
{
    CHECK(a->dt == DTYPE_F64 || a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "weights of %s",
          dtype_name(a->dt));
    CHECK(a->moments == 0 || a->moment_dt == DTYPE_F32 || a->moment_dt == DTYPE_BF16, "moments of %s",
          dtype_name(a->moment_dt));
    const struct params_arenas *to = &a->arenas;
    size_t n = (size_t)p->total, acc = dtype_bytes(dtype_acc(a->dt)), moment = dtype_bytes(a->moment_dt);
    p->dt = a->dt;
    p->moment_dt = a->moment_dt;
    p->master = arena_take(to->param, n * acc, "master weights");
    p->weight =
        a->dt == dtype_acc(a->dt) ? p->master : arena_take(to->param, n * dtype_bytes(a->dt), "bf16 weights");
    if (a->with_grad) p->grad = arena_take(to->grad, n * acc, "gradients");
    if (a->moments >= 1) p->m = arena_take(to->optim, n * moment, "first moment");
    if (a->moments >= 2) p->v = arena_take(to->optim, n * moment, "second moment");
}
