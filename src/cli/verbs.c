#include "cli/verbs.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/hint.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS = 100 }; /* without a terminal */

static const struct row rows[] = {
#define VERB(word, function, shape, words, meaning)                                                          \
    {.kind = ROW_VERB,                                                                                       \
     .name = word,                                                                                           \
     .arguments = words,                                                                                     \
     .text = meaning,                                                                                        \
     .form = VERB_##shape,                                                                                   \
     .run = function},
#define NOTE(meaning) {.kind = ROW_NOTE, .name = "", .arguments = "", .text = meaning},
#define OPTION(word, short_form, kind_of_value, value, meaning)                                              \
    {.kind = ROW_OPTION,                                                                                     \
     .name = word,                                                                                           \
     .arguments = value,                                                                                     \
     .text = meaning,                                                                                        \
     .type = FLAG_##kind_of_value,                                                                           \
     .letter = short_form},
#include "cli/verbs.def"
#undef VERB
#undef NOTE
#undef OPTION
    {.kind = ROW_END},
};

const struct row *verb_next(const struct row *at)
{
    for (at = at ? at + 1 : rows; at->kind != ROW_END; at++)
        if (at->kind == ROW_VERB) return at;
    return NULL;
}

const struct row *verb_find(const char *name)
{
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v))
        if (strcmp(v->name, name) == 0) return v;
    return NULL;
}

const char *verb_of_group(const struct row *verb, const struct row *group)
{
    const size_t n = strlen(group->name);
    if (strncmp(verb->name, group->name, n) != 0 || verb->name[n] != ' ') return NULL;
    return verb->name + n + 1;
}

void verbs_print(FILE *out)
{
    const int columns = text_columns(fileno(out), COLUMNS);
    fprintf(out, "ingot %s: pre-training of language models as one program\n\n", INGOT_VERSION);
    int at = fprintf(out, "usage: ingot VERB [arguments]   ");
    text_wrap(out, at, at, columns, "(`ingot help VERB` explains one)");
    at = fprintf(out, "       ingot help WORD          ");
    text_wrap(out, at, at, columns, "(finds keys and options, also by other programs' names: fsdp, lr)");
    fprintf(out, "\n");
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v)) {
        if (strchr(v->name, ' ')) continue;
        fprintf(out, "  %-10s", v->name);
        text_wrap(out, 12, 13, columns, v->text);
    }
    fprintf(out, "\nexit codes:");
#define X(name, code, text) fprintf(out, "\n  %2d  %s", code, text);
    STATUS_LIST(X)
#undef X
    fprintf(out, "\n");
}

/* A verb of two words of which the first alone, or an unknown second one, was given. */
status cmd_group(struct args *a)
{
    const struct row *group = a->verb;
    const char *names[32];
    int count = 0;
    for (const struct row *v = verb_next(NULL); v; v = verb_next(v))
        if (verb_of_group(v, group) && count < 32) names[count++] = verb_of_group(v, group);
    const bool help = a->argc > 0 && (strcmp(a->argv[0], "--help") == 0 || strcmp(a->argv[0], "-h") == 0);
    if (help || a->argc == 0) {
        FILE *out = help ? stdout : stderr;
        const int columns = text_columns(fileno(out), COLUMNS);
        for (const struct row *v = verb_next(NULL); v; v = verb_next(v)) {
            if (!verb_of_group(v, group)) continue;
            args_print_usage(out, v, columns);
            text_wrap(out, 0, 7, columns, v->text);
        }
        return help ? STATUS_OK : STATUS_CONFIG;
    }
    const char *near = text_nearest(a->argv[0], names, count);
    return FAIL(STATUS_CONFIG, "unknown verb '%s %s'%s%s%s%s%s; `ingot help %s` lists them", group->name,
                a->argv[0], near ? "; did you mean '" : "", near ? group->name : "", near ? " " : "",
                near ? near : "", near ? "'" : "", group->name);
}

/* The verb of argv[0], or of argv[0] and argv[1]; *used: how many words. */
static const struct row *verb_of(int argc, char **argv, int *used)
{
    char name[64];
    const struct row *v = verb_find(argv[0]);
    *used = 1;
    if (!v || v->form != VERB_GROUP || argc < 2) return v;
    snprintf(name, sizeof name, "%s %s", argv[0], argv[1]);
    const struct row *two = verb_find(name);
    if (two) *used = 2;
    return two ? two : v;
}

status verb_run(int argc, char **argv)
{
    int used;
    if (argc == 0) {
        verbs_print(stderr);
        return STATUS_CONFIG;
    }
    const struct row *v = verb_of(argc, argv, &used);
    if (v) {
        struct args a = {.verb = v, .argc = argc - used, .argv = argv + used, .hint = hint_option};
        status st = v->run(&a);
        args_free(&a);
        return st;
    }
    const char *names[64];
    int count = 0;
    for (v = verb_next(NULL); v; v = verb_next(v))
        if (!strchr(v->name, ' ') && count < 64) names[count++] = v->name;
    char hint[256];
    if (hint_verb(hint, sizeof hint, argv[0]))
        return FAIL(STATUS_CONFIG, "unknown verb '%s'; did you mean %s?", argv[0], hint);
    const char *near = text_nearest(argv[0], names, count);
    return FAIL(STATUS_CONFIG, "unknown verb '%s'%s%s%s; `ingot help` lists them", argv[0],
                near ? "; did you mean '" : "", near ? near : "", near ? "'" : "");
}
