#include "observe/live.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/text.h"
#include "observe/monitor.h"
#include "observe/report_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const unsigned char live_js[];

static void base64(const uint8_t in[32], char out[45])
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *to = out;
    for (int i = 0; i < 33; i += 3) {
        const unsigned b = i + 2 < 32 ? in[i + 2] : 0;
        const unsigned v = (unsigned)in[i] << 16 | (unsigned)in[i + 1] << 8 | b;
        for (int k = 18; k >= 0; k -= 6) *to++ = letters[v >> k & 63];
    }
    out[43] = '=';
    out[44] = 0;
}

char *report_live_page(char policy[512])
{
    char *page = NULL, *script = NULL, digest[45];
    size_t bytes = 0, script_bytes = 0;
    uint8_t raw[32];
    struct sha256 hash;
    FILE *js = memory_stream(&script, &script_bytes);
    fprintf(js, "\n%s\n%s", (const char *)report_js, (const char *)live_js);
    memory_stream_close(js);
    sha256_init(&hash);
    sha256_add(&hash, script, script_bytes);
    sha256_raw(&hash, raw);
    base64(raw, digest);
    snprintf(
        policy, 512,
        "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'sha256-%s'; base-uri "
        "'none'; form-action 'none'; frame-ancestors 'none'",
        digest);
    FILE *out = memory_stream(&page, &bytes);
    fprintf(out,
            "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
            "content='width=device-width'><link rel=icon href='data:,'><title>ingot serve</title>\n"
            "<style>\n%s</style></head>\n<body class=compare><main>\n<div class=over>ingot, live</div>"
            "<h1 id=title>Runs</h1><div id=said class=sub>connecting</div>\n<div id=now></div>\n",
            (const char *)report_css);
    report_put_controls(out);
    fprintf(out,
            "<div id=view></div>\n<script type=application/json id=data>{\"runs\":[]}</script>\n"
            "</main><script>%s</script></body></html>\n",
            script);
    memory_stream_close(out);
    free(script);
    return page;
}

/* ---- tables */

static void put_number(FILE *out, const char *format, double v)
{
    fprintf(out, "<td class=n>");
    if (isfinite(v)) fprintf(out, format, v);
}

static void put_ranks(FILE *out, const struct monitor *m)
{
    char a[32], b[32];
    if (m->rank_count < 2) return;
    fprintf(out, "<h2>Ranks <small>");
    report_put_text(out, m->name);
    fprintf(
        out,
        "</small></h2><div class='card scroll'><table><tr><th>rank<th class=n>work<th class=n>wait<th>\n");
    for (int i = 0; i < m->rank_count; i++)
        fprintf(out, "<tr><td>%d<td class=n>%s<td class=n>%s<td>%s\n", m->rank[i],
                text_time(a, m->rank_time[i].work_s), text_time(b, m->rank_time[i].wait_s),
                i == m->slow_rank ? "slowest" : "");
    fprintf(out, "</table></div>\n");
}

static void put_hosts(FILE *out, const struct monitor *m)
{
    char a[32], b[32];
    if (m->host_count == 0) return;
    fprintf(out, "<h2>Hosts and GPUs <small>");
    report_put_text(out, m->name);
    fprintf(
        out,
        "</small></h2><div class='card scroll'><table><tr><th>host<th class=n>MHz<th class=n>W<th class=n>C"
        "<th class=n>busy %%<th class=n>tensor %%<th class=n>dram %%<th class=n>memory %%<th "
        "class=n>throttled s<th>free\n");
    for (int i = 0; i < m->host_count; i++) {
        const struct host_lines *h = &m->hosts[i];
        for (int k = 0; k < h->gpus; k++) {
            const struct gpu_lines *g = &h->gpu[k];
            fprintf(out, "<tr><td>");
            report_put_text(out, h->host);
            fprintf(out, " gpu%d", g->index);
            put_number(out, "%.0f", g->sm_mhz);
            put_number(out, "%.0f", g->watts);
            put_number(out, "%.0f", g->celsius);
            put_number(out, "%.0f", g->busy_percent);
            put_number(out, "%.0f", g->tensor_percent);
            put_number(out, "%.0f", g->dram_percent);
            put_number(out, "%.0f", 100 * g->memory_used / g->memory_total);
            put_number(out, "%.0f", g->throttled_s);
            fprintf(out, "<td>\n");
        }
        fprintf(out, "<tr><td>");
        report_put_text(out, h->host);
        fprintf(out, "<td><td><td>");
        put_number(out, "%.0f", h->cpu_percent);
        fprintf(out, "<td><td><td><td><td>%s memory, %s disk\n",
                isfinite(h->memory_available) ? text_bytes(a, h->memory_available) : "?",
                isfinite(h->disk_free) ? text_bytes(b, h->disk_free) : "?");
    }
    fprintf(out, "</table></div>\n");
}

static void put_view(FILE *out, const struct report_data *runs, int count)
{
    struct monitor *m = calloc(1, sizeof *m);
    MEMORY_CHECK(m != NULL, "no memory for a run's state");
    fprintf(out, "<h2>Results</h2>\n");
    report_put_results(out, runs, count);
    for (int i = 0; i < count; i++) report_put_alerts(out, &runs[i]);
    for (int i = 0; i < count; i++) {
        if (monitor_read(m, runs[i].path, clock_wall_s()) != STATUS_OK) continue;
        put_ranks(out, m);
        put_hosts(out, m);
        monitor_free(m);
    }
    for (int i = 0; i < count; i++) {
        report_put_evals(out, &runs[i]);
        report_put_samples(out, &runs[i]);
    }
    free(m);
}

status report_live_read(const char *const *run_dirs, int count, char **curves, char **view)
{
    struct report_data *runs = calloc((size_t)count + 1, sizeof *runs);
    const struct report_data **list = calloc((size_t)count + 1, sizeof *list);
    MEMORY_CHECK(runs != NULL && list != NULL, "no memory for %d runs", count);
    size_t bytes;
    status st = STATUS_OK;
    int read = 0;
    *curves = *view = NULL;
    for (; read < count && st == STATUS_OK; read++) st = report_data_read(&runs[read], run_dirs[read], 0);
    if (st == STATUS_OK) {
        report_name_apart(runs, count);
        for (int i = 0; i < count; i++) list[i] = &runs[i];
        FILE *out = memory_stream(curves, &bytes);
        report_put_curves(out, list, count);
        memory_stream_close(out);
        out = memory_stream(view, &bytes);
        put_view(out, runs, count);
        memory_stream_close(out);
    }
    for (int i = 0; i < read; i++) report_data_free(&runs[i]);
    free(runs);
    free(list);
    return st;
}
