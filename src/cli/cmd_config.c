/* ingot config and ingot presets: print the settings of a run without running it. */
#include "model/param_count.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/names.h"
#include "spec/keys.h"
#include "spec/spec.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TABLE_COLUMNS = 180, SHAPE_COLUMNS = 72 }; /* of the list of presets */
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static void explain_keys(const char *section, int columns)
{
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (section == NULL || strcmp(key_row(i)->section, section) == 0)
            key_explain(stdout, key_row(i), "", columns);
}

/* All keys, or those of a section. */
static status print_keys(const struct args *a, enum keys_form form)
{
    const char *section = a->word_count ? a->words[0] : NULL, *names[KEY_AT_COUNT];
    TRY(args_words(a, 0, 1));
    for (int i = 0; i < KEY_AT_COUNT; i++) names[i] = key_row(i)->section;
    if (section && key_section(section) < 0) {
        const char *near = text_nearest(section, names, KEY_AT_COUNT);
        return FAIL(STATUS_CONFIG,
                    "--keys: '%s' is no section%s%s%s; they are what stands before the dot of a key", section,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'" : "");
    }
    if (form == KEYS_TEXT && isatty(STDOUT_FILENO))
        explain_keys(section,
                     text_columns(STDOUT_FILENO, TABLE_COLUMNS)); /* the table has lines of 400 columns */
    else
        spec_keys_print(stdout, form, section);
    return STATUS_OK;
}

status cmd_config(struct args *a)
{
    bool json = false, keys = false, names = false, markdown = false;
    const struct flag flags[] = {FLAG("json", &json), FLAG("keys", &keys), FLAG("names", &names),
                                 FLAG("markdown", &markdown)};
    TRY(args_parse(a, flags, COUNT(flags)));
    if (a->help) return STATUS_OK;
    if (keys) return print_keys(a, markdown ? KEYS_MARKDOWN : json ? KEYS_JSON : KEYS_TEXT);
    if (names) {
        TRY(args_words(a, 0, 0));
        (json ? names_print_json : names_print_markdown)(stdout);
        return STATUS_OK;
    }
    if (markdown) return FAIL(STATUS_CONFIG, "--markdown goes with --keys");
    TRY(args_words(a, a->key_count == 0, 1));
    const char *path = a->word_count ? a->words[0] : NULL;
    struct spec spec;
    struct spec_origin *origin;
    TRY(spec_load(&spec, path, a->key_count, a->keys, &origin));
    if (json) {
        char *text = spec_dump_json(&spec, origin);
        puts(text);
        free(text);
    } else {
        spec_dump(&spec, origin, stdout);
    }
    spec_origin_free(origin);
    return STATUS_OK;
}

static void print_preset_row(const char *name, int width, const char *text, const struct model_spec *m)
{
    char params[32], vocab[32] = "tokenizer", heads[32];
    if (m->vocab_size) snprintf(vocab, sizeof vocab, "%lld", (long long)m->vocab_size);
    snprintf(heads, sizeof heads, "%lld/%lld x %lld", (long long)m->head_count, (long long)m->head_count_kv,
             (long long)m->head_dim);
    int64_t count = model_param_count(m, m->vocab_size);
    snprintf(params, sizeof params, "%lld%s", (long long)count, m->vocab_size ? "" : " + V x D");
    printf("%-*s %3lld %5lld %6lld  %-12s %9s %7lld  %-16s %s\n", width, name, (long long)m->layer_count,
           (long long)m->hidden_size, (long long)m->ffn_size, heads, vocab, (long long)m->context_length,
           params, text);
}

/* On a terminal that is too narrow for the table: name, shape where there is room, meaning. */
static void print_preset_narrow(const char *name, int width, const char *text, const struct model_spec *m,
                                int columns)
{
    int at = printf("%-*s ", width, name);
    if (columns >= SHAPE_COLUMNS)
        at += printf("%3lld %5lld %8lld  ", (long long)m->layer_count, (long long)m->hidden_size,
                     (long long)m->context_length);
    text_wrap(stdout, at, at, columns, text);
}

static void print_preset_json(int i, const char *name, const char *text, const struct model_spec *m)
{
    printf("%s{\"name\": \"%s\", \"text\": \"%s\", \"layer_count\": %lld, \"hidden_size\": %lld, "
           "\"ffn_size\": %lld, "
           "\"head_count\": %lld, \"head_count_kv\": %lld, \"head_dim\": %lld, \"vocab_size\": %lld, "
           "\"context_length\": "
           "%lld, \"parameters\": %lld}",
           i ? ",\n " : "{\"presets\": [\n ", name, text, (long long)m->layer_count,
           (long long)m->hidden_size, (long long)m->ffn_size, (long long)m->head_count,
           (long long)m->head_count_kv, (long long)m->head_dim, (long long)m->vocab_size,
           (long long)m->context_length, (long long)model_param_count(m, m->vocab_size));
}

static status print_all(bool json)
{
    int width = 0;
    for (int i = 0; i < preset_count(); i++) width = (int)fmax(width, (double)strlen(preset_name(i)));
    const int columns = text_columns(STDOUT_FILENO, TABLE_COLUMNS);
    const bool wide = columns >= TABLE_COLUMNS;
    if (wide && !json)
        printf("%-*s %3s %5s %6s  %-12s %9s %7s  %-16s\n", width, "preset", "L", "D", "F", "heads/kv x d",
               "vocab", "context", "parameters");
    else if (!json && columns >= SHAPE_COLUMNS)
        printf("%-*s %3s %5s %8s\n", width, "preset", "L", "D", "context");
    for (int i = 0; i < preset_count(); i++) {
        struct model_spec m;
        TRY(preset_find(preset_name(i), &m));
        if (json)
            print_preset_json(i, preset_name(i), preset_text(i), &m);
        else if (!wide)
            print_preset_narrow(preset_name(i), width, preset_text(i), &m, columns);
        else
            print_preset_row(preset_name(i), width, preset_text(i), &m);
    }
    if (json) puts("]}");
    return STATUS_OK;
}

status cmd_presets(struct args *a)
{
    bool json = false, all = false;
    const struct flag flags[] = {FLAG("json", &json), FLAG("all", &all)};
    TRY(args_parse(a, flags, COUNT(flags)));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 1));
    if (a->word_count == 0) return print_all(json);
    struct model_spec m;
    TRY(preset_find(a->words[0], &m));
    if (json) {
        char *text = model_spec_dump_json(&m);
        puts(text);
        free(text);
    } else {
        const int left_out = model_spec_dump(&m, all, stdout);
        if (left_out > 0) printf("# %d keys have their defaults: --all prints them\n", left_out);
    }
    return STATUS_OK;
}
