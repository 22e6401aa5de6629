/* ingot config and ingot presets: print the settings of a run without running it. */
#include "model/param_count.h"
#include "base/text.h"
#include "cli/cli.h"
#include "spec/spec.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* The one word that is not an override, wherever it stands; NULL when there is none. */
static status take_path(int *argc, char **argv, const char *usage, const char **path)
{
    int kept = 0;
    *path = NULL;
    for (int i = 0; i < *argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0) {
            argv[kept++] = argv[i];
        } else {
            if (*path)
                return FAIL(STATUS_CONFIG, "%s and %s: one file at a time; usage: ingot %s", *path, argv[i],
                            usage);
            *path = argv[i];
        }
    }
    *argc = kept;
    return STATUS_OK;
}

status cmd_config(int argc, char **argv)
{
    bool json = false, keys = false, markdown = false;
    const struct flag flags[] = {
        {"json", FLAG_SWITCH, &json, "one JSON object: value and origin of every key"},
        {"keys", FLAG_SWITCH, &keys, "every key with default, unit, range and meaning"},
        {"markdown", FLAG_SWITCH, &markdown, "with --keys: the tables of docs/CONFIG.md"},
    };
    const char *usage =
        "config [RUN.yaml] [--section.key=value ...] [--json]   |   config --keys [--markdown]";
    int help;
    TRY(flags_parse(usage, flags, COUNT(flags), &argc, argv, 1, &help));
    if (help) return STATUS_OK;
    if (keys) {
        spec_keys_print(stdout, markdown ? KEYS_MARKDOWN : KEYS_TEXT);
        return STATUS_OK;
    }
    if (markdown) return FAIL(STATUS_CONFIG, "--markdown goes with --keys; usage: ingot %s", usage);
    const char *path;
    TRY(take_path(&argc, argv, usage, &path));
    if (!path && argc == 0) return FAIL(STATUS_CONFIG, "usage: ingot %s", usage);
    struct spec spec;
    struct spec_origin *origin;
    TRY(spec_load(&spec, path, argc, argv, &origin));
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

static void print_preset_row(const char *name, const char *text, const struct model_spec *m)
{
    char params[32], vocab[32] = "tokenizer", heads[32];
    if (m->vocab_size) snprintf(vocab, sizeof vocab, "%lld", (long long)m->vocab_size);
    snprintf(heads, sizeof heads, "%lld/%lld x %lld", (long long)m->head_count, (long long)m->head_count_kv,
             (long long)m->head_dim);
    int64_t count = model_param_count(m, m->vocab_size);
    snprintf(params, sizeof params, "%lld%s", (long long)count, m->vocab_size ? "" : " + V x D");
    printf("%-10s %3lld %5lld %6lld  %-11s %9s %7lld  %-16s %s\n", name, (long long)m->layer_count,
           (long long)m->hidden_size, (long long)m->ffn_size, heads, vocab, (long long)m->context_length,
           params, text);
}

static void print_preset_json(int i, const char *name, const char *text, const struct model_spec *m)
{
    printf("%s{\"name\": \"%s\", \"text\": \"%s\", \"layer_count\": %lld, \"hidden_size\": %lld, "
           "\"ffn_size\": %lld, "
           "\"head_count\": %lld, \"head_count_kv\": %lld, \"head_dim\": %lld, \"vocab_size\": %lld, "
           "\"context_length\": "
           "%lld, \"parameters\": %lld}",
           i ? ",\n " : "[", name, text, (long long)m->layer_count, (long long)m->hidden_size,
           (long long)m->ffn_size, (long long)m->head_count, (long long)m->head_count_kv,
           (long long)m->head_dim, (long long)m->vocab_size, (long long)m->context_length,
           (long long)model_param_count(m, m->vocab_size));
}

static status print_all(bool json)
{
    if (!json)
        printf("%-10s %3s %5s %6s  %-11s %9s %7s  %-16s\n", "preset", "L", "D", "F", "heads/kv x d", "vocab",
               "context", "parameters");
    for (int i = 0; i < preset_count(); i++) {
        struct model_spec m;
        TRY(preset_find(preset_name(i), &m));
        if (json)
            print_preset_json(i, preset_name(i), preset_text(i), &m);
        else
            print_preset_row(preset_name(i), preset_text(i), &m);
    }
    if (json) puts("]");
    return STATUS_OK;
}

status cmd_presets(int argc, char **argv)
{
    bool json = false;
    const struct flag flags[] = {{"json", FLAG_SWITCH, &json, "JSON instead of a table"}};
    const char *usage = "presets [NAME] [--json]";
    int help;
    TRY(flags_parse(usage, flags, COUNT(flags), &argc, argv, 0, &help));
    if (help) return STATUS_OK;
    if (argc == 0) return print_all(json);
    if (argc > 1) return FAIL(STATUS_CONFIG, "usage: ingot %s", usage);
    struct model_spec m;
    TRY(preset_find(argv[0], &m));
    if (json) {
        char *text = model_spec_dump_json(&m);
        puts(text);
        free(text);
    } else {
        model_spec_dump(&m, stdout);
    }
    return STATUS_OK;
}
