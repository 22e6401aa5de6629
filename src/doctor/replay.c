/* The findings of another host, from its `ingot doctor --json`: `ingot doctor --replay FILE`. */
#include "base/utf8.h"
#include "doctor/doctor_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static double number_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

/* What another host wrote may hold anything; it becomes one line. */
static void copy(char *out, size_t bytes, const char *text)
{
    snprintf(out, bytes, "%s", text);
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = ' ';
    for (size_t n; out[n = utf8_valid(out, strlen(out))];) out[n] = '?';
}

static const struct doctor_check *known_check(const char *id)
{
    for (int i = 0; doctor_check(i); i++)
        if (strcmp(doctor_check(i)->name, id) == 0) return doctor_check(i);
    return NULL;
}

static status code_of(const char *group)
{
    return strcmp(group, "gpu") == 0                                      ? STATUS_DEVICE
           : strcmp(group, "network") == 0 || strcmp(group, "hosts") == 0 ? STATUS_COMM
           : strcmp(group, "storage") == 0                                ? STATUS_IO
                                                                          : STATUS_CONFIG;
}

/* Checks of a newer ingot keep their own words. */
static const struct doctor_check *foreign_check(struct doctor *d, const json_t *o)
{
    struct doctor_check *c = &d->foreign[d->count];
    *c = (struct doctor_check){.name = text_of(o, "id"),
                               .group = text_of(o, "group"),
                               .code = code_of(text_of(o, "group")),
                               .reads = text_of(o, "source"),
                               .limit = text_of(o, "limit"),
                               .remedy = text_of(o, "try")};
    for (const char *p = c->name; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '_')) return NULL;
    return c->name[0] ? c : NULL;
}

static status add_finding(struct doctor *d, const json_t *o, const char *path)
{
    struct doctor_finding f = {.measured = number_of(o, "measured"), .expected = number_of(o, "expected")};
    const char *word = text_of(o, "verdict");
    int v = DOCTOR_PASS;
    while (v <= DOCTOR_FAIL && strcmp(doctor_verdict_text((enum doctor_verdict)v), word) != 0) v++;
    f.check = known_check(text_of(o, "id"));
    if (f.check == NULL) f.check = foreign_check(d, o);
    if (v > DOCTOR_FAIL || f.check == NULL || d->count == FINDINGS_MAX - 1)
        return FAIL(STATUS_DATA, "%s: check %d of it is none", path, d->count + 1);
    f.verdict = (enum doctor_verdict)v;
    f.seconds = 1e-3 * number_of(o, "ms");
    copy(f.entity, sizeof f.entity, text_of(o, "entity"));
    copy(f.text, sizeof f.text, text_of(o, "why"));
    d->findings[d->count++] = f;
    return STATUS_OK;
}

static void add_cards(struct doctor *d, const json_t *list)
{
    size_t i;
    const json_t *o;
    json_array_foreach((json_t *)list, i, o)
    {
        if (i == CARDS_MAX) break;
        struct nvml_card *c = &d->card[i];
        copy(c->name, sizeof c->name, text_of(o, "name"));
        copy(c->uuid, sizeof c->uuid, text_of(o, "uuid"));
        copy(c->pci, sizeof c->pci, text_of(o, "pci"));
        copy(c->vbios, sizeof c->vbios, text_of(o, "vbios"));
        d->cards = (int)i + 1;
    }
}

static status fill(struct doctor *d, const char *path)
{
    size_t i;
    const json_t *o;
    TRY(doctor_file_read(path, &d->replayed));
    copy(d->host, sizeof d->host, text_of(d->replayed, "host"));
    copy(d->driver, sizeof d->driver, text_of(d->replayed, "driver"));
    const char *level = text_of(d->replayed, "level");
    d->level = strcmp(level, "accept") == 0 ? DOCTOR_ACCEPT
               : strcmp(level, "full") == 0 ? DOCTOR_FULL
                                            : DOCTOR_QUICK;
    d->system.now_s = number_of(d->replayed, "time");
    d->seconds = number_of(d->replayed, "seconds");
    if (!isfinite(d->system.now_s) || !isfinite(d->seconds))
        return FAIL(STATUS_DATA, "%s: it does not say when it was made", path);
    d->rates = json_incref(json_object_get(d->replayed, "rates"));
    add_cards(d, json_object_get(d->replayed, "cards"));
    json_array_foreach(json_object_get(d->replayed, "checks"), i, o) TRY(add_finding(d, o, path));
    return STATUS_OK;
}

status doctor_replay(struct doctor **out, const char *path, const struct doctor_how *how)
{
    struct doctor *d = *out = calloc(1, sizeof *d);
    if (d == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the doctor");
    d->within = how->within;
    status st = fill(d, path);
    if (st == STATUS_OK && how->baseline) {
        d->check = known_check("baseline");
        st = doctor_file_read(how->baseline, &d->baseline);
        if (st == STATUS_OK) check_baseline(d);
    }
    if (st == STATUS_OK) return STATUS_OK;
    doctor_close(d);
    *out = NULL;
    return st;
}
