/* Goal: heads that halt do what ops/ops_halt.h says. Method: by hand on small batches; the gradient by differences of the loss. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "ops/ops.h"

enum { DOCS = 4, ROWS = 9, D = 3, SEGMENTS = 3, NONE = TARGET_IGNORE };
static const int32_t cu[] = {0, 3, 3, 5, ROWS}; /* the second document is empty */

static void a_document_stops_where_halting_promises_more(void **state)
{
    (void)state;
    struct ops o;
    ops_oracle(&o);
    /* [segment][document]: the first stops at once, the third at the second segment, the last only where it must */
    const double q[SEGMENTS][DOCS][2] = {
        {{1, 0}, {0, 0}, {0, 1}, {2, 2}}, {{0, 1}, {0, 0}, {1, 0}, {0, 1}}, {{0, 1}, {0, 0}, {0, 1}, {0, 1}}};
    const int32_t tokens[ROWS] = {0}, targets[ROWS] = {1, 2, NONE, 3, 4, 5, 6, 7, 8};
    const uint64_t step = 0;
    int32_t stop[DOCS], masked[SEGMENTS][ROWS];
    struct halt_stop_args a = {.q = q,
                               .tokens = tokens,
                               .targets = targets,
                               .cu_seqlens = cu,
                               .step = &step,
                               .stop = stop,
                               .masked = masked[0],
                               .docs = DOCS,
                               .rows = ROWS,
                               .segments = SEGMENTS,
                               .dt = DTYPE_F64};
    assert_int_equal(o.halt_stop(&a, NULL), STATUS_OK);
    const int32_t want[] = {1, SEGMENTS, 2, SEGMENTS};
    assert_memory_equal(stop, want, sizeof want);
    const int32_t later[] = {NONE, NONE, NONE, 3, 4, 5, 6, 7, 8},
                  last[] = {NONE, NONE, NONE, NONE, NONE, 5, 6, 7, 8};
    assert_memory_equal(masked[0], targets, sizeof targets);
    assert_memory_equal(masked[1], later, sizeof later);
    assert_memory_equal(masked[2], last, sizeof last);
}

/* A document that would stop at once continues for at least the number drawn: 2 to SEGMENTS, each about
 * equally often. Its position and its neighbours do not matter. */
static void exploration_draws_by_document_and_step(void **state)
{
    (void)state;
    struct ops o;
    ops_oracle(&o);
    enum { STEPS = 400 };
    double q[SEGMENTS][2][2] = {{{0}}};
    for (int i = 0; i < SEGMENTS * 2; i++) q[i / 2][i % 2][0] = 1;
    int seen[SEGMENTS + 1] = {0};
    for (uint64_t step = 0; step < STEPS; step++) {
        const int32_t tokens[2][4] = {{7, 8, 9, 1}, {1, 7, 8, 9}}, targets[4] = {0},
                      places[2][3] = {{0, 3, 4}, {0, 1, 4}};
        int32_t stop[2][2], masked[SEGMENTS * 4];
        for (int i = 0; i < 2; i++) {
            struct halt_stop_args a = {.q = q,
                                       .tokens = tokens[i],
                                       .targets = targets,
                                       .cu_seqlens = places[i],
                                       .step = &step,
                                       .stop = stop[i],
                                       .masked = masked,
                                       .docs = 2,
                                       .rows = 4,
                                       .segments = SEGMENTS,
                                       .explore = 0.5,
                                       .dt = DTYPE_F64};
            assert_int_equal(o.halt_stop(&a, NULL), STATUS_OK);
        }
        assert_true(stop[0][0] == stop[1][1] && stop[0][1] == stop[1][0]);
        seen[stop[0][0]]++;
    }
    assert_true(abs(seen[1] - STEPS / 2) < 60 && abs(seen[2] - STEPS / 4) < 50 &&
                abs(seen[3] - STEPS / 4) < 50);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The first document is right, the third not, the last takes no part any more, the second is empty. */
static double loss_at(const double *z, const double *w, const double *b, int64_t m, double *grads)
{
    struct ops o;
    ops_oracle(&o);
    const double hits[ROWS] = {1, 1, 0, 1, 0, 1, 1, 1, 1}, scale = 0.3;
    const double next[DOCS][2] = {{0.5, -1}, {0}, {-1, 2}, {0}};
    const int32_t targets[ROWS] = {1, 2, NONE, 3, 4, NONE, NONE, NONE, NONE}, stop[DOCS] = {3, 3, 3, 1};
    double q[DOCS][2], loss = 0, *dz = grads, *dw = grads + ROWS * D, *db = dw + 2 * D;
    assert_int_equal(
        o.halt_fwd(
            &(struct halt_fwd_args){
                .z = z, .w = w, .b = b, .q = q, .cu_seqlens = cu, .docs = DOCS, .d = D, .dt = DTYPE_F64},
            NULL),
        STATUS_OK);
    memset(grads, 0, (ROWS * D + 2 * D + 2) * sizeof *grads);
    assert_int_equal(o.halt_bwd(&(struct halt_bwd_args){.q = q,
                                                        .q_next = next,
                                                        .stop = stop,
                                                        .targets = targets,
                                                        .hits = hits,
                                                        .z = z,
                                                        .w = w,
                                                        .cu_seqlens = cu,
                                                        .scale = &scale,
                                                        .loss_sum = &loss,
                                                        .dz = dz,
                                                        .dw = dw,
                                                        .db = db,
                                                        .docs = DOCS,
                                                        .d = D,
                                                        .m = m,
                                                        .segments = SEGMENTS,
                                                        .dt = DTYPE_F64},
                                NULL),
                     STATUS_OK);
    const double right[] = {1, 0}, worth[] = {sigmoid(0.5), sigmoid(m < SEGMENTS ? 2 : -1)};
    double want = 0;
    for (int i = 0; i < 2; i++) {
        const double h = sigmoid(q[2 * i][0]), c = sigmoid(q[2 * i][1]);
        want -= (right[i] * log(h) + (1 - right[i]) * log(1 - h)) / 2;
        want -= (worth[i] * log(c) + (1 - worth[i]) * log(1 - c)) / 2;
    }
    assert_true(fabs(want - loss) < 1e-12 * want);
    return loss * scale;
}

static void the_heads_gradient_is_that_of_its_loss(void **state)
{
    (void)state;
    enum { COUNT = ROWS * D + 2 * D + 2 };
    for (int64_t m = 2; m <= SEGMENTS; m++) {
        double x[COUNT], grads[COUNT], unused[COUNT];
        for (int i = 0; i < COUNT; i++) x[i] = sin(3 * i + 1);
        loss_at(x, x + ROWS * D, x + ROWS * D + 2 * D, m, grads);
        for (int i = 0; i < COUNT; i++) {
            const double keep = x[i], h = 1e-5;
            x[i] = keep + h;
            const double up = loss_at(x, x + ROWS * D, x + ROWS * D + 2 * D, m, unused);
            x[i] = keep - h;
            const double down = loss_at(x, x + ROWS * D, x + ROWS * D + 2 * D, m, unused);
            x[i] = keep;
            if (fabs((up - down) / (2 * h) - grads[i]) > 1e-9)
                fail_msg("segment %d, %d: %g", (int)m, i, grads[i]);
        }
        assert_true(grads[2 * D] != 0 && grads[D] == 0 && grads[ROWS * D] != 0);
    }
}

int main(void)
{
    parallel_threads_set(0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_document_stops_where_halting_promises_more),
        cmocka_unit_test(exploration_draws_by_document_and_step),
        cmocka_unit_test(the_heads_gradient_is_that_of_its_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
