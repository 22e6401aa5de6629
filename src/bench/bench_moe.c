/* A layer of experts on a GPU: option parsing (bench/cuda/moe.c measures). */
#include "base/flags.h"
#include "bench/bench.h"
#include "ops/ops.h"

#include <string.h>

#if !INGOT_CUDA
status cuda_bench_moe(const struct moe_bench *b)
{
    (void)b;
    return FAIL(STATUS_DEVICE,
                "this ingot was built without CUDA; build it where nvcc is on PATH (cmake --preset cuda)");
}
#endif

static status check(const struct moe_bench *b)
{
    if (b->experts < 1 || b->experts > MOE_EXPERTS_MAX)
        return FAIL(STATUS_CONFIG, "--experts=%lld: 1 to %d", (long long)b->experts, MOE_EXPERTS_MAX);
    if (b->top_k < 1 || b->top_k > b->experts || b->top_k > MOE_TOP_K_MAX)
        return FAIL(STATUS_CONFIG, "--top-k=%lld: 1 to %d, and at most the experts", (long long)b->top_k,
                    MOE_TOP_K_MAX);
    if (b->tokens < 1 || b->tokens > 1 << 20)
        return FAIL(STATUS_CONFIG, "--tokens=%lld: 1 to 1048576", (long long)b->tokens);
    if (b->hidden < 1 || b->size < 1 || b->hidden > 1 << 16 || b->size > 1 << 16)
        return FAIL(STATUS_CONFIG, "--hidden=%lld --size=%lld: 1 to 65536", (long long)b->hidden,
                    (long long)b->size);
    if (b->ranks != 0 && (b->ranks < 2 || b->ranks > 8 || b->experts % b->ranks != 0))
        return FAIL(STATUS_CONFIG, "--ranks=%lld: 2 to 8, a divisor of --experts=%lld", (long long)b->ranks,
                    (long long)b->experts);
    if (b->fp8 && (b->hidden % 16 != 0 || b->size % 16 != 0))
        return FAIL(STATUS_CONFIG, "--hidden=%lld --size=%lld: codes need multiples of 16",
                    (long long)b->hidden, (long long)b->size);
    return STATUS_OK;
}

status bench_moe(struct args *a)
{
    struct moe_bench b = {
        .tokens = 32768, .experts = 64, .top_k = 8, .hidden = 2048, .size = 1024, .runs = 15};
    const char *precision = "bf16";
    const struct flag flags[] = {
        FLAG("precision", &precision), FLAG("tokens", &b.tokens), FLAG("experts", &b.experts),
        FLAG("top-k", &b.top_k),       FLAG("hidden", &b.hidden), FLAG("size", &b.size),
        FLAG("ranks", &b.ranks),       FLAG("runs", &b.runs),     FLAG("json", &b.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    b.fp8 = strcmp(precision, "fp8") == 0;
    if (!b.fp8 && strcmp(precision, "bf16") != 0)
        return FAIL(STATUS_CONFIG, "--precision=%s: bf16 or fp8", precision);
    TRY(check(&b));
    return cuda_bench_moe(&b);
}
