/* Pretokenizers: their names, and what of tokenizer.json they are read from and written to. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "data/pretokenizer.h"
#include "data/split.h"
#include <jansson.h>
#include <string.h>

static void a_named_pretokenizer_survives_json(void **state)
{
    (void)state;
    for (int i = 0; i < SPLIT_COUNT; i++) {
        struct pretokenizer p, back;
        json_t *normalizer, *pre_tokenizer;
        char text[PRETOKENIZER_TEXT_BYTES], text_back[PRETOKENIZER_TEXT_BYTES];
        assert_int_equal(pretokenizer_named(&p, split_table[i].name), STATUS_OK);
        assert_string_equal(pretokenizer_name(&p), split_table[i].name);
        assert_int_equal(pretokenizer_to_json(&p, &normalizer, &pre_tokenizer), STATUS_OK);
        assert_int_equal(pretokenizer_from_json(&back, normalizer, pre_tokenizer), STATUS_OK);
        assert_in_range(pretokenizer_text(&p, text, sizeof text), 1, sizeof text - 1);
        pretokenizer_text(&back, text_back, sizeof text_back);
        assert_string_equal(text, text_back);
        json_decref(normalizer);
        json_decref(pre_tokenizer);
    }
}

static void an_unknown_name_is_refused_with_the_known_ones(void **state)
{
    (void)state;
    struct pretokenizer p;
    assert_int_equal(pretokenizer_named(&p, "lama3"), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "did you mean llama3?"));
    assert_int_equal(pretokenizer_named(&p, ""), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "gpt2, llama3"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_named_pretokenizer_survives_json),
        cmocka_unit_test(an_unknown_name_is_refused_with_the_known_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
