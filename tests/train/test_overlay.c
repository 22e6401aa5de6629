/* Gradients where activations were (plan/grad_overlay.h): the same bits as with an array of their own, whatever lay there before, in less memory. */
#include "plan/grad_overlay.h"
#include "train/support_overlay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static const char *const policies[] = {"none", "selective", "full"};

static void the_bits_are_those_of_gradients_apart(void **unused)
{
    (void)unused;
    for (int i = 0; i < 6 * OVERLAY_FAMILIES; i++)
        overlay_train_both(&overlay_families[i / 6], &(struct overlay_way){"cpu", i % 2 ? "bf16" : "fp32",
                                                                           policies[i % 6 / 2], "false"});
}

/* The distance to the last address that is still read. */
static size_t behind(const struct trainer *t, const void *grad, size_t end)
{
    const size_t at = (size_t)((const char *)grad - t->memory.act.base);
    assert_true(at >= end);
    return at - end;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Every unit is after what is still read when its own backward runs, and one of them directly after it. */
static void units_lie_behind_what_is_still_read(void **unused)
{
    (void)unused;
    for (int i = 0; i < 3 * OVERLAY_FAMILIES; i++) {
        const struct overlay_family *f = &overlay_families[i / 3];
        struct spec s;
        struct trainer t;
        overlay_spec(&s, f, &(struct overlay_way){"cpu", "bf16", policies[i % 3], "false"});
        overlay_open(&t, &s, f->name, true);
        const struct params *p = &t.decoder.params;
        const struct activations *a = &t.acts;
        const int layers = (int)s.model.layer_count;
        size_t slack = behind(&t, p->units[0].grad, a->act_front);
        for (int l = 0; l < layers; l++) {
            slack = least(slack, behind(&t, p->units[l + 1].grad, a->blocks[l].act_mixer));
            slack =
                least(slack, behind(&t, params_grad(p, t.decoder.blocks[l].norm2.w), a->blocks[l].act_end));
        }
        const struct tensor statistics[] = {a->norm.mean, a->norm.rstd};
        size_t end = (size_t)((const char *)a->s.data - t.memory.act.base) +
                     (size_t)tensor_count(a->s) * dtype_bytes(a->s.dt);
        for (int k = 0; k < 2; k++)
            if (statistics[k].rank) end += (size_t)tensor_count(statistics[k]) * sizeof(float);
        slack = least(slack, behind(&t, p->units[layers + 1].grad, end));
        assert_int_equal(slack, 0);
        trainer_close(&t);
    }
}

static void what_needs_its_gradients_longer_has_them_apart(void **unused)
{
    (void)unused;
    static const struct overlay_family others[] = {
        {"several micro-batches", {"train.batch_tokens=512"}},
        {"tied", {"model.tied_embeddings=true"}},
        {"extra predictions", {"model.mtp_depth=1"}},
        {"hierarchical", {"model.hrm_cycles=2", "model.hrm_low_layers=1"}}};
    const struct overlay_way way = {"cpu", "fp32", "none", "false"};
    struct mesh_shape shape = {.pp = 1, .dp = 2, .tp = 1, .chunks = 1, .zero = 1, .shard = 2};
    struct spec s;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        overlay_spec(&s, &others[i], &way);
        assert_false(plan_args(&s, NULL).overlay);
    }
    overlay_spec(&s, &overlay_families[0], &way);
    assert_null(overlay_apart(&s.model, &shape, 1));
    shape.zero = 2;
    assert_non_null(overlay_apart(&s.model, &shape, 1));
    shape.zero = 0, shape.pp = 2;
    assert_non_null(overlay_apart(&s.model, &shape, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_bits_are_those_of_gradients_apart),
                                       cmocka_unit_test(units_lie_behind_what_is_still_read),
                                       cmocka_unit_test(what_needs_its_gradients_longer_has_them_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
