#include "base/io.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/cmd_eval.h"
#include "cli/print_json.h"
#include "harness/harness.h"
#include "observe/progress.h"
#include "train/data_identity.h"
#include "train/restore.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TASKS_MAX = 64, ROWS_LEAST = 2048 };

struct eval_session {
    const struct eval_tasks *options;
    struct harness_task tasks[TASKS_MAX];
    int count;
    struct tokenizer *tokenizer;
    struct tokenizer_place place;
    int64_t positions; /* of the model */
};

/* ---- what to do */

/* "NAME=FILE" */
static status read_one(struct eval_session *s, const char *word)
{
    const char *equal = strchr(word, '=');
    char name[64];
    if (equal == NULL || equal == word || equal[1] == 0 || (size_t)(equal - word) >= sizeof name)
        return FAIL(STATUS_CONFIG, "--tasks: '%.60s' is not NAME=FILE, such as hellaswag=hellaswag_val.jsonl",
                    word);
    if (s->count == TASKS_MAX) return FAIL(STATUS_CONFIG, "--tasks: more than %d tasks", TASKS_MAX);
    snprintf(name, sizeof name, "%.*s", (int)(equal - word), word);
    return harness_read(&s->tasks[s->count++], name, equal + 1, s->options->limit);
}

static status read_tasks(struct eval_session *s)
{
    status st = STATUS_OK;
    for (int i = 0; i < s->options->tasks.count && st == STATUS_OK; i++) {
        char *words = strdup(s->options->tasks.items[i]), *rest = words, *word;
        MEMORY_CHECK(words, "no memory for the names of tasks");
        while (st == STATUS_OK && (word = strsep(&rest, ",")) != NULL) st = read_one(s, word);
        free(words);
    }
    return st;
}

static status encode_tasks(struct eval_session *s, const char *tokenizer_dir)
{
    const struct tokenizer_ends ends = tokenizer_ends_of(s->tokenizer, tokenizer_dir);
    const struct harness_encoding e = {.tokenizer = s->tokenizer,
                                       .prefix = ends.bos >= 0 ? ends.bos : ends.eos,
                                       .positions = s->positions,
                                       .each = s->options->each};
    for (int i = 0; i < s->count; i++) {
        struct harness_task *t = &s->tasks[i];
        TRY(harness_encode(t, &e));
        if (t->cut)
            log_warn("%s: %lld of %lld texts have more tokens than the model's %lld positions: their "
                     "beginnings were left out",
                     t->path, (long long)t->cut, (long long)t->request_count, (long long)s->positions);
    }
    return STATUS_OK;
}

/* ---- what came of it */

static json_t *metrics_json(const struct harness_result *r)
{
    json_t *j = json_pack("{s:I}", "items", (json_int_t)r->items);
    for (int i = 0; i < r->count; i++) {
        char name[64];
        json_set_real(j, r->metrics[i].name, r->metrics[i].value);
        snprintf(name, sizeof name, "%s_stderr", r->metrics[i].name);
        json_set_real(j, name, r->metrics[i].stderr_);
    }
    return j;
}

static json_t *task_json(const struct harness_task *t)
{
    struct harness_result r;
    harness_judge(t, NULL, &r);
    json_t *j = metrics_json(&r);
    json_object_set_new(j, "task", json_string(t->name));
    json_object_set_new(j, "file", json_string(t->path));
    const char *group;
    for (int i = 0; (group = harness_group(t, i)) != NULL; i++) {
        if (i == 0) json_object_set_new(j, "groups", json_object());
        harness_judge(t, group, &r);
        json_object_set_new(json_object_get(j, "groups"), group, metrics_json(&r));
    }
    return j;
}

static void print_line(const struct harness_task *t, const char *group, int64_t step)
{
    struct harness_result r;
    harness_judge(t, group, &r);
    if (step >= 0) printf("step=%lld ", (long long)step);
    printf("task=%s", t->name);
    if (group) printf(" group=%s", group);
    printf(" items=%lld", (long long)r.items);
    for (int i = 0; i < r.count; i++) {
        printf(" %s=%.4f", r.metrics[i].name, r.metrics[i].value);
        if (!isnan(r.metrics[i].stderr_)) printf(" %s_stderr=%.4f", r.metrics[i].name, r.metrics[i].stderr_);
    }
    printf("\n");
}

void eval_session_print(const struct eval_session *s, int64_t step)
{
    for (int i = 0; i < s->count; i++) {
        const char *group;
        print_line(&s->tasks[i], NULL, step);
        for (int k = 0; (group = harness_group(&s->tasks[i], k)) != NULL; k++)
            print_line(&s->tasks[i], group, step);
    }
    fflush(stdout);
}

int eval_session_count(const struct eval_session *s)
{
    return s->count;
}

const char *eval_session_name(const struct eval_session *s, int task)
{
    return s->tasks[task].name;
}

const char *eval_session_file(const struct eval_session *s, int task)
{
    return s->tasks[task].path;
}

json_t *eval_session_result(const struct eval_session *s, int task)
{
    return task_json(&s->tasks[task]);
}

static void print_tasks_json(const struct eval_session *s, int64_t step)
{
    json_t *all = json_array();
    for (int i = 0; i < s->count; i++) json_array_append_new(all, task_json(&s->tasks[i]));
    print_json(json_pack("{s:s, s:I, s:o}", "run", s->options->run, "step", (json_int_t)step, "tasks", all));
}

/* ---- samples */

static json_t *tokens_json(const struct score_request *q)
{
    json_t *ids = json_array(), *nats = json_array();
    for (int64_t i = q->first; i < q->count; i++) {
        json_array_append_new(ids, json_integer(q->tokens[i]));
        json_array_append_new(nats, json_real(q->each[i - q->first]));
    }
    return json_pack("{s:o, s:o}", "ids", ids, "logprobs", nats);
}

static json_t *sample_json(const struct eval_session *s, const struct harness_task *t,
                           const struct harness_item *item)
{
    const struct harness_verdict v = harness_item_judge(t, item);
    json_t *logliks = json_array(), *greedy = json_array(), *tokens = json_array();
    for (int64_t i = 0; i < item->requests; i++) {
        const struct score_request *q = &t->requests[item->first_request + i];
        json_array_append_new(logliks, json_real(q->loglik));
        json_array_append_new(greedy, json_boolean(q->greedy));
        if (s->options->each) json_array_append_new(tokens, tokens_json(q));
    }
    json_t *j = json_pack("{s:s, s:I, s:o, s:o}", "task", t->name, "line", (json_int_t)item->line,
                          "loglikelihoods", logliks, "greedy", greedy);
    if (item->group) json_object_set_new(j, "group", json_string(item->group));
    if (harness_kind_of(t) == HARNESS_CHOICE) json_object_set_new(j, "gold", json_integer(item->gold));
    json_set_real(j, "acc", v.acc);
    json_set_real(j, "acc_norm", v.acc_norm);
    if (s->options->each) json_object_set(j, "tokens", tokens);
    json_decref(tokens);
    return j;
}

static status write_samples(const struct eval_session *s)
{
    char *text = NULL;
    size_t bytes = 0;
    if (s->options->samples == NULL) return STATUS_OK;
    FILE *out = memory_stream(&text, &bytes);
    for (int i = 0; i < s->count; i++)
        for (int64_t k = 0; k < s->tasks[i].item_count; k++) {
            json_t *j = sample_json(s, &s->tasks[i], &s->tasks[i].items[k]);
            json_dumpf(j, out, JSON_COMPACT);
            fputc('\n', out);
            json_decref(j);
        }
    memory_stream_close(out);
    status st = io_write_file(s->options->samples, text, bytes);
    free(text);
    return st;
}

/* ---- all of it */

static status tick(void *ctx, int64_t done, int64_t count)
{
    (void)ctx;
    progress_done(done, count);
    return STATUS_OK;
}

static status score_tasks(struct eval_session *s, struct trainer *t, int64_t rows)
{
    const struct scorer by = {
        .decoder = &t->decoder, .acts = &t->acts, .feed = &t->feed, .run = &t->exec, .rows = rows};
    const struct score_tick each = {tick, NULL};
    status st = STATUS_OK;
    progress_start();
    for (int i = 0; i < s->count && st == STATUS_OK; i++) {
        progress_begin(WORK_OTHER, s->tasks[i].name, s->tasks[i].request_count);
        st = score(&by, s->tasks[i].requests, s->tasks[i].request_count, &each);
        progress_end();
    }
    progress_stop();
    return st;
}

static status open_tokenizer(struct eval_session *s, const char *path, const struct restore_options *o)
{
    struct spec spec;
    TRY(restore_spec(&spec, path, o));
    s->positions = spec.model.context_length;
    TRY(restore_tokenizer_place(&spec, &s->place));
    TRY(tokenizer_load(&s->tokenizer, s->place.dir));
    return encode_tasks(s, s->place.dir);
}

status eval_session_judge(struct eval_session *s, const char *path, int64_t *step)
{
    struct trainer t;
    struct restore_options o = {.rows = ROWS_LEAST,
                                .override_count = s->options->override_count,
                                .overrides = s->options->overrides,
                                .accept_data = s->options->accept_data};
    if (s->tokenizer == NULL) TRY(open_tokenizer(s, path, &o));
    for (int i = 0; i < s->count; i++)
        if (harness_longest(&s->tasks[i]) > o.rows) o.rows = harness_longest(&s->tasks[i]);
    TRY(restore_open(&t, path, &o));
    status st =
        data_identity_check_tokenizer(t.data, s->place.sha256, s->tokenizer, s->place.dir, t.accept_data);
    if (st == STATUS_OK) st = score_tasks(s, &t, o.rows);
    *step = t.step;
    trainer_close(&t);
    return st;
}

status eval_session_open(struct eval_session **out, const struct eval_tasks *e)
{
    struct eval_session *s = *out = calloc(1, sizeof *s);
    MEMORY_CHECK(s, "no memory for %d tasks", TASKS_MAX);
    s->options = e;
    if (e->limit < 0 || (e->each && e->samples == NULL))
        return FAIL(STATUS_CONFIG, "--limit is not negative; --per-token needs --samples FILE");
    return read_tasks(s);
}

void eval_session_close(struct eval_session *s)
{
    for (int i = 0; i < s->count; i++) harness_free(&s->tasks[i]);
    tokenizer_free(s->tokenizer);
    free(s);
}

status eval_tasks(const struct eval_tasks *e)
{
    struct eval_session *s;
    int64_t step;
    status st = eval_session_open(&s, e);
    if (st == STATUS_OK) st = eval_session_judge(s, e->run, &step);
    if (st == STATUS_OK) st = write_samples(s);
    if (st == STATUS_OK && e->json)
        print_tasks_json(s, step);
    else if (st == STATUS_OK)
        eval_session_print(s, -1);
    eval_session_close(s);
    return st;
}
