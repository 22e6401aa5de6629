/* A run in FP8 from step to step (train/fp8_run.h): the switch after the warm-up, resumes on both sides of it, changes from bf16 and
 * back, the monitor. On the CPU, where codes are decoded: the bits of a GPU's codes and scales are those (tests/ops). */
#include "base/io.h"
#include "base/rng.h"
#include "parallel/fp8.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { T = 16, SEQUENCES = 8, ROWS = T * SEQUENCES, KEYS = 40, WARMUP = 3 };

static void must(status st)
{
    if (st != STATUS_OK) fail_msg("%s", status_message());
}

/* Two layers; `more`: up to a NULL. */
static void spec_of(struct spec *s, const char *const *more)
{
    static const char *const common[] = {
        "model.layer_count=2", "model.hidden_size=32",    "model.ffn_size=48",      "model.head_count=2",
        "model.vocab_size=64", "model.context_length=16", "train.micro_batch=8",    "train.batch_tokens=128",
        "train.steps=40",      "train.precision=fp8",     "fp8.warmup=3",           "optim.lr=1e-2",
        "train.clip=0",        "machine.device=cpu",      "optim.schedule=constant"};
    char *keys[KEYS];
    int n = 0;
    const bool fp8 = more == NULL || more[0] == NULL || strcmp(more[0], "train.precision=bf16") != 0;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (fp8 || strncmp(common[i], "fp8.", 4) != 0) keys[n++] = (char *)(uintptr_t)common[i];
    for (; more && *more; more++) keys[n++] = (char *)(uintptr_t)*more;
    must(spec_load(s, NULL, n, keys, NULL));
}
#define WITH(...) ((const char *const[]){__VA_ARGS__, NULL})

static void start(struct trainer *t, const char *const *more)
{
    struct spec s;
    spec_of(&s, more);
    must(trainer_open(t, &s, NULL, NULL));
    must(trainer_init_weights(t));
}

static void go_on(struct trainer *t, const char *dir, const char *const *more)
{
    struct spec s;
    bool found;
    spec_of(&s, more);
    must(trainer_open(t, &s, NULL, NULL));
    must(trainer_restore(t, dir, &found));
    assert_true(found);
}

/* The same tokens in every step, in micro-batches of this trainer's size: a run can learn them by heart. */
static struct step_result step(struct trainer *t)
{
    static int32_t tokens[ROWS], targets[ROWS], positions[ROWS], cu[SEQUENCES + 1];
    struct batch micro[SEQUENCES];
    struct step_result r;
    const int64_t at_once = t->spec.run.train_micro_batch, count = SEQUENCES / at_once;
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = (int32_t)(rng_uniform(1, RNG_TEST, 0, (uint64_t)i) * 64);
        targets[i] = (int32_t)(rng_uniform(2, RNG_TEST, 0, (uint64_t)i) * 64);
        positions[i] = i % T;
    }
    for (int i = 0; i <= SEQUENCES; i++) cu[i] = i * T;
    for (int64_t m = 0; m < count; m++) {
        const int64_t first = m * at_once * T;
        micro[m] = (struct batch){.rows = at_once * T,
                                  .docs = at_once,
                                  .len_max = T,
                                  .tokens = tokens + first,
                                  .targets = targets + first,
                                  .positions = positions + first,
                                  .cu_seqlens = cu};
    }
    must(train_step(
        t, &(struct step_batch){.step = t->step, .valid = ROWS, .micro_count = (int)count, .micro = micro},
        &r));
    return r;
}

static const struct fp8_linears *linears(const struct trainer *t)
{
    return &t->decoder.params.fp8;
}
static int linear_named(const struct trainer *t, const char *name)
{
    const int row = params_find(&t->decoder.params, name);
    assert_true(row >= 0);
    return t->decoder.params.rows[row].fp8;
}
static int in_codes(const struct trainer *t)
{
    int n = 0;
    for (int i = 0; i < linears(t)->count; i++) n += linears(t)->use[i] == FP8_USE_ALL;
    return n;
}

/* Weights, moments, and all that FP8 adds. */
static void same_state(const struct trainer *a, const struct trainer *b, const char *what)
{
    const struct params *p = &a->decoder.params, *q = &b->decoder.params;
    const size_t n = (size_t)p->total, linear = (size_t)p->fp8.count * sizeof(float);
    const size_t moment = dtype_bytes(p->moment_dt);
    if (memcmp(p->weight, q->weight, 2 * n) != 0 || (p->low && memcmp(p->low, q->low, 2 * n) != 0))
        fail_msg("%s: weights differ", what);
    if (memcmp(p->m, q->m, moment * n) != 0 || memcmp(p->v, q->v, moment * n) != 0)
        fail_msg("%s: moments differ", what);
    assert_int_equal(p->fp8.count, q->fp8.count);
    if (p->fp8.count == 0) return;
    if (memcmp(p->fp8.history, q->fp8.history, 2 * FP8_HISTORY * linear) != 0)
        fail_msg("%s: history differs", what);
    if (memcmp(p->fp8.scale, q->fp8.scale, FP8_W * linear) != 0) fail_msg("%s: scales differ", what);
    if (memcmp(p->fp8.amax, q->fp8.amax, FP8_TENSORS * linear) != 0) fail_msg("%s: amax differs", what);
    if (in_codes(a) == 0 || in_codes(b) == 0)
        return; /* one of them makes the codes of weights when the next step begins */
    if (memcmp(p->fp8.scale, q->fp8.scale, FP8_TENSORS * linear) != 0)
        fail_msg("%s: scales of weights differ", what);
    for (enum derived d = DERIVED_F8; d <= DERIVED_F8_T; d++)
        if (memcmp(p->derived[d].data, q->derived[d].data, (size_t)p->derived[d].bytes) != 0)
            fail_msg("%s: codes of weights differ", what);
}

#define SCRATCH "/tmp/ingot-fp8-XXXXXX"
static void scratch(char dir[sizeof SCRATCH])
{
    assert_non_null(mkdtemp(dir));
}
static void done(struct trainer *t, const char *dir)
{
    if (t) trainer_close(t);
    if (dir) assert_int_equal(io_remove_tree(dir), STATUS_OK);
}

/* bf16 up to the switch, bit by bit; other bits after it; both learn the same. */
static void a_run_learns_and_reads_codes_after_the_warm_up(void **unused)
{
    (void)unused;
    struct trainer fp8, plain;
    double first = 0, last = 0, last_half = 0;
    int differ = 0;
    start(&fp8, NULL);
    start(&plain, WITH("train.precision=bf16"));
    for (int i = 0; i < 30; i++) {
        const struct step_result a = step(&fp8), b = step(&plain);
        assert_int_equal(in_codes(&fp8), i < WARMUP ? 0 : linears(&fp8)->count);
        if (i < WARMUP) assert_true(a.loss == b.loss && a.grad_norm == b.grad_norm);
        if (i >= WARMUP) differ += a.loss != b.loss;
        if (i == 0) first = a.loss;
        last = a.loss, last_half = b.loss;
    }
    assert_int_equal(linears(&fp8)->count, 8);
    assert_int_equal(differ, 30 - WARMUP);
    if (!(last < first / 2 && fabs(last / last_half - 1) < 0.15))
        fail_msg("the loss falls from %g to %g; in bf16 to %g", first, last, last_half);
    done(&fp8, NULL);
    done(&plain, NULL);
}

/* Saved before, at and after the switch, and after the history has come round. */
static void resumed_at(struct trainer *whole, int64_t saved_at, const char *const *more)
{
    struct trainer parts;
    char dir[] = SCRATCH;
    scratch(dir);
    while (whole->step < saved_at) (void)step(whole);
    must(trainer_save(whole, dir));
    go_on(&parts, dir, more);
    same_state(whole, &parts, "restored");
    (void)step(&parts);
    must(trainer_save(&parts, dir));
    done(&parts, NULL);
    go_on(&parts, dir, more); /* a second time */
    (void)step(whole);
    same_state(whole, &parts, "a step later");
    assert_true(step(whole).loss == step(&parts).loss);
    same_state(whole, &parts, "two steps later");
    done(&parts, dir);
}

static void a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(void **unused)
{
    (void)unused;
    static const char *const ways[][3] = {
        {"fp8.wgrad=fp8"}, {"optim.master=none"}, {"fp8.wgrad=bf16", "optim.state=bf16"}};
    for (int w = 0; w < 3; w++) {
        struct trainer whole;
        start(&whole, ways[w]);
        resumed_at(&whole, WARMUP - 2, ways[w]);
        resumed_at(&whole, WARMUP, ways[w]);
        resumed_at(&whole, 20, ways[w]);
        done(&whole, NULL);
    }
}

/* Amax of a step is that of its rows, however they are divided. Method: from one checkpoint, one step each. (Moments and weights differ
 * in their last bits: sums of gradients have other orders. So do the codes of weights.) */
static void scales_do_not_depend_on_micro_batches(void **unused)
{
    (void)unused;
    static const char *const sizes[] = {"train.micro_batch=8", "train.micro_batch=4", "train.micro_batch=2"};
    struct trainer t, whole;
    char dir[] = SCRATCH;
    scratch(dir);
    start(&t, NULL);
    while (t.step < WARMUP + 1) (void)step(&t);
    must(trainer_save(&t, dir));
    done(&t, NULL);
    go_on(&whole, dir, NULL);
    const double loss = step(&whole).loss;
    const struct fp8_linears *f = linears(&whole);
    for (int i = 1; i < 3; i++) {
        go_on(&t, dir, WITH(sizes[i]));
        const double other = step(&t).loss;
        if (!(fabs(other / loss - 1) < 1e-6)) fail_msg("%s: loss %.9g, not %.9g", sizes[i], other, loss);
        assert_int_equal(in_codes(&t), f->count);
        const size_t bytes = 2 * (size_t)f->count * sizeof(float);
        assert_memory_equal(f->history, linears(&t)->history, FP8_HISTORY * bytes);
        assert_memory_equal(f->scale + f->count, linears(&t)->scale + f->count, bytes / 2); /* of DY */
        done(&t, NULL);
    }
    done(&whole, dir);
}

static void recompute_changes_no_bit(void **unused)
{
    (void)unused;
    struct trainer none, other;
    const char *const policies[] = {"train.recompute=selective", "train.recompute=full"};
    for (int i = 0; i < 2; i++) {
        start(&none, NULL);
        start(&other, WITH(policies[i]));
        for (int k = 0; k < WARMUP + 2; k++) {
            assert_true(step(&none).loss == step(&other).loss);
            same_state(&none, &other, policies[i]);
        }
        done(&none, NULL);
        done(&other, NULL);
    }
}

/* The warm-up counts from the change, also for a second resume; what bf16 saves has no state of FP8. */
static void a_run_changes_from_bf16_to_fp8_and_back(void **unused)
{
    (void)unused;
    const char *const half[] = {"train.precision=bf16", NULL};
    struct trainer t, other;
    struct checkpoint *c;
    struct spec s;
    bool found;
    char dir[] = SCRATCH;
    scratch(dir);
    start(&t, half);
    for (int i = 0; i < 4; i++) (void)step(&t);
    must(trainer_save(&t, dir));
    done(&t, NULL);
    go_on(&t, dir, NULL);
    resumed_at(&t, 4 + WARMUP - 1, NULL);
    assert_int_equal(t.fp8.linears[0].since, 4);
    done(&t, NULL);
    go_on(&t, dir, NULL);
    while (t.step < 4 + WARMUP) {
        assert_int_equal(in_codes(&t), 0);
        (void)step(&t);
    }
    (void)step(&t);
    assert_int_equal(in_codes(&t), 8);
    must(trainer_save(&t, dir));
    go_on(&other, dir, half);
    assert_int_equal(linears(&other)->count, 0);
    (void)step(&other);
    must(trainer_save(&other, dir));
    must(checkpoint_open(&c, dir, &found));
    assert_true(found && checkpoint_step(c) == t.step + 1);
    for (int i = 0; i < checkpoint_count(c); i++)
        assert_int_not_equal(strncmp(checkpoint_item(c, i)->name, "fp8/", 4), 0);
    checkpoint_close(c);
    done(&t, NULL);
    done(&other, NULL);
    spec_of(&s, WITH("train.precision=bf16"));
    s.run.train_precision = PRECISION_FP32;
    must(trainer_open(&t, &s, NULL, NULL));
    assert_int_equal(trainer_restore(&t, dir, &found), STATUS_CONFIG);
    assert_non_null(
        strstr(status_message(), "train.precision bf16 -> fp32: a run may change between bf16 and fp8"));
    done(&t, dir);
}

/* A linear that joins later measures first; the others keep their history. */
static void a_linear_that_was_excluded_measures_before_it_reads_codes(void **unused)
{
    (void)unused;
    const char *const without[] = {"fp8.exclude=*.mlp.down.weight,layers.1.attn.*", NULL};
    struct trainer t, all;
    char dir[] = SCRATCH;
    scratch(dir);
    start(&t, without);
    assert_int_equal(linears(&t)->count, 4);
    for (int i = 0; i < WARMUP + 2; i++) (void)step(&t);
    must(trainer_save(&t, dir));
    go_on(&all, dir, NULL);
    for (int i = 0; i < WARMUP; i++) {
        assert_int_equal(in_codes(&all), 4);
        (void)step(&all);
    }
    (void)step(&all);
    assert_int_equal(in_codes(&all), 8);
    assert_int_equal(all.fp8.linears[linear_named(&all, "layers.0.mlp.down.weight")].since, WARMUP + 2);
    assert_int_equal(all.fp8.linears[linear_named(&all, "layers.0.mlp.up.weight")].since, 0);
    done(&t, NULL);
    done(&all, dir);
}

/* Method: a scale far too large, in each of three steps, as a gradient's that has grown 2^20 times. */
static void a_linear_that_saturates_goes_back_to_bf16(void **unused)
{
    (void)unused;
    struct trainer t, again;
    struct step_result r;
    char dir[] = SCRATCH;
    scratch(dir);
    const char *const more[] = {"fp8.monitor=1", NULL};
    start(&t, more);
    const int i = linear_named(&t, "layers.1.mlp.down.weight");
    for (int k = 0; k < WARMUP; k++) {
        r = step(&t);
        assert_true(isnan(r.fp8_saturated));
    }
    r = step(&t);
    assert_true(r.fp8_saturated == 0 && r.fp8_headroom_x > 1 && r.fp8_headroom_dy > 2);
    for (int k = 0; k < FP8_STRIKES; k++) {
        assert_int_equal(in_codes(&t), 8);
        const int64_t at = fp8_at(linears(&t), FP8_DY, i);
        linears(&t)->scale[at] *= 0x1p20f;
        linears(&t)->scale_inv[at] *= 0x1p-20f;
        assert_int_equal(t.fp8.linears[i].strikes, k);
        r = step(&t);
        assert_true(r.fp8_saturated == 1 && r.fp8_headroom_dy < 0);
        if (k == 1) must(trainer_save(&t, dir));
    }
    r = step(&t);
    assert_true(r.fp8_saturated == 0);
    assert_int_equal(in_codes(&t), 7);
    assert_int_equal(linears(&t)->use[i], FP8_USE_BF16);
    must(trainer_restore(&t, dir, &(bool){false}));
    assert_int_equal(t.fp8.linears[i].strikes, 2); /* they are counted across a resume */
    (void)step(&t);
    assert_int_equal(t.fp8.linears[i].strikes, 0);
    t.fp8.linears[i].since = FP8_NEVER;
    must(trainer_save(&t, dir));
    go_on(&again, dir, more);
    (void)step(&again);
    assert_int_equal(in_codes(&again), 7);
    done(&t, NULL);
    done(&again, dir);
}

static void what_is_not_finite_ends_the_run(void **unused)
{
    (void)unused;
    struct trainer t;
    struct spec s;
    start(&t, NULL);
    for (int i = 0; i < WARMUP + 1; i++) (void)step(&t);
    linears(&t)->amax[fp8_at(linears(&t), FP8_DY, 1)] = INFINITY;
    int32_t tokens[ROWS] = {0}, positions[ROWS] = {0}, cu[SEQUENCES + 1];
    for (int i = 0; i <= SEQUENCES; i++) cu[i] = i * T;
    struct batch b = {ROWS, SEQUENCES, T, tokens, tokens, positions, cu, false};
    struct step_result r;
    assert_int_equal(
        train_step(&t, &(struct step_batch){.step = t.step, .valid = ROWS, .micro_count = 1, .micro = &b},
                   &r),
        STATUS_NUMERIC);
    assert_non_null(strstr(status_message(), "is not finite in step 4"));
    done(&t, NULL);
    spec_of(&s, WITH("model.ffn_size=40"));
    assert_int_equal(trainer_open(&t, &s, NULL, NULL), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "layers.0.mlp.down.weight is 32 x 40"));
    spec_of(&s, WITH("model.ffn_size=40", "fp8.exclude=*.mlp.*"));
    must(trainer_open(&t, &s, NULL, NULL));
    done(&t, NULL);
    spec_of(&s, WITH("fp8.exclude=*.mpl.*"));
    assert_int_equal(trainer_open(&t, &s, NULL, NULL), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "fp8.exclude: '*.mpl.*' matches no weight"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_learns_and_reads_codes_after_the_warm_up),
        cmocka_unit_test(a_resumed_run_has_the_bits_of_one_that_was_not_interrupted),
        cmocka_unit_test(scales_do_not_depend_on_micro_batches),
        cmocka_unit_test(recompute_changes_no_bit),
        cmocka_unit_test(a_run_changes_from_bf16_to_fp8_and_back),
        cmocka_unit_test(a_linear_that_was_excluded_measures_before_it_reads_codes),
        cmocka_unit_test(a_linear_that_saturates_goes_back_to_bf16),
        cmocka_unit_test(what_is_not_finite_ends_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
