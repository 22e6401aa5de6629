/* The table of verbs and options, and the parser of the command line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/hint.h"
#include "cli/verbs.h"
#include "spec/keys.h"
#include "spec/synonyms.h"

#include <string.h>

/* Every row can be printed, completed and found again. */
static void test_rows(void **state)
{
    (void)state;
    int verbs = 0;
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v), verbs++) {
        assert_ptr_equal(verb_find(v->name), v);
        assert_true(v->text[0] && v->run);
        if (strchr(v->name, ' ')) {
            char group[64];
            snprintf(group, sizeof group, "%.*s", (int)strcspn(v->name, " "), v->name);
            assert_non_null(verb_find(group));
            assert_int_equal(verb_find(group)->form, VERB_GROUP);
            assert_string_equal(verb_of_group(v, verb_find(group)), strchr(v->name, ' ') + 1);
        }
        for (const struct row *r = args_next_option(v, NULL); r; r = args_next_option(v, r)) {
            assert_true(r->name[0] && r->text[0]);
            assert_int_equal(r->type == FLAG_SWITCH, r->arguments[0] == 0);
            for (const struct row *q = args_next_option(v, r); q; q = args_next_option(v, q)) {
                assert_string_not_equal(q->name, r->name);
                assert_true(q->letter == 0 || q->letter != r->letter);
            }
        }
    }
    assert_true(verbs > 20);
}

/* A synonym leads to a key that is there, an option that a verb has, or a command. */
static void test_synonyms(void **state)
{
    (void)state;
#define SYNONYM(words, target, note) target,
    static const char *const targets[] = {
#include "spec/synonyms.def"
    };
#undef SYNONYM
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        const char *t = targets[i], *dot = strchr(t, '.');
        bool found = strcmp(t, "model.preset") == 0 || strncmp(t, "tensorboard ", 12) == 0 ||
                     (strncmp(t, "sbatch ", 7) == 0 && strstr(t, " scripts/slurm_train.sh RUN.yaml")) ||
                     (strncmp(t, "mpirun ", 7) == 0 && strstr(t, " ingot train RUN.yaml"));
        if (strncmp(t, "ingot ", 6) == 0) {
            char both[64];
            snprintf(both, sizeof both, "%s ", t + 6);
            char *end = strchr(both, ' '), *second = strchr(end + 1, ' ');
            if (second)
                *second = 0;
            else
                *end = 0;
            const bool two = verb_find(both) != NULL;
            *end = 0;
            const struct row *v = verb_find(both);
            found = v && (v->form != VERB_GROUP || two);
        }
        for (const struct row *v = verb_next(NULL); v && !found && t[0] == '-'; v = verb_next(v))
            for (const struct row *r = args_next_option(v, NULL); r; r = args_next_option(v, r))
                found = found || strcmp(r->name, t + 2) == 0;
        if (!found && dot) {
            char section[64];
            snprintf(section, sizeof section, "%.*s", (int)(dot - t), t);
            found = key_find(section, dot + 1) >= 0;
        }
        if (!found) fail_msg("synonyms.def: there is no '%s'", t);
    }
    assert_string_equal(synonym_next(NULL, "Learning-Rate")->target, "optim.lr");
    assert_null(synonym_next(NULL, "learning"));
}

struct parsed {
    bool on;
    const char *text;
    int64_t n;
    struct flag_list list;
};
static const struct row table[] = {
    {.kind = ROW_VERB, .name = "v", .arguments = "RUN", .text = "t", .form = VERB_KEYS},
    {.kind = ROW_NOTE, .name = "", .arguments = "", .text = "n"},
    {.kind = ROW_OPTION, .name = "on", .arguments = "", .text = "t", .type = FLAG_SWITCH},
    {.kind = ROW_OPTION, .name = "the-text", .arguments = "T", .text = "t", .type = FLAG_TEXT, .letter = 't'},
    {.kind = ROW_OPTION, .name = "number", .arguments = "N", .text = "t", .type = FLAG_INT, .letter = 'n'},
    {.kind = ROW_OPTION, .name = "list", .arguments = "T", .text = "t", .type = FLAG_LIST},
    {.kind = ROW_VERB, .name = "c", .arguments = "-n N COMMAND", .text = "t", .form = VERB_COMMAND},
    {.kind = ROW_OPTION, .name = "number", .arguments = "N", .text = "t", .type = FLAG_INT, .letter = 'n'},
    {.kind = ROW_END},
};

static status parse(const struct row *verb, struct args *a, struct parsed *p, char **argv)
{
    *p = (struct parsed){0};
    *a = (struct args){.verb = verb, .argv = argv, .hint = hint_option};
    while (argv[a->argc]) a->argc++;
    const struct flag all[] = {FLAG("on", &p->on), FLAG("the-text", &p->text), FLAG("number", &p->n),
                               FLAG("list", &p->list)};
    return args_parse(a, verb == table ? all : all + 2, verb == table ? 4 : 1);
}

static void test_parse(void **state)
{
    (void)state;
    struct args a;
    struct parsed p;
    char *all[] = {"run",
                   "--on",
                   "--the_text=a=b",
                   "-n",
                   "-3",
                   "--list",
                   "x",
                   "--list",
                   "--train.steps",
                   "3",
                   "optim.lr=1e-3",
                   "--data.val=v",
                   "dir/a.b=c",
                   "-",
                   "--",
                   "--on=false",
                   NULL};
    all[7] = "--list=y";
    assert_int_equal(parse(table, &a, &p, all), STATUS_OK);
    assert_true(p.on);
    assert_string_equal(p.text, "a=b");
    assert_int_equal(p.n, -3);
    assert_int_equal(p.list.count, 2);
    assert_string_equal(p.list.items[1], "y");
    const char *const keys[] = {"--train.steps=3", "--optim.lr=1e-3", "--data.val=v"};
    const char *const words[] = {"run", "dir/a.b=c", "-", "--on=false"};
    assert_int_equal(a.key_count, 3);
    for (int i = 0; i < 3; i++) assert_string_equal(a.keys[i], keys[i]);
    assert_int_equal(a.word_count, 4);
    for (int i = 0; i < 4; i++) assert_string_equal(a.words[i], words[i]);
    assert_int_equal(args_words(&a, 1, 3), STATUS_CONFIG);
    assert_string_equal(
        status_message(),
        "'--on=false' is one too many; usage: ingot v RUN [options] [--section.key=value ...]");
    args_free(&a);
    char *command[] = {"-n2", "train", "--number=7", "--", "-h", NULL};
    assert_int_equal(parse(table + 6, &a, &p, command), STATUS_OK);
    assert_int_equal(p.n, 2);
    assert_int_equal(a.word_count, 4);
    assert_string_equal(a.words[1], "--number=7");
    args_free(&a);
}

static void test_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *words[3], *message;
    } rows[] = {
        {{"--onn"}, "unknown option '--onn'; did you mean '--on'?"},
        {{"-q"}, "unknown option '-q'; `ingot help v` lists the options"},
        {{"--lr=2"}, "unknown option '--lr'; did you mean '--optim.lr=2'?"},
        {{"--steps", "9"}, "unknown option '--steps'; did you mean '--train.steps=9'?"},
        {{"--n_layer=3"}, "unknown option '--n_layer'; did you mean '--model.layer_count=3'?"},
        {{"--number"}, "--number has no value; write --number=N"},
        {{"--the-text", "--on"}, "--the-text has no value; write --the-text=T"},
        {{"--train.steps"}, "--train.steps has no value; write --train.steps=VALUE"},
        {{"--number", "many"}, "--number: 'many' is not a whole number (100, 4k, 1e6)"},
        {{"--on=perhaps"}, "--on: 'perhaps' is not true or false"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct args a;
        struct parsed p;
        char words[3][32], *argv[4] = {NULL};
        for (int k = 0; k < 3 && rows[i].words[k]; k++) {
            snprintf(words[k], sizeof words[k], "%s", rows[i].words[k]);
            argv[k] = words[k];
        }
        assert_int_equal(parse(table, &a, &p, argv), STATUS_CONFIG);
        assert_string_equal(status_message(), rows[i].message);
        args_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_synonyms),
                                       cmocka_unit_test(test_parse), cmocka_unit_test(test_mistakes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
