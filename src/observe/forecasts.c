#include "observe/forecasts.h"
#include "base/clock.h"
#include "base/log.h"
#include "observe/observe_int.h"

#include <stdio.h>

void forecasts_append(const char *run_dir, const struct forecast_line *l)
{
    char path[1200], text[1024];
    struct sink sink;
    snprintf(path, sizeof path, "%s/forecast.jsonl", run_dir);
    if (sink_open(&sink, path, SINK_APPEND) != STATUS_OK) {
        log_warn("%s; what was predicted of this run is not kept", status_message());
        return;
    }
    const int n = snprintf(
        text, sizeof text,
        "%s{\"kind\":\"run\",\"time\":%.3f,\"machine\":\"%s\",\"rates\":\"%s\",\"ranks\":%d,\"mesh\":\"%s\","
        "\"precision\":\"%s\","
        "\"parameters\":%.0f,\"tokens\":%.0f,\"predicted_step_s\":%.6g,\"measured_step_s\":%.6g,\"predicted_"
        "bytes\":%.0f,"
        "\"measured_bytes\":%.0f}\n",
        sink.good ? "" : "{\"kind\":\"schema\",\"format\":\"ingot forecast\",\"version\":1}\n",
        clock_wall_s(), l->machine, l->row ? "row" : "host", l->ranks, l->axes, l->precision, l->parameters,
        l->tokens, l->predicted_s, l->measured_s, l->predicted_bytes, l->measured_bytes);
    sink_append(&sink, text, (size_t)n);
    sink_close(&sink);
}
