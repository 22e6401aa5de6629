/* Goal: every attention graph of training has a cuDNN plan on an H200, whose workspace is what the planner laid out. Method: cuDNN
 * builds plans for the properties of a GPU that is not there (a stand-in for the driver lets it load what it compiled), with the strides
 * that nn/attn.c uses; nothing is run. Then the arithmetic of parts and scratch by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ops/cuda/libs.h"
#include "ops/cuda/attn_backends.h"
#include "ops/cuda/ops_cuda.h"
#include "ops/cuda/attn_cudnn_parts.h"

static const char h200[] =
    "{\"deviceVer\":900,\"deviceName\":\"NVIDIA H200\",\"multiProcessorCount\":132,\"l2CacheSize\":62914560,"
    "\"totalGlobalMem\":150109880320,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
    "\"driverVer\":13000,\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,"
    "\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
    "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"pciDeviceId\":0,\"cudaDeviceId\":0}";

enum qk_norm { PLAIN, NORMED }; /* normed q and k have a row of their own */

static struct attn_fwd_args fwd_args(struct attn_shape a, enum qk_norm norm)
{
    const int64_t qk = (a.heads + a.heads_kv) * a.head_dim, row = qk + a.heads_kv * a.head_dim;
    const bool latent = a.head_dim != a.head_dim_v; /* values follow what keys are made of */
    return (struct attn_fwd_args){.q_stride = latent ? a.heads * a.head_dim
                                              : norm ? qk
                                                     : row,
                                  .k_stride = latent ? a.heads_kv * a.head_dim
                                              : norm ? qk
                                                     : row,
                                  .v_stride = latent ? 2 * a.heads_kv * a.head_dim_v : row,
                                  .docs = a.docs,
                                  .rows = a.rows,
                                  .heads = a.heads,
                                  .heads_kv = a.heads_kv,
                                  .head_dim = a.head_dim,
                                  .head_dim_v = a.head_dim_v,
                                  .window = a.window,
                                  .len_max = a.len_max,
                                  .scale = 0.125,
                                  .dt = a.dt};
}

static struct attn_bwd_args bwd_args(struct attn_shape a, enum qk_norm norm)
{
    const struct attn_fwd_args f = fwd_args(a, norm);
    return (struct attn_bwd_args){.q_stride = f.q_stride,
                                  .k_stride = f.k_stride,
                                  .v_stride = f.v_stride,
                                  .dq_stride = a.head_dim == a.head_dim_v ? f.v_stride : f.q_stride,
                                  .dk_stride = a.head_dim == a.head_dim_v ? f.v_stride : f.k_stride,
                                  .dv_stride = f.v_stride,
                                  .docs = a.docs,
                                  .rows = a.rows,
                                  .heads = a.heads,
                                  .heads_kv = a.heads_kv,
                                  .head_dim = a.head_dim,
                                  .head_dim_v = a.head_dim_v,
                                  .window = a.window,
                                  .len_max = a.len_max,
                                  .scale = f.scale,
                                  .dt = a.dt};
}

/* Returns the bytes of the plan's workspace. */
static size_t has_plan(const struct sdpa_target *t, const struct sdpa_case *c, size_t planned)
{
    struct sdpa_plan *plan;
    if (sdpa_plan_open(&plan, c, t) != STATUS_OK) fail_msg("%s", status_message());
    size_t need = sdpa_plan_workspace(plan);
    if (need > planned)
        fail_msg("b %lld h %lld/%lld s %lld d %lld: the plan needs %zu bytes, %zu are planned",
                 (long long)c->b, (long long)c->h, (long long)c->hk, (long long)c->sq, (long long)c->dqk,
                 need, planned);
    sdpa_plan_close(plan);
    return need;
}

static void shape_has_plans(const struct sdpa_target *t, struct attn_shape a, enum qk_norm norm)
{
    const struct attn_fwd_args f = fwd_args(a, norm);
    const struct attn_bwd_args b = bwd_args(a, norm);
    const struct sdpa_layout fwd = sdpa_layout(&a, ATTN_FWD), bwd = sdpa_layout(&a, ATTN_BWD);
    const struct sdpa_part part = sdpa_part(&a);
    struct sdpa_case c = sdpa_case_fwd(&f);
    assert_null(cuda_sdpa_refuses(&a, 90));
    assert_true(fwd.total <= cuda_sdpa_scratch(&a, ATTN_FWD));
    assert_true(bwd.total <= cuda_sdpa_scratch(&a, ATTN_BWD));
    has_plan(t, &c, fwd.plan_bytes);
    c = sdpa_case_bwd(&b, part);
    size_t need = has_plan(t, &c, bwd.plan_bytes);
    /* The layout is no wild guess either: the parts fill most of it. */
    if (sdpa_dense(&a)) assert_true(need > bwd.plan_bytes / 2);
    const struct sdpa_part rest = {a.docs % part.b, part.hk};
    if (rest.b == 0) return;
    c = sdpa_case_bwd(&b, rest);
    has_plan(t, &c, bwd.plan_bytes);
}

static struct attn_shape dense(int64_t docs, int64_t len, int64_t heads, int64_t heads_kv, int64_t head_dim)
{
    return (struct attn_shape){.rows = docs * len,
                               .docs = docs,
                               .len_max = len,
                               .heads = heads,
                               .heads_kv = heads_kv,
                               .head_dim = head_dim,
                               .head_dim_v = head_dim,
                               .dt = DTYPE_BF16};
}

static void training_shapes_have_plans_on_an_h200(void **state)
{
    (void)state;
    struct sdpa_target t;
    struct attn_shape window = dense(2, 4096, 32, 8, 128), packed = dense(1, 4096, 12, 12, 64);
    struct attn_shape latent = dense(4, 4096, 16, 16, 192);
    if (sdpa_target_open(&t, 90, h200) != STATUS_OK) fail_msg("%s", status_message());
    shape_has_plans(&t, dense(64, 1024, 12, 12, 64), PLAIN);
    shape_has_plans(&t, dense(32, 2048, 16, 8, 64), NORMED);
    shape_has_plans(&t, dense(8, 4096, 32, 8, 64), PLAIN);
    shape_has_plans(&t, dense(4, 4096, 32, 8, 128), PLAIN);
    shape_has_plans(&t, dense(67, 1000, 12, 12, 64), PLAIN); /* the last part is smaller */
    shape_has_plans(&t, dense(1, 8192, 32, 8, 128), NORMED); /* in parts of some heads */
    window.window = 1024;
    shape_has_plans(&t, window, PLAIN);
    packed.docs = 24;
    packed.len_max = 1024;
    shape_has_plans(&t, packed, PLAIN);
    packed.heads_kv = 4;
    packed.docs = 20;
    shape_has_plans(&t, packed, NORMED);
    latent.head_dim_v = 128;
    shape_has_plans(&t, latent, PLAIN);
    latent.docs = 24;
    latent.rows = 4096;
    latent.len_max = 1024;
    shape_has_plans(&t, latent, PLAIN);
    sdpa_target_close(&t);
}

static void parts_stay_within_the_budget(void **state)
{
    (void)state;
    struct attn_shape a = dense(64, 1024, 12, 12, 64);
    assert_int_equal(sdpa_part(&a).b, 32);
    a = dense(32, 2048, 16, 8, 64);
    assert_int_equal(sdpa_part(&a).b, 8);
    a = dense(8, 4096, 32, 8, 64);
    assert_int_equal(sdpa_part(&a).b, 1);
    assert_int_equal(sdpa_part(&a).hk, 8);
    a = dense(2, 8192, 32, 8, 128);
    assert_int_equal(sdpa_part(&a).b, 1);
    assert_int_equal(sdpa_part(&a).hk, 2);
    a = dense(1, 32768, 32, 8, 128);
    assert_int_equal(sdpa_part(&a).b, 0);
    assert_non_null(cuda_sdpa_refuses(&a, 90));
    assert_int_equal(cuda_sdpa_scratch(&a, ATTN_BWD), 0);
}

static void what_cudnn_cannot_do_is_refused(void **state)
{
    (void)state;
    struct attn_shape a = dense(2, 256, 4, 2, 64), ragged = a, bad;
    ragged.docs = 5;
    assert_null(cuda_sdpa_refuses(&a, 80));
    assert_null(cuda_sdpa_refuses(&ragged, 90));
    assert_non_null(cuda_sdpa_refuses(&ragged, 80));
    assert_non_null(cuda_sdpa_refuses(&ragged, 120));
    bad = a;
    bad.dt = DTYPE_F32;
    assert_non_null(cuda_sdpa_refuses(&bad, 90));
    assert_int_equal(cuda_sdpa_scratch(&bad, ATTN_BWD), 0);
    bad = a;
    bad.head_dim = bad.head_dim_v = 18;
    assert_non_null(cuda_sdpa_refuses(&bad, 90));
    bad.head_dim_v = 16;
    assert_non_null(cuda_sdpa_refuses(&bad, 90));
    bad.head_dim = bad.head_dim_v = 256;
    assert_null(cuda_sdpa_refuses(&bad, 90));
    assert_non_null(cuda_sdpa_refuses(&bad, 100));
    bad = ragged;
    bad.docs = 5000;
    assert_non_null(cuda_sdpa_refuses(&bad, 90));
    bad = dense(1, 65536, 16, 8, 64); /* a workspace of 17 GiB */
    bad.docs = 128;
    bad.len_max = 2048;
    assert_non_null(cuda_sdpa_refuses(&bad, 90));
    bad = dense(1, 1024, 4, 4, 64); /* a slot per token, as a run with packed documents has it */
    bad.docs = 1024;
    bad.len_max = 128;
    assert_non_null(cuda_sdpa_refuses(&bad, 90));
}

/* The planner asks for the largest call; calls with fewer rows or documents run in the same memory. */
static void scratch_of_the_largest_call_serves_the_others(void **state)
{
    (void)state;
    const int64_t docs[] = {1, 2, 3, 7, 32, 50, 300}, len[] = {1, 63, 64, 65, 200, 1000, 1024, 3000};
    for (size_t heads_kv = 2; heads_kv <= 8; heads_kv *= 4) {
        struct attn_shape most = dense(1, 16384, 8, (int64_t)heads_kv, 64);
        most.docs = 300;
        most.len_max = 4096;
        for (int pass = ATTN_FWD; pass <= ATTN_BWD; pass++)
            for (size_t i = 0; i < sizeof docs / sizeof docs[0]; i++)
                for (size_t k = 0; k < sizeof len / sizeof len[0]; k++) {
                    struct attn_shape a = dense(docs[i], len[k], 8, (int64_t)heads_kv, 64);
                    if (a.rows > most.rows) continue;
                    if (cuda_sdpa_refuses(&a, 90)) continue;
                    assert_true(cuda_sdpa_scratch(&a, pass) <= cuda_sdpa_scratch(&most, pass));
                    a.rows -= a.rows / 3; /* now ragged */
                    if (cuda_sdpa_refuses(&a, 90)) continue;
                    assert_true(cuda_sdpa_scratch(&a, pass) <= cuda_sdpa_scratch(&most, pass));
                }
    }
}

/* Where own kernels take cuDNN's place for sure, its workspace is not reserved; elsewhere, and for GPUs that are not known, it is. */
static void hopper_reserves_no_workspace_of_cudnn(void **state)
{
    (void)state;
    struct ops any, hopper, atomic;
    struct attn_shape a = dense(4, 4096, 32, 8, 128);
    assert_int_equal(ops_cuda(&any, NULL, &(struct cuda_options){0}), STATUS_OK);
    assert_int_equal(ops_cuda(&hopper, NULL, &(struct cuda_options){.sm = 90}), STATUS_OK);
    assert_int_equal(ops_cuda(&atomic, NULL, &(struct cuda_options){.sm = 90, .attention_atomic = true}),
                     STATUS_OK);
    assert_int_equal(hopper.attn_scratch(&a, ATTN_BWD), cuda_hopper_attn_scratch(&a, ATTN_BWD));
    assert_true(hopper.attn_scratch(&a, ATTN_BWD) < cuda_sdpa_scratch(&a, ATTN_BWD));
    assert_true(any.attn_scratch(&a, ATTN_BWD) >= cuda_sdpa_scratch(&a, ATTN_BWD));
    assert_int_equal(atomic.attn_scratch(&a, ATTN_BWD), cuda_hopper_attn_scratch(&a, ATTN_BWD));
    a.window = 1024; /* with atomics cuDNN is faster there */
    assert_true(atomic.attn_scratch(&a, ATTN_BWD) >= cuda_sdpa_scratch(&a, ATTN_BWD));
    a = dense(4, 4096, 32, 8, 80);
    assert_true(hopper.attn_scratch(&a, ATTN_BWD) >= cuda_sdpa_scratch(&a, ATTN_BWD));
}

/* Heads of 192 and 128 on Hopper keep gradients of scores between their two kernels: of some documents and heads at a time, however many
 * there are, and of none beyond 65536 rows of one document. */
static void memory_between_wide_kernels_is_bounded(void **state)
{
    (void)state;
    const size_t gib = (size_t)1 << 30, few = (size_t)256 << 20;
    for (int64_t docs = 1; docs <= 16; docs++) {
        struct attn_shape a = dense(docs, 32768, 8, 8, 192);
        a.head_dim_v = 128;
        const size_t two = cuda_hopper_attn_scratch(&a, ATTN_BWD);
        assert_true(two > 2 * gib && two < 2 * gib + few); /* two of 256 x 257 tiles of 16 KiB */
    }
    struct attn_shape small = dense(4, 4096, 32, 32, 192), ragged = small,
                      window = dense(1, 65536, 8, 8, 192);
    struct attn_shape most = dense(1, 65536, 8, 8, 192), more = dense(1, 69632, 8, 8, 192);
    small.head_dim_v = ragged.head_dim_v = most.head_dim_v = more.head_dim_v = window.head_dim_v = 128;
    ragged.docs = 24;
    window.window = 1024;
    assert_true(cuda_hopper_attn_scratch(&small, ATTN_BWD) < gib + few);
    assert_true(cuda_hopper_attn_scratch(&ragged, ATTN_BWD) < gib + few);
    assert_true(cuda_hopper_attn_scratch(&window, ATTN_BWD) < gib + few);
    assert_true(cuda_hopper_attn_scratch(&most, ATTN_BWD) > 4 * gib);
    assert_true(cuda_hopper_attn_scratch(&most, ATTN_BWD) < 4 * gib + few);
    assert_true(cuda_hopper_attn_scratch(&more, ATTN_BWD) < few);
}

int main(void)
{
    if (cuda_libs_open() != STATUS_OK) {
        print_message("%s\n", status_message());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_stay_within_the_budget),
        cmocka_unit_test(what_cudnn_cannot_do_is_refused),
        cmocka_unit_test(scratch_of_the_largest_call_serves_the_others),
        cmocka_unit_test(hopper_reserves_no_workspace_of_cudnn),
        cmocka_unit_test(memory_between_wide_kernels_is_bounded),
        cmocka_unit_test(training_shapes_have_plans_on_an_h200),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
