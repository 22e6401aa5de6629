/* Links between the GPUs of this host, and to the host: option parsing (bench/cuda/p2p.c measures). */
#include "base/flags.h"
#include "bench/bench.h"
#include "comm/gpu/p2p_schedule.h"
#include "dev/dev.h"

#include <string.h>

#if !INGOT_CUDA
status cuda_bench_p2p(const struct p2p_bench *b)
{
    struct dev d;
    (void)b;
    return dev_open(&d, DEV_CUDA);
}
#endif

static status check(const struct p2p_bench *b, const char *device)
{
    static const char *const sections[] = {"host", "pairs", "rings", "collectives"};
    bool known = b->section == NULL;
    if (device && strcmp(device, "cuda") != 0)
        return FAIL(STATUS_CONFIG,
                    "--device=%.40s: bench p2p is about GPUs, cuda; between processes of a host: "
                    "ingot launch -n 4 -- bench collectives",
                    device);
    for (int i = 0; i < 4; i++) known |= b->section && strcmp(b->section, sections[i]) == 0;
    if (!known) return FAIL(STATUS_CONFIG, "--only=%.40s: host, pairs, rings or collectives", b->section);
    if (b->mib < 1 || b->mib > 4096) return FAIL(STATUS_CONFIG, "--mib=%lld: 1 to 4096", (long long)b->mib);
    if (b->runs < 1 || b->runs > P2P_RUNS_MAX)
        return FAIL(STATUS_CONFIG, "--runs=%lld: 1 to %d", (long long)b->runs, P2P_RUNS_MAX);
    if (b->blocks < 1 || b->blocks > P2P_BLOCKS_MAX)
        return FAIL(STATUS_CONFIG, "--blocks=%lld: 1 to %d", (long long)b->blocks, P2P_BLOCKS_MAX);
    return STATUS_OK;
}

status bench_p2p(struct args *a)
{
    struct p2p_bench b = {.mib = 256, .runs = 7, .blocks = 64};
    const char *device = NULL;
    const struct flag flags[] = {FLAG("device", &device),   FLAG("mib", &b.mib),      FLAG("runs", &b.runs),
                                 FLAG("blocks", &b.blocks), FLAG("only", &b.section), FLAG("json", &b.json)};
    TRY(args_parse(a, flags, (int)(sizeof flags / sizeof flags[0])));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 0));
    TRY(check(&b, device));
    return cuda_bench_p2p(&b);
}
