/* The runs' numbers in OpenMetrics: families in one piece, HELP and TYPE before them, "# EOF" at the end. */
#include "base/memory.h"
#include "observe/monitor.h"
#include "serve/serve_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void put_label(FILE *out, const char *name, const char *text)
{
    fprintf(out, "%s=\"", name);
    for (; *text; text++) {
        if (*text == '\\' || *text == '"')
            fprintf(out, "\\%c", *text);
        else if (*text == '\n')
            fputs("\\n", out);
        else
            fputc(*text, out);
    }
    fputc('"', out);
}

static void put_family(FILE *out, const char *name, const char *type, const char *unit, const char *help)
{
    fprintf(out, "# TYPE %s %s\n", name, type);
    if (unit[0]) fprintf(out, "# UNIT %s %s\n", name, unit);
    fprintf(out, "# HELP %s %s\n", name, help);
}

static void put_value(FILE *out, const char *name, const char *run, double v)
{
    if (!isfinite(v)) return;
    fprintf(out, "%s{", name);
    put_label(out, "run", run);
    fprintf(out, "} %.17g\n", v);
}

/*  family, type, unit, suffix of the sample, value of a struct monitor *m, help */
#define RUN_FAMILIES(X)                                                                                      \
    X("ingot_running", "gauge", "", "", (double)m->running, "1 while a process trains the run.")             \
    X("ingot_steps", "counter", "", "_total", (double)m->step, "Optimizer steps done.")                      \
    X("ingot_steps_planned", "gauge", "", "", m->planned > 0 ? (double)m->planned : (double)NAN,             \
      "Steps of the whole run.")                                                                             \
    X("ingot_tokens", "counter", "", "_total", (double)m->tokens, "Tokens consumed.")                        \
    X("ingot_loss", "gauge", "", "", m->loss, "Loss of the last step, nats per token.")                      \
    X("ingot_validation_loss", "gauge", "", "", m->val_loss, "Last validation loss, nats per token.")        \
    X("ingot_gradient_norm", "gauge", "", "", m->grad_norm, "Gradient norm before clipping.")                \
    X("ingot_learning_rate", "gauge", "", "", m->lr, "Learning rate.")                                       \
    X("ingot_tokens_per_second", "gauge", "", "", m->tokens_per_s, "Speed of the last step, all ranks.")     \
    X("ingot_step_seconds", "gauge", "seconds", "", m->step_s, "Time of the last step.")                     \
    X("ingot_mfu_ratio", "gauge", "ratio", "", m->mfu, "Model FLOPs utilization.")                           \
    X("ingot_data_wait_ratio", "gauge", "ratio", "", m->data_wait,                                           \
      "Share of the last steps' time that waits for data.")                                                  \
    X("ingot_last_record_timestamp_seconds", "gauge", "seconds", "", m->last_s,                              \
      "Time of the last record, Unix time.")                                                                 \
    X("ingot_left_seconds", "gauge", "seconds", "", m->eta_s, "Time to the end of the run, as it goes now.")

#define GPU_FAMILIES(X)                                                                                      \
    X("ingot_gpu_watts", "watts", g->watts, "Power, mean of the last interval.")                             \
    X("ingot_gpu_sm_megahertz", "megahertz", g->sm_mhz, "Clock of the multiprocessors.")                     \
    X("ingot_gpu_celsius", "celsius", g->celsius, "Temperature.")                                            \
    X("ingot_gpu_busy_ratio", "ratio", g->busy_percent / 100, "Share of the time with a kernel.")            \
    X("ingot_gpu_sm_ratio", "ratio", g->sm_percent / 100, "Share of the multiprocessors that were busy.")    \
    X("ingot_gpu_occupancy_ratio", "ratio", g->occupancy_percent / 100, "Share of the warps that fit.")      \
    X("ingot_gpu_tensor_ratio", "ratio", g->tensor_percent / 100,                                            \
      "Share of the time in which the tensor cores worked.")                                                 \
    X("ingot_gpu_dram_ratio", "ratio", g->dram_percent / 100, "Share of the memory's bandwidth.")            \
    X("ingot_gpu_memory_used_bytes", "bytes", g->memory_used, "Memory in use.")                              \
    X("ingot_gpu_throttled_seconds", "seconds", g->throttled_s,                                              \
      "Thermal slowdown and power brake in the last ten minutes.")                                           \
    X("ingot_gpu_ecc_uncorrected_errors", "errors", g->ecc_uncorrected, "Uncorrectable memory errors.")

static void put_gpu(FILE *out, const char *name, const struct monitor *m, const struct host_lines *h,
                    const struct gpu_lines *g, double v)
{
    char index[16];
    if (!isfinite(v)) return;
    snprintf(index, sizeof index, "%d", g->index);
    fprintf(out, "%s{", name);
    put_label(out, "run", m->name);
    fputc(',', out);
    put_label(out, "host", h->host);
    fputc(',', out);
    put_label(out, "gpu", index);
    fputc(',', out);
    put_label(out, "uuid", g->uuid);
    fprintf(out, "} %.17g\n", v);
}

static void put_ranks(FILE *out, const struct monitor *runs, int count, const char *name, const char *help,
                      bool wait)
{
    put_family(out, name, "gauge", "seconds", help);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < runs[i].rank_count; k++) {
            fprintf(out, "%s{", name);
            put_label(out, "run", runs[i].name);
            fprintf(out, ",rank=\"%d\"} %.17g\n", runs[i].rank[k],
                    wait ? runs[i].rank_time[k].wait_s : runs[i].rank_time[k].work_s);
        }
}

static bool said_before(const struct alert_list *l, int at)
{
    for (int i = 0; i < at; i++)
        if (strcmp(l->list[i].name, l->list[at].name) == 0) return true;
    return false;
}

static void put_alerts(FILE *out, const struct monitor *runs, int count)
{
    put_family(out, "ingot_alerts", "gauge", "", "Alerts that are on, by name.");
    for (int i = 0; i < count; i++)
        for (int k = 0; k < runs[i].alerts.count; k++) {
            const struct alert_list *l = &runs[i].alerts;
            int on = 0;
            if (said_before(l, k)) continue;
            for (int n = k; n < l->count; n++)
                on += !l->list[n].over && strcmp(l->list[n].name, l->list[k].name) == 0;
            fprintf(out, "ingot_alerts{");
            put_label(out, "run", runs[i].name);
            fputc(',', out);
            put_label(out, "alert", l->list[k].name);
            fprintf(out, "} %d\n", on);
        }
}

char *serve_openmetrics(const struct monitor *runs, int count)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = memory_stream(&text, &bytes);
#define X(family, type, unit, suffix, value, help)                                                           \
    put_family(out, family, type, unit, help);                                                               \
    for (int i = 0; i < count; i++) {                                                                        \
        const struct monitor *m = &runs[i];                                                                  \
        put_value(out, family suffix, m->name, value);                                                       \
    }
    RUN_FAMILIES(X)
#undef X
#define X(family, unit, value, help)                                                                         \
    put_family(out, family, "gauge", unit, help);                                                            \
    for (int i = 0; i < count; i++)                                                                          \
        for (int k = 0; k < runs[i].host_count; k++)                                                         \
            for (int n = 0; n < runs[i].hosts[k].gpus; n++) {                                                \
                const struct gpu_lines *g = &runs[i].hosts[k].gpu[n];                                        \
                put_gpu(out, family, &runs[i], &runs[i].hosts[k], g, value);                                 \
            }
    GPU_FAMILIES(X)
#undef X
    put_ranks(out, runs, count, "ingot_rank_work_seconds", "Work of a rank per step.", false);
    put_ranks(out, runs, count, "ingot_rank_wait_seconds", "Wait of a rank for others per step.", true);
    put_alerts(out, runs, count);
    fputs("# EOF\n", out);
    memory_stream_close(out);
    return text;
}
