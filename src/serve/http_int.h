/* Inside the HTTP server: what http.c has for the routes of http_v1.c. */
#ifndef INGOT_SERVE_HTTP_INT_H
#define INGOT_SERVE_HTTP_INT_H
#include "serve/serve_int.h"

#if INGOT_MICROHTTPD
#include <microhttpd.h>
#include <pthread.h>

enum {
    CONNECTIONS = 64,
    PER_ADDRESS = 16,
    URL_MAX = 4096,
    HEADERS_MAX = 64,
    MEMORY = 16 << 10, /* of a connection: request line, headers */
    STACK = 1 << 20,
    SILENT_S = 15 /* neither side sends */
};
#define HEAD_S 5.0 /* until a request's head is whole, from the connection's begin on */
#define IDLE_S 15.0 /* until the next head is whole, and until a body is */

/* A connection: it waits for a request's head or body since a time, or is answered. */
struct slot {
    bool used, first, busy;
    int fd;
    double since;
};
struct serve_http {
    struct serve_http_options o;
    struct MHD_Daemon *daemon;
    _Atomic(struct engine *) engine; /* NULL: it is being loaded, or there is none */
    pthread_t reaper;
    pthread_mutex_t parsing; /* one body at a time becomes a tree, which takes many times its bytes */
    pthread_mutex_t lock;    /* of what follows */
    pthread_cond_t wake;
    bool stop;
    int posts; /* being answered */
    struct slot slots[CONNECTIONS];
};

/* Sends a response with the headers that all have; it is given away. */
enum MHD_Result http_send(const struct serve_http *h, struct MHD_Connection *c, unsigned code, const char *type,
                          struct MHD_Response *r);
/* The same with a malloc'd text. */
enum MHD_Result http_send_text(const struct serve_http *h, struct MHD_Connection *c, unsigned code,
                               const char *type, char *text);
/* One line of words; below /v1/ the API's object. */
enum MHD_Result http_refuse(const struct serve_http *h, struct MHD_Connection *c, const char *url, unsigned code,
                            const char *why);

/* ---- http_v1.c: the API of OpenAI below /v1/ */
bool http_v1_is(const char *url);
/* A POST may go there. */
bool http_v1_takes(const struct serve_http *h, const char *url);
enum MHD_Result http_v1_get(const struct serve_http *h, struct MHD_Connection *c, const char *url);
enum MHD_Result http_v1_post(struct serve_http *h, struct MHD_Connection *c, const char *body, size_t bytes);
#endif
#endif
