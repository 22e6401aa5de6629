#include "observe/ledger.h"
#include "base/clock.h"
#include "base/log.h"
#include "observe/observe_int.h"

#include <jansson.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Time between marks, which a kill may hide: a thousandth of the process's, from one second to ten. */
static double mark_after(double lasted)
{
    return fmin(10, fmax(1, 1e-3 * lasted));
}

static const char *const keys[] = {
#define X(name, key, text) key,
    LEDGER_CLASSES(X)
#undef X
};

struct ledger {
    struct sink sink;
    double seconds[LEDGER_COUNT]; /* of this process so far; STOPPED, LOST, OTHER: not here */
    double began, marked_s;
    bool stepped;
};

static void line(struct ledger *l, const char *kind, int64_t step, const char *more)
{
    char text[768], number[32];
    size_t at = (size_t)snprintf(text, sizeof text, "{\"kind\":\"%s\",\"time\":%.3f,\"step\":%lld%s", kind,
                                 clock_wall_s(), (long long)step, more);
    for (int k = 0; k <= LEDGER_START; k++)
        at += (size_t)snprintf(text + at, sizeof text - at, ",\"%s\":%s", keys[k],
                               metrics_number(number, l->seconds[k]));
    at += (size_t)snprintf(text + at, sizeof text - at, "}\n");
    sink_append(&l->sink, text, at);
    l->marked_s = clock_s();
}

void ledger_open(struct ledger **out, const char *run_dir, double began, int64_t step)
{
    char path[1200], text[160];
    struct ledger *l = calloc(1, sizeof *l);
    MEMORY_CHECK(l, "no memory for a run's ledger");
    snprintf(path, sizeof path, "%s/ledger.jsonl", run_dir);
    *out = NULL;
    if (sink_open(&l->sink, path, SINK_APPEND) != STATUS_OK) {
        log_warn("%s; the run has no ledger", status_message());
        free(l);
        return;
    }
    l->began = began;
    l->marked_s = clock_s();
    int n = snprintf(text, sizeof text, "%s{\"kind\":\"start\",\"time\":%.3f,\"step\":%lld}\n",
                     l->sink.good ? "" : "{\"kind\":\"schema\",\"format\":\"ingot ledger\",\"version\":1}\n",
                     began, (long long)step);
    /* Without its start the marks would be the process's before. */
    if (sink_begin(&l->sink, text, (size_t)n) != STATUS_OK) {
        log_warn("%s; the run has no ledger of this process", status_message());
        sink_close(&l->sink);
        free(l);
        return;
    }
    *out = l;
}

void ledger_add(struct ledger *l, enum ledger_class what, double seconds)
{
    if (l && seconds > 0) l->seconds[what] += seconds;
}

void ledger_step(struct ledger *l, int64_t step, double seconds, double waited, double exchange)
{
    if (l == NULL) return;
    if (!l->stepped) ledger_add(l, LEDGER_START, clock_wall_s() - seconds - l->began);
    l->stepped = true;
    ledger_add(l, LEDGER_DATA, waited);
    ledger_add(l, LEDGER_EXCHANGE, exchange);
    ledger_add(l, LEDGER_COMPUTE, seconds - waited - exchange);
    if (clock_s() - l->marked_s >= mark_after(clock_wall_s() - l->began)) line(l, "mark", step, "");
}

void ledger_saved(struct ledger *l, int64_t step)
{
    if (l) line(l, "mark", step, "");
}

void ledger_back(struct ledger *l, int64_t step)
{
    if (l) line(l, "back", step, "");
}

void ledger_close(struct ledger *l, int64_t step, int code)
{
    char more[32];
    if (l == NULL) return;
    snprintf(more, sizeof more, ",\"code\":%d", code);
    line(l, "end", step, more);
    sink_sync(&l->sink);
    sink_close(&l->sink);
    free(l);
}

/* ---- reading: a part is what lies between two lines of a process */

struct part {
    int64_t from, to; /* steps */
    double seconds[LEDGER_COUNT];
};
struct reading {
    struct part *parts;
    int count, room;
    double last[LEDGER_COUNT]; /* sums of the process at its last line */
    double time;               /* of the last line */
    int64_t step;
    bool ended;
};

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : 0;
}

static struct part *add_part(struct reading *r, int64_t to)
{
    if (r->count == r->room) {
        r->room = r->room ? 2 * r->room : 64;
        r->parts = realloc(r->parts, (size_t)r->room * sizeof *r->parts);
        MEMORY_CHECK(r->parts, "no memory for %d parts of a ledger", r->room);
    }
    struct part *p = &r->parts[r->count++];
    *p = (struct part){.from = r->step, .to = to};
    return p;
}

/* What was trained behind a step did not count. */
static void lose(struct reading *r, int64_t step)
{
    for (int i = 0; i < r->count; i++) {
        struct part *p = &r->parts[i];
        if (p->to <= step) continue;
        const double share = p->from >= step ? 1 : (double)(p->to - step) / (double)(p->to - p->from);
        for (int k = 0; k < LEDGER_COUNT; k++) {
            if (k == LEDGER_START || k == LEDGER_LOST || k == LEDGER_STOPPED) continue;
            p->seconds[LEDGER_LOST] += share * p->seconds[k];
            p->seconds[k] -= share * p->seconds[k];
        }
        p->to = p->from >= step ? p->from : step; /* lost once */
        if (p->from >= step) p->from = p->to = step;
    }
    r->step = step;
}

static void start(struct reading *r, const json_t *o)
{
    const double time = number(o, "time");
    lose(r, (int64_t)number(o, "step"));
    if (r->count || r->time > 0) {
        struct part *p = add_part(r, r->step);
        if (time > r->time) p->seconds[LEDGER_STOPPED] = time - r->time;
    }
    memset(r->last, 0, sizeof r->last);
    r->time = time;
    r->ended = false;
}

static void mark(struct reading *r, const json_t *o)
{
    double known = 0;
    const double time = number(o, "time");
    const int64_t step = (int64_t)number(o, "step");
    struct part *p = add_part(r, step > r->step ? step : r->step);
    for (int k = 0; k <= LEDGER_START; k++) {
        const double sum = number(o, keys[k]);
        p->seconds[k] = sum > r->last[k] ? sum - r->last[k] : 0;
        r->last[k] = sum;
        known += p->seconds[k];
    }
    const double passed = time - r->time;
    for (int k = 0; k <= LEDGER_START && known > passed; k++) /* clocks differ: the wall counts */
        p->seconds[k] *= passed > 0 ? passed / known : 0;
    if (passed > known) p->seconds[LEDGER_OTHER] = passed - known;
    if (time > r->time) r->time = time;
    r->step = p->to;
}

static void read_line(struct reading *r, const json_t *o, struct ledger_sum *out)
{
    const char *kind = json_string_value(json_object_get(o, "kind"));
    if (kind == NULL || !json_is_number(json_object_get(o, "time"))) return;
    if (strcmp(kind, "start") == 0) {
        if (out->starts++ == 0) out->first = number(o, "time");
        start(r, o);
    } else if (out->starts && strcmp(kind, "back") == 0) {
        const int64_t to = (int64_t)number(o, "step");
        mark(r, o);
        lose(r, to);
    } else if (out->starts && (strcmp(kind, "mark") == 0 || strcmp(kind, "end") == 0)) {
        mark(r, o);
        r->ended = kind[0] == 'e';
    }
}

status ledger_read(const char *run_dir, double now, struct ledger_sum *out)
{
    char path[1200], *text = NULL;
    size_t room = 0;
    struct reading r = {0};
    *out = (struct ledger_sum){0};
    snprintf(path, sizeof path, "%s/ledger.jsonl", run_dir);
    FILE *in = fopen(path, "re");
    MEMORY_CHECK(in || errno != ENOMEM, "no memory to read %s", path);
    if (in == NULL)
        return FAIL(STATUS_DATA, "%s has no ledger: not a run of this version, or it never began", run_dir);
    for (ssize_t n; (n = getline(&text, &room, in)) > 0;) {
        json_t *o = json_loadb(text, (size_t)n, 0, NULL);
        read_line(&r, o, out);
        json_decref(o);
    }
    free(text);
    fclose(in);
    for (int i = 0; i < r.count; i++)
        for (int k = 0; k < LEDGER_COUNT; k++) out->seconds[k] += r.parts[i].seconds[k];
    if (now > r.time && !r.ended) { /* since the last line of a process that runs */
        out->seconds[LEDGER_OTHER] += now - r.time;
        r.time = now;
    }
    out->wall = r.time - out->first;
    out->step = r.step;
    out->ended = r.ended;
    free(r.parts);
    return out->starts ? STATUS_OK : FAIL(STATUS_DATA, "%s: no start in it", path);
}
