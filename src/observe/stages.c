/* Time breakdown of a step. Each scope of the thread that called stages_start counts its self time: its
 * duration minus that of its inner scopes. Nothing is counted twice, and the names and "other" add up to
 * the total. An evaluation runs the same layers as a step: what happens inside one of the `whole` scopes is
 * counted as that scope's.
 *
 * Inner scopes close first: inside_ns[d] is the time of the closed scopes of depth d whose parent is still
 * open. */
#include "observe/observe_int.h"
#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTHS = 64 };
/* One breakdown per process, as there is one scope sink. */
static struct {
    pthread_t owner;
    int64_t start_ns;
    int64_t inside_ns[DEPTHS + 1];
    int count;
    struct {
        const char *name;
        int64_t ns, calls;
    } names[STAGES_MAX - 1]; /* one slot is for "other" */
} stages;

static void add(const char *name, int64_t ns)
{
    int i = 0;
    while (i < stages.count && stages.names[i].name != name && strcmp(stages.names[i].name, name) != 0) i++;
    if (i == stages.count) {
        if (i == STAGES_MAX - 1) return; /* all others count as "other" */
        stages.names[stages.count++].name = name;
    }
    stages.names[i].ns += ns;
    stages.names[i].calls++;
}

static const char *const whole[] = {"train.eval", "train.sample", "train.save"};

static void on_scope(const struct scope_event *e, void *ctx)
{
    (void)ctx;
    if (!pthread_equal(pthread_self(), stages.owner) || e->depth >= DEPTHS) return;
    int64_t start = e->start_ns > stages.start_ns ? e->start_ns : stages.start_ns;
    int64_t spent = e->end_ns - start;
    const char *outer = scope_within(whole, sizeof whole / sizeof whole[0]);
    add(outer ? outer : e->name, spent - stages.inside_ns[e->depth + 1]);
    stages.inside_ns[e->depth + 1] = 0;
    stages.inside_ns[e->depth] += spent;
}

void stages_start(void)
{
    dispatch_remove(on_scope);
    memset(&stages, 0, sizeof stages);
    stages.owner = pthread_self();
    stages.start_ns = clock_ns();
    dispatch_add(on_scope, NULL);
}

void stages_stop(void)
{
    dispatch_remove(on_scope);
}

static int longest_first(const void *a, const void *b)
{
    double x = ((const struct stage *)a)->seconds, y = ((const struct stage *)b)->seconds;
    return (x < y) - (x > y);
}

int stages_list(struct stage out[STAGES_MAX], double total_s)
{
    double sum = 0;
    int count = stages.count;
    for (int i = 0; i < count; i++) {
        out[i] =
            (struct stage){stages.names[i].name, (double)stages.names[i].ns * 1e-9, 0, stages.names[i].calls};
        sum += out[i].seconds;
    }
    if (total_s < sum) total_s = sum;
    qsort(out, (size_t)count, sizeof out[0], longest_first);
    out[count++] = (struct stage){"other", total_s - sum, 0, 0};
    double shares[STAGES_MAX], percents[STAGES_MAX];
    for (int i = 0; i < count; i++) shares[i] = out[i].seconds;
    percent_list(percents, shares, count);
    for (int i = 0; i < count; i++) out[i].percent = percents[i];
    return count;
}
