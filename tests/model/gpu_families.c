/* Goal: on a GPU ingot computes what Hugging Face transformers computes, for every supported family, and what the f64 oracle computes
 * for a model of ordinary width. Method: the fixtures of test_hf and a GPT-2 and a Llama of some layers through a trainer, with each
 * attention backend that takes such small heads.
 *
 * F32: logits and every gradient within 1e-4 of the fixture, ten AdamW losses (op by op, captured, replayed).
 * BF16: against the oracle in f64 with the same rounded weights, activations within 1e-2 and gradients within 2e-2 (relative L2). The
 * fixtures' weights are ten times as large as a model's, so that there rounding alone may cost more: the oracle in BF16, which rounds
 * what is stored and nothing else, says how much, and half as much again is allowed (attention rounds inside, too). So is what exact
 * arithmetic of a model with experts is off by from weights a roundoff away, where a router's choice turns on less (neighbour).
 * Ten AdamW losses in BF16: within 2e-2 of the fixture's, or of what losses_bound says.
 * Everything that is off is told before the test fails.
 *
 *     gpu_families_model [cpu]     cpu: the same on the host, to try the test itself */
#include "base/io.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "gpu.h"
#include "hf_fixture.h"
#include "model/hf.h"
#include "model/init.h"
#include "model/master_weights.h"
#include "train/trainer.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int bad;
static char cache[] = "/tmp/ingot-families-XXXXXX"; /* of the GEMMs' algorithms */

static void must(status st, const char *name)
{
    if (st == STATUS_OK) return;
    printf("FAIL %s: %s (%s)\n", name, status_message(), status_where());
    exit(1);
}
static void within(const char *what, const char *name, const char *detail, double error, double bound)
{
    printf("%s %s %s: %.2e of %.1e %s\n", error <= bound ? "ok  " : "FAIL", name, what, error, bound, detail);
    bad += !(error <= bound);
}

/* How a trainer computes. */
struct way {
    enum device device;
    enum precision precision;
    enum attention attention;
};

static struct spec spec_of(const struct model_spec *m, int64_t tokens, const struct way *w)
{
    struct spec s = {.model = *m};
    run_spec_default(&s.run);
    s.run.machine_device = w->device;
    snprintf(s.run.machine_cache_dir, sizeof s.run.machine_cache_dir, "%s", cache);
    s.run.train_precision = w->precision;
    s.run.attention_backend = w->attention;
    s.run.train_sequence_length = s.run.train_batch_tokens = tokens;
    s.run.train_micro_batch = 1;
    s.run.train_steps = HF_STEPS;
    s.run.optim_lr = 1e-3, s.run.optim_beta1 = 0.9, s.run.optim_beta2 = 0.95, s.run.optim_eps = 1e-8;
    s.run.optim_weight_decay = 0.1, s.run.train_clip = 1;
    s.run.optim_schedule = SCHEDULE_CONSTANT;
    return s;
}

/* A model on the host, in any type, with the oracle: what the others are measured by. */
struct reference {
    struct decoder d;
    struct rank_state rank;
    struct activations a;
    struct memory memory;
    struct ops ops;
    struct step_scalars scalars;
    struct exec run;
};

static void reference_open(struct reference *r, const struct model_spec *m, dtype dt, int64_t tokens)
{
    *r = (struct reference){.scalars = {.grad_scale = 1 / (double)tokens}};
    ops_oracle(&r->ops);
    must(decoder_init(&r->d, m, NULL), "oracle");
    must(plan_reserve(
             &r->memory, &r->d, &r->rank, &r->a,
             &(struct plan_layout_args){
                 .use = PLAN_TRAIN, .dt = dt, .optim = OPTIM_ADAMW, .tokens = tokens, .positions = tokens}),
         "oracle");
    r->run = (struct exec){.ops = &r->ops, .params = &r->d.params, .scalars = &r->scalars};
}

static void reference_close(struct reference *r)
{
    activations_fini(&r->a);
    decoder_fini(&r->d);
    memory_free(&r->memory);
}

/* Its weights, as `weights`, flat. */
static void reference_set(struct reference *r, const float *weights)
{
    const struct params *p = &r->d.params;
    if (p->dt != DTYPE_F64) must(master_weights_put(&r->run, weights), "weights");
    for (int64_t i = 0; p->dt == DTYPE_F64 && i < p->total; i++)
        dtype_store(p->weight, i, p->dt, (double)weights[i]);
}

/* Final activations and gradients of one batch, in host memory. */
struct result {
    float *y, *grad;
    int64_t y_count, grad_count;
};

static void result_free(struct result *r)
{
    free(r->y);
    free(r->grad);
}

static float *widened(const void *x, int64_t count, dtype dt)
{
    float *out = malloc((size_t)count * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < count; i++) out[i] = (float)dtype_load(x, i, dt);
    return out;
}

static struct result reference_run(struct reference *r, const struct batch *b)
{
    const struct params *p = &r->d.params;
    struct result out = {.y_count = b->rows * r->d.spec.hidden_size, .grad_count = p->total};
    memset(p->grad, 0, (size_t)p->total * dtype_bytes(dtype_acc(p->dt)));
    must(decoder_fwd_bwd(&r->d, &r->a, b, 0, &r->run), "oracle");
    out.y = widened(r->a.y.data, out.y_count, r->a.y.dt);
    out.grad = widened(p->grad, out.grad_count, dtype_acc(p->dt));
    return out;
}

/* Weights that each moved by up to a roundoff of bf16, so rounding to bf16 hardly distinguishes them; caller
 * frees. In qwen3_moe and qwen3_moe_window two scores of a router are so close that one of 24 tokens switches
 * its expert between neighbouring sets. */
enum { NEIGHBOURS = 16 };
static float *neighbour(const float *weights, int64_t count, uint64_t which)
{
    float *moved = widened(weights, count, DTYPE_F32);
    for (int64_t i = 0; i < count; i++)
        moved[i] *= (float)(1 + 0x1p-8 * (2 * rng_uniform(1, RNG_TEST, which, (uint64_t)i) - 1));
    return moved;
}

/* What F64 and BF16 give for the same weights. */
static void references(const struct model_spec *m, const float *weights, const struct batch *b,
                       struct result *exact, struct result *rounded)
{
    struct reference *r = malloc(sizeof *r);
    assert_non_null(r);
    reference_open(r, m, DTYPE_F64, b->rows);
    reference_set(r, weights);
    *exact = reference_run(r, b);
    reference_close(r);
    reference_open(r, m, DTYPE_BF16, b->rows);
    reference_set(r, weights);
    *rounded = reference_run(r, b);
    reference_close(r);
    free(r);
}

static double l2(const float *want, const float *got, int64_t count)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        const double e = (double)got[i] - (double)want[i];
        diff += e * e;
        norm += (double)want[i] * (double)want[i];
    }
    return isnan(diff) ? INFINITY : sqrt(diff / norm);
}

/* The fixture's weights, flat; caller frees. */
static float *fixture_weights(const struct hf_fixture *f)
{
    struct reference *r = malloc(sizeof *r);
    assert_non_null(r);
    reference_open(r, &f->spec, DTYPE_F32, HF_T);
    must(hf_weights_read(&r->d, f->dir), f->name);
    float *weights = widened(r->d.params.master, r->d.params.total, DTYPE_F32);
    reference_close(r);
    free(r);
    return weights;
}

static void set_weights(struct trainer *t, const float *weights)
{
    must(master_weights_put(&t->exec, weights), "weights");
    must(dev_sync(t->exec.stream), "weights");
}

/* A copy in host memory; caller frees. */
static void *downloaded(struct trainer *t, const void *from, int64_t count, dtype dt)
{
    const size_t bytes = (size_t)count * dtype_bytes(dt);
    void *to = malloc(bytes);
    assert_non_null(to);
    must(dev_download(t->exec.stream, to, from, bytes), "download");
    must(dev_sync(t->exec.stream), "download");
    return to;
}

static struct result trainer_run(struct trainer *t, const struct batch *b, const char *name)
{
    const struct params *p = &t->decoder.params;
    const struct step_scalars scalars = {.grad_scale = 1 / (double)b->rows};
    struct result out = {.y_count = b->rows * t->decoder.spec.hidden_size, .grad_count = p->total};
    must(feed_put(&t->feed, b, 1, &scalars), name);
    t->exec.accum = ACCUM_STORE;
    must(decoder_fwd_bwd(&t->decoder, &t->acts, &t->feed.micro[0], 0, &t->exec), name);
    void *y = downloaded(t, t->acts.y.data, out.y_count, t->acts.y.dt);
    out.y = widened(y, out.y_count, t->acts.y.dt);
    free(y);
    out.grad = downloaded(t, p->grad, p->total, DTYPE_F32);
    must(dev_zero(t->exec.stream, p->grad, (size_t)p->total * sizeof(float)), name);
    return out;
}

/* Logits and gradients in F32, compared with the fixture. */
static void check_f32(struct trainer *t, const struct hf_fixture *f, const char *name)
{
    const int64_t v = f->spec.vocab_size;
    struct arena arena = {0};
    char worst[160] = "";
    struct result got = trainer_run(t, &f->batch, name);
    must(dev_arena_reserve(&t->dev, &arena, "logits", (size_t)(HF_T * v) * sizeof(float) + 256), name);
    struct tensor logits = tensor_take(&arena, "logits", DTYPE_F32, 2, (int64_t)HF_T, v);
    must(decoder_fwd(&t->decoder, &t->acts, &t->feed.micro[0], &t->exec), name);
    must(head_logits(&t->decoder.head, t->acts.y, logits, &t->exec), name);
    void *host = downloaded(t, logits.data, HF_T * v, DTYPE_F32);
    within("logits", name, "", hf_logits_error(f, "logits", host, DTYPE_F32).l2, 1e-4);
    free(host);
    const struct hf_error e = hf_gradient_error(f, &t->decoder, got.grad, DTYPE_F32, 1e-6, worst);
    within("gradients", name, worst, e.l2, 1e-4);
    result_free(&got);
    arena_free(&arena);
}

struct distance {
    double y, grad;
};
static struct distance distance(const struct result *from, const struct result *to)
{
    return (struct distance){l2(from->y, to->y, from->y_count), l2(from->grad, to->grad, from->grad_count)};
}

/* How far the farthest of the neighbours is in F64. */
static struct distance farthest(const struct model_spec *m, const float *weights, const struct batch *b,
                                const struct result *exact)
{
    struct distance far = {0};
    struct reference *r = malloc(sizeof *r);
    assert_non_null(r);
    reference_open(r, m, DTYPE_F64, b->rows);
    for (uint64_t i = 0; i < NEIGHBOURS; i++) {
        float *moved = neighbour(weights, r->d.params.total, i);
        reference_set(r, moved);
        free(moved);
        struct result there = reference_run(r, b);
        const struct distance d = distance(exact, &there);
        far = (struct distance){fmax(far.y, d.y), fmax(far.grad, d.grad)};
        result_free(&there);
    }
    reference_close(r);
    free(r);
    return far;
}

static void check_bf16(struct trainer *t, const float *weights, const struct batch *b, double room,
                       const char *name)
{
    struct result exact, rounded, got;
    references(&t->spec.model, weights, b, &exact, &rounded);
    got = trainer_run(t, b, name);
    const struct distance off = distance(&exact, &got), step = distance(&exact, &rounded);
    struct distance bound = {fmax(1e-2, room * step.y), fmax(2e-2, room * step.grad)};
    if (t->spec.model.moe_experts > 0 && !(off.y <= bound.y && off.grad <= bound.grad)) {
        const struct distance far = farthest(&t->spec.model, weights, b, &exact);
        bound = (struct distance){fmax(bound.y, room * far.y), fmax(bound.grad, room * far.grad)};
    }
    within("activations", name, "", off.y, bound.y);
    within("gradients", name, "", off.grad, bound.grad);
    result_free(&exact);
    result_free(&rounded);
    result_free(&got);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Distances from the fixture's losses in ten AdamW steps, the largest last. */
static void ten_losses(struct trainer *t, struct hf_fixture *f, const char *name, double off[HF_STEPS])
{
    const float *want = hf_expected(f, "losses", HF_STEPS);
    for (int step = 0; step < HF_STEPS; step++) {
        struct step_result r;
        hf_fixture_row(f, step + 1);
        const struct step_batch batch = {.step = step, .valid = HF_T, .micro_count = 1, .micro = &f->batch};
        must(train_step(t, &batch, &r), name);
        off[step] = isnan(r.loss) ? INFINITY : fabs(r.loss - (double)want[step]);
    }
    qsort(off, HF_STEPS, sizeof *off, by_size);
}

/* The worst loss in F32 on the host. */
static double losses_of_neighbour(struct hf_fixture *f, const float *weights, uint64_t which)
{
    const struct way host = {.device = DEVICE_CPU};
    const struct spec spec = spec_of(&f->spec, HF_T, &host);
    struct trainer *t = malloc(sizeof *t);
    assert_non_null(t);
    must(trainer_open(t, &spec, NULL, NULL), "neighbour");
    float *moved = neighbour(weights, t->decoder.params.total, which);
    set_weights(t, moved);
    double off[HF_STEPS];
    ten_losses(t, f, "neighbour", off);
    trainer_close(t);
    free(moved);
    free(t);
    return off[HF_STEPS - 1];
}

/* Tolerance of the worst of ten BF16 losses: 2e-2, if exact arithmetic itself stays below it. From weights
 * moved by a roundoff of bf16, F32 ends 2.2e-2 off in ingot_hybrid, whose weights are large, and 8.4e-2 in
 * qwen3_moe, where at step 3 two scores of a router are closer than bf16 resolves and one of 24 tokens
 * switches. BF16 cannot be closer than such runs; half as much again is allowed, as above. Half of the steps
 * stay within 2e-2 all the same. */
static double losses_bound(struct hf_fixture *f, const float *weights, double found)
{
    double worst = 0;
    for (int i = 0; found > 2e-2 && i < NEIGHBOURS; i++)
        worst = fmax(worst, losses_of_neighbour(f, weights, (uint64_t)i));
    return fmax(2e-2, 1.5 * worst);
}

static const char *way_text(const char *model, const struct way *w, char text[96])
{
    static const char *const words[] = {
        [ATTENTION_AUTO] = "auto", [ATTENTION_OWN] = "own", [ATTENTION_REFERENCE] = "reference"};
    snprintf(text, 96, "%s %s %s", model, w->precision == PRECISION_BF16 ? "BF16" : "F32",
             words[w->attention]);
    return text;
}

/* 'own' reads keys and values 16 bytes at a time. */
static bool is_served(const struct model_spec *m, const struct way *w)
{
    const bool latent = m->mla_kv_rank > 0;
    const int64_t each = w->precision == PRECISION_BF16 ? 8 : 4,
                  keys = latent ? m->mla_nope_dim + m->mla_rope_dim : m->head_dim,
                  values = latent ? m->mla_value_dim : m->head_dim;
    return w->attention != ATTENTION_OWN || (keys % each == 0 && values % each == 0);
}

static void check_family(const char *family, const struct way *w)
{
    char name[96];
    struct hf_fixture *f = malloc(sizeof *f);
    struct trainer *t = malloc(sizeof *t);
    assert_true(f && t);
    way_text(family, w, name);
    hf_fixture_open(f, family);
    if (!is_served(&f->spec, w)) {
        printf("     %s: heads that it does not take\n", name);
        hf_fixture_close(f);
        free(f);
        free(t);
        return;
    }
    const struct spec spec = spec_of(&f->spec, HF_T, w);
    must(trainer_open(t, &spec, NULL, NULL), name);
    float *weights = fixture_weights(f);
    const bool narrow = w->precision == PRECISION_BF16;
    hf_fixture_row(f, 0);
    if (!narrow) {
        set_weights(t, weights);
        check_f32(t, f, name);
    } else {
        float *rounded = widened(weights, t->decoder.params.total, DTYPE_F32);
        for (int64_t i = 0; i < t->decoder.params.total; i++)
            rounded[i] = bf16_to_f32(bf16_from_f32(weights[i]));
        set_weights(t, rounded);
        check_bf16(t, rounded, &f->batch, 1.5, name);
        free(rounded);
        set_weights(t, weights);
    }
    double off[HF_STEPS];
    ten_losses(t, f, name, off);
    within("ten losses", name, t->mode == STEP_REPLAY ? "(graph)" : "", off[HF_STEPS - 1],
           narrow ? losses_bound(f, weights, off[HF_STEPS - 1]) : 1e-4);
    within("half of the ten losses", name, "", off[HF_STEPS / 2], narrow ? 2e-2 : 1e-4);
    trainer_close(t);
    hf_fixture_close(f);
    free(weights);
    free(f);
    free(t);
}

/* Some layers of a model as people train it: random weights of the usual size, three documents. */
static void check_ordinary(const char *preset, const struct way *w)
{
    enum { ROWS = 160, LAYERS = 3 };
    static const int32_t cu[] = {0, 100, 101, ROWS};
    int32_t tokens[ROWS], targets[ROWS], positions[ROWS];
    char name[96], key[64];
    snprintf(key, sizeof key, "model.preset=%s", preset);
    char *keys[] = {key, "model.layer_count=3", "model.vocab_size=1024", "model.context_length=1024",
                    "train.steps=1"};
    struct spec given;
    struct trainer *t = malloc(sizeof *t);
    assert_non_null(t);
    way_text(preset, w, name);
    must(spec_load(&given, NULL, 5, keys, NULL), name);
    struct spec spec = spec_of(&given.model, ROWS, w);
    spec.run.data_packing = PACKING_DOCUMENTS;
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = i * 7919 % 1024;
        targets[i] = (i + 1) * 7919 % 1024;
        positions[i] = i < 100 ? i : i < 101 ? 0 : i - 101;
    }
    const struct batch b = {.rows = ROWS,
                            .docs = 3,
                            .len_max = 100,
                            .tokens = tokens,
                            .targets = targets,
                            .positions = positions,
                            .cu_seqlens = cu};
    struct reference *r = malloc(sizeof *r);
    assert_non_null(r);
    reference_open(r, &spec.model, DTYPE_F32, ROWS);
    must(init_weights(&r->d, &r->run, 3), name);
    float *weights = widened(r->d.params.master, r->d.params.total, DTYPE_F32);
    for (int64_t i = 0; i < r->d.params.total; i++) weights[i] = bf16_to_f32(bf16_from_f32(weights[i]));
    reference_close(r);
    free(r);
    must(trainer_open(t, &spec, NULL, NULL), name);
    set_weights(t, weights);
    check_bf16(t, weights, &b, 0, name);
    trainer_close(t);
    free(weights);
    free(t);
}

int main(int argc, char **argv)
{
    static const enum attention attentions[] = {ATTENTION_AUTO, ATTENTION_OWN, ATTENTION_REFERENCE};
    const bool host = argc > 1 && strcmp(argv[1], "cpu") == 0;
    struct dev d;
    if (!host && dev_open(&d, DEV_CUDA) != STATUS_OK) {
        printf("%s\n", status_message());
        return gpu_missing();
    }
    parallel_threads_set(0);
    assert_non_null(mkdtemp(cache));
    for (int k = 0; k < (host ? 1 : 3); k++) {
        struct way w = {.device = host ? DEVICE_CPU : DEVICE_CUDA, .attention = attentions[k]};
        for (int i = 0; i < 2 * HF_FAMILIES; i++) {
            w.precision = i % 2 ? PRECISION_BF16 : PRECISION_FP32;
            check_family(hf_names[i / 2], &w);
        }
        w.precision = PRECISION_BF16;
        check_ordinary("gpt2-124m", &w);
        check_ordinary("small", &w);
    }
    must(io_remove_tree(cache), "end");
    printf("%d failures\n", bad);
    return bad > 0;
}
