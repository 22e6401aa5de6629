/* A run in FP8 from step to step (train/fp8_run.h): the switch after the warm-up, resumes on both sides of it, changes from bf16 and
 * back, the monitor. On the CPU, where codes are decoded: the bits of a GPU's codes and scales are those (tests/ops). */
#include "train/support_fp8.h"
#include "base/io.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { T = 16, SEQUENCES = 8, ROWS = T * SEQUENCES };

static void must(status st)
{
    if (st != STATUS_OK) fail_msg("%s", status_message());
}

static const struct fp8_linears *linears(const struct trainer *t)
{
    return &t->decoder.params.fp8;
}

static void done(struct trainer *t, const char *dir)
{
    if (t) trainer_close(t);
    if (dir) must(io_remove_tree(dir));
}

/* bf16 up to the switch, bit by bit; other bits after it; both learn the same. */
static void a_run_learns_and_reads_codes_after_the_warm_up(void **unused)
{
    (void)unused;
    struct trainer fp8, plain;
    double first = 0, last = 0, last_half = 0;
    int differ = 0;
    fp8_start(&fp8, NULL);
    fp8_start(&plain, FP8_WITH("train.precision=bf16"));
    for (int i = 0; i < 30; i++) {
        const struct step_result a = fp8_step(&fp8), b = fp8_step(&plain);
        assert_int_equal(fp8_count(&fp8), i < FP8_WARMUP ? 0 : linears(&fp8)->count);
        if (i < FP8_WARMUP) assert_true(a.loss == b.loss && a.grad_norm == b.grad_norm);
        if (i >= FP8_WARMUP) differ += a.loss != b.loss;
        if (i == 0) first = a.loss;
        last = a.loss, last_half = b.loss;
    }
    assert_int_equal(linears(&fp8)->count, 8);
    assert_int_equal(differ, 30 - FP8_WARMUP);
    if (!(last < first / 2 && fabs(last / last_half - 1) < 0.15))
        fail_msg("the loss falls from %g to %g; in bf16 to %g", first, last, last_half);
    done(&fp8, NULL);
    done(&plain, NULL);
}

/* Saved before the switch, at it, and after the history has come round. */
static void a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(void **unused)
{
    (void)unused;
    static const char *const ways[][3] = {
        {"fp8.wgrad=fp8"}, {"optim.master=none"}, {"fp8.wgrad=bf16", "optim.state=bf16"}};
    for (int w = 0; w < 3; w++) {
        struct trainer whole;
        fp8_start(&whole, ways[w]);
        fp8_resumed_at(&whole, FP8_WARMUP - 2, ways[w]);
        fp8_resumed_at(&whole, FP8_WARMUP, ways[w]);
        fp8_resumed_at(&whole, 20, ways[w]);
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
    char dir[] = FP8_SCRATCH;
    assert_non_null(mkdtemp(dir));
    fp8_start(&t, NULL);
    while (t.step < FP8_WARMUP + 1) (void)fp8_step(&t);
    must(trainer_save(&t, dir));
    done(&t, NULL);
    fp8_go_on(&whole, dir, NULL);
    const double loss = fp8_step(&whole).loss;
    const struct fp8_linears *f = linears(&whole);
    for (int i = 1; i < 3; i++) {
        fp8_go_on(&t, dir, FP8_WITH(sizes[i]));
        const double other = fp8_step(&t).loss;
        if (!(fabs(other / loss - 1) < 1e-6)) fail_msg("%s: loss %.9g, not %.9g", sizes[i], other, loss);
        assert_int_equal(fp8_count(&t), f->count);
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
        fp8_start(&none, NULL);
        fp8_start(&other, FP8_WITH(policies[i]));
        for (int k = 0; k < FP8_WARMUP + 2; k++) {
            assert_true(fp8_step(&none).loss == fp8_step(&other).loss);
            fp8_same_state(&none, &other, policies[i]);
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
    char dir[] = FP8_SCRATCH;
    assert_non_null(mkdtemp(dir));
    fp8_start(&t, half);
    for (int i = 0; i < 4; i++) (void)fp8_step(&t);
    must(trainer_save(&t, dir));
    done(&t, NULL);
    fp8_go_on(&t, dir, NULL);
    fp8_resumed_at(&t, 4 + FP8_WARMUP - 1, NULL);
    assert_int_equal(t.fp8.linears[0].since, 4);
    done(&t, NULL);
    fp8_go_on(&t, dir, NULL);
    while (t.step < 4 + FP8_WARMUP) {
        assert_int_equal(fp8_count(&t), 0);
        (void)fp8_step(&t);
    }
    (void)fp8_step(&t);
    assert_int_equal(fp8_count(&t), 8);
    must(trainer_save(&t, dir));
    fp8_go_on(&other, dir, half);
    assert_int_equal(linears(&other)->count, 0);
    (void)fp8_step(&other);
    must(trainer_save(&other, dir));
    must(checkpoint_open(&c, dir, &found));
    assert_true(found && checkpoint_step(c) == t.step + 1);
    for (int i = 0; i < checkpoint_count(c); i++)
        assert_int_not_equal(strncmp(checkpoint_item(c, i)->name, "fp8/", 4), 0);
    checkpoint_close(c);
    done(&t, NULL);
    done(&other, NULL);
    fp8_spec(&s, FP8_WITH("train.precision=bf16"));
    s.run.train_precision = PRECISION_FP32;
    must(trainer_open(&t, &s, NULL, NULL));
    assert_int_equal(trainer_restore(&t, dir, &found), STATUS_CONFIG);
    assert_non_null(
        strstr(status_message(), "train.precision bf16 -> fp32: a run may change between bf16, fp8"));
    done(&t, dir);
}

/* A linear that joins later measures first; the others keep their history. */
static void a_linear_that_was_excluded_measures_before_it_reads_codes(void **unused)
{
    (void)unused;
    const char *const without[] = {"fp8.exclude=*.mlp.down.weight,layers.1.attn.*", NULL};
    struct trainer t, all;
    char dir[] = FP8_SCRATCH;
    assert_non_null(mkdtemp(dir));
    fp8_start(&t, without);
    assert_int_equal(linears(&t)->count, 4);
    for (int i = 0; i < FP8_WARMUP + 2; i++) (void)fp8_step(&t);
    must(trainer_save(&t, dir));
    fp8_go_on(&all, dir, NULL);
    for (int i = 0; i < FP8_WARMUP; i++) {
        assert_int_equal(fp8_count(&all), 4);
        (void)fp8_step(&all);
    }
    (void)fp8_step(&all);
    assert_int_equal(fp8_count(&all), 8);
    assert_int_equal(all.fp8.linears[fp8_linear(&all, "layers.0.mlp.down.weight")].since, FP8_WARMUP + 2);
    assert_int_equal(all.fp8.linears[fp8_linear(&all, "layers.0.mlp.up.weight")].since, 0);
    done(&t, NULL);
    done(&all, dir);
}

/* Method: a scale far too large, in each of three steps, as a gradient's that has grown 2^20 times. */
static void a_linear_that_saturates_goes_back_to_bf16(void **unused)
{
    (void)unused;
    struct trainer t, again;
    struct step_result r;
    char dir[] = FP8_SCRATCH;
    assert_non_null(mkdtemp(dir));
    const char *const more[] = {"fp8.monitor=1", NULL};
    fp8_start(&t, more);
    const int i = fp8_linear(&t, "layers.1.mlp.down.weight");
    for (int k = 0; k < FP8_WARMUP; k++) {
        r = fp8_step(&t);
        assert_true(isnan(r.fp8_saturated));
    }
    r = fp8_step(&t);
    assert_true(r.fp8_saturated == 0 && r.fp8_headroom_x > 1 && r.fp8_headroom_dy > 2);
    for (int k = 0; k < FP8_STRIKES; k++) {
        assert_int_equal(fp8_count(&t), 8);
        const int64_t at = fp8_at(linears(&t), FP8_DY, i);
        linears(&t)->scale[at] *= 0x1p20f;
        linears(&t)->scale_inv[at * FP8_SCALE_STRIDE] *= 0x1p-20f;
        assert_int_equal(t.fp8.linears[i].strikes, k);
        r = fp8_step(&t);
        assert_true(r.fp8_saturated == 1 && r.fp8_headroom_dy < 0);
        if (k == 1) must(trainer_save(&t, dir));
    }
    r = fp8_step(&t);
    assert_true(r.fp8_saturated == 0);
    assert_int_equal(fp8_count(&t), 7);
    assert_int_equal(linears(&t)->use[i], FP8_USE_BF16);
    must(trainer_restore(&t, dir, &(bool){false}));
    assert_int_equal(t.fp8.linears[i].strikes, 2); /* they are counted across a resume */
    (void)fp8_step(&t);
    assert_int_equal(t.fp8.linears[i].strikes, 0);
    t.fp8.linears[i].since = FP8_NEVER;
    must(trainer_save(&t, dir));
    fp8_go_on(&again, dir, more);
    (void)fp8_step(&again);
    assert_int_equal(fp8_count(&again), 7);
    done(&t, NULL);
    done(&again, dir);
}

static void what_is_not_finite_ends_the_run(void **unused)
{
    (void)unused;
    struct trainer t;
    struct spec s;
    fp8_start(&t, NULL);
    for (int i = 0; i < FP8_WARMUP + 1; i++) (void)fp8_step(&t);
    linears(&t)->amax[fp8_at(linears(&t), FP8_DY, 1)] = INFINITY;
    int32_t tokens[ROWS] = {0}, positions[ROWS] = {0}, cu[SEQUENCES + 1];
    for (int i = 0; i <= SEQUENCES; i++) cu[i] = i * T;
    struct batch b = {ROWS, SEQUENCES, T, tokens, tokens, positions, cu, false, NULL};
    struct step_result r;
    assert_int_equal(
        train_step(&t, &(struct step_batch){.step = t.step, .valid = ROWS, .micro_count = 1, .micro = &b},
                   &r),
        STATUS_NUMERIC);
    assert_non_null(strstr(status_message(), "is not finite in step 4"));
    done(&t, NULL);
    fp8_spec(&s, FP8_WITH("model.ffn_size=40"));
    assert_int_equal(trainer_open(&t, &s, NULL, NULL), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "layers.0.mlp.down.weight is 32 x 40"));
    fp8_spec(&s, FP8_WITH("model.ffn_size=40", "fp8.exclude=*.mlp.*"));
    must(trainer_open(&t, &s, NULL, NULL));
    done(&t, NULL);
    fp8_spec(&s, FP8_WITH("fp8.exclude=*.mpl.*"));
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
