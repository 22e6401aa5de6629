#include "observe/past.h"
#include "base/io.h"
#include "base/memory.h"
#include "observe/report_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TAIL = 256 << 10, /* the facts stand at the end of a run */
    FILE_BYTES_MAX = 1 << 24,
    DEPTH_MAX = 3
};

struct found {
    struct past_forecast *list; /* [PAST_MAX], owned */
    int count;
};

static void add(struct found *out, const struct past_forecast *f)
{
    if (!(f->predicted > 0 && f->measured > 0)) return;
    if (out->count == PAST_MAX) memmove(out->list, out->list + 1, (size_t)--out->count * sizeof *out->list);
    out->list[out->count++] = *f;
}

/* ---- a line of forecast.jsonl */

static void read_line(struct found *out, const char *line, size_t bytes)
{
    json_t *o = json_loadb(line, bytes, 0, NULL);
    const char *kind = json_string_value(json_object_get(o, "kind")),
               *machine = json_string_value(json_object_get(o, "machine")),
               *rates = json_string_value(json_object_get(o, "rates"));
    const double planned = json_number_value(json_object_get(o, "predicted_bytes")),
                 taken = json_number_value(json_object_get(o, "measured_bytes"));
    if (kind && strcmp(kind, "run") == 0 && machine && rates) {
        struct past_forecast f = {.row = strcmp(rates, "row") == 0,
                                  .predicted = json_number_value(json_object_get(o, "predicted_step_s")),
                                  .measured = json_number_value(json_object_get(o, "measured_step_s")),
                                  .bytes = planned > 0 ? taken / planned : (double)NAN};
        snprintf(f.machine, sizeof f.machine, "%s", machine);
        add(out, &f);
    }
    json_decref(o);
}

static status read_file(struct found *out, const char *path)
{
    char *text;
    size_t bytes;
    TRY(io_read_file(path, FILE_BYTES_MAX, &text, &bytes));
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
        read_line(out, line, (size_t)(end - line));
    free(text);
    return STATUS_OK;
}

/* ---- a run */

/* What is left of a run from before forecast.jsonl: its facts. */
static status read_facts(const char *run_dir, struct past_forecast *f)
{
    struct report_data d;
    const status st = report_data_read(&d, run_dir, TAIL);
    *f = (struct past_forecast){.predicted = NAN, .measured = NAN, .bytes = NAN};
    if (st == STATUS_OK) {
        const char *device = json_string_value(json_object_get(d.env, "device"));
        snprintf(f->device, sizeof f->device, "%s", device ? device : "");
        f->row = strcmp(f->device, "cpu") != 0;
        f->predicted = report_data_fact(&d, "predicted_step_s");
        f->measured = report_data_fact(&d, "measured_step_s");
    }
    report_data_free(&d);
    return st;
}

static status has_file(const char *dir, const char *name, char path[1200], bool *has)
{
    enum io_kind kind;
    snprintf(path, 1200, "%.1000s/%s", dir, name);
    TRY(io_kind(path, &kind));
    *has = kind == IO_FILE;
    return STATUS_OK;
}

/* *run: it is a run's directory. */
static status read_run(struct found *out, const char *dir, bool *run)
{
    char path[1200];
    struct past_forecast old;
    TRY(has_file(dir, "forecast.jsonl", path, run));
    if (*run) return read_file(out, path);
    TRY(has_file(dir, "metrics.jsonl", path, run));
    if (*run && read_facts(dir, &old) == STATUS_OK) add(out, &old);
    return STATUS_OK;
}

static status read_dir(struct found *out, const char *dir, int depth)
{
    struct io_list names;
    bool run;
    TRY(read_run(out, dir, &run));
    if (run || depth == DEPTH_MAX) return STATUS_OK;
    TRY(io_list(dir, &names));
    status st = STATUS_OK;
    for (int i = 0; st == STATUS_OK && i < names.count; i++) {
        char path[1024];
        enum io_kind kind;
        if (names.names[i][0] == '.') continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, names.names[i]) >= (int)sizeof path) continue;
        st = io_kind(path, &kind);
        if (st == STATUS_OK && kind == IO_DIR) st = read_dir(out, path, depth + 1);
    }
    io_list_free(&names);
    return st;
}

static struct past_forecast *list_new(void)
{
    struct past_forecast *list = calloc(PAST_MAX, sizeof *list);
    MEMORY_CHECK(list != NULL, "no memory for forecasts of earlier runs");
    return list;
}

status past_of(const char *run_dir, struct past_forecast *f)
{
    char path[1200];
    bool has;
    TRY(read_facts(run_dir, f));
    TRY(has_file(run_dir, "forecast.jsonl", path, &has));
    if (!has) return STATUS_OK;
    struct found found = {list_new(), 0};
    const status st = read_file(&found, path);
    if (found.count > 0) {
        struct past_forecast newest = found.list[found.count - 1];
        memcpy(newest.device, f->device, sizeof newest.device);
        *f = newest;
    }
    free(found.list);
    return st;
}

status past_find(const char *path, struct past_forecast **list, int *count)
{
    enum io_kind kind;
    *list = NULL;
    *count = 0;
    TRY(io_kind(path, &kind));
    if (kind != IO_FILE && kind != IO_DIR)
        return FAIL(STATUS_CONFIG, "--past %s: there is no forecast.jsonl and no directory of runs", path);
    struct found found = {list_new(), 0};
    const status st = kind == IO_FILE ? read_file(&found, path) : read_dir(&found, path, 0);
    if (st != STATUS_OK) {
        free(found.list);
        return st;
    }
    *list = found.list;
    *count = found.count;
    return STATUS_OK;
}
