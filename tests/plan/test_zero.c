/* What data-parallel ranks that shard a copy hold: the bytes of the formulas for each stage of ZeRO, but for padding, the tables, and what a
 * unit needs on its way; and what is planned is what is reserved. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "plan/grad_overlay.h"
#include "plan/plan.h"

static struct spec spec_of(int precision)
{
    struct spec s;
    assert_int_equal(preset_find("nano", &s.model), STATUS_OK);
    run_spec_default(&s.run);
    s.model.vocab_size = 512;
    s.model.tied_embeddings = precision == PRECISION_BF16;
    s.run.train_sequence_length = 64;
    s.run.train_micro_batch = 1;
    s.run.train_batch_tokens = 4 * 64;
    s.run.train_steps = 1;
    s.run.train_precision = precision;
    spec_resolve(&s);
    return s;
}

/* Bytes per parameter of weights, gradients and moments. */
struct bytes {
    double param, grad, optim;
};
static struct bytes formula(int precision, int zero, int shards)
{
    const double d = zero ? shards : 1, weight = precision == PRECISION_BF16 ? 2 : 0;
    const double master = precision == PRECISION_BF16 ? 2 / d : 4 / (zero == 3 ? d : 1);
    return (struct bytes){
        .param = weight / (zero == 3 ? d : 1) + master, .grad = 4 / (zero >= 2 ? d : 1), .optim = 8 / d};
}

static void each_stage_holds_the_bytes_of_its_formula(void **state)
{
    (void)state;
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        for (int zero = 0; zero <= 3; zero++)
            for (int shards = 2; shards <= 4; shards += 2) {
                const struct spec s = spec_of(precision);
                const struct mesh_shape shape = {
                    .pp = 1, .dp = 4, .tp = 1, .chunks = 1, .zero = zero, .shard = zero ? shards : 4};
                const struct mesh mesh = mesh_place(&shape, 1);
                struct plan_layout_args args = plan_args(&s, &mesh);
                struct decoder d;
                struct rank_state rank;
                struct activations a = {0}, counted = {0};
                struct memory m, plan = {0};
                assert_int_equal(decoder_init(&d, &s.model, &mesh), STATUS_OK);
                assert_int_equal(plan_layout(&plan, &d, &rank, &counted, &args), STATUS_OK);
                activations_fini(&counted);
                const struct params *p = &d.params;
                const struct bytes want = formula(precision, zero, shards);
                int64_t largest = 0, sum = 0;
                for (int u = 0; u < p->unit_count; u++) {
                    sum += p->units[u].count;
                    if (p->units[u].count > largest) largest = p->units[u].count;
                    if (zero) assert_true(p->units[u].count % (shards * p->units[u].chunk_align) == 0);
                }
                const double total = (double)p->total, padding = total - (double)p->param_count,
                             rope = 64 * 64 * 8;
                assert_true(sum == p->total && p->own == p->total / (zero ? shards : 1));
                const double tables = (double)p->chunk_count * (sizeof(struct update_chunk) + 8) +
                                      (double)p->chunks_model * 8 * (1 + 2 * 4) + 1024;
                const double slots = (zero == 3 ? 4. : 0) * (double)largest *
                                     (precision == PRECISION_BF16 ? 2 : 4),
                             ways = (double)largest * 4 * (zero >= 2 ? 4 + 1 : 2) + 4096;
                const double slack[] = {slots + rope, ways, tables};
                const double grads = (double)(plan.grad.peak + grad_overlay_bytes(p));
                const double got[] = {(double)plan.param.peak, grads, (double)plan.optim.peak},
                             least[] = {want.param * total, want.grad * total, want.optim * total};
                for (int i = 0; i < 3; i++)
                    if (got[i] < least[i] || got[i] > least[i] + slack[i])
                        fail_msg("precision %d, stage %d of %d, arena %d: %.0f bytes, not %.0f to %.0f",
                                 precision, zero, shards, i, got[i], least[i], least[i] + slack[i]);
                assert_true(padding < (double)p->unit_count * shards * PARAMS_CHUNK_ALIGN + 256. * p->count);
                assert_int_equal(plan_reserve(&m, &d, &rank, &a, &args), STATUS_OK);
#define X(field, category, text) assert_int_equal(m.field.size, plan.field.peak);
                MEMORY_LIST(X)
#undef X
                activations_fini(&a);
                decoder_fini(&d);
                memory_free(&m);
            }
}

/* Every element of every row is held by one rank of each copy, and the parts follow each other. */
static void parts_make_up_the_whole(void **state)
{
    (void)state;
    struct spec s = spec_of(PRECISION_BF16);
    s.run.optim_name = OPTIM_MUON; /* no second moment of matrices, wherever their parts are */
    int64_t held[4][256][2], of_v = 0;
    int rows = 0;
    for (int rank = 0; rank < 4; rank++) {
        const struct mesh_shape shape = {.pp = 1, .dp = 4, .tp = 1, .chunks = 1, .zero = 1, .shard = 4};
        const struct mesh mesh = mesh_place(&shape, rank);
        struct plan_layout_args args = plan_args(&s, &mesh);
        struct decoder d;
        struct rank_state rank_state;
        struct activations a = {0};
        struct memory m = {0};
        assert_int_equal(decoder_init(&d, &s.model, &mesh), STATUS_OK);
        assert_int_equal(plan_layout(&m, &d, &rank_state, &a, &args), STATUS_OK);
        rows = d.params.count;
        assert_true(rows <= 256);
        for (int i = 0; i < rows; i++) {
            const struct param_local_range h = params_local_range(&d.params, i);
            held[rank][i][0] = h.from, held[rank][i][1] = h.to;
            assert_true(h.from == h.to || (h.at >= 0 && h.at + h.to - h.from <= d.params.own));
            if (rank == 0) assert_int_equal(h.from, 0);
            if (rank > 0) assert_int_equal(h.from, held[rank - 1][i][1]);
            if (rank == 3) assert_int_equal(h.to, d.params.rows[i].count);
            assert_true(h.from == h.to || d.params.rows[i].muon ||
                        (h.at >= d.params.rows[i].v_offset &&
                         h.at + h.to - h.from - d.params.rows[i].v_offset <= d.params.total_v));
            if (d.params.rows[i].muon) of_v += (h.to - h.from + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
        }
        of_v += d.params.total_v - d.params.own;
        activations_fini(&a);
        decoder_fini(&d);
    }
    assert_int_equal(of_v, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_stage_holds_the_bytes_of_its_formula),
        cmocka_unit_test(parts_make_up_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
