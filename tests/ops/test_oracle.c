/* The oracle's forwards against something else than themselves: GEMMs by another loop, attention by its
 * invariances, losses and updates by values known in closed form. Backwards are checked by test_grad. */
#include "base/parallel.h"
#include "base/rng.h"
#include "probe.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define RUN(op, ...) assert_int_equal(oracle.op(&(struct op##_args){__VA_ARGS__}, NULL), STATUS_OK)

static struct ops oracle; /* filled by main, read by the tests */

static void fill(double *x, int64_t count, uint64_t name)
{
    for (int64_t i = 0; i < count; i++) x[i] = rng_normal(11, RNG_TEST, name, (uint64_t)i);
}

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * (1 + fabs(want)))) fail_msg("%.17g is not %.17g", got, want);
}

static void a_gemm_is_the_sum_over_k_for_every_orientation(void **state)
{
    (void)state;
    enum { M = 35, N = 41, K = 131 };
    static double a[M * K], b[K * N], bias[N], c[M * N];
    fill(a, M * K, 1), fill(b, K * N, 2), fill(bias, N, 3);
    for (int trans = 0; trans < 4; trans++) {
        bool ta = trans & 1, tb = trans & 2;
        fill(c, M * N, 4);
        RUN(gemm, .a = operand_at(a, DTYPE_F64, ta), .b = operand_at(b, DTYPE_F64, tb), .c = c,
            .epilogue = {.kind = EPILOGUE_BIAS, .bias = bias}, .m = M, .n = N, .k = K, .accum = ACCUM_ADD,
            .cdt = DTYPE_F64);
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < N; j++) {
                double want = bias[j] + rng_normal(11, RNG_TEST, 4, (uint64_t)(i * N + j));
                for (int64_t k = 0; k < K; k++)
                    want += (ta ? a[k * M + i] : a[i * K + k]) * (tb ? b[j * K + k] : b[k * N + j]);
                assert_near(c[i * N + j], want);
            }
    }
}

/* Four query heads on two kv heads of width 6; 13 rows in documents of 5, 0 and 8. */
enum { H = 4, KV = 2, HD = 6, ROWS = 13 };
struct attn {
    double q[ROWS * H * HD], k[ROWS * KV * HD], v[ROWS * KV * HD], o[ROWS * H * HD];
};

static void attend(struct attn *x, const int32_t *cu, int64_t docs, int64_t from, int64_t window)
{
    RUN(attn_fwd, .q = x->q + from * H * HD, .k = x->k + from * KV * HD, .v = x->v + from * KV * HD,
        .o = x->o + from * H * HD, .q_stride = H * HD, .k_stride = KV * HD, .v_stride = KV * HD,
        .cu_seqlens = cu, .docs = docs, .rows = cu[docs], .heads = H, .heads_kv = KV, .head_dim = HD,
        .head_dim_v = HD, .window = window, .scale = 0.4, .dt = DTYPE_F64);
}

static void attn_fill(struct attn *x)
{
    fill(x->q, ROWS * H * HD, 5), fill(x->k, ROWS * KV * HD, 6), fill(x->v, ROWS * KV * HD, 7);
}

/* The definition with a full matrix of scores and a mask, for every row, head and window. */
static void attention_is_a_masked_softmax(void **state)
{
    (void)state;
    static struct attn x;
    static const int32_t cu[] = {0, 5, 5, 13}, doc_of[ROWS] = {0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2};
    attn_fill(&x);
    for (int window = 0; window <= 9; window += 3) {
        attend(&x, cu, 3, 0, window);
        for (int t = 0; t < ROWS; t++)
            for (int h = 0; h < H; h++) {
                double p[ROWS], sum = 0;
                for (int u = 0; u < ROWS; u++) {
                    bool seen = doc_of[u] == doc_of[t] && u <= t && (window == 0 || t - u < window);
                    double score = 0;
                    for (int i = 0; i < HD; i++)
                        score += x.q[(t * H + h) * HD + i] * x.k[(u * KV + h / 2) * HD + i];
                    sum += p[u] = seen ? exp(0.4 * score) : 0;
                }
                for (int i = 0; i < HD; i++) {
                    double want = 0;
                    for (int u = 0; u < ROWS; u++) want += p[u] / sum * x.v[(u * KV + h / 2) * HD + i];
                    assert_near(x.o[(t * H + h) * HD + i], want);
                }
            }
    }
}

static void decoding_gives_the_last_row_of_the_forward(void **state)
{
    (void)state;
    static struct attn x;
    static const int32_t cu[] = {0, ROWS};
    attn_fill(&x);
    for (int window = 0; window <= 6; window += 3) {
        attend(&x, cu, 1, 0, window);
        for (int32_t length = 1; length <= ROWS; length++) {
            double o[H * HD];
            RUN(attn_decode, .q = x.q + (length - 1) * H * HD, .k_cache = x.k, .v_cache = x.v, .o = o,
                .lengths = &length, .batch = 1, .capacity = ROWS, .k_stride = KV * HD, .v_stride = KV * HD,
                .heads = H, .heads_kv = KV, .head_dim = HD, .head_dim_v = HD, .window = window, .scale = 0.4,
                .dt = DTYPE_F64);
            for (int i = 0; i < H * HD; i++) assert_near(o[i], x.o[(length - 1) * H * HD + i]);
        }
    }
}

/* Scores of rotated heads depend on the distance of their positions alone; norms and lengths are kept. */
static void rotation_keeps_lengths_and_sees_distances(void **state)
{
    (void)state;
    enum { W = 8, POS = 40 };
    double cosines[POS * W / 2], sines[POS * W / 2], in[2 * 2 * W], out[2 * 2 * W], score[2];
    for (int t = 0; t < POS; t++)
        for (int i = 0; i < W / 2; i++)
            cosines[t * W / 2 + i] = cos(t * pow(50, -i / 4.0)),
                                sines[t * W / 2 + i] = sin(t * pow(50, -i / 4.0));
    fill(in, 2 * W, 8);
    memcpy(in + 2 * W, in, 2 * W * sizeof in[0]);
    for (int shift = 0; shift < 2; shift++) { /* q at 9, k at 4; then q at 34, k at 29 */
        const int32_t positions[] = {9 + 25 * shift, 4 + 25 * shift};
        RUN(rope_fwd, .in = in, .out = out, .in_stride = 2 * W, .out_stride = 2 * W, .positions = positions,
            .cos = cosines, .sin = sines, .rows = 2, .heads = 1, .heads_kv = 1, .head_dim = W, .half = W / 2,
            .pos_count = POS, .dt = DTYPE_F64);
        double before = 0, after = 0;
        score[shift] = 0;
        for (int i = 0; i < W; i++) {
            before += in[i] * in[i], after += out[i] * out[i];
            score[shift] += out[i] * out[2 * W + W + i];
        }
        assert_near(after, before);
    }
    assert_near(score[0], score[1]);
}

static void norms_give_unit_rows(void **state)
{
    (void)state;
    enum { W = 31 };
    double x[W], y[W], ones[W], zeros[W] = {0};
    fill(x, W, 9);
    for (int i = 0; i < W; i++) ones[i] = 1, x[i] = 5 * x[i] + 2;
    RUN(rmsnorm_fwd, .x = x, .w = ones, .y = y, .rows = 1, .d = W, .eps = 0, .dt = DTYPE_F64);
    double square = 0, mean = 0;
    for (int i = 0; i < W; i++) square += y[i] * y[i] / W;
    assert_near(square, 1);
    RUN(layernorm_fwd, .x = x, .w = ones, .b = zeros, .y = y, .rows = 1, .d = W, .eps = 0, .dt = DTYPE_F64);
    square = 0;
    for (int i = 0; i < W; i++) square += y[i] * y[i] / W, mean += y[i] / W;
    assert_near(square, 1);
    assert_near(mean, 0);
}

/* In bf16 the sum is rounded before the norm reads it: 256 + 1 is 256 there, so the row is (256, 256) and its
 * norm (1, 1). */
static void the_norm_reads_the_rounded_sum(void **state)
{
    (void)state;
    bf16 x[2], branch[2], w[2], sum[2], y[2];
    for (int i = 0; i < 2; i++)
        x[i] = bf16_from_f32(256), branch[i] = bf16_from_f32(i == 0), w[i] = bf16_from_f32(1);
    float rstd;
    RUN(rmsnorm_fwd, .x = x, .branch = branch, .w = w, .sum = sum, .y = y, .rstd = &rstd, .rows = 1, .d = 2,
        .eps = 0, .dt = DTYPE_BF16);
    assert_int_equal(sum[0], bf16_from_f32(256));
    assert_true(rstd == 1.0f / 256);
}

static void equal_logits_cost_the_logarithm_of_the_vocabulary(void **state)
{
    (void)state;
    double logits[2 * 8], loss[2], dlogits[2 * 8];
    const double grad_scale = 0.5;
    for (int i = 0; i < 16; i++) logits[i] = i % 8 < 6 ? 3 : 1000; /* two columns of padding */
    const int32_t targets[] = {2, TARGET_IGNORE};
    RUN(xent, .logits = logits, .dlogits = dlogits, .targets = targets, .loss = loss, .rows = 2, .vocab = 8,
        .vocab_used = 6, .grad_scale = &grad_scale, .z_loss = 0.1, .dt = DTYPE_F64, .ldt = DTYPE_F64);
    double lse = 3 + log(6);
    assert_near(loss[0], log(6) + 0.1 * lse * lse);
    assert_true(loss[1] == 0);
    double z_term[2] = {-1, -1};
    RUN(xent, .logits = logits, .targets = targets, .loss = loss, .z_term = z_term, .rows = 2, .vocab = 8,
        .vocab_used = 6, .grad_scale = &grad_scale, .z_loss = 0.1, .dt = DTYPE_F64, .ldt = DTYPE_F64);
    assert_near(loss[0], log(6));
    assert_near(z_term[0], 0.1 * lse * lse);
    assert_true(loss[1] == 0 && z_term[1] == 0);
    for (int j = 0; j < 8; j++) {
        assert_near(dlogits[j], j >= 6 ? 0 : 0.5 * ((1 + 0.2 * lse) / 6 - (j == 2)));
        assert_true(dlogits[8 + j] == 0);
    }
}

static void activations_have_known_values(void **state)
{
    (void)state;
    const double gu[] = {1, 2}, x[] = {0, 1, -40, 40};
    double m, y[4];
    RUN(swiglu_fwd, .gu = gu, .m = &m, .rows = 1, .f = 1, .dt = DTYPE_F64);
    assert_near(m, 2 / (1 + exp(-1)));
    RUN(gelu_fwd, .x = x, .y = y, .count = 4, .dt = DTYPE_F64);
    assert_true(y[0] == 0 && y[2] == 0 && y[3] == 40);
    assert_near(y[1], 0.5 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * 1.044715)));
}

/* At the first step the corrected moments are g and g^2, so AdamW moves by lr times the sign; Lion does so at
 * any step. */
static void optimizers_take_the_known_first_step(void **state)
{
    (void)state;
    const struct update_chunk chunk = {.count = 3, .flags = UPDATE_DECAY | UPDATE_ZERO};
    const double decayed = 1 - 0.125 * 0.5, norm = sqrt(16.25);
    struct step_scalars s = {.lr = 0.125, .correction1 = 0.5, .correction2 = 0.25};
    float p[] = {1, 1, 1}, g[] = {4, -0.5f, 0}, m[3] = {0}, v[3] = {0};
    bf16 w[3];
    RUN(update, .rule = UPDATE_ADAMW, .eps = 1e-12, .p = p, .g = g, .m = m, .v = v, .w = w, .chunks = &chunk,
        .chunk_count = 1, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.5, .scalars = &s,
        .moment_dt = DTYPE_F32);
    assert_true(fabs(p[0] - (decayed - 0.125)) < 1e-6 && fabs(p[1] - (decayed + 0.125)) < 1e-6);
    assert_true(m[0] == 2 && v[0] == 4 && g[0] == 0 && g[1] == 0);
    assert_true(s.grad_norm == norm && s.clip_factor == 1);
    assert_int_equal(w[0], bf16_from_f32(p[0]));
    float pl[] = {1, 1, 1}, gl[] = {4, -0.5f, 0}, ml[3] = {0};
    RUN(update, .rule = UPDATE_LION, .p = pl, .g = gl, .m = ml, .chunks = &chunk, .chunk_count = 1,
        .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.5, .clip = 2 * norm, .scalars = &s,
        .moment_dt = DTYPE_F32);
    assert_true(pl[0] == (float)(decayed - 0.125) && pl[1] == (float)(decayed + 0.125) &&
                pl[2] == (float)decayed);
    assert_true(ml[0] == 1 && gl[0] == 0 && s.clip_factor == 1);
}

static void a_missing_op_is_named(void **state)
{
    (void)state;
    struct ops o = oracle;
    assert_int_equal(ops_check(&o), STATUS_OK);
    o.attn_bwd = NULL;
    o.update = NULL;
    assert_int_equal(ops_check(&o), STATUS_INTERNAL);
    assert_non_null(strstr(status_message(), "2 ops: attn_bwd update"));
}

/* Four rows of five columns, the last of them padding: alone at the top, below it, level with another, ignored. */
static void a_hit_is_alone_at_the_top(void **state)
{
    (void)state;
    const double logits[] = {1, 3, 2, -1, 9, 1, 3, 2, -1, 9, 1, 3, 3, -1, 9, 1, 3, 2, -1, 9};
    const int32_t targets[] = {1, 2, 1, TARGET_IGNORE};
    double hits[4];
    RUN(top1_correct, .logits = logits, .targets = targets, .hits = hits, .rows = 4, .vocab = 5,
        .vocab_used = 4, .dt = DTYPE_F64, .ldt = DTYPE_F64);
    for (int t = 0; t < 4; t++) assert_true(hits[t] == (t == 0));
}

/* Four slices of a row together give what the full row gives: loss, hit and gradient. */
static void slices_of_a_row_make_the_whole(void **state)
{
    (void)state;
    enum { ROWS_ = 6, SLICE = 3, SLICES = 4, V = SLICE * SLICES };
    const int32_t targets[ROWS_] = {0, 11, TARGET_IGNORE, 5, 6, 7};
    const double scale = 0.3;
    double z[ROWS_ * V], dz[ROWS_ * V], loss[ROWS_], hits[ROWS_];
    double mine[SLICES][ROWS_ * SLICE], parts[SLICES][ROWS_ * XENT_PARTS];
    for (int i = 0; i < ROWS_ * V; i++) z[i] = 3 * sin(7.0 * i);
    z[V + 11] = 9, z[4 * V + 6] = 8,
          z[4 * V + 9] = 8; /* row 1: a hit; row 4: level with a column elsewhere */
    RUN(top1_correct, .logits = z, .targets = targets, .hits = hits, .rows = ROWS_, .vocab = V,
        .vocab_used = V, .dt = DTYPE_F64, .ldt = DTYPE_F64);
    RUN(xent, .logits = z, .dlogits = dz, .targets = targets, .loss = loss, .rows = ROWS_, .vocab = V,
        .vocab_used = V, .grad_scale = &scale, .z_loss = 0.01, .dt = DTYPE_F64, .ldt = DTYPE_F64);
    assert_true(hits[1] == 1 && hits[4] == 0);
    for (int k = 0; k < SLICES; k++) {
        for (int i = 0; i < ROWS_ * SLICE; i++) mine[k][i] = z[i / SLICE * V + k * SLICE + i % SLICE];
        RUN(vocab_xent_partial, .logits = mine[k], .targets = targets, .part = parts[k], .rows = ROWS_,
            .vocab = SLICE, .slice = k, .slices = SLICES, .dt = DTYPE_F64, .ldt = DTYPE_F64);
    }
    for (int k = 0; k < SLICES; k++) {
        double got[ROWS_], hit[ROWS_];
        RUN(vocab_xent_finish, .logits = mine[k], .dlogits = mine[k], .targets = targets, .parts = parts,
            .loss = got, .hits = hit, .rows = ROWS_, .vocab = SLICE, .slice = k, .slices = SLICES,
            .grad_scale = &scale, .z_loss = 0.01, .dt = DTYPE_F64, .ldt = DTYPE_F64);
        for (int t = 0; t < ROWS_; t++) assert_true(fabs(got[t] - loss[t]) < 1e-14 && hit[t] == hits[t]);
        for (int i = 0; i < ROWS_ * SLICE; i++)
            assert_true(fabs(mine[k][i] - dz[i / SLICE * V + k * SLICE + i % SLICE]) < 1e-15);
    }
}

int main(void)
{
    ops_oracle(&oracle);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_is_alone_at_the_top),
        cmocka_unit_test(slices_of_a_row_make_the_whole),
        cmocka_unit_test(a_gemm_is_the_sum_over_k_for_every_orientation),
        cmocka_unit_test(attention_is_a_masked_softmax),
        cmocka_unit_test(decoding_gives_the_last_row_of_the_forward),
        cmocka_unit_test(rotation_keeps_lengths_and_sees_distances),
        cmocka_unit_test(norms_give_unit_rows),
        cmocka_unit_test(the_norm_reads_the_rounded_sum),
        cmocka_unit_test(equal_logits_cost_the_logarithm_of_the_vocabulary),
        cmocka_unit_test(activations_have_known_values),
        cmocka_unit_test(optimizers_take_the_known_first_step),
        cmocka_unit_test(a_missing_op_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
