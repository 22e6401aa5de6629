/* The optimizer's state in host memory, piece by piece: the bits of the whole, whatever optimizer, moments and weights; and how the pieces
 * are cut. On the host the walk is the same, only that nothing runs beside it. */
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
#include "model/init.h"
#include "model/master_weights.h"
#include "optim/muon.h"
#include "optim/optim.h"

enum { STEPS = 4, ARENA = 4 << 20 };
enum { EMBED, MATRIX, RATE, ROUTER, NORM, LAST, ADAM };

struct fixture {
    struct decoder d;
    struct arena param, grad, optim, host, work;
    struct ops ops;
    struct step_scalars scalars;
    struct exec run;
    struct offload offload;
};
struct way {
    enum optim optim;
    enum optim_state state;
    dtype dt;
    int zero; /* the second of two ranks; 0: one rank alone */
    bool masterless;
};

static void add_rows(struct params *p)
{
    params_add(p, ROLE_EMBED, 0, 301, 63, "embed"); /* more than one chunk, and not a multiple of chunks */
    params_add(p, ROLE_MATRIX, 0, 250, 201, "matrix");
    params_unit(p);
    params_add(p, ROLE_RATE, 0, 24, 0, "rate");
    params_add(p, ROLE_BALANCE, 0, 8, 0, "router");
    params_add(p, ROLE_NORM, 1, 700, 0, "norm");
    params_unit(p);
    params_add(p, ROLE_MATRIX, 0, 297, 331, "last");
    params_add(p, ROLE_RESIDUAL, 0, 60, 70, "beside"); /* of muon's, as the one before */
    p->rows[LAST].part_count = 2; /* matrices of two shapes, one of which is longer than a slot */
    p->rows[LAST].parts[0] = 90, p->rows[LAST].parts[1] = 207;
    p->rows[MATRIX].gemm_overwrites_grad = p->rows[LAST].gemm_overwrites_grad =
        p->rows[ADAM].gemm_overwrites_grad = true;
    p->rows[RATE].derived[DERIVED_F32] = p->rows[ROUTER].derived[DERIVED_F32] = true;
}

static void fixture_open(struct fixture *f, const struct way *w, const struct run_spec *r, bool apart)
{
    memset(f, 0, sizeof *f);
    struct params *p = &f->d.params;
    struct arena *all[] = {&f->param, &f->grad, &f->optim, &f->host, &f->work};
    for (int i = 0; i < 5; i++) assert_int_equal(arena_reserve(all[i], "test", ARENA), STATUS_OK);
    f->d.spec.init_std = 0.1, f->d.spec.layer_count = 1;
    if (w->zero) p->zero = w->zero, p->shards = 2, p->shard = 1;
    p->masterless = w->masterless;
    add_rows(p);
    if (w->optim == OPTIM_MUON) assert_int_equal(muon_claim(p), STATUS_OK);
    params_layout(
        p, &(struct params_layout_args){.dt = w->dt,
                                        .moment_dt = optim_moment_dt(w->state),
                                        .with_grad = 1,
                                        .moments = optim_moments(w->optim),
                                        .arenas = {&f->param, &f->grad, &f->optim, apart ? &f->host : NULL}});
    offload_layout(&f->offload, p, &f->optim);
    optim_layout(p, &f->optim);
    if (w->optim == OPTIM_MUON) muon_layout(p, NULL, &f->work);
    assert_int_equal(ops_cpu(&f->ops, NULL), STATUS_OK);
    f->run = (struct exec){.ops = &f->ops, .params = p, .scalars = &f->scalars};
    assert_int_equal(offload_open(&f->offload, NULL), STATUS_OK);
    assert_int_equal(optim_chunks(p, r, &f->offload, NULL), STATUS_OK);
    assert_int_equal(init_weights(&f->d, &f->run, 3), STATUS_OK);
}

static void fixture_close(struct fixture *f)
{
    offload_close(&f->offload);
    params_free(&f->d.params);
    arena_free(&f->param);
    arena_free(&f->grad);
    arena_free(&f->optim);
    arena_free(&f->host);
    arena_free(&f->work);
}

static size_t whole_below(const struct params *p, int stage)
{
    return (size_t)(p->zero < stage ? p->total : p->own);
}

static void take_step(struct fixture *f, const struct run_spec *r, int64_t step)
{
    const struct params *p = &f->d.params;
    float *g = p->grad;
    for (size_t k = 0; k < whole_below(p, 2); k++)
        g[k] = (float)(rng_uniform(7, RNG_TEST, (uint64_t)step, k) - 0.5);
    /* Under ZeRO no run has both routers and a state in host memory: no loads, so that they stay. */
    const struct param_local_range held = params_local_range(p, ROUTER);
    float *load = g + (p->zero < 2 ? p->rows[ROUTER].offset + held.from : held.at);
    for (int64_t k = 0; k < held.to - held.from; k++) load[k] = p->zero ? 0 : (float)(k * (k + step) % 7);
    f->scalars = (struct step_scalars){.lr = 0.01};
    optim_scalars(r, step, &f->scalars);
    assert_int_equal(offload_prefetch(&f->offload, &f->run), STATUS_OK);
    assert_int_equal(optim_step(&f->run, r, &(struct grad_norm){0}, &f->offload, 0.25), STATUS_OK);
}

static void same_array(const char *what, const void *a, const void *b, size_t bytes, const struct way *w,
                       int64_t step)
{
    if ((a == NULL) != (b == NULL) || (a && memcmp(a, b, bytes) != 0))
        fail_msg("%s differs after %lld steps (optimizer %d, state %d, %s%s, ZeRO %d)", what, (long long)step,
                 (int)w->optim, (int)w->state, dtype_name(w->dt), w->masterless ? " alone" : "", w->zero);
}

static void same_state(const struct fixture *f, const struct fixture *g, const struct way *w, int64_t step)
{
    const struct params *a = &f->d.params, *b = &g->d.params;
    const size_t n = (size_t)a->own, n_v = (size_t)a->total_v, moment = dtype_bytes(a->moment_dt);
    assert_int_equal(a->total, b->total);
    float *masters[] = {calloc(whole_below(a, 3), sizeof(float)), calloc(whole_below(b, 3), sizeof(float))};
    assert_int_equal(master_weights_get(&f->run, masters[0]), STATUS_OK);
    assert_int_equal(master_weights_get(&g->run, masters[1]), STATUS_OK);
    same_array("master", masters[0], masters[1], n * sizeof(float), w, step);
    free(masters[0]);
    free(masters[1]);
    same_array("weight", a->weight, b->weight, whole_below(a, 3) * dtype_bytes(a->dt), w, step);
    same_array("gradient", a->grad, b->grad, whole_below(a, 2) * sizeof(float), w, step);
    same_array("first moment", a->m, b->m, n * moment, w, step);
    same_array("second moment", a->v, b->v, n_v * moment, w, step);
    same_array("scale", a->m_scale, b->m_scale, n / PARAM_ALIGN * sizeof(float), w, step);
    same_array("second scale", a->v_scale, b->v_scale, n_v / PARAM_ALIGN * sizeof(float), w, step);
    for (int i = RATE; i <= ROUTER && w->zero == 0; i++) /* else parallel/zero.h gathers them */
        same_array(a->rows[i].name, params_exact(a, i), params_exact(b, i),
                   (size_t)a->rows[i].count * sizeof(float), w, step);
    same_array("scalars", &f->scalars.grad_norm, &g->scalars.grad_norm, 4 * sizeof(double), w, step);
}

static void the_bits_are_those_without(void **state)
{
    (void)state;
    static const dtype types[] = {DTYPE_BF16, DTYPE_F32, DTYPE_BF16};
    static const enum optim optims[] = {OPTIM_ADAMW, OPTIM_LION, OPTIM_MUON};
    for (int k = 0; k < 3 * 3 * 3 * 4; k++) {
        const struct way w = {.optim = optims[k % 3],
                              .state = (enum optim_state)(k / 3 % 3),
                              .dt = types[k / 9 % 3],
                              .zero = k / 27,
                              .masterless = k / 9 % 3 == 2};
        if (w.optim == OPTIM_MUON && (w.masterless || w.zero))
            continue; /* its ranks make each other's steps: gpu_multi.sh */
        static struct fixture whole, apart;
        struct run_spec r;
        run_spec_default(&r);
        if (w.zero) r.train_clip = 0; /* the norm would be that of all ranks, who are not here */
        r.optim_name = w.optim;
        r.optim_state = w.state;
        fixture_open(&whole, &w, &r, false);
        fixture_open(&apart, &w, &r, true);
        assert_int_equal(whole.offload.piece_count, 0);
        assert_true(apart.offload.piece_count > OFFLOAD_SLOTS + 1);
        same_state(&whole, &apart, &w, 0);
        for (int64_t step = 0; step < STEPS; step++) {
            take_step(&whole, &r, step);
            take_step(&apart, &r, step);
            same_state(&whole, &apart, &w, step + 1);
        }
        fixture_close(&whole);
        fixture_close(&apart);
    }
}

/* Each way travels what a step of it needs, once: of muon's matrices momentum and master weights, of the rest both moments, too. In fp32 the
 * moments alone. */
static void matrices_travel_without_second_moments(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        static struct fixture f;
        struct run_spec r;
        run_spec_default(&r);
        r.optim_name = OPTIM_MUON;
        fixture_open(&f, &(struct way){OPTIM_MUON, OPTIM_STATE_FP32, half ? DTYPE_BF16 : DTYPE_F32, 0, false},
                     &r, true);
        const struct params *p = &f.d.params;
        const struct offload *o = &f.offload;
        int64_t matrices = 0, rest = 0, steps = 0;
        for (int i = 0; i < p->count; i++) {
            const struct param *row = &p->rows[i];
            if (row->role != ROLE_BALANCE) *(row->muon ? &matrices : &rest) += row->count;
        }
        /* a piece may hold the padding between its rows */
        const double least = (half ? 8 : 4) * (double)matrices + (half ? 12 : 8) * (double)rest;
        assert_true(offload_bytes(o) >= least && offload_bytes(o) < 1.01 * least);
        for (int64_t k = o->step_first; k < o->piece_count; k++) {
            assert_int_equal(o->pieces[k].use, OFFLOAD_STEP);
            assert_true(o->pieces[k].end - o->pieces[k].begin <= o->capacity);
            steps += o->pieces[k].end - o->pieces[k].begin;
        }
        assert_int_equal(steps, half ? matrices : 0);
        assert_true(!half || o->piece_count - o->step_first > p->muon_count);
        fixture_close(&f);
    }
}

/* What passes through the device has no other copy there. */
static void the_state_lies_in_the_hosts_arena(void **state)
{
    (void)state;
    static struct fixture f;
    struct run_spec r;
    run_spec_default(&r);
    fixture_open(&f, &(struct way){OPTIM_ADAMW, OPTIM_STATE_INT8, DTYPE_BF16, 0, false}, &r, true);
    const struct params *p = &f.d.params;
    const void *const arrays[] = {p->master, p->m, p->v, p->m_scale, p->v_scale};
    for (int i = 0; i < 5; i++) {
        const char *at = arrays[i];
        assert_true(at >= f.host.base && at < f.host.base + f.host.used);
    }
    const double each = 4 + 2 + 2 * 4. / PARAM_ALIGN;
    assert_true(offload_bytes(&f.offload) <= (double)p->total * each);
    assert_true(offload_bytes(&f.offload) > 0.95 * (double)p->total * each);
    fixture_close(&f);
}

static void pieces_hold_every_chunk_once_and_fit_their_slots(void **state)
{
    (void)state;
    struct update_chunk table[200];
    struct param_unit units[4] = {{.chunk_count = 90},
                                  {.chunk_first = 90},
                                  {.chunk_first = 90, .chunk_count = 3},
                                  {.chunk_first = 93, .chunk_count = 107}};
    struct params p = {.chunk_count = 200, .units = units, .unit_count = 4};
    int64_t at = 0;
    for (int i = 0; i < 200; i++) {
        const int32_t count = (int32_t)(1 + rng_uniform(1, RNG_TEST, 0, (uint64_t)i) * (UPDATE_CHUNK - 1));
        table[i] = (struct update_chunk){.begin = at, .count = count};
        at += (count + 255) / 256 * 256 + (i % 7 == 0 ? 512 : 0);
    }
    for (p.zero = 0; p.zero < 2; p.zero++) {
        struct offload o = {.on = true, .capacity = 40000};
        int64_t next = 0;
        assert_int_equal(offload_cut(&o, &p, table), STATUS_OK);
        for (int64_t k = 0; k < o.piece_count; k++) {
            const struct offload_piece *piece = &o.pieces[k];
            const struct update_chunk *last = &table[piece->chunk + piece->chunk_count - 1];
            const int64_t edge = next < 90 ? 90 : next < 93 ? 93 : 200;
            assert_int_equal(piece->chunk, next);
            assert_int_equal(piece->begin, table[next].begin);
            assert_int_equal(piece->end, last->begin + last->count);
            assert_true(piece->end - piece->begin <= o.capacity);
            next += piece->chunk_count;
            if (p.zero) assert_true(next <= edge && piece->unit == (edge == 90 ? 0 : edge == 93 ? 2 : 3));
            /* the next chunk is another unit's, or did not fit */
            if (next < 200 && !(p.zero && next == edge))
                assert_true(table[next].begin + table[next].count - piece->begin > o.capacity);
        }
        assert_int_equal(next, 200);
        offload_close(&o);
        assert_int_equal(offload_cut(&o, &p, table), STATUS_OK); /* off: none */
        assert_int_equal(o.piece_count, 0);
    }
}

static void a_gradient_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    static struct fixture f;
    struct run_spec r;
    run_spec_default(&r);
    fixture_open(&f, &(struct way){OPTIM_ADAMW, OPTIM_STATE_FP32, DTYPE_BF16, 0, false}, &r, true);
    const struct params *p = &f.d.params;
    const size_t bytes = (size_t)p->total * sizeof(float);
    float *before = malloc(bytes);
    memcpy(before, p->master, bytes);
    ((float *)params_grad(p, LAST))[5] = NAN;
    f.scalars = (struct step_scalars){.lr = 0.01};
    optim_scalars(&r, 0, &f.scalars);
    assert_int_equal(offload_prefetch(&f.offload, &f.run), STATUS_OK);
    assert_int_equal(optim_step(&f.run, &r, &(struct grad_norm){0}, &f.offload, 0), STATUS_OK);
    assert_true(f.scalars.clip_factor == 0);
    assert_memory_equal(before, p->master, bytes);
    free(before);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_without),
        cmocka_unit_test(matrices_travel_without_second_moments),
        cmocka_unit_test(the_state_lies_in_the_hosts_arena),
        cmocka_unit_test(pieces_hold_every_chunk_once_and_fit_their_slots),
        cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
