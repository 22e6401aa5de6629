/* Goal: exchanges between cards give every rank its result, bit for bit, write nothing else, come out the same again and from a captured
 * graph, and end when a rank does not come. Method: up to eight ranks, on all cards that reach each other's memory, several to a card
 * where there are fewer (small grids run side by side); ugly sizes; canaries behind OUT and WORK; sums against comm.h's order on the host. */
#include "comm/peer.h"
#include "base/rng.h"
#include "dev/cuda_int.h"
#include "gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { CARDS_MAX = 16, FLOATS_MAX = 1 << 19, TAIL = 64, CANARY = 0x5A, TURNS = 3 };
static const int64_t counts[] = {4, 20, 2044, 2048, 2052, 40004};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static struct rank {
    struct dev dev;
    struct stream s;
    float *in, *out, *work;
    struct peer_flags *flags;
} ranks[PEER_RANKS_MAX];
static float *host_in[PEER_RANKS_MAX], *host_out[PEER_RANKS_MAX], *host_again;
static int cards, multiprocessors;

#define CUDA(call) assert_int_equal((call), cudaSuccess)

static void to_card(int r)
{
    CUDA(cudaSetDevice(ranks[r].dev.index));
}

static int set_up(void **state)
{
    struct dev first;
    int reach = 1;
    (void)state;
    assert_int_equal(dev_open(&first, DEV_CUDA), STATUS_OK);
    multiprocessors = first.multiprocessors;
    CUDA(cudaGetDeviceCount(&cards));
    if (cards > CARDS_MAX) cards = CARDS_MAX;
    for (int i = 0; i < cards; i++)
        for (int j = 0; j < cards; j++)
            if (i != j && reach) CUDA(cudaDeviceCanAccessPeer(&reach, i, j));
    if (!reach) cards = 1;
    for (int i = 0; i < cards; i++)
        for (int j = 0; j < cards; j++) {
            CUDA(cudaSetDevice(i));
            if (i != j) CUDA(cudaDeviceEnablePeerAccess(j, 0));
        }
    host_again = malloc(FLOATS_MAX * sizeof(float));
    assert_non_null(host_again);
    for (int r = 0; r < PEER_RANKS_MAX; r++) {
        struct rank *k = &ranks[r];
        k->dev = first, k->dev.index = r % cards;
        to_card(r);
        assert_int_equal(dev_stream_open(&k->dev, &k->s), STATUS_OK);
        CUDA(cudaMalloc((void **)&k->in, FLOATS_MAX * sizeof(float)));
        CUDA(cudaMalloc((void **)&k->out, FLOATS_MAX * sizeof(float)));
        CUDA(cudaMalloc((void **)&k->work, 2 * FLOATS_MAX * sizeof(float)));
        CUDA(cudaMalloc((void **)&k->flags, sizeof *k->flags));
        CUDA(cudaMemset(k->flags, 0, sizeof *k->flags));
        assert_int_equal(peer_load(), STATUS_OK);
        host_in[r] = malloc(FLOATS_MAX * sizeof(float));
        host_out[r] = malloc(FLOATS_MAX * sizeof(float));
        assert_true(host_in[r] && host_out[r]);
        for (int64_t i = 0; i < FLOATS_MAX; i++)
            host_in[r][i] = (float)rng_at(5, RNG_TEST, (uint64_t)r, (uint64_t)i).u[0] * 0x1p-31f - 1;
        CUDA(cudaMemcpy(k->in, host_in[r], FLOATS_MAX * sizeof(float), cudaMemcpyDefault));
    }
    printf("%d card%s\n", cards, cards == 1 ? "" : "s that reach each other");
    return 0;
}

static void wait_all(void)
{
    for (int i = 0; i < cards; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaDeviceSynchronize());
    }
}

static void clear_flags(void)
{
    for (int r = 0; r < PEER_RANKS_MAX; r++) CUDA(cudaMemset(ranks[r].flags, 0, sizeof *ranks[r].flags));
    wait_all();
}

struct job {
    enum peer_op op;
    enum peer_way way;
    int ranks, blocks;
    int64_t count;
    bool in_place;
    struct peer_schedule s[PEER_RANKS_MAX];
};

static float *out_of(const struct job *j, int r)
{
    if (!j->in_place) return ranks[r].out;
    return ranks[r].in + (j->op == PEER_REDUCE_SCATTER ? r * j->count : 0);
}

static void queue(struct job *j, int r)
{
    struct peer_exchange_args a = {
        .schedule = &j->s[r], .count = j->count, .blocks = j->blocks, .deadline_s = 5};
    for (int p = 0; p < j->ranks; p++) {
        a.in[p] = ranks[p].in + (j->in_place && j->op == PEER_ALL_GATHER ? p * j->count : 0);
        a.out[p] = out_of(j, p), a.work[p] = ranks[p].work, a.flags[p] = ranks[p].flags;
    }
    to_card(r);
    if (peer_exchange(&a, &ranks[r].s) != STATUS_OK) fail_msg("%s", status_message());
}

/* comm.h's order, from the leaves up. */
static float tree(int count, int64_t i)
{
    float x[PEER_RANKS_MAX] = {0};
    for (int r = 0; r < count; r++) x[r] = host_in[r][i];
    for (int apart = PEER_RANKS_MAX / 2; apart > 0; apart /= 2)
        for (int r = 0; r < apart; r++)
            if (r + apart < count) x[r] += x[r + apart];
    return x[0];
}

static float wanted(const struct job *j, int r, int64_t i)
{
    const int64_t c = i / j->count, at = i % j->count;
    if (j->op == PEER_ALL_TO_ALL) return host_in[c][r * j->count + at];
    if (j->op == PEER_ALL_GATHER) return host_in[c][at + (j->in_place ? c * j->count : 0)];
    return tree(j->ranks, j->op == PEER_REDUCE_SCATTER ? r * j->count + at : i);
}

static void check_results(const struct job *j, int r)
{
    const float *got = host_out[r];
    for (int64_t i = 0; i < j->s[r].out * j->count; i++) {
        const float want = wanted(j, r, i);
        if (memcmp(&got[i], &want, sizeof want) != 0)
            fail_msg("%s %s%s, %d ranks, %d blocks, chunks of %lld: rank %d element %lld is %.9g, not %.9g",
                     peer_way_text(j->way), peer_op_text(j->op), j->in_place ? " in place" : "", j->ranks,
                     j->blocks, (long long)j->count, r, (long long)i, (double)got[i], (double)want);
    }
}

/* The first turn's results are right, and the other turns' the same. */
static void check(const struct job *j, int turn)
{
    for (int r = 0; r < j->ranks; r++) {
        const int64_t n = j->s[r].out * j->count;
        const size_t bytes = (size_t)n * sizeof(float);
        unsigned char tail[TAIL];
        uint32_t lost;
        CUDA(cudaMemcpy(&lost, &ranks[r].flags->lost, sizeof lost, cudaMemcpyDefault));
        if (lost) fail_msg("rank %d of %d waited for rank %u in vain", r, j->ranks, lost - 1);
        CUDA(cudaMemcpy(turn == 0 ? host_out[r] : host_again, out_of(j, r), bytes, cudaMemcpyDefault));
        if (turn == 0)
            check_results(j, r);
        else if (memcmp(host_again, host_out[r], bytes) != 0)
            fail_msg("%s %s, %d ranks, chunks of %lld: turn %d has other results on rank %d",
                     peer_way_text(j->way), peer_op_text(j->op), j->ranks, (long long)j->count, turn, r);
        const void *ends[] = {ranks[r].out + n, ranks[r].work + j->s[r].work * j->count};
        for (int e = j->in_place ? 1 : 0; e < 2; e++) {
            CUDA(cudaMemcpy(tail, ends[e], TAIL, cudaMemcpyDefault));
            for (int b = 0; b < TAIL; b++) assert_int_equal(tail[b], CANARY);
        }
    }
}

/* In place, what was overwritten comes back; poison is where results and parts of them will be. */
static void prepare(const struct job *j)
{
    for (int r = 0; r < j->ranks; r++) {
        const size_t bytes = (size_t)(j->ranks * j->count) * sizeof(float);
        if (j->in_place) CUDA(cudaMemcpy(ranks[r].in, host_in[r], bytes, cudaMemcpyDefault));
        CUDA(cudaMemset(ranks[r].out, CANARY, bytes + TAIL));
        CUDA(cudaMemset(ranks[r].work, CANARY, (size_t)(j->s[r].work * j->count) * sizeof(float) + TAIL));
    }
    wait_all();
}

static void run(struct job *j)
{
    struct graph graphs[PEER_RANKS_MAX];
    for (int r = 0; r < j->ranks; r++)
        assert_int_equal(peer_schedule_fill(&j->s[r], j->op, j->way, r, j->ranks), STATUS_OK);
    for (int turn = 0; turn < TURNS; turn++) {
        prepare(j);
        for (int r = 0; r < j->ranks; r++) {
            to_card(r);
            if (turn == TURNS - 1) assert_int_equal(dev_graph_begin(&ranks[r].s), STATUS_OK);
            queue(j, r);
            if (turn == TURNS - 1) assert_int_equal(dev_graph_end(&ranks[r].s, &graphs[r], true), STATUS_OK);
        }
        for (int r = 0; turn == TURNS - 1 && r < j->ranks; r++) {
            to_card(r);
            assert_int_equal(dev_graph_launch(&ranks[r].s, &graphs[r]), STATUS_OK);
        }
        wait_all();
        check(j, turn); /* first, again, from a graph */
    }
    for (int r = 0; r < j->ranks; r++) dev_graph_close(&ranks[r].dev, &graphs[r]);
    if (j->in_place) /* the next job's input */
        for (int r = 0; r < j->ranks; r++)
            CUDA(cudaMemcpy(ranks[r].in, host_in[r], (size_t)(j->ranks * j->count) * sizeof(float),
                            cudaMemcpyDefault));
}

static void exchanges_give_every_rank_its_result(void **state)
{
    (void)state;
    for (int n = 1; n <= PEER_RANKS_MAX; n++, clear_flags()) /* flags count what one group has done */
        for (enum peer_op op = 0; op < PEER_OP_COUNT; op++)
            for (enum peer_way way = 0; way < PEER_WAY_COUNT; way++)
                for (int k = 0; k < COUNTS; k++) {
                    if (!peer_way_serves(way, op, n, counts[k])) continue;
                    const int side = (n + cards - 1) / cards, most = multiprocessors / side;
                    struct job j = {.op = op, .way = way, .ranks = n, .count = counts[k]};
                    j.blocks = k % 2 ? 1 + k : most < 16 ? most : 16;
                    run(&j);
                    j.in_place = true;
                    if (op != PEER_ALL_TO_ALL && way != PEER_ONCE) run(&j);
                }
}

static void who_does_not_come_is_named(void **state)
{
    struct job j = {.op = PEER_ALL_GATHER, .way = PEER_DIRECT, .ranks = 2, .count = 4096, .blocks = 2};
    struct peer_exchange_args a = {
        .schedule = &j.s[0], .count = j.count, .blocks = j.blocks, .deadline_s = 0.1};
    uint32_t lost = 0;
    (void)state;
    clear_flags();
    assert_int_equal(peer_schedule_fill(&j.s[0], j.op, j.way, 0, 2), STATUS_OK);
    for (int p = 0; p < 2; p++)
        a.in[p] = ranks[p].in, a.out[p] = ranks[p].out, a.work[p] = ranks[p].work,
        a.flags[p] = ranks[p].flags;
    to_card(0);
    assert_int_equal(peer_exchange(&a, &ranks[0].s), STATUS_OK);
    wait_all();
    CUDA(cudaMemcpy(&lost, &ranks[0].flags->lost, sizeof lost, cudaMemcpyDefault));
    assert_int_equal(lost, 2); /* rank 1 */
    clear_flags();
}

int main(void)
{
    struct dev d;
    if (dev_open(&d, DEV_CUDA) != STATUS_OK) {
        printf("%s\n", status_message());
        return gpu_missing();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges_give_every_rank_its_result),
        cmocka_unit_test(who_does_not_come_is_named),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
