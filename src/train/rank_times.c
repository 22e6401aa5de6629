#include "train/rank_times.h"
#include "base/clock.h"

#include <string.h>

enum { EVERY_S = 10 };

void rank_times_write(struct rank_times *t, struct observe *o, int64_t step)
{
    if (t->count < 2 || t->steps == 0) return;
    for (int r = 0; r < t->count; r++) {
        t->sum[r].work_s /= (double)t->steps;
        t->sum[r].wait_s /= (double)t->steps;
        t->sum[r].data_s /= (double)t->steps;
        t->sum[r].cpu_s /= (double)t->steps;
    }
    observe_ranks(o, step, t->sum, t->count, t->steps);
    memset(t->sum, 0, sizeof t->sum);
    t->steps = 0;
}

void rank_times_step(struct rank_times *t, const struct stop *s, struct observe *o, int64_t step)
{
    if (t->count < 2) return;
    if (t->steps++ == 0) t->begin_s = clock_s();
    for (int r = 0; r < t->count; r++) {
        t->sum[r].work_s += s->all[r].work_s;
        t->sum[r].wait_s += s->all[r].wait_s;
        t->sum[r].data_s += s->all[r].data_s;
        t->sum[r].cpu_s += s->all[r].cpu_s;
    }
    if (clock_s() - t->begin_s >= EVERY_S) rank_times_write(t, o, step);
}
