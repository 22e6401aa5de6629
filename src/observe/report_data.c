/* Reads a run directory for the report. The run may have crashed, may still run, or may have made no step.
 * Unreadable lines are counted and skipped. */
#include "observe/report_int.h"
#include "observe/observe_int.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL_FILE_BYTES = 16 << 20 };

/* Makes room for one more. */
static void *grow(void *list, int64_t count, int64_t *room, size_t size)
{
    if (count < *room) return list;
    *room = *room ? *room * 2 : 64;
    list = realloc(list, (size_t)*room * size);
    CHECK(list != NULL, "out of memory for %lld records", (long long)*room);
    return list;
}

static void named_add(struct report_named **list, int64_t *count, int64_t *room, const char *name,
                      double value)
{
    for (int64_t i = 0; i < *count; i++)
        if (strcmp((*list)[i].name, name) == 0) {
            (*list)[i].value = value;
            return;
        }
    *list = grow(*list, *count, room, sizeof **list);
    (*list)[(*count)++] = (struct report_named){strdup(name), value};
}

/* A number that can be drawn: far values would overflow the arithmetic of the axes. */
static bool number(const json_t *o, const char *key, double *v)
{
    const json_t *n = json_object_get(o, key);
    if (!json_is_number(n)) return false;
    *v = json_number_value(n);
    return fabs(*v) < 1e30;
}
static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

struct clock_state {
    double part_from; /* time of the last start record, or of the first record without one; NAN before */
    double last;      /* time of the last record of this part */
};
static void end_part(struct report_data *d, struct clock_state *c)
{
    if (c->last > c->part_from) d->wall_s += c->last - c->part_from;
    c->part_from = c->last = NAN;
}

static void read_step(struct report_data *d, const json_t *o, double step, struct clock_state *c)
{
    double v;
#define X(name, tag)                                                                                         \
    if (number(o, #name, &v)) series_add(&d->name, step, v);
    METRIC_LIST(X)
#undef X
    if (step < 9e15 && (int64_t)step > d->steps) d->steps = (int64_t)step;
    if (number(o, "tokens", &v) && v >= 0 && v < 9e18) d->tokens = (int64_t)v;
    if (!number(o, "time", &v)) return;
    if (isnan(c->part_from)) c->part_from = v;
    c->last = v;
}

static bool read_record(struct report_data *d, const json_t *o, struct clock_state *c)
{
    const char *kind = text(o, "kind");
    double step = 0, v = 0;
    bool has_step = number(o, "step", &step) && step >= 0;
    bool has_value = number(o, "value", &v);
    if (strcmp(kind, "step") == 0 && has_step)
        read_step(d, o, step, c);
    else if (strcmp(kind, "start") == 0 && has_step) {
        end_part(d, c);
        if (number(o, "time", &v)) c->part_from = v;
        series_add(&d->starts, step, 0);
    } else if (strcmp(kind, "fact") == 0 && has_value) {
        named_add(&d->facts, &d->fact_count, &d->fact_room, text(o, "name"), v);
    } else if (strcmp(kind, "stage") == 0 && has_value && v >= 0) {
        named_add(&d->stages, &d->stage_count, &d->stage_room, text(o, "name"), v);
    } else if (strcmp(kind, "sample") == 0 && has_step && step < 9e15) {
        d->samples = grow(d->samples, d->sample_count, &d->sample_room, sizeof *d->samples);
        d->samples[d->sample_count++] =
            (struct report_sample){(int64_t)step, strdup(text(o, "prompt")), strdup(text(o, "text"))};
    } else
        return kind[0] != 0; /* another kind: of a later version */
    return true;
}

static bool read_metrics(struct report_data *d, const char *path)
{
    FILE *in = fopen(path, "re");
    if (in == NULL) return false;
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    struct clock_state c = {NAN, NAN};
    while ((n = getline(&line, &room, in)) > 0) {
        json_t *o = json_loadb(line, (size_t)n, 0, NULL);
        if (!json_is_object(o) || !read_record(d, o, &c)) d->unreadable++;
        json_decref(o);
    }
    end_part(d, &c);
    free(line);
    fclose(in);
    return true;
}

/* Contents as valid UTF-8, or NULL. */
static char *small_file(const char *run_dir, const char *name)
{
    char path[1024], *data;
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", run_dir, name);
    if (!io_exists(path) || io_read_file(path, SMALL_FILE_BYTES, &data, &bytes) != STATUS_OK) return NULL;
    char *clean = utf8_clean(data, bytes);
    free(data);
    return clean;
}
static json_t *small_object(const char *run_dir, const char *name)
{
    char *data = small_file(run_dir, name);
    json_t *o = data ? json_loads(data, 0, NULL) : NULL;
    free(data);
    if (json_is_object(o)) return o;
    json_decref(o);
    return NULL;
}

status report_data_read(struct report_data *d, const char *run_dir)
{
    *d = (struct report_data){0};
    char path[1024], full[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir) >= (int)sizeof path)
        return FAIL(STATUS_IO, "%.80s...: the path is too long", run_dir);
    bool has_metrics = read_metrics(d, path);
    d->env = small_object(run_dir, "env.json");
    d->exit = small_object(run_dir, "exit.json");
    d->config = small_file(run_dir, "config.yaml");
    if (!has_metrics && d->env == NULL && d->exit == NULL && d->config == NULL)
        return FAIL(STATUS_DATA,
                    "%s: not a run directory: no metrics.jsonl, env.json, exit.json or config.yaml in it",
                    run_dir);
    const char *whole = realpath(run_dir, full) ? full : run_dir, *slash = strrchr(whole, '/');
    char *clean = utf8_clean(slash ? slash + 1 : whole, strlen(slash ? slash + 1 : whole));
    snprintf(d->name, sizeof d->name, "%s", clean);
    free(clean);
    return STATUS_OK;
}

void report_data_free(struct report_data *d)
{
#define X(name, tag) series_free(&d->name);
    METRIC_LIST(X)
#undef X
    series_free(&d->starts);
    for (int64_t i = 0; i < d->fact_count; i++) free(d->facts[i].name);
    for (int64_t i = 0; i < d->stage_count; i++) free(d->stages[i].name);
    for (int64_t i = 0; i < d->sample_count; i++) {
        free(d->samples[i].prompt);
        free(d->samples[i].text);
    }
    free(d->facts);
    free(d->stages);
    free(d->samples);
    free(d->config);
    json_decref(d->env);
    json_decref(d->exit);
}

double report_data_fact(const struct report_data *d, const char *name)
{
    for (int64_t i = 0; i < d->fact_count; i++)
        if (strcmp(d->facts[i].name, name) == 0) return d->facts[i].value;
    return NAN;
}
