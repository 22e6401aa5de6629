/* A run in FP8 on a GPU: the step that is captured anew at the switch has the bits of one that runs op by op; resumes on both sides of the
 * switch; recompute, offload and micro-batches; the losses of the CPU. */
#include "train/support_fp8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define GPU                                                                                                  \
    "machine.device=cuda", "model.hidden_size=64", "model.ffn_size=96", "model.context_length=64",           \
        "train.micro_batch=4", "train.batch_tokens=256"
enum { STEPS = 2 * FP8_WARMUP + 4 }; /* bf16: eager, captured, replayed; the same in FP8, and some more */

static void same_losses(struct trainer *a, struct trainer *b, const char *what)
{
    for (int i = 0; i < STEPS; i++) {
        const double x = fp8_step(a).loss, y = fp8_step(b).loss;
        if (x != y) fail_msg("%s, step %d: loss %.17g, not %.17g", what, i, y, x);
    }
    assert_int_equal(fp8_count(a), 8);
    fp8_same_state(a, b, what);
}

static void a_new_graph_has_the_bits_of_single_ops(void **unused)
{
    (void)unused;
    static const char *const uses[] = {"fp8.wgrad=fp8", "fp8.wgrad=bf16"};
    for (int i = 0; i < 2; i++) {
        struct trainer graph, eager;
        fp8_start(&graph, FP8_WITH(GPU, uses[i]));
        fp8_start(&eager, FP8_WITH(GPU, uses[i], "train.graph=false"));
        for (int k = 0; k < FP8_WARMUP; k++) (void)fp8_step(&graph), (void)fp8_step(&eager);
        assert_int_equal(graph.mode, STEP_REPLAY);
        const int64_t nodes = graph.graph.nodes;
        same_losses(&graph, &eager, uses[i]);
        assert_int_equal(graph.mode, STEP_REPLAY);
        assert_int_not_equal(graph.graph.nodes, nodes);
        trainer_close(&graph);
        trainer_close(&eager);
    }
}

static void a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(void **unused)
{
    (void)unused;
    const char *const keys[] = {GPU, NULL};
    static const int64_t saved_at[] = {FP8_WARMUP - 2, FP8_WARMUP, 2 * FP8_WARMUP + 1, 20};
    struct trainer t;
    fp8_start(&t, keys);
    for (int i = 0; i < 4; i++) fp8_resumed_at(&t, saved_at[i], keys);
    trainer_close(&t);
}

static void ways_to_save_memory_change_no_bit(void **unused)
{
    (void)unused;
    static const char *const keys[] = {"train.recompute=selective", "train.recompute=full",
                                       "memory.offload_optimizer=true"};
    for (int i = 0; i < 3; i++) {
        struct trainer plain, other;
        fp8_start(&plain, FP8_WITH(GPU));
        fp8_start(&other, FP8_WITH(GPU, keys[i]));
        for (int k = 0; k < STEPS; k++) {
            const double x = fp8_step(&plain).loss, y = fp8_step(&other).loss;
            if (x != y) fail_msg("%s, step %d: loss %.17g, not %.17g", keys[i], k, y, x);
        }
        trainer_close(&plain);
        trainer_close(&other);
    }
}

/* Two sets differ by roundings: where an element falls on the other side, a code differs by an eighth of its value. */
static void the_losses_are_those_of_the_cpu(void **unused)
{
    (void)unused;
    struct trainer gpu, cpu;
    fp8_start(&gpu, FP8_WITH(GPU, "optim.lr=1e-3"));
    fp8_start(&cpu, FP8_WITH(GPU, "optim.lr=1e-3", "machine.device=cpu"));
    for (int i = 0; i < STEPS; i++) {
        const double x = fp8_step(&cpu).loss, y = fp8_step(&gpu).loss;
        if (!(fabs(y / x - 1) < 1e-2)) fail_msg("step %d: loss %g, on the CPU %g", i, y, x);
    }
    assert_int_equal(fp8_count(&gpu), 8);
    trainer_close(&gpu);
    trainer_close(&cpu);
}

/* Experts of widths that Hopper's own grouped kernel takes, and of others. Each layer has two linears beside them. */
#define EXPERTS(size)                                                                                        \
    "machine.device=cuda", "model.hidden_size=128", "model.ffn_size=96", "model.context_length=64",          \
        "train.micro_batch=4", "train.batch_tokens=256", "model.layers=gqa/moe", "model.moe_experts=8",      \
        "model.moe_top_k=2", "model.moe_size=" size

static void experts_read_codes_and_no_way_of_running_changes_a_bit(void **unused)
{
    (void)unused;
    static const char *const ways[] = {"train.graph=false", "train.recompute=full",
                                       "train.recompute=selective"};
    for (int i = 0; i < 3; i++) {
        struct trainer plain, other;
        fp8_start(&plain, FP8_WITH(EXPERTS("128")));
        fp8_start(&other, FP8_WITH(EXPERTS("128"), ways[i]));
        for (int k = 0; k < STEPS; k++) {
            const double x = fp8_step(&plain).loss, y = fp8_step(&other).loss;
            if (x != y) fail_msg("%s, step %d: loss %.17g, not %.17g", ways[i], k, y, x);
        }
        assert_int_equal(fp8_count(&plain), 8);
        trainer_close(&plain);
        trainer_close(&other);
    }
    struct trainer t;
    const char *const keys[] = {EXPERTS("128"), NULL};
    fp8_start(&t, keys);
    fp8_resumed_at(&t, FP8_WARMUP - 1, keys);
    fp8_resumed_at(&t, FP8_WARMUP + 2, keys);
    trainer_close(&t);
}

static void losses_of_experts_are_those_of_the_cpu(void **unused)
{
    (void)unused;
    const char *const *const cases[] = {FP8_WITH(EXPERTS("128"), "optim.lr=1e-3"),
                                        FP8_WITH(EXPERTS("128"), "optim.lr=1e-3", "fp8.wgrad=bf16"),
                                        FP8_WITH(EXPERTS("48"), "optim.lr=1e-3")};
    const char *const *const on_cpu[] = {
        FP8_WITH(EXPERTS("128"), "optim.lr=1e-3", "machine.device=cpu"),
        FP8_WITH(EXPERTS("128"), "optim.lr=1e-3", "fp8.wgrad=bf16", "machine.device=cpu"),
        FP8_WITH(EXPERTS("48"), "optim.lr=1e-3", "machine.device=cpu")};
    for (int c = 0; c < 3; c++) {
        struct trainer gpu, cpu;
        fp8_start(&gpu, cases[c]);
        fp8_start(&cpu, on_cpu[c]);
        for (int i = 0; i < STEPS; i++) {
            const double x = fp8_step(&cpu).loss, y = fp8_step(&gpu).loss;
            if (!(fabs(y / x - 1) < 2e-2)) fail_msg("case %d, step %d: loss %g, on the CPU %g", c, i, y, x);
        }
        assert_int_equal(fp8_count(&gpu), 8);
        trainer_close(&gpu);
        trainer_close(&cpu);
    }
}

static void a_gpu_without_fp8_is_refused(void **unused)
{
    (void)unused;
    struct spec s;
    struct trainer t;
    fp8_spec(&s, FP8_WITH(GPU));
    assert_int_equal(trainer_open(&t, &s, NULL, NULL), STATUS_DEVICE);
    assert_non_null(strstr(status_message(), "has no FP8 tensor cores"));
}

int main(void)
{
    struct dev dev;
    if (dev_open(&dev, DEV_CUDA) != STATUS_OK) {
        printf("no GPU: %s\n", status_message());
        return 77;
    }
    const int sm = dev.sm;
    dev_close(&dev);
    const struct CMUnitTest old[] = {cmocka_unit_test(a_gpu_without_fp8_is_refused)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_graph_has_the_bits_of_single_ops),
        cmocka_unit_test(a_resumed_run_has_the_bits_of_one_that_was_not_interrupted),
        cmocka_unit_test(ways_to_save_memory_change_no_bit),
        cmocka_unit_test(the_losses_are_those_of_the_cpu),
        cmocka_unit_test(experts_read_codes_and_no_way_of_running_changes_a_bit),
        cmocka_unit_test(losses_of_experts_are_those_of_the_cpu),
    };
    return sm < 89 ? cmocka_run_group_tests(old, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
