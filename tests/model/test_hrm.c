/* Goal: hierarchical reasoning is what autograd makes of the paper's recurrence over transformers' layers. Method: weights, logits and
 * gradients of tools/make_hrm_fixture.py through the decoder, on the oracle in f64 (the fixture is rounded to f32) and on the fast ops in F32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "model/init.h"
#include "plan/plan.h"

enum { T = 12, V = 23 };

static void ok(status st)
{
    if (st != STATUS_OK) fail_msg("%s (%s)", status_message(), status_where());
}

static double next(FILE *f)
{
    float x;
    assert_int_equal(fread(&x, sizeof x, 1, f), 1);
    return (double)x;
}

static struct model_spec spec_of_fixture(void)
{
    struct model_spec s;
    model_spec_default(&s);
    s.vocab_size = V, s.layer_count = 3, s.hidden_size = 16, s.ffn_size = 20, s.head_count = 2,
    s.head_count_kv = 1, s.head_dim = 8;
    s.context_length = T, s.norm_eps = 1e-6, s.tied_embeddings = false;
    s.hrm_cycles = 2, s.hrm_steps = 2, s.hrm_segments = 2, s.hrm_low_layers = 1;
    ok(model_spec_check(&s));
    return s;
}

/* Compares got, `count` values of type dt, with the next of the fixture: the largest difference relative to
 * the largest value. */
static void compare(FILE *f, const char *what, const void *got, int64_t count, dtype dt, double bound)
{
    double error = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        const double want = next(f);
        error = fmax(error, fabs(dtype_load(got, i, dt) - want));
        largest = fmax(largest, fabs(want));
    }
    if (!(largest > 0 && error <= bound * largest))
        fail_msg("%s: difference %g beside %g", what, error, largest);
}

static void check(dtype dt)
{
    const struct model_spec spec = spec_of_fixture();
    struct decoder d;
    struct rank_state rank;
    struct activations a = {0};
    struct memory m;
    struct ops ops;
    struct step_scalars scalars = {.grad_scale = 1.0 / T};
    if (dt == DTYPE_F64)
        ops_oracle(&ops);
    else
        ok(ops_cpu(&ops, NULL));
    ok(decoder_init(&d, &spec, NULL));
    ok(plan_reserve(
        &m, &d, &rank, &a,
        &(struct plan_layout_args){
            .use = PLAN_TRAIN, .ops = &ops, .dt = dt, .optim = OPTIM_ADAMW, .tokens = T, .positions = T}));
    struct exec run = {.ops = &ops, .params = &d.params, .scalars = &scalars};
    FILE *f = fopen(TEST_SOURCE_DIR "/tests/fixtures/hrm.bin", "rb");
    assert_non_null(f);
    int32_t ids[2][T], positions[T], cu[2] = {0, T};
    for (int i = 0; i < 2 * T; i++) ids[i / T][i % T] = (int32_t)next(f);
    for (int i = 0; i < T; i++) positions[i] = i;
    const struct batch b = {.rows = T,
                            .docs = 1,
                            .len_max = T,
                            .tokens = ids[0],
                            .targets = ids[1],
                            .positions = positions,
                            .cu_seqlens = cu};
    for (int i = 0; i < d.params.count; i++)
        for (int64_t k = 0; k < d.params.rows[i].count; k++)
            dtype_store(params_master(&d.params, i), k, dtype_acc(dt), next(f));
    double logits[T * V];
    ok(decoder_fwd(&d, &a, &b, &run));
    ok(head_logits(&d.head, a.y,
                   (struct tensor){.data = logits, .dt = dtype_acc(dt), .rank = 2, .shape = {T, V}}, &run));
    compare(f, "logits", logits, T * V, dtype_acc(dt), dt == DTYPE_F64 ? 1e-6 : 1e-5);
    ok(decoder_fwd_bwd(&d, &a, &b, 0, &run));
    for (int i = 0; i < d.params.count; i++)
        compare(f, d.params.rows[i].name, params_grad(&d.params, i), d.params.rows[i].count, dtype_acc(dt),
                dt == DTYPE_F64 ? 1e-6 : 1e-4);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    activations_fini(&a);
    decoder_fini(&d);
    memory_free(&m);
}

static void logits_and_gradients_are_those_of_autograd(void **state)
{
    (void)state;
    check(DTYPE_F64);
    check(DTYPE_F32);
}

int main(void)
{
    parallel_threads_set(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_gradients_are_those_of_autograd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
