/* Finds the fastest algorithm for one GEMM: cuBLASLt proposes candidates, and timing decides. Its first proposal is
 * up to 20 % slower than the best.
 *
 * The real operands are timed in place (zeros would draw less power and run faster) on the real stream. With
 * ACCUM_STORE, c may be written any number of times, because the GEMM that follows overwrites it. With ACCUM_ADD
 * every run would add once more, so the runs read c and write their sum elsewhere: behind the library's part of the
 * workspace, or to memory that is allocated for the search only. Memory traffic and arithmetic are those of the real
 * GEMM. If no such memory is available, the algorithm of the same GEMM with ACCUM_STORE is used, else the first
 * proposal.
 *
 * There are two rounds. In the first, every proposal runs twice, the first time to load its code. In the second, the
 * best few run alternately, so a clock change affects all equally; the smallest mean decides. Time is bounded: long
 * GEMMs (tens of ms) try fewer candidates. */
#include "dev/cuda/cuda_int.h"
#include "ops/cuda/gemm_cublaslt_int.h"
#include "base/clock.h"
#include "base/log.h"

#include <math.h>
#include <string.h>

enum { FINALISTS = 3, REPEAT_MAX = 20 };
static const double near_best = 1.12; /* finalists */
static const double short_ms = 0.2;   /* shorter runs are repeated up to it */
static const double warm_ms = 30;     /* before the first search: the clock of an idle GPU rises */
static const double long_ms = 150, too_long_ms = 400; /* of the first round: then 8 proposals are enough, 4 */

struct trial {
    struct gemm_choices *t;
    struct gemm_entry *e;
    const struct gemm_args *g;
    dev_stream s;
    void *to;   /* output of the runs */
    void *held; /* memory of the search, or NULL */
    int count;
    cublasLtMatmulHeuristicResult_t proposals[GEMM_CANDIDATES];
    double ms[GEMM_CANDIDATES]; /* of one run; INFINITY: it fails */
};

static status set_preference(cublasLtMatmulPreference_t p, const struct gemm_key *k)
{
    const uint64_t workspace = GEMM_WORKSPACE;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* besides NONE: partial sums in f32 */
    const uint32_t a = k->align[1], b = k->align[0], to = k->align[2],
                   d = k->bias && k->bias < to ? k->bias : to;
    const uint32_t c = k->align[3] ? k->align[3] : to;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } all[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
               {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof d}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        TRY_LT(cublasLtMatmulPreferenceSetAttribute(p, all[i].name, all[i].value, all[i].bytes));
    return STATUS_OK;
}

/* FP8: the library reads and writes rows in units of 16 bytes. The rest of FP8 is not asked for: m too has to be a
 * multiple of 16. */
static bool within_rules(const struct gemm_key *k)
{
    if (!gemm_key_fp8(k)) return true;
    for (int i = 0; i < 4; i++)
        if (k->align[i] < 16 && (i < 3 || k->align[i])) return false;
    return k->m % 16 == 0 && k->n % 16 == 0 && k->k % 16 == 0;
}

/* Requests x->count proposals, best first; none if the library supports no algorithm. */
static status propose(struct trial *x)
{
    if (!within_rules(&x->e->choice.key)) return STATUS_OK;
    const int wanted = cuda_set(x->s)->options.gemm_candidates;
    cublasLtMatmulPreference_t p;
    TRY_LT(cublasLtMatmulPreferenceCreate(&p));
    status st = set_preference(p, &x->e->choice.key);
    if (st == STATUS_OK) {
        int found = 0;
        cublasStatus_t err = cublasLtMatmulAlgoGetHeuristic(
            x->t->lt, x->e->op, x->e->la, x->e->lb, x->e->lc, x->e->lc, p,
            wanted > 0 && wanted < GEMM_CANDIDATES ? wanted : GEMM_CANDIDATES, x->proposals, &found);
        if (err != CUBLAS_STATUS_SUCCESS) found = 0;
        for (int i = 0; i < found; i++)
            if (x->proposals[i].state == CUBLAS_STATUS_SUCCESS) x->proposals[x->count++] = x->proposals[i];
        if (err != CUBLAS_STATUS_SUCCESS && err != CUBLAS_STATUS_NOT_SUPPORTED &&
            err != CUBLAS_STATUS_INVALID_VALUE)
            st = FAIL(STATUS_DEVICE, "cublasLtMatmulAlgoGetHeuristic: %s (%s)", cublasLtGetStatusString(err),
                      cublasLtGetStatusName(err));
    }
    (void)cublasLtMatmulPreferenceDestroy(p);
    return st;
}

/* The output buffer of the runs; x->to NULL: out of memory. */
static status find_room(struct trial *x)
{
    const struct cuda_set *set = cuda_set(x->s);
    const size_t bytes = (size_t)(x->g->m * x->g->n) * dtype_bytes(x->g->cdt);
    if (x->g->accum == ACCUM_STORE) {
        x->to = x->g->c;
    } else if (GEMM_WORKSPACE + bytes <= set->workspace_bytes) {
        x->to = (char *)set->workspace + GEMM_WORKSPACE;
    } else {
        cudaError_t err = cudaMalloc(&x->held, bytes);
        if (err == cudaErrorMemoryAllocation) {
            (void)cudaGetLastError();
            x->held = NULL;
        } else {
            TRY_CUDA(err);
        }
        x->to = x->held;
    }
    return STATUS_OK;
}

/* Milliseconds of one run, mean of `repeat`; INFINITY if the library rejects it. */
static status timed(const struct trial *x, int i, int repeat, double *ms)
{
    TRY(dev_event_record(x->s, &x->t->begin));
    for (int r = 0; r < repeat; r++)
        if (cuda_gemm_launch(x->t, x->e, &x->proposals[i].algo, x->g, x->to, x->s) != CUBLAS_STATUS_SUCCESS) {
            (void)cudaGetLastError();
            *ms = (double)INFINITY;
            return dev_sync(x->s); /* asynchronous errors show here */
        }
    TRY(dev_event_record(x->s, &x->t->end));
    TRY(dev_event_ms(x->s->dev, &x->t->begin, &x->t->end, ms));
    *ms /= repeat;
    return STATUS_OK;
}

static int repeats(double ms)
{
    const int n = ms > 0 ? (int)(short_ms / ms) + 1 : REPEAT_MAX;
    return n < REPEAT_MAX ? n : REPEAT_MAX;
}

/* Times every proposal within a time limit. */
static status first_round(struct trial *x)
{
    double spent = 0;
    for (int i = 0; i < x->count; i++) {
        if ((i >= 4 && spent > too_long_ms) || (i >= 8 && spent > long_ms)) {
            x->count = i;
            break;
        }
        double first;
        TRY(timed(x, i, 1, &first));
        x->ms[i] = first;
        if (isinf(first)) continue;
        TRY(timed(x, i, 1, &x->ms[i]));
        if (x->ms[i] < short_ms) TRY(timed(x, i, repeats(x->ms[i]), &x->ms[i]));
        spent += first + x->ms[i];
    }
    return STATUS_OK;
}

static int fastest(const double ms[], int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (ms[i] < ms[best]) best = i;
    return best;
}

/* Times the finalists, alternating. */
static status second_round(struct trial *x, int *winner)
{
    int who[FINALISTS], count = 0;
    double left[GEMM_CANDIDATES], least[FINALISTS];
    const double best = x->ms[fastest(x->ms, x->count)];
    memcpy(left, x->ms, sizeof left);
    while (count < FINALISTS && count < x->count) {
        const int next = fastest(left, x->count);
        if (isinf(left[next]) || left[next] > near_best * best) break;
        left[next] = (double)INFINITY;
        least[count] = (double)INFINITY;
        who[count++] = next;
    }
    *winner = -1;
    if (count == 0) return STATUS_OK;
    const int rounds = count == 1 ? 0 : best < 2 ? 4 : 2;
    for (int round = 0; round < rounds; round++)
        for (int f = 0; f < count; f++) {
            double ms;
            TRY(timed(x, who[f], repeats(best), &ms));
            if (ms < least[f]) least[f] = ms;
        }
    const int f = rounds ? fastest(least, count) : 0;
    *winner = who[f];
    if (rounds) x->ms[*winner] = least[f];
    return STATUS_OK;
}

/* Runs the first proposal for a while. */
static status warm_up(const struct trial *x)
{
    double spent = 0, ms = warm_ms;
    while (spent < warm_ms) {
        const int repeat = repeats(ms);
        TRY(timed(x, 0, repeat, &ms));
        spent += ms * repeat + 0.01;
    }
    return STATUS_OK;
}

static status contest(struct trial *x, int *winner)
{
    const struct dev *d = x->s->dev;
    *winner = 0;
    x->ms[0] = 0;
    if (cuda_set(x->s)->options.gemm_candidates == 1) return STATUS_OK;
    TRY(find_room(x));
    if (x->to == NULL) {
        log_info("no room to time the GEMM %lld x %lld x %lld: its algorithm is a guess", (long long)x->g->m,
                 (long long)x->g->n, (long long)x->g->k);
        if (cuda_gemm_inherit(x->t, x->e)) x->proposals[0].algo = x->e->algo;
        return STATUS_OK;
    }
    if (x->t->begin.mark == NULL) TRY(dev_event_open(d, &x->t->begin));
    if (x->t->end.mark == NULL) TRY(dev_event_open(d, &x->t->end));
    if (x->t->timed_count == 0) TRY(warm_up(x));
    TRY(first_round(x));
    return second_round(x, winner);
}

status cuda_gemm_search(struct gemm_choices *t, struct gemm_entry *e, const struct gemm_args *g, dev_stream s)
{
    struct trial x = {.t = t, .e = e, .g = g, .s = s};
    const double begin = clock_s(), flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    int winner = -1;
    TRY(propose(&x));
    const int proposed = x.count;
    status st = x.count ? contest(&x, &winner) : STATUS_OK;
    if (x.held) (void)cudaFree(x.held);
    if (st != STATUS_OK) return st;
    if (winner < 0) {
        e->choice.way = gemm_key_unfuses(&e->choice.key) ? GEMM_UNFUSED : GEMM_PLAIN;
        if (e->choice.way == GEMM_PLAIN && flops > 1e9)
            log_warn("cuBLASLt has nothing for the GEMM %lld x %lld x %lld: a slow kernel takes it",
                     (long long)g->m, (long long)g->n, (long long)g->k);
        return STATUS_OK;
    }
    e->choice.way = GEMM_LIBRARY;
    e->algo = x.proposals[winner].algo;
    memcpy(e->choice.algo, &e->algo, sizeof e->choice.algo);
    e->choice.time_ns = (int64_t)(1e6 * x.ms[winner]);
    t->timed_count++;
    t->timed_s += clock_s() - begin;
    log_debug("GEMM %lld x %lld x %lld: algorithm %d of %d, %.1f us (the first: %.1f us); %d GEMMs in "
              "%.2f s",
              (long long)g->m, (long long)g->n, (long long)g->k, winner + 1, proposed, 1e3 * x.ms[winner],
              1e3 * x.ms[0], t->timed_count, t->timed_s);
    return STATUS_OK;
}
