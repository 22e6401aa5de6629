/* report.html: one page about one run, for a browser, mail or an archive; compare.html: one about several. A page is
 * self-contained: style sheet, script and data are inside, and a content policy forbids every request. It is a
 * function of the run directory (no clock, no host): the same run gives the same bytes.
 *
 * Facts shown separately from the table of all facts:
 *   gzip_bpb, xz_bpb                     bits per byte of the validation text under gzip -9 and xz -9
 *   parameters                           number of parameters of the model
 *   predicted_step_s, measured_step_s    median time of a step
 *   planned_bytes, measured_bytes        memory; planned_bytes.NAME and measured_bytes.NAME for its parts */
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "observe/report_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How it ended, as a coloured word and the reason. */
static void put_status(FILE *out, const struct report_data *d)
{
    static const char *const looks[] = {[REPORT_FINISHED] = "good",
                                        [REPORT_STOPPED] = "warn",
                                        [REPORT_FAILED] = "bad",
                                        [REPORT_RUNNING] = "none",
                                        [REPORT_KILLED] = "warn"};
    char buf[32];
    int code;
    const enum report_state state = report_data_state(d, &code);
    const char *word = report_state_text(buf, state, code);
    fprintf(out, "<span class='pill %s'>%s%s</span>", looks[state], word,
            d->has_checkpoints && (state == REPORT_STOPPED || state == REPORT_KILLED) ? "; can be resumed"
                                                                                      : "");
    const char *reason = json_string_value(json_object_get(d->exit, "reason"));
    if (reason && strcmp(reason, word) != 0) report_put_text(out, reason);
}

/* What it ran on, in one line. */
static void put_subtitle(FILE *out, const struct report_data *d)
{
    static const char *const keys[] = {"device", "processor", "isa", "precision", "threads", "start"};
    char buf[32], time[64];
    int shown = 0;
    fprintf(out, "<div class=sub>");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *v = report_data_env(d, buf, keys[i]);
        if (v[0] == 0) continue;
        fprintf(out, "%s", shown++ ? " &middot; " : "");
        if (strcmp(keys[i], "start") == 0) v = report_time_text(time, v);
        report_put_text(out, v);
        if (strcmp(keys[i], "threads") == 0) fprintf(out, strcmp(v, "1") == 0 ? " thread" : " threads");
    }
    fprintf(out, "</div>\n");
}

/* One number; `value` is ours, `below` too. */
static void put_card(FILE *out, const char *what, const char *value, const char *below)
{
    fprintf(out, "<div class=card><span>%s</span><b>%s</b><small>%s</small></div>\n", what, value, below);
}

static double smallest(const struct series *s)
{
    double least = NAN;
    for (int64_t i = 0; i < s->count; i++) least = fmin(s->y[i], least);
    return least;
}

static void put_loss_cards(FILE *out, const struct report_data *d)
{
    char value[32], below[64];
    int64_t n;
    const double loss = report_data_loss(d, &n);
    if (n > 0) {
        snprintf(value, sizeof value, "%.4f", loss);
        snprintf(below, sizeof below, "mean of the last %lld records", (long long)n);
        put_card(out, "Training loss", value, n == 1 ? "one record" : below);
    }
    if (d->val_loss.count) {
        const double perplexity = exp(series_last(&d->val_loss));
        snprintf(value, sizeof value, "%.4f", series_last(&d->val_loss));
        snprintf(below, sizeof below, perplexity < 1e9 ? "best %.4f &middot; perplexity %.4g" : "best %.4f",
                 smallest(&d->val_loss), perplexity);
        put_card(out, "Validation loss", value, below);
    }
    if (d->val_bpb.count) {
        snprintf(value, sizeof value, "%.4f", series_last(&d->val_bpb));
        put_card(out, "Bits per byte", value, "of the validation text");
    }
    if (d->val_accuracy.count) {
        snprintf(value, sizeof value, "%.1f %%", 100 * series_last(&d->val_accuracy));
        put_card(out, "Accuracy", value, "of validation tokens were the likeliest");
    }
}

static void put_speed_cards(FILE *out, const struct report_data *d)
{
    char value[32], below[96];
    if (d->tokens_per_s.count) {
        snprintf(below, sizeof below, "tokens/s, median");
        if (d->flops_per_s.count) {
            double flops = series_median(&d->flops_per_s);
            snprintf(below, sizeof below, "tokens/s &middot; %.2f %s", flops / (flops < 1e12 ? 1e9 : 1e12),
                     flops < 1e12 ? "GFLOP/s" : "TFLOP/s");
        }
        if (d->mfu.count)
            snprintf(below + strlen(below), sizeof below - strlen(below), " &middot; %.1f %% MFU",
                     100 * series_median(&d->mfu));
        put_card(out, "Throughput", text_count(value, series_median(&d->tokens_per_s)), below);
    }
    if (d->wall_s > 0) {
        int64_t stops = 0;
        for (int64_t i = 0; i < d->starts.count; i++) stops += d->starts.x[i] > 0;
        snprintf(below, sizeof below, stops ? "%lld %s" : "in one go", (long long)stops,
                 stops == 1 ? "restart" : "restarts");
        put_card(out, "Wall time", text_duration(value, fmin(d->wall_s, 1e12)), below);
    }
}

static void put_cards(FILE *out, const struct report_data *d)
{
    char value[32], below[96];
    const int64_t planned = report_data_planned(d);
    fprintf(out, "<div class=cards>\n");
    put_loss_cards(out, d);
    snprintf(below, sizeof below, planned > 0 ? "%lld of %lld steps" : "%lld steps", (long long)d->steps,
             (long long)planned);
    put_card(out, "Tokens", text_count(value, (double)d->tokens), below);
    put_speed_cards(out, d);
    const double count = report_data_parameters(d), bytes = report_data_fact(d, "measured_bytes");
    if (count > 0) {
        snprintf(below, sizeof below, "%.3g tokens per parameter", (double)d->tokens / count);
        put_card(out, "Parameters", text_count(value, count), below);
    }
    if (!isnan(bytes))
        put_card(out, "Memory", text_bytes(value, bytes), "measured");
    else if (d->rss_bytes.count)
        put_card(out, "Memory", text_bytes(value, series_last(&d->rss_bytes)), "resident");
    fprintf(out, "</div>\n");
}

static void put_bar(FILE *out, const char *name, double value, double most, const char *look)
{
    if (isnan(value)) return;
    fprintf(out, "<span>%s</span><div class='%s' style='width:%.1f%%'></div><span>%.3f</span>\n", name, look,
            value / most * 100, value);
}

static void put_compression(FILE *out, const struct report_data *d)
{
    double us = series_last(&d->val_bpb), gzip = report_data_fact(d, "gzip_bpb"),
           xz = report_data_fact(d, "xz_bpb");
    double most = fmax(us, fmax(gzip, xz));
    if (isnan(us) || (isnan(gzip) && isnan(xz)) || most <= 0 || fmin(us, fmin(gzip, xz)) < 0) return;
    fprintf(out, "<h2>Bits per byte of the validation text <small>less is better</small></h2>\n"
                 "<div class='card bars'>\n");
    put_bar(out, "this model", us, most, "us");
    put_bar(out, "xz -9", xz, most, "");
    put_bar(out, "gzip -9", gzip, most, "");
    fprintf(out, "</div>\n");
}

static void put_memory(FILE *out, const struct report_data *d)
{
    static const char planned[] = "planned_bytes", measured[] = "measured_bytes";
    char a[32], b[32], key[256];
    bool open = false;
    for (int64_t i = 0; i < d->fact_count; i++) {
        const char *name = d->facts[i].name, *part = name + sizeof planned - 1;
        if (strncmp(name, planned, sizeof planned - 1) != 0 || (*part != 0 && *part != '.')) continue;
        snprintf(key, sizeof key, "%s%s", measured, part);
        double got = report_data_fact(d, key);
        if (*part && d->facts[i].value == 0 && !(got > 0)) continue;
        if (!open)
            fprintf(out, "<h2>Memory</h2>\n<div class=card><table><tr><th>part<th class=n>planned<th "
                         "class=n>measured\n");
        open = true;
        fprintf(out, "<tr><td>");
        report_put_text(out, *part ? part + 1 : "all");
        fprintf(out, "<td class=n>%s<td class=n>%s\n", text_bytes(a, d->facts[i].value),
                isnan(got) ? "" : text_bytes(b, got));
    }
    if (open) fprintf(out, "</table></div>\n");
}

/* What a plan says of a step, beside the median that was measured (train/forecast.h). */
static void put_forecast(FILE *out, const struct report_data *d)
{
    const double predicted = report_data_fact(d, "predicted_step_s"),
                 measured = report_data_fact(d, "measured_step_s");
    if (isnan(predicted) || isnan(measured)) return;
    fprintf(out,
            "<h2>Step</h2>\n<div class=card><table><tr><th><th class=n>predicted<th class=n>measured\n"
            "<tr><td>seconds<td class=n>%.4g<td class=n>%.4g\n</table></div>\n",
            predicted, measured);
}

/* All samples of a short run; of a long one, the first, the last and some evenly between. */
void report_put_samples(FILE *out, const struct report_data *d)
{
    enum { SHOWN_MAX = 12 };
    int64_t shown = d->sample_count < SHOWN_MAX ? d->sample_count : SHOWN_MAX;
    if (shown == 0) return;
    fprintf(out, "<h2>Samples over time</h2>\n");
    for (int64_t k = 0; k < shown; k++) {
        const struct report_sample *s = &d->samples[shown > 1 ? k * (d->sample_count - 1) / (shown - 1) : 0];
        fprintf(out, "<div class='card sample'><div class=over>step %lld</div><p><b>", (long long)s->step);
        report_put_text(out, s->prompt);
        fprintf(out, "</b>");
        report_put_text(out, s->text);
        fprintf(out, "</p></div>\n");
    }
}

static bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static void put_facts(FILE *out, const struct report_data *d)
{
    char buf[32];
    if (d->fact_count == 0) return;
    fprintf(out, "<details class=card><summary>Facts</summary><table>\n");
    for (int64_t i = 0; i < d->fact_count; i++) {
        double v = d->facts[i].value;
        const char *name = d->facts[i].name;
        bool bytes = strstr(name, "_bytes") != NULL,
             seconds = ends_in(name, "_s") && !ends_in(name, "_per_s");
        fprintf(out, "<tr><td>");
        report_put_text(out, name);
        snprintf(buf, sizeof buf, "%.9g", v);
        fprintf(out, "<td class=n>%s", buf);
        if (bytes)
            fprintf(out, " (%s)", text_bytes(buf, v));
        else if (seconds && fabs(v) >= 60 && v < 1e12)
            fprintf(out, " (%s)", text_duration(buf, v));
        fprintf(out, "\n");
    }
    fprintf(out, "</table></details>\n");
}

/* What has a place of its own on the page (put_origin) is left out. */
static void put_object(FILE *out, const json_t *object, const char *prefix)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)object, key, v)
    {
        char buf[32];
        if (json_is_object(v) && prefix[0] == 0 && strcmp(key, "data") != 0) put_object(out, v, key);
        if (json_is_object(v)) continue;
        const struct report_data one = {.env = (json_t *)object};
        fprintf(out, "<tr><td>");
        report_put_text(out, prefix);
        report_put_text(out, prefix[0] ? "." : "");
        report_put_text(out, key);
        fprintf(out, "<td>");
        report_put_text(out, report_data_env(&one, buf, key));
        fprintf(out, "\n");
    }
}

static void put_tail(FILE *out, const struct report_data *d)
{
    char buf[32];
    if (d->fact_count || d->env || d->config) fprintf(out, "<h2>Details</h2>\n");
    put_facts(out, d);
    if (d->env) {
        fprintf(out, "<details class=card><summary>Environment</summary><table>\n");
        put_object(out, d->env, "");
        fprintf(out, "</table></details>\n");
    }
    if (d->config) {
        fprintf(out, "<details class=card><summary>Configuration</summary><pre>");
        report_put_text(out, d->config);
        fprintf(out, "</pre></details>\n");
    }
    fprintf(out, "<footer>Made by ingot %s", INGOT_VERSION);
    const char *git = report_data_env(d, buf, "git");
    if (git[0]) {
        fprintf(out, " (run: ");
        report_put_text(out, git);
        fprintf(out, ")");
    }
    fprintf(out, " from metrics.jsonl, env.json, exit.json and config.yaml of the run directory.");
    if (d->unreadable)
        fprintf(out, " Lines of metrics.jsonl that could not be read: %lld.", (long long)d->unreadable);
    fprintf(out, "</footer>\n");
}

static void put_page(FILE *out, const struct report_data *d)
{
    const struct report_data *const one[] = {d};
    report_put_head(out, d->name, "ingot training run", "run");
    fprintf(out, "<div>");
    put_status(out, d);
    fprintf(out, "</div>\n");
    put_subtitle(out, d);
    put_cards(out, d);
    report_put_charts(out, one, 1);
    report_put_alerts(out, d);
    put_compression(out, d);
    report_put_evals(out, d);
    report_put_samples(out, d);
    report_put_next(out, d);
    report_put_stages(out, d);
    report_put_origin(out, d);
    put_forecast(out, d);
    put_memory(out, d);
    put_tail(out, d);
    report_put_foot(out);
}

status report_write(const char *run_dir, const char *path)
{
    struct report_data d;
    char own[1200], *page = NULL;
    size_t bytes = 0;
    TRY(report_data_read(&d, run_dir, 0));
    snprintf(own, sizeof own, "%s/report.html", d.path);
    FILE *out = memory_stream(&page, &bytes);
    put_page(out, &d);
    memory_stream_close(out);
    status st = io_write_file(path ? path : own, page, bytes);
    free(page);
    report_data_free(&d);
    return st;
}
