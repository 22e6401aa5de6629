/* "Where the time went": the scopes that the run's processes measured (stages.c), as a user names them. */
#include "observe/observe_int.h"
#include "observe/report_int.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* Step: on a GPU the host only waits for the step as a whole. */
#define TIME_LIST(X)                                                                                         \
    X(FORWARD, "forward pass")                                                                               \
    X(BACKWARD, "backward pass")                                                                             \
    X(HEAD, "output layer and loss (both passes)")                                                           \
    X(STEP, "steps, on the GPU")                                                                             \
    X(OPTIMIZER, "optimizer")                                                                                \
    X(EVALUATION, "evaluation")                                                                              \
    X(SAMPLES, "samples")                                                                                    \
    X(DATA, "waiting for data")                                                                              \
    X(CHECKPOINT, "checkpoints")                                                                             \
    X(COMMUNICATION, "communication")                                                                        \
    X(OTHER, "other")
#define X(name, text) TIME_##name,
enum time_part { TIME_LIST(X) TIME_COUNT };
#undef X
#define X(name, text) text,
static const char *const texts[] = {TIME_LIST(X)};
#undef X

static const struct {
    const char *scope;
    enum time_part part;
} parts[] = {
    {"block.fwd", TIME_FORWARD},
    {"embed.fwd", TIME_FORWARD},
    {"norm.fwd", TIME_FORWARD},
    {"mtp.fwd", TIME_FORWARD},
    {"stage.fwd", TIME_FORWARD},
    {"block.bwd", TIME_BACKWARD},
    {"embed.bwd", TIME_BACKWARD},
    {"norm.bwd", TIME_BACKWARD},
    {"mtp.bwd", TIME_BACKWARD},
    {"stage.bwd", TIME_BACKWARD},
    {"stage.wgrad", TIME_BACKWARD},
    {"head.loss", TIME_HEAD},
    {"train.step", TIME_STEP},
    {"train.micro", TIME_STEP},
    {"train.capture", TIME_STEP},
    {"optim.step", TIME_OPTIMIZER},
    {"optim.muon", TIME_OPTIMIZER},
    {"optim.offload", TIME_OPTIMIZER},
    {"optim.piece", TIME_OPTIMIZER},
    {"train.eval", TIME_EVALUATION},
    {"train.sample", TIME_SAMPLES},
    {"loader.wait", TIME_DATA},
    {"loader.fill", TIME_DATA},
    {"train.save", TIME_CHECKPOINT},
    {"train.sync", TIME_COMMUNICATION},
    {"train.share", TIME_COMMUNICATION},
    {"tables.collect", TIME_COMMUNICATION},
    {"pipe.wait", TIME_COMMUNICATION},
    {"pipe.send", TIME_COMMUNICATION},
    {"pipe.tied", TIME_COMMUNICATION},
};

static enum time_part part_of(const char *scope, bool on_cpu)
{
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strcmp(parts[i].scope, scope) == 0)
            return on_cpu && parts[i].part == TIME_STEP ? TIME_OTHER : parts[i].part;
    return TIME_OTHER;
}

static int largest_first(const void *a, const void *b)
{
    double x = ((const struct report_named *)a)->value, y = ((const struct report_named *)b)->value;
    return (x < y) - (x > y);
}

static void put_seconds(FILE *out, double seconds)
{
    char buf[32];
    if (seconds < 60)
        fprintf(out, "<td class=n>%.*f s", seconds < 10 ? 2 : 1, seconds);
    else
        fprintf(out, "<td class=n>%s", text_duration(buf, seconds));
}

/* All that was measured, under the program's own names. */
static void put_scopes(FILE *out, const struct report_data *d, double total)
{
    struct report_named *sorted = malloc((size_t)d->stage_count * sizeof *sorted);
    MEMORY_CHECK(sorted != NULL, "no memory to sort the stages of a run");
    memcpy(sorted, d->stages, (size_t)d->stage_count * sizeof *sorted);
    qsort(sorted, (size_t)d->stage_count, sizeof *sorted, largest_first);
    fprintf(out, "<details><summary>By scope of the program</summary><table>\n");
    for (int64_t i = 0; i < d->stage_count; i++) {
        fprintf(out, "<tr><td>");
        report_put_text(out, sorted[i].name);
        put_seconds(out, sorted[i].value);
        fprintf(out, "<td class=n>%.2f %%\n", sorted[i].value / total * 100);
    }
    fprintf(out, "</table></details>\n");
    free(sorted);
}

void report_put_stages(FILE *out, const struct report_data *d)
{
    char buf[32];
    double seconds[TIME_COUNT] = {0}, percents[TIME_COUNT], total = 0;
    const bool on_cpu = strcmp(report_data_env(d, buf, "device"), "cpu") == 0;
    for (int64_t i = 0; i < d->stage_count; i++) {
        seconds[part_of(d->stages[i].name, on_cpu)] += d->stages[i].value;
        total += d->stages[i].value;
    }
    if (total <= 0) return;
    for (int i = 0; i < TIME_OTHER; i++) { /* what would be 0.0 % is no row */
        if (seconds[i] >= total * 0.0005) continue;
        seconds[TIME_OTHER] += seconds[i];
        seconds[i] = 0;
    }
    percent_list(percents, seconds, TIME_COUNT);
    fprintf(out, "<h2>Where the time went <small>%s", text_duration(buf, total));
    if (d->starts.count > 1) fprintf(out, " in %lld processes", (long long)d->starts.count);
    if (d->wall_s > total * 1.02 && d->wall_s < 1e12)
        fprintf(out, "; %s of processes that were killed were not measured",
                text_duration(buf, d->wall_s - total));
    fprintf(out, "</small></h2>\n<div class=card><div class=stack>");
    for (int i = 0; i < TIME_COUNT; i++)
        if (seconds[i] > 0)
            fprintf(out, "<i style='width:%.2f%%;background:var(--t%d)'></i>", percents[i], i);
    fprintf(out, "</div><table>\n");
    for (int i = 0; i < TIME_COUNT; i++) {
        if (seconds[i] <= 0) continue;
        fprintf(out, "<tr><td><i class=key style='background:var(--t%d)'></i>%s", i, texts[i]);
        put_seconds(out, seconds[i]);
        fprintf(out, "<td class=n>%.1f %%\n", percents[i]);
    }
    fprintf(out, "</table>\n");
    put_scopes(out, d, total);
    fprintf(out, "</div>\n");
}
