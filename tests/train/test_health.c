/* The verdict on a run's last steps, and what retention makes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "train/checkpoint.h"
#include "train/health.h"
#include "../temp.h"

#include <math.h>

/* A loss that falls from 8 to 3 with noise of a standard deviation near `noise`. */
static double usual_loss(int step, double noise)
{
    const struct rng_block r = rng_at(3, RNG_TEST, 0, (uint64_t)step);
    return 3 + 5 * exp(-step / 40.0) + noise * ((double)r.u[0] + (double)r.u[1] - 0x1p32) * 0x1p-32 * 2.4;
}

static bool sound(const struct health *h)
{
    char why[HEALTH_WHY];
    return health_sound(h, why);
}

static void a_run_that_learns_is_sound_at_every_step(void **state)
{
    (void)state;
    for (int noise = 0; noise < 4; noise++) {
        struct health h = {0};
        assert_true(sound(&h));
        for (int i = 0; i < 600; i++) {
            health_step(&h, usual_loss(i, 0.1 * noise), 1 + 0.5 * (i % 3));
            assert_true(sound(&h));
        }
        health_step(&h, 40, 500); /* one bad batch: nobody knows what comes */
        assert_false(sound(&h));
        for (int i = 0; i < 8; i++) {
            health_step(&h, usual_loss(600, 0), 1);
            assert_true(sound(&h));
        }
    }
}

static void a_divergence_is_seen_and_forgotten_when_it_is_over(void **state)
{
    (void)state;
    struct health h = {0};
    char why[HEALTH_WHY];
    for (int i = 0; i < 200; i++) health_step(&h, usual_loss(i, 0.05), 1);
    struct health norms = h;
    for (int i = 0; i < 2; i++) health_step(&h, 6, 3);
    assert_false(health_sound(&h, why));
    assert_non_null(strstr(why, "the loss is 6.000, it was 3."));
    /* A plateau of bad losses stays bad, however long. */
    for (int i = 0; i < 500; i++) health_step(&h, 6, 3);
    assert_false(sound(&h));
    for (int i = 0; i < 4; i++) health_step(&h, 3.02, 1);
    assert_true(sound(&h));
    for (int i = 0; i < 4; i++) health_step(&norms, 3.02, 11);
    assert_false(health_sound(&norms, why));
    assert_string_equal(why, "the gradient norm is 11, it was 1");
}

static void a_run_worse_than_its_beginning_is_not_sound_from_the_first_steps_on(void **state)
{
    (void)state;
    struct health h = {0};
    health_step(&h, 5.8, 1);
    assert_true(sound(&h));
    for (int i = 0; i < 2; i++) health_step(&h, 60, 4);
    assert_false(sound(&h));
}

static void a_checkpoint_keeps_the_whole_judgement(void **state)
{
    (void)state;
    const char *why;
    for (int steps = 0; steps < 150; steps += 7) {
        struct health h = {0}, back;
        for (int i = 0; i < steps; i++) health_step(&h, usual_loss(i, 0.05), 1 + i % 5);
        json_t *meta = json_pack("{s:o}", "health", health_json(&h));
        char *text = json_dumps(meta, JSON_REAL_PRECISION(17));
        json_t *again = json_loads(text, 0, NULL);
        health_read(&back, again);
        assert_true(health_of_meta(again, &why));
        assert_int_equal(back.steps, h.steps);
        for (int i = steps; i < steps + 80; i++) { /* the same verdicts as without an interruption */
            const double loss = i % 9 < 4 ? 5 : usual_loss(i, 0.05);
            health_step(&h, loss, 1), health_step(&back, loss, 1);
            assert_int_equal(sound(&h), sound(&back));
        }
        assert_memory_equal(&back.losses, &h.losses, sizeof h.losses);
        free(text);
        json_decref(meta);
        json_decref(again);
    }
    struct health none = {.steps = 3};
    health_read(&none, NULL); /* an older checkpoint */
    assert_int_equal(none.steps, 0);
    assert_true(health_of_meta(NULL, &why));
}

/* ---- retention ---- */

static void save(int64_t step, bool good, int keep)
{
    float value = 1;
    const struct ckpt_item item = {.name = "w", .dt = DTYPE_F32, .rank = 1, .shape = {1}, .data = &value};
    json_t *meta = json_pack("{s:{s:b, s:s}}", "health", "sound", good, "why", good ? "" : "bad");
    assert_int_equal(checkpoint_save(temp_dir, step, &item, 1, meta, keep, NULL), STATUS_OK);
    json_decref(meta);
}

/* The steps that are there, as text. */
static const char *there(void)
{
    static char text[256];
    char path[600];
    struct io_list list;
    int n = 0;
    snprintf(path, sizeof path, "%s/ckpt", temp_dir);
    assert_int_equal(io_list(path, &list), STATUS_OK);
    text[0] = 0;
    for (int64_t step = 0; step < 100; step++)
        for (int i = 0; i < list.count; i++) {
            char name[64];
            snprintf(name, sizeof name, "step-%08lld", (long long)step);
            if (strcmp(list.names[i], name) == 0)
                n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld", n ? " " : "", (long long)step);
        }
    io_list_free(&list);
    return text;
}

static void the_newest_sound_checkpoint_stays_besides_the_newest(void **state)
{
    (void)state;
    int64_t step;
    for (int i = 1; i <= 3; i++) save(i, true, 1);
    assert_string_equal(there(), "3");
    for (int i = 4; i <= 6; i++) save(i, false, 1);
    assert_string_equal(there(), "3 6");
    assert_int_equal(checkpoint_newest_sound(temp_dir, &step), STATUS_OK);
    assert_int_equal(step, 3);
    for (int i = 7; i <= 9; i++) save(i, false, 2);
    assert_string_equal(there(), "3 8 9");
    save(10, true, 2);
    assert_string_equal(there(), "9 10");
    temp_clear();
}

static void a_run_that_has_gone_back_sees_no_later_checkpoint(void **state)
{
    (void)state;
    struct checkpoint *c;
    bool found;
    int64_t step;
    char path[1024];
    for (int i = 1; i <= 5; i++) save(i, true, 9);
    assert_int_equal(checkpoint_at(temp_dir, 7, path, sizeof path), STATUS_CKPT);
    assert_non_null(strstr(status_message(), "has no checkpoint of step 7; it has 5, 4, 3, 2, 1"));
    assert_int_equal(checkpoint_at(temp_dir, 2, path, sizeof path), STATUS_OK);
    assert_int_equal(checkpoint_go_back(temp_dir, 2), STATUS_OK);
    assert_int_equal(checkpoint_open(&c, temp_dir, &found), STATUS_OK);
    assert_int_equal(checkpoint_step(c), 2);
    checkpoint_close(c);
    assert_int_equal(checkpoint_newest_sound(temp_dir, &step), STATUS_OK);
    assert_int_equal(step, 2);
    assert_string_equal(there(), "1 2 3 4 5"); /* until the next save */
    assert_int_equal(checkpoint_drop_later(temp_dir), STATUS_OK);
    save(3, true, 9);
    assert_string_equal(there(), "1 2 3");
    assert_int_equal(checkpoint_drop_later(temp_dir), STATUS_OK); /* once */
    assert_string_equal(there(), "1 2 3");
    char back[600];
    snprintf(back, sizeof back, "%s/ckpt/back", temp_dir);
    temp_write(back, "x\n", 2);
    assert_int_equal(checkpoint_open(&c, temp_dir, &found), STATUS_CKPT);
    temp_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_that_learns_is_sound_at_every_step),
        cmocka_unit_test(a_divergence_is_seen_and_forgotten_when_it_is_over),
        cmocka_unit_test(a_run_worse_than_its_beginning_is_not_sound_from_the_first_steps_on),
        cmocka_unit_test(a_checkpoint_keeps_the_whole_judgement),
        cmocka_unit_test(the_newest_sound_checkpoint_stays_besides_the_newest),
        cmocka_unit_test(a_run_that_has_gone_back_sees_no_later_checkpoint),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
