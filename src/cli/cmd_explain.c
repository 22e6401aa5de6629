/* ingot explain: why a run ended; ingot bundle: what a colleague needs to see it. */
#include "base/clock.h"
#include "base/io.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/print_json.h"
#include "dev/hostfs.h"
#include "observe/bundle.h"
#include "observe/explain.h"
#include "observe/monitor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COLUMNS = 100 }; /* without a terminal */
static const char explained[] = "explain.json", alerts_name[] = "alerts.jsonl";

static const char *text_in(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static void print_lines(const json_t *o)
{
    size_t i;
    const json_t *one;
    int width = 0;
    const int columns = text_columns(STDOUT_FILENO, COLUMNS);
    text_wrap(stdout, 0, 0, columns, text_in(o, "sentence"));
    json_array_foreach(json_object_get(o, "evidence"), i, one)
    {
        const int n = (int)strlen(text_in(one, "file"));
        width = n > width ? n : width;
    }
    json_array_foreach(json_object_get(o, "evidence"), i, one)
    {
        printf("  %-*s  ", width, text_in(one, "file"));
        text_wrap(stdout, width + 4, width + 4, columns, text_in(one, "text"));
    }
    printf("do: ");
    text_wrap(stdout, 4, 4, columns, text_in(o, "do"));
}

static status of_bundle(const char *path, json_t **o)
{
    char *text;
    TRY(bundle_read(path, explained, &text));
    *o = json_loads(text, 0, NULL);
    free(text);
    if (json_is_object(*o)) return STATUS_OK;
    json_decref(*o);
    return FAIL(STATUS_DATA, "%s: its %s is damaged", path, explained);
}

static status of_run(const char *verb, const char *run, json_t **o)
{
    struct explanation e;
    const struct hostfs fs = hostfs_here();
    const status st = explain_run(&e, run, clock_wall_s(), &fs);
    if (st == STATUS_DATA) return FAIL(STATUS_CONFIG, "%s: %s: no such run", verb, run);
    if (st == STATUS_OK) *o = explain_json(&e);
    return st;
}

status cmd_explain(struct args *a)
{
    bool json = false;
    enum io_kind kind;
    json_t *o = NULL;
    const struct flag flags[] = {FLAG("json", &json)};
    TRY(args_parse(a, flags, 1));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, 1));
    TRY(io_kind(a->words[0], &kind));
    if (kind == IO_FILE)
        TRY(of_bundle(a->words[0], &o));
    else
        TRY(of_run("explain", a->words[0], &o));
    if (json) {
        print_json(o);
        return STATUS_OK;
    }
    print_lines(o);
    json_decref(o);
    return STATUS_OK;
}

/* Alerts as `ingot monitor --alerts` prints them. */
static void add_alerts(struct bundle *b, const char *run)
{
    struct monitor *m = calloc(1, sizeof *m);
    char *all = NULL;
    size_t bytes = 0;
    FILE *out = memory_stream(&all, &bytes);
    MEMORY_CHECK(m, "no memory for the alerts of %s", run);
    if (monitor_read(m, run, clock_wall_s()) == STATUS_OK) {
        for (int i = 0; i < m->alerts.count; i++) {
            json_t *record = alert_json(m->name, &m->alerts.list[i]);
            json_dumpf(record, out, JSON_COMPACT);
            fputc('\n', out);
            json_decref(record);
        }
        monitor_free(m);
    }
    memory_stream_close(out);
    if (all && bytes) bundle_text(b, alerts_name, all);
    free(all);
    free(m);
}

static void add_explanation(struct bundle *b, json_t *o)
{
    char *text = json_dumps(o, JSON_INDENT(1));
    MEMORY_CHECK(text, "no memory for %s", explained);
    bundle_text(b, explained, text);
    free(text);
}

static json_t *contents(const struct bundle *b, const char *path)
{
    json_t *list = json_array();
    for (int i = 0; i < b->count; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:I}", "name", b->files[i].name, "bytes", (json_int_t)b->files[i].bytes));
    return json_pack("{s:s, s:s, s:I, s:o}", "schema", "ingot.bundle/1", "bundle", path, "redacted",
                     (json_int_t)b->redacted, "files", list);
}

static void print_contents(const struct bundle *b, const char *path, bool json)
{
    char size[32];
    if (json) {
        print_json(contents(b, path));
        return;
    }
    for (int i = 0; i < b->count; i++)
        printf("  %-24s %s\n", b->files[i].name, text_bytes(size, (double)b->files[i].bytes));
    printf("%s: %d files, no weights, no texts, %lld words redacted; tar --zstd -xf reads it\n", path,
           b->count, (long long)b->redacted);
}

status cmd_bundle(struct args *a)
{
    const char *out = NULL;
    char path[1200];
    bool json = false;
    struct bundle b = {0};
    json_t *o = NULL;
    const struct flag flags[] = {FLAG("out", &out), FLAG("json", &json)};
    TRY(args_parse(a, flags, 2));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, 1));
    TRY(of_run("bundle", a->words[0], &o));
    const char *name = strrchr(text_in(o, "run"), '/');
    snprintf(path, sizeof path, "%.1000s.tar.zst", name && name[1] ? name + 1 : text_in(o, "run"));
    if (out == NULL) out = path;
    add_explanation(&b, o);
    json_decref(o);
    status st = bundle_run(&b, a->words[0]);
    if (st == STATUS_OK) add_alerts(&b, a->words[0]);
    if (st == STATUS_OK) st = bundle_write(&b, out);
    if (st == STATUS_OK) print_contents(&b, out, json);
    bundle_free(&b);
    return st;
}
