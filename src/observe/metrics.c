/* metrics.jsonl: the source of truth of a run; event files, report and dashboards are derived from it.
 *
 *   {"kind":"schema","format":"ingot metrics","version":1}              line 1
 *   {"kind":"start","step":0,"time":1732150000.123,"every":1}   the program started, or resumed after this step;
 *                                                                every: log.every
 *   {"kind":"gap","step":12,"from":9}   the records of steps 9 to 12 could not be written, and are lost
 *   {"kind":"step","step":1,"tokens":8192,"time":1732150000.512,"loss":9.1,"lr":3e-05,...}   NaN: absent
 *   {"kind":"sample","step":100,"prompt":"In the","text":" beginning"}
 *   {"kind":"fact","step":100,"name":"gzip_bpb","value":2.71}          the last of a name counts
 *   {"kind":"stage","step":100,"name":"block.fwd","value":12.3}      seconds of this process so far, at each save and
 *                                                                    at the end: the last of a process counts
 *   {"kind":"ranks","step":100,"time":1732150010.1,"steps":20,"rank":[0,1],"work_s":[0.48,0.55],"wait_s":[0.07,0],
 *    "data_s":[0,0.06],"cpu_s":[1.8,1.9]}              each rank's steps since the last such line, in the mean
 *
 * Each line is one write() to a file opened for appending, so a crash tears at most the last line. A line that cannot be
 * written waits for the next one (sink.c); what a killed run has not caught up with is a gap of the next one. Numbers
 * have the shortest decimal form that reads back to the same double: two runs can be compared bit for bit. */
#include "observe/observe_int.h"

#include <jansson.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define X(name, tag) .name = NAN,
const struct metrics METRICS_NONE = {METRIC_LIST(X)};
#undef X

const char *metrics_number(char buf[32], double v)
{
    if (isinf(v)) return v > 0 ? "\"inf\"" : "\"-inf\"";
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, 32, "%.*g", digits, v);
        if (strtod(buf, NULL) == v) break;
    }
    return buf;
}

status metrics_schema(struct sink *s)
{
    char line[128];
    int n = snprintf(line, sizeof line, "{\"kind\":\"schema\",\"format\":\"ingot metrics\",\"version\":%d}\n",
                     METRICS_VERSION);
    return sink_begin(s, line, (size_t)n);
}

void metrics_start(struct sink *s, int64_t step, double wall_s, int64_t every)
{
    char line[160];
    int n = snprintf(line, sizeof line, "{\"kind\":\"start\",\"step\":%lld,\"time\":%.3f,\"every\":%lld}\n",
                     (long long)step, wall_s, (long long)every);
    sink_append(s, line, (size_t)n);
}

void metrics_gap(struct sink *s, struct metrics_gap gap)
{
    char line[128];
    int n = snprintf(line, sizeof line, "{\"kind\":\"gap\",\"step\":%lld,\"from\":%lld}\n", (long long)gap.to,
                     (long long)gap.from);
    sink_append(s, line, (size_t)n);
}

void metrics_write(struct sink *s, const struct metrics *m, double wall_s)
{
    char line[2048], number[32];
    size_t at =
        (size_t)snprintf(line, sizeof line, "{\"kind\":\"step\",\"step\":%lld,\"tokens\":%lld,\"time\":%.3f",
                         (long long)m->step, (long long)m->tokens, wall_s);
#define X(name, tag)                                                                                         \
    if (!isnan(m->name))                                                                                     \
        at += (size_t)snprintf(line + at, sizeof line - at, ",\"" #name "\":%s",                             \
                               metrics_number(number, m->name));
    METRIC_LIST(X)
#undef X
    at += (size_t)snprintf(line + at, sizeof line - at, "}\n");
    CHECK(at < sizeof line, "a metrics record of %zu bytes", at);
    sink_append(s, line, at);
}

/* Appends the object as a line, and frees it. */
static void append(struct sink *s, json_t *object)
{
    MEMORY_CHECK(object != NULL, "no memory for a metrics record");
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    MEMORY_CHECK(text != NULL, "no memory to print a metrics record");
    size_t n = strlen(text);
    text[n] = '\n'; /* over the terminating zero: one write() per line */
    sink_append(s, text, n + 1);
    free(text);
}

void metrics_sample(struct sink *s, int64_t step, const char *prompt, const char *text)
{
    char *p = utf8_clean(prompt, strlen(prompt)), *t = utf8_clean(text, strlen(text));
    append(s, json_pack("{s:s, s:I, s:s, s:s}", "kind", "sample", "step", (json_int_t)step, "prompt", p,
                        "text", t));
    free(p);
    free(t);
}

void metrics_named(struct sink *s, const char *kind, int64_t step, const char *name, double value)
{
    if (!isfinite(value)) return;
    char *n = utf8_clean(name, strlen(name));
    append(s, json_pack("{s:s, s:I, s:s, s:f}", "kind", kind, "step", (json_int_t)step, "name", n, "value",
                        value));
    free(n);
}

static int slowest_first(const void *a, const void *b)
{
    const struct rank_time *x = *(const struct rank_time *const *)a, *y = *(const struct rank_time *const *)b;
    return (x->work_s < y->work_s) - (x->work_s > y->work_s);
}

void metrics_ranks(struct sink *s, int64_t step, double wall_s, const struct rank_time *ranks, int count,
                   int64_t steps)
{
    const struct rank_time **order = calloc((size_t)count + 1, sizeof *order);
    CHECK(order, "out of memory for %d ranks", count);
    for (int i = 0; i < count; i++) order[i] = &ranks[i];
    if (count > RANK_TIMES_MAX) qsort(order, (size_t)count, sizeof *order, slowest_first);
    json_t *rank = json_array(), *work = json_array(), *wait = json_array(), *data = json_array(),
           *cpu = json_array();
    for (int i = 0; i < count && i < RANK_TIMES_MAX; i++) {
        json_array_append_new(rank, json_integer(order[i] - ranks));
        json_array_append_new(work, json_real(order[i]->work_s));
        json_array_append_new(wait, json_real(order[i]->wait_s));
        json_array_append_new(data, json_real(order[i]->data_s));
        json_array_append_new(cpu, json_real(order[i]->cpu_s));
    }
    free(order);
    append(s, json_pack("{s:s, s:I, s:f, s:I, s:o, s:o, s:o, s:o, s:o}", "kind", "ranks", "step",
                        (json_int_t)step, "time", wall_s, "steps", (json_int_t)steps, "rank", rank, "work_s",
                        work, "wait_s", wait, "data_s", data, "cpu_s", cpu));
}

/* What a line that is kept says about steps. */
static void note(struct metrics_kept *kept, const json_t *o, const char *kind, int64_t step)
{
    if (json_object_get(o, "val_loss")) kept->eval_step = step;
    if (kind && strcmp(kind, "start") == 0) {
        kept->start = step;
        kept->every = json_integer_value(json_object_get(o, "every"));
    }
    if (json_object_get(o, "loss") || (kind && strcmp(kind, "gap") == 0)) kept->last = step;
}

struct metrics_gap metrics_missing(const struct metrics_kept *kept, int64_t step)
{
    if (kept->every <= 0) return (struct metrics_gap){0};
    const int64_t due = step - step % kept->every, last = kept->last > kept->start ? kept->last : kept->start;
    if (due <= last) return (struct metrics_gap){0};
    return (struct metrics_gap){.from = last - last % kept->every + kept->every, .to = due};
}

enum line_kind { LINE_SCHEMA, LINE_KEEP, LINE_LATER, LINE_GARBAGE, LINE_TORN };
static enum line_kind line_judge(const char *line, size_t bytes, int64_t step, struct metrics_kept *kept)
{
    if (line[bytes - 1] != '\n') return LINE_TORN;
    json_t *object = json_loadb(line, bytes, 0, NULL);
    const char *kind = json_string_value(json_object_get(object, "kind"));
    json_t *at = json_object_get(object, "step");
    enum line_kind judged = LINE_KEEP;
    if (!json_is_object(object))
        judged = LINE_GARBAGE;
    else if (kind && strcmp(kind, "schema") == 0)
        judged = LINE_SCHEMA;
    /* A fresh start keeps no line, not even those written before the first step. */
    else if (json_is_integer(at) && (step == 0 || json_integer_value(at) > step))
        judged = LINE_LATER;
    else if (json_is_integer(at))
        note(kept, object, kind, json_integer_value(at));
    json_decref(object);
    return judged;
}

/* Copies the lines to keep; *dropped: some were not kept. */
static status copy_kept(FILE *in, const char *path, int64_t step, struct io_file *out,
                        struct metrics_kept *kept, bool *dropped)
{
    status st = STATUS_OK;
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, in)) > 0) {
        enum line_kind judged = line_judge(line, (size_t)n, step, kept);
        if (!kept->has_schema && judged != LINE_SCHEMA && judged != LINE_TORN) {
            st = FAIL(STATUS_IO, "%s: line 1 is not the schema record of a metrics file; move the file away",
                      path);
            goto out;
        }
        kept->has_schema = kept->has_schema || judged == LINE_SCHEMA;
        bool keep = judged <= LINE_KEEP;
        *dropped = *dropped || !keep;
        if (keep) TRY_OUT(io_write(out, line, (size_t)n));
    }
    if (ferror(in)) st = FAIL(status_of_errno(errno), "%s: cannot be read: %s", path, strerror(errno));
    MEMORY_CHECK(feof(in) || ferror(in), "no memory for a line of %s", path);
out:
    free(line);
    return st;
}

status metrics_version_check(const char *path)
{
    char line[256] = "";
    const char *format;
    int version;
    enum io_kind kind = IO_NONE;
    FILE *in = io_kind(path, &kind) == STATUS_OK && kind == IO_FILE ? fopen(path, "re") : NULL;
    if (in == NULL) return STATUS_OK; /* who reads it says so; to open a pipe would wait for its writer */
    const bool got = fgets(line, sizeof line, in) != NULL;
    fclose(in);
    json_t *o = got ? json_loads(line, 0, NULL) : NULL;
    const bool other = json_unpack(o, "{s:s, s:i}", "format", &format, "version", &version) == 0 &&
                       strcmp(format, "ingot metrics") == 0 && version != METRICS_VERSION;
    json_decref(o);
    if (!other) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "%s has version %d, and this ingot reads version %d: use the ingot that wrote it", path,
                version, METRICS_VERSION);
}

status metrics_cut(const char *path, int64_t step, struct metrics_kept *kept)
{
    *kept = (struct metrics_kept){.eval_step = -1};
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return STATUS_OK;
    FILE *in = fopen(path, "re");
    if (in == NULL) return FAIL(status_of_errno(errno), "%s: cannot be read: %s", path, strerror(errno));
    struct io_file out;
    status st = io_create(&out, path);
    if (st == STATUS_OK) {
        bool dropped = false;
        st = copy_kept(in, path, step, &out, kept, &dropped);
        if (st == STATUS_OK && dropped)
            st = io_commit(&out);
        else
            io_abandon(&out);
    }
    fclose(in);
    return st;
}
