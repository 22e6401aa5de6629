/* Alerts as JSON, and alerts.jsonl read again. */
#include "base/memory.h"
#include "base/utf8.h"
#include "observe/alert.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct alert *alert_add(struct alert_list *l, const char *name, status code, double time, int64_t step,
                        const char *where, const char *fmt, ...)
{
    va_list args;
    if (l->count == ALERTS_MAX) memmove(l->list, l->list + 1, sizeof l->list[0] * (size_t)--l->count);
    struct alert *a = &l->list[l->count++];
    *a = (struct alert){.code = code, .time = time, .step = step, .rank = -1, .seconds = NAN, .share = NAN};
    snprintf(a->name, sizeof a->name, "%s", name);
    snprintf(a->where, sizeof a->where, "%s", where);
    va_start(args, fmt);
    vsnprintf(a->text, sizeof a->text, fmt, args);
    va_end(args);
    return a;
}

static void set(json_t *o, const char *key, double v)
{
    if (isfinite(v)) json_object_set_new(o, key, json_real(v));
}

json_t *alert_json(const char *run, const struct alert *a)
{
    char *text = utf8_clean(a->text, strlen(a->text));
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:s}", "run", run, "alert", a->name, "state",
                          a->over ? "over" : "on", "verdict", a->code == STATUS_OK ? "warn" : "fail", "exit",
                          (int)a->code, "where", a->where, "text", text);
    free(text);
    MEMORY_CHECK(o != NULL, "no memory for an alert");
    set(o, "time", a->time);
    if (a->step >= 0) json_object_set_new(o, "step", json_integer(a->step));
    if (a->rank >= 0) json_object_set_new(o, "rank", json_integer(a->rank));
    set(o, "seconds", a->seconds);
    set(o, "share", a->share);
    return o;
}

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static int64_t whole(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v) : -1;
}

static const char *string(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* The one that this line ends; NULL: none. */
static struct alert *open_one(struct alert_list *l, const json_t *o)
{
    for (int i = l->count - 1; i >= 0; i--)
        if (!l->list[i].over && strcmp(l->list[i].name, string(o, "alert")) == 0 &&
            strcmp(l->list[i].where, string(o, "where")) == 0)
            return &l->list[i];
    return NULL;
}

static void read_alert(struct alert_list *l, const json_t *o)
{
    const bool over = strcmp(string(o, "state"), "over") == 0;
    const int64_t code = whole(o, "exit");
    struct alert *a = open_one(l, o);
    if (a == NULL || !over)
        a = alert_add(l, string(o, "alert"), STATUS_OK, NAN, -1, string(o, "where"), "%s", "");
    a->code = code > 0 && code < 256 ? (status)code : STATUS_OK;
    a->time = number(o, "time");
    a->step = whole(o, "step");
    a->rank = (int)whole(o, "rank");
    a->seconds = number(o, "seconds");
    a->share = number(o, "share");
    a->over = over;
    snprintf(a->text, sizeof a->text, "%s", string(o, "text"));
}

/* Another process begins: what was on in the last one is not known to be on. */
static void read_start(struct alert_list *l)
{
    for (int i = 0; i < l->count; i++) {
        l->list[i].over = true;
        if (l->list[i].code != STATUS_DEVICE) l->list[i].code = STATUS_OK;
    }
}

bool alert_lines_read(const char *run_dir, struct alert_list *l)
{
    enum { TAIL_BYTES = 1 << 20 };
    char path[1200], *line = NULL;
    size_t room = 0;
    ssize_t n = 0;
    snprintf(path, sizeof path, "%.1100s/alerts.jsonl", run_dir);
    l->count = 0;
    FILE *in = fopen(path, "re");
    if (in == NULL) return false;
    if (fseek(in, -(long)TAIL_BYTES, SEEK_END) == 0) n = getline(&line, &room, in);
    while (n >= 0 && (n = getline(&line, &room, in)) > 0) {
        json_t *o = json_loadb(line, (size_t)n, 0, NULL);
        if (strcmp(string(o, "kind"), "alert") == 0) read_alert(l, o);
        if (strcmp(string(o, "kind"), "start") == 0) read_start(l);
        json_decref(o);
    }
    free(line);
    fclose(in);
    return true;
}
