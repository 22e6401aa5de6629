/* From files to items. */
#include "base/io.h"
#include "base/utf8.h"
#include "data/text/array.h"
#include "harness/harness_int.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 30, PATH_BYTES = 1024, CSV_FIELDS = 6 };

void harness_row_fail(struct harness_row *r, const char *fmt, ...)
{
    char why[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    if (r->st == STATUS_OK)
        r->st = FAIL(STATUS_DATA, "%s:%lld is no row of %s: %s", r->path, (long long)r->line,
                     r->task->format->name, why);
}

struct harness_item *harness_item_add(struct harness_row *r, int gold, char *group)
{
    struct harness_task *t = r->task;
    const status st = array_grow(&t->items, &t->item_room, (size_t)t->item_count + 1, sizeof *t->items);
    CHECK(st == STATUS_OK, "%s", status_message());
    t->items[t->item_count] =
        (struct harness_item){.line = r->line, .group = group, .gold = gold, .first_pair = t->pair_count};
    return &t->items[t->item_count++];
}

void harness_pair_add(struct harness_row *r, char *context, char *continuation, const char *choice)
{
    struct harness_task *t = r->task;
    const status st = array_grow(&t->pair, &t->pair_room, (size_t)t->pair_count + 1, sizeof *t->pair);
    CHECK(st == STATUS_OK, "%s", status_message());
    t->pair[t->pair_count++] = (struct harness_pair){context, continuation, harness_characters(choice)};
    t->items[t->item_count - 1].pairs++;
}

void harness_free(struct harness_task *t)
{
    for (int64_t i = 0; i < t->item_count; i++) free(t->items[i].group);
    for (int64_t i = 0; i < t->pair_count; i++) {
        free(t->pair[i].context);
        free(t->pair[i].continuation);
    }
    free(t->items);
    free(t->pair);
    free(t->requests);
    free(t->tokens);
    free(t->each);
    free(t->name);
    free(t->path);
    *t = (struct harness_task){0};
}

/* ---- CSV of MMLU: question, A, B, C, D, letter of the answer; the subject is in the file's name */

/* Cuts the field at *at in place; *at is then behind its comma or line's end. Returns whether another follows. */
static bool csv_field(char **at, char **field, int64_t *line)
{
    char *p = *at, *to = p;
    *field = p;
    if (*p == '"') {
        for (p++; *p && (*p != '"' || p[1] == '"'); p++) {
            if (*p == '"') p++;
            *line += *p == '\n';
            *to++ = *p;
        }
        if (*p == '"') p++;
    }
    while (*p && *p != ',' && *p != '\n') *to++ = *p++;
    const bool more = *p == ',';
    *line += *p == '\n';
    if (*p) p++;
    if (!more && to > *field && to[-1] == '\r') to--;
    *to = 0;
    *at = p;
    return more;
}

/* "dir/high_school_biology_test.csv" is high_school_biology. */
static char *subject_of(const char *path)
{
    static const char *const ends[] = {"_test", "_val", "_dev"};
    const char *base = strrchr(path, '/');
    char *name = harness_join("%s", base ? base + 1 : path);
    char *dot = strrchr(name, '.');
    if (dot) *dot = 0;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t n = strlen(name), e = strlen(ends[i]);
        if (n > e && strcmp(name + n - e, ends[i]) == 0) name[n - e] = 0;
    }
    return name;
}

static void csv_row(struct harness_row *r, char **at, int64_t *line)
{
    char *fields[CSV_FIELDS], *subject = subject_of(r->path);
    int n = 0;
    bool more = true;
    while (more && n < CSV_FIELDS) more = csv_field(at, &fields[n++], line);
    const bool good = n == CSV_FIELDS && !more && strlen(fields[5]) == 1 && strchr("ABCD", fields[5][0]);
    if (good)
        r->json =
            json_pack("{s:s, s:[s,s,s,s], s:i, s:s}", "question", fields[0], "choices", fields[1], fields[2],
                      fields[3], fields[4], "answer", fields[5][0] - 'A', "subject", subject);
    if (r->json == NULL) harness_row_fail(r, "it has not a question, four choices and a letter");
    free(subject);
}

/* ---- JSONL, and files of labels beside it: valid.jsonl, valid-labels.lst */

static void json_row(struct harness_row *r, char **at, int64_t *line)
{
    json_error_t e;
    char *end = strchr(*at, '\n');
    const size_t bytes = end ? (size_t)(end - *at) : strlen(*at);
    r->json = json_loadb(*at, bytes, 0, &e);
    if (r->json == NULL) harness_row_fail(r, "not JSON: %.120s", e.text);
    if (r->json && !json_is_object(r->json)) harness_row_fail(r, "not a JSON object");
    *at += bytes + (end != NULL);
    ++*line;
}

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), e = strlen(end);
    return n >= e && strcmp(text + n - e, end) == 0;
}

static status read_labels(const char *path, char **labels)
{
    char *name = harness_join("%.*s-labels.lst", (int)(strlen(path) - strlen(".jsonl")), path);
    size_t bytes;
    bool there;
    status st = io_exists(name, &there);
    if (there) st = io_read_file(name, FILE_BYTES_MAX, labels, &bytes);
    free(name);
    return st;
}

struct source {
    char *text, *at, *labels;
    int64_t line;
    bool csv;
};

static status read_row(struct harness_task *t, struct source *s, const char *path)
{
    char *label = NULL;
    if (s->labels) label = strsep(&s->labels, "\r\n");
    struct harness_row r = {.task = t, .path = path, .label = label, .line = s->line};
    if (s->csv)
        csv_row(&r, &s->at, &s->line);
    else
        json_row(&r, &s->at, &s->line);
    if (r.st == STATUS_OK) t->format->row(&r);
    json_decref(r.json);
    return r.st;
}

static status read_rows(struct harness_task *t, struct source *s, const char *path, int64_t limit)
{
    const int64_t before = t->item_count;
    while (*s->at && (limit == 0 || t->item_count < limit)) {
        const size_t blank = strspn(s->at, " \t\r");
        if (s->at[blank] == '\n' || s->at[blank] == 0) {
            s->at += blank + (s->at[blank] == '\n');
            s->line++;
            continue;
        }
        TRY(read_row(t, s, path));
    }
    if (t->item_count == before && limit == 0) return FAIL(STATUS_DATA, "%s has no rows", path);
    return STATUS_OK;
}

static status read_file(struct harness_task *t, const char *path, int64_t limit)
{
    struct source s = {.line = 1, .csv = t->format->csv && ends_in(path, ".csv")};
    char *labels = NULL;
    size_t bytes;
    TRY(io_read_file(path, FILE_BYTES_MAX, &s.text, &bytes));
    s.at = s.text;
    const size_t bad = utf8_valid(s.text, bytes);
    status st = strlen(s.text) == bytes && bad == bytes ? STATUS_OK
                                                        : FAIL(STATUS_DATA, "%s: byte %zu is no UTF-8 text",
                                                               path, bad < bytes ? bad : strlen(s.text));
    if (st == STATUS_OK && t->format->labels && ends_in(path, ".jsonl")) st = read_labels(path, &labels);
    s.labels = labels;
    if (st == STATUS_OK) st = read_rows(t, &s, path, limit);
    free(labels);
    free(s.text);
    return st;
}

static status read_directory(struct harness_task *t, const char *dir, int64_t limit)
{
    struct io_list list;
    TRY(io_list(dir, &list));
    status st = STATUS_OK;
    for (int i = 0; i < list.count && st == STATUS_OK && (limit == 0 || t->item_count < limit); i++) {
        const char *name = list.names[i];
        if (!ends_in(name, ".jsonl") && !(t->format->csv && ends_in(name, ".csv"))) continue;
        char *path = harness_join("%s/%s", dir, name);
        st = read_file(t, path, limit);
        free(path);
    }
    io_list_free(&list);
    return st;
}

static status no_format(const char *name)
{
    char known[256] = "";
    for (int i = 0; harness_format_name(i); i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 harness_format_name(i));
    return FAIL(STATUS_CONFIG, "--tasks: no task is named '%.40s'; there are %s", name, known);
}

status harness_read(struct harness_task *t, const char *name, const char *path, int64_t limit)
{
    enum io_kind kind;
    *t = (struct harness_task){.format = harness_format_find(name)};
    if (t->format == NULL) return no_format(name);
    t->name = harness_join("%s", name);
    t->path = harness_join("%s", path);
    TRY(io_kind(path, &kind));
    TRY(kind == IO_DIR ? read_directory(t, path, limit) : read_file(t, path, limit));
    if (t->item_count == 0) return FAIL(STATUS_DATA, "%s has no rows of %s", path, name);
    return STATUS_OK;
}
