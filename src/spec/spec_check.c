/* Checks of combinations of keys; each error is one line. The ranges of single keys are in the rows of the
 * .def files. */
#include "spec/factors.h"
#include "spec/keys.h"
#include "spec/layer_traits.h"
#include "spec/ramp.h"
#include "spec/sources.h"
#include "spec/spec_int.h"

#include <stdlib.h>
#include <string.h>

typedef long long ll;

static status check_section(const struct spec *s, bool model)
{
    char why[SPEC_TEXT], full[KEY_NAME];
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        const struct key *k = key_row(i);
        if ((strcmp(k->section, "model") == 0) != model || key_in_range(k, s, why)) continue;
        bool absent = k->type == KEY_INT && strncmp(why, "0 is", 4) == 0;
        if (absent)
            return FAIL(STATUS_CONFIG, "%s is not given; set it or start from a preset (model.preset)",
                        key_full_name(full, k));
        return FAIL(STATUS_CONFIG, "%s: %s", key_full_name(full, k), why);
    }
    return STATUS_OK;
}

/* Layers that the keys head_* and rope_fraction describe. */
static bool has_attention(const struct model_spec *m)
{
    return model_mixer_count(m, MIXER_GQA) + model_mixer_count(m, MIXER_SWA) > 0;
}

static status check_norms_and_gate(const struct model_spec *m)
{
    if (m->norm_zero_centered && m->norm != NORM_RMSNORM)
        return FAIL(STATUS_CONFIG, "model.norm_zero_centered is for model.norm: rmsnorm alone");
    if (m->attention_gate && !has_attention(m))
        return FAIL(STATUS_CONFIG, "model.attention_gate: model.layers names neither gqa nor swa");
    return STATUS_OK;
}

static status check_rope_scaling(const struct model_spec *m)
{
    const char *const *words = key_row(KEY_AT_model_rope_scaling)->words;
    if (m->rope_scaling == SCALING_NONE && m->rope_factor != 1)
        return FAIL(STATUS_CONFIG, "model.rope_factor %g does nothing without model.rope_scaling",
                    m->rope_factor);
    bool original = m->rope_scaling == SCALING_LLAMA3 || m->rope_scaling == SCALING_YARN;
    if (original && m->rope_original == 0)
        return FAIL(STATUS_CONFIG,
                    "model.rope_scaling %s needs model.rope_original, the context length before extension",
                    words[m->rope_scaling]);
    if (m->rope_scaling == SCALING_LLAMA3 && m->rope_low_freq >= m->rope_high_freq)
        return FAIL(STATUS_CONFIG, "model.rope_low_freq %g must be below model.rope_high_freq %g",
                    m->rope_low_freq, m->rope_high_freq);
    if (m->rope_scaling == SCALING_YARN && m->rope_beta_slow >= m->rope_beta_fast)
        return FAIL(STATUS_CONFIG, "model.rope_beta_slow %g must be below model.rope_beta_fast %g",
                    m->rope_beta_slow, m->rope_beta_fast);
    return STATUS_OK;
}

static status check_positions(const struct model_spec *m)
{
    if (m->position == POS_LEARNED) {
        if (m->rope_scaling != SCALING_NONE)
            return FAIL(STATUS_CONFIG, "model.rope_scaling needs model.position: rope, not learned");
        return STATUS_OK;
    }
    if (!has_attention(m)) return check_rope_scaling(m);
    int64_t head_dim = m->head_dim ? m->head_dim : m->hidden_size / m->head_count;
    int64_t rotated = (int64_t)((double)head_dim * m->rope_fraction);
    if (head_dim % 2 != 0)
        return FAIL(STATUS_CONFIG, "model.head_dim %lld is odd; rope rotates pairs of elements",
                    (ll)head_dim);
    if (rotated % 2 != 0 || rotated == 0)
        return FAIL(
            STATUS_CONFIG,
            "model.rope_fraction %g of head_dim %lld is %lld elements; rope needs an even number, at least 2",
            m->rope_fraction, (ll)head_dim, (ll)rotated);
    return check_rope_scaling(m);
}

static status check_part(const struct layer_traits *t, const struct model_spec *m, int64_t layers)
{
    if (layers > 0) return t->check(m);
    return t->check_unused ? t->check_unused(m) : STATUS_OK;
}

/* Every kind of mixer and of feed-forward part, in the order of words.def. */
static status check_parts(const struct model_spec *m)
{
#define WORD(prefix, value, word)                                                                            \
    TRY(check_part(mixer_traits(prefix##_##value), m, model_mixer_count(m, prefix##_##value)));
    MIXER_WORDS(WORD)
#undef WORD
#define WORD(prefix, value, word)                                                                            \
    TRY(check_part(ffn_traits(prefix##_##value), m, model_ffn_count(m, prefix##_##value)));
    FFN_WORDS(WORD)
#undef WORD
    return STATUS_OK;
}

status model_spec_check(const struct model_spec *m)
{
    struct spec s = {.model = *m};
    TRY(check_section(&s, true));
    TRY(layers_check(m));
    if (has_attention(m)) TRY(mixer_traits(MIXER_GQA)->check(m)); /* before divisions by head counts */
    TRY(check_positions(m));
    TRY(check_norms_and_gate(m));
    TRY(engram_check(m));
    TRY(hrm_check(m));
    return check_parts(m);
}

static status check_batch(const struct spec *s)
{
    const struct run_spec *r = &s->run;
    int64_t length = r->train_sequence_length ? r->train_sequence_length : s->model.context_length;
    if (length > s->model.context_length)
        return FAIL(STATUS_CONFIG, "train.sequence_length %lld is longer than model.context_length %lld",
                    (ll)length, (ll)s->model.context_length);
    if (r->train_micro_batch == 0 && r->train_batch_tokens == 0)
        return FAIL(
            STATUS_CONFIG,
            "train.micro_batch=auto needs train.batch_tokens: the tokens of a step that micro-batches share");
    int64_t micro = (r->train_micro_batch ? r->train_micro_batch : 1) *
                    length; /* both are bounded by their ranges: at most 1e14 */
    if (micro >= INT32_MAX) /* rows of a micro-batch are int32_t: cu_seqlens */
        return FAIL(
            STATUS_CONFIG,
            "train.micro_batch x sequence_length = %lld x %lld is more than 2^31 tokens at once; lower "
            "train.micro_batch",
            (ll)r->train_micro_batch, (ll)length);
    if (model_ffn_count(&s->model, FFN_MOE) > 0 &&
        (micro + s->model.moe_experts) * s->model.moe_top_k >= INT32_MAX)
        return FAIL(STATUS_CONFIG,
                    "train.micro_batch x sequence_length x model.moe_top_k = %lld x %lld x %lld is more than "
                    "2^31 rows of experts at once; lower "
                    "train.micro_batch",
                    (ll)r->train_micro_batch, (ll)length, (ll)s->model.moe_top_k);
    if (r->train_batch_tokens % micro != 0)
        return FAIL(STATUS_CONFIG,
                    "train.batch_tokens %lld is not a multiple of micro_batch x sequence_length = %lld x "
                    "%lld = %lld; "
                    "%lld is",
                    (ll)r->train_batch_tokens, (ll)r->train_micro_batch, (ll)length, (ll)micro,
                    (ll)((r->train_batch_tokens / micro +
                          (r->train_batch_tokens % micro >= micro / 2 || r->train_batch_tokens < micro)) *
                         micro));
    struct spec resolved = *s;
    spec_resolve(&resolved);
    TRY(ramp_check(&resolved));
    if (r->train_steps > 0 && r->train_tokens > 0)
        return FAIL(STATUS_CONFIG,
                    "train.steps and train.tokens are both given; the length of a run is one of them");
    if (r->train_steps == 0 && r->train_tokens == 0)
        return FAIL(STATUS_CONFIG, "the length of the run is not given; set train.steps or train.tokens");
    return STATUS_OK;
}

static status check_schedule(const struct spec *s)
{
    struct spec resolved = *s;
    spec_resolve(&resolved);
    const struct run_spec *r = &s->run;
    /* with a batch schedule the learning rate counts steps of train.batch_tokens */
    const int64_t steps =
        r->train_batch_schedule[0]
            ? (int64_t)(spec_token_count(&resolved) / (double)resolved.run.train_batch_tokens)
            : spec_step_count(&resolved);
    if (r->optim_warmup_steps > steps)
        return FAIL(STATUS_CONFIG, "optim.warmup_steps %lld is longer than the run of %lld steps",
                    (ll)r->optim_warmup_steps, (ll)steps);
    if (r->optim_schedule == SCHEDULE_WSD &&
        (double)r->optim_warmup_steps > (1 - r->optim_decay_fraction) * (double)steps)
        return FAIL(STATUS_CONFIG,
                    "optim.warmup_steps %lld reaches into the decay, the last %g of %lld steps "
                    "(optim.decay_fraction)",
                    (ll)r->optim_warmup_steps, r->optim_decay_fraction, (ll)steps);
    return STATUS_OK;
}

/* A block of 8-bit moments has one scale. Frozen rows cannot share a block with trained rows, and slices
 * would have other blocks. */
static status check_optim(const struct spec *s)
{
    const struct run_spec *r = &s->run;
    if (r->optim_state == OPTIM_STATE_INT8 && r->parallel_tensor > 1)
        return FAIL(STATUS_CONFIG,
                    "optim.state int8 does not go with parallel.tensor %lld; use optim.state: bf16",
                    (ll)r->parallel_tensor);
    if (s->run.optim_state == OPTIM_STATE_INT8 && s->model.engram_layers[0])
        return FAIL(STATUS_CONFIG,
                    "optim.state int8 does not go with model.engram_layers, whose tables move row by row; "
                    "use optim.state: bf16");
    if (r->optim_master == OPTIM_MASTER_NONE &&
        !precision_keys((enum precision)r->train_precision).no_masters)
        return FAIL(STATUS_CONFIG, "optim.master none needs train.precision: bf16, fp8, mxfp8 or nvfp4; else "
                                   "weights are their own masters");
    if (r->optim_master == OPTIM_MASTER_NONE && r->optim_name == OPTIM_MUON)
        return FAIL(STATUS_CONFIG, "optim.master none goes with adamw and lion; optim.name muon needs fp32");
    return STATUS_OK;
}

/* All reads of a step are sorted together, with 32-bit keys. */
static status check_tables(const struct spec *s)
{
    const bool asked = s->run.optim_table_gradients == TABLE_GRADIENTS_SPARSE;
    if (!asked) return STATUS_OK;
    if (s->model.engram_layers[0] == 0)
        return FAIL(STATUS_CONFIG, "optim.table_gradients sparse does nothing without model.engram_layers");
    if (s->run.memory_offload_optimizer)
        return FAIL(STATUS_CONFIG, "optim.table_gradients sparse does not go with memory.offload_optimizer, "
                                   "which moves tables piece by piece; use dense");
    if (s->model.hrm_cycles > 0)
        return FAIL(STATUS_CONFIG, "optim.table_gradients sparse does not go with model.hrm_cycles, whose "
                                   "layers read their tables several times in a step; use dense");
    if (spec_table_reads(s) >= INT32_MAX)
        return FAIL(STATUS_CONFIG,
                    "optim.table_gradients sparse: a step of %lld tokens reads %lld rows of a layer's "
                    "tables, at most 2^31 can be sorted; use dense",
                    (ll)s->run.train_batch_tokens, (ll)spec_table_reads(s));
    return STATUS_OK;
}

static status check_offload(const struct spec *s)
{
    const struct run_spec *r = &s->run;
    if (!r->memory_offload_optimizer) return STATUS_OK;
    if (r->machine_device == DEVICE_CPU)
        return FAIL(STATUS_CONFIG, "memory.offload_optimizer needs a GPU; with machine.device: cpu all of "
                                   "the state is in host memory already: leave it out");
    return STATUS_OK;
}

struct precision_keys precision_keys(enum precision precision)
{
    struct precision_keys k = {0};
    switch (precision) {
    case PRECISION_FP32:
    case PRECISION_TF32: break;
    case PRECISION_BF16: k.no_masters = true; break;
    case PRECISION_FP8: k.no_masters = k.codes = k.fp8 = true; break;
    case PRECISION_MXFP8: k.no_masters = k.codes = true; break;
    case PRECISION_NVFP4: k.no_masters = k.codes = k.nvfp4 = true; break;
    }
    return k;
}

/* What a key of sections fp8 and nvfp4 needs to do something; NULL: nothing more than the run has. */
static const char *code_key_needs(const struct run_spec *r, int at)
{
    const struct precision_keys keys = precision_keys((enum precision)r->train_precision);
    switch (at) {
    case KEY_AT_fp8_recipe: return keys.fp8 ? NULL : "without train.precision: fp8";
    case KEY_AT_fp8_wgrad:
    case KEY_AT_fp8_exclude: return keys.codes ? NULL : "without train.precision: fp8";
    case KEY_AT_fp8_warmup:
    case KEY_AT_fp8_margin:
    case KEY_AT_fp8_monitor:
        if (!keys.fp8) return "without train.precision: fp8";
        return r->fp8_recipe == FP8_RECIPE_BOUND
                   ? NULL
                   : "without fp8.recipe: bound; the others keep nothing from step to step";
    case KEY_AT_nvfp4_keep_bf16:
    case KEY_AT_nvfp4_hadamard:
    case KEY_AT_nvfp4_stochastic: return keys.nvfp4 ? NULL : "without train.precision: nvfp4";
    default: return NULL;
    }
}

/* Keys that do nothing would be a run that is not what its file says. */
static status check_codes(const struct spec *s)
{
    struct spec plain;
    char full[KEY_NAME], value[KEY_FORMAT];
    run_spec_default(&plain.run);
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        const struct key *k = key_row(i);
        const char *needs = code_key_needs(&s->run, i);
        if (needs == NULL || key_equal(k, s, &plain)) continue;
        return FAIL(STATUS_CONFIG, "%s %s does nothing %s", key_full_name(full, k),
                    key_format(k, s, KEY_YAML, value), needs);
    }
    return STATUS_OK;
}

status spec_check(const struct spec *s)
{
    TRY(model_spec_check(&s->model));
    TRY(check_section(s, false));
    if (strchr(s->run.run_name, '/') || strcmp(s->run.run_name, "..") == 0 ||
        strcmp(s->run.run_name, ".") == 0)
        return FAIL(STATUS_CONFIG, "run.name '%.64s' must be one directory name; run.dir takes a path",
                    s->run.run_name);
    if (strlen(s->run.run_name) > 200) return FAIL(STATUS_CONFIG, "run.name is longer than 200 bytes");
    if (s->run.data_weights != WEIGHT_CURVE_LINEAR && !sources_is_list(s->run.data_train))
        return FAIL(STATUS_CONFIG, "data.weights does nothing without a list of sources in data.train");
    if (s->run.ckpt_on_busy == ON_BUSY_SKIP && !s->run.ckpt_async)
        return FAIL(STATUS_CONFIG,
                    "ckpt.on_busy skip does nothing without ckpt.async: training waits for every save");
    TRY(check_batch(s));
    TRY(check_optim(s));
    TRY(factors_check(&s->run));
    TRY(check_tables(s));
    TRY(check_offload(s));
    TRY(check_codes(s));
    return check_schedule(s);
}
