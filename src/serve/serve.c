#include "serve/serve.h"
#include "observe/live.h"
#include "serve/serve_int.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Those that end it, blocked in all threads and taken by sigwait. */
static void end_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* counts: of runs, and of those that run. */
static void say_json(const struct serve_http_options *o, int port, const char *token_path,
                     const struct engine *engine, const int counts[2])
{
    char url[512];
    const bool six = strchr(o->host, ':') != NULL;
    snprintf(url, sizeof url, "http://%s%s%s:%d%s%s", six ? "[" : "", o->host, six ? "]" : "", port,
             o->metrics_only ? "/metrics" : "/#t=", o->metrics_only ? "" : o->token);
    json_t *said =
        json_pack("{s:s, s:i, s:s, s:i, s:i, s:s?}", "url", url, "port", port, "token_file", token_path,
                  "runs", counts[0], "running", counts[1], "model", engine ? engine_model(engine) : NULL);
    json_dumpf(said, stdout, 0);
    putchar('\n');
    fflush(stdout);
    json_decref(said);
}

static void say(const struct serve_http_options *o, int port, const char *token_path,
                struct serve_state *state, const struct engine *engine)
{
    char host[256] = "";
    const char *home = getenv("HOME");
    const size_t n = home ? strlen(home) : 0;
    const bool below = n > 1 && strncmp(token_path, home, n) == 0 && token_path[n] == '/';
    int running;
    const int count = serve_state_count(state, &running);
    const bool six = strchr(o->host, ':') != NULL;
    if (o->json) {
        say_json(o, port, token_path, engine, (int[]){count, running});
        return;
    }
    gethostname(host, sizeof host - 1);
    printf("%d run%s, %d running: http://%s%s%s:%d", count, count == 1 ? "" : "s", running, six ? "[" : "",
           o->host, six ? "]" : "", port);
    if (o->metrics_only) {
        printf("/metrics, with Authorization: Bearer TOKEN; the token is in %s%s\n", below ? "~" : "",
               token_path + (below ? n : 0));
        fflush(stdout);
        return;
    }
    printf("/#t=%s\n", o->token);
    if (engine)
        printf("model %s: POST /v1/completions, as of OpenAI, with the token as key\n", engine_model(engine));
    printf("from your desk: ssh -L %d:%s:%d %s; Prometheus: /metrics with Authorization: Bearer TOKEN; the "
           "token "
           "is in %s%s\n",
           port, o->host, port, host, below ? "~" : "", token_path + (below ? n : 0));
    fflush(stdout);
}

status serve_run(const struct serve_options *o)
{
    char token[SERVE_TOKEN], token_path[1024], policy[512];
    struct serve_state *state = NULL;
    struct serve_http *http = NULL;
    struct engine *engine = NULL;
    sigset_t ends;
    int port = 0, number = 0;
    const char *host = o->host ? o->host : "127.0.0.1";
    if (!serve_host_is_own(strcmp(host, "::1") == 0 ? "[::1]" : host, NULL) && o->token_file == NULL)
        return FAIL(STATUS_CONFIG, "serve: --host %s can be reached from other hosts: add --token-file FILE",
                    host);
    if (o->metrics_only && o->model)
        return FAIL(STATUS_CONFIG, "serve: --metrics-only answers /metrics alone: not with --model");
    TRY(serve_token_read(o->token_file, token, token_path));
    end_signals(&ends);
    char *page = report_live_page(policy);
    status st = serve_state_open(&state, o);
    const struct serve_http_options h = {.host = host,
                                         .port = o->port,
                                         .token = token,
                                         .page = page,
                                         .policy = policy,
                                         .state = state,
                                         .model = o->model != NULL,
                                         .metrics_only = o->metrics_only,
                                         .json = o->json};
    if (st == STATUS_OK) st = serve_http_open(&http, &h, &port); /* before a device is touched */
    if (st == STATUS_OK && o->model) st = engine_open(&engine, o);
    if (st == STATUS_OK) {
        if (engine) serve_http_model(http, engine);
        say(&h, port, token_path, state, engine);
        while (sigwait(&ends, &number) != 0) {}
        serve_state_stop(state);
        if (engine) engine_stop(engine);
    }
    serve_http_close(http);
    engine_close(engine);
    serve_state_close(state);
    free(page);
    return st;
}
