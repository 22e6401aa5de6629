/* Which rows of a micro-batch a context-parallel rank holds, and that attention of the parts is attention of the whole: outputs, log-sum-exps and
 * gradients of queries row by row, gradients of keys as sums over ranks. On the oracle and on the fast set, whose blocks of queries and keys
 * meet at every offset. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "ops/ops.h"
#include "parallel/context.h"

enum { HEADS = 4, HEADS_KV = 2, HD = 24, ROWS_MAX = 1024 };

struct problem {
    int64_t rows, length, window;
    int docs;
    int32_t cu[8];
    dtype dt;
    double tol;
    struct ops ops;
};

static void *numbers(int64_t count, uint64_t key, dtype dt)
{
    void *x = calloc((size_t)count, dtype_bytes(dt));
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) dtype_store(x, i, dt, rng_normal(3, RNG_TEST, key, (uint64_t)i));
    return x;
}

struct result {
    void *o, *lse, *dq, *dk, *dv; /* owned; dk and dv of all keys */
};
static struct result result_open(const struct problem *p, int64_t rows)
{
    const size_t size = dtype_bytes(p->dt), q = (size_t)rows * HEADS * HD,
                 k = (size_t)p->rows * HEADS_KV * HD;
    return (struct result){calloc(q, size), calloc((size_t)rows * HEADS, dtype_bytes(dtype_acc(p->dt))),
                           calloc(q, size), calloc(k, size), calloc(k, size)};
}
static void result_close(struct result *r)
{
    free(r->o), free(r->lse), free(r->dq), free(r->dk), free(r->dv);
}

struct inputs {
    void *q, *k, *v, *d_o;
};

static struct result attention(const struct problem *p, const struct inputs *in, const struct batch *b)
{
    struct result r = result_open(p, b->rows);
    const struct attn_doc *split = b->context ? b->context->docs : NULL;
    const int64_t docs = b->context ? b->context->count : b->docs;
    void *scratch = calloc((size_t)b->rows * HEADS, sizeof(double));
    const struct attn_fwd_args f = {.q = in->q,
                                    .k = in->k,
                                    .v = in->v,
                                    .o = r.o,
                                    .lse = r.lse,
                                    .q_stride = HEADS * HD,
                                    .k_stride = HEADS_KV * HD,
                                    .v_stride = HEADS_KV * HD,
                                    .cu_seqlens = b->cu_seqlens,
                                    .cp_docs = split,
                                    .docs = docs,
                                    .rows = b->rows,
                                    .heads = HEADS,
                                    .heads_kv = HEADS_KV,
                                    .head_dim = HD,
                                    .head_dim_v = HD,
                                    .window = p->window,
                                    .len_max = b->len_max,
                                    .scale = 0.3,
                                    .dt = p->dt};
    assert_int_equal(p->ops.attn_fwd(&f, NULL), STATUS_OK);
    const struct attn_bwd_args g = {.q = in->q,
                                    .k = in->k,
                                    .v = in->v,
                                    .o = r.o,
                                    .do_ = in->d_o,
                                    .lse = r.lse,
                                    .dq = r.dq,
                                    .dk = r.dk,
                                    .dv = r.dv,
                                    .q_stride = HEADS * HD,
                                    .k_stride = HEADS_KV * HD,
                                    .v_stride = HEADS_KV * HD,
                                    .dq_stride = HEADS * HD,
                                    .dk_stride = HEADS_KV * HD,
                                    .dv_stride = HEADS_KV * HD,
                                    .cu_seqlens = b->cu_seqlens,
                                    .cp_docs = split,
                                    .docs = docs,
                                    .rows = b->rows,
                                    .heads = HEADS,
                                    .heads_kv = HEADS_KV,
                                    .head_dim = HD,
                                    .head_dim_v = HD,
                                    .window = p->window,
                                    .len_max = b->len_max,
                                    .scale = 0.3,
                                    .scratch = scratch,
                                    .dt = p->dt};
    assert_int_equal(p->ops.attn_bwd(&g, NULL), STATUS_OK);
    free(scratch);
    return r;
}

/* Rows of a rank from, or their place in, rows of the whole: index[i] is the whole's row of local row i. */
static void *rows_of(const void *whole, const int32_t *index, int64_t rows, int64_t width, dtype dt)
{
    const size_t line = (size_t)width * dtype_bytes(dt);
    char *part = malloc((size_t)rows * line);
    assert_non_null(part);
    for (int64_t i = 0; i < rows; i++)
        memcpy(part + (size_t)i * line, (const char *)whole + (size_t)index[i] * line, line);
    return part;
}

static void compare(const char *what, const void *got, const void *want, int64_t count, dtype dt, double tol)
{
    double error = 0, size = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        const double x = dtype_load(want, i, dt);
        error += pow(dtype_load(got, i, dt) - x, 2), size += x * x;
    }
    if (!(error <= tol * tol * size)) fail_msg("%s is off by %.3g of its length", what, sqrt(error / size));
}

static void add(double *sum, const void *x, int64_t count, dtype dt)
{
    for (int64_t i = 0; i < count; i++) sum[i] += dtype_load(x, i, dt);
}

/* lse is [heads, rows]. */
static void compare_lse(const struct problem *p, const struct result *part, const struct result *whole,
                        const int32_t *index, int64_t rows)
{
    const dtype acc = dtype_acc(p->dt);
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t i = 0; i < rows; i++) {
            const double got = dtype_load(part->lse, h * rows + i, acc),
                         want = dtype_load(whole->lse, h * p->rows + index[i], acc);
            if (!(fabs(got - want) <= p->tol * (1 + fabs(want))))
                fail_msg("lse of row %d: %g, not %g", index[i], got, want);
        }
}

static void check(const struct problem *p, int ranks)
{
    static int32_t tokens[ROWS_MAX], positions[ROWS_MAX];
    static double dk[ROWS_MAX * HEADS_KV * HD], dv[ROWS_MAX * HEADS_KV * HD];
    const int64_t q_count = p->rows * HEADS * HD, k_count = p->rows * HEADS_KV * HD;
    struct inputs in = {numbers(q_count, 0, p->dt), numbers(k_count, 1, p->dt), numbers(k_count, 2, p->dt),
                        numbers(q_count, 3, p->dt)};
    for (int32_t t = 0; t < p->rows; t++) tokens[t] = t, positions[t] = -t;
    const struct batch b = {.rows = p->rows,
                            .docs = p->docs,
                            .len_max = p->length,
                            .tokens = tokens,
                            .targets = tokens,
                            .positions = positions,
                            .cu_seqlens = p->cu};
    struct result whole = attention(p, &in, &b);
    bool held[ROWS_MAX] = {0};
    memset(dk, 0, sizeof dk), memset(dv, 0, sizeof dv);
    for (int rank = 0; rank < ranks; rank++) {
        struct context c;
        const int64_t rows = p->rows / ranks, width = HEADS * HD;
        assert_int_equal(
            context_open(&c, &(struct context_shape){rank, ranks, p->length, rows, 1, CONTEXT_ALL_GATHER}),
            STATUS_OK);
        const struct batch *part = context_parts(&c, &b, 1);
        const int32_t *index = part->tokens;
        assert_int_equal(part->rows, rows);
        for (int64_t i = 0; i < rows; i++) {
            assert_false(held[index[i]]);
            held[index[i]] = true;
            assert_int_equal(part->positions[i], -index[i]);
            assert_int_equal(part->targets[i], index[i]);
        }
        struct inputs mine = {rows_of(in.q, index, rows, width, p->dt), in.k, in.v,
                              rows_of(in.d_o, index, rows, width, p->dt)};
        struct result r = attention(p, &mine, part);
        void *o = rows_of(whole.o, index, rows, width, p->dt),
             *dq = rows_of(whole.dq, index, rows, width, p->dt);
        compare("o", r.o, o, rows * width, p->dt, p->tol);
        compare("dq", r.dq, dq, rows * width, p->dt, p->tol);
        compare_lse(p, &r, &whole, index, rows);
        add(dk, r.dk, k_count, p->dt), add(dv, r.dv, k_count, p->dt);
        free(o), free(dq), free(mine.q), free(mine.d_o);
        result_close(&r);
        context_close(&c);
    }
    for (int64_t i = 0; i < k_count; i++) {
        dtype_store(in.k, i, p->dt, dk[i]);
        dtype_store(in.v, i, p->dt, dv[i]);
    }
    compare("dk", in.k, whole.dk, k_count, p->dt, p->tol);
    compare("dv", in.v, whole.dv, k_count, p->dt, p->tol);
    free(in.q), free(in.k), free(in.v), free(in.d_o);
    result_close(&whole);
}

/* Two sequences with a border at b and others beside it, and documents of no rows. */
static void check_borders(struct problem p, int ranks, int64_t step)
{
    for (int32_t b = 1; b < p.length; b += (int32_t)step) {
        const int32_t t = (int32_t)p.length, cu[] = {0, b, b, t, 2 * t - b, 2 * t - b + (b > 1), 2 * t};
        p.rows = 2 * p.length, p.docs = 6;
        memcpy(p.cu, cu, sizeof cu);
        check(&p, ranks);
    }
}

static void parts_are_the_whole_in_the_oracle(void **state)
{
    (void)state;
    struct problem p = {.length = 16, .dt = DTYPE_F64, .tol = 1e-13};
    ops_oracle(&p.ops);
    for (p.window = 0; p.window < 12; p.window += 5)
        for (int ranks = 2; ranks <= 4; ranks *= 2) check_borders(p, ranks, 1);
}

static void parts_are_the_whole_in_the_fast_set(void **state)
{
    (void)state;
    static const int64_t windows[] = {0, 1, 40, 200};
    struct problem p = {.length = 384, .dt = DTYPE_F32, .tol = 1e-6};
    assert_int_equal(ops_cpu(&p.ops, NULL), STATUS_OK);
    for (int i = 0; i < 4; i++)
        for (int ranks = 2; ranks <= 4; ranks++) {
            p.window = windows[i];
            p.dt = DTYPE_F32, p.tol = 1e-6;
            check_borders(p, ranks, 95);
            p.dt = DTYPE_BF16, p.tol = 2e-2;
            check_borders(p, ranks, 191);
        }
}

/* A part whose keys begin after its first queries: those see nothing, and say so. */
static void queries_without_keys_give_nothing(void **state)
{
    (void)state;
    for (int set = 0; set < 2; set++) {
        struct problem p = {.rows = 96, .length = 96, .window = 70, .docs = 1, .dt = DTYPE_F32};
        if (set == 0)
            ops_oracle(&p.ops);
        else
            assert_int_equal(ops_cpu(&p.ops, NULL), STATUS_OK);
        struct inputs in = {numbers(96 * HEADS * HD, 0, p.dt), numbers(96 * HEADS_KV * HD, 1, p.dt),
                            numbers(96 * HEADS_KV * HD, 2, p.dt), numbers(96 * HEADS * HD, 3, p.dt)};
        /* 20 keys; query i stands at i - 5 among them and sees 70 back: 5 to 88 see some */
        const struct attn_doc doc = {.key = 7, .keys = 20, .part = {{0, 96, -5}}};
        const struct context_batch context = {.docs = &doc, .count = 1, .length = 96};
        const struct batch b = {.rows = 96, .len_max = 96, .context = &context};
        struct result r = attention(&p, &in, &b);
        for (int64_t i = 0; i < 96; i++) {
            const bool sees = i >= 5 && i - 5 - 69 < 20;
            double sum = 0, grad = 0;
            for (int64_t j = 0; j < HD; j++) {
                sum += fabs(dtype_load(r.o, i * HEADS * HD + j, p.dt));
                grad += fabs(dtype_load(r.dq, i * HEADS * HD + j, p.dt));
            }
            assert_true(isfinite(dtype_load(r.lse, i, DTYPE_F32)) == sees);
            assert_true((sum > 0) == sees && (sum == 0) == !sees);
            if (!sees) assert_true(grad == 0);
        }
        for (int64_t i = 0; i < 96 * HEADS_KV * HD; i++)
            if (i / (HEADS_KV * HD) < 7 || i / (HEADS_KV * HD) >= 27)
                assert_true(dtype_load(r.dk, i, p.dt) == 0);
        result_close(&r);
        free(in.q), free(in.k), free(in.v), free(in.d_o);
    }
}

/* What a window reaches: of four ranks with chunks of 8, the ranks beside each other hold neighbouring chunks. */
static void a_window_leaves_out_steps(void **state)
{
    (void)state;
    for (int step = 1; step < 4; step++) {
        assert_true(context_step_needed(4, step, 8, 0));
        assert_true(context_step_needed(4, step, 8, 2) == (step != 2));
        assert_true(context_step_needed(4, step, 8, 9) == (step != 2));
        assert_true(context_step_needed(4, step, 8, 10));
        assert_false(context_step_needed(4, step, 8, 1));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_the_whole_in_the_oracle),
        cmocka_unit_test(parts_are_the_whole_in_the_fast_set),
        cmocka_unit_test(queries_without_keys_give_nothing),
        cmocka_unit_test(a_window_leaves_out_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
