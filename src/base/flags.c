#include "base/flags.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { FLAGS_MAX = 64 };

static void print_flags(const char *usage, const struct flag *flags, int count)
{
    static const char *const kind[] = {
        [FLAG_SWITCH] = "", [FLAG_TEXT] = " TEXT", [FLAG_INT] = " N", [FLAG_REAL] = " X"};
    printf("usage: ingot %s\n", usage);
    for (int i = 0; i < count; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s", flags[i].name, kind[flags[i].type]);
        printf("  %-26s %s\n", left, flags[i].text);
    }
}

static status unknown_flag(const char *word, size_t length, const struct flag *flags, int count)
{
    const char *names[FLAGS_MAX];
    char name[64];
    CHECK(count <= FLAGS_MAX, "%d flags", count);
    for (int i = 0; i < count; i++) names[i] = flags[i].name;
    snprintf(name, sizeof name, "%.*s", (int)(length < 63 ? length : 63), word);
    const char *near = text_nearest(name, names, count);
    return FAIL(STATUS_CONFIG, "unknown option '--%s'%s%s%s; --help lists the options", name,
                near ? "; did you mean '--" : "", near ? near : "", near ? "'" : "");
}

static status flag_set(const struct flag *f, const char *value)
{
    bool good = true;
    switch (f->type) {
    case FLAG_SWITCH: good = text_to_bool(value, f->value); break;
    case FLAG_TEXT: *(const char **)f->value = value; break;
    case FLAG_INT: good = text_to_int(value, f->value); break;
    case FLAG_REAL: good = text_to_real(value, f->value); break;
    }
    static const char *const want[] = {[FLAG_SWITCH] = "true or false",
                                       [FLAG_TEXT] = "text",
                                       [FLAG_INT] = "a whole number",
                                       [FLAG_REAL] = "a number"};
    if (!good) return FAIL(STATUS_CONFIG, "--%s: '%s' is not %s", f->name, value, want[f->type]);
    return STATUS_OK;
}

status flags_parse(const char *usage, const struct flag *flags, int count, int *argc, char **argv,
                   int allow_overrides, int *help)
{
    int kept = 0;
    *help = 0;
    for (int i = 0; i < *argc; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            print_flags(usage, flags, count);
            *help = 1;
            return STATUS_OK;
        }
        if (strcmp(word, "-o") == 0) word = "--out"; /* the one short form: every tool has it */
        if (strcmp(word, "--") == 0) {
            for (i++; i < *argc; i++) argv[kept++] = argv[i];
            break;
        }
        if (strncmp(word, "--", 2) != 0) {
            argv[kept++] = argv[i];
            continue;
        }
        const char *name = word + 2, *eq = strchr(name, '=');
        size_t length = eq ? (size_t)(eq - name) : strlen(name);
        const struct flag *f = NULL;
        for (int k = 0; k < count && !f; k++)
            if (strlen(flags[k].name) == length && strncmp(flags[k].name, name, length) == 0) f = &flags[k];
        if (!f && allow_overrides && memchr(name, '.', length)) {
            argv[kept++] = argv[i];
            continue;
        }
        if (!f) return unknown_flag(name, length, flags, count);
        if (eq)
            TRY(flag_set(f, eq + 1));
        else if (f->type == FLAG_SWITCH)
            *(bool *)f->value = true;
        else if (i + 1 < *argc)
            TRY(flag_set(f, argv[++i]));
        else
            return FAIL(STATUS_CONFIG, "--%s needs a value", f->name);
    }
    *argc = kept;
    return STATUS_OK;
}
