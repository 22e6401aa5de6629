/* Schedules of pipelines: bubbles and peaks are those of the published formulas, broken schedules are found, and no depth of mailboxes
 * that a run takes lets the ranks wait for each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "parallel/pipeline_order.h"

static const struct pipeline_stage_time TIMES[] = {{1, 1, 1}, {1, 1.25, 1}, {2, 3, 1.5}, {4, 4.5, 3.25}};
enum { TIME_COUNT = sizeof TIMES / sizeof TIMES[0], STAGES_MAX = 64 };

static struct pipeline_simulated simulate(const struct pipeline_schedule *s, struct pipeline_stage_time t,
                                          double message, int depth)
{
    struct pipeline_stage_time stages[STAGES_MAX];
    struct pipeline_simulated out;
    for (int i = 0; i < s->ranks * s->chunks; i++)
        stages[i] =
            (struct pipeline_stage_time){t.forward / s->chunks, t.dgrad / s->chunks, t.wgrad / s->chunks};
    const struct pipeline_simulate_args a = {.stages = stages, .message = message, .depth = depth};
    if (pipeline_simulate(s, &a, &out) != STATUS_OK) fail_msg("%s", status_message());
    return out;
}

static double formula(const struct pipeline_schedule *s, struct pipeline_stage_time t)
{
    const double late = s->ranks - 1;
    if (s->kind == PIPELINE_ZB_H1) return late * (t.forward + t.dgrad - t.wgrad);
    return late * (t.forward + t.dgrad + t.wgrad) / s->chunks;
}

static void bubble_is_the_formula(enum pipeline_kind kind, int ranks, int micros, int chunks)
{
    struct pipeline_schedule s;
    assert_int_equal(pipeline_schedule_build(&s, kind, ranks, micros, chunks), STATUS_OK);
    for (int i = 0; i < TIME_COUNT; i++) {
        const struct pipeline_stage_time t = TIMES[i];
        const double busy = micros * (t.forward + t.dgrad + t.wgrad), want = formula(&s, t);
        const struct pipeline_simulated out = simulate(&s, t, 0, 0);
        if (fabs(out.makespan - busy - want) > 1e-9 * out.makespan)
            fail_msg("kind %d, p %d, m %d, v %d, times %d: bubble %.15g, expected %.15g", (int)kind, ranks,
                     micros, chunks, i, out.makespan - busy, want);
        if (fabs(out.bubble - want / (busy + want)) > 1e-9) fail_msg("bubble %.15g", out.bubble);
        for (int r = 0; r < ranks; r++)
            if (fabs(out.waited[r] - want) > 1e-9 * out.makespan) fail_msg("rank %d: %g", r, out.waited[r]);
    }
    pipeline_schedule_free(&s);
}

static void bubbles_are_the_formulas(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p++) {
        for (int m = 1; m <= 4 * p + 3; m++) {
            bubble_is_the_formula(PIPELINE_GPIPE, p, m, 1);
            bubble_is_the_formula(PIPELINE_1F1B, p, m, 1);
            if (m >= 2 * p) bubble_is_the_formula(PIPELINE_ZB_H1, p, m, 1);
            for (int v = 2; v <= 4 && p > 1; v++)
                if (m >= p) bubble_is_the_formula(PIPELINE_INTERLEAVED, p, m, v);
        }
    }
}

static int at_most(int n, int limit)
{
    return n < limit ? n : limit;
}

static void what_is_held_is_the_formula(void **state)
{
    (void)state;
    struct pipeline_schedule s;
    for (int p = 1; p <= 8; p++) {
        for (int m = 1; m <= 3 * p; m++) {
            assert_int_equal(pipeline_schedule_build(&s, PIPELINE_GPIPE, p, m, 1), STATUS_OK);
            for (int i = 0; i < p; i++) assert_int_equal(s.rank[i].slots, m);
            pipeline_schedule_free(&s);
            assert_int_equal(pipeline_schedule_build(&s, PIPELINE_1F1B, p, m, 1), STATUS_OK);
            for (int i = 0; i < p; i++) assert_int_equal(s.rank[i].slots, at_most(m, p - i));
            pipeline_schedule_free(&s);
            assert_int_equal(pipeline_schedule_build(&s, PIPELINE_ZB_H1, p, m, 1), STATUS_OK);
            for (int i = 0; i < p; i++) {
                assert_int_equal(s.rank[i].slots, at_most(m, p - i));
                assert_int_equal(s.rank[i].stores, at_most(m, i + 1));
            }
            pipeline_schedule_free(&s);
            for (int v = 2; v <= 3 && p > 1 && m % p == 0; v++) {
                assert_int_equal(pipeline_schedule_build(&s, PIPELINE_INTERLEAVED, p, m, v), STATUS_OK);
                for (int i = 0; i < p; i++)
                    assert_int_equal(s.rank[i].slots, at_most(m * v, 2 * (p - i - 1) + (v - 1) * p + 1));
                pipeline_schedule_free(&s);
            }
        }
    }
}

/* Two micro-batches that have the same set of activations, or the same store, at once would overwrite each other. */
static void nothing_is_shared_while_it_is_used(void **state)
{
    (void)state;
    static const struct {
        enum pipeline_kind kind;
        int ranks, micros, chunks;
    } cases[] = {{PIPELINE_GPIPE, 4, 8, 1},
                 {PIPELINE_1F1B, 4, 9, 1},
                 {PIPELINE_INTERLEAVED, 4, 9, 3},
                 {PIPELINE_ZB_H1, 4, 9, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pipeline_schedule s;
        assert_int_equal(
            pipeline_schedule_build(&s, cases[i].kind, cases[i].ranks, cases[i].micros, cases[i].chunks),
            STATUS_OK);
        for (int r = 0; r < s.ranks; r++) {
            int slots[STAGES_MAX], stores[STAGES_MAX];
            memset(slots, -1, sizeof slots);
            memset(stores, -1, sizeof stores);
            for (int k = 0; k < s.rank[r].count; k++) {
                const struct pipeline_action *a = &s.rank[r].actions[k];
                const int me = a->chunk * s.micros + a->micro;
                const bool takes = a->what == PIPELINE_F, keeps = a->what == PIPELINE_BI;
                if (a->what != PIPELINE_W) {
                    assert_in_range(a->slot, 0, s.rank[r].slots - 1);
                    assert_int_equal(slots[a->slot], takes ? -1 : me);
                    slots[a->slot] = takes ? me : -1;
                }
                if (keeps || a->what == PIPELINE_W) {
                    assert_in_range(a->store, 0, s.rank[r].stores - 1);
                    assert_int_equal(stores[a->store], keeps ? -1 : me);
                    stores[a->store] = keeps ? me : -1;
                }
            }
        }
        pipeline_schedule_free(&s);
    }
}

/* The mailbox depth of a run: the maximum of unread messages with unbounded mailboxes. Then no send waits for
 * space, whatever the times. */
static void the_unread_of_a_walk_are_room_enough(void **state)
{
    (void)state;
    struct pipeline_schedule s;
    for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_ZB_H1; kind++) {
        for (int p = 2; p <= 8; p++) {
            for (int m = p; m <= 3 * p + 1; m++) {
                for (int v = 1; v <= (kind == PIPELINE_INTERLEAVED ? 4 : 1); v++) {
                    assert_int_equal(pipeline_schedule_build(&s, (enum pipeline_kind)kind, p, m, v),
                                     STATUS_OK);
                    const int unread = simulate(&s, TIMES[0], 0, 0).unread;
                    const double free = simulate(&s, TIMES[0], 0, 0).makespan,
                                 roomy = simulate(&s, TIMES[0], 0, unread).makespan;
                    if (free != roomy) fail_msg("a mailbox of %d costs %g", unread, roomy - free);
                    simulate(&s, TIMES[1], 0.125, unread);
                    assert_true(unread <= (v > 1 ? s.group : 1));
                    pipeline_schedule_free(&s);
                }
            }
        }
    }
}

static void time_of_messages_and_of_uneven_stages_is_counted(void **state)
{
    (void)state;
    struct pipeline_schedule s;
    struct pipeline_simulated out;
    /* One micro-batch passes p stages and back: 2 (p - 1) messages. */
    assert_int_equal(pipeline_schedule_build(&s, PIPELINE_1F1B, 4, 1, 1), STATUS_OK);
    assert_true(fabs(simulate(&s, TIMES[0], 0.5, 0).makespan - (4 * 3 + 6 * 0.5)) < 1e-12);
    pipeline_schedule_free(&s);
    /* The slowest stage sets the pace. In addition it waits for the first F (1), for stage 2's B of that one
     * (3, minus its own second F, which takes 2), and stage 0 ends with a B (2). */
    const struct pipeline_stage_time stages[] = {{1, 1, 1}, {2, 2, 2}, {1, 1, 1}};
    assert_int_equal(pipeline_schedule_build(&s, PIPELINE_1F1B, 3, 30, 1), STATUS_OK);
    assert_int_equal(pipeline_simulate(&s, &(struct pipeline_simulate_args){.stages = stages}, &out),
                     STATUS_OK);
    assert_true(fabs(out.makespan - (30 * 6 + 1 + 1 + 2)) < 1e-9);
    assert_true(fabs(out.waited[1] - 4) < 1e-9);
    assert_true(fabs(out.waited[0] - 94) < 1e-9);
    pipeline_schedule_free(&s);
}

/* To the bit: plans were recorded with either. */
static void makespans_of_an_order_are_those_of_the_simulation(void **state)
{
    (void)state;
    struct pipeline_schedule s;
    struct pipeline_order o;
    struct pipeline_stage_time stages[STAGES_MAX];
    for (int i = 0; i < STAGES_MAX; i++)
        stages[i] =
            (struct pipeline_stage_time){1 + i * 7 % 5 / 3.0, 1 + i * 3 % 7 / 9.0, 1 + i * 5 % 3 / 7.0};
    for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_ZB_H1; kind++) {
        for (int p = 2; p <= 8; p++) {
            const int m = 2 * p + p % 3, v = kind == PIPELINE_INTERLEAVED ? 2 + p % 3 : 1;
            const double messages[2] = {0.3, 0};
            double makespans[2];
            int depth;
            assert_int_equal(pipeline_schedule_build(&s, (enum pipeline_kind)kind, p, m, v), STATUS_OK);
            assert_int_equal(pipeline_order_make(&o, &s), STATUS_OK);
            assert_int_equal(pipeline_schedule_depth(&s, &depth), STATUS_OK);
            assert_int_equal(o.depth, depth);
            for (int again = 0; again < 2; again++) pipeline_makespans(&o, stages, messages, makespans);
            for (int k = 0; k < 2; k++) {
                const struct pipeline_simulate_args a = {.stages = stages, .message = messages[k]};
                struct pipeline_simulated out;
                assert_int_equal(pipeline_simulate(&s, &a, &out), STATUS_OK);
                assert_memory_equal(&makespans[k], &out.makespan, sizeof(double));
            }
            assert_true(makespans[0] > makespans[1]);
            pipeline_order_free(&o);
            pipeline_schedule_free(&s);
        }
    }
}

static void says(status st, const char *words)
{
    assert_int_equal(st, STATUS_CONFIG);
    if (strstr(status_message(), words) == NULL) fail_msg("'%s' lacks '%s'", status_message(), words);
}

static void swap(struct pipeline_rank *r, int i, int j)
{
    const struct pipeline_action a = r->actions[i];
    r->actions[i] = r->actions[j];
    r->actions[j] = a;
}

static void broken_schedules_are_found(void **state)
{
    (void)state;
    const struct pipeline_stage_time stages[] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    struct pipeline_simulate_args a = {.stages = stages, .depth = 4};
    struct pipeline_simulated out;
    struct pipeline_schedule s;

    /* rank 0: F0 F1 F2 B0 ... -> F0 B0 F1 F2: fine. Rank 1 with two forwards ahead of rank 0's sends: waits for ever. */
    assert_int_equal(pipeline_schedule_build(&s, PIPELINE_1F1B, 2, 4, 1), STATUS_OK);
    swap(&s.rank[0], 1, 2); /* F0 B0 F1 ...: slower, and allowed */
    assert_int_equal(pipeline_schedule_check(&s), STATUS_OK);
    assert_int_equal(pipeline_simulate(&s, &a, &out), STATUS_OK);
    swap(&s.rank[1], 1, 2); /* rank 1: F0 F1 B0 ..., while rank 0 waits for B0 before F1 */
    assert_int_equal(pipeline_schedule_check(&s), STATUS_OK);
    says(pipeline_simulate(&s, &a, &out), "rank 0 waits for stage 1's message before B of micro-batch 0");
    pipeline_schedule_free(&s);

    /* The order of messages: rank 1 takes micro-batch 1's before 0's. */
    assert_int_equal(pipeline_schedule_build(&s, PIPELINE_INTERLEAVED, 2, 2, 2), STATUS_OK);
    swap(&s.rank[1], 1, 2);
    assert_int_equal(pipeline_schedule_check(&s), STATUS_OK);
    says(pipeline_simulate(&s, &a, &out), "rank 1, F of micro-batch 0, chunk 1, waits for stage 2 and finds");
    pipeline_schedule_free(&s);

    assert_int_equal(pipeline_schedule_build(&s, PIPELINE_ZB_H1, 2, 4, 1), STATUS_OK);
    s.rank[1].count--; /* a W is lost */
    says(pipeline_schedule_check(&s), "rank 1: chunk 0 ends with 4 F, 4 B or BI, 3 W of 4 micro-batches");
    s.rank[1].count++;
    swap(&s.rank[0], s.rank[0].count - 2, s.rank[0].count - 1);
    says(pipeline_schedule_check(&s), "rank 0: W of micro-batch 3, chunk 0, comes before its BI");
    pipeline_schedule_free(&s);

    /* Gradients would be summed in another order. */
    assert_int_equal(pipeline_schedule_build(&s, PIPELINE_GPIPE, 2, 4, 1), STATUS_OK);
    swap(&s.rank[1], 4, 5);
    says(pipeline_schedule_check(&s), "rank 1: B of micro-batch 1, chunk 0, comes too early");
    swap(&s.rank[1], 4, 5);
    s.rank[0].actions[1].micro = 0;
    says(pipeline_schedule_check(&s), "rank 0: F of micro-batch 0, chunk 0, is done a second time");
    pipeline_schedule_free(&s);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct pipeline_schedule s;
    says(pipeline_schedule_build(&s, PIPELINE_INTERLEAVED, 4, 3, 2),
         "3 micro-batches for an interleaved pipeline of 4 ranks");
    pipeline_schedule_free(&s);
    says(pipeline_schedule_build(&s, PIPELINE_1F1B, 4, 8, 2),
         "only the interleaved schedule has more than one");
    pipeline_schedule_free(&s);
    says(pipeline_schedule_build(&s, PIPELINE_INTERLEAVED, 1, 8, 2), "a pipeline of several ranks");
    pipeline_schedule_free(&s);
    says(pipeline_schedule_build(&s, PIPELINE_GPIPE, PIPELINE_RANKS_MAX + 1, 8, 1), "at most 256");
    pipeline_schedule_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubbles_are_the_formulas),
        cmocka_unit_test(what_is_held_is_the_formula),
        cmocka_unit_test(nothing_is_shared_while_it_is_used),
        cmocka_unit_test(the_unread_of_a_walk_are_room_enough),
        cmocka_unit_test(time_of_messages_and_of_uneven_stages_is_counted),
        cmocka_unit_test(makespans_of_an_order_are_those_of_the_simulation),
        cmocka_unit_test(broken_schedules_are_found),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
