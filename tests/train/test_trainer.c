/* What the shell tests of runs cannot reach. */
#include "train/trainer.h"
#include "base/io.h"
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

/* Method: one element of each array in turn becomes infinite or NaN; nothing may be saved then, and all is well again after. */
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
                                       cmocka_unit_test(a_map_of_tokens_from_elsewhere_is_checked),
                                       cmocka_unit_test(weights_open_on_any_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
