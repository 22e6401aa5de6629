#include "plan/assume.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

struct row {
    const char *name;
    size_t at;
    double value, least, most;
};
static const struct row ROWS[] = {
#define ASSUME(name, value, least, most, text) {#name, offsetof(struct assume, name), value, least, most},
#include "plan/assume.def"
#undef ASSUME
};
enum { ROW_COUNT = sizeof ROWS / sizeof ROWS[0] };

static double *field(struct assume *a, const struct row *r)
{
    return (double *)((char *)a + r->at);
}

struct assume assume_default(void)
{
    struct assume a;
    for (int i = 0; i < ROW_COUNT; i++) *field(&a, &ROWS[i]) = ROWS[i].value;
    return a;
}

static const char *names(char buf[ASSUME_TEXT])
{
    int used = 0;
    for (int i = 0; i < ROW_COUNT; i++)
        used += snprintf(buf + used, (size_t)(ASSUME_TEXT - used), "%s%s", i ? ", " : "", ROWS[i].name);
    return buf;
}

/* One NAME=VALUE. */
static status read_one(const char *word, size_t bytes, struct assume *a)
{
    char copy[64], all[ASSUME_TEXT];
    snprintf(copy, sizeof copy, "%.*s", (int)bytes, word);
    char *value = strchr(copy, '=');
    if (value) *value++ = 0;
    for (int i = 0; i < ROW_COUNT; i++) {
        const struct row *r = &ROWS[i];
        double number;
        if (strcmp(copy, r->name) != 0) continue;
        if (value && text_to_real(value, &number) && number >= r->least && number <= r->most) {
            *field(a, r) = number;
            return STATUS_OK;
        }
        return FAIL(STATUS_CONFIG, "plan: --assume %s: write %s=NUMBER, from %g to %g", copy, r->name,
                    r->least, r->most);
    }
    return FAIL(STATUS_CONFIG, "plan: --assume %s: the names are %s", copy, names(all));
}

status assume_read(const char *text, struct assume *a)
{
    for (;; text++) {
        const size_t bytes = strcspn(text, ",");
        TRY(read_one(text, bytes, a));
        text += bytes;
        if (*text == 0) return STATUS_OK;
    }
}

const char *assume_text(char buf[ASSUME_TEXT], const struct assume *a)
{
    struct assume copy = *a;
    int used = 0;
    buf[0] = 0;
    for (int i = 0; i < ROW_COUNT; i++)
        if (*field(&copy, &ROWS[i]) != ROWS[i].value)
            used += snprintf(buf + used, (size_t)(ASSUME_TEXT - used), "%s%s=%g", used ? "," : "",
                             ROWS[i].name, *field(&copy, &ROWS[i]));
    return buf;
}

void assume_machine(const struct assume *a, struct machine *m)
{
    struct machine_curve *const curves[] = {&m->narrow_forward, &m->narrow_backward, &m->wide_forward,
                                            &m->wide_backward,  &m->latent_forward,  &m->latent_backward};
    for (int i = 0; i < MACHINE_WIDTHS; i++) {
        m->share_16[i] *= a->compute, m->share_32[i] *= a->compute;
        m->share_8[i] *= a->compute * a->fp8_rate;
    }
    for (size_t i = 0; i < sizeof curves / sizeof curves[0]; i++)
        curves[i]->share *= a->compute * a->attention;
    m->linear_forward *= a->compute, m->linear_backward *= a->compute;
    m->stream_rate /= a->memory_ops;
    m->net_rate *= a->network;
}

bool assume_memory(const struct assume *a)
{
    return a->recompute_core_attn + a->recompute_layernorm + a->recompute_mla_up_proj + a->recompute_mlp +
                   a->recompute_moe + a->recompute_shared_experts + a->recompute_layers + a->offload_act +
                   a->offload_optimizer + a->logits + a->fp8_param_gather + a->fsdp_fp8 >
               0 ||
           a->grad_memory < 4;
}
