/* What the demo chooses: by device, by the size of the text, by measured times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/demo_settings.h"

enum { BIBLE_TOKENS = 954131 };

static double length_s(const struct demo_length *l, const struct demo_times *t)
{
    const int64_t evals = l->eval_every ? (l->steps - 1) / l->eval_every : 0;
    const int64_t saves = 1 + (l->ckpt_every ? (l->steps - 1) / l->ckpt_every : 0);
    assert_true(evals <= 3);
    return (double)l->steps * t->step + (double)evals * (t->eval + t->sample) + (double)saves * t->save +
           t->last_eval + t->last_sample;
}

static void the_promised_time_is_kept(void **state)
{
    (void)state;
    const struct demo_settings s = demo_settings_of(DEV_CPU);
    static const struct demo_times machines[] = {
        {.step = 0.6, .eval = 0.8, .sample = 0.3, .last_eval = 5, .last_sample = 2.3, .save = 0.5},
        {.step = 0.05, .eval = 0.06, .sample = 0.05, .last_eval = 0.4, .last_sample = 0.4, .save = 0.1},
        {.step = 2, .eval = 9, .sample = 4, .last_eval = 20, .last_sample = 10, .save = 1},
    };
    static const double minutes[] = {1, 2, 10};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            struct demo_settings all = s;
            all.epochs_max = 1000;
            const struct demo_length l = demo_length_of(&all, &machines[i], minutes[k], BIBLE_TOKENS);
            assert_false(l.by_epochs);
            assert_true(length_s(&l, &machines[i]) <= 60 * minutes[k]);
            assert_true(length_s(&l, &machines[i]) >= 60 * minutes[k] * 0.9 - 2 * machines[i].step);
            if (i < 2 || k > 0) /* most of it is learning */
                assert_true((double)l.steps * machines[i].step >= 0.7 * 60 * minutes[k]);
        }
    /* Too little time for anything: some steps, and the last evaluation alone. */
    const struct demo_length l = demo_length_of(&s, &machines[2], 0.1, BIBLE_TOKENS);
    assert_int_equal(l.steps, 10);
    assert_int_equal(l.eval_every, 0);
}

static void a_small_text_ends_the_run(void **state)
{
    (void)state;
    const struct demo_settings s = demo_settings_of(DEV_CPU);
    const struct demo_times t = {
        .step = 0.1, .eval = 0.1, .sample = 0.1, .last_eval = 0.1, .last_sample = 1, .save = 0.1};
    const struct demo_length l = demo_length_of(&s, &t, 2, 20480);
    assert_true(l.by_epochs);
    assert_int_equal(l.steps, s.epochs_max * 20480 / s.batch_tokens);
}

static void a_small_text_gets_a_small_vocabulary(void **state)
{
    (void)state;
    assert_int_equal(demo_vocab_size(DEMO_TEXT_MIN), 320);
    assert_int_equal(demo_vocab_size(200000), 1984);
    assert_int_equal(demo_vocab_size(4000000), DEMO_VOCAB_MAX);
}

/* Counts by the formula of a Llama without biases, embeddings aside. */
static int64_t parameters(const struct demo_settings *s)
{
    return s->layers * (4 * s->hidden * s->hidden + 3 * s->hidden * s->ffn);
}

static void a_gpu_trains_a_larger_model_in_less_time(void **state)
{
    (void)state;
    const enum dev_kind kinds[] = {DEV_CPU, DEV_CUDA};
    for (int i = 0; i < 2; i++) {
        const struct demo_settings s = demo_settings_of(kinds[i]);
        assert_int_equal(s.hidden % s.heads, 0);
        assert_int_equal(s.hidden / s.heads % 8, 0);
        assert_int_equal(s.batch_tokens % ((s.micro_batch ? s.micro_batch : 1) * DEMO_SEQUENCE), 0);
    }
    const struct demo_settings cpu = demo_settings_of(DEV_CPU), gpu = demo_settings_of(DEV_CUDA);
    assert_true(parameters(&gpu) > 10 * parameters(&cpu));
    assert_true(gpu.minutes < 1 && cpu.minutes == 2);
    /* An H200's times for it: the run with tokenizer and start is below a minute. */
    const struct demo_times h200 = {
        .step = 0.025, .eval = 0.02, .sample = 0.2, .last_eval = 0.1, .last_sample = 1, .save = 1};
    const struct demo_length l = demo_length_of(&gpu, &h200, gpu.minutes, BIBLE_TOKENS);
    assert_true(length_s(&l, &h200) <= 45);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_promised_time_is_kept),
        cmocka_unit_test(a_small_text_ends_the_run),
        cmocka_unit_test(a_small_text_gets_a_small_vocabulary),
        cmocka_unit_test(a_gpu_trains_a_larger_model_in_less_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
