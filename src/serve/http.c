/* HTTP by libmicrohttpd: limits, checks of each request, routes. */
#include "serve/http_int.h"

#if INGOT_MICROHTTPD
#include "base/clock.h"
#include "base/memory.h"
#include "dev/port.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- slow heads: libmicrohttpd ends who is silent, not who sends a byte a second */

static void connection_notify(void *ctx, struct MHD_Connection *c, void **slot,
                              enum MHD_ConnectionNotificationCode what)
{
    struct serve_http *h = ctx;
    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*slot) ((struct slot *)*slot)->used = false;
        *slot = NULL;
    } else
        for (int i = 0; i < CONNECTIONS && *slot == NULL; i++) {
            if (h->slots[i].used) continue;
            const union MHD_ConnectionInfo *fd =
                MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
            h->slots[i] = (struct slot){
                .used = true, .first = true, .fd = fd ? fd->connect_fd : -1, .since = clock_s()};
            *slot = &h->slots[i];
        }
    pthread_mutex_unlock(&h->lock);
}

static void slot_set(struct serve_http *h, struct MHD_Connection *c, bool busy)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct slot *s = info ? info->socket_context : NULL;
    if (s == NULL) return;
    pthread_mutex_lock(&h->lock);
    s->busy = busy;
    s->first = false;
    s->since = clock_s();
    pthread_mutex_unlock(&h->lock);
}

static void *reap(void *ctx)
{
    struct serve_http *h = ctx;
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        struct timespec until;
        const double now = clock_s();
        for (int i = 0; i < CONNECTIONS; i++) {
            const struct slot *s = &h->slots[i];
            if (s->used && !s->busy && now - s->since > (s->first ? HEAD_S : IDLE_S))
                shutdown(s->fd, SHUT_RDWR);
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 500000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&h->wake, &h->lock, &until);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* ---- answers */

enum MHD_Result http_send(const struct serve_http *h, struct MHD_Connection *c, unsigned code,
                          const char *type, struct MHD_Response *r)
{
    if (r == NULL) return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Content-Security-Policy", h->o.policy);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "X-Frame-Options", "DENY");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(r, "Cross-Origin-Resource-Policy", "same-origin");
    MHD_add_response_header(r, "Cache-Control", "no-store");
    if (code == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (code == 405) MHD_add_response_header(r, "Allow", "GET, HEAD");
    if (code == 429) MHD_add_response_header(r, "Retry-After", "1");
    const enum MHD_Result ok = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return ok;
}

enum MHD_Result http_send_text(const struct serve_http *h, struct MHD_Connection *c, unsigned code,
                               const char *type, char *text)
{
    return http_send(h, c, code, type,
                     MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE));
}

enum MHD_Result http_refuse(const struct serve_http *h, struct MHD_Connection *c, const char *url,
                            unsigned code, const char *why)
{
    struct completion_error e;
    if (!http_v1_is(url)) {
        char *line = NULL;
        size_t bytes;
        FILE *f = memory_stream(&line, &bytes);
        fprintf(f, "%s\n", why);
        memory_stream_close(f);
        return http_send_text(h, c, code, "text/plain; charset=utf-8", line);
    }
    completion_fail(&e, code, code == 401 ? "invalid_api_key" : NULL, "", "%s", why);
    return http_send_text(h, c, code, "application/json", completion_error_text(&e));
}

/* Server-sent events: the state as it changes, a comment when nothing does. */
struct events {
    struct serve_state *state;
    int64_t version;
    char *text; /* what is still to be sent, from `at` on */
    size_t at;
};

static ssize_t events_read(void *ctx, uint64_t pos, char *out, size_t room)
{
    struct events *e = ctx;
    (void)pos;
    if (e->text == NULL) {
        char *state, *all = NULL;
        size_t bytes;
        int64_t version;
        if (!serve_state_wait(e->state, e->version, 10)) return MHD_CONTENT_READER_END_OF_STREAM;
        state = serve_state_text(e->state, SERVE_RUNS, &version);
        FILE *f = memory_stream(&all, &bytes);
        if (version != e->version)
            fprintf(f, "event: runs\ndata: %s\n\n", state);
        else
            fputs(": nothing new\n\n", f);
        memory_stream_close(f);
        free(state);
        e->version = version;
        e->text = all;
        e->at = 0;
    }
    const size_t left = strlen(e->text + e->at), n = left < room ? left : room;
    memcpy(out, e->text + e->at, n);
    e->at += n;
    if (n == left) {
        free(e->text);
        e->text = NULL;
    }
    return (ssize_t)n;
}

static void events_free(void *ctx)
{
    free(((struct events *)ctx)->text);
    free(ctx);
}

static enum MHD_Result send_events(const struct serve_http *h, struct MHD_Connection *c)
{
    struct events *e = calloc(1, sizeof *e);
    if (e == NULL) return MHD_NO;
    *e = (struct events){.state = h->o.state, .version = -1};
    return http_send(
        h, c, 200, "text/event-stream",
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32 << 10, events_read, e, events_free));
}

/* Digits alone; -1: another text. */
static int64_t whole(const char *text)
{
    char *end;
    if (!(text[0] >= '0' && text[0] <= '9') || strlen(text) > 15) return -1;
    const long long number = strtoll(text, &end, 10);
    return *end ? -1 : (int64_t)number;
}

/* A run as it is now; with ?since=STEP its records from there on. */
static enum MHD_Result send_run(const struct serve_http *h, struct MHD_Connection *c, const char *id)
{
    const char *since = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "since");
    const int64_t run = whole(id), step = since ? whole(since) : 0;
    if (step < 0) return http_refuse(h, c, "", 400, "since: a step, such as ?since=500");
    char *text = run < 0 || run >= 1000 ? NULL
                 : since                ? serve_state_history(h->o.state, (int)run, step)
                                        : serve_state_run(h->o.state, (int)run);
    return text ? http_send_text(h, c, 200, "application/json", text)
                : http_refuse(h, c, "", 404, "no such run");
}

static enum MHD_Result route(const struct serve_http *h, struct MHD_Connection *c, const char *url)
{
    static const struct {
        const char *url, *type;
        enum serve_text text;
    } rows[] = {{"/api/runs", "application/json", SERVE_RUNS},
                {"/api/curves", "application/json", SERVE_CURVES},
                {"/api/view", "text/html; charset=utf-8", SERVE_VIEW},
                {"/metrics", "application/openmetrics-text; version=1.0.0; charset=utf-8", SERVE_METRICS}};
    static const char one[] = "/api/runs/";
    int64_t version;
    if (h->o.metrics_only && strcmp(url, "/metrics") != 0 && strcmp(url, "/healthz") != 0)
        return http_refuse(h, c, url, 404, "not here: ingot serve --metrics-only answers /metrics alone");
    if (strcmp(url, "/") == 0)
        return http_send_text(h, c, 200, "text/html; charset=utf-8", memory_text(h->o.page));
    if (strcmp(url, "/healthz") == 0) return http_refuse(h, c, url, 200, "ok");
    if (strcmp(url, "/events") == 0) return send_events(h, c);
    if (http_v1_is(url)) return http_v1_get(h, c, url);
    if (strncmp(url, one, sizeof one - 1) == 0) return send_run(h, c, url + sizeof one - 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(url, rows[i].url) == 0)
            return http_send_text(h, c, 200, rows[i].type,
                                  serve_state_text(h->o.state, rows[i].text, &version));
    return http_refuse(h, c, url, 404, "not here");
}

/* ---- checks */

static bool has_token(const struct serve_http *h, struct MHD_Connection *c)
{
    static const char bearer[] = "Bearer ";
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    return given && strncmp(given, bearer, sizeof bearer - 1) == 0 &&
           serve_token_equal(given + sizeof bearer - 1, h->o.token);
}

/* Of a POST. A page of another site can send a form, but no JSON without asking first. */
static unsigned check_body(struct MHD_Connection *c, const char **why)
{
    static const char json[] = "application/json";
    const char *type = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Type"),
               *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    const size_t n = sizeof json - 1;
    *why = "the body must be JSON: Content-Type: application/json";
    if (type == NULL || strncasecmp(type, json, n) != 0 || (type[n] && type[n] != ';' && type[n] != ' '))
        return 415;
    *why = "the body is larger than 1 MiB";
    return length && strtoull(length, NULL, 10) > COMPLETION_BYTES ? 413 : 0;
}

/* 0: it may be answered. */
static unsigned check(const struct serve_http *h, struct MHD_Connection *c, const char *url,
                      const char *method, const char **why)
{
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin"),
               *site = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Sec-Fetch-Site");
    const bool open = strcmp(url, "/") == 0 || strcmp(url, "/healthz") == 0;
    *why = "this address is not that of the server: a name that leads here from elsewhere";
    if (!serve_host_is_own(MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host"), h->o.host)) return 403;
    *why = "a request of another site";
    if (origin && !serve_host_is_own(origin, h->o.host)) return 403;
    if (site && strcmp(site, "cross-site") == 0 && !(open && strcmp(method, "GET") == 0)) return 403;
    *why = "GET only: nothing is changed here";
    const bool post = strcmp(method, "POST") == 0 && http_v1_takes(h, url);
    if (!post && strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) return 405;
    *why = "the address is too long";
    if (strlen(url) > URL_MAX) return 414;
    *why = "too many headers";
    if (MHD_get_connection_values(c, MHD_HEADER_KIND, NULL, NULL) > HEADERS_MAX) return 431;
    *why = "the token is missing or wrong: Authorization: Bearer TOKEN";
    if (!open && !has_token(h, c)) return 401;
    return post ? check_body(c, why) : 0;
}

/* ---- a request */

struct request {
    bool post, posted; /* posted: counted in h->posts */
    char *body;        /* malloc'd */
    size_t bytes;
};

/* The head is whole. */
static enum MHD_Result begin(struct serve_http *h, struct MHD_Connection *c, const char *url,
                             const char *method, void **request)
{
    const char *why;
    struct request *r = *request = calloc(1, sizeof *r);
    if (r == NULL) return MHD_NO;
    const unsigned code = check(h, c, url, method, &why);
    r->post = strcmp(method, "POST") == 0;
    slot_set(h, c, code || !r->post);
    return code ? http_refuse(h, c, url, code, why) : MHD_YES;
}

static enum MHD_Result take_body(struct request *r, const char *data, size_t *bytes)
{
    if (!r->post || r->bytes + *bytes > COMPLETION_BYTES) return MHD_NO; /* nobody asked for it */
    char *body = realloc(r->body, r->bytes + *bytes);
    if (body == NULL) return MHD_NO;
    memcpy(body + r->bytes, data, *bytes);
    r->body = body;
    r->bytes += *bytes;
    *bytes = 0;
    return MHD_YES;
}

static void count_post(struct serve_http *h, int more)
{
    pthread_mutex_lock(&h->lock);
    h->posts += more;
    pthread_mutex_unlock(&h->lock);
}

static enum MHD_Result answer(void *ctx, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_bytes, void **request)
{
    struct serve_http *h = ctx;
    struct request *r = *request;
    (void)version;
    if (r == NULL) return begin(h, c, url, method, request);
    if (*upload_bytes) return take_body(r, upload, upload_bytes);
    if (!r->post) return route(h, c, url);
    slot_set(h, c, true);
    count_post(h, 1);
    r->posted = true;
    return http_v1_post(h, c, r->body ? r->body : "", r->bytes);
}

static void completed(void *ctx, struct MHD_Connection *c, void **request,
                      enum MHD_RequestTerminationCode how)
{
    (void)how;
    struct request *r = *request;
    if (r == NULL) return;
    slot_set(ctx, c, false);
    if (r->posted) count_post(ctx, -1);
    free(r->body);
    free(r);
    *request = NULL;
}

/* ---- begin and end */

static status listen_at(const struct serve_http_options *o, int *fd, int *port)
{
    char service[16], owner[128];
    struct addrinfo *a = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof bound;
    const int on = 1;
    snprintf(service, sizeof service, "%d", o->port);
    const int err = getaddrinfo(o->host, service, &hints, &a);
    if (err) return FAIL(STATUS_CONFIG, "serve: --host %s: %s", o->host, gai_strerror(err));
    *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd >= 0) setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const bool ok = *fd >= 0 && bind(*fd, a->ai_addr, a->ai_addrlen) == 0 && listen(*fd, 64) == 0;
    const int why = errno;
    freeaddrinfo(a);
    if (ok && getsockname(*fd, (struct sockaddr *)&bound, &bytes) == 0) {
        char name[16];
        getnameinfo((struct sockaddr *)&bound, bytes, NULL, 0, name, sizeof name, NI_NUMERICSERV);
        *port = atoi(name);
        return STATUS_OK;
    }
    if (*fd >= 0) close(*fd);
    if (why == EADDRINUSE)
        return FAIL(STATUS_IO,
                    "serve: port %d is taken by %s: give another --port, or 0 for any that is free", o->port,
                    port_owner(o->port, owner));
    return FAIL(why == EADDRNOTAVAIL || why == EACCES ? STATUS_CONFIG : STATUS_IO, "serve: %s port %d: %s",
                o->host, o->port, strerror(why));
}

static void http_free(struct serve_http *h)
{
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->parsing);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

status serve_http_open(struct serve_http **out, const struct serve_http_options *o, int *port)
{
    pthread_condattr_t how;
    int fd;
    *out = NULL;
    TRY(listen_at(o, &fd, port));
    struct serve_http *h = calloc(1, sizeof *h);
    MEMORY_CHECK(h != NULL, "no memory for connections");
    h->o = *o;
    pthread_mutex_init(&h->parsing, NULL);
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&h->wake, &how);
    pthread_condattr_destroy(&how);
    h->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL, 0, NULL, NULL, answer,
        h, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)PER_ADDRESS, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)SILENT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY, MHD_OPTION_THREAD_STACK_SIZE,
        (size_t)STACK, MHD_OPTION_NOTIFY_CONNECTION, connection_notify, h, MHD_OPTION_NOTIFY_COMPLETED,
        completed, h, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (h->daemon == NULL) {
        close(fd);
        http_free(h);
        return FAIL(STATUS_IO, "serve: libmicrohttpd does not start: %s", strerror(errno));
    }
    const int err = pthread_create(&h->reaper, NULL, reap, h);
    if (err) {
        MHD_stop_daemon(h->daemon);
        http_free(h);
        return FAIL(STATUS_IO, "serve: no thread to end slow connections: %s", strerror(err));
    }
    *out = h;
    return STATUS_OK;
}

void serve_http_model(struct serve_http *h, struct engine *e)
{
    h->engine = e;
}

/* Who waits for the model is told that it stops, before the sockets close. */
static void see_off(struct serve_http *h)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    bool some = true;
    for (int i = 0; i < 100 && some; i++) {
        pthread_mutex_lock(&h->lock);
        some = h->posts > 0;
        pthread_mutex_unlock(&h->lock);
        if (some) nanosleep(&moment, NULL);
    }
}

void serve_http_close(struct serve_http *h)
{
    if (h == NULL) return;
    see_off(h);
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->reaper, NULL);
    MHD_stop_daemon(h->daemon);
    http_free(h);
}

#else

status serve_http_open(struct serve_http **out, const struct serve_http_options *o, int *port)
{
    (void)o, (void)port;
    *out = NULL;
    return FAIL(STATUS_CONFIG, "serve: this ingot was built without libmicrohttpd: install libmicrohttpd-dev "
                               "(scripts/install.sh build) and build again");
}

void serve_http_model(struct serve_http *h, struct engine *e)
{
    (void)h, (void)e;
}

void serve_http_close(struct serve_http *h)
{
    (void)h;
}
#endif
