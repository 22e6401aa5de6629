/* report.html: one page about one run, for a browser, mail or an archive. It is self-contained: charts are
 * inline SVG, there is one style sheet and a small script for the pointer, and a content policy forbids
 * every request. It is a pure function of the run directory (no clock, no host): the same run gives the
 * same bytes, with or without SOURCE_DATE_EPOCH.
 *
 * Text from the run (samples, configuration, names) is escaped where it is written: all of it goes through
 * put_text.
 *
 * Facts shown separately from the table of all facts:
 *   gzip_bpb, xz_bpb                     bits per byte of the validation text under gzip -9 and xz -9
 *   parameters                           number of parameters of the model
 *   predicted_step_s, measured_step_s    median time of a step
 *   planned_bytes, measured_bytes        memory; planned_bytes.NAME and measured_bytes.NAME for its parts */
#include "observe/report_int.h"
#include "observe/observe_int.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '&')
            fputs("&amp;", out);
        else if (c == '<')
            fputs("&lt;", out);
        else if (c == '>')
            fputs("&gt;", out);
        else if (c == '"')
            fputs("&quot;", out);
        else if (c == '\'')
            fputs("&#39;", out);
        else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
            fputs("\xef\xbf\xbd", out);
        else
            fputc(c, out);
    }
}

/* A scalar of env.json or exit.json as text; "" for what is no scalar. */
static const char *scalar(char buf[32], const json_t *v)
{
    if (json_is_string(v)) return json_string_value(v);
    if (json_is_boolean(v)) return json_is_true(v) ? "true" : "false";
    if (json_is_integer(v))
        snprintf(buf, 32, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(buf, 32, "%.6g", json_real_value(v));
    else
        return "";
    return buf;
}
static const char *env_text(const struct report_data *d, char buf[32], const char *key)
{
    return scalar(buf, json_object_get(d->env, key));
}

/* How it ended, as a coloured word and the reason. */
static void put_status(FILE *out, const struct report_data *d)
{
    const char *look = "none", *word = "running, or killed";
    const json_t *code = json_object_get(d->exit, "code");
    int64_t exit_code = json_is_integer(code) ? json_integer_value(code) : -1;
    if (exit_code == STATUS_OK)
        look = "good", word = "finished";
    else if (exit_code == STATUS_STOPPED)
        look = "warn", word = "stopped early; can go on";
    else if (d->exit)
        look = "bad", word = "failed";
    fprintf(out, "<span class='pill %s'>%s", look, word);
    if (d->exit && exit_code != STATUS_OK && exit_code != STATUS_STOPPED)
        fprintf(out, " (exit %lld)", (long long)exit_code);
    fprintf(out, "</span>");
    const char *reason = json_string_value(json_object_get(d->exit, "reason"));
    if (reason) put_text(out, reason);
}

static void put_head(FILE *out, const struct report_data *d)
{
    char buf[32];
    fprintf(
        out,
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
        "content='width=device-width'>\n"
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">\n<title>");
    put_text(out, d->name);
    fprintf(out,
            " - ingot</title>\n<style>\n%s</style></head>\n<body><main>\n<div class=over>ingot training "
            "run</div><h1>",
            report_style);
    put_text(out, d->name);
    fprintf(out, "</h1>\n<div>");
    put_status(out, d);
    fprintf(out, "</div>\n<div class=sub>");
    static const char *const keys[] = {"device", "processor", "isa", "precision", "start"};
    int shown = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *v = env_text(d, buf, keys[i]);
        if (v[0] == 0) continue;
        fprintf(out, "%s", shown++ ? " &middot; " : "");
        put_text(out, v);
    }
    const char *threads = env_text(d, buf, "threads");
    if (threads[0]) {
        fprintf(out, "%s", shown ? " &middot; " : "");
        put_text(out, threads);
        fprintf(out, strcmp(threads, "1") == 0 ? " thread" : " threads");
    }
    fprintf(out, "</div>\n");
}

/* One number; `value` is ours, `below` too. */
static void put_gpu(FILE *out, const char *what, const char *value, const char *below)
{
    fprintf(out, "<div class=card><span>%s</span><b>%s</b><small>%s</small></div>\n", what, value, below);
}

static double smallest(const struct series *s)
{
    double least = NAN;
    for (int64_t i = 0; i < s->count; i++) least = fmin(s->y[i], least);
    return least;
}

static double parameters(const struct report_data *d)
{
    const json_t *v = json_object_get(d->env, "parameters");
    return json_is_number(v) ? json_number_value(v) : report_data_fact(d, "parameters");
}

static void put_loss_gpus(FILE *out, const struct report_data *d)
{
    char value[32], below[64];
    if (d->loss.count) {
        /* The mean of the last steps: one batch alone is noise. */
        int64_t n = d->loss.count < 20 ? d->loss.count : d->loss.count / 50 + 10;
        double sum = 0;
        for (int64_t i = d->loss.count - n; i < d->loss.count; i++) sum += d->loss.y[i];
        snprintf(value, sizeof value, "%.4f", sum / (double)n);
        snprintf(below, sizeof below, "mean of the last %lld records", (long long)n);
        put_gpu(out, "Training loss", value, n == 1 ? "one record" : below);
    }
    if (d->val_loss.count) {
        snprintf(value, sizeof value, "%.4f", series_last(&d->val_loss));
        snprintf(below, sizeof below, "best %.4f", smallest(&d->val_loss));
        put_gpu(out, "Validation loss", value, below);
    }
    if (d->val_bpb.count) {
        snprintf(value, sizeof value, "%.4f", series_last(&d->val_bpb));
        put_gpu(out, "Bits per byte", value, "of the validation text");
    }
}

static void put_gpus(FILE *out, const struct report_data *d)
{
    char value[32], below[96], buf[32];
    fprintf(out, "<div class=cards>\n");
    put_loss_gpus(out, d);
    snprintf(below, sizeof below, "%lld steps", (long long)d->steps);
    put_gpu(out, "Tokens", text_count(value, (double)d->tokens), below);
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
        put_gpu(out, "Throughput", text_count(value, series_median(&d->tokens_per_s)), below);
    }
    if (d->wall_s > 0) {
        int64_t stops = 0;
        for (int64_t i = 0; i < d->starts.count; i++) stops += d->starts.x[i] > 0;
        snprintf(below, sizeof below, stops ? "%lld %s" : "in one go", (long long)stops,
                 stops == 1 ? "restart" : "restarts");
        put_gpu(out, "Wall time", text_duration(value, fmin(d->wall_s, 1e12)), below);
    }
    double count = parameters(d), bytes = report_data_fact(d, "measured_bytes");
    if (count > 0) {
        snprintf(below, sizeof below, "%.1f tokens per parameter", (double)d->tokens / count);
        put_gpu(out, "Parameters", text_count(value, count), below);
    }
    if (isnan(bytes) && d->rss_bytes.count)
        put_gpu(out, "Memory", text_bytes(buf, series_last(&d->rss_bytes)), "resident");
    else if (!isnan(bytes))
        put_gpu(out, "Memory", text_bytes(buf, bytes), "measured");
    fprintf(out, "</div>\n");
}

static void put_charts(FILE *out, const struct report_data *d)
{
    fprintf(out, "<h2>Curves</h2>\n");
    if (d->steps == 0) {
        fprintf(out, "<div class='card sub'>No step has been recorded.</div>\n");
        return;
    }
    const struct chart wide = {.title = "Loss",
                               .unit = "nats per token",
                               .raw = &d->loss,
                               .points = &d->val_loss,
                               .starts = &d->starts,
                               .smooth = true,
                               .width = 1000,
                               .height = 350};
    const struct chart small[] = {
        {.title = "Learning rate", .unit = "", .axis = AXIS_POWER, .raw = &d->lr, .from_zero = true},
        {.title = "Gradient norm",
         .unit = "before clipping",
         .raw = &d->grad_norm,
         .smooth = true,
         .from_zero = true},
        {.title = "Throughput",
         .unit = "tokens/s",
         .axis = AXIS_COUNT,
         .raw = &d->tokens_per_s,
         .smooth = true,
         .from_zero = true},
    };
    report_svg_chart(out, &wide);
    fprintf(out, "<div class=charts>\n");
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        struct chart c = small[i];
        c.width = 330;
        c.height = 210;
        c.id = (int)i + 1;
        report_svg_chart(out, &c);
    }
    fprintf(out, "</div>\n");
}

static void put_bar(FILE *out, const char *name, double value, double most, const char *look)
{
    if (isnan(value)) return;
    fprintf(out, "<span>%s</span><div class='bar %s' style='width:%.1f%%'></div><span>%.3f</span>\n", name,
            look, value / most * 100, value);
}

static void put_compression(FILE *out, const struct report_data *d)
{
    double us = series_last(&d->val_bpb), gzip = report_data_fact(d, "gzip_bpb"),
           xz = report_data_fact(d, "xz_bpb");
    double most = fmax(us, fmax(gzip, xz));
    if (isnan(us) || (isnan(gzip) && isnan(xz)) || most <= 0 || fmin(us, fmin(gzip, xz)) < 0) return;
    fprintf(out, "<h2>Bits per byte of the validation text <span class=sub>(less is "
                 "better)</span></h2>\n<div class='card bars'>\n");
    put_bar(out, "this model", us, most, "us");
    put_bar(out, "xz -9", xz, most, "");
    put_bar(out, "gzip -9", gzip, most, "");
    fprintf(out, "</div>\n");
}

static int largest_first(const void *a, const void *b)
{
    double x = ((const struct report_named *)a)->value, y = ((const struct report_named *)b)->value;
    return (x < y) - (x > y);
}

static void put_stages(FILE *out, const struct report_data *d)
{
    enum { COLORS = 8 };
    double total = 0;
    for (int64_t i = 0; i < d->stage_count; i++) total += d->stages[i].value;
    if (total <= 0) return;
    struct report_named *sorted = malloc((size_t)d->stage_count * sizeof *sorted);
    CHECK(sorted != NULL, "out of memory");
    memcpy(sorted, d->stages, (size_t)d->stage_count * sizeof *sorted);
    qsort(sorted, (size_t)d->stage_count, sizeof *sorted, largest_first);
    fprintf(out, "<h2>Where the time went</h2>\n<div class=card><div class=stack>");
    for (int64_t i = 0; i < d->stage_count; i++)
        fprintf(out, "<i class=s%d style='width:%.2f%%'></i>", i < COLORS ? (int)i : COLORS - 1,
                sorted[i].value / total * 100);
    fprintf(out, "</div><table>\n");
    for (int64_t i = 0; i < d->stage_count; i++) {
        fprintf(out, "<tr><td><i class='key s%d'></i>", i < COLORS ? (int)i : COLORS - 1);
        put_text(out, sorted[i].name);
        fprintf(out, "<td class=n>%.2f s<td class=n>%.1f %%\n", sorted[i].value,
                sorted[i].value / total * 100);
    }
    fprintf(out, "</table></div>\n");
    free(sorted);
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
        if (!open)
            fprintf(out, "<h2>Memory</h2>\n<div class=card><table><tr><th>part<th class=n>planned<th "
                         "class=n>measured\n");
        open = true;
        fprintf(out, "<tr><td>");
        put_text(out, *part ? part + 1 : "all");
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
static void put_samples(FILE *out, const struct report_data *d)
{
    enum { SHOWN_MAX = 12 };
    int64_t shown = d->sample_count < SHOWN_MAX ? d->sample_count : SHOWN_MAX;
    if (shown == 0) return;
    fprintf(out, "<h2>Samples over time</h2>\n");
    for (int64_t k = 0; k < shown; k++) {
        const struct report_sample *s = &d->samples[shown > 1 ? k * (d->sample_count - 1) / (shown - 1) : 0];
        fprintf(out, "<div class='card sample'><div class=over>step %lld</div><p><b>", (long long)s->step);
        put_text(out, s->prompt);
        fprintf(out, "</b>");
        put_text(out, s->text);
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
        put_text(out, name);
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

static void put_object(FILE *out, const json_t *object, const char *prefix)
{
    char buf[32];
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)object, key, v)
    {
        if (json_is_object(v) && prefix[0] == 0) put_object(out, v, key);
        if (json_is_object(v)) continue;
        fprintf(out, "<tr><td>");
        put_text(out, prefix);
        put_text(out, prefix[0] ? "." : "");
        put_text(out, key);
        fprintf(out, "<td>");
        put_text(out, scalar(buf, v));
        fprintf(out, "\n");
    }
}

static void put_tail(FILE *out, const struct report_data *d)
{
    char buf[32];
    fprintf(out, "<h2>Details</h2>\n");
    put_facts(out, d);
    if (d->env) {
        fprintf(out, "<details class=card><summary>Environment</summary><table>\n");
        put_object(out, d->env, "");
        fprintf(out, "</table></details>\n");
    }
    if (d->config) {
        fprintf(out, "<details class=card><summary>Configuration</summary><pre>");
        put_text(out, d->config);
        fprintf(out, "</pre></details>\n");
    }
    fprintf(out, "<footer>Made by ingot %s", INGOT_VERSION);
    const char *git = env_text(d, buf, "git");
    if (git[0]) {
        fprintf(out, " (run: ");
        put_text(out, git);
        fprintf(out, ")");
    }
    fprintf(out, " from metrics.jsonl, env.json, exit.json and config.yaml of the run directory.");
    if (d->unreadable)
        fprintf(out, " Lines of metrics.jsonl that could not be read: %lld.", (long long)d->unreadable);
    fprintf(out, "</footer>\n</main><script>%s</script></body></html>\n", report_script);
}

status report_write(const char *run_dir)
{
    struct report_data d;
    TRY(report_data_read(&d, run_dir));
    char *page = NULL, path[1024];
    size_t bytes = 0;
    FILE *out = open_memstream(&page, &bytes);
    CHECK(out != NULL, "out of memory");
    put_head(out, &d);
    put_gpus(out, &d);
    put_charts(out, &d);
    put_compression(out, &d);
    put_samples(out, &d);
    put_stages(out, &d);
    put_forecast(out, &d);
    put_memory(out, &d);
    put_tail(out, &d);
    fclose(out);
    snprintf(path, sizeof path, "%s/report.html", run_dir);
    status st = io_write_file(path, page, bytes);
    free(page);
    report_data_free(&d);
    return st;
}
