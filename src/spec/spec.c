/* Layers of settings; later ones win: defaults, preset, file, command line. Then zeros that mean "the value
 * of another key" are resolved, and everything is checked. */
#include "spec/spec.h"
#include "base/io.h"
#include "spec/keys.h"
#include "spec/ramp.h"
#include "spec/spec_int.h"
#include "spec/spec_yaml.h"

#include <stdlib.h>
#include <string.h>

void spec_origin_free(struct spec_origin *o)
{
    free(o);
}

bool spec_origin_given(const struct spec_origin *o, const char *section, const char *name)
{
    const int row = key_find(section, name);
    CHECK(row >= 0, "there is no key %s.%s", section, name);
    return o->from[row] == FROM_FILE || o->from[row] == FROM_COMMAND_LINE;
}

const char *spec_origin_text(const struct spec_origin *o, int row, char buf[SPEC_ORIGIN_TEXT])
{
    const char *const fixed[] = {
        [FROM_DEFAULT] = "default", [FROM_COMMAND_LINE] = "command line", [FROM_KEYS] = "derived"};
    switch (o->from[row]) {
    case FROM_PRESET: snprintf(buf, SPEC_ORIGIN_TEXT, "preset %s", o->preset); break;
    case FROM_FILE:
        snprintf(buf, SPEC_ORIGIN_TEXT, "%s:%d:%d", o->path, o->place[row].line, o->place[row].column);
        break;
    default: snprintf(buf, SPEC_ORIGIN_TEXT, "%s", fixed[o->from[row]]);
    }
    return buf;
}

static status take_override(struct spec_layer *layer, const char *word)
{
    char section[KEY_NAME], name[KEY_NAME], why[SPEC_TEXT], hint[KEY_HINT];
    const char *body = strncmp(word, "--", 2) == 0 ? word + 2 : word;
    const char *eq = strchr(body, '='), *dot = strchr(body, '.');
    if (!eq)
        return FAIL(STATUS_CONFIG, "command line: '%.100s' has no value; write --section.key=value", word);
    if (!dot || dot > eq || dot - body >= KEY_NAME || eq - dot > KEY_NAME) {
        snprintf(name, sizeof name, "%.*s", (int)(eq - body < KEY_NAME ? eq - body : KEY_NAME - 1), body);
        return FAIL(STATUS_CONFIG, "command line: '%s' is not section.key%s", name,
                    key_suggest(hint, NULL, name));
    }
    snprintf(section, sizeof section, "%.*s", (int)(dot - body), body);
    snprintf(name, sizeof name, "%.*s", (int)(eq - dot - 1), dot + 1);
    if (strcmp(section, "model") == 0 && strcmp(name, "preset") == 0) {
        if (strlen(eq + 1) >= SPEC_PRESET_TEXT)
            return FAIL(STATUS_CONFIG, "command line: '%.40s...' is no preset", eq + 1);
        memcpy(layer->preset, eq + 1, strlen(eq + 1) + 1);
        layer->preset_place.line = 1;
        return STATUS_OK;
    }
    int row = key_find(section, name);
    if (row < 0)
        return FAIL(STATUS_CONFIG, "command line: unknown key '%s.%s'%s", section, name,
                    key_suggest(hint, section, name));
    if (!key_set(key_row(row), &layer->spec, eq + 1, why))
        return FAIL(STATUS_CONFIG, "command line: %s.%s: %s", section, name, why);
    layer->place[row].line = 1;
    return STATUS_OK;
}

void model_spec_resolve(struct model_spec *m)
{
    if (m->head_count_kv == 0) m->head_count_kv = m->head_count;
    if (m->head_dim == 0 && m->head_count > 0 && m->hidden_size % m->head_count == 0)
        m->head_dim = m->hidden_size / m->head_count;
}

void spec_resolve(struct spec *s)
{
    struct run_spec *r = &s->run;
    model_spec_resolve(&s->model);
    if (r->train_sequence_length == 0) r->train_sequence_length = s->model.context_length;
    int64_t tokens;
    if (r->train_batch_tokens == 0 &&
        !__builtin_mul_overflow(r->train_micro_batch, r->train_sequence_length, &tokens))
        r->train_batch_tokens = tokens;
    if (r->run_dir[0] == 0 && r->run_name[0] != 0) {
        int n = snprintf(r->run_dir, sizeof r->run_dir, "runs/%s", r->run_name);
        if (n >= (int)sizeof r->run_dir) r->run_dir[0] = 0; /* spec_check refuses such a name */
    }
}

int64_t spec_step_count(const struct spec *s)
{
    const struct run_spec *r = &s->run;
    if (r->train_steps > 0) return r->train_steps;
    CHECK(r->train_batch_tokens > 0, "the spec is not resolved");
    const struct ramp batch = ramp_batch(r);
    return ramp_steps(&batch, r->train_tokens);
}

double spec_token_count(const struct spec *s)
{
    const struct ramp batch = ramp_batch(&s->run);
    const int64_t tokens = ramp_tokens(&batch, spec_step_count(s));
    return tokens < INT64_MAX ? (double)tokens
                              : (double)spec_step_count(s) * (double)s->run.train_batch_tokens;
}

/* "dir/kjv.yaml" -> "kjv" */
static void name_from_path(char name[SPEC_TEXT], const char *path)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    const char *dot = strrchr(base, '.');
    snprintf(name, SPEC_TEXT, "%.*s", (int)(dot && dot != base ? dot - base : (ptrdiff_t)strlen(base)), base);
}

static void merge_layer(struct spec *s, struct spec_origin *o, const struct spec_layer *layer,
                        enum spec_from from)
{
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        if (!layer->place[i].line) continue;
        key_copy(key_row(i), s, &layer->spec);
        o->from[i] = from;
        o->place[i] = layer->place[i];
    }
}

/* The file's section returns to the defaults. */
static void forget_section(struct spec *s, struct spec_origin *o, const char *section)
{
    struct spec plain;
    run_spec_default(&plain.run);
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        if (strcmp(key_row(i)->section, section) != 0 || o->from[i] != FROM_FILE) continue;
        key_copy(key_row(i), s, &plain);
        o->from[i] = FROM_COMMAND_LINE;
    }
}

/* Two keys set the length of a run, names stand for directories, and keys of FP8 and NVFP4 do nothing in another precision: the
 * command line's key replaces the file's. */
static void replace_pairs(struct spec *s, struct spec_origin *o, const struct spec_layer *command)
{
    bool steps = command->place[KEY_AT_train_steps].line, tokens = command->place[KEY_AT_train_tokens].line;
    if (steps && !tokens) s->run.train_tokens = 0, o->from[KEY_AT_train_tokens] = FROM_COMMAND_LINE;
    if (tokens && !steps) s->run.train_steps = 0, o->from[KEY_AT_train_steps] = FROM_COMMAND_LINE;
    if (command->place[KEY_AT_run_name].line && !command->place[KEY_AT_run_dir].line) s->run.run_dir[0] = 0;
    if (!command->place[KEY_AT_train_precision].line) return;
    const struct precision_keys keys = precision_keys((enum precision)s->run.train_precision);
    if (!keys.fp8) forget_section(s, o, "fp8");
    if (!keys.nvfp4) forget_section(s, o, "nvfp4");
}

static status apply_preset(struct spec *s, struct spec_origin *o, const struct spec_layer *file,
                           const struct spec_layer *command)
{
    const struct spec_layer *layer = command->preset_place.line ? command : file;
    if (!layer->preset_place.line) return STATUS_OK;
    struct spec plain = *s;
    status st = preset_apply(layer->preset, &s->model);
    if (st != STATUS_OK) {
        if (layer == command) return status_wrap(st, "command line");
        return status_wrap(st, "%s:%d:%d", o->path, file->preset_place.line, file->preset_place.column);
    }
    snprintf(o->preset, sizeof o->preset, "%s", layer->preset);
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (!key_equal(key_row(i), s, &plain)) o->from[i] = FROM_PRESET;
    return STATUS_OK;
}

/* A resolved config names every key, so a preset on the command line would change nothing. */
static status check_preset_used(const struct spec_origin *o, const struct spec_layer *command)
{
    if (!command->preset_place.line) return STATUS_OK;
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (o->from[i] == FROM_PRESET) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "command line: model.preset=%s changes nothing, because all its keys are set again",
                command->preset);
}

/* A value out of range is reported at the place where it was set. */
static status check_ranges(const struct spec *s, const struct spec_origin *o)
{
    char why[SPEC_TEXT], full[KEY_NAME], from[SPEC_ORIGIN_TEXT];
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        if (o->from[i] != FROM_FILE && o->from[i] != FROM_COMMAND_LINE) continue;
        if (key_in_range(key_row(i), s, why)) continue;
        return FAIL(STATUS_CONFIG, "%s: %s: %s", spec_origin_text(o, i, from),
                    key_full_name(full, key_row(i)), why);
    }
    return STATUS_OK;
}

struct loading {
    struct spec_layer file, command;
    struct spec_place file_place[KEY_AT_COUNT], command_place[KEY_AT_COUNT];
    struct spec spec;
    bool open; /* the run need have no length */
};

static status merge(struct loading *l, struct spec_origin *o, const char *name)
{
    struct spec *s = &l->spec;
    model_spec_default(&s->model);
    run_spec_default(&s->run);
    TRY(apply_preset(s, o, &l->file, &l->command));
    merge_layer(s, o, &l->file, FROM_FILE);
    merge_layer(s, o, &l->command, FROM_COMMAND_LINE);
    replace_pairs(s, o, &l->command);
    TRY(check_preset_used(o, &l->command));
    TRY(check_ranges(s, o));
    if (l->open && s->run.train_steps == 0 && s->run.train_tokens == 0) s->run.train_steps = SPEC_ENDLESS;
    struct spec given = *s;
    if (s->run.run_name[0] == 0 && name) name_from_path(s->run.run_name, o->path);
    spec_resolve(s);
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (!key_equal(key_row(i), s, &given)) o->from[i] = FROM_KEYS;
    status st = spec_check(s);
    return st == STATUS_OK || !name ? st : status_wrap(st, "%s", name);
}

static status load(struct spec *s, const char *name, const char *text, size_t bytes, int override_count,
                   char **overrides, bool open, struct spec_origin **origin)
{
    status st = STATUS_OK;
    struct loading *l = calloc(1, sizeof *l);
    struct spec_origin *o = calloc(1, sizeof *o);
    if (!l || !o) {
        st = FAIL(STATUS_OUT_OF_MEMORY, "no memory to read a spec");
        goto out;
    }
    l->open = open;
    l->file.place = l->file_place;
    l->command.place = l->command_place;
    snprintf(o->path, sizeof o->path, "%s", name ? name : "");
    key_text_clean(o->path);
    if (text) TRY_OUT(spec_yaml_parse(&l->file, name ? name : "", text, bytes));
    for (int i = 0; i < override_count; i++) TRY_OUT(take_override(&l->command, overrides[i]));
    TRY_OUT(merge(l, o, name));
    *s = l->spec;
    if (origin) *origin = o, o = NULL;
out:
    free(l);
    free(o);
    return st;
}

status spec_load_text(struct spec *s, const char *name, const char *text, size_t bytes, int override_count,
                      char **overrides, struct spec_origin **origin)
{
    return load(s, name, text, bytes, override_count, overrides, false, origin);
}

status spec_load_open(struct spec *s, const char *path, int override_count, char **overrides,
                      struct spec_origin **origin)
{
    char *text = NULL;
    size_t bytes = 0;
    if (path) TRY(io_read_file(path, SPEC_FILE_BYTES_MAX, &text, &bytes));
    status st = load(s, path, text, bytes, override_count, overrides, true, origin);
    free(text);
    return st;
}

status spec_load(struct spec *s, const char *path, int override_count, char **overrides,
                 struct spec_origin **origin)
{
    char *text = NULL;
    size_t bytes = 0;
    if (path) TRY(io_read_file(path, SPEC_FILE_BYTES_MAX, &text, &bytes));
    status st = spec_load_text(s, path, text, bytes, override_count, overrides, origin);
    free(text);
    return st;
}
