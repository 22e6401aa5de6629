/* The mesh of a job of which ranks stay away: the data axis first, no more ranks than are left, no fewer than asked, the
 * same bits where the order of sums can stay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "plan/mesh_shrink.h"

#include <stdio.h>
#include <string.h>

/* A model of four heads and four layers, and 24 micro-batches per step, or so many. */
static struct spec spec_of(const char *keys[], int count, int micros)
{
    struct spec s;
    char batch[64];
    snprintf(batch, sizeof batch, "--train.batch_tokens=%d", micros * 16);
    const char *all[24] = {
        "--model.vocab_size=128",     "--model.layer_count=4",  "--model.hidden_size=64",
        "--model.head_count=4",       "--model.ffn_size=128",   "--model.context_length=16",
        "--train.sequence_length=16", "--train.micro_batch=1",  "--train.steps=10",
        "--data.train=x.bin",         "--optim.warmup_steps=0", batch};
    for (int i = 0; i < count; i++) all[12 + i] = keys[i];
    assert_int_equal(spec_load(&s, NULL, 12 + count, (char **)(uintptr_t)all, NULL), STATUS_OK);
    return s;
}

struct row {
    const char *keys[4];
    int ranks, least, most, micros;
    const char *expect; /* "pp x dp x tp", then keys; "": none */
    bool same_bits;
};
static const struct row rows[] = {
    {{0}, 4, 1, 3, 24, "1x3x1", false}, /* 4 groups on 3 ranks are impossible: one group per rank */
    {{0}, 4, 1, 2, 24, "1x2x1 --train.gradient_groups=4", true},
    {{0}, 4, 1, 3, 8, "1x2x1 --train.gradient_groups=4", true}, /* 8 micro-batches cannot be dealt to 3 */
    {{0}, 8, 1, 7, 64, "1x4x1 --train.gradient_groups=8", true},
    {{"--train.gradient_groups=4"}, 4, 1, 3, 24, "1x2x1", true}, /* who asks for groups asks for bits */
    {{"--train.gradient_groups=4"}, 4, 3, 3, 24, "", false},
    {{"--parallel.tensor=2"}, 4, 1, 3, 24, "1x1x2 --train.gradient_groups=2", true},
    {{"--parallel.tensor=2"}, 4, 3, 3, 24, "1x3x1 --parallel.tensor=1", false},
    {{"--parallel.tensor=2"}, 2, 1, 1, 24, "1x1x1 --parallel.tensor=1", false},
    {{"--parallel.pipeline=2", "--parallel.tensor=2"}, 4, 1, 3, 24, "1x1x2 --parallel.pipeline=1", true},
    {{"--parallel.pipeline=2", "--parallel.stages=1,3"},
     2,
     1,
     1,
     24,
     "1x1x1 --parallel.pipeline=1 --parallel.stages=",
     true},
    {{"--parallel.pipeline=2", "--parallel.schedule=interleaved", "--parallel.chunks=2"},
     2,
     1,
     1,
     24,
     "1x1x1 --parallel.pipeline=1 --parallel.chunks=1 --parallel.schedule=1f1b",
     true},
    {{"--parallel.zero=1", "--parallel.shard=4"}, 8, 1, 6, 24, "1x6x1 --parallel.shard=3", false},
    {{"--parallel.zero=2"}, 4, 1, 3, 24, "1x3x1", true},
    {{"--parallel.zero=3"}, 4, 1, 1, 24, "1x1x1 --train.gradient_groups=24", true},
    {{0}, 4, 2, 1, 24, "", false},
};

static void meshes_shrink(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *r = &rows[i];
        struct mesh_shrink m;
        char got[512] = "";
        int count = 0;
        while (count < 4 && r->keys[count]) count++;
        struct spec s = spec_of((const char **)(uintptr_t)r->keys, count, r->micros);
        const status st = mesh_shrink(&s, r->ranks, r->least, r->most, &m);
        if (st == STATUS_OK) {
            snprintf(got, sizeof got, "%dx%dx%d", m.shape.pp, m.shape.dp, m.shape.tp);
            for (int k = 0; k < m.key_count; k++)
                snprintf(got + strlen(got), sizeof got - strlen(got), " %s", m.keys[k]);
        }
        if (strcmp(got, r->expect) != 0 || (st == STATUS_OK && m.same_bits != r->same_bits))
            fail_msg("row %zu: '%s' (%d) instead of '%s' (%d); %s", i, got, st == STATUS_OK && m.same_bits,
                     r->expect, r->same_bits, status_message());
        assert_int_equal(st, r->expect[0] ? STATUS_OK : STATUS_CONFIG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(meshes_shrink)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
