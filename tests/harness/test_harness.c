/* Goal: prompts, preprocessing and metrics are those of lm-evaluation-harness 0.4.9. Method: rows in the published formats against the
 * texts that its code makes of them (tools/check_harness.py compares whole evaluations), then metrics of given log-likelihoods. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "harness/harness.h"
#include "temp.h"

static void ok(status st)
{
    if (st != STATUS_OK) fail_msg("%s (%s)", status_message(), status_where());
}

static const char *file_of(const char *name, const char *text)
{
    const char *path = temp_path(name);
    temp_write(path, text, strlen(text));
    return path;
}

static struct harness_task task_of(const char *name, const char *file, const char *text)
{
    struct harness_task t;
    ok(harness_read(&t, name, file_of(file, text), 0));
    return t;
}

static void refused(const char *name, const char *file, const char *text, const char *words)
{
    struct harness_task t;
    assert_int_equal(harness_read(&t, name, file_of(file, text), 0), STATUS_DATA);
    if (!strstr(status_message(), words)) fail_msg("'%s' does not say '%s'", status_message(), words);
    assert_null(strchr(status_message(), '\n'));
    harness_free(&t);
}

static void expect_pair(const struct harness_task *t, int i, const char *context, const char *continuation,
                        int64_t length)
{
    assert_string_equal(t->pair[i].context, context);
    assert_string_equal(t->pair[i].continuation, continuation);
    assert_int_equal(t->pair[i].length, length);
}

static void hellaswag_is_cleaned_as_the_harness_does(void **state)
{
    (void)state;
    struct harness_task t = task_of("hellaswag", "h.jsonl",
                                    "{\"ind\": 24, \"activity_label\": \"Roof\", \"ctx_a\": \"A man [header] "
                                    "sits  on a roof.\", \"ctx_b\": \"\\u00e9T\\u00c9 HE\", "
                                    "\"label\": 3, \"endings\": [\" is [substeps] up. \", \"b [title] c\", "
                                    "\"x   y\", \"\\u00fcber [no\\nmatch]\"]}\n");
    assert_int_equal(t.item_count, 1);
    assert_int_equal(t.items[0].gold, 3);
    const char *context = "Roof: A man sits on a roof. \xc3\x89t\xc3\xa9 he";
    expect_pair(&t, 0, context, " is up.", 6);
    expect_pair(&t, 1, context, " b. c", 4);
    expect_pair(&t, 2, context, " x  y", 4);
    expect_pair(&t, 3, context,
                " \xc3\xbc"
                "ber [no\nmatch]",
                15);
    harness_free(&t);
}

static void arc_is_read_in_both_formats(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "{\"id\": \"1\", \"question\": {\"stem\": \"Why?\", \"choices\": [{\"text\": \"so\", \"label\": "
        "\"1\"}, {\"text\": \"no\", "
        "\"label\": \"2\"}, {\"text\": \"yes\", \"label\": \"3\"}]}, \"answerKey\": \"3\"}\n",
        "\n{\"id\": \"1\", \"question\": \"Why?\", \"choices\": {\"text\": [\"so\", \"no\", \"yes\"], "
        "\"label\": [\"A\", \"B\", \"C\"]}, "
        "\"answerKey\": \"C\"}"};
    for (int i = 0; i < 2; i++) {
        struct harness_task t = task_of("arc_easy", "a.jsonl", rows[i]);
        assert_int_equal(t.pair_count, 3);
        assert_int_equal(t.items[0].gold, 2);
        assert_int_equal(t.items[0].line, i + 1);
        expect_pair(&t, 2, "Question: Why?\nAnswer:", " yes", 3);
        harness_free(&t);
    }
    refused("arc_easy", "a.jsonl",
            "{\"question\": \"Why?\", \"choices\": {\"text\": [\"so\"], \"label\": [\"A\"]}, \"answerKey\": "
            "\"E\"}",
            "a.jsonl:1 is no row of arc_easy: no choice has the label 'E'");
}

static void piqa_has_its_labels_beside_it_or_in_its_rows(void **state)
{
    (void)state;
    const char *rows = "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"bc\"}\n{\"goal\": \"h\", \"sol1\": "
                       "\"d\", \"sol2\": \"e\"}\n";
    refused("piqa", "bare.jsonl", rows, "bare.jsonl:1 is no row of piqa: there is no 'label'");
    file_of("valid-labels.lst", "1\n0\n");
    struct harness_task t = task_of("piqa", "valid.jsonl", rows);
    assert_int_equal(t.item_count, 2);
    assert_int_equal(t.items[0].gold, 1);
    assert_int_equal(t.items[1].gold, 0);
    expect_pair(&t, 1, "Question: g\nAnswer:", " bc", 2);
    harness_free(&t);
    refused("piqa", "one.jsonl", "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": 2}",
            "'label' names none of 2 choices");
}

static void winogrande_scores_the_rest_behind_each_option(void **state)
{
    (void)state;
    struct harness_task t = task_of("winogrande", "w.jsonl",
                                    "{\"qID\": \"1\", \"sentence\": \"Ian ate _ 's soup _ . \", \"option1\": "
                                    "\"Ann\", \"option2\": \"Bo\", "
                                    "\"answer\": \"2\"}\n");
    assert_int_equal(t.items[0].gold, 1);
    expect_pair(&t, 0, "Ian ate Ann", " 's soup _ .", 11);
    expect_pair(&t, 1, "Ian ate Bo", " 's soup _ .", 10);
    harness_free(&t);
    refused("winogrande", "w.jsonl",
            "{\"sentence\": \"no\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"1\"}",
            "has no gap");
}

static void mmlu_names_its_subject(void **state)
{
    (void)state;
    const char *context =
        "The following are multiple choice questions (with answers) about high school biology.\n\n"
        "He said \"go\",\nthen?\nA. 1\nB. 2,5\nC. 3\nD. 4\nAnswer:";
    struct harness_task t = task_of("mmlu", "high_school_biology_test.csv",
                                    "\"He said \"\"go\"\",\nthen?\",1,\"2,5\",3,4,B\r\nq,a,b,c,d,A\n");
    assert_int_equal(t.item_count, 2);
    assert_int_equal(t.items[0].gold, 1);
    assert_int_equal(t.items[1].line, 3);
    assert_string_equal(harness_group(&t, 0), "high_school_biology");
    assert_null(harness_group(&t, 1));
    expect_pair(&t, 3, context, " D", 1);
    harness_free(&t);
    t = task_of("mmlu", "m.jsonl",
                "{\"question\": \" He said \\\"go\\\",\\nthen?\\n\", \"subject\": \"high_school_biology\", "
                "\"choices\": [\"1\", \"2,5\", "
                "\"3\", \"4\"], \"answer\": 1}\n");
    expect_pair(&t, 0, context, " A", 1);
    harness_free(&t);
    refused("mmlu", "x_test.csv", "q,a,b,c,A\n",
            "x_test.csv:1 is no row of mmlu: it has not a question, four choices and a letter");
    refused("mmlu", "x_test.csv", "q,a,b,c,d,E\n", "four choices and a letter");
}

static void texts_are_read(void **state)
{
    (void)state;
    struct harness_task t =
        task_of("lambada", "l.jsonl", "{\"text\": \"one two  three\"}\n{\"text\": \"one\"}\n");
    expect_pair(&t, 0, "one two ", " three", 0);
    expect_pair(&t, 1, "", " one", 0);
    harness_free(&t);
    t = task_of("perplexity", "p.jsonl",
                "{\"text\": \" a b\\n\\nc\\u00e9\", \"domain\": \"x\"}\n{\"text\": \"d\", \"meta\": "
                "{\"pile_set_name\": \"y\"}}\n");
    assert_int_equal(t.items[0].words, 4);
    assert_int_equal(t.items[0].bytes, 9);
    assert_string_equal(harness_group(&t, 1), "y");
    harness_free(&t);
    refused("perplexity", "p.jsonl", "{\"text\": 5}", "'text' is no text");
    refused("perplexity", "p.jsonl", "{\"text\": \"a\"}\n{\"text\"\n",
            "p.jsonl:2 is no row of perplexity: not JSON");
    refused("perplexity", "p.jsonl", "[1]\n", "not a JSON object");
    refused("perplexity", "p.jsonl", "\n", "has no rows");
    refused("perplexity", "p.jsonl", "\xff\n", "byte 0 is no UTF-8 text");
    assert_int_equal(harness_read(&t, "hellaswg", "p.jsonl", 0), STATUS_CONFIG);
    assert_int_equal(harness_read(&t, "hellaswag", "/nowhere/p.jsonl", 0), STATUS_IO);
    harness_free(&t);
}

/* Requests of given log-likelihoods, one for each pair. */
static void set_logliks(struct harness_task *t, const double *values, int64_t count)
{
    t->requests = calloc((size_t)count, sizeof *t->requests);
    assert_non_null(t->requests);
    t->request_count = count;
    for (int64_t i = 0; i < count; i++) t->requests[i].loglik = values[i];
    for (int64_t i = 0, at = 0; i < t->item_count; at += t->items[i++].pairs) {
        t->items[i].first_request = at;
        t->items[i].requests = t->items[i].pairs;
    }
}

static void near(double got, double want)
{
    if (!(fabs(got - want) < 1e-12)) fail_msg("%.15g is not %.15g", got, want);
}

static void metrics_are_those_of_the_harness(void **state)
{
    (void)state;
    struct harness_result r;
    struct harness_task t = task_of("arc_easy", "a.jsonl",
                                    "{\"question\": \"a\", \"choices\": {\"text\": [\"long one\", \"ab\"], "
                                    "\"label\": [\"A\", \"B\"]}, \"answerKey\": \"A\"}\n"
                                    "{\"question\": \"b\", \"choices\": {\"text\": [\"c\", \"d\"], "
                                    "\"label\": [\"A\", \"B\"]}, \"answerKey\": \"B\"}\n"
                                    "{\"question\": \"c\", \"choices\": {\"text\": [\"c\", \"d\"], "
                                    "\"label\": [\"A\", \"B\"]}, \"answerKey\": \"A\"}\n");
    set_logliks(&t, (const double[]){-4, -3, -1, -2, -2, -2},
                6); /* wrong, but right per character; wrong; the first of equals */
    harness_judge(&t, NULL, &r);
    assert_int_equal(r.items, 3);
    assert_int_equal(r.count, 2);
    near(r.metrics[0].value, 1.0 / 3);
    near(r.metrics[0].stderr_, sqrt((1.0 / 9 + 1.0 / 9 + 4.0 / 9) / 2 / 3));
    near(r.metrics[1].value, 2.0 / 3);
    harness_free(&t);
    t = task_of("lambada", "l.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c d\"}\n");
    set_logliks(&t, (const double[]){-1, -3}, 2);
    t.requests[1].greedy = true;
    harness_judge(&t, NULL, &r);
    assert_int_equal(r.count, 2);
    near(r.metrics[0].value, 0.5);
    near(r.metrics[1].value, exp(2));
    near(r.metrics[1].stderr_, exp(2));
    harness_free(&t);
    t = task_of("perplexity", "p.jsonl",
                "{\"text\": \"ab cd\", \"domain\": \"x\"}\n{\"text\": \"e\", \"domain\": \"y\"}\n");
    set_logliks(&t, (const double[]){-6, -3}, 2);
    harness_judge(&t, NULL, &r);
    near(r.metrics[0].value, exp(3));
    near(r.metrics[1].value, exp(1.5));
    near(r.metrics[2].value, 1.5 / log(2));
    harness_judge(&t, "y", &r);
    assert_int_equal(r.items, 1);
    near(r.metrics[2].value, 3 / log(2));
    harness_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hellaswag_is_cleaned_as_the_harness_does),
        cmocka_unit_test(arc_is_read_in_both_formats),
        cmocka_unit_test(piqa_has_its_labels_beside_it_or_in_its_rows),
        cmocka_unit_test(winogrande_scores_the_rest_behind_each_option),
        cmocka_unit_test(mmlu_names_its_subject),
        cmocka_unit_test(texts_are_read),
        cmocka_unit_test(metrics_are_those_of_the_harness),
    };
    return cmocka_run_group_tests(tests, temp_open, temp_close);
}
