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
    struct activations a;
    struct memory memory;
    struct ops ops;
    struct step_scalars scalars;
    struct run run;
};

static void ok(status st)
{
    if (st != STATUS_OK) fail_msg("%s (%s)", status_message(), status_where());
}

static void fixture_open(struct fixture *f, const char *name, dtype dt)
{
    memset(f, 0, sizeof *f);
    hf_fixture_open(&f->hf, name);
    if (dt == DTYPE_F64)
        ops_oracle(&f->ops);
    else
        ok(ops_cpu(&f->ops, NULL));
    ok(decoder_init(&f->d, &f->hf.spec));
    ok(plan_reserve(&f->memory, &f->d, &f->a,
                    &(struct plan_lay_args){
                        .use = PLAN_TRAIN, .dt = dt, .optim = OPTIM_ADAMW, .tokens = T, .positions = T}));
    ok(hf_weights_read(&f->d, f->hf.dir));
    f->scalars = (struct step_scalars){.grad_scale = 1.0 / T};
    f->run = (struct run){.ops = &f->ops, .params = &f->d.params, .scalars = &f->scalars};
}

static void fixture_close(struct fixture *f)
{
    activations_fini(&f->a);
    decoder_fini(&f->d);
    memory_free(&f->memory);
    hf_fixture_close(&f->hf);
}

static void check_logits(struct fixture *f, dtype dt)
{
    int64_t v = f->hf.spec.vocab_size;
    struct arena arena;
    ok(arena_reserve(&arena, "logits", (size_t)(T * v) * 8 + 64));
    struct tensor logits = tensor_take(&arena, "logits", dtype_acc(dt), 2, (int64_t)T, v);
    ok(decoder_fwd(&f->d, &f->a, &f->hf.batch, &f->run));
    ok(head_logits(&f->d.head, f->a.y, logits, &f->run));
    const struct hf_error e = hf_logits_error(&f->hf, logits.data, logits.dt);
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
            check_logits(f, types[k]);
            check_gradients(f, types[k]);
            fixture_close(f);
            free(f);
        }
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
        ok(optim_chunks(&f->d.params, &spec, NULL));
        const float *want = hf_expected(&f->hf, "losses", HF_STEPS);
        for (int step = 0; step < HF_STEPS; step++) {
            f->scalars.loss_sum = 0;
            hf_fixture_row(&f->hf, step + 1);
            ok(decoder_fwd_bwd(&f->d, &f->a, &f->hf.batch, 0, &f->run));
            double sum = f->scalars.loss_sum;
            f->scalars.lr = spec.optim_lr;
            optim_scalars(&spec, step, &f->scalars);
            ok(optim_step(&f->run, &spec));
            if (!(fabs(sum / T - (double)want[step]) <= 1e-4))
                fail_msg("%s: step %d: loss %.6f, torch has %.6f", f->hf.name, step, sum / T,
                         (double)want[step]);
        }
        fixture_close(f);
        free(f);
    }
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
        struct safetensors *before, *after;
        ok(hf_config_write(&f->hf.spec, out, DTYPE_F32, -1, -1));
        ok(hf_weights_write(&f->d, out, DTYPE_F32,
                            i % 2 ? 20000 : 1 << 30)); /* every other one in several files */
        ok(hf_config_read(&again, out));
        assert_memory_equal(&again, &f->hf.spec, sizeof again);
        ok(safetensors_open(&before, f->hf.dir));
        ok(safetensors_open(&after, out));
        assert_int_equal(safetensors_count(before), safetensors_count(after));
        for (int k = 0; k < safetensors_count(before); k++) {
            const struct safetensor *a = safetensors_item(before, k), *b = safetensors_item(after, k);
            assert_string_equal(a->name, b->name);
            assert_int_equal(a->bytes, b->bytes);
            assert_memory_equal(a->data, b->data, (size_t)a->bytes);
        }
        safetensors_close(before);
        safetensors_close(after);
        fixture_close(f);
        free(f);
    }
    ok(io_remove_tree(out));
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
    expect_refused(LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}}", "rope_type");
    expect_refused(LLAMA ", \"vocab_size\": 8}", "duplicate");
    expect_refused(LLAMA ", \"num_key_value_heads\": 3}", "head_count");
    expect_refused(LLAMA ", \"partial_rotary_factor\": 0.5}", "partial_rotary_factor");
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
        int64_t kv, hd, window;
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
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[512];
        struct model_spec m;
        snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s%s}", rows[i].type, keys, rows[i].more);
        ok(hf_config_parse(&m, "config.json", text, strlen(text)));
        if (m.head_count_kv != rows[i].kv || m.head_dim != rows[i].hd || m.window != rows[i].window)
            fail_msg("%s%s: heads_kv %lld, head_dim %lld, window %lld", rows[i].type, rows[i].more,
                     (long long)m.head_count_kv, (long long)m.head_dim, (long long)m.window);
    }
}

int main(void)
{
    parallel_threads_set(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_gradients_match_in_every_family),
        cmocka_unit_test(ten_adamw_steps_follow_torch_in_every_family),
        cmocka_unit_test(an_export_of_an_import_has_the_same_weights_and_config),
        cmocka_unit_test(what_a_config_asks_and_ingot_cannot_do_is_refused_by_name),
        cmocka_unit_test(what_a_config_leaves_out_is_what_transformers_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
