/* Goal: the schedules of exchanges between GPUs give every rank its result, whatever the pace of the ranks, and never wait in a circle.
 * Method: all ranks' lists are walked through move by move, in many random orders that the waits allow; chunks are single floats, poisoned
 * before. Sums must have the bits of comm.h's order. */
#include "comm/gpu/p2p_schedule.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { CHUNKS = 4 * P2P_RANKS_MAX, ORDERS = 60 };
#define POISON 1e30f

struct device_state {
    struct p2p_schedule s;
    float memory[3][CHUNKS];
    int step, move; /* moves done in the step; -1: it has not begun */
    uint32_t told[P2P_RANKS_MAX];
};
struct job {
    enum p2p_op op;
    enum p2p_algo way;
    int ranks;
    bool in_place;
    struct device_state ranks_of[P2P_RANKS_MAX];
};

static float value(int rank, int chunk)
{
    return (float)(rng_uniform(3, RNG_TEST, (uint64_t)rank, (uint64_t)chunk) - 0.5);
}

static float tree(int first, int apart, int ranks, int chunk)
{
    if (first + apart >= ranks) return value(first, chunk);
    return tree(first, 2 * apart, ranks, chunk) + tree(first + apart, 2 * apart, ranks, chunk);
}

/* Where a buffer's chunk is: in place, IN is a part of OUT or OUT a part of IN. */
static float *at(struct job *j, int rank, struct p2p_place p)
{
    struct device_state *c = &j->ranks_of[rank];
    int buffer = p.buffer, chunk = p.chunk;
    assert_true(chunk < (buffer == P2P_IN ? c->s.in : buffer == P2P_OUT ? c->s.out : c->s.work));
    if (j->in_place && buffer == P2P_OUT) {
        if (j->op == P2P_REDUCE_SCATTER) chunk = rank;
        buffer = P2P_IN;
    } else if (j->in_place && buffer == P2P_IN && j->op == P2P_ALL_GATHER) {
        chunk = rank;
    }
    return &c->memory[buffer][chunk];
}

static void set_up(struct job *j)
{
    for (int r = 0; r < j->ranks; r++) {
        struct device_state *c = &j->ranks_of[r];
        memset(c, 0, sizeof *c);
        assert_int_equal(p2p_schedule_fill(&c->s, j->op, j->way, r, j->ranks), STATUS_OK);
        assert_int_equal(c->s.step_count, j->ranks_of[0].s.step_count);
        assert_true(c->s.work <= CHUNKS);
        for (int b = 0; b < 3; b++)
            for (int i = 0; i < CHUNKS; i++) c->memory[b][i] = POISON;
        for (int i = 0; i < c->s.in; i++) *at(j, r, (struct p2p_place){P2P_IN, (uint8_t)i}) = value(r, i);
        c->move = -1;
    }
}

static void carry_out(struct job *j, int rank, const struct p2p_schedule_move *m)
{
    const bool put = m->kind == P2P_PUT;
    float *to = at(j, put ? m->rank : rank, m->to);
    const float from = m->kind == P2P_TREE ? 0 : *at(j, put ? rank : m->rank, m->from);
    if (m->kind == P2P_COPY || put) *to = from;
    if (m->kind == P2P_ADD) *to = from + *at(j, rank, m->plus);
    if (m->kind != P2P_TREE) return;
    float x[P2P_RANKS_MAX] = {0};
    for (int r = 0; r < j->ranks; r++) x[r] = *at(j, r, m->from);
    for (int apart = P2P_RANKS_MAX / 2; apart > 0;
         apart /= 2) /* the tree from its leaves up, another way than the schedules' */
        for (int r = 0; r < apart; r++)
            if (r + apart < j->ranks) x[r] += x[r + apart];
    *to = x[0];
}

/* One action of one rank, when its waits allow it; false: it waits, or has ended. */
static bool act(struct job *j, int rank)
{
    struct device_state *c = &j->ranks_of[rank];
    if (c->step == c->s.step_count) return false;
    const struct p2p_schedule_step *step = &c->s.steps[c->step];
    if (c->move < 0) {
        for (int p = 0; p < j->ranks; p++)
            if (step->tell >> p & 1) j->ranks_of[p].told[rank] = (uint32_t)c->step + 1;
        for (int p = 0; p < j->ranks; p++)
            if ((step->wait >> p & 1) && c->told[p] < (uint32_t)c->step + 1) return false;
        c->move = 0;
        return true;
    }
    if (step->begin + c->move < step->end) {
        carry_out(j, rank, &c->s.moves[step->begin + c->move++]);
        return true;
    }
    c->step++, c->move = -1;
    return true;
}

static void walk(struct job *j, uint64_t order)
{
    int idle = 0;
    set_up(j);
    for (uint64_t n = 0; idle < 1000; n++) {
        const double u = rng_uniform(order, RNG_TEST, 1, n);
        const int favourite =
            (int)(order % (uint64_t)j->ranks); /* who is ahead of the others in most orders */
        const int rank = u < 0.5 ? favourite : (int)(2 * (u - 0.5) * j->ranks);
        idle = act(j, rank) ? 0 : idle + 1;
    }
    for (int r = 0; r < j->ranks; r++) assert_int_equal(j->ranks_of[r].step, j->ranks_of[r].s.step_count);
}

static void expect(struct job *j)
{
    for (int r = 0; r < j->ranks; r++)
        for (int c = 0; c < j->ranks_of[r].s.out; c++) {
            float want = 0;
            if (j->op == P2P_ALL_TO_ALL) want = value(c, r);
            if (j->op == P2P_ALL_GATHER) want = value(c, 0);
            if (j->op == P2P_REDUCE_SCATTER) want = tree(0, 1, j->ranks, r);
            if (j->op == P2P_ALL_REDUCE) want = tree(0, 1, j->ranks, c);
            const float got = *at(j, r, (struct p2p_place){P2P_OUT, (uint8_t)c});
            if (memcmp(&got, &want, sizeof got) != 0)
                fail_msg("%s %s%s of %d ranks: rank %d chunk %d is %.9g, and should be %.9g",
                         p2p_algo_text(j->way), p2p_op_text(j->op), j->in_place ? " in place" : "", j->ranks,
                         r, c, (double)got, (double)want);
        }
}

/* Ways with steps to walk through. */
static bool walks(enum p2p_op op, enum p2p_algo way, int ranks)
{
    return way != P2P_LL && p2p_algo_supports(way, op, ranks, 4);
}

static void every_order_gives_every_rank_its_result(void **state)
{
    (void)state;
    for (enum p2p_op op = 0; op < P2P_OP_COUNT; op++)
        for (enum p2p_algo way = 0; way < P2P_ALGO_COUNT; way++)
            for (int ranks = 1; ranks <= P2P_RANKS_MAX; ranks++)
                for (int in_place = 0; in_place < 2; in_place++) {
                    struct job j = {.op = op, .way = way, .ranks = ranks, .in_place = in_place};
                    if (!walks(op, way, ranks)) continue;
                    if (in_place && (op == P2P_ALL_TO_ALL || way == P2P_ONE_SHOT)) continue;
                    for (uint64_t order = 0; order < ORDERS; order++) {
                        walk(&j, order);
                        expect(&j);
                    }
                }
}

/* Whoever waits for a rank is told by it, in the same step; one partner at a time but in the direct way. */
static void tells_and_waits_fit(void **state)
{
    (void)state;
    for (enum p2p_op op = 0; op < P2P_OP_COUNT; op++)
        for (enum p2p_algo way = 0; way < P2P_ALGO_COUNT; way++)
            for (int ranks = 2; ranks <= P2P_RANKS_MAX; ranks++) {
                struct job j = {.op = op, .way = way, .ranks = ranks};
                if (!walks(op, way, ranks)) continue;
                set_up(&j);
                for (int r = 0; r < ranks; r++)
                    for (int k = 0; k < j.ranks_of[r].s.step_count; k++) {
                        const struct p2p_schedule_step *step = &j.ranks_of[r].s.steps[k];
                        for (int p = 0; p < ranks; p++)
                            assert_int_equal(step->wait >> p & 1, j.ranks_of[p].s.steps[k].tell >> r & 1);
                        assert_int_equal(step->wait >> r & 1, 0);
                        assert_int_equal(__builtin_popcount(step->wait),
                                         way == P2P_RING || way == P2P_HYPERCUBE ? 1 : ranks - 1);
                    }
            }
}

/* Chunks that a rank reads from others, and writes to them: what makes a way fast or slow. */
static int chunks_moved(enum p2p_op op, enum p2p_algo way, int ranks)
{
    struct p2p_schedule s;
    int count = 0;
    assert_int_equal(p2p_schedule_fill(&s, op, way, 0, ranks), STATUS_OK);
    for (int i = 0; i < s.move_count; i++)
        count += s.moves[i].kind == P2P_TREE ? ranks - 1 : s.moves[i].rank != 0;
    return count;
}

static void traffic_is_as_the_header_says(void **state)
{
    (void)state;
    for (enum p2p_algo way = P2P_DIRECT; way <= P2P_HYPERCUBE; way++) {
        assert_int_equal(chunks_moved(P2P_ALL_GATHER, way, 8), 7);
        assert_int_equal(chunks_moved(P2P_REDUCE_SCATTER, way, 8), 7);
        assert_int_equal(chunks_moved(P2P_ALL_REDUCE, way, 8), 14);
    }
    assert_int_equal(chunks_moved(P2P_ALL_TO_ALL, P2P_DIRECT, 8), 7);
    assert_int_equal(chunks_moved(P2P_ALL_TO_ALL, P2P_RING, 8), 7);
    assert_int_equal(chunks_moved(P2P_ALL_TO_ALL, P2P_HYPERCUBE, 8), 12); /* half of all, three times */
    assert_int_equal(chunks_moved(P2P_ALL_REDUCE, P2P_ONE_SHOT, 8), 56);
}

static void what_cannot_be_is_refused(void **state)
{
    struct p2p_schedule s;
    (void)state;
    assert_int_equal(p2p_schedule_fill(&s, P2P_ALL_GATHER, P2P_HYPERCUBE, 0, 6), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "power of two"));
    assert_int_equal(p2p_schedule_fill(&s, P2P_ALL_GATHER, P2P_DIRECT, 0, P2P_RANKS_MAX + 1), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "at most 8"));
    assert_false(p2p_algo_supports(P2P_HYPERCUBE, P2P_ALL_GATHER, 6, 4));
    assert_false(p2p_algo_supports(P2P_RING, P2P_ALL_GATHER, P2P_RANKS_MAX + 1, 4));
    assert_true(p2p_algo_supports(P2P_LL, P2P_ALL_GATHER, 4, P2P_LL_FLOATS));
    assert_true(p2p_algo_supports(P2P_LL, P2P_ALL_GATHER, 4, 6));
    assert_false(p2p_algo_supports(P2P_LL, P2P_ALL_GATHER, 4, 5));
    assert_false(p2p_algo_supports(P2P_DIRECT, P2P_ALL_GATHER, 4, 6));
    assert_false(p2p_algo_supports(P2P_LL, P2P_ALL_REDUCE, 4, P2P_LL_FLOATS));
    assert_int_equal(p2p_schedule_fill(&s, P2P_ALL_GATHER, P2P_ONE_SHOT, 0, 4), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "all_reduce"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_gives_every_rank_its_result),
        cmocka_unit_test(tells_and_waits_fit),
        cmocka_unit_test(traffic_is_as_the_header_says),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
