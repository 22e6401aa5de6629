/* Reads and writes values of config.json, singly and by the families' tables. */
#include "model/hf_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void hf_refuse(struct hf_reader *r, const char *key, const char *fmt, ...)
{
    char why[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    if (r->st == STATUS_OK) r->st = FAIL(STATUS_CKPT, "%s: %s %s", r->path, key, why);
}

json_t *hf_value(json_t *from, const char *key)
{
    json_t *v = json_object_get(from, key);
    return json_is_null(v) ? NULL : v;
}

static bool to_int(struct hf_reader *r, const char *key, const json_t *v, int64_t *to)
{
    const bool good =
        json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= (int64_t)1 << 40;
    if (!good) hf_refuse(r, key, "is not a whole number in range");
    if (good) *to = json_integer_value(v);
    return good;
}

int64_t hf_read_int(struct hf_reader *r, const char *key, int64_t absent)
{
    json_t *v = hf_value(r->root, key);
    if (v) (void)to_int(r, key, v, &absent);
    return absent;
}

double hf_read_real(struct hf_reader *r, json_t *from, const char *key, enum hf_need need, double absent)
{
    json_t *v = hf_value(from, key);
    if (v == NULL && need == HF_REQUIRED) hf_refuse(r, key, "is missing");
    if (v && !json_is_number(v)) hf_refuse(r, key, "is not a number");
    return json_is_number(v) ? json_number_value(v) : absent;
}

bool hf_read_bool(struct hf_reader *r, const char *key, bool absent)
{
    json_t *v = hf_value(r->root, key);
    if (v == NULL) return absent;
    if (!json_is_boolean(v)) hf_refuse(r, key, "is not true or false");
    return json_is_true(v);
}

const char *hf_read_text(struct hf_reader *r, json_t *from, const char *key, const char *absent)
{
    json_t *v = hf_value(from, key);
    if (v && !json_is_string(v)) hf_refuse(r, key, "is not a string");
    return json_is_string(v) ? json_string_value(v) : absent;
}

void hf_set_int(json_t *j, const char *key, int64_t v)
{
    json_object_set_new(j, key, json_integer(v));
}

/* ---- tables */

static void *place(const struct key *k, struct spec *s)
{
    return (char *)s + k->offset;
}

static void set_default(const struct hf_field *f, const struct key *k, struct spec *s, const char *text)
{
    char why[SPEC_TEXT];
    const bool good = key_set(k, s, text, why);
    CHECK(good, "the table of a family: %s: %s", f->name ? f->name : k->name, why);
}

static void read_value(struct hf_reader *r, const struct hf_field *f, const struct key *k, struct spec *s,
                       const json_t *v)
{
    char why[SPEC_TEXT];
    switch (k->type) {
    case KEY_INT:
    case KEY_AUTO: (void)to_int(r, f->name, v, place(k, s)); return;
    case KEY_REAL:
        if (json_is_number(v))
            *(double *)place(k, s) = json_number_value(v);
        else
            hf_refuse(r, f->name, "is not a number");
        return;
    case KEY_BOOL:
        if (json_is_boolean(v))
            *(bool *)place(k, s) = json_is_true(v);
        else
            hf_refuse(r, f->name, "is not true or false");
        return;
    case KEY_TEXT:
    case KEY_SOURCES:
    case KEY_ENUM:
        if (!json_is_string(v))
            hf_refuse(r, f->name, "is not a string");
        else if (!key_set(k, s, json_string_value(v), why))
            hf_refuse(r, f->name, "%.200s", why);
        return;
    }
}

/* A field without an ingot key: it must be absent, null, or this one value. */
static void read_only(struct hf_reader *r, const struct hf_field *f)
{
    json_t *v = hf_value(r->root, f->name), *want = json_loads(f->only, JSON_DECODE_ANY, NULL);
    CHECK(want != NULL, "the table of a family: %s: %s", f->name, f->only);
    const bool same =
        v == NULL || json_equal(v, want) ||
        (json_is_number(v) && json_is_number(want) && json_number_value(v) == json_number_value(want));
    if (!same) {
        char *is = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        hf_refuse(r, f->name, "is %.80s; ingot has %s alone", is ? is : "another value", f->only);
        free(is);
    }
    json_decref(want);
}

void hf_fields_read(struct hf_reader *r, struct model_spec *m, const struct hf_field *fields, int count)
{
    struct spec s = {.model = *m};
    for (int i = 0; i < count; i++) {
        const struct hf_field *f = &fields[i];
        if (f->ours == HF_NOT_OURS) {
            read_only(r, f);
            continue;
        }
        const struct key *k = key_row(f->ours);
        json_t *v = f->name ? json_object_get(r->root, f->name) : NULL;
        if (v == NULL && f->also) v = json_object_get(r->root, f->also);
        if (json_is_null(v) && f->null)
            set_default(f, k, &s, f->null);
        else if (v && !json_is_null(v))
            read_value(r, f, k, &s, v);
        else if (f->absent)
            set_default(f, k, &s, f->absent);
        else
            hf_refuse(r, f->name, "is missing");
    }
    *m = s.model;
}

static json_t *to_json(const struct key *k, struct spec *s)
{
    char text[KEY_FORMAT];
    const void *at = place(k, s);
    switch (k->type) {
    case KEY_INT:
    case KEY_AUTO: return json_integer(*(const int64_t *)at);
    case KEY_REAL: return json_real(*(const double *)at);
    case KEY_BOOL: return json_boolean(*(const bool *)at);
    case KEY_TEXT:
    case KEY_SOURCES: return json_string(at);
    case KEY_ENUM: return json_loads(key_format(k, s, KEY_JSON, text), JSON_DECODE_ANY, NULL);
    }
    return NULL;
}

/* The value that null means, from the table. */
static bool is_null(const struct hf_field *f, const struct key *k, const struct spec *s)
{
    if (f->null == NULL) return false;
    struct spec null = *s;
    set_default(f, k, &null, f->null);
    return key_equal(k, s, &null);
}

void hf_fields_write(json_t *j, const struct model_spec *m, const struct hf_field *fields, int count)
{
    struct spec s = {.model = *m};
    for (int i = 0; i < count; i++) {
        const struct hf_field *f = &fields[i];
        if (f->name == NULL) continue;
        json_t *v;
        if (f->ours == HF_NOT_OURS)
            v = json_loads(f->only, JSON_DECODE_ANY, NULL);
        else
            v = is_null(f, key_row(f->ours), &s) ? json_null() : to_json(key_row(f->ours), &s);
        if (f->also) json_object_set(j, f->also, v);
        json_object_set_new(j, f->name, v);
    }
}
