/* The slots that units of ZeRO 2 and 3 pass through: of a unit at work nothing is overwritten, and what comes next is there before. On the
 * host an exchange is done when it is queued, so a slot that is filled too early shows what a GPU's would show at times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "parallel/zero.h"

enum { BLOCKS = 5, END = BLOCKS + 1, UNITS = END + 2 /* an extra prediction */, EXPERTS = UNITS, WITH = 3 };
struct fixture {
    struct params p;
    struct arena param, grad;
    struct mesh mesh;
    struct grad_reduce grad_reduce;
    struct side_stream side_stream;
    struct ops ops;
    struct zero zero;
};

/* One rank: its all-gather is a copy of its own data. */
static void fixture_open(struct fixture *f, bool stays, int64_t groups)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(arena_reserve(&f->param, "weights", 1 << 22), STATUS_OK);
    assert_int_equal(arena_reserve(&f->grad, "gradients", 1 << 23), STATUS_OK);
    for (int u = 0; u < UNITS; u++) {
        params_unit(&f->p);
        params_add(&f->p, ROLE_MATRIX, 0, 64, 100 + u, "unit.%d", u);
    }
    params_experts(&f->p, WITH);
    params_add(&f->p, ROLE_MATRIX, 0, 64, 300, "experts of block %d", WITH);
    f->p.zero = 3, f->p.shards = f->p.expert_shards = 1;
    params_lay(&f->p, &(struct params_lay_args){
                          .dt = DTYPE_F32, .with_grad = 1, .arenas = {&f->param, &f->grad, &f->param}});
    f->mesh =
        mesh_place(&(struct mesh_shape){.pp = 1, .dp = 1, .tp = 1, .chunks = 1, .zero = 3, .shard = 1}, 0);
    assert_int_equal(ops_cpu(&f->ops, NULL), STATUS_OK);
    grad_reduce_lay(&f->grad_reduce, &f->mesh, groups, &f->p, &f->grad);
    zero_lay(&f->zero, &f->p,
             &(struct zero_lay){.mesh = &f->mesh,
                                .param = &f->param,
                                .grad = &f->grad,
                                .train = 1,
                                .end = END,
                                .stores = 1,
                                .embedding_resident = stays});
    assert_int_equal(side_stream_open(&f->side_stream, NULL), STATUS_OK);
    assert_int_equal(zero_open(&f->zero, &(struct zero_open){.grad_reduce = &f->grad_reduce,
                                                             .ops = &f->ops,
                                                             .side_stream = &f->side_stream}),
                     STATUS_OK);
    zero_invalidate(&f->zero);
}

static void fixture_close(struct fixture *f)
{
    zero_close(&f->zero);
    side_stream_close(&f->side_stream);
    params_free(&f->p);
    arena_free(&f->param);
    arena_free(&f->grad);
}

static void fill(const struct params *p, float *x, int unit, float value)
{
    for (int64_t i = 0; i < p->units[unit].count; i++) x[i] = value;
}

static void holds(const struct params *p, const float *x, int unit, float value)
{
    assert_non_null(x);
    for (int64_t i = 0; i < p->units[unit].count; i++)
        if (x[i] != value)
            fail_msg("unit %d: element %lld is %g, not %g", unit, (long long)i, (double)x[i], (double)value);
}

static void own_is(struct fixture *f, int unit, float value)
{
    fill(&f->p, (float *)f->p.weight + f->p.units[unit].begin, unit, value);
}

/* Enters a unit; `next` (-1: none) is on its way from then on: what its weights become later is not seen. */
static void enter(struct fixture *f, int unit, enum unit_use use, int next)
{
    assert_int_equal(params_unshard(&f->p, unit, use), STATUS_OK);
    if (use == UNIT_FORWARD || unit > 0) holds(&f->p, f->p.units[unit].weight, unit, (float)unit);
    for (int u = 0; u < UNITS; u++) own_is(f, u, u == next || u == unit ? -1 : (float)u);
}

static void weights_of_the_next_unit_are_on_their_way(void **state)
{
    (void)state;
    for (int stays = 0; stays <= 1; stays++) {
        struct fixture f;
        fixture_open(&f, stays, 2);
        for (int u = 0; u < UNITS; u++) own_is(&f, u, (float)u);
        assert_int_equal(zero_all_gather_weights(&f.zero), STATUS_OK);
        if (stays) own_is(&f, 0, -1); /* is there from then on */
        zero_invalidate(&f.zero);
        for (int k = 0; k < 2; k++) {
            f.zero.group = k;
            for (int u = 0; u <= END; u++) enter(&f, u, UNIT_FORWARD, u < END ? u + 1 : -1);
            if (stays) { /* an MTP module comes after the end */
                enter(&f, END, UNIT_BACKWARD, BLOCKS);
                enter(&f, END + 1, UNIT_FORWARD, -1);
                enter(&f, END + 1, UNIT_BACKWARD, BLOCKS);
            }
            for (int u = BLOCKS; u > 0; u--) enter(&f, u, UNIT_BACKWARD, u > 1 || k == 0 ? u - 1 : -1);
            enter(&f, 0, UNIT_BACKWARD, k == 0 ? 0 : -1);
        }
        fixture_close(&f);
    }
}

static void a_block_that_is_left_keeps_its_gradients(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, true, 1);
    for (int u = 0; u < UNITS; u++) own_is(&f, u, (float)u);
    float *before = NULL;
    for (int u = BLOCKS; u > 0; u--) {
        assert_int_equal(params_unshard(&f.p, u, UNIT_BACKWARD), STATUS_OK);
        holds(&f.p, f.p.units[u].grad, u, 0);
        if (before) holds(&f.p, before, u, (float)(u + 1)); /* its sum may be under way */
        before = f.p.units[u].grad;
        fill(&f.p, before, u, (float)u);
        fill(&f.p, before, u + 1, (float)u); /* to the end of the place */
        assert_int_equal(params_reshard(&f.p, u), STATUS_OK);
        assert_null(f.p.units[u].grad);
    }
    fixture_close(&f);
}

/* The experts of a block, a unit of their own, are there while the block computes; their gradients are complete with those of inputs. */
static void experts_come_and_go_with_their_block(void **state)
{
    (void)state;
    for (int half = ZERO_WHOLE; half <= ZERO_INPUTS; half++) {
        struct fixture f;
        fixture_open(&f, false, 1);
        struct param_unit *experts = &f.p.units[EXPERTS];
        own_is(&f, EXPERTS, 7);
        for (int u = 0; u <= END; u++) {
            assert_int_equal(params_unshard(&f.p, u, UNIT_FORWARD), STATUS_OK);
            if (u < WITH) assert_null(experts->weight);
            if (u == WITH) holds(&f.p, experts->weight, EXPERTS, 7);
            assert_null(experts->grad);
        }
        f.zero.half = (enum zero_half)half;
        for (int u = BLOCKS; u > 0; u--) {
            assert_int_equal(params_unshard(&f.p, u, UNIT_BACKWARD), STATUS_OK);
            assert_true((experts->grad != NULL) == (u == WITH));
            if (u == WITH) holds(&f.p, experts->weight, EXPERTS, 7);
            if (u == WITH) holds(&f.p, experts->grad, EXPERTS, 0);
            assert_int_equal(params_reshard(&f.p, u), STATUS_OK);
            assert_null(experts->grad);
        }
        f.zero.half = ZERO_WEIGHTS;
        for (int u = BLOCKS; u > 0 && half == ZERO_INPUTS; u--) {
            assert_int_equal(params_unshard(&f.p, u, UNIT_BACKWARD), STATUS_OK);
            assert_null(experts->grad);
            assert_int_equal(params_reshard(&f.p, u), STATUS_OK);
        }
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_of_the_next_unit_are_on_their_way),
                                       cmocka_unit_test(a_block_that_is_left_keeps_its_gradients),
                                       cmocka_unit_test(experts_come_and_go_with_their_block)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
