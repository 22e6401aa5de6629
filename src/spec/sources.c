/* Grammar: list -> (source mapping -> (key -> scalar | list of points -> (point -> two numbers)))*. */
#include "spec/sources.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/utf8.h"
#include "spec/keys.h"
#include "spec/sources_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_PATH, KEY_SOURCE_NAME, KEY_WEIGHT, KEY_WEIGHTS, KEY_EPOCHS_MAX, SOURCE_KEYS };
static const char *const source_keys[SOURCE_KEYS] = {"path", "name", "weight", "weights", "epochs_max"};

#define REFUSE(why, ...) (snprintf((why), SPEC_TEXT, __VA_ARGS__), false)

void sources_begin(struct sources_reader *r, struct sources *out)
{
    *r = (struct sources_reader){.out = out};
    *out = (struct sources){.list = true};
}

static struct data_source *now(struct sources_reader *r)
{
    return &r->out->list_of[r->out->count - 1];
}

/* "data/web_train_*.bin" -> "web_train" */
static void name_from_path(struct data_source *s)
{
    const char *base = strrchr(s->path, '/') ? strrchr(s->path, '/') + 1 : s->path;
    size_t n = strcspn(base, "*?[.");
    while (n > 0 && (base[n - 1] == '_' || base[n - 1] == '-')) n--;
    if (n >= sizeof s->name) n = sizeof s->name - 1;
    while (n > 0 && ((unsigned char)base[n] & 0xC0) == 0x80) n--; /* do not cut a character */
    snprintf(s->name, sizeof s->name, "%.*s", (int)n, base);
}

static bool end_points(const struct data_source *s, char why[SPEC_TEXT])
{
    if (s->point_count == 0) return REFUSE(why, "weights is empty; write [[0, 0.7], [0.5, 0.3]]");
    for (int i = 0; i < s->point_count; i++) {
        const struct source_point *p = &s->points[i];
        if (p->at < 0 || !isfinite(p->at))
            return REFUSE(why, "weights: a point at %g; points are tokens of the run, or parts of it up to 1",
                          p->at);
        if (i > 0 && p->at <= p[-1].at)
            return REFUSE(why, "weights: the point at %g comes after that at %g; points ascend", p->at,
                          p[-1].at);
        if (p->weight < 0 || !isfinite(p->weight))
            return REFUSE(why, "weights: %g is no weight; weights are 0 or more", p->weight);
    }
    return true;
}

static bool end_source(struct sources_reader *r, char why[SPEC_TEXT])
{
    struct data_source *s = now(r);
    if (!s->path[0]) return REFUSE(why, "source %d has no path", r->out->count);
    if (!s->name[0]) name_from_path(s);
    if (!s->name[0]) snprintf(s->name, sizeof s->name, "source%d", r->out->count);
    for (int i = 0; i + 1 < r->out->count; i++)
        if (strcmp(r->out->list_of[i].name, s->name) == 0)
            return REFUSE(why, "two sources are named '%s'; give one of them another name", s->name);
    if (r->out->count > 1 && (s->point_count > 0) != (r->out->list_of[0].point_count > 0))
        return REFUSE(why,
                      "'%s' has %s weight, '%s' has %s: give all sources a weight, or none (then it is their "
                      "size)",
                      r->out->list_of[0].name, r->out->list_of[0].point_count ? "a" : "no", s->name,
                      s->point_count ? "a" : "no");
    return true;
}

static bool end_list(struct sources_reader *r, char why[SPEC_TEXT])
{
    if (r->out->count == 0) return REFUSE(why, "the list of sources is empty");
    bool weighted = r->out->list_of[0].point_count > 0, good = !weighted;
    for (int i = 0; i < r->out->count; i++)
        for (int k = 0; k < r->out->list_of[i].point_count; k++)
            good = good || r->out->list_of[i].points[k].weight > 0;
    if (!good) return REFUSE(why, "all weights are 0");
    r->done = true;
    return true;
}

static bool take_key(struct sources_reader *r, const char *text, char why[SPEC_TEXT])
{
    for (r->key = 0; r->key < SOURCE_KEYS; r->key++)
        if (strcmp(source_keys[r->key], text) == 0) break;
    if (r->key == SOURCE_KEYS) {
        const char *near = text_nearest(text, source_keys, SOURCE_KEYS);
        return REFUSE(
            why, "a source has no key '%.64s'%s%s%s; its keys are path, name, weight, weights, epochs_max",
            text, near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
    }
    if (r->seen & 1u << r->key) return REFUSE(why, "'%s' is given twice for source %d", text, r->out->count);
    r->seen |= 1u << r->key;
    if ((r->seen & 1u << KEY_WEIGHT) && (r->seen & 1u << KEY_WEIGHTS))
        return REFUSE(why, "weight and weights are both given for source %d; weights is for a schedule",
                      r->out->count);
    r->at = SOURCES_IN_VALUE;
    return true;
}

static bool take_text(char *to, size_t size, const char *text, const char *what, char why[SPEC_TEXT])
{
    size_t bytes = strlen(text);
    if (bytes == 0) return REFUSE(why, "%s is empty", what);
    if (bytes >= size) return REFUSE(why, "%s: %zu bytes of text, the limit is %zu", what, bytes, size - 1);
    if (utf8_valid(text, bytes) < bytes) return REFUSE(why, "%s: the text is not UTF-8", what);
    memcpy(to, text, bytes + 1);
    return true;
}

/* Accepts "10B" and "1e9", like keys that take tokens. */
static bool take_number(const char *text, double *to)
{
    int64_t whole;
    if (text_to_real(text, to)) return true;
    if (!text_to_int(text, &whole)) return false;
    *to = (double)whole;
    return true;
}

static bool take_value(struct sources_reader *r, const char *text, char why[SPEC_TEXT])
{
    struct data_source *s = now(r);
    double x;
    r->at = SOURCES_IN_SOURCE;
    if (r->key == KEY_PATH) return take_text(s->path, sizeof s->path, text, "path", why);
    if (r->key == KEY_SOURCE_NAME) return take_text(s->name, sizeof s->name, text, "name", why);
    if (r->key == KEY_WEIGHTS)
        return REFUSE(why, "weights is a list of points [at, weight]; a constant is weight: %.32s", text);
    if (!take_number(text, &x)) return REFUSE(why, "%s: '%.64s' is not a number", source_keys[r->key], text);
    if (r->key == KEY_WEIGHT) {
        if (!(x >= 0) || !isfinite(x)) return REFUSE(why, "weight: %g; weights are 0 or more", x);
        s->point_count = 1;
        s->points[0] = (struct source_point){0, x};
        return true;
    }
    if (!(x > 0) || !isfinite(x))
        return REFUSE(why, "epochs_max: %g is not above 0; leave it out for no limit", x);
    s->epochs_max = x;
    return true;
}

static bool take_scalar(struct sources_reader *r, const yaml_event_t *e, char why[SPEC_TEXT])
{
    const char *text = (const char *)e->data.scalar.value;
    if (e->data.scalar.anchor || e->data.scalar.tag)
        return REFUSE(why, "anchors (&x) and tags (!x) are not part of a spec; write the value itself");
    if (strlen(text) != e->data.scalar.length) return REFUSE(why, "a zero byte in text");
    switch (r->at) {
    case SOURCES_IN_SOURCE: return take_key(r, text, why);
    case SOURCES_IN_VALUE: return take_value(r, text, why);
    case SOURCES_IN_POINT: {
        struct source_point *p = &now(r)->points[now(r)->point_count];
        if (r->numbers == 2 || !take_number(text, r->numbers == 0 ? &p->at : &p->weight))
            return REFUSE(why, "weights: '%.64s': a point is two numbers, [at, weight]", text);
        r->numbers++;
        return true;
    }
    case SOURCES_IN_LIST:
        return REFUSE(why, "'%.64s': a source is a mapping: {path: %.64s, weight: 1}", text, text);
    default: return REFUSE(why, "weights: '%.64s': a point is two numbers, [at, weight]", text);
    }
}

static bool begin_source(struct sources_reader *r, char why[SPEC_TEXT])
{
    if (r->at != SOURCES_IN_LIST) return REFUSE(why, "a mapping stands where a value of a source belongs");
    if (r->out->count == SOURCES_MAX) return REFUSE(why, "more than %d sources", SOURCES_MAX);
    r->out->count++;
    r->seen = 0;
    r->at = SOURCES_IN_SOURCE;
    return true;
}

static bool begin_list(struct sources_reader *r, char why[SPEC_TEXT])
{
    if (r->at == SOURCES_IN_VALUE && r->key == KEY_WEIGHTS) {
        r->at = SOURCES_IN_POINTS;
        return true;
    }
    if (r->at != SOURCES_IN_POINTS) return REFUSE(why, "a list stands where a value of a source belongs");
    if (now(r)->point_count == SOURCE_POINTS_MAX)
        return REFUSE(why, "more than %d points", SOURCE_POINTS_MAX);
    r->numbers = 0;
    r->at = SOURCES_IN_POINT;
    return true;
}

static bool end_of_list(struct sources_reader *r, char why[SPEC_TEXT])
{
    if (r->at == SOURCES_IN_LIST) return end_list(r, why);
    if (r->at == SOURCES_IN_POINTS) {
        r->at = SOURCES_IN_SOURCE;
        return end_points(now(r), why);
    }
    if (r->numbers != 2) return REFUSE(why, "weights: a point is two numbers, [at, weight]");
    now(r)->point_count++;
    r->at = SOURCES_IN_POINTS;
    return true;
}

bool sources_event(struct sources_reader *r, const yaml_event_t *e, char why[SPEC_TEXT])
{
    switch (e->type) {
    case YAML_SCALAR_EVENT: return take_scalar(r, e, why);
    case YAML_MAPPING_START_EVENT:
        if (e->data.mapping_start.anchor || e->data.mapping_start.tag) break;
        return begin_source(r, why);
    case YAML_MAPPING_END_EVENT: r->at = SOURCES_IN_LIST; return end_source(r, why);
    case YAML_SEQUENCE_START_EVENT:
        if (e->data.sequence_start.anchor || e->data.sequence_start.tag) break;
        return begin_list(r, why);
    case YAML_SEQUENCE_END_EVENT: return end_of_list(r, why);
    default: break;
    }
    return REFUSE(why, "anchors (&x), aliases (*x) and tags (!x) are not part of a spec");
}

static void put_number(FILE *out, double v)
{
    char text[32];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    fputs(text, out);
}

/* Text that both YAML and JSON read; what either cannot print is escaped. */
static void put_text(FILE *out, const char *text)
{
    char quoted[6 * SPEC_TEXT + 3];
    key_quote(quoted, text);
    fputs(quoted, out);
}

bool sources_text(const struct sources *s, char text[SPEC_SOURCES_TEXT])
{
    char *made = NULL;
    size_t bytes = 0;
    FILE *out = memory_stream(&made, &bytes);
    for (int i = 0; i < s->count; i++) {
        const struct data_source *from = &s->list_of[i];
        fputs(i ? ", {\"name\": " : "[{\"name\": ", out);
        put_text(out, from->name);
        fputs(", \"path\": ", out);
        put_text(out, from->path);
        if (from->point_count == 1 && from->points[0].at == 0) {
            fputs(", \"weight\": ", out);
            put_number(out, from->points[0].weight);
        } else if (from->point_count > 0) {
            for (int k = 0; k < from->point_count; k++) {
                fputs(k ? ", [" : ", \"weights\": [[", out);
                put_number(out, from->points[k].at);
                fputs(", ", out);
                put_number(out, from->points[k].weight);
                fputc(']', out);
            }
            fputc(']', out);
        }
        if (from->epochs_max > 0) {
            fputs(", \"epochs_max\": ", out);
            put_number(out, from->epochs_max);
        }
        fputc('}', out);
    }
    fputc(']', out);
    memory_stream_close(out);
    bool fits = bytes < SPEC_SOURCES_TEXT;
    memset(text, 0, SPEC_SOURCES_TEXT);
    if (fits) memcpy(text, made, bytes);
    free(made);
    return fits;
}

bool sources_is_list(const char *text)
{
    if (text[0] != '[') return false;
    return text[1 + strspn(text + 1, " \t\r\n")] == '{';
}

bool sources_relative(const struct data_source *s)
{
    return s->point_count > 1 && s->points[s->point_count - 1].at <= 1;
}

bool sources_any_relative(const char *text)
{
    char why[SPEC_TEXT];
    bool any = false;
    if (!sources_is_list(text)) return false;
    struct sources *s = malloc(sizeof *s);
    MEMORY_CHECK(s, "no memory for a list of sources");
    if (sources_read(s, text, why))
        for (int i = 0; i < s->count; i++) any = any || sources_relative(&s->list_of[i]);
    free(s);
    return any;
}

static bool read_list(struct sources *s, const char *text, char why[SPEC_TEXT])
{
    struct sources_reader r = {0};
    yaml_parser_t parser;
    MEMORY_CHECK(yaml_parser_initialize(&parser), "no memory for the YAML parser");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
    bool good = true, begun = false;
    for (bool more = true; more && good;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            MEMORY_CHECK(parser.error != YAML_MEMORY_ERROR, "no memory for the list of sources");
            good = REFUSE(why, "YAML: %s", parser.problem ? parser.problem : "not readable");
            break;
        }
        more = event.type != YAML_STREAM_END_EVENT;
        if (begun && !r.done) {
            good = sources_event(&r, &event, why);
        } else if (event.type == YAML_SEQUENCE_START_EVENT && !begun) {
            sources_begin(&r, s);
            begun = true;
        } else if (event.type == YAML_SCALAR_EVENT || event.type == YAML_MAPPING_START_EVENT) {
            good = REFUSE(why, "something stands behind the list of sources");
        }
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return good && (r.done || REFUSE(why, "the list of sources does not end"));
}

bool sources_read(struct sources *s, const char *text, char why[SPEC_TEXT])
{
    if (sources_is_list(text)) return read_list(s, text, why);
    *s = (struct sources){.count = 1};
    if (!take_text(s->list_of[0].path, SPEC_TEXT, text, "data.train", why)) return false;
    name_from_path(&s->list_of[0]);
    return true;
}
