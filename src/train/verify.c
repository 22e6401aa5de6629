#include "train/verify.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/scope.h"
#include "ops/precision.h"
#include "train/verify_sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

struct who {
    int32_t rank;
    char host[60];
};
struct verifier {
    int64_t every; /* steps from one that is verified to the next */
    struct comm *data;
    int ranks, me;   /* of the data axis */
    struct who *who; /* [ranks], owned, as the arrays below */
    struct verify_pieces state, gradients;
    uint64_t *sums, *now;       /* [state.count] since the last update; of this moment */
    bool known;                 /* sums */
    int64_t compared;           /* the last step before which replicas were equal; -1: not yet */
    int64_t back;               /* the step that the run is to go on from; -1: the newest */
    uint64_t *results;          /* [PASSES][gradients.count + 1]: sums of gradients, and of losses */
    uint64_t *all;              /* the same of all ranks, or their `sums` */
    struct step_scalars before; /* the first micro-batch of the step */
    char *sent, *received;
    size_t batch_bytes;
    struct verify_fault fault;
    int64_t recomputed; /* micro-batches */
    double recompute_s, sums_s;
};

/* Results of a micro-batch: a rank's own, in the step; the one that the rank before it has, computed here; then, where
 * two differ, both once more, and the one of the rank two places before. */
enum pass { OWN, OTHER, OWN_AGAIN, OTHER_AGAIN, THIRD, PASSES };

static bool due(const struct trainer *t, int64_t step)
{
    return (step + 1) % t->verify->every == 0;
}

/* ---- what it cannot be with */

static const char *apart(const struct run_spec *r, const struct mesh_shape *m, bool gpu, bool sparse)
{
    return gpu              ? "a GPU yet (machine.device: cpu has it)"
           : m->tp > 1      ? "parallel.tensor"
           : m->pp > 1      ? "parallel.pipeline"
           : mesh_cp(m) > 1 ? "parallel.context"
           : mesh_ep(m) > 1 ? "parallel.expert"
           : m->zero > 1    ? "parallel.zero 2 and 3"
           : !precision_verifies((enum precision)r->train_precision) ? "a train.precision but fp32 and bf16"
           : sparse ? "sparse gradients (optim.table_gradients)"
                    : NULL;
}

status verify_check(const struct trainer *t, bool gpu)
{
    const struct run_spec *r = &t->spec.run;
    if (r->train_verify == 0) return STATUS_OK;
    const char *with = apart(r, &t->mesh.shape, gpu, spec_tables_sparse(&t->spec));
    return with ? FAIL(STATUS_CONFIG, "train.verify does not work with %s: leave it out", with) : STATUS_OK;
}

/* ---- open and close */

static status open_ranks(struct verifier *v)
{
    struct who mine = {.rank = comm_rank(v->data)};
    (void)gethostname(mine.host, sizeof mine.host - 1);
    v->who = calloc((size_t)v->ranks, sizeof *v->who);
    if (v->who == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the names of %d ranks", v->ranks);
    return comm_all_gather(v->data, "names of ranks", &mine, v->who, sizeof mine, NULL);
}

static status open_memory(struct verifier *v, const struct feed_shape *feed)
{
    const int64_t results = PASSES * (v->gradients.count + 1),
                  most = results > v->state.count ? results : v->state.count;
    v->batch_bytes =
        (size_t)(4 + 3 * feed->rows + (feed->docs_max > feed->rows ? feed->docs_max : feed->rows) + 1) *
        sizeof(int64_t);
    v->sums = calloc((size_t)v->state.count, sizeof *v->sums);
    v->now = calloc((size_t)v->state.count, sizeof *v->now);
    v->results = calloc((size_t)results, sizeof *v->results);
    v->all = calloc((size_t)(most * v->ranks), sizeof *v->all);
    v->sent = calloc(1, v->batch_bytes);
    v->received = calloc(1, v->batch_bytes);
    if (v->sums && v->now && v->results && v->all && v->sent && v->received) return STATUS_OK;
    return FAIL(STATUS_OUT_OF_MEMORY, "no memory for checksums (train.verify)");
}

status verify_open(struct trainer *t)
{
    const struct run_spec *r = &t->spec.run;
    if (r->train_verify == 0) return STATUS_OK;
    struct verifier *v = calloc(1, sizeof *v);
    if (v == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for checksums (train.verify)");
    t->verify = v;
    v->data = t->mesh.dp;
    v->ranks = comm_ranks(v->data);
    v->me = comm_rank(v->data);
    v->compared = v->back = -1;
    const double micros = t->feed.shape.micro_count, steps = 1 / (r->train_verify * micros);
    if (steps < 0.999)
        return FAIL(STATUS_CONFIG,
                    "train.verify %g: of the %.0f micro-batches of a rank's step the first can be computed "
                    "twice, which is %g of them: take at most that",
                    r->train_verify, micros, 1 / micros);
    v->every = (int64_t)llround(steps);
    TRY(verify_fault_read(&v->fault, comm_rank(t->mesh.world)));
    TRY(verify_pieces_state(&v->state, t));
    TRY(verify_pieces_gradients(&v->gradients, t));
    TRY(open_memory(v, &t->feed.shape));
    return open_ranks(v);
}

void verify_close(struct trainer *t)
{
    struct verifier *v = t->verify;
    if (v == NULL) return;
    verify_pieces_free(&v->state);
    verify_pieces_free(&v->gradients);
    void *const owned[] = {v->who, v->sums, v->now, v->results, v->all, v->sent, v->received, v};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) free(owned[i]);
    t->verify = NULL;
}

/* ---- what a difference says, and how the run ends */

static const char *name_of(const struct trainer *t, const struct verify_piece *p)
{
    return t->decoder.params.rows[p->row].name;
}

/* `rank` of the data axis was wrong; -1: it is not known. */
static status fail(const struct trainer *t, int rank, const char *what)
{
    const struct verifier *v = t->verify;
    const bool mine = rank < 0 || rank == v->me;
    return FAIL(mine ? STATUS_CORRUPT : STATUS_COMM, "silent data corruption: %s", what);
}

static const char *rank_text(const struct verifier *v, int rank, char text[96])
{
    snprintf(text, 96, "rank %d (host %s)", (int)v->who[rank].rank, v->who[rank].host);
    return text;
}

/* Checkpoints behind `last`, also one that is being written, are not to be trusted: the run goes on from the one before. */
static void distrust(const struct trainer *t, int64_t last, char said[96])
{
    const char *dir = t->spec.run.run_dir;
    int64_t step = -1;
    said[0] = 0;
    if (dir[0] == 0 || last < 0) return;
    if (checkpoint_newest_sound_until(dir, last, &step) != STATUS_OK || step < 0) return;
    t->verify->back = step; /* verify_end: a save that is being written removes temporary files */
    snprintf(said, 96, "; --resume goes on from step %lld", (long long)step);
}

void verify_end(const struct trainer *t)
{
    const struct verifier *v = t->verify;
    if (v && v->back >= 0 && checkpoint_go_back(t->spec.run.run_dir, v->back) != STATUS_OK)
        log_warn("%s", status_message());
}

/* ---- weights and moments */

static void sum_state(struct verifier *v, uint64_t *sums)
{
    const double begin = clock_s();
    verify_pieces_sum(&v->state, sums);
    v->sums_s += clock_s() - begin;
}

/* Whether `now` are the checksums that the last update has left. */
static status check_own(const struct trainer *t, const uint64_t *now)
{
    const struct verifier *v = t->verify;
    char who[96], said[96], what[512];
    const int64_t at = verify_differ(v->sums, now, v->state.count);
    if (at < 0) return STATUS_OK;
    distrust(t, t->step - 1, said);
    const struct verify_piece *p = &v->state.list[at];
    snprintf(
        what, sizeof what,
        "%s of %.120s changed in the memory of %s between updates %lld and %lld, and nothing wrote them%s",
        p->what, name_of(t, p), rank_text(v, v->me, who), (long long)t->step, (long long)t->step + 1, said);
    return fail(t, v->me, what);
}

/* The rank whose sum of piece `at` no other rank has, when the others agree; -1: there is none. */
static int odd_one(const uint64_t *all, int64_t count, int64_t at, int ranks)
{
    for (int r = 0; r < ranks && ranks > 2; r++) {
        const uint64_t other = all[(r == 0 ? 1 : 0) * count + at];
        int same = 0;
        for (int k = 0; k < ranks; k++) same += k != r && all[k * count + at] == other;
        if (same == ranks - 1 && all[r * count + at] != other) return r;
    }
    return -1;
}

static status blame_replica(struct trainer *t, int64_t at)
{
    struct verifier *v = t->verify;
    const struct verify_piece *p = &v->state.list[at];
    const int64_t count = v->state.common;
    const int odd = odd_one(v->all, count, at, v->ranks);
    int other = 1;
    char who[96], first[96], said[96] = "", what[640];
    while (other < v->ranks - 1 && v->all[other * count + at] == v->all[at]) other++;
    if (v->me == 0) distrust(t, v->compared, said);
    if (odd >= 0)
        snprintf(what, sizeof what,
                 "%s of %.120s on %s are not those of the other replicas since an update between steps %lld "
                 "and %lld%s",
                 p->what, name_of(t, p), rank_text(v, odd, who), (long long)v->compared, (long long)t->step,
                 said);
    else
        snprintf(what, sizeof what,
                 "%s of %.120s differ on %s and %s since an update between steps %lld and %lld, and neither "
                 "has changed since: one of the "
                 "two was wrong, and two replicas cannot tell which one%s",
                 p->what, name_of(t, p), rank_text(v, 0, first), rank_text(v, other, who),
                 (long long)v->compared, (long long)t->step, said);
    return fail(t, odd, what);
}

static status compare_replicas(struct trainer *t)
{
    struct verifier *v = t->verify;
    const int64_t count = v->state.common;
    int64_t first = -1;
    TRY(comm_all_gather(v->data, "checksums of the state", v->sums, v->all, (size_t)count * sizeof *v->sums,
                        NULL));
    for (int r = 1; r < v->ranks; r++) {
        const int64_t at = verify_differ(v->all, v->all + r * count, count);
        if (at >= 0 && (first < 0 || at < first)) first = at;
    }
    if (first >= 0) return blame_replica(t, first);
    v->compared = t->step;
    return STATUS_OK;
}

/* ---- a micro-batch, once more */

/* rows, docs, len_max, whether there are targets; then the arrays. */
static void pack(const struct batch *b, char *to, size_t room)
{
    const int64_t head[] = {b->rows, b->docs, b->len_max, b->targets != NULL};
    const size_t column = (size_t)b->rows * sizeof(int32_t), ends = (size_t)(b->docs + 1) * sizeof(int32_t);
    CHECK(sizeof head + 3 * column + ends <= room, "a micro-batch of %lld rows", (long long)b->rows);
    memset(to, 0, room);
    memcpy(to, head, sizeof head);
    to += sizeof head;
    memcpy(to, b->tokens, column);
    if (b->targets) memcpy(to + column, b->targets, column);
    memcpy(to + 2 * column, b->positions, column);
    memcpy(to + 3 * column, b->cu_seqlens, ends);
}

static struct batch unpack(const char *from)
{
    int64_t head[4];
    memcpy(head, from, sizeof head);
    const int32_t *at = (const int32_t *)(from + sizeof head);
    return (struct batch){.rows = head[0],
                          .docs = head[1],
                          .len_max = head[2],
                          .tokens = at,
                          .targets = head[3] ? at + head[0] : NULL,
                          .positions = at + 2 * head[0],
                          .cu_seqlens = at + 3 * head[0]};
}

static uint64_t *result_of(const struct verifier *v, enum pass pass)
{
    return v->results + pass * (v->gradients.count + 1);
}

static void take_result(struct trainer *t, enum pass pass)
{
    struct verifier *v = t->verify;
    const struct verify_fault *f = &v->fault;
    uint64_t *to = result_of(v, pass);
    if ((f->what == FLIP_GRADIENT && f->step == t->step && pass == OWN) ||
        (f->what == FLIP_UNIT && t->step >= f->step))
        verify_fault_flip(f, &v->gradients);
    verify_pieces_sum(&v->gradients, to);
    to[v->gradients.count] = XXH3_64bits(&t->feed.scalars->loss_sum, GRAD_REDUCE_LOSSES * sizeof(double));
}

/* Gradients that accumulate begin with zeros; those that are stored, or lie where activations were, need not. */
static void clear(const struct params *p)
{
    for (int i = 0; i < p->count && !p->overlaid; i++)
        if (!p->rows[i].gemm_overwrites_grad)
            memset(params_grad(p, i), 0, (size_t)p->rows[i].count * dtype_bytes(dtype_acc(p->dt)));
}

static status compute(struct trainer *t, const struct batch *b, enum pass pass)
{
    const enum accum accum = t->exec.accum;
    *t->feed.scalars = t->verify->before;
    clear(&t->decoder.params);
    t->exec.accum = ACCUM_STORE;
    status st = decoder_fwd_bwd(&t->decoder, &t->acts, b, t->spec.run.train_z_loss, &t->exec);
    t->exec.accum = accum;
    take_result(t, pass);
    t->verify->recomputed++;
    return st;
}

/* The micro-batch of the rank `by` places before this one. */
static status compute_other(struct trainer *t, const struct batch *mine, int by, enum pass pass)
{
    struct verifier *v = t->verify;
    if (v->ranks == 1) return compute(t, mine, pass);
    pack(mine, v->sent, v->batch_bytes);
    TRY(comm_ring_shift(v->data, "micro-batch to verify", by, v->sent, v->received, v->batch_bytes, NULL));
    const struct batch b = unpack(v->received);
    return compute(t, &b, pass);
}

static const uint64_t *of_rank(const struct verifier *v, int rank, enum pass pass)
{
    const int64_t count = v->gradients.count + 1;
    return v->all + (rank * PASSES + (int)pass) * count;
}

static bool same(const struct verifier *v, int rank_a, enum pass a, int rank_b, enum pass b)
{
    return verify_differ(of_rank(v, rank_a, a), of_rank(v, rank_b, b), v->gradients.count + 1) < 0;
}

static status gather_results(struct verifier *v)
{
    return comm_all_gather(v->data, "verified micro-batches", v->results, v->all,
                           (size_t)(PASSES * (v->gradients.count + 1)) * sizeof *v->results, NULL);
}

/* The first rank whose result is not that of the rank behind it; -1: none. */
static int first_wrong(const struct verifier *v)
{
    for (int r = 0; r < v->ranks; r++)
        if (!same(v, r, OWN, (r + 1) % v->ranks, OTHER)) return r;
    return -1;
}

/* Which of ranks r and n, who have computed the micro-batch of r differently, was wrong; -1: it is not known. `*lasts`: it
 * is wrong each time. */
static int judge(const struct verifier *v, int r, int n, bool *lasts)
{
    const bool r_agrees = same(v, r, OWN, r, OWN_AGAIN), n_agrees = same(v, n, OTHER, n, OTHER_AGAIN);
    *lasts = false;
    if (v->ranks == 1) return 0;
    if (r_agrees != n_agrees) return r_agrees ? n : r; /* who contradicts himself */
    if (same(v, r, OWN_AGAIN, n, OTHER_AGAIN)) return same(v, r, OWN, n, OTHER_AGAIN) ? n : r;
    *lasts = true;
    const int q = (r + 2) % v->ranks;
    if (v->ranks < 3) return -1;
    if (same(v, q, THIRD, n, OTHER_AGAIN)) return r;
    return same(v, q, THIRD, r, OWN_AGAIN) ? n : -1;
}

static status blame_result(struct trainer *t, const struct batch *mine, int r)
{
    struct verifier *v = t->verify;
    const int n = (r + 1) % v->ranks;
    const int64_t at = verify_differ(of_rank(v, r, OWN), of_rank(v, n, OTHER), v->gradients.count + 1);
    TRY(compute(t, mine, OWN_AGAIN));
    TRY(compute_other(t, mine, 1 % v->ranks, OTHER_AGAIN));
    if (v->ranks > 2) TRY(compute_other(t, mine, 2, THIRD));
    TRY(gather_results(v));
    char a[96], b[96], what[640], row[200];
    bool lasts;
    const int wrong = judge(v, r, n, &lasts);
    if (at < v->gradients.count)
        snprintf(row, sizeof row, "the gradient of %.120s", name_of(t, &v->gradients.list[at]));
    else
        snprintf(row, sizeof row, "the loss");
    if (wrong >= 0)
        snprintf(what, sizeof what, "%s computed %s of a micro-batch of step %lld wrongly%s",
                 rank_text(v, wrong, a), row, (long long)t->step,
                 lasts ? ", each time" : ", and rightly when asked again");
    else
        snprintf(what, sizeof what,
                 "%s and %s compute %s of a micro-batch of step %lld differently, each time: one of the two "
                 "is wrong, and two ranks "
                 "cannot tell which one; `ingot doctor` on both hosts",
                 rank_text(v, r, a), rank_text(v, n, b), row, (long long)t->step);
    return fail(t, wrong, what);
}

/* ---- the step */

void verify_begin(struct trainer *t)
{
    struct verifier *v = t->verify;
    if (v == NULL) return;
    if (v->fault.step == t->step && (v->fault.what == FLIP_WEIGHT || v->fault.what == FLIP_MOMENT))
        verify_fault_flip(&v->fault, &v->state);
}

static status twice(struct trainer *t, const struct batch *b)
{
    struct verifier *v = t->verify;
    const double begin = clock_s();
    const struct step_scalars after = *t->feed.scalars;
    const size_t bytes = (size_t)params_grads(&t->decoder.params) * sizeof *t->rank.kept;
    v->before = after;
    memset(&v->before.loss_sum, 0, GRAD_REDUCE_LOSSES * sizeof(double));
    take_result(t, OWN);
    memcpy(t->rank.kept, t->decoder.params.grad, bytes);
    status st = compute_other(t, b, 1 % v->ranks, OTHER);
    if (st == STATUS_OK) st = gather_results(v);
    const int wrong = st == STATUS_OK ? first_wrong(v) : -1;
    if (wrong >= 0) st = blame_result(t, b, wrong);
    memcpy(t->decoder.params.grad, t->rank.kept, bytes);
    *t->feed.scalars = after;
    v->recompute_s += clock_s() - begin;
    return st;
}

status verify_state(struct trainer *t)
{
    struct verifier *v = t->verify;
    if (v == NULL || !v->known) return STATUS_OK;
    sum_state(v, v->now);
    return check_own(t, v->now);
}

status verify_first(struct trainer *t, const struct batch *b)
{
    if (t->verify == NULL || !due(t, t->step)) return STATUS_OK;
    SCOPE("train.verify", t->step);
    comm_calls_untracked(t->mesh.world, true);
    status st = verify_state(t);
    if (st == STATUS_OK && t->verify->known) st = compare_replicas(t);
    if (st == STATUS_OK) st = twice(t, b);
    comm_calls_untracked(t->mesh.world, false);
    return st;
}

void verify_updated(struct trainer *t)
{
    struct verifier *v = t->verify;
    if (v == NULL) return;
    if (v->fault.what == FLIP_UPDATE && v->fault.step == t->step) verify_fault_flip(&v->fault, &v->state);
    v->known = t->spec.run.train_verify_state == VERIFY_STATE_STEP || due(t, t->step + 1);
    if (v->known) sum_state(v, v->sums);
}

void verify_forget(struct trainer *t)
{
    if (t->verify) t->verify->known = false;
}

status verify_copied(struct trainer *t)
{
    const struct verifier *v = t->verify;
    if (v == NULL || !v->known) return STATUS_OK;
    uint64_t *now = calloc((size_t)v->state.count, sizeof *now);
    if (now == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for checksums (train.verify)");
    verify_pieces_sum(&v->state, now);
    const status st = check_own(t, now);
    free(now);
    return st;
}

void verify_log(const struct trainer *t, double seconds)
{
    const struct verifier *v = t->verify;
    if (v == NULL || comm_rank(t->mesh.world) > 0) return;
    log_info("verify    one step in %lld: %lld micro-batches computed twice on this rank in %.3g s; "
             "checksums of weights "
             "and moments in %.3g s; of %.1f s",
             (long long)v->every, (long long)v->recomputed, v->recompute_s, v->sums_s, seconds);
}
