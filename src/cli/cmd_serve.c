/* ingot serve: runs as a live page, and for Prometheus; completions by a model. */
#include "cli/cli.h"
#include "serve/serve.h"

status cmd_serve(struct args *a)
{
    static const char *const here[] = {"runs"};
    int64_t port = 6006;
    struct serve_options o = {0};
    const struct flag flags[] = {FLAG("port", &port),
                                 FLAG("host", &o.host),
                                 FLAG("token-file", &o.token_file),
                                 FLAG("model", &o.model),
                                 FLAG("metrics-only", &o.metrics_only),
                                 FLAG("accept-data-change", &o.accept_data),
                                 FLAG("json", &o.json)};
    TRY(args_parse(a, flags, sizeof flags / sizeof flags[0]));
    if (a->help) return STATUS_OK;
    if (port < 0 || port > 65535)
        return FAIL(STATUS_CONFIG, "serve: --port %lld: from 0 (any that is free) to 65535", (long long)port);
    o.port = (int)port;
    o.paths = a->word_count ? (const char *const *)a->words : here;
    o.path_count = a->word_count ? a->word_count : o.model == NULL;
    return serve_run(&o);
}
