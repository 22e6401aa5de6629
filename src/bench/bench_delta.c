/* The gated delta rule on a GPU: option parsing (cuda/delta.c measures). */
#include "base/flags.h"
#include "bench/bench.h"
#include "ops/ops.h"

#if !INGOT_CUDA
status cuda_bench_delta(const struct delta_bench *b)
{
    (void)b;
    return FAIL(STATUS_DEVICE,
                "this ingot was built without CUDA; build it where nvcc is on PATH (cmake --preset cuda)");
}
#endif

typedef long long ll;

static status check(const struct delta_bench *b)
{
    const int64_t most = 1 << 20;
    if (b->docs < 1 || b->length < 1 || b->docs > most || b->length > most || b->docs * b->length > most)
        return FAIL(STATUS_CONFIG, "--docs=%lld --length=%lld: 1 to %lld rows in all", (ll)b->docs,
                    (ll)b->length, (ll)most);
    if (b->heads_k < 1 || b->heads < 1 || b->heads > 1024 || b->heads % b->heads_k != 0)
        return FAIL(STATUS_CONFIG, "--key-heads=%lld --heads=%lld: value heads are a multiple, at most 1024",
                    (ll)b->heads_k, (ll)b->heads);
    if (b->dim < 16 || b->dim % 16 != 0 || b->dim > DELTA_KEYS_CUDA_MAX)
        return FAIL(STATUS_CONFIG, "--dim=%lld: a multiple of 16, at most %d", (ll)b->dim,
                    (int)DELTA_KEYS_CUDA_MAX);
    if (b->runs < 1 || b->runs > DELTA_BENCH_RUNS)
        return FAIL(STATUS_CONFIG, "--runs=%lld: 1 to %d", (ll)b->runs, (int)DELTA_BENCH_RUNS);
    return STATUS_OK;
}

status bench_delta(struct args *a)
{
    struct delta_bench b = {.docs = 4, .length = 4096, .heads_k = 16, .heads = 16, .dim = 128, .runs = 15};
    const struct flag flags[] = {FLAG("docs", &b.docs),         FLAG("length", &b.length),
                                 FLAG("key-heads", &b.heads_k), FLAG("heads", &b.heads),
                                 FLAG("dim", &b.dim),           FLAG("runs", &b.runs),
                                 FLAG("json", &b.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    TRY(check(&b));
    return cuda_bench_delta(&b);
}
