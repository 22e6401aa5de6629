#include "observe/host_lines.h"
#include "base/io.h"
#include "base/memory.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAIL_BYTES = 2 << 20 }; /* of eight GPUs: the last two hours */
static const char prefix[] = "gpu-", suffix[] = ".jsonl";

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static struct gpu_lines *gpu_of(struct host_lines *h, int index)
{
    for (int i = 0; i < h->gpus; i++)
        if (h->gpu[i].index == index) return &h->gpu[i];
    if (h->gpus == HOST_LINES_GPUS) return NULL;
    struct gpu_lines *g = &h->gpu[h->gpus++];
    *g = (struct gpu_lines){
        .index = index, .links_most = NAN, .mhz_60 = NAN, .errors_from = NAN, .ecc_from = NAN};
    return g;
}

/* What the windows add up, per GPU: lines come in the order of time, the window ends with the newest, which is known
 * after the first pass. */
struct window {
    double newest; /* time of the host's newest line */
    double mhz[HOST_LINES_GPUS], lines[HOST_LINES_GPUS], before[HOST_LINES_GPUS];
};

static double or_zero(double v)
{
    return isfinite(v) ? v : 0;
}

static void gpu_window(struct host_lines *h, struct window *w, struct gpu_lines *g, const json_t *o)
{
    const double time = number(o, "time");
    const long i = g - h->gpu;
    if (time > w->newest - HOST_LINES_WINDOW_S) {
        g->throttled_s += or_zero(number(o, "sw_thermal_s")) + or_zero(number(o, "hw_thermal_s")) +
                          or_zero(number(o, "power_brake_s"));
        g->capped_s += or_zero(number(o, "power_cap_s"));
        if (isnan(g->errors_from)) g->errors_from = number(o, "link_errors");
        if (isnan(g->ecc_from)) g->ecc_from = number(o, "ecc_uncorrected");
        if (w->before[i] > 0) g->window_s += time - w->before[i];
    }
    if (time > w->newest - 60 && isfinite(number(o, "sm_mhz")))
        w->mhz[i] += number(o, "sm_mhz"), w->lines[i]++;
    if (w->lines[i] > 0) g->mhz_60 = w->mhz[i] / w->lines[i];
    w->before[i] = time;
}

static void gpu_line(struct host_lines *h, struct window *w, const json_t *o)
{
    const json_t *index = json_object_get(o, "gpu");
    struct gpu_lines *g = json_is_integer(index) ? gpu_of(h, (int)json_integer_value(index)) : NULL;
    if (g == NULL) return;
    g->time = number(o, "time");
    const char *uuid = json_string_value(json_object_get(o, "uuid")),
               *pci = json_string_value(json_object_get(o, "pci"));
    snprintf(g->uuid, sizeof g->uuid, "%s", uuid ? uuid : "");
    snprintf(g->pci, sizeof g->pci, "%s", pci ? pci : "");
#define X(name) g->name = number(o, #name);
    GPU_LINE_VALUES(X)
#undef X
    g->links_most = fmax(g->links_most, g->links_active);
    gpu_window(h, w, g, o);
}

static void xid_line(struct host_lines *h, const json_t *o)
{
    if (h->xids == HOST_LINES_XIDS) memmove(h->xid, h->xid + 1, sizeof h->xid[0] * --h->xids);
    h->xid[h->xids++] =
        (struct xid_line){number(o, "time"), (int)or_zero(number(o, "gpu")), (int)or_zero(number(o, "xid"))};
}

static void host_line(struct host_lines *h, const json_t *o)
{
    h->time = number(o, "time");
    h->cpu_percent = number(o, "cpu_percent");
    h->load = number(o, "load");
    h->memory_available = number(o, "memory_available");
    h->disk_free = number(o, "disk_free");
}

/* One pass over the end of the file; `fill` false only looks for the newest time. */
static void pass(FILE *in, long tail_bytes, struct host_lines *h, struct window *w, bool fill)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n = 0;
    rewind(in);
    if (fseeko(in, -tail_bytes, SEEK_END) == 0) n = getline(&line, &room, in);
    while (n >= 0 && (n = getline(&line, &room, in)) > 0) {
        json_t *o = json_loadb(line, (size_t)n, 0, NULL);
        const char *kind = json_string_value(json_object_get(o, "kind"));
        const double time = number(o, "time");
        if (kind == NULL || !isfinite(time)) {
            /* the schema, or a torn line */
        } else if (!fill)
            w->newest = time;
        else if (strcmp(kind, "gpu") == 0)
            gpu_line(h, w, o);
        else if (strcmp(kind, "host") == 0)
            host_line(h, o);
        else if (strcmp(kind, "xid") == 0)
            xid_line(h, o);
        json_decref(o);
    }
    free(line);
}

static bool file_read(struct host_lines *h, const char *run_dir, const char *name, long tail_bytes)
{
    char path[1200];
    struct window w = {0};
    snprintf(path, sizeof path, "%s/%s", run_dir, name);
    FILE *in = fopen(path, "re");
    if (in == NULL) return false;
    *h = (struct host_lines){
        .time = NAN, .cpu_percent = NAN, .load = NAN, .memory_available = NAN, .disk_free = NAN};
    snprintf(h->host, sizeof h->host, "%.*s", (int)(strlen(name) - sizeof prefix - sizeof suffix + 2),
             name + sizeof prefix - 1);
    pass(in, tail_bytes, h, &w, false);
    pass(in, tail_bytes, h, &w, true);
    fclose(in);
    return true;
}

static bool is_record(const char *name)
{
    const size_t n = strlen(name), least = sizeof prefix + sizeof suffix - 2;
    return n > least && strncmp(name, prefix, sizeof prefix - 1) == 0 &&
           strcmp(name + n - sizeof suffix + 1, suffix) == 0;
}

int host_lines_tail(const char *run_dir, long tail_bytes, struct host_lines *list)
{
    struct io_list names;
    int count = 0;
    if (io_list(run_dir, &names) != STATUS_OK) return 0;
    for (int i = 0; i < names.count && count < HOST_LINES_HOSTS; i++)
        count += is_record(names.names[i]) && file_read(&list[count], run_dir, names.names[i], tail_bytes);
    io_list_free(&names);
    return count;
}

int host_lines_read(const char *run_dir, struct host_lines **list)
{
    *list = calloc(HOST_LINES_HOSTS, sizeof **list);
    MEMORY_CHECK(*list != NULL, "no memory for the records of hosts");
    return host_lines_tail(run_dir, TAIL_BYTES, *list);
}

/* A counter that falls has begun anew. The first line of a process says where it stood then: what was drawn between two
 * processes is not the run's. */
static double file_joules(const char *path)
{
    struct {
        char uuid[96];
        double last;
    } gpu[HOST_LINES_GPUS];
    int count = 0;
    char *line = NULL;
    size_t room = 0;
    double sum = NAN;
    FILE *in = fopen(path, "re");
    for (ssize_t n; in && (n = getline(&line, &room, in)) > 0;) {
        json_t *o = json_loadb(line, (size_t)n, 0, NULL);
        const char *uuid = json_string_value(json_object_get(o, "uuid"));
        const double joules = number(o, "joules"), begin = number(o, "joules_begin");
        int i = 0;
        while (uuid && i < count && strncmp(gpu[i].uuid, uuid, sizeof gpu[i].uuid - 1) != 0) i++;
        if (uuid && isfinite(joules) && i < HOST_LINES_GPUS) {
            if (i == count) {
                snprintf(gpu[count++].uuid, sizeof gpu[i].uuid, "%s", uuid);
                gpu[i].last = joules;
            }
            if (isfinite(begin)) gpu[i].last = begin;
            if (joules > gpu[i].last) sum = or_zero(sum) + joules - gpu[i].last;
            gpu[i].last = joules;
        }
        json_decref(o);
    }
    free(line);
    if (in) fclose(in);
    return sum;
}

double host_lines_joules(const char *run_dir)
{
    struct io_list names;
    char path[1200];
    double sum = NAN;
    if (io_list(run_dir, &names) != STATUS_OK) return NAN;
    for (int i = 0; i < names.count; i++) {
        if (!is_record(names.names[i])) continue;
        snprintf(path, sizeof path, "%s/%s", run_dir, names.names[i]);
        const double joules = file_joules(path);
        if (isfinite(joules)) sum = or_zero(sum) + joules;
    }
    io_list_free(&names);
    return sum;
}
