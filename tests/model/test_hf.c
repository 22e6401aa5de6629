/* Goal: ingot computes what Hugging Face transformers computes, for every supported family. Method: tiny random models made by
 * tools/make_hf_fixtures.py; logits within 1e-5 of the largest logit, every gradient within 1e-4 relative (L2), ten AdamW losses
 * within 1e-4, on the f64 oracle and on the fast f32 path; import -> export gives the same bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "base/parallel.h"
#include "hf_fixture.h"
#include "model/hf.h"
#include "model/init.h"
#include "model/safetensors.h"
#include "optim/optim.h"
#include "plan/plan.h"

enum { T = HF_T };

struct fixture {
    struct hf_fixture hf;
    struct decoder d;
    struct rank_state rank;
    struct activations a;
    struct memory memory;
    struct ops ops;
    struct step_scalars scalars;
    struct exec run;
};

static void ok(status st)
{
    if (st != STATUS_OK) fail_msg("%s (%s)", status_message(), status_where());
}

static void fixture_open_vocab(struct fixture *f, const char *name, dtype dt, int64_t tokens,
                               const struct hf_vocab *vocab)
{
    memset(f, 0, sizeof *f);
    hf_fixture_open(&f->hf, name);
    if (vocab) f->hf.spec.vocab_size = vocab->end;
    if (dt == DTYPE_F64)
        ops_oracle(&f->ops);
    else
        ok(ops_cpu(&f->ops, NULL));
    ok(decoder_init(&f->d, &f->hf.spec, NULL));
    ok(plan_reserve(&f->memory, &f->d, &f->rank, &f->a,
                    &(struct plan_layout_args){.use = PLAN_TRAIN,
                                               .ops = &f->ops,
                                               .dt = dt,
                                               .optim = OPTIM_ADAMW,
                                               .tokens = tokens,
                                               .positions = tokens}));
    ok(hf_weights_read_extended(&f->d, f->hf.dir, vocab));
    f->scalars = (struct step_scalars){.grad_scale = 1.0 / T};
    f->run = (struct exec){.ops = &f->ops, .params = &f->d.params, .scalars = &f->scalars};
}

static void fixture_open_for(struct fixture *f, const char *name, dtype dt, int64_t tokens)
{
    fixture_open_vocab(f, name, dt, tokens, NULL);
}

static void fixture_open(struct fixture *f, const char *name, dtype dt)
{
    fixture_open_for(f, name, dt, T);
}

static void fixture_close(struct fixture *f)
{
    activations_fini(&f->a);
    decoder_fini(&f->d);
    memory_free(&f->memory);
    hf_fixture_close(&f->hf);
}

static void check_logits(struct fixture *f, dtype dt, const char *want)
{
    int64_t v = f->hf.spec.vocab_size, rows = f->hf.batch.rows;
    struct arena arena;
    ok(arena_reserve(&arena, "logits", (size_t)(rows * v) * 8 + 64));
    struct tensor logits = tensor_take(&arena, "logits", dtype_acc(dt), 2, rows, v);
    ok(decoder_fwd(&f->d, &f->a, &f->hf.batch, &f->run));
    ok(head_logits(&f->d.head, f->a.y, logits, &f->run));
    const struct hf_error e = hf_logits_error(&f->hf, want, logits.data, logits.dt);
    if (!(e.max <= 1e-5)) fail_msg("%s: logits differ by %g of the largest", f->hf.name, e.max);
    arena_free(&arena);
}

static void check_gradients(struct fixture *f, dtype dt)
{
    char worst[160];
    ok(decoder_fwd_bwd(&f->d, &f->a, &f->hf.batch, 0, &f->run));
    const struct hf_error e = hf_gradient_error(&f->hf, &f->d, f->d.params.grad, dtype_acc(dt), 1e-6, worst);
    if (!(e.l2 <= 1e-4)) fail_msg("%s: the gradient of %s differs by %g", f->hf.name, worst, e.l2);
    memset(f->d.params.grad, 0, (size_t)f->d.params.total * dtype_bytes(dtype_acc(dt)));
}

static void logits_and_gradients_match_in_every_family(void **state)
{
    (void)state;
    const dtype types[] = {DTYPE_F64, DTYPE_F32};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < HF_FAMILIES; i++) {
            struct fixture *f = malloc(sizeof *f);
            fixture_open(f, hf_names[i], types[k]);
            hf_fixture_row(&f->hf, 0);
            check_logits(f, types[k], "logits");
            check_gradients(f, types[k]);
            fixture_close(f);
            free(f);
        }
}

/* Goal: a longer vocabulary. Method: of 48 rows the last three stand for no token; these and five more are the mean of
 * the 45 before them, the others and all logits of known tokens are as they were. */
static void new_tokens_begin_as_the_mean_of_the_others(void **state)
{
    (void)state;
    const struct hf_vocab vocab = {.stored = 48, .known = 45, .end = 53};
    const char *const names[] = {"llama", "llama_tied_bias"};
    for (size_t i = 0; i < 2; i++) {
        struct fixture *was = malloc(sizeof *was), *is = malloc(sizeof *is);
        fixture_open(was, names[i], DTYPE_F64);
        assert_int_equal(was->hf.spec.vocab_size, 48);
        fixture_open_vocab(is, names[i], DTYPE_F64, T, &vocab);
        int checked = 0;
        for (int p = 0; p < is->d.params.count; p++) {
            const struct param *row = &is->d.params.rows[p];
            if (row->role != ROLE_EMBED && row->role != ROLE_HEAD) continue;
            const double *a = params_master(&was->d.params, p), *b = params_master(&is->d.params, p);
            const int64_t width = row->shape[1];
            for (int64_t c = 0; c < width; c++) {
                double mean = 0;
                for (int64_t r = 0; r < vocab.known; r++) {
                    assert_true(a[r * width + c] == b[r * width + c]);
                    mean += a[r * width + c];
                }
                for (int64_t r = vocab.known; r < vocab.end; r++)
                    assert_true(fabs(b[r * width + c] - mean / 45) <= 1e-15);
            }
            checked++;
        }
        assert_int_equal(checked, i == 0 ? 2 : 1);
        fixture_close(was);
        fixture_close(is);
        free(was);
        free(is);
    }
}

/* The loss of torch's logits over the targets that count, in float64. */
static double loss_of_logits(const struct fixture *f, int *valid)
{
    const int64_t v = f->hf.spec.vocab_size;
    const float *logits = hf_expected(&f->hf, "logits", T * v);
    double sum = 0;
    *valid = 0;
    for (int t = 0; t < T; t++) {
        double total = 0, most = (double)logits[t * v];
        if (f->hf.targets[t] == TARGET_IGNORE) continue;
        for (int64_t i = 0; i < v; i++) most = fmax(most, (double)logits[t * v + i]);
        for (int64_t i = 0; i < v; i++) total += exp((double)logits[t * v + i] - most);
        sum += log(total) + most - (double)logits[t * v + f->hf.targets[t]];
        ++*valid;
    }
    return sum / *valid;
}

/* Goal: a target that a mask leaves out has neither loss nor gradient. Method: of one row with torch's numbers, two of
 * three targets, then the others: each loss is that of torch's logits over its targets, and the two gradients add up to
 * torch's for all. */
static void masked_targets_leave_what_torch_has_for_the_others(void **state)
{
    (void)state;
    const char *const names[] = {"llama", "gpt2", "qwen3_moe", "qwen3_next"};
    for (size_t i = 0; i < 8; i++) {
        const dtype dt = i % 2 ? DTYPE_F32 : DTYPE_F64;
        struct fixture *f = malloc(sizeof *f);
        char worst[160];
        fixture_open(f, names[i / 2], dt);
        for (int part = 0; part < 2; part++) {
            int valid;
            hf_fixture_row(&f->hf, 0);
            for (int t = 0; t < T; t++)
                if ((t % 3 == 1) == (part == 0)) f->hf.targets[t] = TARGET_IGNORE;
            const double want = loss_of_logits(f, &valid);
            assert_int_equal(valid, part == 0 ? 16 : 8);
            f->scalars.loss_sum = 0;
            f->run.accum = part > 0 ? ACCUM_ADD : ACCUM_STORE;
            ok(decoder_fwd_bwd(&f->d, &f->a, &f->hf.batch, 0, &f->run));
            if (!(fabs(f->scalars.loss_sum / valid - want) <= 1e-5))
                fail_msg("%s: loss %.7f over %d targets, torch has %.7f", f->hf.name,
                         f->scalars.loss_sum / valid, valid, want);
        }
        const struct hf_error e =
            hf_gradient_error(&f->hf, &f->d, f->d.params.grad, dtype_acc(dt), 1e-6, worst);
        if (!(e.l2 <= 1e-4)) fail_msg("%s: the gradient of %s differs by %g", f->hf.name, worst, e.l2);
        fixture_close(f);
        free(f);
    }
}

/* Goal: the gradient of a masked target is zero, not small. Method: the first target alone counts; tokens behind its
 * input reach the loss by masked targets only, so their embeddings have the gradient 0. */
static void tokens_before_masked_targets_alone_have_no_gradient(void **state)
{
    (void)state;
    struct fixture *f = malloc(sizeof *f);
    fixture_open(f, "llama", DTYPE_F32);
    hf_fixture_row(&f->hf, 0);
    for (int t = 1; t < T; t++) f->hf.targets[t] = TARGET_IGNORE;
    ok(decoder_fwd_bwd(&f->d, &f->a, &f->hf.batch, 0, &f->run));
    const struct param *table = &f->d.params.rows[f->d.embed.table];
    const float *grad = (const float *)f->d.params.grad + table->offset;
    const int64_t width = table->shape[1];
    for (int64_t id = 0; id < f->hf.spec.vocab_size; id++) {
        double largest = 0;
        for (int64_t k = 0; k < width; k++) largest = fmax(largest, fabs((double)grad[id * width + k]));
        assert_true((largest > 0) == (id == f->hf.batch.tokens[0]));
    }
    fixture_close(f);
    free(f);
}

/* Goal: states carried over several chunks. Method: the 150 tokens of the models that have them, in one document. */
static void long_documents_match_where_a_layer_has_a_state(void **state)
{
    (void)state;
    int32_t positions[HF_LONG], cu[] = {0, HF_LONG};
    int checked = 0;
    for (int t = 0; t < HF_LONG; t++) positions[t] = t;
    for (size_t i = 0; i < HF_FAMILIES; i++) {
        struct fixture *f = malloc(sizeof *f);
        fixture_open_for(f, hf_names[i], DTYPE_F32, HF_LONG);
        const struct safetensor *tokens = safetensors_find(f->hf.expect, "long_tokens");
        if (tokens) {
            f->hf.batch = (struct batch){.rows = HF_LONG,
                                         .docs = 1,
                                         .len_max = HF_LONG,
                                         .tokens = tokens->data,
                                         .positions = positions,
                                         .cu_seqlens = cu};
            check_logits(f, DTYPE_F32, "long_logits");
            checked++;
        }
        fixture_close(f);
        free(f);
    }
    assert_true(checked > 0);
}

static void ten_adamw_steps_follow_torch_in_every_family(void **state)
{
    (void)state;
    for (size_t i = 0; i < HF_FAMILIES; i++) {
        struct fixture *f = malloc(sizeof *f);
        struct run_spec spec;
        fixture_open(f, hf_names[i], DTYPE_F32);
        run_spec_default(&spec);
        spec.optim_lr = 1e-3, spec.optim_beta1 = 0.9, spec.optim_beta2 = 0.95, spec.optim_eps = 1e-8,
        spec.optim_weight_decay = 0.1, spec.train_clip = 1;
        ok(optim_chunks(&f->d.params, &spec, NULL, NULL));
        const float *want = hf_expected(&f->hf, "losses", HF_STEPS);
        for (int step = 0; step < HF_STEPS; step++) {
            f->scalars.loss_sum = 0;
            hf_fixture_row(&f->hf, step + 1);
            ok(decoder_fwd_bwd(&f->d, &f->a, &f->hf.batch, 0, &f->run));
            double sum = f->scalars.loss_sum;
            f->scalars.lr = spec.optim_lr;
            optim_scalars(&spec, step, &f->scalars);
            ok(optim_step(&f->run, &spec, &(struct grad_norm){0}, NULL, 0));
            if (!(fabs(sum / T - (double)want[step]) <= 1e-4))
                fail_msg("%s: step %d: loss %.6f, torch has %.6f", f->hf.name, step, sum / T,
                         (double)want[step]);
        }
        fixture_close(f);
        free(f);
    }
}

/* Every tensor of two directories by name, shape and bytes. */
static void expect_same_tensors(const char *dir, const char *other)
{
    struct safetensors *before, *after;
    ok(safetensors_open(&before, dir));
    ok(safetensors_open(&after, other));
    assert_int_equal(safetensors_count(before), safetensors_count(after));
    for (int k = 0; k < safetensors_count(before); k++) {
        const struct safetensor *a = safetensors_item(before, k), *b = safetensors_item(after, k);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->rank, b->rank);
        assert_memory_equal(a->shape, b->shape, sizeof a->shape[0] * (size_t)a->rank);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, (size_t)a->bytes);
    }
    safetensors_close(before);
    safetensors_close(after);
}

static void an_export_of_an_import_has_the_same_weights_and_config(void **state)
{
    (void)state;
    char out[] = "/tmp/ingot-hf-XXXXXX";
    assert_non_null(mkdtemp(out));
    for (size_t i = 0; i < HF_FAMILIES; i++) {
        struct fixture *f = malloc(sizeof *f);
        fixture_open(f, hf_names[i], DTYPE_F32);
        struct model_spec again;
        ok(hf_config_write(&f->hf.spec, out, DTYPE_F32, -1, -1));
        ok(hf_weights_write(&f->d, out, DTYPE_F32,
                            i % 2 ? 20000 : 1 << 30)); /* every other one in several files */
        ok(hf_config_read(&again, out));
        assert_memory_equal(&again, &f->hf.spec, sizeof again);
        expect_same_tensors(f->hf.dir, out);
        fixture_close(f);
        free(f);
    }
    ok(io_remove_tree(out));
}

/* Export, import, export again: the expected family, the same model, the same bytes. */
static void check_there_and_back(const struct model_spec *m, const char *family)
{
    char dir[] = "/tmp/ingot-hf-XXXXXX", once[64], twice[64];
    const char *found;
    struct fixture *f = calloc(1, sizeof *f);
    const struct plan_layout_args layout = {.use = PLAN_TRAIN,
                                            .ops = &f->ops,
                                            .dt = DTYPE_F32,
                                            .optim = OPTIM_ADAMW,
                                            .tokens = T,
                                            .positions = T};
    struct model_spec again, canonical = *m;
    assert_non_null(mkdtemp(dir));
    snprintf(once, sizeof once, "%s/1", dir);
    snprintf(twice, sizeof twice, "%s/2", dir);
    ok(io_make_dirs(once));
    ok(io_make_dirs(twice));
    ok(model_spec_check(m));
    ok(hf_family(m, &found));
    assert_string_equal(found, family);
    ok(ops_cpu(&f->ops, NULL));
    for (int pass = 0; pass < 2; pass++) {
        const char *to = pass ? twice : once;
        if (pass) ok(hf_config_read(&again, once));
        ok(decoder_init(&f->d, pass ? &again : m, NULL));
        ok(plan_reserve(&f->memory, &f->d, &f->rank, &f->a, &layout));
        f->run = (struct exec){.ops = &f->ops, .params = &f->d.params, .scalars = &f->scalars};
        if (pass)
            ok(hf_weights_read(&f->d, once));
        else
            ok(init_weights(&f->d, &f->run, 5));
        ok(hf_config_write(&f->d.spec, to, DTYPE_F32, -1, -1));
        ok(hf_weights_write(&f->d, to, DTYPE_F32, 1 << 30));
        activations_fini(&f->a);
        decoder_fini(&f->d);
        memory_free(&f->memory);
    }
    model_spec_canonical(&canonical);
    assert_memory_equal(&again, &canonical, sizeof again);
    expect_same_tensors(once, twice);
    ok(io_remove_tree(dir));
    free(f);
}

static struct model_spec plain_spec(void)
{
    struct model_spec plain;
    model_spec_default(&plain);
    plain.vocab_size = 48, plain.layer_count = 7, plain.hidden_size = 32, plain.ffn_size = 40;
    plain.head_count = 4, plain.head_count_kv = 2, plain.head_dim = 8, plain.context_length = 64;
    plain.gdn_key_heads = 2, plain.gdn_value_heads = 6, plain.gdn_key_dim = 4, plain.gdn_value_dim = 12;
    return plain;
}

/* Goal: what no family of transformers holds goes out as model_type ingot, and comes back. */
static void every_hybrid_goes_out_and_comes_back(void **state)
{
    (void)state;
    const struct model_spec plain = plain_spec();
    struct model_spec m = plain;
    check_there_and_back(&m, "llama"); /* what is set for gdn does nothing */
    m.window = 9;
    snprintf(m.window_layers, sizeof m.window_layers, "0-2,4-6");
    check_there_and_back(&m, "ingot"); /* qwen2 and qwen3 have biases or norms of q and k */
    m.qk_norm = true;
    check_there_and_back(&m, "qwen3");
    snprintf(m.window_layers, sizeof m.window_layers, "all");
    snprintf(m.layers, sizeof m.layers, "3*swa,1*gqa");
    check_there_and_back(&m, "qwen3");
    snprintf(m.layers, sizeof m.layers, "gdn;swa,2*gdn,1*gqa");
    check_there_and_back(&m, "ingot");
    m.activation = ACT_GELU, m.position = POS_LEARNED, m.mlp_bias = true, m.attention_gate = true,
    m.qkv_bias = true, m.tied_embeddings = false;
    check_there_and_back(&m, "ingot");
    m = plain;
    snprintf(m.layers, sizeof m.layers, "3*gdn,1*gqa");
    m.norm_zero_centered = m.attention_gate = m.qk_norm = m.qkv_bias = m.out_bias = true;
    check_there_and_back(&m, "qwen3_next");
    m.rope_fraction = 0.5, m.tied_embeddings = false, m.qkv_bias = m.out_bias = false;
    check_there_and_back(&m, "qwen3_next");
    m.norm_zero_centered = false;
    check_there_and_back(&m, "ingot");
    m.norm_zero_centered = true, m.rope_scaling = SCALING_YARN, m.rope_factor = 4, m.rope_original = 16;
    check_there_and_back(&m, "qwen3_next");
    m = plain;
    m.mla_heads = 3, m.mla_kv_rank = 8, m.mla_nope_dim = 6, m.mla_rope_dim = 4, m.mla_value_dim = 10;
    snprintf(m.layers, sizeof m.layers, "3*gdn,1*mla");
    check_there_and_back(&m, "ingot");
    m.window = 9;
    snprintf(m.layers, sizeof m.layers, "3*swa,1*mla");
    check_there_and_back(&m, "ingot");
    m.window = 0;
    snprintf(m.layers, sizeof m.layers, "mla");
    check_there_and_back(&m, "deepseek_v3");
    m.mla_q_rank = 14, m.rope_scaling = SCALING_YARN, m.rope_factor = 4, m.rope_original = 16,
    m.rope_mscale_all_dim = 1;
    check_there_and_back(&m, "deepseek_v3");
    m.moe_experts = 8, m.moe_top_k = 2, m.moe_size = 12, m.moe_shared_size = 24,
    m.moe_router = ROUTER_SIGMOID;
    m.moe_scale = 1.5, m.moe_groups = 4, m.moe_groups_kept = 2, m.moe_balance_rate = 0.001,
    m.moe_aux_kind = AUX_SEQUENCE;
    snprintf(m.layers, sizeof m.layers, "mla;mla/moe");
    check_there_and_back(&m, "deepseek_v3");
    m.moe_groups = m.moe_groups_kept = 0;
    check_there_and_back(&m, "deepseek_v3");
    m.moe_shared_size = 20;
    check_there_and_back(&m, "ingot"); /* not a whole number of shared experts */
    m.moe_shared_size = 24;
    m.norm_zero_centered = true;
    check_there_and_back(&m, "ingot");
    m = plain;
    m.norm = NORM_LAYERNORM, m.qkv_bias = true;
    check_there_and_back(&m, "ingot");
    char text[128];
    hf_nearest(&m, text);
    assert_string_equal(text, "qwen2 has another model.norm");
}

/* transformers refuses a width of null, also where no layer reads it. */
static void a_model_without_heads_has_a_width_of_heads(void **state)
{
    (void)state;
    struct model_spec m = plain_spec();
    char *text;
    snprintf(m.layers, sizeof m.layers, "gdn");
    m.head_count = 5, m.head_count_kv = m.head_dim = 0;
    m.norm_zero_centered = true;
    model_spec_resolve(&m);
    assert_int_equal(m.head_dim, 0);
    check_there_and_back(&m, "qwen3_next");
    ok(hf_config_format(&text, &m, DTYPE_F32, -1, -1));
    json_t *j = json_loads(text, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(j, "head_dim")), 256);
    assert_int_equal(json_integer_value(json_object_get(j, "num_key_value_heads")), 5);
    assert_true(json_is_false(json_object_get(j, "use_cache")));
    json_decref(j);
    free(text);
}

static void mixtures_of_experts_go_out_and_come_back(void **state)
{
    (void)state;
    const struct model_spec plain = plain_spec();
    struct model_spec m = plain;
    m.moe_experts = 6, m.moe_top_k = 2, m.moe_size = 12, m.moe_aux = 0, m.qk_norm = true;
    snprintf(m.layers, sizeof m.layers, "gqa,3*gqa/moe");
    check_there_and_back(&m, "qwen3_moe");
    m.window = 9, m.moe_aux = 0.02;
    check_there_and_back(&m, "qwen3_moe");
    m.moe_shared_size = 20;
    check_there_and_back(&m, "ingot"); /* no gate on the shared expert */
    m.moe_router = ROUTER_SIGMOID, m.moe_groups = 3, m.moe_groups_kept = 2, m.moe_scale = 2.5;
    snprintf(m.layers, sizeof m.layers, "gqa;gdn/moe,swa/moe");
    check_there_and_back(&m, "ingot");
    m.moe_router = ROUTER_SOFTMAX, m.moe_balance_rate = 0.001;
    check_there_and_back(&m, "ingot");
    m = plain;
    snprintf(m.layers, sizeof m.layers, "3*gdn/moe,1*gqa/moe");
    m.moe_experts = 6, m.moe_top_k = 2, m.moe_size = 12, m.moe_aux = 0, m.moe_shared_size = 20,
    m.moe_shared_gate = m.qk_norm = m.norm_zero_centered = m.attention_gate = true;
    check_there_and_back(&m, "qwen3_next");
    const char *family;
    ok(preset_find("qwen3-next-tiny", &m));
    m.vocab_size = 48;
    ok(hf_family(&m, &family));
    assert_string_equal(family, "qwen3_next");
}

static void expect_refused(const char *json, const char *word)
{
    struct model_spec m;
    assert_int_equal(hf_config_parse(&m, "config.json", json, strlen(json)), STATUS_CKPT);
    if (strstr(status_message(), word) == NULL) fail_msg("'%s' does not name %s", status_message(), word);
}

static void what_a_config_asks_and_ingot_cannot_do_is_refused_by_name(void **state)
{
    (void)state;
    expect_refused("{\"model_type\": \"mamba\"}", "mamba");
    expect_refused("{\"model_type\": \"llama\", \"vocab_size\": 8}", "hidden_size");
    expect_refused("[1]", "object");
    expect_refused("{", "config.json:1");
#define LLAMA                                                                                                \
    "{\"model_type\": \"llama\", \"vocab_size\": 8, \"hidden_size\": 8, \"num_hidden_layers\": 1, "          \
    "\"num_attention_heads\": 2, "                                                                           \
    "\"intermediate_size\": 8, \"max_position_embeddings\": 8"
    expect_refused(LLAMA ", \"hidden_act\": \"gelu\"}", "hidden_act");
    expect_refused(LLAMA ", \"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}}",
                   "quantization_config has method 'gptq'; ingot reads models that are not quantized");
    expect_refused(LLAMA ", \"quantization_config\": {}}", "method 'unknown'");
    expect_refused(LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}}", "rope_type");
    expect_refused(LLAMA ", \"vocab_size\": 8}", "duplicate");
    expect_refused(LLAMA ", \"num_key_value_heads\": 3}", "head_count");
    expect_refused(LLAMA ", \"partial_rotary_factor\": 0.5}", "partial_rotary_factor");
#define NEXT                                                                                                 \
    "{\"model_type\": \"qwen3_next\", \"vocab_size\": 8, \"hidden_size\": 8, \"num_hidden_layers\": 2, "     \
    "\"num_attention_heads\": 2, \"intermediate_size\": 8, \"max_position_embeddings\": 8, "                 \
    "\"mlp_only_layers\": [0, 1]"
    expect_refused(
        NEXT ", \"layer_types\": [\"linear_attention\", \"chunked_attention\"]}",
        "layer_types is 'chunked_attention' for layer 1; ingot has full_attention, linear_attention");
    expect_refused(NEXT ", \"layer_types\": [\"linear_attention\"]}", "one entry per layer");
    expect_refused(NEXT ", \"full_attention_interval\": 0}", "full_attention_interval is 0");
    expect_refused(NEXT ", \"decoder_sparse_step\": 0}", "decoder_sparse_step is 0");
    expect_refused("{\"model_type\": \"qwen3_moe\", \"vocab_size\": 8, \"hidden_size\": 8, "
                   "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"intermediate_size\": 8, "
                   "\"max_position_embeddings\": 8, \"num_experts_per_tok\": 4, \"num_experts\": 2}",
                   "moe_top_k");
    expect_refused(NEXT ", \"hidden_act\": \"gelu\"}", "hidden_act is \"gelu\"; ingot has \"silu\" alone");
#define V3                                                                                                   \
    "{\"model_type\": \"deepseek_v3\", \"vocab_size\": 8, \"hidden_size\": 8, \"num_hidden_layers\": 2, "    \
    "\"num_attention_heads\": 2, \"intermediate_size\": 8, \"max_position_embeddings\": 8"
    expect_refused(V3 ", \"first_k_dense_replace\": 1, \"n_routed_experts\": 4}", "moe_top_k 8 is more");
    expect_refused(V3 ", \"first_k_dense_replace\": 1, \"scoring_func\": \"softmax\"}",
                   "scoring_func is \"softmax\"");
    expect_refused(V3 ", \"first_k_dense_replace\": 0, \"n_group\": 3}",
                   "model.moe_groups_kept 4 is more than model.moe_groups 3");
    expect_refused(V3 ", \"num_key_value_heads\": 1}", "num_key_value_heads is 1; ingot has 2 alone");
    expect_refused(V3 ", \"rope_interleave\": false}", "rope_interleave is false; ingot has true alone");
    expect_refused(V3 ", \"attention_bias\": true}", "attention_bias is true; ingot has false alone");
    expect_refused(V3 ", \"qk_rope_head_dim\": 7}", "mla_rope_dim 7 is odd");
    expect_refused(LLAMA ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5.0}}}",
                   "layer types");
    expect_refused(LLAMA ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2.0, "
                         "\"original_max_position_embeddings\": 1e300}}",
                   "original_max_position_embeddings");
    expect_refused("{\"model_type\": \"llama\", \"vocab_size\": 8, \"hidden_size\": 8, "
                   "\"num_hidden_layers\": 1000000000, \"num_attention_heads\": 2, \"intermediate_size\": 8, "
                   "\"max_position_embeddings\": 8}",
                   "layer_count");
}

/* What save_pretrained always writes, and a config by hand may lack. */
static void what_a_config_leaves_out_is_what_transformers_takes(void **state)
{
    (void)state;
    static const char keys[] = "\"vocab_size\": 8, \"hidden_size\": 64, \"num_hidden_layers\": 2, "
                               "\"num_attention_heads\": 32, \"intermediate_size\": 8, "
                               "\"max_position_embeddings\": 8192";
    static const struct {
        const char *type, *more;
        int64_t kv, head_dim, window;
    } rows[] = {
        {"llama", "", 32, 2, 0},
        {"mistral", "", 8, 2, 4096},
        {"mistral", ", \"sliding_window\": null", 8, 2, 0},
        {"mistral", ", \"sliding_window\": 9000", 8, 2, 8192},
        {"qwen2", "", 32, 2, 0},
        {"qwen2", ", \"use_sliding_window\": true", 32, 2, 0}, /* from layer 28 on: in none of two */
        {"qwen2", ", \"use_sliding_window\": true, \"max_window_layers\": 0", 32, 2, 4096},
        {"qwen3", "", 32, 128, 0},
        {"qwen3", ", \"num_key_value_heads\": null", 32, 128, 0},
        {"qwen3_moe", "", 4, 2, 0},
        {"qwen3_moe", ", \"use_sliding_window\": true, \"mlp_only_layers\": [0, 1]", 4, 2, 4096}, /* dense */
        {"qwen3_next", ", \"full_attention_interval\": 2", 2, 256, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[512];
        struct model_spec m;
        snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s%s}", rows[i].type, keys, rows[i].more);
        ok(hf_config_parse(&m, "config.json", text, strlen(text)));
        if (m.head_count_kv != rows[i].kv || m.head_dim != rows[i].head_dim || m.window != rows[i].window)
            fail_msg("%s%s: heads_kv %lld, head_dim %lld, window %lld", rows[i].type, rows[i].more,
                     (long long)m.head_count_kv, (long long)m.head_dim, (long long)m.window);
    }
}

int main(void)
{
    parallel_threads_set(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_gradients_match_in_every_family),
        cmocka_unit_test(new_tokens_begin_as_the_mean_of_the_others),
        cmocka_unit_test(masked_targets_leave_what_torch_has_for_the_others),
        cmocka_unit_test(tokens_before_masked_targets_alone_have_no_gradient),
        cmocka_unit_test(long_documents_match_where_a_layer_has_a_state),
        cmocka_unit_test(ten_adamw_steps_follow_torch_in_every_family),
        cmocka_unit_test(an_export_of_an_import_has_the_same_weights_and_config),
        cmocka_unit_test(every_hybrid_goes_out_and_comes_back),
        cmocka_unit_test(a_model_without_heads_has_a_width_of_heads),
        cmocka_unit_test(mixtures_of_experts_go_out_and_come_back),
        cmocka_unit_test(what_a_config_asks_and_ingot_cannot_do_is_refused_by_name),
        cmocka_unit_test(what_a_config_leaves_out_is_what_transformers_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
