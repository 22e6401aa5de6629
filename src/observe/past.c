#include "observe/past.h"
#include "base/memory.h"
#include "observe/report_int.h"
#include "observe/runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TAIL = 256 << 10 }; /* the facts stand at the end of a run */

status past_of(const char *run_dir, struct past_forecast *f)
{
    struct report_data d;
    const status st = report_data_read(&d, run_dir, TAIL);
    *f = (struct past_forecast){.predicted = NAN, .measured = NAN};
    if (st == STATUS_OK) {
        const char *device = json_string_value(json_object_get(d.env, "device"));
        snprintf(f->device, sizeof f->device, "%s", device ? device : "");
        f->predicted = report_data_fact(&d, "predicted_step_s");
        f->measured = report_data_fact(&d, "measured_step_s");
    }
    report_data_free(&d);
    return st;
}

status past_find(const char *dir, struct past_forecast **list, int *count)
{
    struct run_summary *runs;
    int all;
    *list = NULL;
    *count = 0;
    TRY(runs_find(dir, &runs, &all));
    *list = calloc((size_t)all + 1, sizeof **list);
    MEMORY_CHECK(*list != NULL, "no memory for the forecasts of %d runs", all);
    for (int i = 0; i < all; i++) {
        struct past_forecast *f = &(*list)[*count];
        if (past_of(runs[i].path, f) == STATUS_OK && f->predicted > 0 && f->measured > 0) ++*count;
    }
    free(runs);
    return STATUS_OK;
}
