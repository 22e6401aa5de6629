/* "Benchmarks" of a report: what evals.jsonl holds, a row per task and metric, a column per checkpoint. */
#include "observe/report_int.h"

#include <string.h>

enum { COLUMNS = 8 };

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static json_int_t step_of(const json_t *o)
{
    return json_integer_value(json_object_get(o, "step"));
}

/* The last steps that have records, ascending. */
static int last_steps(const json_t *evals, json_int_t steps[COLUMNS])
{
    int n = 0;
    for (size_t i = json_array_size(evals); i-- > 0 && n < COLUMNS;) {
        const json_int_t step = step_of(json_array_get(evals, i));
        if (n == 0 || steps[n - 1] != step) steps[n++] = step;
    }
    for (int i = 0; i < n / 2; i++) {
        const json_int_t other = steps[i];
        steps[i] = steps[n - 1 - i];
        steps[n - 1 - i] = other;
    }
    return n;
}

static bool same_task(const json_t *a, const json_t *b)
{
    return strcmp(text(a, "task"), text(b, "task")) == 0 && strcmp(text(a, "file"), text(b, "file")) == 0;
}

/* Whether a later record is of the same task: then that one makes the rows. */
static bool comes_again(const json_t *evals, size_t at)
{
    for (size_t i = at + 1; i < json_array_size(evals); i++)
        if (same_task(json_array_get(evals, i), json_array_get(evals, at))) return true;
    return false;
}

static bool is_metric(const char *key, const json_t *value)
{
    const size_t n = strlen(key), end = strlen("_stderr");
    return json_is_number(value) && strcmp(key, "step") != 0 && strcmp(key, "time") != 0 &&
           strcmp(key, "items") != 0 && !(n > end && strcmp(key + n - end, "_stderr") == 0);
}

static void put_cell(FILE *out, const json_t *evals, const json_t *task, const char *key, json_int_t step)
{
    const json_t *found = NULL;
    char error[128];
    for (size_t i = 0; i < json_array_size(evals); i++) {
        const json_t *o = json_array_get(evals, i);
        if (step_of(o) == step && same_task(o, task)) found = o;
    }
    const json_t *value = json_object_get(found, key);
    fprintf(out, "<td class=n>");
    if (!json_is_number(value)) return;
    fprintf(out, "%.4g", json_number_value(value));
    snprintf(error, sizeof error, "%.100s_stderr", key);
    value = json_object_get(found, error);
    if (json_is_number(value)) fprintf(out, " <small>&plusmn;%.2g</small>", json_number_value(value));
}

void report_put_evals(FILE *out, const struct report_data *d)
{
    json_int_t steps[COLUMNS];
    const int columns = last_steps(d->evals, steps);
    if (columns == 0) return;
    fprintf(out, "<h2>Benchmarks <small>by checkpoint, with standard errors</small></h2>\n"
                 "<div class=card><table><tr><th>task<th>metric");
    for (int i = 0; i < columns; i++) fprintf(out, "<th class=n>step %lld", (long long)steps[i]);
    fprintf(out, "\n");
    for (size_t k = 0; k < json_array_size(d->evals); k++) {
        json_t *task = json_array_get(d->evals, k), *value;
        const char *key;
        if (comes_again(d->evals, k)) continue;
        json_object_foreach(task, key, value)
        {
            if (!is_metric(key, value)) continue;
            fprintf(out, "<tr><td>");
            report_put_text(out, text(task, "task"));
            fprintf(out, "<td>");
            report_put_text(out, key);
            for (int i = 0; i < columns; i++) put_cell(out, d->evals, task, key, steps[i]);
            fprintf(out, "\n");
        }
    }
    fprintf(out, "</table></div>\n");
}
