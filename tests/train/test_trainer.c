/* What the shell tests of runs cannot reach. */
#include "train/trainer.h"
#include "base/io.h"
#include "model/master_weights.h"
#include "plan/plan.h"
#include "train/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Method: one element of each array in turn becomes infinite or NaN; nothing may be saved then, and
 * afterwards all works. */
static void a_state_that_is_not_finite_is_not_saved(void **unused)
{
    (void)unused;
    char dir[] = "/tmp/ingot-trainer-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *keys[] = {"--model.layer_count=1", "--model.hidden_size=8",    "--model.ffn_size=16",
                    "--model.head_count=1",  "--model.context_length=8", "--model.vocab_size=16",
                    "--train.steps=1",       "--train.precision=fp32"};
    struct spec spec;
    assert_int_equal(spec_load(&spec, NULL, sizeof keys / sizeof keys[0], keys, NULL), STATUS_OK);
    struct trainer t;
    assert_int_equal(trainer_open(&t, &spec, NULL, NULL), STATUS_OK);
    assert_int_equal(trainer_init_weights(&t), STATUS_OK);
    struct params *p = &t.decoder.params;
    float *const arrays[] = {p->master, p->m, p->v}; /* fp32 moments */
    const int64_t last = p->rows[p->count - 1].offset + p->rows[p->count - 1].count - 1;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        float *x = &arrays[i][i == 0 ? 0 : last], was = *x;
        *x = i == 1 ? NAN : -INFINITY;
        assert_int_equal(trainer_save(&t, dir), STATUS_NUMERIC);
        assert_non_null(strstr(status_message(), " is not finite after step 0"));
        *x = was;
    }
    struct checkpoint *c;
    bool found = true;
    assert_int_equal(checkpoint_open(&c, dir, &found), STATUS_OK);
    assert_false(found);
    assert_int_equal(trainer_save(&t, dir), STATUS_OK);
    assert_int_equal(checkpoint_open(&c, dir, &found), STATUS_OK);
    assert_true(found);
    checkpoint_close(c);
    trainer_close(&t);
    assert_int_equal(io_remove_tree(dir), STATUS_OK);
}

/* Masters whose lower halves are ties, next to them, all ones; negative, subnormal, up to where bf16 ends. */
static float *odd_masters(const struct params *p)
{
    static const uint32_t bits[] = {0x3f808000, 0x3f818000, 0xbf808000, 0xbf807fff, 0x3fffffff,
                                    0x00000001, 0x80008000, 0x007fffff, 0x3f80ffff, 0xc0008001,
                                    0x00000000, 0x80000000, 0x7f7e8000};
    float *x = calloc((size_t)p->total, sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < p->count; i++)
        for (int64_t k = 0; k < p->rows[i].count; k++)
            memcpy(&x[p->rows[i].offset + k], &bits[(k + i) % 13], sizeof *bits);
    return x;
}

/* What a trainer in bf16 has of master weights. */
static void holds(const struct trainer *t, const float *want)
{
    const struct params *p = &t->decoder.params;
    const size_t n = (size_t)p->total;
    float *got = calloc(n, sizeof *got);
    assert_true(p->master == NULL && p->master_residual != NULL && p->derived[DERIVED_F32].bytes > 0);
    assert_int_equal(master_weights_get(&t->exec, got), STATUS_OK);
    assert_memory_equal(got, want, n * sizeof *got);
    for (int i = 0; i < p->count; i++) {
        const struct param *r = &p->rows[i];
        if (r->derived[DERIVED_F32])
            assert_memory_equal(params_exact(p, i), want + r->offset, (size_t)r->count * sizeof *want);
        for (int64_t k = 0; k < r->count; k++) {
            uint32_t bits;
            memcpy(&bits, &want[r->offset + k], sizeof bits);
            assert_int_equal(((const bf16 *)params_weight(p, i))[k], (bits + 0x8000) >> 16);
        }
    }
    free(got);
}

/* Split masters are saved and loaded as full ones, as if they were not split. */
static void masters_in_halves_are_saved_whole(void **unused)
{
    (void)unused;
    char dir[] = "/tmp/ingot-trainer-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *keys[] = {"--model.layers=mamba2",    "--model.mamba_heads=2", "--model.mamba_head_dim=8",
                    "--model.mamba_groups=1",   "--model.mamba_state=8", "--model.layer_count=1",
                    "--model.hidden_size=8",    "--model.ffn_size=16",   "--model.head_count=1",
                    "--model.context_length=8", "--model.vocab_size=16", "--train.steps=1",
                    "--train.precision=bf16",   "--machine.device=cpu"};
    struct spec spec;
    assert_int_equal(spec_load(&spec, NULL, sizeof keys / sizeof keys[0], keys, NULL), STATUS_OK);
    struct trainer t, again;
    assert_int_equal(trainer_open(&t, &spec, NULL, NULL), STATUS_OK);
    const struct params *p = &t.decoder.params;
    float *x = odd_masters(p), *drawn = calloc((size_t)p->total, sizeof *drawn);
    assert_int_equal(trainer_init_weights(&t), STATUS_OK);
    assert_int_equal(master_weights_get(&t.exec, drawn), STATUS_OK);
    holds(&t, drawn);
    assert_int_equal(master_weights_put(&t.exec, x), STATUS_OK);
    holds(&t, x);
    assert_int_equal(trainer_save(&t, dir), STATUS_OK);
    struct checkpoint *c;
    bool found;
    assert_int_equal(checkpoint_open(&c, dir, &found), STATUS_OK);
    for (int i = 0; i < p->count; i++) {
        char name[128];
        float *got = calloc((size_t)p->rows[i].count, sizeof *got);
        snprintf(name, sizeof name, "master/%s", p->rows[i].name);
        struct ckpt_item item = *checkpoint_item(c, checkpoint_find(c, name));
        assert_int_equal(item.dt, DTYPE_F32);
        item.data = got;
        assert_int_equal(checkpoint_read(c, &item, 1), STATUS_OK);
        assert_memory_equal(got, x + p->rows[i].offset, (size_t)p->rows[i].count * sizeof *got);
        free(got);
    }
    checkpoint_close(c);
    assert_int_equal(trainer_open(&again, &spec, NULL, NULL), STATUS_OK);
    assert_int_equal(trainer_restore(&again, dir, &found), STATUS_OK);
    holds(&again, x);
    trainer_close(&again);
    trainer_close(&t);
    free(x);
    free(drawn);
    assert_int_equal(io_remove_tree(dir), STATUS_OK);
}

/* What only a GPU can do must not keep a run's weights from being exported. */
static void weights_open_on_any_machine(void **unused)
{
    (void)unused;
    char *keys[] = {"--model.layer_count=1",    "--model.hidden_size=8",    "--model.ffn_size=16",
                    "--model.head_count=1",     "--model.context_length=8", "--model.vocab_size=16",
                    "--train.steps=1",          "--train.precision=tf32",   "--attention.backend=cudnn",
                    "--train.micro_batch=auto", "--train.batch_tokens=64",  "--machine.device=cuda"};
    struct spec spec;
    struct trainer t;
    assert_int_equal(spec_load(&spec, NULL, sizeof keys / sizeof keys[0], keys, NULL), STATUS_OK);
    assert_int_equal(trainer_open_weights(&t, &spec), STATUS_OK);
    assert_int_equal(t.dev.kind, DEV_CPU);
    assert_int_equal(t.spec.run.train_precision, PRECISION_TF32);
    assert_int_equal(t.spec.run.train_micro_batch, 0);
    trainer_close(&t);
    spec.run.machine_device = DEVICE_CPU;
    assert_int_equal(trainer_open(&t, &spec, NULL, NULL), STATUS_CONFIG);
    spec.run.train_precision = PRECISION_FP32;
    spec.run.attention_backend = ATTENTION_OWN;
    assert_int_equal(trainer_open(&t, &spec, NULL, NULL), STATUS_CONFIG);
}

/* Its ids choose rows of tables. Method: maps with each bound passed are saved as if they were sound. */
static void a_map_of_tokens_from_elsewhere_is_checked(void **unused)
{
    (void)unused;
    char dir[] = "/tmp/ingot-trainer-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *keys[] = {"--model.layer_count=1", "--model.hidden_size=8",    "--model.ffn_size=16",
                    "--model.head_count=1",  "--model.context_length=8", "--model.vocab_size=16",
                    "--train.steps=1",       "--train.precision=fp32",   "--model.engram_layers=0",
                    "--model.engram_dim=16", "--model.engram_base=20",   "--model.engram_fold=true",
                    "--machine.device=cpu"};
    const int32_t ids[] = {15, -1, 16};
    struct spec spec;
    assert_int_equal(spec_load(&spec, NULL, sizeof keys / sizeof keys[0], keys, NULL), STATUS_OK);
    for (int i = 0; i < 3; i++) {
        struct trainer t;
        bool found;
        assert_int_equal(trainer_open(&t, &spec, NULL, NULL), STATUS_OK);
        assert_int_equal(trainer_init_weights(&t), STATUS_OK);
        ((int32_t *)t.decoder.token_map.data)[3] = ids[i];
        assert_int_equal(trainer_save(&t, dir), STATUS_OK);
        memset(t.decoder.token_map.data, 0, 16 * sizeof(int32_t));
        assert_int_equal(trainer_restore(&t, dir, &found), i == 0 ? STATUS_OK : STATUS_CKPT);
        if (i > 0) assert_non_null(strstr(status_message(), "map/tokens gives token 3 the id"));
        assert_int_equal(((int32_t *)t.decoder.token_map.data)[3], i == 0 ? ids[i] : 0); /* or left alone */
        trainer_close(&t);
    }
    assert_int_equal(io_remove_tree(dir), STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_state_that_is_not_finite_is_not_saved),
                                       cmocka_unit_test(masters_in_halves_are_saved_whole),
                                       cmocka_unit_test(a_map_of_tokens_from_elsewhere_is_checked),
                                       cmocka_unit_test(weights_open_on_any_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
