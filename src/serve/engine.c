#include "serve/engine.h"
#include "base/clock.h"
#include "base/memory.h"
#include "serve/answer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_LEAST = 2048 };

struct engine {
    char model[512], path[1100];
    bool accept_data;
    int64_t created;
    struct queue *queue;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool loaded;
    status load;
    char why[1024];
};

static status load(struct engine *e, struct completion_model *m)
{
    struct restore_options o = {.accept_data = e->accept_data};
    struct tokenizer_place place;
    struct spec spec;
    TRY(restore_spec(&spec, e->path, &o));
    TRY(restore_tokenizer_place(&spec, &place));
    o.rows = spec.model.context_length > ROWS_LEAST ? spec.model.context_length : ROWS_LEAST;
    TRY(restore_open(&m->trainer, e->path, &o));
    m->rows = o.rows;
    m->head.model = e->model;
    const status st = restore_tokenizer(&m->trainer, &place, &m->tokenizer);
    if (st != STATUS_OK) trainer_close(&m->trainer);
    return st;
}

static void say_loaded(struct engine *e, status st)
{
    pthread_mutex_lock(&e->lock);
    e->load = st;
    snprintf(e->why, sizeof e->why, "%s", st ? status_message() : "");
    e->loaded = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void answer(struct completion_model *m, struct job *j)
{
    struct completion_error error;
    completion_fail(&error, 503, "stopping", "", "the server is stopping");
    if (job_wanted(j) && answer_run(m, j, job_request(j), &error)) return;
    char *text = completion_error_text(&error);
    if (!job_begun(j)) {
        job_put(j, text, error.http, true);
    } else { /* the head of a stream has gone */
        job_put(j, answer_event(text), 200, true);
        free(text);
    }
}

static void *work(void *ctx)
{
    struct engine *e = ctx;
    struct completion_model *m = calloc(1, sizeof *m);
    struct job *j;
    MEMORY_CHECK(m, "no memory for a model's description");
    const status st = load(e, m);
    say_loaded(e, st);
    if (st == STATUS_OK) {
        while ((j = queue_next(e->queue)) != NULL) {
            answer(m, j);
            queue_finish(e->queue, j);
        }
        tokenizer_free(m->tokenizer);
        trainer_close(&m->trainer);
    }
    free(m);
    return NULL;
}

status engine_open(struct engine **out, const struct serve_options *o)
{
    struct engine *e = *out = calloc(1, sizeof *e);
    MEMORY_CHECK(e, "no memory for a model's description");
    snprintf(e->path, sizeof e->path, "%s", o->model);
    snprintf(e->model, sizeof e->model, "%s", o->model);
    for (size_t n = strlen(e->model); n > 1 && e->model[n - 1] == '/'; n--) e->model[n - 1] = 0;
    e->accept_data = o->accept_data;
    e->created = (int64_t)clock_wall_s();
    e->queue = queue_open();
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    const int err = pthread_create(&e->thread, NULL, work, e);
    if (err) return FAIL(STATUS_IO, "serve: no thread for the model: %s", strerror(err));
    e->started = true;
    pthread_mutex_lock(&e->lock);
    while (!e->loaded) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return e->load ? FAIL(e->load, "%s", e->why) : STATUS_OK;
}

void engine_stop(struct engine *e)
{
    queue_stop(e->queue);
}

void engine_close(struct engine *e)
{
    if (e == NULL) return;
    queue_stop(e->queue);
    if (e->started) pthread_join(e->thread, NULL);
    queue_close(e->queue);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

struct queue *engine_queue(struct engine *e)
{
    return e->queue;
}

const char *engine_model(const struct engine *e)
{
    return e->model;
}

char *engine_models_text(const struct engine *e)
{
    json_t *o = json_pack("{s:s, s:[{s:s, s:s, s:I, s:s}]}", "object", "list", "data", "id", e->model,
                          "object", "model", "created", (json_int_t)e->created, "owned_by", "ingot");
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    MEMORY_CHECK(text, "no memory for the name of a model");
    json_decref(o);
    return text;
}
