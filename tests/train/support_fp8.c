#include "train/support_fp8.h"
#include "base/io.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 512, SEQUENCES = 16, KEYS = 40 }; /* at most */

static void must(status st)
{
    if (st != STATUS_OK) fail_msg("%s", status_message());
}

void fp8_spec(struct spec *s, const char *const *more)
{
    static const char *const common[] = {
        "model.layer_count=2", "model.hidden_size=32",    "model.ffn_size=48",      "model.head_count=2",
        "model.vocab_size=64", "model.context_length=16", "train.micro_batch=8",    "train.batch_tokens=128",
        "train.steps=40",      "train.precision=fp8",     "fp8.warmup=3",           "optim.lr=1e-2",
        "train.clip=0",        "machine.device=cpu",      "optim.schedule=constant"};
    char *keys[KEYS];
    int n = 0;
    const bool fp8 = more == NULL || more[0] == NULL || strcmp(more[0], "train.precision=bf16") != 0;
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (fp8 || strncmp(common[i], "fp8.", 4) != 0) keys[n++] = (char *)(uintptr_t)common[i];
    for (; more && *more; more++) keys[n++] = (char *)(uintptr_t)*more;
    must(spec_load(s, NULL, n, keys, NULL));
}

void fp8_start(struct trainer *t, const char *const *more)
{
    struct spec s;
    fp8_spec(&s, more);
    must(trainer_open(t, &s, NULL, NULL));
    must(trainer_init_weights(t));
}

void fp8_go_on(struct trainer *t, const char *dir, const char *const *more)
{
    struct spec s;
    bool found;
    fp8_spec(&s, more);
    must(trainer_open(t, &s, NULL, NULL));
    must(trainer_restore(t, dir, &found));
    assert_true(found);
}

struct step_result fp8_step(struct trainer *t)
{
    static int32_t tokens[ROWS], targets[ROWS], positions[ROWS], cu[SEQUENCES + 1];
    struct batch micro[SEQUENCES];
    struct step_result r;
    const struct run_spec *run = &t->spec.run;
    const int64_t length = run->train_sequence_length, rows = run->train_batch_tokens,
                  at_once = run->train_micro_batch, count = rows / length / at_once;
    assert_true(rows <= ROWS && rows / length <= SEQUENCES);
    for (int64_t i = 0; i < rows; i++) {
        tokens[i] = (int32_t)(rng_uniform(1, RNG_TEST, 0, (uint64_t)i) * 64);
        targets[i] = (int32_t)(rng_uniform(2, RNG_TEST, 0, (uint64_t)i) * 64);
        positions[i] = (int32_t)(i % length);
    }
    for (int64_t i = 0; i <= at_once; i++) cu[i] = (int32_t)(i * length);
    for (int64_t m = 0; m < count; m++) {
        const int64_t first = m * at_once * length;
        micro[m] = (struct batch){.rows = at_once * length,
                                  .docs = at_once,
                                  .len_max = length,
                                  .tokens = tokens + first,
                                  .targets = targets + first,
                                  .positions = positions + first,
                                  .cu_seqlens = cu};
    }
    must(train_step(
        t, &(struct step_batch){.step = t->step, .valid = rows, .micro_count = (int)count, .micro = micro},
        &r));
    return r;
}

int fp8_count(const struct trainer *t)
{
    const struct fp8_linears *f = &t->decoder.params.fp8;
    int n = 0;
    for (int i = 0; i < f->count; i++) n += f->use[i] != FP8_USE_BF16;
    return n;
}

int fp8_linear(const struct trainer *t, const char *name)
{
    const int row = params_find(&t->decoder.params, name);
    assert_true(row >= 0 && t->decoder.params.rows[row].fp8 >= 0);
    return t->decoder.params.rows[row].fp8;
}

struct pair {
    const struct trainer *a, *b;
    const char *what;
};

static void *copy_of(const struct trainer *t, const void *array, size_t bytes)
{
    void *copy = malloc(bytes);
    assert_non_null(copy);
    must(dev_download(t->exec.stream, copy, array, bytes));
    if (t->exec.stream) must(dev_sync(t->exec.stream));
    return copy;
}

static void same(const struct pair *of, const void *a, const void *b, size_t bytes, const char *what)
{
    if (bytes == 0) return;
    void *x = copy_of(of->a, a, bytes), *y = copy_of(of->b, b, bytes);
    if (memcmp(x, y, bytes) != 0) fail_msg("%s: %s differ", of->what, what);
    free(x);
    free(y);
}

void fp8_same_state(const struct trainer *a, const struct trainer *b, const char *what)
{
    const struct params *p = &a->decoder.params, *q = &b->decoder.params;
    const struct pair of = {a, b, what};
    const size_t n = (size_t)p->total, linear = (size_t)p->fp8.count * sizeof(float),
                 moment = dtype_bytes(p->moment_dt);
    same(&of, p->weight, q->weight, 2 * n, "weights");
    if (p->master_residual)
        same(&of, p->master_residual, q->master_residual, 2 * n, "lower halves of master weights");
    same(&of, p->m, q->m, moment * n, "first moments");
    same(&of, p->v, q->v, moment * n, "second moments");
    assert_int_equal(p->fp8.count, q->fp8.count);
    same(&of, p->fp8.history, q->fp8.history, 2 * FP8_HISTORY * linear, "histories");
    same(&of, p->fp8.scale, q->fp8.scale, FP8_W * linear, "scales");
    same(&of, p->fp8.amax, q->fp8.amax, FP8_TENSORS * linear, "largest elements");
    /* At the switch one of them makes the codes of weights when the next step begins. */
    if (fp8_count(a) == 0 || fp8_count(b) == 0) return;
    same(&of, p->fp8.scale, q->fp8.scale, FP8_TENSORS * linear, "scales of weights");
    for (enum derived d = DERIVED_F8; d <= DERIVED_F8_T; d++)
        same(&of, p->derived[d].data, q->derived[d].data, (size_t)p->derived[d].bytes, "codes of weights");
}

void fp8_resumed_at(struct trainer *whole, int64_t at, const char *const *more)
{
    struct trainer parts;
    char dir[] = FP8_SCRATCH;
    assert_non_null(mkdtemp(dir));
    while (whole->step < at) (void)fp8_step(whole);
    must(trainer_save(whole, dir));
    fp8_go_on(&parts, dir, more);
    fp8_same_state(whole, &parts, "restored");
    (void)fp8_step(&parts);
    must(trainer_save(&parts, dir));
    trainer_close(&parts);
    fp8_go_on(&parts, dir, more);
    (void)fp8_step(whole);
    fp8_same_state(whole, &parts, "a step later");
    const double loss = fp8_step(whole).loss, again = fp8_step(&parts).loss;
    if (loss != again) fail_msg("resumed at step %lld: loss %.17g, not %.17g", (long long)at, again, loss);
    fp8_same_state(whole, &parts, "two steps later");
    trainer_close(&parts);
    must(io_remove_tree(dir));
}
