/* serve: a live page about runs, their numbers for Prometheus, and completions by a model, over HTTP. It reads run
 * directories alone and writes nothing: training does not know it. Limits and checks: docs/GUIDE.md. */
#ifndef INGOT_SERVE_SERVE_H
#define INGOT_SERVE_SERVE_H
#include "base/status.h"
#include <stdbool.h>

struct serve_options {
    const char *const *paths;   /* run directories, and directories of runs */
    int path_count;
    const char *host;           /* address to listen at; NULL: 127.0.0.1 */
    int port;                   /* 0: any that is free */
    const char *token_file;     /* NULL: ~/.config/ingot/token, made when it is not there */
    const char *model;          /* run or checkpoint that answers POST /v1/completions; NULL: none. Then there may be no
                                   run to show */
    bool metrics_only;          /* no page and no API, /metrics alone: for the host of a Prometheus */
    bool json;                  /* what it says first is one JSON object in one line */
    bool accept_data;           /* another tokenizer than the model was trained with is no error */
};
/* Serves until SIGINT or SIGTERM. STATUS_CONFIG: an address beyond this host without a token file, a token file that
 * others can read, a build without libmicrohttpd; STATUS_DATA: no run; STATUS_IO: the port is taken, by which process; of the model those of restore_open
 * (train/restore.h). */
status serve_run(const struct serve_options *o) WARN_UNUSED;
#endif
