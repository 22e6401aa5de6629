/* Made-up samples are what their header says: every answer can be found in its own sample, and nothing but answers is a target. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "temp.h"
#include "data/shard/shard.h"
#include "data/build/synth.h"

enum { LENGTH = 64, ITEMS = 8, VOCAB = 40, SAMPLES = 50 };

static struct synth_config config_of(enum synth_task task)
{
    return (struct synth_config){.task = task,
                                 .items = ITEMS,
                                 .length = LENGTH,
                                 .vocab_size = VOCAB,
                                 .samples = {SAMPLES, 3},
                                 .power = 0.1,
                                 .seed = 5};
}

static void draw(const struct synth_config *c, enum synth_split split, int64_t i, int32_t *tokens,
                 uint8_t *answers)
{
    void *space = malloc(synth_space(c));
    synth_sample(c, split, i, tokens, answers, space);
    free(space);
}

static void every_question_of_mqar_has_its_answer_in_the_list(void **state)
{
    (void)state;
    const struct synth_config c = config_of(SYNTH_MQAR);
    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t tokens[LENGTH];
        uint8_t answers[LENGTH];
        int asked[VOCAB] = {0}, count = 0;
        draw(&c, SYNTH_TRAIN, i, tokens, answers);
        for (int t = 0; t < 2 * ITEMS; t++) assert_int_equal(answers[t], 0);
        for (int t = 2 * ITEMS; t < LENGTH; t++) {
            assert_true(tokens[t] >= 0 && tokens[t] < VOCAB);
            if (!answers[t]) continue;
            int place = -1;
            for (int k = 0; k < ITEMS; k++)
                if (tokens[2 * k] == tokens[t - 1]) place = 2 * k + 1;
            assert_true(place > 0);
            assert_int_equal(tokens[place], tokens[t]);
            assert_int_equal(asked[tokens[t - 1]]++, 0);
            count++;
        }
        assert_int_equal(count, ITEMS);
        assert_int_equal(tokens[LENGTH - 1], 0);
    }
}

static void a_copy_repeats_its_symbols_in_order(void **state)
{
    (void)state;
    const struct synth_config c = config_of(SYNTH_COPY);
    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t tokens[LENGTH], symbols[LENGTH];
        uint8_t answers[LENGTH];
        int count = 0, answered = 0;
        draw(&c, SYNTH_VAL, i, tokens, answers);
        for (int t = 0; t < LENGTH - ITEMS - 2; t++) {
            assert_true(tokens[t] == 1 || (tokens[t] >= 3 && tokens[t] < VOCAB));
            if (tokens[t] != 1) symbols[count++] = tokens[t];
        }
        assert_int_equal(count, ITEMS);
        assert_int_equal(tokens[LENGTH - ITEMS - 2], 2);
        for (int t = 0; t < LENGTH; t++)
            if (answers[t]) assert_int_equal(tokens[t], symbols[answered++]);
        assert_int_equal(answered, ITEMS);
        assert_int_equal(tokens[LENGTH - 1], 0);
    }
}

static void parity_is_that_of_its_bits(void **state)
{
    (void)state;
    const struct synth_config c = config_of(SYNTH_PARITY);
    int seen[2] = {0};
    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t tokens[LENGTH];
        uint8_t answers[LENGTH];
        int bits = 0, ones = 0;
        draw(&c, SYNTH_VAL, i, tokens, answers);
        for (int t = 0; t < LENGTH - 3; t++) {
            assert_true(tokens[t] == 1 || tokens[t] == 3 || tokens[t] == 4);
            bits += tokens[t] != 1, ones += tokens[t] == 4;
        }
        assert_int_equal(bits, ITEMS);
        assert_int_equal(tokens[LENGTH - 3], 2);
        assert_int_equal(tokens[LENGTH - 2], 3 + ones % 2);
        for (int t = 0; t < LENGTH; t++) assert_int_equal(answers[t], t == LENGTH - 2);
        seen[ones % 2]++;
    }
    assert_true(seen[0] > 5 && seen[1] > 5);
    assert_int_equal(synth_answers(&c), 1);
}

static void a_needle_is_asked_for_at_the_end(void **state)
{
    (void)state;
    const struct synth_config c = config_of(SYNTH_NEEDLE);
    int early = 0, late = 0;
    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t tokens[LENGTH];
        uint8_t answers[LENGTH];
        int place = -1, sign = LENGTH - 2 - ITEMS;
        draw(&c, SYNTH_TRAIN, i, tokens, answers);
        for (int t = 0; t < sign; t++) {
            if (tokens[t] != 2) continue;
            assert_int_equal(place, -1);
            place = t;
        }
        assert_true(place >= 0 && place + ITEMS < sign);
        early += place<sign / 3, late += place> sign / 2;
        for (int t = 0; t < LENGTH; t++) assert_int_equal(answers[t], t > sign && t <= sign + ITEMS);
        assert_memory_equal(tokens + sign, tokens + place, (ITEMS + 1) * sizeof *tokens);
    }
    assert_true(early > 5 && late > 5);
}

static void a_needle_lies_in_a_haystack_of_any_length(void **state)
{
    (void)state;
    enum { LONG = 131072 };
    struct synth_config c = config_of(SYNTH_NEEDLE);
    c.length = LONG;
    assert_int_equal(synth_check(&c), STATUS_OK);
    int32_t *tokens = malloc(LONG * sizeof *tokens);
    uint8_t *answers = malloc(LONG);
    draw(&c, SYNTH_VAL, 0, tokens, answers);
    int signs = 0;
    for (int t = 0; t < LONG; t++) signs += tokens[t] == 2;
    assert_int_equal(signs, 2);
    free(tokens);
    free(answers);
}

/* Samples are functions of seed, split and number; the shard holds them, with their mask, and one more token. */
static void a_shard_holds_the_samples_and_their_mask(void **state)
{
    (void)state;
    const char *path = temp_path("x.bin");
    const struct synth_config c = config_of(SYNTH_MQAR);
    assert_int_equal(synth_write(&c, SYNTH_TRAIN, path), STATUS_OK);
    struct shard_set s;
    assert_int_equal(shard_set_open(&s, path), STATUS_OK);
    assert_int_equal(s.format, SHARD_LLMQ);
    assert_int_equal(s.vocab_size, VOCAB);
    assert_int_equal(s.tokens, SAMPLES * LENGTH + 1);
    assert_true(s.masked);
    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t tokens[LENGTH], got[LENGTH], targets[LENGTH];
        uint8_t answers[LENGTH];
        draw(&c, SYNTH_TRAIN, i, tokens, answers);
        assert_int_equal(shard_set_read(&s, i * LENGTH, LENGTH, VOCAB, got), STATUS_OK);
        assert_memory_equal(got, tokens, sizeof got);
        memcpy(targets, tokens, sizeof targets);
        assert_int_equal(shard_set_mask(&s, i * LENGTH, LENGTH, -100, targets), LENGTH - ITEMS);
        for (int t = 0; t < LENGTH; t++)
            assert_true(answers[t] ? targets[t] == tokens[t] : targets[t] == -100);
        int32_t other[LENGTH];
        struct synth_config seed = c;
        seed.seed++;
        draw(&seed, SYNTH_TRAIN, i, other, answers);
        assert_true(memcmp(other, tokens, sizeof tokens) != 0);
        draw(&c, SYNTH_VAL, i, other, answers);
        assert_true(memcmp(other, tokens, sizeof tokens) != 0);
    }
    shard_set_close(&s);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct synth_config good = config_of(SYNTH_MQAR);
    assert_int_equal(synth_check(&good), STATUS_OK);
    good.length = 4 * ITEMS + 1;
    assert_int_equal(synth_check(&good), STATUS_OK);
    struct synth_config bad[7];
    for (int i = 0; i < 7; i++) bad[i] = good;
    bad[0].length--, bad[1].items = 0, bad[2].vocab_size = 2 + 2 * ITEMS - 1, bad[3].samples[0] = INT32_MAX;
    bad[4].power = 0, bad[5].vocab_size = 1 << 25, bad[6].samples[1] = -1;
    for (int i = 0; i < 7; i++) assert_int_equal(synth_check(&bad[i]), STATUS_CONFIG);
    struct synth_config copy = config_of(SYNTH_COPY);
    copy.length = 2 * ITEMS + 2, copy.vocab_size = 4;
    assert_int_equal(synth_check(&copy), STATUS_OK);
    copy.vocab_size = 3;
    assert_int_equal(synth_check(&copy), STATUS_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_question_of_mqar_has_its_answer_in_the_list),
        cmocka_unit_test(a_copy_repeats_its_symbols_in_order),
        cmocka_unit_test(parity_is_that_of_its_bits),
        cmocka_unit_test(a_needle_is_asked_for_at_the_end),
        cmocka_unit_test(a_needle_lies_in_a_haystack_of_any_length),
        cmocka_unit_test(a_shard_holds_the_samples_and_their_mask),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
