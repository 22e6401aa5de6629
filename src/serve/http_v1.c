/* The API of OpenAI: GET /v1/models, POST /v1/completions. */
#include "serve/http_int.h"

#if INGOT_MICROHTTPD
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static const char loading[] = "the model is being loaded: try again later";
static const char completions[] = "/v1/completions", models[] = "/v1/models";

bool http_v1_is(const char *url)
{
    return strncmp(url, "/v1/", 4) == 0;
}

bool http_v1_takes(const struct serve_http *h, const char *url)
{
    return h->o.model && strcmp(url, completions) == 0;
}

enum MHD_Result http_v1_get(const struct serve_http *h, struct MHD_Connection *c, const char *url)
{
    if (!h->o.model) return http_refuse(h, c, url, 404, "no model is served here: ingot serve --model RUN");
    if (h->engine == NULL) return http_refuse(h, c, url, 503, loading);
    if (strcmp(url, models) == 0)
        return http_send_text(h, c, 200, "application/json", engine_models_text(h->engine));
    return http_refuse(h, c, url, 404, "not here: GET /v1/models, POST /v1/completions");
}

static enum MHD_Result send_error(const struct serve_http *h, struct MHD_Connection *c,
                                  const struct completion_error *e)
{
    return http_send_text(h, c, e->http, "application/json", completion_error_text(e));
}

/* ---- streams */

struct text_stream {
    struct job *job;
    char *text; /* what is still to be sent, from `at` on */
    size_t at;
    bool done;
};

static ssize_t stream_read(void *ctx, uint64_t pos, char *out, size_t room)
{
    static const char still[] = ": still there\n\n";
    struct text_stream *s = ctx;
    unsigned http;
    (void)pos;
    if (s->text == NULL) {
        if (s->done) return MHD_CONTENT_READER_END_OF_STREAM;
        if (!job_wait(s->job, 5)) {
            memcpy(out, still, sizeof still - 1); /* rooms are of 32 KiB */
            return sizeof still - 1;
        }
        s->text = job_take(s->job, &http, &s->done);
        s->at = 0;
        if (s->text == NULL) return MHD_CONTENT_READER_END_OF_STREAM;
    }
    const size_t left = strlen(s->text + s->at), n = left < room ? left : room;
    memcpy(out, s->text + s->at, n);
    s->at += n;
    if (n == left) {
        free(s->text);
        s->text = NULL;
    }
    return (ssize_t)n;
}

static void stream_free(void *ctx)
{
    struct text_stream *s = ctx;
    job_drop(s->job);
    free(s->text);
    free(s);
}

/* ---- completions */

/* The other side has gone: it waits for no answer. */
static bool gone(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd p = {.fd = fd ? fd->connect_fd : -1, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* Waits in this connection's own thread. False: nobody waits any more. */
static bool wait_for(struct job *j, struct MHD_Connection *c)
{
    bool here = true;
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    while (!job_wait(j, 0.5) && here) here = !gone(c);
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)SILENT_S);
    return here;
}

static enum MHD_Result send_stream(const struct serve_http *h, struct MHD_Connection *c, struct job *j,
                                   char *text, bool done)
{
    struct text_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        free(text);
        job_drop(j);
        return MHD_NO;
    }
    *s = (struct text_stream){.job = j, .text = text, .done = done};
    return http_send(
        h, c, 200, "text/event-stream",
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32 << 10, stream_read, s, stream_free));
}

static enum MHD_Result send_answer(const struct serve_http *h, struct MHD_Connection *c, struct job *j,
                                   bool stream)
{
    unsigned http;
    bool done;
    if (!wait_for(j, c)) {
        job_drop(j);
        return MHD_NO;
    }
    char *text = job_take(j, &http, &done);
    if (text && stream && http == 200) return send_stream(h, c, j, text, done);
    job_drop(j);
    return text ? http_send_text(h, c, http, "application/json", text) : MHD_NO;
}

enum MHD_Result http_v1_post(struct serve_http *h, struct MHD_Connection *c, const char *body, size_t bytes)
{
    struct completion request;
    struct completion_error e;
    if (h->engine == NULL) return http_refuse(h, c, completions, 503, loading);
    pthread_mutex_lock(&h->parsing);
    const bool ok = completion_parse(&request, body, bytes, engine_model(h->engine), &e);
    pthread_mutex_unlock(&h->parsing);
    const bool stream = request.stream;
    struct job *j = ok ? queue_submit(engine_queue(h->engine), &request, &e) : NULL;
    if (j) return send_answer(h, c, j, stream);
    completion_free(&request);
    return send_error(h, c, &e);
}
#endif
