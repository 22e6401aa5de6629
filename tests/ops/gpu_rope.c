/* Goal: RoPE as the epilogue of the projection (EPILOGUE_ROPE) gives what gemm and rope_fwd give apart, but for one rounding here and there:
 * whole and cut tiles, heads of 64 and 128, positions of any order; nothing behind the rows is written.
 * And attention's backward that turns dq and dk back (ops.attn_bwd_supports) gives what attn_bwd and rope_bwd give apart, for cut tiles,
 * groups of heads, windows, documents and positions of any order; dv and what lies behind the rows keep their bits, and so does a second
 * run. Bound: apart, a gradient is rounded to BF16 before it is turned and after it, together only after it: three roundings of 2^-9. */
#include "base/rng.h"
#include "dev/dev.h"
#include "ops/cuda/ops_cuda.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    HD = 64,
    HALF = HD / 2,
    POSITIONS = 5000,
    PLACES = POSITIONS / 2 /* as rows of 64 angles */,
    GUARD = 7,
    DOCS_MAX = 8
};
static const double bound = 3.0 / 512;

struct gpu {
    struct dev dev;
    struct stream s;
    struct ops ops;
    struct arena mem;
};

static void gpu_open(struct gpu *g)
{
    assert_int_equal(dev_open(&g->dev, DEV_CUDA), STATUS_OK);
    assert_int_equal(dev_stream_open(&g->dev, &g->s), STATUS_OK);
    assert_int_equal(ops_cuda(&g->ops, &g->s, &(struct cuda_options){0}), STATUS_OK);
}

static void gpu_close(struct gpu *g)
{
    ops_cuda_close(&g->s);
    dev_stream_close(&g->s);
    dev_close(&g->dev);
}

struct shape {
    int64_t docs, len[DOCS_MAX], len_max, heads, heads_kv, window;
};

/* q, k, v in rows of one projection, as nn/attn.c has them. */
struct call {
    int64_t rows, stride;
    struct attn_fwd_args f;
    struct attn_bwd_args b;
    struct rotation rope;
    bf16 *got, *want; /* [rows + GUARD, stride], on the host */
};

static void *on_gpu(struct gpu *g, const void *from, size_t bytes)
{
    void *to = arena_take(&g->mem, bytes, "operand");
    assert_int_equal(dev_upload(&g->s, to, from, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
    return to;
}

static bf16 *normal(int64_t count, uint64_t seed)
{
    bf16 *p = malloc((size_t)count * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < count; i++)
        p[i] = bf16_from_f32((float)rng_normal(seed, RNG_TEST, (uint64_t)i, 0));
    return p;
}

static void *normal_on_gpu(struct gpu *g, int64_t count, uint64_t seed)
{
    bf16 *p = normal(count, seed);
    void *to = on_gpu(g, p, sizeof *p * (size_t)count);
    free(p);
    return to;
}

static void turn_open(struct gpu *g, struct call *c)
{
    float *table[2] = {malloc(sizeof(float) * POSITIONS * HALF), malloc(sizeof(float) * POSITIONS * HALF)};
    int32_t *positions = malloc(sizeof *positions * (size_t)c->rows);
    assert_true(table[0] && table[1] && positions);
    for (int64_t p = 0; p < POSITIONS; p++)
        for (int64_t i = 0; i < HALF; i++) {
            const double angle = (double)p * pow(10000, -(double)i / HALF);
            table[0][p * HALF + i] = (float)cos(angle);
            table[1][p * HALF + i] = (float)sin(angle);
        }
    for (int64_t i = 0; i < c->rows; i++) positions[i] = (int32_t)((i * 2654435761u + 17) % PLACES);
    c->rope = (struct rotation){.positions = on_gpu(g, positions, sizeof *positions * (size_t)c->rows),
                                .cos = on_gpu(g, table[0], sizeof(float) * POSITIONS * HALF),
                                .sin = on_gpu(g, table[1], sizeof(float) * POSITIONS * HALF)};
    free(positions);
    free(table[0]);
    free(table[1]);
}

static void call_open(struct gpu *g, struct call *c, const struct shape *x)
{
    int32_t cu[DOCS_MAX + 1] = {0};
    for (int64_t i = 0; i < x->docs; i++) cu[i + 1] = cu[i] + (int32_t)x->len[i];
    c->rows = cu[x->docs];
    c->stride = (x->heads + 2 * x->heads_kv) * HD;
    const int64_t q = x->heads * HD, kv = x->heads_kv * HD;
    const struct attn_shape shape = {c->rows, x->docs, x->len_max, x->heads,   x->heads_kv,
                                     HD,      HD,      x->window,  DTYPE_BF16, 0};
    const size_t scratch = g->ops.attn_scratch(&shape, ATTN_BWD),
                 first = g->ops.attn_scratch(&shape, ATTN_FWD);
    const size_t workspace = g->ops.workspace(c->rows), row = sizeof(bf16) * (size_t)c->stride,
                 rows = (size_t)c->rows + GUARD;
    assert_int_equal(
        dev_arena_reserve(&g->dev, &g->mem, "test",
                          2 * rows * (row + row) + scratch + first + workspace + ((size_t)64 << 20)),
        STATUS_OK);
    ops_cuda_workspace(&g->s, arena_take(&g->mem, workspace, "workspace"), workspace);
    bf16 *qkv = normal_on_gpu(g, c->rows * c->stride, 1), *grad = arena_take(&g->mem, rows * row, "dqkv");
    c->f = (struct attn_fwd_args){
        .q = qkv,
        .k = qkv + q,
        .v = qkv + q + kv,
        .o = arena_take(&g->mem, sizeof(bf16) * (size_t)(c->rows * q), "o"),
        .lse = arena_take(&g->mem, sizeof(float) * (size_t)(c->rows * x->heads), "lse"),
        .q_stride = c->stride,
        .k_stride = c->stride,
        .v_stride = c->stride,
        .cu_seqlens = on_gpu(g, cu, sizeof cu),
        .docs = x->docs,
        .rows = c->rows,
        .heads = x->heads,
        .heads_kv = x->heads_kv,
        .head_dim = HD,
        .head_dim_v = HD,
        .window = x->window,
        .len_max = x->len_max,
        .scale = 1 / sqrt((double)HD),
        .scratch = arena_take(&g->mem, first, "scratch"),
        .dt = DTYPE_BF16};
    c->b = (struct attn_bwd_args){.q = c->f.q,
                                  .k = c->f.k,
                                  .v = c->f.v,
                                  .o = c->f.o,
                                  .do_ = normal_on_gpu(g, c->rows * q, 2),
                                  .lse = c->f.lse,
                                  .dq = grad,
                                  .dk = grad + q,
                                  .dv = grad + q + kv,
                                  .q_stride = c->stride,
                                  .k_stride = c->stride,
                                  .v_stride = c->stride,
                                  .dq_stride = c->stride,
                                  .dk_stride = c->stride,
                                  .dv_stride = c->stride,
                                  .cu_seqlens = c->f.cu_seqlens,
                                  .docs = x->docs,
                                  .rows = c->rows,
                                  .heads = x->heads,
                                  .heads_kv = x->heads_kv,
                                  .head_dim = HD,
                                  .head_dim_v = HD,
                                  .window = x->window,
                                  .len_max = x->len_max,
                                  .scale = c->f.scale,
                                  .scratch = arena_take(&g->mem, scratch, "scratch"),
                                  .scratch_bytes = scratch,
                                  .dt = DTYPE_BF16};
    c->got = malloc(rows * row);
    c->want = malloc(rows * row);
    assert_true(c->got && c->want);
    turn_open(g, c);
}

/* Gradients of q, k and v, rotated by the fused kernel or separately, and the guard after them. */
static void backward(struct gpu *g, struct call *c, bool together, bf16 *to)
{
    const size_t bytes = sizeof(bf16) * (size_t)((c->rows + GUARD) * c->stride);
    struct attn_bwd_args b = c->b;
    b.rope = together ? &c->rope : NULL;
    memset(to, 0xff, bytes); /* NaN */
    assert_int_equal(dev_upload(&g->s, b.dq, to, bytes), STATUS_OK);
    assert_int_equal(g->ops.attn_bwd(&b, &g->s), STATUS_OK);
    const struct rope_bwd_args rope = {.dout = b.dq,
                                       .din = b.dq,
                                       .dout_stride = c->stride,
                                       .din_stride = c->stride,
                                       .positions = c->rope.positions,
                                       .cos = c->rope.cos,
                                       .sin = c->rope.sin,
                                       .rows = c->rows,
                                       .heads = b.heads,
                                       .heads_kv = b.heads_kv,
                                       .head_dim = HD,
                                       .half = HALF,
                                       .pos_count = POSITIONS,
                                       .dt = DTYPE_BF16};
    if (!together) assert_int_equal(g->ops.rope_bwd(&rope, &g->s), STATUS_OK);
    assert_int_equal(dev_download(&g->s, to, b.dq, bytes), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
}

static double distance(const struct call *c, int64_t from, int64_t width)
{
    double apart = 0, all = 0;
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = from; j < from + width; j++) {
            const double a = bf16_to_f32(c->got[i * c->stride + j]),
                         b = bf16_to_f32(c->want[i * c->stride + j]);
            apart += (a - b) * (a - b);
            all += b * b;
        }
    return sqrt(apart / all);
}

static void check(struct gpu *g, const struct shape *x)
{
    struct call c;
    call_open(g, &c, x);
    const int64_t q = x->heads * HD, kv = x->heads_kv * HD;
    const size_t bytes = sizeof(bf16) * (size_t)((c.rows + GUARD) * c.stride);
    assert_int_equal(g->ops.attn_fwd(&c.f, &g->s), STATUS_OK);
    assert_true(g->ops.attn_bwd_supports(&c.b, &g->s));
    backward(g, &c, false, c.want);
    backward(g, &c, true, c.got);
    const double of_q = distance(&c, 0, q), of_k = distance(&c, q, kv);
    printf("%lld rows, heads %lld/%lld, window %lld: dq %.2e, dk %.2e of %.2e\n", (long long)c.rows,
           (long long)x->heads, (long long)x->heads_kv, (long long)x->window, of_q, of_k, bound);
    assert_true(of_q <= bound && of_k <= bound);
    for (int64_t i = 0; i < c.rows; i++)
        assert_memory_equal(c.got + i * c.stride + q + kv, c.want + i * c.stride + q + kv,
                            sizeof(bf16) * (size_t)kv);
    for (int64_t i = c.rows * c.stride; i < (c.rows + GUARD) * c.stride; i++)
        assert_int_equal(c.got[i], 0xffff);
    memcpy(c.want, c.got, bytes);
    backward(g, &c, true, c.got);
    assert_memory_equal(c.got, c.want, bytes);
    free(c.got);
    free(c.want);
    arena_free(&g->mem);
}

static void together_is_as_apart(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {1, {1}, 1, 2, 1, 0},
        {1, {127}, 127, 3, 3, 0},
        {2, {129, 129}, 129, 4, 2, 0},
        {1, {1000}, 1000, 12, 12, 0}, /* the walk upwards */
        {2, {2048, 2048}, 2048, 16, 8, 0},
        {6, {700, 1, 64, 63, 1500, 129}, 1500, 8, 2, 0},
        {5, {3, 200, 77, 1024, 128}, 1024, 4, 4, 100},
        {2, {2048, 1800}, 2048, 8, 1, 1000},
    };
    struct gpu g;
    gpu_open(&g);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check(&g, &shapes[i]);
    gpu_close(&g);
}

static void other_widths_and_types_are_rotated_apart(void **state)
{
    (void)state;
    struct gpu g;
    struct call c;
    gpu_open(&g);
    call_open(&g, &c, &(struct shape){1, {64}, 64, 2, 2, 0});
    assert_true(g.ops.attn_bwd_supports(&c.b, &g.s));
    struct attn_bwd_args wide = c.b, f32 = c.b;
    struct attn_bwd_args lengthy = c.b;
    wide.head_dim = wide.head_dim_v = 128;
    lengthy.len_max = 4096;
    assert_false(g.ops.attn_bwd_supports(&lengthy, &g.s));
    f32.dt = DTYPE_F32;
    assert_false(g.ops.attn_bwd_supports(&wide, &g.s));
    assert_false(g.ops.attn_bwd_supports(&f32, &g.s));
    wide.rope = &c.rope;
    assert_int_equal(g.ops.attn_bwd(&wide, &g.s), STATUS_INTERNAL);
    free(c.got);
    free(c.want);
    arena_free(&g.mem);
    gpu_close(&g);
}

struct projection {
    int64_t rows, d, heads, heads_kv, head_dim;
};

static void project(struct gpu *g, const struct projection *x)
{
    struct call c = {.rows = x->rows, .stride = (x->heads + 2 * x->heads_kv) * x->head_dim};
    const size_t bytes = sizeof(bf16) * (size_t)((x->rows + GUARD) * c.stride),
                 workspace = g->ops.workspace(x->rows);
    const size_t operands = sizeof(bf16) * (size_t)((x->rows + c.stride) * x->d);
    assert_int_equal(
        dev_arena_reserve(&g->dev, &g->mem, "test", bytes + operands + workspace + ((size_t)64 << 20)),
        STATUS_OK);
    ops_cuda_workspace(&g->s, arena_take(&g->mem, workspace, "workspace"), workspace);
    turn_open(g, &c);
    void *qkv = arena_take(&g->mem, bytes, "qkv");
    const struct gemm_args plain = {.a = operand_at(normal_on_gpu(g, x->rows * x->d, 3), DTYPE_BF16, false),
                                    .b = operand_at(normal_on_gpu(g, c.stride * x->d, 4), DTYPE_BF16, true),
                                    .c = qkv,
                                    .m = x->rows,
                                    .n = c.stride,
                                    .k = x->d,
                                    .cdt = DTYPE_BF16};
    struct gemm_args fused = plain;
    fused.epilogue = (struct epilogue){
        .kind = EPILOGUE_ROPE,
        .rope = {.rotation = c.rope, .heads = x->heads, .heads_kv = x->heads_kv, .head_dim = x->head_dim}};
    const struct rope_fwd_args rope = {.in = qkv,
                                       .out = qkv,
                                       .in_stride = c.stride,
                                       .out_stride = c.stride,
                                       .positions = c.rope.positions,
                                       .cos = c.rope.cos,
                                       .sin = c.rope.sin,
                                       .rows = x->rows,
                                       .heads = x->heads,
                                       .heads_kv = x->heads_kv,
                                       .head_dim = x->head_dim,
                                       .half = x->head_dim / 2,
                                       .pos_count = POSITIONS * HALF / (x->head_dim / 2),
                                       .dt = DTYPE_BF16};
    c.got = malloc(bytes);
    c.want = malloc(bytes);
    assert_true(c.got && c.want);
    assert_true(g->ops.gemm_supports(&fused, &g->s));
    for (int way = 0; way < 2; way++) {
        bf16 *to = way ? c.got : c.want;
        memset(to, 0xff, bytes);
        assert_int_equal(dev_upload(&g->s, qkv, to, bytes), STATUS_OK);
        if (way) assert_int_equal(g->ops.gemm(&fused, &g->s), STATUS_OK);
        if (!way) assert_int_equal(g->ops.gemm(&plain, &g->s), STATUS_OK);
        if (!way) assert_int_equal(g->ops.rope_fwd(&rope, &g->s), STATUS_OK);
        assert_int_equal(dev_download(&g->s, to, qkv, bytes), STATUS_OK);
        assert_int_equal(dev_sync(&g->s), STATUS_OK);
    }
    int64_t differ = 0;
    for (int64_t i = 0; i < x->rows * c.stride; i++) differ += c.got[i] != c.want[i];
    const double apart = distance(&c, 0, c.stride);
    printf("%lld x %lld to heads %lld/%lld of %lld: %lld elements differ, %.2e\n", (long long)x->rows,
           (long long)x->d, (long long)x->heads, (long long)x->heads_kv, (long long)x->head_dim,
           (long long)differ, apart);
    assert_true(apart <= 1.0 / 512);
    for (int64_t i = x->rows * c.stride; i < (x->rows + GUARD) * c.stride; i++)
        assert_int_equal(c.got[i], 0xffff);
    free(c.got);
    free(c.want);
    arena_free(&g->mem);
}

static void projected_together_is_as_apart(void **state)
{
    (void)state;
    static const struct projection shapes[] = {
        {1024, 768, 12, 12, 64}, {1025, 1024, 16, 8, 64},  {1300, 832, 3, 1, 64},    {2047, 1024, 32, 8, 64},
        {1111, 768, 3, 1, 128},  {4096, 1024, 32, 8, 128}, {20000, 1024, 16, 8, 64},
    };
    struct gpu g;
    gpu_open(&g);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) project(&g, &shapes[i]);
    gpu_close(&g);
}

int main(void)
{
    enum { NO_GPU = 77 };
    struct dev d;
    const bool there = dev_open(&d, DEV_CUDA) == STATUS_OK;
    if (!there || d.sm / 10 != 9) {
        puts(there ? "only Hopper has these kernels" : status_message());
        return NO_GPU;
    }
    dev_close(&d);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(projected_together_is_as_apart),
        cmocka_unit_test(together_is_as_apart),
        cmocka_unit_test(other_widths_and_types_are_rotated_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
