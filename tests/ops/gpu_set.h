/* A GPU with a set of ops of its own, for tests of GEMMs. */
#ifndef INGOT_TESTS_OPS_GPU_SET_H
#define INGOT_TESTS_OPS_GPU_SET_H
#include "ops/cuda/set.h"
#include "ops/ops.h"

struct gpu {
    struct dev dev;
    struct stream s;
    struct cuda_set set;
    struct ops ops;
    struct arena memory;
};

/* With the slots of GEMMs; `bytes` of device memory besides the workspace; `candidates`: option of the set. */
static struct gpu *gpu_set_open(size_t bytes, int candidates)
{
    struct gpu *g = calloc(1, sizeof *g);
    assert_non_null(g);
    assert_int_equal(dev_open(&g->dev, DEV_CUDA), STATUS_OK);
    assert_int_equal(dev_stream_open(&g->dev, &g->s), STATUS_OK);
    assert_int_equal(dev_arena_reserve(&g->dev, &g->memory, "test", CUDA_WORKSPACE + bytes), STATUS_OK);
    g->set = (struct cuda_set){.options = {.gemm_candidates = candidates},
                               .sm = g->dev.sm,
                               .multiprocessors = g->dev.multiprocessors,
                               .workspace = arena_take(&g->memory, CUDA_WORKSPACE, "workspace"),
                               .workspace_bytes = CUDA_WORKSPACE};
    g->s.ops = &g->set;
    cuda_gemm_slots(&g->ops);
    if (cuda_gemm_open(&g->set) != STATUS_OK) fail_msg("%s", status_message());
    return g;
}

static void gpu_set_close(struct gpu *g)
{
    cuda_gemm_close(&g->set);
    arena_free(&g->memory);
    dev_stream_close(&g->s);
    dev_close(&g->dev);
    free(g);
}
#endif
