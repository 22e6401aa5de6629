/* libyaml delivers events. A small state machine interprets them, because three nested loops would hide the
 * grammar:
 *
 *   AT_STREAM -> AT_TOP (a section's name) -> AT_SECTION (its mapping) -> AT_KEYS (a key) -> AT_VALUE -> AT_KEYS ... AT_TOP ... AT_END
 *                                                                            |-> AT_SOURCES (spec/sources.c) -> AT_KEYS
 *
 * libyaml checks UTF-8 and the syntax; this file rejects everything that YAML allows and a spec does not. */
#include "spec/spec_yaml.h"
#include "spec/keys.h"
#include "spec/sources_int.h"

#include <limits.h>
#include <string.h>
#include <yaml.h>

enum { PRESET_ROW = -1, SECTION_MAX = 32 };
enum state { AT_STREAM, AT_TOP, AT_SECTION, AT_KEYS, AT_VALUE, AT_SOURCES, AT_END };

struct reader {
    const char *name; /* of the file */
    struct spec_layer *layer;
    enum state state;
    char section[SECTION_MAX];
    bool section_seen[KEY_AT_COUNT]; /* by first row of the section */
    int row;                         /* AT_VALUE: the key; PRESET_ROW for model.preset */
    struct sources_reader list;      /* AT_SOURCES */
    struct sources sources;
};

static struct spec_place place_of(const yaml_mark_t *mark)
{
    /* a file has at most SPEC_FILE_BYTES_MAX bytes, so both fit an int */
    return (struct spec_place){(int)mark->line + 1, (int)mark->column + 1};
}

#define REFUSE(r, at, fmt, ...)                                                                              \
    FAIL(STATUS_CONFIG, "%s:%d:%d: " fmt, (r)->name, (at).line, (at).column, __VA_ARGS__)

static status take_section(struct reader *r, const char *word, struct spec_place at)
{
    char hint[KEY_HINT];
    int first = key_section(word);
    if (first < 0) return REFUSE(r, at, "unknown section '%.64s'%s", word, key_suggest(hint, NULL, word));
    if (r->section_seen[first]) return REFUSE(r, at, "section '%s' is given twice", word);
    r->section_seen[first] = true;
    strncpy(r->section, word, sizeof r->section - 1);
    r->state = AT_SECTION;
    return STATUS_OK;
}

static status take_key(struct reader *r, const char *word, struct spec_place at)
{
    char hint[KEY_HINT];
    struct spec_place *place = &r->layer->preset_place;
    if (strcmp(r->section, "model") == 0 && strcmp(word, "preset") == 0) {
        r->row = PRESET_ROW;
    } else {
        r->row = key_find(r->section, word);
        if (r->row < 0)
            return REFUSE(r, at, "unknown key '%s.%.64s'%s", r->section, word,
                          key_suggest(hint, r->section, word));
        place = &r->layer->place[r->row];
    }
    if (place->line)
        return REFUSE(r, at, "key '%s.%s' is given twice, first in line %d", r->section, word, place->line);
    *place = at;
    r->state = AT_VALUE;
    return STATUS_OK;
}

static status take_value(struct reader *r, const char *text, bool plain, struct spec_place at)
{
    char why[SPEC_TEXT], full[KEY_NAME] = "model.preset";
    const struct key *k = r->row == PRESET_ROW ? NULL : key_row(r->row);
    if (k) key_full_name(full, k);
    if (plain && (text[0] == 0 || strcmp(text, "~") == 0 || strcmp(text, "null") == 0))
        return REFUSE(r, at, "%s has no value (empty text is \"\")", full);
    r->state = AT_KEYS;
    if (!k) {
        if (strlen(text) >= SPEC_PRESET_TEXT) return REFUSE(r, at, "%s: '%.40s...' is no preset", full, text);
        memcpy(r->layer->preset, text, strlen(text) + 1);
        r->layer->preset_place = at;
        return STATUS_OK;
    }
    if (!plain && k->type != KEY_TEXT && k->type != KEY_SOURCES && k->type != KEY_ENUM)
        return REFUSE(r, at, "%s: \"%.64s\" is text in quotes; write the value without them", full, text);
    if (!key_set(k, &r->layer->spec, text, why)) return REFUSE(r, at, "%s: %s", full, why);
    r->layer->place[r->row] = at;
    return STATUS_OK;
}

static status take_scalar(struct reader *r, const yaml_event_t *e)
{
    struct spec_place at = place_of(&e->start_mark);
    const char *text = (const char *)e->data.scalar.value;
    bool plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (e->data.scalar.anchor || e->data.scalar.tag)
        return REFUSE(r, at, "%s",
                      "anchors (&x) and tags (!x) are not part of a spec; write the value itself");
    if (strlen(text) != e->data.scalar.length) return REFUSE(r, at, "%s", "a zero byte in text");
    switch (r->state) {
    case AT_TOP: return take_section(r, text, at);
    case AT_KEYS: return take_key(r, text, at);
    case AT_VALUE: return take_value(r, text, plain, at);
    case AT_SECTION:
        if (plain && text[0] == 0) { /* a section whose keys are all commented out */
            r->state = AT_TOP;
            return STATUS_OK;
        }
        return REFUSE(r, at, "section '%s' holds keys, not '%.64s'", r->section, text);
    default:
        if (plain && text[0] == 0) { /* only comments */
            r->state = AT_END;
            return STATUS_OK;
        }
        return REFUSE(r, at, "'%.64s' stands where a section (model, train, ...) belongs", text);
    }
}

static status take_mapping(struct reader *r, const yaml_event_t *e)
{
    struct spec_place at = place_of(&e->start_mark);
    if (e->data.mapping_start.anchor || e->data.mapping_start.tag)
        return REFUSE(r, at, "%s",
                      "anchors (&x) and tags (!x) are not part of a spec; write the keys themselves");
    if (r->state == AT_STREAM)
        r->state = AT_TOP;
    else if (r->state == AT_SECTION)
        r->state = AT_KEYS;
    else if (r->state == AT_VALUE && r->row != PRESET_ROW) {
        const struct key *k = key_row(r->row);
        return REFUSE(r, at, "%s.%s takes one value, not a mapping", k->section, k->name);
    } else
        return REFUSE(r, at, "%s", "a mapping stands where a word belongs");
    return STATUS_OK;
}

static status begin_list(struct reader *r, const yaml_event_t *e)
{
    struct spec_place at = place_of(&e->start_mark);
    char full[KEY_NAME];
    if (r->state != AT_VALUE || r->row == PRESET_ROW)
        return REFUSE(r, at, "%s", "a list stands where a word belongs");
    if (key_row(r->row)->type != KEY_SOURCES)
        return REFUSE(r, at, "%s takes one value, not a list", key_full_name(full, key_row(r->row)));
    if (e->data.sequence_start.anchor || e->data.sequence_start.tag)
        return REFUSE(r, at, "%s",
                      "anchors (&x) and tags (!x) are not part of a spec; write the value itself");
    sources_begin(&r->list, &r->sources);
    r->layer->place[r->row] = at;
    r->state = AT_SOURCES;
    return STATUS_OK;
}

/* An event inside the list. At its end the key gets the canonical text. */
static status take_source(struct reader *r, const yaml_event_t *e)
{
    struct spec_place at = place_of(&e->start_mark);
    char why[SPEC_TEXT], full[KEY_NAME], text[SPEC_SOURCES_TEXT];
    const struct key *k = key_row(r->row);
    if (!sources_event(&r->list, e, why)) return REFUSE(r, at, "%s: %s", key_full_name(full, k), why);
    if (!r->list.done) return STATUS_OK;
    r->state = AT_KEYS;
    if (!sources_text(&r->sources, text))
        return REFUSE(r, at, "%s: the list of sources is longer than %d bytes", key_full_name(full, k),
                      SPEC_SOURCES_TEXT - 1);
    if (!key_set(k, &r->layer->spec, text, why)) return REFUSE(r, at, "%s: %s", key_full_name(full, k), why);
    return STATUS_OK;
}

static status take_event(struct reader *r, const yaml_event_t *e)
{
    struct spec_place at = place_of(&e->start_mark);
    if (r->state == AT_SOURCES && e->type != YAML_DOCUMENT_START_EVENT) return take_source(r, e);
    switch (e->type) {
    case YAML_SCALAR_EVENT: return take_scalar(r, e);
    case YAML_MAPPING_START_EVENT: return take_mapping(r, e);
    case YAML_MAPPING_END_EVENT: r->state = r->state == AT_KEYS ? AT_TOP : AT_END; return STATUS_OK;
    case YAML_SEQUENCE_START_EVENT: return begin_list(r, e);
    case YAML_ALIAS_EVENT:
        return REFUSE(r, at, "%s", "aliases (*x) are not part of a spec; write the value itself");
    case YAML_DOCUMENT_START_EVENT:
        if (r->state != AT_STREAM) return REFUSE(r, at, "%s", "a second document; a spec is one");
        return STATUS_OK;
    default: return STATUS_OK;
    }
}

static status syntax_error(const struct reader *r, const yaml_parser_t *p)
{
    struct spec_place at = place_of(&p->problem_mark);
    const char *problem = p->problem ? p->problem : "not readable";
    if (p->error == YAML_MEMORY_ERROR)
        return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for the YAML parser", r->name);
    if (p->error == YAML_READER_ERROR)
        return FAIL(STATUS_CONFIG, "%s: byte %zu: %s", r->name, p->problem_offset, problem);
    return REFUSE(r, at, "YAML: %s%s%s", problem, p->context ? " " : "", p->context ? p->context : "");
}

status spec_yaml_parse(struct spec_layer *layer, const char *name, const char *text, size_t bytes)
{
    struct reader r = {.name = name, .layer = layer};
    yaml_parser_t parser;
    if (bytes > SPEC_FILE_BYTES_MAX)
        return FAIL(STATUS_CONFIG, "%s: %zu bytes; a spec has at most %d", name, bytes, SPEC_FILE_BYTES_MAX);
    if (!yaml_parser_initialize(&parser))
        return FAIL(STATUS_OUT_OF_MEMORY, "%s: no memory for the YAML parser", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    status st = STATUS_OK;
    for (bool more = true; more && st == STATUS_OK;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            MEMORY_CHECK(parser.error != YAML_MEMORY_ERROR, "no memory to read %s", name);
            st = syntax_error(&r, &parser);
            break;
        }
        more = event.type != YAML_STREAM_END_EVENT;
        st = take_event(&r, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return st;
}
