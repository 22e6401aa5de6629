#include "observe/evals.h"
#include "observe/observe_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void path_of(char path[1200], const char *run_dir)
{
    snprintf(path, 1200, "%.1100s/evals.jsonl", run_dir);
}

status evals_append(const char *run_dir, const json_t *record)
{
    char path[1200], *text = json_dumps(record, JSON_COMPACT);
    struct sink s;
    CHECK(text, "an evaluation is not JSON");
    path_of(path, run_dir);
    status st = sink_open(&s, path, SINK_APPEND);
    const size_t bytes = strlen(text);
    text[bytes] = '\n'; /* over the terminating zero: one write() per line */
    if (st == STATUS_OK) {
        st = io_write(&s.file, text, bytes + 1);
        sink_close(&s);
    }
    free(text);
    return st;
}

static int64_t step_of(const json_t *record)
{
    return json_integer_value(json_object_get(record, "step"));
}

static int by_step(const void *a, const void *b)
{
    const int64_t x = step_of(*(json_t *const *)a), y = step_of(*(json_t *const *)b);
    return (x > y) - (x < y);
}

/* Sorts by moving references to an array of their own. */
static json_t *sorted(json_t *all)
{
    const size_t n = json_array_size(all);
    json_t **list = malloc((n + 1) * sizeof *list), *out = json_array();
    MEMORY_CHECK(list && out, "no memory for %zu evaluations", n);
    for (size_t i = 0; i < n; i++) list[i] = json_array_get(all, i);
    qsort(list, n, sizeof(json_t *), by_step);
    for (size_t i = 0; i < n; i++) json_array_append(out, list[i]);
    free(list);
    json_decref(all);
    return out;
}

json_t *evals_read(const char *run_dir)
{
    char path[1200], *line = NULL;
    size_t room = 0;
    ssize_t n;
    json_t *all = json_array();
    path_of(path, run_dir);
    FILE *in = fopen(path, "re");
    MEMORY_CHECK(in || errno != ENOMEM, "no memory to read %s", path);
    while (in && (n = getline(&line, &room, in)) > 0) {
        json_t *o = json_loadb(line, (size_t)n, 0, NULL);
        if (json_is_integer(json_object_get(o, "step")) && json_is_string(json_object_get(o, "task")))
            json_array_append(all, o);
        json_decref(o);
    }
    free(line);
    if (in) fclose(in);
    return sorted(all);
}

static bool is_text(const json_t *o, const char *key, const char *text)
{
    const char *is = json_string_value(json_object_get(o, key));
    return is && strcmp(is, text) == 0;
}

bool evals_have(const char *run_dir, int64_t step, const char *task, const char *file)
{
    json_t *all = evals_read(run_dir), *o;
    bool have = false;
    size_t i;
    json_array_foreach(all, i, o) have =
        have || (step_of(o) == step && is_text(o, "task", task) && is_text(o, "file", file));
    json_decref(all);
    return have;
}
