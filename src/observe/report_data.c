/* Reads a run directory for the report. The run may have crashed, may still run, or may have made no step.
 * Unreadable lines are counted and skipped. */
#include "observe/report_int.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "observe/evals.h"
#include "observe/forks.h"
#include "observe/observe_int.h"
#include "observe/runs.h"
#include "spec/ramp.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMALL_FILE_BYTES = 16 << 20 };
static const double STEP_MAX = 9e15; /* a double holds every step below */

/* Makes room for one more. */
static void *grow(void *list, int64_t count, int64_t *room, size_t size)
{
    if (count < *room) return list;
    *room = *room ? *room * 2 : 64;
    list = realloc(list, (size_t)*room * size);
    MEMORY_CHECK(list != NULL, "no memory for %lld records", (long long)*room);
    return list;
}

static struct report_named *named(struct report_named **list, int64_t *count, int64_t *room, const char *name)
{
    for (int64_t i = 0; i < *count; i++)
        if (strcmp((*list)[i].name, name) == 0) return &(*list)[i];
    *list = grow(*list, *count, room, sizeof **list);
    (*list)[*count] = (struct report_named){.name = memory_text(name)};
    return &(*list)[(*count)++];
}

/* A resume of a run that was over samples the same step again: the later text counts. */
static void sample_add(struct report_data *d, int64_t step, const char *prompt, const char *text)
{
    for (int64_t i = d->sample_count - 1; i >= 0 && d->samples[i].step == step; i--)
        if (strcmp(d->samples[i].prompt, prompt) == 0) {
            free(d->samples[i].text);
            d->samples[i].text = memory_text(text);
            return;
        }
    d->samples = grow(d->samples, d->sample_count, &d->sample_room, sizeof *d->samples);
    d->samples[d->sample_count++] = (struct report_sample){step, memory_text(prompt), memory_text(text)};
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

/* A process of the run ended, in one way or another: what it measured of itself is added up. */
static void end_part(struct report_data *d, struct clock_state *c)
{
    if (c->last > c->part_from) d->wall_s += c->last - c->part_from;
    c->part_from = c->last = NAN;
    for (int64_t i = 0; i < d->stage_count; i++) {
        d->stages[i].value += d->stages[i].part;
        d->stages[i].part = 0;
    }
}

/* The last value of a step counts; steps ascend. */
static void axis_add(struct series *s, double step, double v)
{
    if (s->count && step < s->x[s->count - 1]) return;
    if (s->count && v < s->y[s->count - 1]) return;
    if (s->count && step == s->x[s->count - 1])
        s->y[s->count - 1] = v;
    else
        series_add(s, step, v);
}

static void read_step(struct report_data *d, const json_t *o, double step, struct clock_state *c)
{
    double v;
#define X(name, tag)                                                                                         \
    if (number(o, #name, &v)) series_add(&d->name, step, v);
    METRIC_LIST(X)
#undef X
    d->records++;
    if ((int64_t)step > d->steps) d->steps = (int64_t)step;
    if (number(o, "tokens", &v) && v >= 0 && v < 9e18) {
        d->tokens = (int64_t)v;
        axis_add(&d->tokens_at, step, v);
    }
    if (!number(o, "time", &v)) return;
    if (isnan(c->part_from)) c->part_from = v;
    c->last = d->last_s = v;
    axis_add(&d->seconds_at, step, d->wall_s + fmax(v - c->part_from, 0));
}

/* The rank that the others wait for. */
static void find_slow(struct report_ranks *r)
{
    struct series work = {0};
    r->slow = -1;
    for (int i = 0; i < r->count; i++) {
        series_add(&work, i, r->time[i].work_s);
        if (r->slow < 0 || r->time[i].work_s > r->time[r->slow].work_s) r->slow = i;
    }
    /* of two ranks the median is the slower one: the other counts */
    const double middle = r->count == 2 ? fmin(work.y[0], work.y[1]) : series_median(&work);
    series_free(&work);
    r->slow_by = r->count > 1 && middle > 0 ? r->time[r->slow].work_s / middle : 1;
    if (r->slow_by < 1.05) r->slow = -1;
}

static void read_ranks(struct report_data *d, const json_t *o)
{
    const json_t *rank = json_object_get(o, "rank"), *work = json_object_get(o, "work_s"),
                 *wait = json_object_get(o, "wait_s"), *data = json_object_get(o, "data_s"),
                 *cpu = json_object_get(o, "cpu_s"); /* older runs: 0 */
    struct report_ranks *r = &d->ranks;
    const int before = r->count && r->slow >= 0 ? r->rank[r->slow] : -1;
    const double since = r->since;
    r->count = 0;
    for (size_t i = 0; i < json_array_size(rank) && i < RANK_TIMES_MAX; i++) {
        r->rank[r->count] = (int)json_integer_value(json_array_get(rank, i));
        r->time[r->count++] = (struct rank_time){
            json_number_value(json_array_get(work, i)), json_number_value(json_array_get(wait, i)),
            json_number_value(json_array_get(data, i)), json_number_value(json_array_get(cpu, i))};
    }
    if (!number(o, "time", &r->at)) r->at = 0;
    find_slow(r);
    r->since = r->slow >= 0 && r->rank[r->slow] == before ? since : r->at;
}

static bool read_record(struct report_data *d, const json_t *o, struct clock_state *c)
{
    const char *kind = text(o, "kind");
    double step = 0, v = 0;
    bool has_step = number(o, "step", &step) && step >= 0 && step < STEP_MAX;
    bool has_value = number(o, "value", &v);
    if (strcmp(kind, "step") == 0 && has_step)
        read_step(d, o, step, c);
    else if (strcmp(kind, "ranks") == 0)
        read_ranks(d, o);
    else if (strcmp(kind, "start") == 0 && has_step) {
        end_part(d, c);
        if (number(o, "time", &v)) c->part_from = d->last_s = v;
        series_add(&d->starts, step, 0);
    } else if (strcmp(kind, "fact") == 0 && has_value) {
        named(&d->facts, &d->fact_count, &d->fact_room, text(o, "name"))->value = v;
    } else if (strcmp(kind, "stage") == 0 && has_value && v >= 0) {
        named(&d->stages, &d->stage_count, &d->stage_room, text(o, "name"))->part = v;
    } else if (strcmp(kind, "sample") == 0 && has_step) {
        sample_add(d, (int64_t)step, text(o, "prompt"), text(o, "text"));
    } else
        return kind[0] != 0 && strcmp(kind, "step") != 0; /* another kind: of a later version */
    return true;
}

/* Reads the last tail_bytes (0: all), from the first whole line on. */
static bool read_metrics(struct report_data *d, const char *path, int64_t tail_bytes)
{
    int fd;
    int64_t bytes;
    bool there;
    status st = io_exists(path, &there);
    if (there) st = io_open(path, LINKS_FOLLOW, &fd, &bytes);
    MEMORY_CHECK(st != STATUS_OUT_OF_MEMORY, "%s", status_message());
    if (st != STATUS_OK) log_warn("%s", status_message());
    if (st != STATUS_OK || !there) return false;
    FILE *in = fdopen(fd, "re");
    MEMORY_CHECK(in != NULL, "no memory to read %s", path);
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    struct clock_state c = {NAN, NAN};
    if (tail_bytes > 0 && fseeko(in, -tail_bytes, SEEK_END) == 0) n = getline(&line, &room, in);
    while ((n = getline(&line, &room, in)) > 0) {
        json_t *o = json_loadb(line, (size_t)n, 0, NULL);
        if (!json_is_object(o) || !read_record(d, o, &c)) d->unreadable++;
        json_decref(o);
    }
    end_part(d, &c);
    MEMORY_CHECK(feof(in) || ferror(in), "no memory for a line of %s", path);
    free(line);
    fclose(in);
    return true;
}

char *report_file_tail(const char *path, int64_t most)
{
    int fd;
    int64_t bytes;
    if (io_open(path, LINKS_REFUSE, &fd, &bytes) != STATUS_OK) return NULL;
    const int64_t from = bytes > most ? bytes - most : 0;
    char *data = malloc((size_t)(bytes - from) + 1);
    MEMORY_CHECK(data, "no memory for the end of %s", path);
    if (io_pread(fd, path, data, (size_t)(bytes - from), from) != STATUS_OK) bytes = from;
    io_close(&fd);
    for (int64_t i = 0; i < bytes - from; i++)
        if (data[i] == 0) data[i] = ' ';
    data[bytes - from] = 0;
    char *line = from > 0 ? strchr(data, '\n') : NULL;
    if (line) memmove(data, line + 1, strlen(line));
    return data;
}

/* Contents as valid UTF-8, or NULL: it is not there, or cannot be read, which is said. */
static char *small_file(const char *run_dir, const char *name)
{
    char path[1200], *data = NULL;
    size_t bytes;
    bool there;
    snprintf(path, sizeof path, "%s/%s", run_dir, name);
    status st = io_exists(path, &there);
    if (there) st = io_read_file(path, SMALL_FILE_BYTES, &data, &bytes);
    MEMORY_CHECK(st != STATUS_OUT_OF_MEMORY, "%s", status_message());
    if (st != STATUS_OK) log_warn("%s", status_message());
    if (data == NULL) return NULL;
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

bool run_is_locked(const char *run_dir)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/lock", run_dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    const bool locked = fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    io_close(&fd);
    return locked;
}

status report_data_read(struct report_data *d, const char *run_dir, int64_t tail_bytes)
{
    *d = (struct report_data){.last_s = NAN};
    char path[1200], full[PATH_MAX];
    if (snprintf(d->path, sizeof d->path, "%s", run_dir) >= (int)sizeof d->path)
        return FAIL(STATUS_IO, "%.80s...: the path is too long", run_dir);
    for (size_t n = strlen(d->path); n > 1 && d->path[n - 1] == '/'; n--) d->path[n - 1] = 0;
    snprintf(path, sizeof path, "%s/ckpt", d->path);
    TRY(io_exists(path, &d->has_checkpoints));
    snprintf(path, sizeof path, "%s/metrics.jsonl", d->path);
    TRY(metrics_version_check(path));
    bool has_metrics = read_metrics(d, path, tail_bytes);
    d->env = small_object(d->path, "env.json");
    d->exit = small_object(d->path, "exit.json");
    d->config = small_file(d->path, "config.yaml");
    if (!has_metrics && d->env == NULL && d->exit == NULL && d->config == NULL)
        return FAIL(STATUS_DATA,
                    "%s: not a run directory: no metrics.jsonl, env.json, exit.json or config.yaml in it",
                    run_dir);
    d->evals = evals_read(d->path);
    d->forks = forks_read(d->path);
    d->locked = run_is_locked(d->path);
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
    series_free(&d->above);
    series_free(&d->tokens_at);
    series_free(&d->seconds_at);
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
    json_decref(d->evals);
    json_decref(d->forks);
}

double report_data_fact(const struct report_data *d, const char *name)
{
    for (int64_t i = 0; i < d->fact_count; i++)
        if (strcmp(d->facts[i].name, name) == 0) return d->facts[i].value;
    return NAN;
}

/* config.yaml as spec_dump writes it: "section:" and below it "  key: value". */
const char *report_data_config(const struct report_data *d, const char *key, char *out, size_t size)
{
    const char *dot = strchr(key, '.'), *line = d->config;
    bool inside = false;
    out[0] = 0;
    for (; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *colon = strchr(line, ':');
        if (colon == NULL) break;
        if (line[0] != ' ')
            inside = colon - line == dot - key && strncmp(line, key, (size_t)(dot - key)) == 0;
        else if (inside && strncmp(line, "  ", 2) == 0 && (size_t)(colon - line) == strlen(dot + 1) + 2 &&
                 strncmp(line + 2, dot + 1, strlen(dot + 1)) == 0) {
            const char *from = colon + 1 + strspn(colon + 1, " \"");
            int n = (int)strcspn(from, "\n\"");
            snprintf(out, size, "%.*s", n, from);
            return out;
        }
    }
    return out;
}

double report_data_parameters(const struct report_data *d)
{
    const json_t *v = json_object_get(d->env, "parameters");
    return json_is_number(v) ? json_number_value(v) : report_data_fact(d, "parameters");
}

int64_t report_data_planned(const struct report_data *d)
{
    char buf[64];
    int64_t steps = 0, tokens = 0, batch = 0;
    if (text_to_int(report_data_config(d, "train.steps", buf, sizeof buf), &steps) && steps > 0) return steps;
    if (!text_to_int(report_data_config(d, "train.tokens", buf, sizeof buf), &tokens) ||
        !text_to_int(report_data_config(d, "train.batch_tokens", buf, sizeof buf), &batch) || tokens <= 0 ||
        batch <= 0)
        return 0;
    char stages[SPEC_TEXT];
    struct ramp ramp;
    report_data_config(d, "train.batch_schedule", stages, sizeof stages);
    return ramp_open(&ramp, "train.batch_schedule", stages, batch) == STATUS_OK ? ramp_steps(&ramp, tokens)
                                                                                : 0;
}

/* One batch alone is noise. */
double report_data_loss(const struct report_data *d, int64_t *records)
{
    int64_t n = d->loss.count < 20 ? d->loss.count : d->loss.count / 50 + 10;
    double sum = 0;
    for (int64_t i = d->loss.count - n; i < d->loss.count; i++) sum += d->loss.y[i];
    if (records) *records = n;
    return n ? sum / (double)n : NAN;
}

enum report_state report_data_state(const struct report_data *d, int *exit_code)
{
    const json_t *code = json_object_get(d->exit, "code");
    *exit_code = json_is_integer(code) ? (int)json_integer_value(code) : -1;
    if (d->exit == NULL) return d->locked ? REPORT_RUNNING : REPORT_KILLED;
    return *exit_code == STATUS_OK        ? REPORT_FINISHED
           : *exit_code == STATUS_STOPPED ? REPORT_STOPPED
                                          : REPORT_FAILED;
}

const char *report_state_text(char buf[32], enum report_state state, int exit_code)
{
    static const char *const words[] = {[REPORT_FINISHED] = "finished",
                                        [REPORT_STOPPED] = "stopped",
                                        [REPORT_FAILED] = "failed",
                                        [REPORT_RUNNING] = "running",
                                        [REPORT_KILLED] = "killed"};
    if (state == REPORT_FAILED && exit_code >= 0)
        snprintf(buf, 32, "failed (exit %d)", exit_code);
    else
        snprintf(buf, 32, "%s", words[state]);
    return buf;
}

const char *report_data_env(const struct report_data *d, char buf[32], const char *key)
{
    const json_t *v = json_object_get(d->env, key);
    if (json_is_string(v)) return json_string_value(v);
    buf[0] = 0;
    if (json_is_boolean(v)) return json_is_true(v) ? "true" : "false";
    if (json_is_integer(v))
        snprintf(buf, 32, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(buf, 32, "%.6g", json_real_value(v));
    return buf;
}
