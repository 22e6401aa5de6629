#include "observe/forks.h"
#include "base/clock.h"
#include "base/memory.h"
#include "observe/observe_int.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOSSES_MAX = 4000 }; /* of a fork that are read: a page stays small */

static json_t *line_next(FILE *in, char **line, size_t *room)
{
    for (ssize_t n; (n = getline(line, room, in)) > 0;) {
        json_t *o = json_loadb(*line, (size_t)n, 0, NULL);
        if (json_is_object(o)) return o;
        json_decref(o);
    }
    return NULL;
}

static bool is_kind(const json_t *o, const char *kind)
{
    const char *s = json_string_value(json_object_get(o, "kind"));
    return s && strcmp(s, kind) == 0;
}

static void append(struct sink *s, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    MEMORY_CHECK(text, "no memory for a record");
    const size_t n = strlen(text);
    text[n] = '\n';
    sink_append(s, text, n + 1);
    free(text);
    json_decref(o);
}

static json_t *head_of(const struct fork_place *f)
{
    json_t *o = json_pack("{s:s, s:I, s:s, s:f}", "kind", "fork", "step", (json_int_t)f->step, "why", f->why,
                          "time", clock_wall_s());
    if (f->skip_from)
        json_object_set_new(o, "skip", json_pack("[I, I]", (json_int_t)f->skip_from, (json_int_t)f->skip_to));
    return o;
}

status forks_record(const char *run_dir, const struct fork_place *f)
{
    char path[1200], *line = NULL;
    size_t room = 0;
    struct sink out = {.file.fd = -1};
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    FILE *in = fopen(path, "re");
    MEMORY_CHECK(in || errno != ENOMEM, "no memory to read %s", path);
    if (in == NULL) return STATUS_OK;
    snprintf(path, sizeof path, "%s/forks.jsonl", run_dir);
    status st = STATUS_OK;
    for (json_t *o; st == STATUS_OK && (o = line_next(in, &line, &room)); json_decref(o)) {
        const json_t *step = json_object_get(o, "step"), *loss = json_object_get(o, "loss");
        if (!is_kind(o, "step") || !json_is_number(loss) || json_integer_value(step) <= f->step) continue;
        if (out.file.fd < 0) {
            st = sink_open(&out, path, SINK_APPEND);
            if (st == STATUS_OK) append(&out, head_of(f));
        }
        if (st == STATUS_OK)
            append(&out, json_pack("{s:s, s:I, s:f}", "kind", "step", "step", json_integer_value(step),
                                   "loss", json_number_value(loss)));
    }
    free(line);
    fclose(in);
    if (out.file.fd >= 0) sink_sync(&out);
    sink_close(&out);
    return st;
}

int64_t forks_last_step(const char *run_dir)
{
    char path[1200], *line = NULL;
    size_t room = 0;
    int64_t last = -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    FILE *in = fopen(path, "re");
    MEMORY_CHECK(in || errno != ENOMEM, "no memory to read %s", path);
    if (in == NULL) return -1;
    for (json_t *o; (o = line_next(in, &line, &room)); json_decref(o))
        if (is_kind(o, "step") && json_object_get(o, "loss"))
            last = json_integer_value(json_object_get(o, "step"));
    free(line);
    fclose(in);
    return last;
}

/* Copies what a page shows of a fork's head. */
static json_t *shown_of(const json_t *head)
{
    static const char *const keys[] = {"step", "skip", "why", "time"};
    json_t *o = json_pack("{s:[[], []]}", "loss");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (json_object_get(head, keys[i])) json_object_set(o, keys[i], json_object_get(head, keys[i]));
    return o;
}

json_t *forks_read(const char *run_dir)
{
    char path[1200], *line = NULL;
    size_t room = 0;
    json_t *list = json_array(), *fork = NULL;
    snprintf(path, sizeof path, "%s/forks.jsonl", run_dir);
    FILE *in = fopen(path, "re");
    MEMORY_CHECK(in || errno != ENOMEM, "no memory to read %s", path);
    for (json_t *o; in && (o = line_next(in, &line, &room)); json_decref(o)) {
        const json_t *step = json_object_get(o, "step"), *loss = json_object_get(o, "loss");
        json_t *columns = json_object_get(fork, "loss");
        if (is_kind(o, "fork") && json_is_integer(step)) {
            fork = shown_of(o);
            json_array_append_new(list, fork);
        } else if (fork && is_kind(o, "step") && json_is_integer(step) && json_is_number(loss) &&
                   fabs(json_number_value(loss)) < 1e30 &&
                   json_array_size(json_array_get(columns, 0)) < LOSSES_MAX) {
            json_array_append_new(json_array_get(columns, 0), json_integer(json_integer_value(step)));
            json_array_append_new(json_array_get(columns, 1), json_real(json_number_value(loss)));
        }
    }
    free(line);
    if (in) fclose(in);
    return list;
}
