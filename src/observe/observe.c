#include "observe/observe_int.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>

struct observe {
    struct sink metrics;
    struct tfevents events;
    int64_t step;           /* of the last record; samples and facts use it */
    int64_t eval_step;      /* see observe_eval_step */
    struct metrics_gap gap; /* of steps whose records were not even kept */
};

status observe_open(struct observe **o, const char *run_dir, int64_t resume_step, int64_t every)
{
    *o = NULL;
    char path[1024];
    if (snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir) >= (int)sizeof path)
        return FAIL(STATUS_IO, "%.80s...: the path is too long", run_dir);
    struct metrics_kept kept;
    TRY(metrics_version_check(path));
    TRY(metrics_cut(path, resume_step, &kept));
    struct observe *made = calloc(1, sizeof *made);
    MEMORY_CHECK(made != NULL, "no memory for the records of a run");
    made->step = resume_step;
    made->eval_step = kept.eval_step;
    made->events.sink.file.fd = -1;
    status st = sink_open(&made->metrics, path, SINK_APPEND);
    if (st == STATUS_OK && !kept.has_schema) st = metrics_schema(&made->metrics);
    if (st == STATUS_OK) st = tfevents_open(&made->events, run_dir, resume_step + 1);
    if (st != STATUS_OK) {
        sink_close(&made->metrics);
        sink_close(&made->events.sink);
        free(made);
        return st;
    }
    const struct metrics_gap gap = metrics_missing(&kept, resume_step);
    if (gap.to > 0) {
        log_warn(
            "%s lacks the records of steps %lld to %lld, which could not be written before the run ended",
            path, (long long)gap.from, (long long)gap.to);
        metrics_gap(&made->metrics, gap);
    }
    metrics_start(&made->metrics, resume_step, clock_wall_s(), every);
    *o = made;
    return STATUS_OK;
}

/* Names the steps whose records were lost, once the file can be written again. */
static void write_gap(struct observe *o)
{
    if (o->gap.to == 0 || !sink_catch_up(&o->metrics)) return;
    metrics_gap(&o->metrics, o->gap);
    o->gap = (struct metrics_gap){0};
}

void observe_metrics(struct observe *o, const struct metrics *m)
{
    double now = clock_wall_s();
    write_gap(o);
    o->step = m->step;
    const int64_t lost = o->metrics.lost;
    metrics_write(&o->metrics, m, now);
    if (o->metrics.lost > lost) {
        if (o->gap.from == 0) o->gap.from = m->step;
        o->gap.to = m->step;
    }
    tfevents_write(&o->events, m, now);
    progress_record(m);
}

int64_t observe_eval_step(const struct observe *o)
{
    return o->eval_step;
}

void observe_sample(struct observe *o, int64_t step, const char *prompt, const char *text)
{
    metrics_sample(&o->metrics, step, prompt, text);
}

void observe_fact(struct observe *o, const char *name, double value)
{
    metrics_named(&o->metrics, "fact", o->step, name, value);
}

void observe_ranks(struct observe *o, int64_t step, const struct rank_time *ranks, int count, int64_t steps)
{
    metrics_ranks(&o->metrics, step, clock_wall_s(), ranks, count, steps);
}

void observe_stages(struct observe *o, double total_s)
{
    struct stage stages[STAGES_MAX];
    int count = stages_list(stages, total_s);
    for (int i = 0; i < count; i++)
        metrics_named(&o->metrics, "stage", o->step, stages[i].name, stages[i].seconds);
}

int64_t observe_failures(const struct observe *o)
{
    return o->metrics.failures + o->events.sink.failures;
}

void observe_flush(struct observe *o)
{
    sink_sync(&o->metrics);
    sink_sync(&o->events.sink);
}

void observe_close(struct observe *o)
{
    if (o == NULL) return;
    write_gap(o);
    observe_flush(o);
    sink_close(&o->metrics);
    sink_close(&o->events.sink);
    free(o);
}
