/* Builds schedules of collectives between GPUs: who reads what from whom, in which step. cuda/p2p_kernels.cu
 * runs them. */
#include "comm/gpu/p2p_schedule.h"

static const char *const op_texts[] = {
#define X(name, text) #text,
    P2P_OPS(X)
#undef X
};
static const char *const way_texts[] = {
#define X(name, text) #text,
    P2P_ALGOS(X)
#undef X
};

const char *p2p_op_text(enum p2p_op op)
{
    return op_texts[op];
}

const char *p2p_algo_text(enum p2p_algo way)
{
    return way_texts[way];
}

/* ---- steps and moves */

static struct p2p_place place(enum p2p_buffer buffer, int chunk)
{
    return (struct p2p_place){(uint8_t)buffer, (uint8_t)chunk};
}

static void step_begin(struct p2p_schedule *s)
{
    CHECK(s->step_count < P2P_STEPS_MAX, "%d steps", s->step_count);
    s->steps[s->step_count++] = (struct p2p_schedule_step){.begin = s->move_count, .end = s->move_count};
}

/* In this step this rank reads `wait`, and `tell` reads this rank. */
static void step_pair(struct p2p_schedule *s, int wait, int tell)
{
    struct p2p_schedule_step *step = &s->steps[s->step_count - 1];
    step->wait = (uint8_t)(step->wait | 1u << wait);
    step->tell = (uint8_t)(step->tell | 1u << tell);
}

static void step_all(struct p2p_schedule *s)
{
    for (int p = 0; p < s->ranks; p++)
        if (p != s->rank) step_pair(s, p, p);
}

static void move(struct p2p_schedule *s, struct p2p_schedule_move m)
{
    CHECK(s->move_count < P2P_MOVES_MAX, "%d moves", s->move_count);
    s->moves[s->move_count++] = m;
    s->steps[s->step_count - 1].end = s->move_count;
}

static void copy(struct p2p_schedule *s, int rank, struct p2p_place from, struct p2p_place to)
{
    move(s, (struct p2p_schedule_move){.kind = P2P_COPY, .rank = (uint8_t)rank, .from = from, .to = to});
}

static void put(struct p2p_schedule *s, int rank, struct p2p_place from, struct p2p_place to)
{
    move(s, (struct p2p_schedule_move){.kind = P2P_PUT, .rank = (uint8_t)rank, .from = from, .to = to});
}

static void add(struct p2p_schedule *s, int rank, struct p2p_place from, struct p2p_place plus,
                struct p2p_place to)
{
    move(s, (struct p2p_schedule_move){
                .kind = P2P_ADD, .rank = (uint8_t)rank, .from = from, .plus = plus, .to = to});
}

static void tree(struct p2p_schedule *s, struct p2p_place from, struct p2p_place to)
{
    move(s, (struct p2p_schedule_move){.kind = P2P_TREE, .rank = s->rank, .from = from, .to = to});
}

/* The source of a rank's part of an all-gather: its input, or the OUT of the reduction before it. */
static struct p2p_place part_of(const struct p2p_schedule *s, int rank)
{
    return s->op == P2P_ALL_REDUCE ? place(P2P_OUT, rank) : place(P2P_IN, 0);
}

/* The destination of a reduction. */
static struct p2p_place sum_of(const struct p2p_schedule *s)
{
    return place(P2P_OUT, s->op == P2P_ALL_REDUCE ? s->rank : 0);
}

/* Copies this rank's own part of the result if it is not in place. */
static void copy_own(struct p2p_schedule *s)
{
    if (s->op == P2P_ALL_GATHER) copy(s, s->rank, place(P2P_IN, 0), place(P2P_OUT, s->rank));
    if (s->op == P2P_ALL_TO_ALL) copy(s, s->rank, place(P2P_IN, s->rank), place(P2P_OUT, s->rank));
}

/* ---- direct */

/* After the step barrier, OUT of all ranks may be written. In place, a rank's OUT[me] was its IN[me], which
 * only this rank reads. */
static void direct(struct p2p_schedule *s)
{
    step_begin(s);
    step_all(s);
    s->any_order = s->op == P2P_ALL_TO_ALL || s->op == P2P_ALL_GATHER;
    if (!s->any_order) tree(s, place(P2P_IN, s->rank), sum_of(s));
    copy_own(s);
    for (int k = 1; k < s->ranks && s->op != P2P_REDUCE_SCATTER; k++) {
        const int p = (s->rank + k) % s->ranks;
        put(s, p, s->op == P2P_ALL_TO_ALL ? place(P2P_IN, p) : part_of(s, s->rank), place(P2P_OUT, s->rank));
    }
}

static void once(struct p2p_schedule *s)
{
    s->any_order = true;
    step_begin(s);
    step_all(s);
    for (int c = 0; c < s->ranks; c++) tree(s, place(P2P_IN, c), place(P2P_OUT, c));
}

/* ---- ring */

static void ring_gather(struct p2p_schedule *s)
{
    const int lower = (s->rank + s->ranks - 1) % s->ranks, upper = (s->rank + 1) % s->ranks;
    for (int k = 0; k < s->ranks - 1; k++) {
        /* The chunk that the neighbour received in the step before. */
        const int c = (s->rank + 2 * s->ranks - 1 - k) % s->ranks;
        step_begin(s);
        step_pair(s, lower, upper);
        if (k == 0) copy_own(s);
        copy(s, lower, k == 0 ? part_of(s, c) : place(P2P_OUT, c), place(P2P_OUT, c));
    }
}

/* The partner of step k, and the rank whose partner this rank is. */
static int ring_step(struct p2p_schedule *s, int k)
{
    const int from = (s->rank + k + 1) % s->ranks;
    step_begin(s);
    step_pair(s, from, (s->rank + s->ranks - k - 1) % s->ranks);
    return from;
}

static void ring_all_to_all(struct p2p_schedule *s)
{
    for (int k = 0; k < s->ranks - 1; k++) {
        const int from = ring_step(s, k);
        if (k == 0) copy_own(s);
        copy(s, from, place(P2P_IN, s->rank), place(P2P_OUT, from));
    }
}

/* A node of the summation tree: the sum over ranks first, first + apart, ... Its sibling begins at first +-
 * apart / 2. */
struct node {
    int first, apart;
};
struct sums {
    bool ready[P2P_RANKS_MAX][2 * P2P_RANKS_MAX]; /* [first][apart] */
    struct p2p_place at[P2P_RANKS_MAX][2 * P2P_RANKS_MAX];
};

static struct node leaf_of(int rank, int ranks)
{
    struct node n = {rank, 1};
    while (n.apart <= rank || rank + n.apart < ranks) n.apart *= 2;
    return n;
}

static struct node above(struct node n)
{
    return (struct node){n.first % (n.apart / 2), n.apart / 2};
}

static struct node sibling(struct node n)
{
    const int half = n.apart / 2;
    return (struct node){n.first < half ? n.first + half : n.first - half, n.apart};
}

/* Reads the term of `rank` and computes every sum that it completes. */
static void ring_term(struct p2p_schedule *s, struct sums *sums, int rank)
{
    struct node n = leaf_of(rank, s->ranks);
    struct p2p_place at = place(P2P_IN, s->rank);
    int from = rank;
    while (n.apart > 1) {
        const struct node b = sibling(n);
        if (!sums->ready[b.first][b.apart]) break;
        n = above(n);
        const struct p2p_place to = n.apart > 1 ? place(P2P_WORK, rank) : sum_of(s);
        add(s, from, at, sums->at[b.first][b.apart], to);
        from = s->rank, at = to;
    }
    if (from != s->rank) { /* its sibling is not complete yet */
        const struct p2p_place to = place(P2P_WORK, rank);
        copy(s, from, at, to);
        at = to;
    }
    sums->ready[n.first][n.apart] = true;
    sums->at[n.first][n.apart] = at;
}

static void ring_reduce(struct p2p_schedule *s)
{
    struct sums sums = {0};
    s->work = s->ranks;
    ring_term(s, &sums, s->rank);
    for (int k = 0; k < s->ranks - 1; k++) ring_term(s, &sums, ring_step(s, k));
}

static void ring(struct p2p_schedule *s)
{
    if (s->op == P2P_ALL_TO_ALL) ring_all_to_all(s);
    if (s->op == P2P_REDUCE_SCATTER || s->op == P2P_ALL_REDUCE) ring_reduce(s);
    if (s->op == P2P_ALL_GATHER || s->op == P2P_ALL_REDUCE) ring_gather(s);
}

/* ---- hypercube */

static int cube_step(struct p2p_schedule *s, int bit)
{
    step_begin(s);
    step_pair(s, s->rank ^ bit, s->rank ^ bit);
    return s->rank ^ bit;
}

static void cube_gather(struct p2p_schedule *s)
{
    for (int bit = 1; bit < s->ranks; bit *= 2) {
        const int from = cube_step(s, bit);
        if (bit == 1) copy_own(s);
        for (int c = 0; c < s->ranks; c++)
            if ((c ^ from) < bit)
                copy(s, from, c == from ? part_of(s, c) : place(P2P_OUT, c), place(P2P_OUT, c));
    }
}

static void cube_reduce(struct p2p_schedule *s)
{
    s->work = s->ranks;
    for (int bit = s->ranks / 2; bit > 0; bit /= 2) {
        const int from = cube_step(s, bit), keep = s->ranks - bit; /* the bits handled so far, and this one */
        const enum p2p_buffer have = bit == s->ranks / 2 ? P2P_IN : P2P_WORK;
        for (int c = 0; c < s->ranks; c++)
            if (((c ^ s->rank) & keep) == 0)
                add(s, from, place(have, c), place(have, c), bit == 1 ? sum_of(s) : place(P2P_WORK, c));
    }
}

/* Slot t of a rank. Its handled bits are the source rank's, its other bits the destination's. A slot moves in
 * the steps whose bit differs from the rank's. It is stored in WORK, in the layer of its last move; before,
 * in IN; after the last move, in OUT. */
static struct p2p_place cube_slot(const struct p2p_schedule *s, int rank, int slot, int bit)
{
    const int moves = slot ^ rank;
    if (moves >= 2 * bit || bit == 0) {
        for (int b = bit; b > 0; b /= 2)
            if (moves & b) {
                int layer = 0;
                while (1 << layer < b) layer++;
                return place(P2P_WORK, layer * s->ranks + slot);
            }
        return place(P2P_IN, slot);
    }
    return place(P2P_OUT, slot);
}

static void cube_all_to_all(struct p2p_schedule *s)
{
    int layers = 0;
    for (int bit = 1; bit < s->ranks; bit *= 2, layers++) {
        const int from = cube_step(s, bit);
        if (bit == 1) copy_own(s);
        for (int t = 0; t < s->ranks; t++)
            if ((t ^ s->rank) & bit)
                copy(s, from, cube_slot(s, from, t ^ bit, bit / 2), cube_slot(s, s->rank, t, bit));
    }
    s->work = (uint8_t)(layers > 1 ? (layers - 1) * s->ranks : 0);
}

static void hypercube(struct p2p_schedule *s)
{
    if (s->op == P2P_ALL_TO_ALL) cube_all_to_all(s);
    if (s->op == P2P_REDUCE_SCATTER || s->op == P2P_ALL_REDUCE) cube_reduce(s);
    if (s->op == P2P_ALL_GATHER || s->op == P2P_ALL_REDUCE) cube_gather(s);
}

/* ---- all */

bool p2p_algo_supports(enum p2p_algo way, enum p2p_op op, int ranks, int64_t count)
{
    if (ranks > P2P_RANKS_MAX) return false;
    if (way == P2P_LL) return count % 2 == 0 && count * (op == P2P_ALL_REDUCE ? ranks : 1) <= P2P_LL_FLOATS;
    if (count % 4 != 0) return false;
    if (way == P2P_ONE_SHOT) return op == P2P_ALL_REDUCE;
    return way != P2P_HYPERCUBE || (ranks & (ranks - 1)) == 0;
}

status p2p_schedule_fill(struct p2p_schedule *s, enum p2p_op op, enum p2p_algo way, int rank, int ranks)
{
    CHECK(rank >= 0 && rank < ranks, "rank %d of %d", rank, ranks);
    if (ranks > P2P_RANKS_MAX)
        return FAIL(STATUS_CONFIG, "%d ranks: collectives by peer access are for at most %d", ranks,
                    P2P_RANKS_MAX);
    if (way == P2P_HYPERCUBE && (ranks & (ranks - 1)) != 0)
        return FAIL(STATUS_CONFIG, "a hypercube of %d ranks: their number must be a power of two", ranks);
    if (way == P2P_ONE_SHOT && op != P2P_ALL_REDUCE)
        return FAIL(STATUS_CONFIG, "%s is a way of all_reduce, not of %s", p2p_algo_text(way),
                    p2p_op_text(op));
    *s = (struct p2p_schedule){.op = (uint8_t)op, .rank = (uint8_t)rank, .ranks = (uint8_t)ranks};
    s->in = (uint8_t)(op == P2P_ALL_GATHER ? 1 : ranks);
    s->out = (uint8_t)(op == P2P_REDUCE_SCATTER ? 1 : ranks);
    if (way == P2P_LL) {
        s->ll = true;
    } else if (ranks == 1) {
        step_begin(s);
        copy(s, 0, place(P2P_IN, 0), place(P2P_OUT, 0));
    } else if (way == P2P_DIRECT) {
        direct(s);
    } else if (way == P2P_RING) {
        ring(s);
    } else if (way == P2P_HYPERCUBE) {
        hypercube(s);
    } else {
        once(s);
    }
    return STATUS_OK;
}
