/* Tensors of a mixture of experts: HF has one per expert and matrix, ingot one for all experts. Qwen has one shared
 * expert, named in the singular, with a gate. DeepSeek has several without a gate, stored as one expert of their
 * joint width. */
#include "model/hf_int.h"

#include <stdio.h>

static bool rows_gate(const struct hf_layer *l, struct hf_tensor *t)
{
    hf_rows(t, 2 * l->expert * l->spec->moe_size, l->spec->moe_size);
    return true;
}
static bool rows_up(const struct hf_layer *l, struct hf_tensor *t)
{
    hf_rows(t, (2 * l->expert + 1) * l->spec->moe_size, l->spec->moe_size);
    return true;
}
static bool rows_down(const struct hf_layer *l, struct hf_tensor *t)
{
    hf_rows(t, l->expert * l->spec->hidden_size, l->spec->hidden_size);
    return true;
}

static void add_experts(struct hf_list *list, const struct hf_layer *layer, const char *prefix)
{
    static const struct {
        const char *ours, *hf;
        hf_rows_fn *rows;
    } matrices[] = {
        {"moe.experts.up.weight", "gate_proj", rows_gate},
        {"moe.experts.up.weight", "up_proj", rows_up},
        {"moe.experts.down.weight", "down_proj", rows_down},
    };
    struct hf_layer at = *layer;
    for (at.expert = 0; at.expert < at.spec->moe_experts; at.expert++)
        for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
            char name[64];
            snprintf(name, sizeof name, "mlp.experts.%lld.%s.weight", (long long)at.expert, matrices[i].hf);
            hf_add(list, &at, prefix, &(struct hf_entry){matrices[i].ours, name, matrices[i].rows});
        }
}

/* The shared expert: gate rows, then up rows. It has one of two names. */
static bool half(const struct hf_layer *l, struct hf_tensor *t, bool gated, int64_t begin)
{
    if (l->spec->moe_shared_gate != gated) return false;
    hf_rows(t, begin, l->spec->moe_shared_size);
    return true;
}
static bool qwen_gate(const struct hf_layer *l, struct hf_tensor *t)
{
    return half(l, t, true, 0);
}
static bool qwen_up(const struct hf_layer *l, struct hf_tensor *t)
{
    return half(l, t, true, l->spec->moe_shared_size);
}
static bool qwen_down(const struct hf_layer *l, struct hf_tensor *t)
{
    (void)t;
    return l->spec->moe_shared_gate;
}
static bool deepseek_gate(const struct hf_layer *l, struct hf_tensor *t)
{
    return half(l, t, false, 0);
}
static bool deepseek_up(const struct hf_layer *l, struct hf_tensor *t)
{
    return half(l, t, false, l->spec->moe_shared_size);
}
static bool deepseek_down(const struct hf_layer *l, struct hf_tensor *t)
{
    (void)t;
    return !l->spec->moe_shared_gate;
}

/* The bias of a router that no rule balances stays 0 and is not written. */
static bool with_bias(const struct hf_layer *l, struct hf_tensor *t)
{
    (void)t;
    return l->spec->moe_router == ROUTER_SIGMOID || l->spec->moe_balance_rate > 0;
}

static const struct hf_entry entries[] = {
    {"moe.router.weight", "mlp.gate.weight", NULL},
    {"moe.router.bias", "mlp.gate.e_score_correction_bias", with_bias},
    {"moe.shared.up.weight", "mlp.shared_expert.gate_proj.weight", qwen_gate},
    {"moe.shared.up.weight", "mlp.shared_expert.up_proj.weight", qwen_up},
    {"moe.shared.down.weight", "mlp.shared_expert.down_proj.weight", qwen_down},
    {"moe.shared_gate.weight", "mlp.shared_expert_gate.weight", NULL},
    {"moe.shared.up.weight", "mlp.shared_experts.gate_proj.weight", deepseek_gate},
    {"moe.shared.up.weight", "mlp.shared_experts.up_proj.weight", deepseek_up},
    {"moe.shared.down.weight", "mlp.shared_experts.down_proj.weight", deepseek_down},
};
const struct hf_entries hf_moe = {entries, (int)(sizeof entries / sizeof entries[0]), add_experts};
