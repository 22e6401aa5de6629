/* Inside serve. */
#ifndef INGOT_SERVE_SERVE_INT_H
#define INGOT_SERVE_SERVE_INT_H
#include "serve/engine.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- state.c: what is shown, made by one thread; requests only copy it */
enum serve_text { SERVE_RUNS, SERVE_CURVES, SERVE_VIEW, SERVE_METRICS, SERVE_TEXTS };
struct serve_state;
status serve_state_open(struct serve_state **out, const struct serve_options *o) WARN_UNUSED;
void serve_state_close(struct serve_state *s); /* accepts NULL */
/* A text as it is now, malloc'd; *version grows with each change. SERVE_RUNS: {"version":N,"runs":[..]}. */
char *serve_state_text(struct serve_state *s, enum serve_text which, int64_t *version);
/* The object of run `id` (ingot monitor --json), malloc'd; NULL: there is no such run. */
char *serve_state_run(struct serve_state *s, int id);
/* Its records from step `since` on (observe/history.h), malloc'd; NULL: there is no such run, or no record. */
char *serve_state_history(struct serve_state *s, int id, int64_t since);
/* Waits until the version is another than `version`, a time, or the end. False: the end. */
bool serve_state_wait(struct serve_state *s, int64_t version, double seconds);
/* Wakes all waits for good. */
void serve_state_stop(struct serve_state *s);
int serve_state_count(struct serve_state *s, int *running);

/* ---- openmetrics.c: the same numbers as text for Prometheus (OpenMetrics 1.0). */
struct monitor;
char *serve_openmetrics(const struct monitor *runs, int count);

/* ---- token.c */
enum { SERVE_TOKEN = 128 };
status serve_token_read(const char *file, char token[SERVE_TOKEN], char path[1024]) WARN_UNUSED;
bool serve_token_equal(const char *a, const char *b); /* in constant time */

/* ---- http.c */
struct serve_http;
struct serve_http_options {
    const char *host;
    int port;
    const char *token, *page, *policy;
    struct serve_state *state;
    bool model;        /* one is served, as soon as serve_http_model names it */
    bool metrics_only; /* /metrics and /healthz alone */
    bool json;         /* say where it listens as JSON */
};
status serve_http_open(struct serve_http **out, const struct serve_http_options *o, int *port) WARN_UNUSED;
void serve_http_model(struct serve_http *h, struct engine *e); /* until http is closed */
void serve_http_close(struct serve_http *h);

/* ---- check.c: what a request must be. Pure functions. */
/* The host part of a Host header or an Origin ("http://HOST:PORT") is this host's: a loopback name, or `own`. */
bool serve_host_is_own(const char *header, const char *own);
#endif
