/* The doctor's findings for people, programs and Nagios. */
#include "base/text.h"
#include "doctor/doctor_int.h"

#include <ctype.h>
#include <math.h>
#include <string.h>
#include <time.h>

static const char *const level_names[] = {"quick", "full", "accept"};

enum { TEXT_AT = 20 };

/* What to do is said once, behind the last of a check's findings in a row. */
static bool is_last(const struct doctor *d, int i)
{
    const struct doctor_finding *next = i + 1 < d->count ? &d->findings[i + 1] : NULL;
    return next == NULL || next->check != d->findings[i].check || next->verdict < DOCTOR_WARN;
}

static void print_finding(const struct doctor *d, int i, FILE *out, int columns)
{
    const struct doctor_finding *f = &d->findings[i];
    static const char *const words[] = {"PASS", "SKIP", "WARN", "FAIL"};
    const int at = fprintf(out, " %s  %-12s ", words[f->verdict], f->check->name);
    text_wrap(out, at, TEXT_AT, columns, f->text);
    if (f->verdict < DOCTOR_WARN || !is_last(d, i)) return;
    fprintf(out, "%*s", TEXT_AT, "");
    text_wrap(out, TEXT_AT, TEXT_AT + 4, columns, f->check->remedy);
}

/* Checks that were skipped for one reason make one entry, at the first of them. */
static void print_skipped(const struct doctor *d, int first, FILE *out, int columns)
{
    char names[1024] = "";
    const char *why = d->findings[first].text;
    for (int i = 0; i < d->count; i++) {
        const struct doctor_finding *f = &d->findings[i];
        if (f->verdict != DOCTOR_SKIP || strcmp(f->text, why) != 0) continue;
        if (i < first) return;
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, used ? ", %s" : "%s", f->check->name);
    }
    char text[sizeof names + sizeof d->findings[0].text + 4];
    snprintf(text, sizeof text, "%s: %s", why, names);
    fprintf(out, " SKIP  ");
    text_wrap(out, 7, TEXT_AT, columns, text);
}

static void print_head(const struct doctor *d, FILE *out, int columns)
{
    char head[400], when[64] = "";
    if (d->replayed) {
        struct tm tm;
        const time_t t = (time_t)d->system.now_s;
        gmtime_r(&t, &tm);
        strftime(when, sizeof when, ", recorded %Y-%m-%d %H:%M:%S UTC", &tm);
    }
    snprintf(head, sizeof head, "ingot doctor, %s, on %s: %.1f s%s", level_names[d->level], d->host,
             d->seconds, when);
    text_wrap(out, 0, 0, columns, head);
}

void doctor_print(const struct doctor *d, FILE *out, int columns, bool all)
{
    int counts[4] = {0};
    if (all) print_head(d, out, columns);
    for (int i = 0; i < d->count; i++) {
        const struct doctor_finding *f = &d->findings[i];
        counts[f->verdict]++;
        if (f->verdict == DOCTOR_SKIP && all)
            print_skipped(d, i, out, columns);
        else if (all || f->verdict >= DOCTOR_WARN)
            print_finding(d, i, out, columns);
    }
    if (!all) return;
    fprintf(out, "%s: %d passed, %d skipped, %d warnings, %d failures\n",
            counts[DOCTOR_FAIL]   ? "FAIL"
            : counts[DOCTOR_WARN] ? "WARN"
                                  : "PASS",
            counts[DOCTOR_PASS], counts[DOCTOR_SKIP], counts[DOCTOR_WARN], counts[DOCTOR_FAIL]);
}

void doctor_print_checks(FILE *out)
{
    fprintf(out,
            "| check | group | level | exit | reads | limit | remedy |\n|---|---|---|---|---|---|---|\n");
    for (int i = 0; doctor_check(i); i++) {
        const struct doctor_check *c = doctor_check(i);
        fprintf(out, "| %s | %s | %s | %d | %s | %s | %s |\n", c->name, c->group, level_names[c->level],
                (int)c->code, c->reads, c->limit, c->remedy);
    }
}

static void set_number(json_t *o, const char *key, double value)
{
    if (isfinite(value)) json_object_set_new(o, key, json_real(value));
}

static json_t *finding_json(const struct doctor_finding *f)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "id", f->check->name, "group",
                          f->check->group, "verdict", doctor_verdict_text(f->verdict), "entity", f->entity,
                          "why", f->text, "source", f->check->reads, "limit", f->check->limit);
    CHECK(o, "the finding of '%s' is not JSON", f->check->name);
    set_number(o, "measured", f->measured);
    set_number(o, "expected", f->expected);
    if (f->verdict >= DOCTOR_WARN) json_object_set_new(o, "try", json_string(f->check->remedy));
    set_number(o, "ms", 1e3 * f->seconds);
    return o;
}

json_t *doctor_json(const struct doctor *d, bool strict)
{
    json_t *checks = json_array(), *cards = json_array();
    for (int i = 0; i < d->count; i++) json_array_append_new(checks, finding_json(&d->findings[i]));
    for (int i = 0; i < d->cards; i++) {
        const struct nvml_card *c = &d->card[i];
        json_array_append_new(cards, json_pack("{s:i, s:s, s:s, s:s, s:s}", "index", i, "name", c->name,
                                               "uuid", c->uuid, "pci", c->pci, "vbios", c->vbios));
    }
    return json_pack("{s:s, s:s, s:f, s:f, s:s, s:s, s:i, s:s, s:o, s:o, s:O}", "schema", "ingot.doctor/1",
                     "host", d->host, "time", d->system.now_s, "seconds", d->seconds, "level",
                     level_names[d->level], "verdict", doctor_verdict_text(doctor_verdict(d)), "exit",
                     (int)doctor_exit(d, strict), "driver", d->driver, "cards", cards, "checks", checks,
                     "rates", d->rates);
}

int doctor_nagios(const struct doctor *d, FILE *out)
{
    static const char *const words[] = {"OK", "WARNING", "CRITICAL", "UNKNOWN"};
    const enum doctor_verdict worst = doctor_verdict(d);
    const int code = d->count == 0 ? 3 : worst == DOCTOR_FAIL ? 2 : worst == DOCTOR_WARN ? 1 : 0;
    int counts[4] = {0}, shown = 0;
    for (int i = 0; i < d->count; i++) counts[d->findings[i].verdict]++;
    fprintf(out, "INGOT %s - ", words[code]);
    for (int i = 0; i < d->count && worst > DOCTOR_SKIP; i++) {
        const struct doctor_finding *f = &d->findings[i];
        if (f->verdict != worst) continue;
        fprintf(out, "%s%s: ", shown++ ? "; " : "", f->check->name);
        for (const char *c = f->text; *c; c++)
            fputc(*c == '|' || *c == '\n' ? ' ' : *c, out); /* "|" ends the text */
    }
    if (shown == 0) fprintf(out, "%d checks passed", counts[DOCTOR_PASS]);
    fprintf(out, " | pass=%d skip=%d warn=%d;0 fail=%d;;0 seconds=%.2fs\n", counts[DOCTOR_PASS],
            counts[DOCTOR_SKIP], counts[DOCTOR_WARN], counts[DOCTOR_FAIL], d->seconds);
    return code;
}
