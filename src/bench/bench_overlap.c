/* GEMMs beside the traffic of a collective on one GPU: option parsing (bench/cuda/overlap.c measures). */
#include "base/flags.h"
#include "bench/bench.h"
#include "bench/lasting.h"
#include "dev/dev.h"
#include "spec/spec.h"

#include <stdlib.h>

#if !INGOT_CUDA
status cuda_bench_overlap(const struct overlap_bench *b)
{
    struct dev d;
    (void)b;
    return dev_open(&d, DEV_CUDA);
}
#endif

/* "8,16" */
static status read_sms(struct overlap_bench *b, const char *list)
{
    enum { SMS_MAX = 1024 };
    const char *at = list;
    while (b->count < OVERLAP_WAYS_MAX) {
        char *end;
        const long long n = strtoll(at, &end, 10);
        if (end == at || n < 1 || n > SMS_MAX || (*end && *end != ',')) break;
        b->sms[b->count++] = n;
        if (*end == 0) return STATUS_OK;
        at = end + 1;
    }
    return FAIL(STATUS_CONFIG, "--comm-sms=%.40s: up to %d numbers from 1 to %d, as in 8,16", list,
                OVERLAP_WAYS_MAX, SMS_MAX);
}

static status check(const struct overlap_bench *b)
{
    if (b->layers < 0 || b->layers > 1024)
        return FAIL(STATUS_CONFIG, "--layers=%lld: 1 to 1024", (long long)b->layers);
    if (b->tokens < 16 || b->tokens > 1 << 20 || b->tokens % 16)
        return FAIL(STATUS_CONFIG, "--tokens=%lld: a multiple of 16, up to 1048576", (long long)b->tokens);
    if (b->ranks < 2 || b->ranks > 4096)
        return FAIL(STATUS_CONFIG, "--ranks=%lld: 2 to 4096", (long long)b->ranks);
    if (b->gbs < 0 || b->gbs > 100000)
        return FAIL(STATUS_CONFIG, "--gbs=%lld: 0 to 100000", (long long)b->gbs);
    if (b->runs < 1 || b->runs > OVERLAP_RUNS_MAX)
        return FAIL(STATUS_CONFIG, "--runs=%lld: 1 to %d", (long long)b->runs, OVERLAP_RUNS_MAX);
    return lasting_check(b->seconds);
}

status bench_overlap(struct args *a)
{
    struct overlap_bench b = {.preset = "llama-1b", .tokens = 16384, .ranks = 8, .gbs = 360, .runs = 7};
    const char *sms = "8,16,24,32";
    struct model_spec model;
    const struct flag flags[] = {
        FLAG("comm-sms", &sms),    FLAG("preset", &b.preset),   FLAG("layers", &b.layers),
        FLAG("tokens", &b.tokens), FLAG("ranks", &b.ranks),     FLAG("gbs", &b.gbs),
        FLAG("runs", &b.runs),     FLAG("seconds", &b.seconds), FLAG("json", &b.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    TRY(read_sms(&b, sms));
    TRY(check(&b));
    TRY(preset_find(b.preset, &model));
    return cuda_bench_overlap(&b);
}
