#include "spec/spec.h"
#include "base/memory.h"
#include "base/text.h"
#include "spec/spec_int.h"

#include <stdlib.h>
#include <string.h>

static bool starts_section(int row)
{
    return row == 0 || strcmp(key_row(row)->section, key_row(row - 1)->section) != 0;
}

static bool ends_section(int row)
{
    return row + 1 == KEY_AT_COUNT || starts_section(row + 1);
}

static void dump_row(const struct spec *s, const struct spec_origin *origin, int row, FILE *out)
{
    char value[KEY_FORMAT], from[SPEC_ORIGIN_TEXT], line[KEY_FORMAT + KEY_NAME];
    const struct key *k = key_row(row);
    if (starts_section(row)) fprintf(out, "%s:\n", k->section);
    snprintf(line, sizeof line, "  %s: %s", k->name, key_format(k, s, KEY_YAML, value));
    if (origin)
        fprintf(out, "%-40s # from %s\n", line, spec_origin_text(origin, row, from));
    else
        fprintf(out, "%s\n", line);
}

void spec_dump(const struct spec *s, const struct spec_origin *origin, FILE *out)
{
    for (int i = 0; i < KEY_AT_COUNT; i++) dump_row(s, origin, i, out);
}

char *spec_dump_text(const struct spec *s)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = memory_stream(&text, &bytes);
    spec_dump(s, NULL, out);
    memory_stream_close(out);
    return text;
}

int model_spec_dump(const struct model_spec *m, bool all, FILE *out)
{
    struct spec s = {.model = *m}, plain = {0};
    char value[KEY_FORMAT], line[KEY_FORMAT + KEY_NAME];
    int left_out = 0;
    model_spec_default(&plain.model);
    fprintf(out, "model:\n");
    for (int i = 0; strcmp(key_row(i)->section, "model") == 0; i++) {
        const struct key *k = key_row(i);
        if (!all && key_equal(k, &s, &plain)) {
            left_out++;
            continue;
        }
        snprintf(line, sizeof line, "  %s: %s", k->name, key_format(k, &s, KEY_YAML, value));
        fprintf(out, "%-36s # %s\n", line, k->text);
    }
    return left_out;
}

static void json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\') fputc('\\', out);
        fputc(*p, out);
    }
    fputc('"', out);
}

/* Rows [begin, end): complete sections. */
static char *dump_json(const struct spec *s, const struct spec_origin *origin, int begin, int end)
{
    char value[KEY_FORMAT], from[SPEC_ORIGIN_TEXT], *text = NULL;
    size_t bytes = 0;
    FILE *out = memory_stream(&text, &bytes);
    for (int i = begin; i < end; i++) {
        const struct key *k = key_row(i);
        if (starts_section(i))
            fprintf(out, "%s\"%s\": {", i ? ", " : "{", k->section);
        else
            fputs(", ", out);
        key_format(k, s, KEY_JSON, value);
        if (origin) {
            fprintf(out, "\"%s\": {\"value\": %s, \"from\": ", k->name, value);
            json_string(out, spec_origin_text(origin, i, from));
            fputc('}', out);
        } else
            fprintf(out, "\"%s\": %s", k->name, value);
        if (ends_section(i)) fputc('}', out);
    }
    fputc('}', out);
    memory_stream_close(out);
    return text;
}

char *spec_dump_json(const struct spec *s, const struct spec_origin *origin)
{
    return dump_json(s, origin, 0, KEY_AT_COUNT);
}

char *model_spec_dump_json(const struct model_spec *m)
{
    struct spec s = {.model = *m};
    return dump_json(&s, NULL, 0, KEY_AT_run_name);
}

static void hash_key(uint64_t *hash, const struct key *k, const struct spec *s)
{
    char full[KEY_NAME], value[KEY_FORMAT], line[KEY_FORMAT + KEY_NAME];
    snprintf(line, sizeof line, "%s=%s\n", key_full_name(full, k), key_format(k, s, KEY_YAML, value));
    for (const char *p = line; *p; p++) *hash = (*hash ^ (unsigned char)*p) * 0x100000001b3u;
}

uint64_t spec_frozen_hash(const struct spec *s)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (key_row(i)->resume == KEY_FROZEN) hash_key(&hash, key_row(i), s);
    return hash;
}

uint64_t spec_section_hash(const struct spec *s, const char *section)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < KEY_AT_COUNT; i++)
        if (strcmp(key_row(i)->section, section) == 0) hash_key(&hash, key_row(i), s);
    return hash;
}

static int print_diff(const struct spec *a, const struct spec *b, bool free_keys, FILE *out)
{
    char full[KEY_NAME], was[KEY_FORMAT], is[KEY_FORMAT];
    int lines = 0;
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        const struct key *k = key_row(i);
        if (key_equal(k, a, b) || (k->resume == KEY_FREE && !free_keys)) continue;
        fprintf(out, "%s: %s -> %s%s\n", key_full_name(full, k), key_format(k, a, KEY_YAML, was),
                key_format(k, b, KEY_YAML, is),
                k->resume == KEY_FROZEN ? " (fixed once a run has begun)" : "");
        lines++;
    }
    return lines;
}

int spec_diff(const struct spec *a, const struct spec *b, FILE *out)
{
    return print_diff(a, b, true, out);
}

int spec_diff_announced(const struct spec *a, const struct spec *b, FILE *out)
{
    return print_diff(a, b, false, out);
}

/* The row of a key that no table holds: the parser reads it before the others. */
enum { CELL_KEY, CELL_DEFAULT, CELL_UNIT, CELL_RANGE, CELL_RESUME, CELL_TEXT, CELLS };
static const char *const PRESET_ROW[CELLS] = {
    "model.preset", "-", "-", "-", "frozen", "start from a preset (`ingot presets`), then change keys"};
static const char *const RESUME_WORDS[] = {
    [KEY_FROZEN] = "frozen", [KEY_ANNOUNCED] = "announced", [KEY_FREE] = "free"};

static void print_row(FILE *out, const char *const *cell)
{
    fprintf(out, "%-28s %-11s %-11s %-12s %s\n", cell[CELL_KEY], cell[CELL_DEFAULT], cell[CELL_UNIT],
            cell[CELL_RANGE], cell[CELL_TEXT]);
}

/* An unescaped `|` would end the cell of a Markdown table. */
static void print_cell(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|') fputc('\\', out);
        fputc(*text, out);
    }
}

static void print_row_markdown(FILE *out, const char *const *cell)
{
    fputs("| `", out);
    for (int i = 0; i < CELLS; i++) {
        if (i) fputs(i == 1 ? "` | " : " | ", out);
        print_cell(out, cell[i]);
    }
    fputs(" |\n", out);
}

static void begin_section(FILE *out, const char *section)
{
    fprintf(out,
            "\n## %s\n\n| key | default | unit | range | on resume | meaning |\n|---|---|---|---|---|---|\n",
            section);
}

static void print_key_json(const struct key *k, const struct spec *s, FILE *out)
{
    static const char *const types[] = {
        [KEY_INT] = "int",   [KEY_AUTO] = "int or auto",     [KEY_REAL] = "real", [KEY_BOOL] = "bool",
        [KEY_TEXT] = "text", [KEY_SOURCES] = "text or list", [KEY_ENUM] = "word"};
    char full[KEY_NAME], value[KEY_FORMAT];
    fprintf(out, "{\"key\": \"%s\", \"type\": \"%s\", \"default\": %s, \"unit\": ", key_full_name(full, k),
            types[k->type], key_format(k, s, KEY_JSON, value));
    json_string(out, k->unit);
    fputs(", \"range\": ", out);
    json_string(out, k->range);
    fprintf(out, ", \"resume\": \"%s\", \"text\": ", RESUME_WORDS[k->resume]);
    json_string(out, k->text);
    for (int w = 0; w < k->word_count; w++)
        fprintf(out, "%s\"%s\"", w ? ", " : ", \"words\": [", k->words[w]);
    fputs(k->word_count ? "]}" : "}", out);
}

static void print_keys_json(FILE *out, const struct spec *s, const char *section)
{
    bool first = true;
    fputs("{\"keys\": [", out);
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        if (section && strcmp(section, key_row(i)->section) != 0) continue;
        fputs(first ? "\n " : ",\n ", out);
        print_key_json(key_row(i), s, out);
        first = false;
    }
    fputs("]}\n", out);
}

void key_explain(FILE *out, const struct key *k, const char *note, int columns)
{
    enum { INDENT = 4 };
    char full[KEY_NAME], value[KEY_FORMAT];
    struct spec s = {0};
    model_spec_default(&s.model);
    run_spec_default(&s.run);
    const bool unit = k->unit[0] && strcmp(k->unit, "-") != 0 && strcmp(k->unit, "1") != 0;
    fprintf(out, "%s (default %s%s%s%s%s)\n%*s", key_full_name(full, k), key_format(k, &s, KEY_YAML, value),
            unit ? " " : "", unit ? k->unit : "", k->range[0] ? ", range " : "", k->range, INDENT, "");
    text_wrap(out, INDENT, INDENT, columns, k->text);
    if (note[0]) fprintf(out, "%*s", INDENT, "");
    if (note[0]) text_wrap(out, INDENT, INDENT, columns, note);
}

void spec_keys_print(FILE *out, enum keys_form form, const char *section)
{
    static const char *const header[CELLS] = {"key", "default", "unit", "range", "on resume", "meaning"};
    char full[KEY_NAME], value[KEY_FORMAT];
    struct spec s = {0};
    model_spec_default(&s.model);
    run_spec_default(&s.run);
    bool markdown = form == KEYS_MARKDOWN;
    if (form == KEYS_JSON) {
        print_keys_json(out, &s, section);
        return;
    }
    if (markdown)
        begin_section(out, section ? section : "model");
    else
        print_row(out, header);
    if (!section || strcmp(section, "model") == 0)
        (markdown ? print_row_markdown : print_row)(out, PRESET_ROW);
    for (int i = 0; i < KEY_AT_COUNT; i++) {
        const struct key *k = key_row(i);
        if (section && strcmp(section, k->section) != 0) continue;
        const char *cell[CELLS] = {key_full_name(full, k),     key_format(k, &s, KEY_YAML, value),
                                   k->unit[0] ? k->unit : "-", k->range[0] ? k->range : "-",
                                   RESUME_WORDS[k->resume],    k->text};
        if (markdown && !section && i && starts_section(i)) begin_section(out, k->section);
        (markdown ? print_row_markdown : print_row)(out, cell);
    }
}
