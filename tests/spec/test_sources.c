/* The list of sources in data.train: its grammar in YAML and on the command line, its canonical form, its mistakes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "spec/sources.h"

#include <stdlib.h>
#include <string.h>

#define REST "\nmodel: {preset: nano}\ntrain: {steps: 10}\n"

static status load(struct spec *s, const char *data, int count, char **words)
{
    char text[4096];
    snprintf(text, sizeof text, "%s" REST, data);
    return spec_load_text(s, "run.yaml", text, strlen(text), count, words, NULL);
}

static void expect_error(const char *data, const char *message)
{
    struct spec s;
    assert_int_equal(load(&s, data, 0, NULL), STATUS_CONFIG);
    assert_string_equal(status_message(), message);
}

static void a_list_keeps_one_canonical_form_however_it_is_written(void **state)
{
    (void)state;
    static const char want[] =
        "[{\"name\": \"web\", \"path\": \"data/web_train_*.bin\", \"weights\": [[0, 0.9], [0.8, 0.5]]}, "
        "{\"name\": \"math_train\", \"path\": \"data/math_train_*.bin\", \"weight\": 0.1, \"epochs_max\": "
        "4}]";
    struct spec flow, block, command, again;
    assert_int_equal(load(&flow,
                          "data: {train: [{path: data/web_train_*.bin, name: web, weights: [[0, .9], [0.80, "
                          "0.5]]}, {epochs_max: 4, weight: 1e-1, path: 'data/math_train_*.bin'}]}",
                          0, NULL),
                     STATUS_OK);
    assert_string_equal(flow.run.data_train, want);
    assert_int_equal(
        load(&block,
             "data:\n  train:\n    - path: data/web_train_*.bin\n      name: web\n      weights:\n"
             "        - [0, 0.9]\n        - [0.8, 0.5]\n"
             "    - {path: data/math_train_*.bin, weight: 0.1, epochs_max: 4}\n  packing: best_fit",
             0, NULL),
        STATUS_OK);
    assert_string_equal(block.run.data_train, want);
    assert_int_equal(block.run.data_packing, PACKING_BEST_FIT);
    char word[512];
    char *words[] = {word};
    snprintf(word, sizeof word, "--data.train=%s", want);
    assert_int_equal(load(&command, "data: {train: x.bin}", 1, words), STATUS_OK);
    assert_string_equal(command.run.data_train, want);
    assert_int_equal(spec_frozen_hash(&flow), spec_frozen_hash(&command));

    char *text = spec_dump_text(&flow);
    assert_int_equal(spec_load_text(&again, "dump.yaml", text, strlen(text), 0, NULL, NULL), STATUS_OK);
    assert_int_equal(spec_diff(&flow, &again, stdout), 0);
    free(text);
}

static void a_list_is_read_as_it_is_written(void **state)
{
    (void)state;
    struct sources *s = malloc(sizeof *s);
    char why[SPEC_TEXT];
    assert_true(
        sources_read(s,
                     "[{path: d/a_*.bin, weights: [[0, 1], [10B, 2], [2e10, 0]], epochs_max: 1.5}, {path: b, "
                     "name: \"\\u00e9\", weight: 3}]",
                     why));
    assert_true(s->list);
    assert_int_equal(s->count, 2);
    assert_string_equal(s->list_of[0].name, "a");
    assert_string_equal(s->list_of[0].path, "d/a_*.bin");
    assert_int_equal(s->list_of[0].point_count, 3);
    assert_true(s->list_of[0].points[1].at == 1e10 && s->list_of[0].points[2].at == 2e10);
    assert_true(s->list_of[0].points[2].weight == 0 && s->list_of[0].epochs_max == 1.5);
    assert_string_equal(s->list_of[1].name, "\xc3\xa9");
    assert_int_equal(s->list_of[1].point_count, 1);
    assert_true(s->list_of[1].points[0].weight == 3 && s->list_of[1].epochs_max == 0);
    assert_false(sources_relative(&s->list_of[0]));
    assert_false(sources_any_relative("[{path: a, weight: 1}]"));
    assert_true(sources_any_relative("[{path: a, weight: 1}, {path: b, weights: [[0, 1], [1, 0.5]]}]"));

    /* Everything else is a pattern, also one that begins with a bracket. */
    assert_true(sources_read(s, "[ab]_train_*.bin", why));
    assert_false(s->list);
    assert_int_equal(s->count, 1);
    assert_string_equal(s->list_of[0].path, "[ab]_train_*.bin");
    assert_int_equal(s->list_of[0].point_count, 0);
    free(s);
}

static void mistakes_are_named_where_they_stand(void **state)
{
    (void)state;
    expect_error("data: {train: []}", "run.yaml:1:16: data.train: the list of sources is empty");
    expect_error("data: {train: [a.bin]}",
                 "run.yaml:1:16: data.train: 'a.bin': a source is a mapping: {path: a.bin, weight: 1}");
    expect_error("data: {train: [{path: a, wieght: 1}]}",
                 "run.yaml:1:26: data.train: a source has no key 'wieght' (did you mean 'weight'?); its keys "
                 "are path, "
                 "name, weight, weights, epochs_max");
    expect_error("data: {train: [{weight: 1}]}", "run.yaml:1:26: data.train: source 1 has no path");
    expect_error("data: {train: [{path: a, path: b}]}",
                 "run.yaml:1:26: data.train: 'path' is given twice for source 1");
    expect_error("data: {train: [{path: a, weight: -1}]}",
                 "run.yaml:1:34: data.train: weight: -1; weights are 0 or more");
    expect_error("data: {train: [{path: a, weight: many}]}",
                 "run.yaml:1:34: data.train: weight: 'many' is not a number");
    expect_error("data: {train: [{path: a, weight: 0}]}", "run.yaml:1:36: data.train: all weights are 0");
    expect_error("data: {train: [{path: a, epochs_max: 0}]}",
                 "run.yaml:1:38: data.train: epochs_max: 0 is not above 0; leave it out for no limit");
    expect_error("data: {train: [{path: a, weight: 1}, {path: b}]}",
                 "run.yaml:1:46: data.train: 'a' has a weight, 'b' has no: give all sources a weight, or "
                 "none (then it "
                 "is their size)");
    expect_error("data: {train: [{path: x/a}, {path: y/a}]}",
                 "run.yaml:1:39: data.train: two sources are named 'a'; give one of them another name");
    expect_error(
        "data: {train: [{path: a, weights: 0.5}]}",
        "run.yaml:1:35: data.train: weights is a list of points [at, weight]; a constant is weight: 0.5");
    expect_error("data: {train: [{path: a, weights: [[0, 1], [0, 2]]}]}",
                 "run.yaml:1:50: data.train: weights: the point at 0 comes after that at 0; points ascend");
    expect_error("data: {train: [{path: a, weights: [[0]]}]}",
                 "run.yaml:1:38: data.train: weights: a point is two numbers, [at, weight]");
    expect_error("data: {train: [{path: a, weights: [0, 1]}]}",
                 "run.yaml:1:36: data.train: weights: '0': a point is two numbers, [at, weight]");
    expect_error(
        "data: {train: [{path: a, weights: [[-1, 1]]}]}",
        "run.yaml:1:43: data.train: weights: a point at -1; points are tokens of the run, or parts of it up "
        "to 1");
    expect_error(
        "data: {train: [{path: a, weight: 1, weights: [[0, 1]]}]}",
        "run.yaml:1:37: data.train: weight and weights are both given for source 1; weights is for a "
        "schedule");
    expect_error(
        "data: {train: [{path: &x a}]}",
        "run.yaml:1:23: data.train: anchors (&x) and tags (!x) are not part of a spec; write the value "
        "itself");
    expect_error("data: {train: [{path: {a: b}}]}",
                 "run.yaml:1:23: data.train: a mapping stands where a value of a source belongs");
    expect_error("data: {val: [a]}", "run.yaml:1:13: data.val takes one value, not a list");
    expect_error("data: [a]", "run.yaml:1:7: a list stands where a word belongs");

    expect_error("data: {train: a.bin, weights: step}",
                 "run.yaml: data.weights does nothing without a list of sources in data.train");

    struct spec s;
    char *words[] = {"data.train=[{path: a, weight: x}]"}, *open[] = {"data.train=[{path: a"};
    assert_int_equal(load(&s, "", 1, words), STATUS_CONFIG);
    assert_string_equal(status_message(), "command line: data.train: weight: 'x' is not a number");
    assert_int_equal(load(&s, "", 1, open), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "command line: data.train: YAML:"));
    char *behind[] = {"data.train=[{path: a}] b"};
    assert_int_equal(load(&s, "", 1, behind), STATUS_CONFIG);
}

/* data.train=[{path: PREFIX0}, {path: PREFIX1}, ...] */
static int write_list(char *word, int count, const char *prefix)
{
    FILE *f = fmemopen(word, 1 << 20, "w");
    assert_non_null(f);
    fputs("data.train=[", f);
    for (int i = 0; i < count; i++) fprintf(f, "%s{path: %sx%d, name: n%d}", i ? ", " : "", prefix, i, i);
    fputs("]", f);
    return fclose(f) == 0;
}

static void a_list_has_limits(void **state)
{
    (void)state;
    struct spec s;
    char *word = malloc(1 << 20), *words[] = {word};
    for (int count = SOURCES_MAX; count <= SOURCES_MAX + 1; count++) {
        int n = write_list(word, count, "");
        assert_true(n > 0);
        assert_int_equal(load(&s, "", 1, words), count == SOURCES_MAX ? STATUS_OK : STATUS_CONFIG);
    }
    assert_non_null(strstr(status_message(), "more than 64 sources"));
    char path[400];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = 0;
    write_list(word, SOURCES_MAX, path);
    assert_int_equal(load(&s, "", 1, words), STATUS_CONFIG);
    assert_non_null(strstr(status_message(), "the list of sources is longer than 16383 bytes"));
    free(word);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_keeps_one_canonical_form_however_it_is_written),
        cmocka_unit_test(a_list_is_read_as_it_is_written),
        cmocka_unit_test(mistakes_are_named_where_they_stand),
        cmocka_unit_test(a_list_has_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
