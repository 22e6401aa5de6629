/* Goal: exchanges between GPUs give every rank its result, bit for bit, write nothing else, come out the same again and from a captured
 * graph, leave their marks, and end when a rank does not come, or all are told to end. Method: up to eight ranks, on all GPUs that reach each
 * other's memory, several to a GPU where there are fewer (small grids run side by side); ugly sizes; canaries behind OUT and WORK; sums of
 * F32, BF16 and F64 against comm.h's order on the host. */
#include "comm/gpu/p2p_schedule.h"
#include "base/rng.h"
#include "dev/cuda/cuda_int.h"
#include "gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { GPUS_MAX = 16, FLOATS_MAX = 1 << 19, TAIL = 64, CANARY = 0x5A, ROUNDS = 3 };
static const int64_t counts[] = {2, 4, 6, 20, 1026, 2044, 2048, 2052, 40004};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static struct rank {
    struct dev dev;
    struct stream s;
    float *in, *out, *work;
    struct p2p_flags *flags;
} ranks[P2P_RANKS_MAX];
enum { DTYPES = 3 };
static const dtype dtypes[DTYPES] = {DTYPE_F32, DTYPE_BF16, DTYPE_F64};
static char *host_of[DTYPES][P2P_RANKS_MAX]; /* inputs by dtype */
static char *host_out[P2P_RANKS_MAX], *host_again;
static int gpus, multiprocessors;
static struct words {
    volatile uint32_t abort_flag;
    volatile unsigned char marks[P2P_RANKS_MAX];
} * words; /* the host's, which GPUs read and write */

#define CUDA(call) assert_int_equal((call), cudaSuccess)

static void to_gpu(int r)
{
    CUDA(cudaSetDevice(ranks[r].dev.index));
}

static void fill(char *x, dtype dt, int rank)
{
    const int64_t n = (int64_t)(FLOATS_MAX * sizeof(float) / dtype_bytes(dt));
    for (int64_t i = 0; i < n; i++) {
        const double value = rng_at(5, RNG_TEST, (uint64_t)rank, (uint64_t)i).u[0] * 0x1p-31 - 1;
        if (dt == DTYPE_F32) ((float *)x)[i] = (float)value;
        if (dt == DTYPE_F64) ((double *)x)[i] = value;
        if (dt == DTYPE_BF16) ((bf16 *)x)[i] = bf16_from_f32((float)value);
    }
}

static int set_up(void **state)
{
    struct dev first;
    int reach = 1;
    (void)state;
    assert_int_equal(dev_open(&first, DEV_CUDA), STATUS_OK);
    multiprocessors = first.multiprocessors;
    CUDA(cudaGetDeviceCount(&gpus));
    if (gpus > GPUS_MAX) gpus = GPUS_MAX;
    for (int i = 0; i < gpus; i++)
        for (int j = 0; j < gpus; j++)
            if (i != j && reach) CUDA(cudaDeviceCanAccessPeer(&reach, i, j));
    if (!reach) gpus = 1;
    for (int i = 0; i < gpus; i++)
        for (int j = 0; j < gpus; j++) {
            CUDA(cudaSetDevice(i));
            if (i != j) CUDA(cudaDeviceEnablePeerAccess(j, 0));
        }
    host_again = malloc(FLOATS_MAX * sizeof(float));
    assert_non_null(host_again);
    for (int r = 0; r < P2P_RANKS_MAX; r++) {
        struct rank *k = &ranks[r];
        k->dev = first, k->dev.index = r % gpus;
        to_gpu(r);
        assert_int_equal(dev_stream_open(&k->dev, &k->s), STATUS_OK);
        CUDA(cudaMalloc((void **)&k->in, FLOATS_MAX * sizeof(float)));
        CUDA(cudaMalloc((void **)&k->out, FLOATS_MAX * sizeof(float)));
        CUDA(cudaMalloc((void **)&k->work, 2 * FLOATS_MAX * sizeof(float)));
        CUDA(cudaMalloc((void **)&k->flags, sizeof *k->flags));
        CUDA(cudaMemset(k->flags, 0, sizeof *k->flags));
        for (int n = 1; n <= P2P_RANKS_MAX; n++) assert_int_equal(p2p_schedule_load(n), STATUS_OK);
        host_out[r] = malloc(FLOATS_MAX * sizeof(float));
        assert_non_null(host_out[r]);
        for (int d = 0; d < DTYPES; d++) {
            host_of[d][r] = malloc(FLOATS_MAX * sizeof(float));
            assert_non_null(host_of[d][r]);
            fill(host_of[d][r], dtypes[d], r);
        }
    }
    CUDA(cudaHostAlloc((void **)&words, sizeof *words, cudaHostAllocMapped | cudaHostAllocPortable));
    words->abort_flag = 0;
    printf("%d GPU%s\n", gpus, gpus == 1 ? "" : "s that reach each other");
    return 0;
}

static void wait_all(void)
{
    for (int i = 0; i < gpus; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaDeviceSynchronize());
    }
}

static void clear_flags(void)
{
    for (int r = 0; r < P2P_RANKS_MAX; r++) CUDA(cudaMemset(ranks[r].flags, 0, sizeof *ranks[r].flags));
    wait_all();
}

struct job {
    enum p2p_op op;
    enum p2p_algo way;
    int ranks, blocks;
    int64_t count; /* floats of a chunk, or their bytes */
    int d;         /* its dtype's number */
    bool in_place;
    struct p2p_schedule s[P2P_RANKS_MAX];
};

static float *out_of(const struct job *j, int r)
{
    if (!j->in_place) return ranks[r].out;
    return ranks[r].in + (j->op == P2P_REDUCE_SCATTER ? r * j->count : 0);
}

static void queue(struct job *j, int r)
{
    struct p2p_schedule_args a = {
        .schedule = &j->s[r], .count = j->count, .blocks = j->blocks, .deadline_s = 5};
    a.dt = dtypes[j->d];
    a.abort_flag = &words->abort_flag, a.mark = &words->marks[r];
    for (int p = 0; p < j->ranks; p++) {
        a.in[p] = ranks[p].in + (j->in_place && j->op == P2P_ALL_GATHER ? p * j->count : 0);
        a.out[p] = out_of(j, p), a.work[p] = ranks[p].work, a.flags[p] = ranks[p].flags;
    }
    to_gpu(r);
    if (p2p_schedule_launch(&a, &ranks[r].s) != STATUS_OK) fail_msg("%s", status_message());
}

/* comm.h's order, from the leaves up, of element i of the buffers: stored at `to`. */
static void tree(const struct job *j, int64_t i, void *to)
{
    const dtype dt = dtypes[j->d];
    float x[P2P_RANKS_MAX] = {0};
    double x64[P2P_RANKS_MAX] = {0};
    for (int r = 0; r < j->ranks; r++) {
        const char *in = host_of[j->d][r];
        if (dt == DTYPE_F64) x64[r] = ((const double *)in)[i];
        if (dt == DTYPE_F32) x[r] = ((const float *)in)[i];
        if (dt == DTYPE_BF16) x[r] = bf16_to_f32(((const bf16 *)in)[i]);
    }
    for (int apart = P2P_RANKS_MAX / 2; apart > 0; apart /= 2)
        for (int r = 0; r < apart; r++)
            if (r + apart < j->ranks) x[r] += x[r + apart], x64[r] += x64[r + apart];
    const bf16 rounded = bf16_from_f32(x[0]);
    memcpy(to,
           dt == DTYPE_F64   ? (void *)x64
           : dt == DTYPE_F32 ? (void *)x
                             : (void *)&rounded,
           dtype_bytes(dt));
}

/* Element i of rank r's result. */
static void wanted(const struct job *j, int r, int64_t i, void *to)
{
    const size_t bytes = dtype_bytes(dtypes[j->d]);
    const int64_t part = j->count * (int64_t)sizeof(float) / (int64_t)bytes, c = i / part, at = i % part;
    const char *from = host_of[j->d][c];
    if (j->op == P2P_ALL_TO_ALL)
        memcpy(to, from + (size_t)(r * part + at) * bytes, bytes);
    else if (j->op == P2P_ALL_GATHER)
        memcpy(to, from + (size_t)(at + (j->in_place ? c * part : 0)) * bytes, bytes);
    else
        tree(j, j->op == P2P_REDUCE_SCATTER ? r * part + at : i, to);
}

static void check_results(const struct job *j, int r)
{
    const size_t bytes = dtype_bytes(dtypes[j->d]);
    const int64_t n = j->s[r].out * j->count * (int64_t)sizeof(float) / (int64_t)bytes;
    for (int64_t i = 0; i < n; i++) {
        char want[sizeof(double)];
        wanted(j, r, i, want);
        if (memcmp(host_out[r] + (size_t)i * bytes, want, bytes) != 0)
            fail_msg("%s %s of %s%s, %d ranks, %d blocks, chunks of %lld: rank %d element %lld is wrong",
                     p2p_algo_text(j->way), p2p_op_text(j->op), dtype_name(dtypes[j->d]),
                     j->in_place ? " in place" : "", j->ranks, j->blocks, (long long)j->count, r,
                     (long long)i);
    }
}

/* The first round's results are correct, and those of later rounds equal. */
static void check(const struct job *j, int round_at)
{
    for (int r = 0; r < j->ranks; r++) {
        const int64_t n = j->s[r].out * j->count;
        const size_t bytes = (size_t)n * sizeof(float);
        unsigned char tail[TAIL];
        uint32_t lost;
        CUDA(cudaMemcpy(&lost, &ranks[r].flags->lost, sizeof lost, cudaMemcpyDefault));
        if (lost) fail_msg("rank %d of %d waited for rank %u in vain", r, j->ranks, lost - 1);
        assert_int_equal(words->marks[r], 1);
        CUDA(cudaMemcpy(round_at == 0 ? host_out[r] : host_again, out_of(j, r), bytes, cudaMemcpyDefault));
        if (round_at == 0)
            check_results(j, r);
        else if (memcmp(host_again, host_out[r], bytes) != 0)
            fail_msg("%s %s, %d ranks, chunks of %lld: turn %d has other results on rank %d",
                     p2p_algo_text(j->way), p2p_op_text(j->op), j->ranks, (long long)j->count, round_at, r);
        const void *ends[] = {ranks[r].out + n, ranks[r].work + j->s[r].work * j->count};
        for (int e = j->in_place ? 1 : 0; e < 2; e++) {
            CUDA(cudaMemcpy(tail, ends[e], TAIL, cudaMemcpyDefault));
            for (int b = 0; b < TAIL; b++) assert_int_equal(tail[b], CANARY);
        }
    }
}

/* The input, also what was overwritten in place; poison is where results and parts of them will be. */
static void prepare(const struct job *j)
{
    for (int r = 0; r < j->ranks; r++) {
        const size_t bytes = (size_t)(j->ranks * j->count) * sizeof(float);
        CUDA(cudaMemcpy(ranks[r].in, host_of[j->d][r], bytes, cudaMemcpyDefault));
        words->marks[r] = 0;
        CUDA(cudaMemset(ranks[r].out, CANARY, bytes + TAIL));
        CUDA(cudaMemset(ranks[r].work, CANARY, (size_t)(j->s[r].work * j->count) * sizeof(float) + TAIL));
    }
    wait_all();
}

static void run(struct job *j)
{
    struct graph graphs[P2P_RANKS_MAX];
    for (int r = 0; r < j->ranks; r++)
        assert_int_equal(p2p_schedule_fill(&j->s[r], j->op, j->way, r, j->ranks), STATUS_OK);
    for (int round_at = 0; round_at < ROUNDS; round_at++) {
        prepare(j);
        for (int r = 0; r < j->ranks; r++) {
            to_gpu(r);
            if (round_at == ROUNDS - 1) assert_int_equal(dev_graph_begin(&ranks[r].s), STATUS_OK);
            queue(j, r);
            if (round_at == ROUNDS - 1)
                assert_int_equal(dev_graph_end(&ranks[r].s, &graphs[r], true), STATUS_OK);
        }
        for (int r = 0; round_at == ROUNDS - 1 && r < j->ranks; r++) {
            to_gpu(r);
            assert_int_equal(dev_graph_launch(&ranks[r].s, &graphs[r]), STATUS_OK);
        }
        wait_all();
        check(j, round_at); /* first, repeated, from a graph */
    }
    for (int r = 0; r < j->ranks; r++) dev_graph_close(&ranks[r].dev, &graphs[r]);
}

static bool sums(enum p2p_op op)
{
    return op == P2P_REDUCE_SCATTER || op == P2P_ALL_REDUCE;
}

/* All terms come together: sums of BF16 and F64, too. */
static bool at_once(enum p2p_algo way)
{
    return way == P2P_DIRECT || way == P2P_ONE_SHOT || way == P2P_LL;
}

static void collectives_give_every_rank_its_result(void **state)
{
    (void)state;
    for (int n = 1; n <= P2P_RANKS_MAX; n++, clear_flags()) /* flags count what one group has done */
        for (enum p2p_op op = 0; op < P2P_OP_COUNT; op++)
            for (enum p2p_algo way = 0; way < P2P_ALGO_COUNT; way++)
                for (int k = 0; k < COUNTS; k++) {
                    if (!p2p_algo_supports(way, op, n, counts[k])) continue;
                    const int side = (n + gpus - 1) / gpus, most = multiprocessors / side;
                    struct job j = {.op = op, .way = way, .ranks = n, .count = counts[k]};
                    j.blocks = k % 2 ? 1 + k : most < 16 ? most : 16;
                    for (j.d = 0; j.d < (sums(op) && at_once(way) ? DTYPES : 1); j.d++) {
                        j.in_place = false;
                        run(&j);
                        j.in_place = true;
                        if (op != P2P_ALL_TO_ALL && way != P2P_ONE_SHOT) run(&j);
                    }
                }
}

/* Rank 0 begins, and rank 1 does not come. */
static void wait_in_vain(enum p2p_algo way, double deadline_s)
{
    struct job j = {.op = P2P_ALL_GATHER, .way = way, .ranks = 2, .count = 4096, .blocks = 2};
    struct p2p_schedule_args a = {.schedule = &j.s[0],
                                  .count = j.count,
                                  .dt = DTYPE_F32,
                                  .blocks = j.blocks,
                                  .deadline_s = deadline_s,
                                  .abort_flag = &words->abort_flag};
    uint32_t lost = 0;
    clear_flags();
    assert_int_equal(p2p_schedule_fill(&j.s[0], j.op, j.way, 0, 2), STATUS_OK);
    for (int p = 0; p < 2; p++)
        a.in[p] = ranks[p].in, a.out[p] = ranks[p].out, a.work[p] = ranks[p].work,
        a.flags[p] = ranks[p].flags;
    to_gpu(0);
    assert_int_equal(p2p_schedule_launch(&a, &ranks[0].s), STATUS_OK);
    if (deadline_s == 0) {
        usleep(100000);
        assert_int_equal(cudaStreamQuery(cuda_queue(&ranks[0].s)), cudaErrorNotReady);
        words->abort_flag = 1;
    }
    wait_all();
    words->abort_flag = 0;
    CUDA(cudaMemcpy(&lost, &ranks[0].flags->lost, sizeof lost, cudaMemcpyDefault));
    assert_int_equal(lost, 2); /* rank 1 */
    clear_flags();
}

static void who_does_not_come_is_named(void **state)
{
    (void)state;
    wait_in_vain(P2P_DIRECT, 0.1);
    wait_in_vain(P2P_LL, 0.1);
}

static void waits_end_when_all_are_told_to(void **state)
{
    (void)state;
    wait_in_vain(P2P_DIRECT, 0);
    wait_in_vain(P2P_LL, 0);
}

int main(void)
{
    struct dev d;
    if (dev_open(&d, DEV_CUDA) != STATUS_OK) {
        printf("%s\n", status_message());
        return gpu_missing();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_give_every_rank_its_result),
        cmocka_unit_test(who_does_not_come_is_named),
        cmocka_unit_test(waits_end_when_all_are_told_to),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
