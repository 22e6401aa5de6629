/* ingot runs: the runs of a directory, one per line. */
#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"
#include "observe/runs.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 10 };
static const char *const titles[COLUMNS] = {"RUN",   "MODEL", "PARAMS", "STEPS", "TOKENS",
                                            "TRAIN", "VAL",   "TOK/S",  "STATE", "AGE"};

static const char *cell(char buf[64], const struct run_summary *r, int column, double now)
{
    snprintf(buf, 64, "-");
    switch (column) {
    case 0: return r->path;
    case 1: return r->model[0] ? r->model : buf;
    case 2: return r->parameters > 0 ? text_count(buf, r->parameters) : buf;
    case 3:
        snprintf(buf, 64, r->planned > 0 ? "%lld/%lld" : "%lld", (long long)r->steps, (long long)r->planned);
        break;
    case 4: return text_count(buf, (double)r->tokens);
    case 5:
        if (!isnan(r->loss)) snprintf(buf, 64, "%.4f", r->loss);
        break;
    case 6:
        if (!isnan(r->val_loss)) snprintf(buf, 64, "%.4f", r->val_loss);
        break;
    case 7: return isnan(r->tokens_per_s) ? buf : text_count(buf, r->tokens_per_s);
    case 8: return r->state;
    default: return isnan(r->last_s) ? buf : text_duration(buf, fmin(fmax(now - r->last_s, 0), 1e12));
    }
    return buf;
}

static void print_table(const struct run_summary *runs, int count)
{
    char buf[64];
    int widths[COLUMNS];
    const double now = clock_wall_s();
    for (int c = 0; c < COLUMNS; c++) {
        widths[c] = (int)strlen(titles[c]);
        for (int i = 0; i < count; i++) {
            const int n = (int)strlen(cell(buf, &runs[i], c, now));
            widths[c] = n > widths[c] ? n : widths[c];
        }
    }
    for (int i = -1; i < count; i++)
        for (int c = 0; c < COLUMNS; c++) {
            const char *text = i < 0 ? titles[c] : cell(buf, &runs[i], c, now);
            if (c == COLUMNS - 1)
                printf("%s\n", text);
            else
                printf("%-*s  ", widths[c], text);
        }
}

static void set_real(json_t *o, const char *key, double v)
{
    json_object_set_new(o, key, isfinite(v) ? json_real(v) : json_null());
}

static void print_json(const struct run_summary *runs, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        const struct run_summary *r = &runs[i];
        json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I}", "run", r->path, "name", r->name, "model",
                              r->model, "state", r->state, "steps", (json_int_t)r->steps, "planned",
                              (json_int_t)r->planned, "tokens", (json_int_t)r->tokens);
        if (o == NULL) continue; /* a path that is no UTF-8 */
        json_object_set_new(o, "exit_code", r->exit_code < 0 ? json_null() : json_integer(r->exit_code));
        set_real(o, "parameters", r->parameters);
        set_real(o, "loss", r->loss);
        set_real(o, "val_loss", r->val_loss);
        set_real(o, "val_bpb", r->val_bpb);
        set_real(o, "tokens_per_s", r->tokens_per_s);
        set_real(o, "last_record", r->last_s);
        json_array_append_new(list, o);
    }
    json_dumpf(list, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(list);
}

status cmd_runs(struct args *a)
{
    bool json = false;
    int count;
    const struct flag flags[] = {FLAG("json", &json)};
    struct run_summary *runs;
    TRY(args_parse(a, flags, 1));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 0, 1));
    const char *dir = a->word_count ? a->words[0] : "runs";
    TRY(runs_find(dir, &runs, &count));
    if (json)
        print_json(runs, count);
    else if (count == 0)
        printf("no run in %s\n", dir);
    else
        print_table(runs, count);
    free(runs);
    return STATUS_OK;
}
