#include "train/stop.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "observe/progress.h"
#include "train/signals.h"

#include <math.h>

#define STOP_WAIT_SHOWN_S 3.0

/* A look of several ranks is a collective: none in a short step, some sixteen in a longer one, two a second in a long one.
 * From the same numbers on all ranks, and the same in every step: comm_step_begin. */
static int64_t stride_of(double part_s, int64_t parts)
{
    if (isnan(part_s)) return 1;
    if (part_s * (double)parts < STOP_SHORT_S) return parts;
    const double by_time = ceil(STOP_LOOK_S / part_s), by_count = (double)parts / 16;
    return (int64_t)fmax(1, fmin(by_time, by_count));
}

void stop_begin(struct stop *s, double part_s, int64_t parts)
{
    s->begin_s = clock_s();
    s->parts = s->done = 0;
    s->stride = s->comm ? stride_of(part_s, parts) : 1;
}

/* What a rank says, and what counts: the highest signal of any, rank 0's clock, rank 0's estimate. */
struct look {
    int32_t number, late, drop, pad;
    struct rank_time time;
};

static status agree(struct stop *s, bool drop, bool *drops)
{
    const struct look mine = {signals_pending(), s->limit_s > 0 && clock_s() - s->start_s > s->limit_s, drop,
                              0, s->mine};
    struct look all[COMM_RANKS_MAX];
    TRY(comm_all_gather(s->comm, "stop", &mine, all, sizeof mine, NULL));
    s->number = 0;
    s->late = all[0].late != 0;
    *drops = all[0].drop != 0;
    for (int rank = 0; rank < comm_ranks(s->comm); rank++) {
        if (all[rank].number > s->number) s->number = all[rank].number;
        s->all[rank] = all[rank].time;
    }
    return STATUS_OK;
}

status stop_look(struct stop *s)
{
    bool drops;
    return agree(s, false, &drops);
}

bool stop_asked(const struct stop *s)
{
    return s->number || s->late;
}

status stop_between(void *ctx, int64_t done, int64_t parts)
{
    struct stop *s = ctx;
    progress_done(done, parts);
    if (done >= parts || done % s->stride != 0) return STATUS_OK;
    const double each = (clock_s() - s->begin_s) / (double)done;
    bool drops;
    TRY(agree(s, each * (double)(parts - done) > STOP_FINISH_S, &drops));
    if (!stop_asked(s) || !drops) return STATUS_OK;
    s->done = done;
    s->parts = parts;
    return FAIL(STATUS_STOPPED, "dropped after %lld of %lld parts", (long long)done, (long long)parts);
}

void stop_answer(int number, int64_t step, bool drops)
{
    char time[32] = "", part[32], what[96], end[128] = "";
    const struct progress_left l = progress_left();
    const enum progress_work kind = l.kind;
    const double left = l.part_s + l.rest_s;
    const char *again = number == SIGNALS_INTERRUPT ? "; again to stop now without saving" : "";
    const bool drop = l.rest_s > STOP_FINISH_S && (kind == WORK_EVAL || (kind == WORK_STEP && drops));
    if (kind == WORK_STEP)
        snprintf(what, sizeof what, "step %lld", (long long)step);
    else
        snprintf(what, sizeof what, "%s", kind == WORK_EVAL ? "the evaluation" : "what is under way");
    if (!isnan(left)) text_duration(time, left);
    if (drop && l.part_s > STOP_WAIT_SHOWN_S) /* a micro-batch of a large model on a CPU lasts minutes */
        snprintf(end, sizeof end, " (%s left) after its %s, about %s", time,
                 kind == WORK_STEP ? "micro-batch" : "batch", text_duration(part, l.part_s));
    else if (drop)
        snprintf(end, sizeof end, " (%s left)", time);
    else if (!isnan(left))
        snprintf(end, sizeof end, ", about %s", time);
    if (kind == WORK_SAVE)
        log_info("%s: saving%s", signals_name(number), again);
    else
        log_info("%s: %s %s%s, then saving%s", signals_name(number), drop ? "dropping" : "finishing", what,
                 end, again);
}
