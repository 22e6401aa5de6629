/* compare.html: several runs over one another, their results side by side, and the settings in which they differ. */
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "observe/report_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef const char *cell_fn(char buf[64], const struct report_data *d);

static const char *number(char buf[64], const char *format, double v)
{
    if (isnan(v))
        buf[0] = 0;
    else
        snprintf(buf, 64, format, v);
    return buf;
}
static const char *cell_state(char buf[64], const struct report_data *d)
{
    int code;
    const enum report_state state = report_data_state(d, &code);
    return report_state_text(buf, state, code);
}
static const char *cell_parameters(char buf[64], const struct report_data *d)
{
    const double count = report_data_parameters(d);
    return count > 0 ? text_count(buf, count) : "";
}
static const char *cell_steps(char buf[64], const struct report_data *d)
{
    const int64_t planned = report_data_planned(d);
    snprintf(buf, 64, planned > 0 ? "%lld of %lld" : "%lld", (long long)d->steps, (long long)planned);
    return buf;
}
static const char *cell_tokens(char buf[64], const struct report_data *d)
{
    return text_count(buf, (double)d->tokens);
}
static const char *cell_loss(char buf[64], const struct report_data *d)
{
    return number(buf, "%.4f", report_data_loss(d, NULL));
}
static const char *cell_val_loss(char buf[64], const struct report_data *d)
{
    return number(buf, "%.4f", series_last(&d->val_loss));
}
static const char *cell_val_bpb(char buf[64], const struct report_data *d)
{
    return number(buf, "%.4f", series_last(&d->val_bpb));
}
static const char *cell_accuracy(char buf[64], const struct report_data *d)
{
    return number(buf, "%.1f %%", 100 * series_last(&d->val_accuracy));
}
static const char *cell_speed(char buf[64], const struct report_data *d)
{
    return d->tokens_per_s.count ? text_count(buf, series_median(&d->tokens_per_s)) : "";
}
static const char *cell_time(char buf[64], const struct report_data *d)
{
    return d->wall_s > 0 ? text_duration(buf, fmin(d->wall_s, 1e12)) : "";
}
static const char *cell_device(char buf[64], const struct report_data *d)
{
    return report_data_env(d, buf, "device");
}

static const struct {
    const char *name;
    cell_fn *text;
} rows[] = {
    {"state", cell_state},           {"parameters", cell_parameters}, {"steps", cell_steps},
    {"tokens", cell_tokens},         {"training loss", cell_loss},    {"validation loss", cell_val_loss},
    {"bits per byte", cell_val_bpb}, {"accuracy", cell_accuracy},     {"tokens/s", cell_speed},
    {"wall time", cell_time},        {"device", cell_device},
};

static void put_names(FILE *out, const struct report_data *runs, int count)
{
    fprintf(out, "<div class='card scroll'><table class=facts><tr><th>");
    for (int i = 0; i < count; i++) {
        fprintf(out, "<th><i class=key style='background:var(--r%d)'></i>", i % 8);
        report_put_text(out, runs[i].name);
    }
    fprintf(out, "\n");
}

/* A row that is empty for all runs is left out. */
static void put_row(FILE *out, const char *name, char *const *texts, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++) any = any || texts[i][0];
    if (!any) return;
    fprintf(out, "<tr><td>");
    report_put_text(out, name);
    for (int i = 0; i < count; i++) {
        fprintf(out, "<td>");
        report_put_text(out, texts[i]);
    }
    fprintf(out, "\n");
}

static void put_results(FILE *out, const struct report_data *runs, int count, char **texts)
{
    put_names(out, runs, count);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (int i = 0; i < count; i++) {
            char buf[64];
            texts[i] = memory_text(rows[r].text(buf, &runs[i]));
        }
        put_row(out, rows[r].name, texts, count);
        for (int i = 0; i < count; i++) free(texts[i]);
    }
    fprintf(out, "</table></div>\n");
}

/* Whether the runs differ in a key; texts[] receives their values, to be freed. */
static bool differs(const struct report_data *runs, int count, const char *key, char **texts)
{
    enum { VALUE_MAX = 4096 };
    bool differ = false;
    for (int i = 0; i < count; i++) {
        char value[VALUE_MAX];
        texts[i] = memory_text(report_data_config(&runs[i], key, value, sizeof value));
        differ = differ || strcmp(texts[i], texts[0]) != 0;
    }
    return differ && strcmp(key, "run.name") != 0 && strcmp(key, "run.dir") != 0;
}

/* The keys of the first run that has a configuration: runs of one program have the same. */
static void put_settings(FILE *out, const struct report_data *runs, int count, char **texts)
{
    const char *line = NULL;
    char section[64] = "", key[160];
    bool open = false;
    for (int i = 0; i < count && line == NULL; i++) line = runs[i].config;
    for (; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const int n = (int)strcspn(line, ":\n");
        if (line[n] != ':') break;
        if (line[0] != ' ') {
            snprintf(section, sizeof section, "%.*s", n, line);
            continue;
        }
        const int blank = (int)strspn(line, " ");
        snprintf(key, sizeof key, "%s.%.*s", section, n - blank, line + blank);
        if (differs(runs, count, key, texts)) {
            if (!open) {
                fprintf(out, "<h2>Settings that differ</h2>\n");
                put_names(out, runs, count);
            }
            open = true;
            put_row(out, key, texts, count);
        }
        for (int i = 0; i < count; i++) free(texts[i]);
    }
    if (open) fprintf(out, "</table></div>\n");
}

static void put_page(FILE *out, const struct report_data *runs, int count)
{
    char title[64], **texts = calloc((size_t)count, sizeof *texts);
    const struct report_data **list = calloc((size_t)count, sizeof *list);
    MEMORY_CHECK(texts != NULL && list != NULL, "no memory to compare %d runs", count);
    for (int i = 0; i < count; i++) list[i] = &runs[i];
    snprintf(title, sizeof title, "%d runs", count);
    report_put_head(out, title, "ingot, compared", "compare");
    put_results(out, runs, count, texts);
    report_put_charts(out, list, count);
    put_settings(out, runs, count, texts);
    fprintf(out, "<footer>Made by ingot %s from:", INGOT_VERSION);
    for (int i = 0; i < count; i++) {
        fprintf(out, "%s ", i ? "," : "");
        report_put_text(out, runs[i].path);
    }
    fprintf(out, "</footer>\n");
    report_put_foot(out);
    free(list);
    free(texts);
}

void report_put_results(FILE *out, const struct report_data *runs, int count)
{
    char **texts = calloc((size_t)count + 1, sizeof *texts);
    MEMORY_CHECK(texts != NULL, "no memory to compare %d runs", count);
    put_results(out, runs, count, texts);
    if (count > 1) put_settings(out, runs, count, texts);
    free(texts);
}

void report_name_apart(struct report_data *runs, int count)
{
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(runs[i].name, runs[k].name) == 0) {
                snprintf(runs[i].name, sizeof runs[i].name, "%.255s", runs[i].path);
                snprintf(runs[k].name, sizeof runs[k].name, "%.255s", runs[k].path);
            }
}

status report_compare(const char *const *run_dirs, int count, const char *path)
{
    struct report_data *runs = calloc((size_t)count, sizeof *runs);
    MEMORY_CHECK(runs != NULL, "no memory to compare %d runs", count);
    status st = STATUS_OK;
    int read = 0;
    for (; read < count && st == STATUS_OK; read++) st = report_data_read(&runs[read], run_dirs[read], 0);
    if (st == STATUS_OK) {
        report_name_apart(runs, count);
        char *page = NULL;
        size_t bytes = 0;
        FILE *out = memory_stream(&page, &bytes);
        put_page(out, runs, count);
        memory_stream_close(out);
        st = io_write_file(path, page, bytes);
        free(page);
    }
    for (int i = 0; i < read; i++) report_data_free(&runs[i]);
    free(runs);
    return st;
}
