#include "hf_fixture.h"
#include "model/hf.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

const char *const hf_names[HF_FAMILIES] = {"gpt2",
                                           "llama",
                                           "llama_tied_bias",
                                           "llama_linear",
                                           "llama_llama3",
                                           "llama_yarn",
                                           "mistral",
                                           "qwen2",
                                           "qwen3",
                                           "qwen3_next_dense",
                                           "qwen3_moe",
                                           "qwen3_moe_window",
                                           "qwen3_next",
                                           "ingot_hybrid",
                                           "deepseek_v3_dense",
                                           "deepseek_v3_yarn",
                                           "deepseek_v3"};

static void ok(status st)
{
    if (st != STATUS_OK) fail_msg("%s (%s)", status_message(), status_where());
}

const char *hf_source_dir(void)
{
    const char *moved = getenv("INGOT_TEST_SOURCE");
    return moved ? moved : TEST_SOURCE_DIR;
}

void hf_fixture_open(struct hf_fixture *f, const char *name)
{
    char path[600];
    *f = (struct hf_fixture){.name = name, .cu = {0, HF_T}};
    snprintf(f->dir, sizeof f->dir, "%s/tests/fixtures/hf/%s", hf_source_dir(), name);
    snprintf(path, sizeof path, "%s/expect.safetensors", f->dir);
    ok(hf_config_read(&f->spec, f->dir));
    ok(safetensors_open(&f->expect, path));
    for (int t = 0; t < HF_T; t++) f->positions[t] = t;
    f->batch = (struct batch){.rows = HF_T,
                              .docs = 1,
                              .len_max = HF_T,
                              .positions = f->positions,
                              .cu_seqlens = f->cu,
                              .targets = f->targets};
}

void hf_fixture_close(struct hf_fixture *f)
{
    safetensors_close(f->expect);
}

void hf_fixture_row(struct hf_fixture *f, int row)
{
    const struct safetensor *tokens = safetensors_find(f->expect, "tokens");
    assert_non_null(tokens);
    assert_int_equal(tokens->shape[1], HF_T + 1);
    f->batch.tokens = (const int32_t *)tokens->data + row * (HF_T + 1);
    for (int t = 0; t < HF_T; t++) f->targets[t] = f->batch.tokens[t + 1];
}

const float *hf_expected(const struct hf_fixture *f, const char *name, int64_t count)
{
    const struct safetensor *t = safetensors_find(f->expect, name);
    if (t == NULL) fail_msg("%s: the fixture has no %s", f->name, name);
    assert_int_equal(t->bytes, count * 4);
    return t->data;
}

struct hf_error hf_logits_error(const struct hf_fixture *f, const char *name, const void *logits, dtype dt)
{
    int64_t count = f->batch.rows * f->spec.vocab_size;
    const float *want = hf_expected(f, name, count);
    double largest = 0, worst = 0, diff = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        double w = (double)want[i], e = dtype_load(logits, i, dt) - w;
        largest = fmax(largest, fabs(w));
        worst = isnan(e) ? INFINITY : fmax(worst, fabs(e));
        diff += e * e;
        norm += w * w;
    }
    return (struct hf_error){.l2 = sqrt(diff / norm), .max = worst / largest};
}

/* Relative L2 of one tensor, of what goes beyond `floor`. */
static double tensor_error(const struct hf_fixture *f, const struct decoder *d, const struct hf_tensor *t,
                           const void *grad, dtype dt, double floor)
{
    char name[160];
    const struct param *p = &d->params.rows[t->param];
    int64_t in = p->rank == 2 ? p->shape[1] : 1;
    snprintf(name, sizeof name, "grad/%s", t->name);
    const float *want = hf_expected(f, name, t->rows * in);
    double diff = 0, norm = 0;
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t c = 0; c < in; c++) {
            double w = (double)want[t->transposed ? c * t->rows + r : r * in + c];
            double g = dtype_load(grad, p->offset + hf_row(t, r) * in + c, dt);
            diff += (g - w) * (g - w);
            norm += w * w;
        }
    return sqrt(diff) <= floor ? 0 : (sqrt(diff) - floor) / sqrt(norm);
}

struct hf_error hf_gradient_error(const struct hf_fixture *f, const struct decoder *d, const void *grad,
                                  dtype dt, double k_bias_floor, char worst[160])
{
    struct hf_tensor *list;
    int count;
    struct hf_error e = {0};
    ok(hf_map(d, &list, &count));
    for (int i = 0; i < count; i++) {
        /* the bias of k shifts all scores of a query alike: its true gradient is near 0, what torch prints is mostly rounding */
        if (d->params.rows[list[i].param].role == ROLE_BALANCE)
            continue; /* moved by loads, no parameter there */
        const double floor = strstr(list[i].name, "k_proj.bias") ? k_bias_floor : 0,
                     l2 = tensor_error(f, d, &list[i], grad, dt, floor);
        if (l2 <= e.l2) continue; /* NaN is worse than all */
        e.l2 = isnan(l2) ? INFINITY : l2;
        snprintf(worst, 160, "%s", list[i].name);
    }
    free(list);
    return e;
}
