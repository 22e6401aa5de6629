/* Goal: attention's backward with heads of 192 and 128 on Hopper, which keeps gradients of scores in memory for dQ, gives the same bits
 * however it is cut into slabs, and without that memory the same gradients. Method: copies of one document, in as many heads and
 * documents as take several slabs, against the document alone; and the same documents under a longest length that asks for too much. */
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

enum { HD = 192, HD_V = 128, DOCS_MAX = 8 };

struct gpu {
    struct dev dev;
    struct stream s;
    struct ops ops;
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

/* Operands and gradients of a call; as many kv heads as heads. */
struct call {
    int64_t docs, len[DOCS_MAX], len_max, heads, rows;
    bf16 *q, *k, *v, *do_, *dq, *dk, *dv; /* on the host */
};

static bf16 *numbers(int64_t count, uint64_t seed)
{
    bf16 *p = malloc((size_t)count * sizeof *p);
    assert_non_null(p);
    for (int64_t i = 0; i < count; i++)
        p[i] = bf16_from_f32((float)rng_normal(seed, RNG_TEST, (uint64_t)i, 0));
    return p;
}

static bf16 *empty(int64_t count)
{
    bf16 *p = malloc((size_t)count * sizeof *p);
    assert_non_null(p);
    return p;
}

static void call_open(struct call *c)
{
    c->rows = 0;
    for (int64_t i = 0; i < c->docs; i++) c->rows += c->len[i];
    c->q = numbers(c->rows * c->heads * HD, 1);
    c->k = numbers(c->rows * c->heads * HD, 2);
    c->v = numbers(c->rows * c->heads * HD_V, 3);
    c->do_ = numbers(c->rows * c->heads * HD_V, 4);
    c->dq = empty(c->rows * c->heads * HD);
    c->dk = empty(c->rows * c->heads * HD);
    c->dv = empty(c->rows * c->heads * HD_V);
}

static void call_close(struct call *c)
{
    bf16 *const all[] = {c->q, c->k, c->v, c->do_, c->dq, c->dk, c->dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static struct attn_shape shape_of(const struct call *c)
{
    return (struct attn_shape){.rows = c->rows,
                               .docs = c->docs,
                               .len_max = c->len_max,
                               .heads = c->heads,
                               .heads_kv = c->heads,
                               .head_dim = HD,
                               .head_dim_v = HD_V,
                               .dt = DTYPE_BF16};
}

static void *place(struct gpu *g, struct arena *m, const void *from, size_t bytes)
{
    void *to = arena_take(m, bytes, "operand");
    assert_int_equal(dev_upload(&g->s, to, from, bytes), STATUS_OK);
    return to;
}

static void backward(struct gpu *g, struct arena *m, const struct attn_fwd_args *f, struct call *c)
{
    const struct attn_shape shape = shape_of(c);
    const size_t wide = sizeof(bf16) * (size_t)(c->rows * c->heads * HD),
                 narrow = sizeof(bf16) * (size_t)(c->rows * c->heads * HD_V);
    const struct attn_bwd_args b = {.q = f->q,
                                    .k = f->k,
                                    .v = f->v,
                                    .o = f->o,
                                    .do_ = place(g, m, c->do_, narrow),
                                    .lse = f->lse,
                                    .dq = arena_take(m, wide, "dq"),
                                    .dk = arena_take(m, wide, "dk"),
                                    .dv = arena_take(m, narrow, "dv"),
                                    .q_stride = f->q_stride,
                                    .k_stride = f->k_stride,
                                    .v_stride = f->v_stride,
                                    .dq_stride = f->q_stride,
                                    .dk_stride = f->k_stride,
                                    .dv_stride = f->v_stride,
                                    .cu_seqlens = f->cu_seqlens,
                                    .docs = f->docs,
                                    .rows = f->rows,
                                    .heads = f->heads,
                                    .heads_kv = f->heads_kv,
                                    .head_dim = HD,
                                    .head_dim_v = HD_V,
                                    .len_max = f->len_max,
                                    .scale = f->scale,
                                    .scratch =
                                        arena_take(m, g->ops.attn_scratch(&shape, ATTN_BWD), "scratch"),
                                    .scratch_bytes = g->ops.attn_scratch(&shape, ATTN_BWD),
                                    .dt = f->dt};
    assert_int_equal(g->ops.attn_bwd(&b, &g->s), STATUS_OK);
    assert_int_equal(dev_download(&g->s, c->dq, b.dq, wide), STATUS_OK);
    assert_int_equal(dev_download(&g->s, c->dk, b.dk, wide), STATUS_OK);
    assert_int_equal(dev_download(&g->s, c->dv, b.dv, narrow), STATUS_OK);
    assert_int_equal(dev_sync(&g->s), STATUS_OK);
}

/* Forward and backward on the GPU. Returns the bytes of backward's scratch. */
static size_t run(struct call *c, struct gpu *g)
{
    const struct attn_shape shape = shape_of(c);
    const size_t wide = sizeof(bf16) * (size_t)(c->rows * c->heads * HD),
                 narrow = sizeof(bf16) * (size_t)(c->rows * c->heads * HD_V);
    const size_t scratch = g->ops.attn_scratch(&shape, ATTN_BWD), workspace = g->ops.workspace(c->rows);
    struct arena m;
    int32_t cu[DOCS_MAX + 1] = {0};
    for (int64_t i = 0; i < c->docs; i++) cu[i + 1] = cu[i] + (int32_t)c->len[i];
    assert_int_equal(dev_arena_reserve(&g->dev, &m, "test",
                                       4 * wide + 5 * narrow + scratch + workspace + ((size_t)64 << 20)),
                     STATUS_OK);
    ops_cuda_workspace(&g->s, arena_take(&m, workspace, "workspace"), workspace);
    const struct attn_fwd_args f = {.q = place(g, &m, c->q, wide),
                                    .k = place(g, &m, c->k, wide),
                                    .v = place(g, &m, c->v, narrow),
                                    .o = arena_take(&m, narrow, "o"),
                                    .lse =
                                        arena_take(&m, sizeof(float) * (size_t)(c->rows * c->heads), "lse"),
                                    .q_stride = c->heads * HD,
                                    .k_stride = c->heads * HD,
                                    .v_stride = c->heads * HD_V,
                                    .cu_seqlens = place(g, &m, cu, sizeof cu),
                                    .docs = c->docs,
                                    .rows = c->rows,
                                    .heads = c->heads,
                                    .heads_kv = c->heads,
                                    .head_dim = HD,
                                    .head_dim_v = HD_V,
                                    .len_max = c->len_max,
                                    .scale = 1 / sqrt((double)HD),
                                    .dt = DTYPE_BF16};
    assert_int_equal(g->ops.attn_fwd(&f, &g->s), STATUS_OK);
    backward(g, &m, &f, c);
    arena_free(&m);
    return scratch;
}

/* to[doc][row][head] = from[row], rows of `width`. */
static void spread(bf16 *to, const struct call *c, const bf16 *from, int64_t width)
{
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t h = 0; h < c->heads; h++)
            memcpy(to + (i * c->heads + h) * width, from + i % c->len[0] * width, sizeof *to * (size_t)width);
}

static void assert_spread(const bf16 *got, const struct call *c, const bf16 *want, int64_t width)
{
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t h = 0; h < c->heads; h++)
            assert_memory_equal(got + (i * c->heads + h) * width, want + i % c->len[0] * width,
                                sizeof *got * (size_t)width);
}

static void slabs_change_no_bits(void **state)
{
    (void)state;
    struct gpu g;
    struct call alone = {.docs = 1, .len = {32768}, .len_max = 32768, .heads = 1};
    struct call many = {.docs = 3, .len = {32768, 32768, 32768}, .len_max = 32768, .heads = 2};
    gpu_open(&g);
    call_open(&alone);
    call_open(&many);
    spread(many.q, &many, alone.q, HD);
    spread(many.k, &many, alone.k, HD);
    spread(many.v, &many, alone.v, HD_V);
    spread(many.do_, &many, alone.do_, HD_V);
    const size_t one = run(&alone, &g), all = run(&many, &g);
    assert_true(one > (size_t)1 << 30); /* a document's gradients of scores */
    assert_true(all < 4 * one);         /* and not those of six: slabs */
    assert_spread(many.dq, &many, alone.dq, HD);
    assert_spread(many.dk, &many, alone.dk, HD);
    assert_spread(many.dv, &many, alone.dv, HD_V);
    call_close(&alone);
    call_close(&many);
    gpu_close(&g);
}

/* A longest length that no document has costs memory, here more than there is: dQ then recomputes its scores,
 * whose probabilities are not rounded in between. */
static void without_memory_the_gradients_are_the_same(void **state)
{
    (void)state;
    struct gpu g;
    struct call kept = {.docs = 5, .len = {700, 1, 30000, 64, 19000}, .len_max = 30000, .heads = 1}, formed;
    double worst = 0, largest = 0;
    gpu_open(&g);
    call_open(&kept);
    formed = kept;
    formed.len_max = formed.rows;
    call_open(&formed);
    const size_t tiles = run(&kept, &g), none = run(&formed, &g);
    assert_true(tiles > (size_t)1 << 30);
    assert_true(none < (size_t)64 << 20);
    for (int64_t i = 0; i < kept.rows * HD; i++) {
        const double a = bf16_to_f32(kept.dq[i]), b = bf16_to_f32(formed.dq[i]);
        worst = fmax(worst, fabs(a - b));
        largest = fmax(largest, fabs(b));
        assert_true(fabs(a - b) <= 0.01 * (1 + fabs(b)));
    }
    printf("dq: largest %.3g, apart by %.3g\n", largest, worst);
    assert_memory_equal(kept.dk, formed.dk, sizeof(bf16) * (size_t)(kept.rows * HD));
    assert_memory_equal(kept.dv, formed.dv, sizeof(bf16) * (size_t)(kept.rows * HD_V));
    call_close(&kept);
    call_close(&formed);
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
        cmocka_unit_test(slabs_change_no_bits),
        cmocka_unit_test(without_memory_the_gradients_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
