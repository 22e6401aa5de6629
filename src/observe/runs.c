#include "observe/runs.h"
#include "base/io.h"
#include "observe/report_int.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* TAIL_BYTES: some 10,000 records. */
enum { DEPTH_MAX = 3, TAIL_BYTES = 4 << 20 };
struct found {
    struct run_summary *list;
    int count, room;
};

static status is_run(const char *dir, bool *is)
{
    static const char *const names[] = {"metrics.jsonl", "env.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[1100];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        TRY(io_exists(path, is));
        if (*is) return STATUS_OK;
    }
    return STATUS_OK;
}

static struct run_summary *next_of(struct found *f)
{
    if (f->count == f->room) {
        f->room = f->room ? 2 * f->room : 16;
        f->list = realloc(f->list, (size_t)f->room * sizeof *f->list);
        MEMORY_CHECK(f->list != NULL, "no memory for %d runs", f->room);
    }
    return &f->list[f->count++];
}

static void add_other(struct found *f, const char *dir)
{
    const char *slash = strrchr(dir, '/');
    struct run_summary *r = next_of(f);
    *r = (struct run_summary){.other = true,
                              .exit_code = -1,
                              .loss = NAN,
                              .val_loss = NAN,
                              .val_bpb = NAN,
                              .tokens_per_s = NAN,
                              .last_s = NAN};
    snprintf(r->path, sizeof r->path, "%s", dir);
    snprintf(r->name, sizeof r->name, "%.255s", slash ? slash + 1 : dir);
    snprintf(r->state, sizeof r->state, "another version");
}

static status add(struct found *f, const char *dir)
{
    struct report_data d;
    char layers[32], width[32];
    const status st = report_data_read(&d, dir, TAIL_BYTES);
    if (st == STATUS_CONFIG) add_other(f, dir);
    if (st == STATUS_CONFIG) return STATUS_OK;
    TRY(st);
    struct run_summary *r = next_of(f);
    *r = (struct run_summary){.parameters = report_data_parameters(&d),
                              .steps = d.steps,
                              .planned = report_data_planned(&d),
                              .tokens = d.tokens,
                              .loss = report_data_loss(&d, NULL),
                              .val_loss = series_last(&d.val_loss),
                              .val_bpb = series_last(&d.val_bpb),
                              .tokens_per_s = series_median(&d.tokens_per_s),
                              .last_s = d.last_s};
    snprintf(r->path, sizeof r->path, "%s", d.path);
    snprintf(r->name, sizeof r->name, "%s", d.name);
    report_data_config(&d, "model.layer_count", layers, sizeof layers);
    report_data_config(&d, "model.hidden_size", width, sizeof width);
    if (layers[0] && width[0]) snprintf(r->model, sizeof r->model, "%s x %s", layers, width);
    const enum report_state state = report_data_state(&d, &r->exit_code);
    report_state_text(r->state, state, r->exit_code);
    report_data_free(&d);
    return STATUS_OK;
}

/* A run's own directories hold no runs. */
static status find(struct found *f, const char *dir, int depth)
{
    struct io_list names;
    bool run;
    TRY(is_run(dir, &run));
    if (run) return add(f, dir);
    if (depth == DEPTH_MAX) return STATUS_OK;
    TRY(io_list(dir, &names));
    status st = STATUS_OK;
    for (int i = 0; i < names.count && st == STATUS_OK; i++) {
        char path[1024];
        struct stat info;
        if (names.names[i][0] == '.') continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, names.names[i]) >= (int)sizeof path) continue;
        if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) st = find(f, path, depth + 1);
    }
    io_list_free(&names);
    return st;
}

static int latest_first(const void *a, const void *b)
{
    const struct run_summary *x = a, *y = b;
    const double tx = isnan(x->last_s) ? -1 : x->last_s, ty = isnan(y->last_s) ? -1 : y->last_s;
    if (tx != ty) return tx < ty ? 1 : -1;
    return strcmp(x->path, y->path);
}

status runs_find(const char *dir, struct run_summary **list, int *count)
{
    struct found f = {0};
    struct stat info;
    *list = NULL;
    *count = 0;
    if (stat(dir, &info) != 0)
        return FAIL(STATUS_IO, "%s: %s; name the directory that holds the runs: ingot runs DIR", dir,
                    strerror(errno));
    if (!S_ISDIR(info.st_mode)) return FAIL(STATUS_IO, "%s is no directory: ingot runs DIR", dir);
    status st = find(&f, dir, 0);
    if (st != STATUS_OK) {
        free(f.list);
        return st;
    }
    if (f.count) qsort(f.list, (size_t)f.count, sizeof *f.list, latest_first);
    *list = f.list;
    *count = f.count;
    return STATUS_OK;
}
