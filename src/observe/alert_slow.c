/* Slow steps, the rank that the others wait for, steps that do not come. */
#include "base/robust.h"
#include "base/text.h"
#include "observe/alert_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MINUTE_S     60.0 /* how long a condition lasts before it is said */
#define BUCKET_S     1.0
#define RANKS_S      10.0 /* over which ranks are compared */
#define STALL_S      30.0 /* and five steps */
#define SAVE_STALL_S 60.0
#define PAUSE_S      10.0 /* without a look: the process did not run */
#define LONG_S       5.0  /* a step that is ten times as long as usual */
#define SLOW_BY      1.1
#define SLOW_OVER    1.05
#define RANK_BY      1.05
#define DATA_SHARE   0.01

/* ---- buckets */

static struct rank_time times(const struct alert_bucket *b)
{
    const struct rank_time *t = &b->rank;
    return (struct rank_time){t->work_s / b->steps, t->wait_s / b->steps, t->data_s / b->steps,
                              t->cpu_s / b->steps};
}

static void time_add(struct rank_time *sum, const struct rank_time *t)
{
    sum->work_s += t->work_s;
    sum->wait_s += t->wait_s;
    sum->data_s += t->data_s;
    sum->cpu_s += t->cpu_s;
}

/* The median step of the last minute, and the one that three quarters of its seconds exceed. */
static double step_now(const struct alert_rules *r, double *least)
{
    double v[ALERT_BUCKETS];
    const int64_t count = r->buckets - r->left;
    for (int64_t i = 0; i < count; i++) {
        const struct alert_bucket *b = &r->ring[(r->left + i) % ALERT_BUCKETS];
        v[i] = b->step_s / b->steps;
    }
    const double middle = robust_median(v, count);
    if (least) *least = count ? v[count / 4] : (double)NAN;
    return middle;
}

/* The median of the time before it. */

static double step_before(const struct alert_rules *r)
{
    double v[ALERT_BASE];
    const int64_t count = r->bases < ALERT_BASE ? r->bases : ALERT_BASE;
    for (int64_t i = 0; i < count; i++) v[i] = r->base[i].step_s / r->base[i].steps;
    return robust_median(v, count);
}

/* The sum over the last seconds, a minute at most; over what was usual. */
static struct alert_bucket sum_now(const struct alert_rules *r, double seconds)
{
    struct alert_bucket s = {0};
    const double end = r->ring[(r->buckets - 1) % ALERT_BUCKETS].end;
    for (int64_t i = r->left; i < r->buckets; i++) {
        const struct alert_bucket *b = &r->ring[i % ALERT_BUCKETS];
        if (b->end < end - seconds) continue;
        s.steps += b->steps;
        s.step_s += b->step_s;
        s.save_s += b->save_s;
        time_add(&s.rank, &b->rank);
    }
    return s;
}

static struct alert_bucket sum_before(const struct alert_rules *r)
{
    struct alert_bucket s = {0};
    const int64_t count = r->bases < ALERT_BASE ? r->bases : ALERT_BASE;
    for (int64_t i = 0; i < count; i++) {
        s.steps += r->base[i].steps;
        s.step_s += r->base[i].step_s;
        time_add(&s.rank, &r->base[i].rank);
    }
    return s;
}

/* ---- the slow rank */

/* The rank whose work was the longest, and that of the others: their median; of two, the other's. */
static int slowest(struct alert_rules *r, const struct rank_time *t, struct rank_time *others)
{
    const int count = r->setup.ranks;
    int slow = 0, middle = 0;
    for (int i = 0; i < count; i++) {
        r->scratch[i] = t[i].work_s;
        if (t[i].work_s > t[slow].work_s) slow = i;
    }
    const double value = count == 2 ? t[1 - slow].work_s : robust_median(r->scratch, count);
    for (int i = 0; i < count; i++)
        if (t[i].work_s == value && (i != slow || count == 1)) middle = i;
    *others = t[middle];
    return slow;
}

static void rank_sentence(const struct alert_rules *r, struct alert *a, const struct rank_time *slow,
                          const struct rank_time *others)
{
    char who[ALERT_NAME], why[ALERT_NAME], x[32], y[32];
    const double more = slow->work_s - others->work_s;
    snprintf(a->text, sizeof a->text,
             "%.110s works %s per step, the others %s, and they wait for it: costs up to %.0f %% of each "
             "step; %.200s",
             alert_who(r, a->rank, who), text_time(x, slow->work_s), text_time(y, others->work_s),
             100 * more / slow->work_s, alert_blame(r, a->rank, slow, others, 0, why));
}

/* Every RANKS_S. The same rank must be the slowest for a minute. */
static void ranks_judge(struct alert_rules *r, double now)
{
    char where[ALERT_NAME];
    struct rank_time others;
    const double steps = (double)r->rank_steps;
    for (int i = 0; i < r->setup.ranks; i++) {
        struct rank_time *t = &r->sum[i];
        *t = (struct rank_time){t->work_s / steps, t->wait_s / steps, t->data_s / steps, t->cpu_s / steps};
    }
    const int slow = slowest(r, r->sum, &others);
    const double more = r->sum[slow].work_s - others.work_s;
    const bool is_slow = r->sum[slow].work_s > RANK_BY * others.work_s && others.wait_s > 0.5 * more;
    if (!is_slow || slow != r->slow_rank) r->slow_since_s = r->rank_begin_s;
    for (int i = 0; i < ALERTS_MAX; i++) {
        struct alert_active *a = &r->active[i];
        if (!a->used || strcmp(a->a.name, "slow_rank") != 0) continue;
        if (is_slow && a->a.rank == slow) {
            alert_price(r, a, more * steps, now);
            a->seen_s = now;
        } else if (now - a->seen_s >= MINUTE_S)
            alert_end(r, a, now);
    }
    r->slow_rank = is_slow ? slow : -1;
    if (!is_slow || now - r->slow_since_s < MINUTE_S) return;
    snprintf(where, sizeof where, "rank %d", slow);
    if (alert_find(r, "slow_rank", where)) return;
    struct alert_active *a = alert_begin(r, "slow_rank", STATUS_OK, now, r->step, where, slow);
    if (a == NULL) return;
    alert_price(r, a, more * steps * (now - r->slow_since_s) / (now - r->rank_begin_s), now);
    rank_sentence(r, &a->a, &r->sum[slow], &others);
    alert_emit(r, a);
}

static void ranks_add(struct alert_rules *r, const struct alert_step *s)
{
    if (r->setup.ranks < 2 || !r->setup.waits) return;
    if (r->rank_steps++ == 0) r->rank_begin_s = s->time - s->step_s;
    for (int i = 0; i < r->setup.ranks; i++) time_add(&r->sum[i], &s->rank[i]);
    if (s->time - r->rank_begin_s < RANKS_S) return;
    ranks_judge(r, s->time);
    memset(r->sum, 0, sizeof *r->sum * (size_t)r->setup.ranks);
    r->rank_steps = 0;
}

/* ---- slow steps */

/* Why rank 0's steps are longer than usual: another rank, or its own cause. */
static const char *slow_cause(struct alert_rules *r, int *rank, char why[ALERT_NAME])
{
    char own[ALERT_NAME], who[ALERT_NAME];
    const struct alert_bucket s = sum_now(r, MINUTE_S / 2), b = sum_before(r);
    const struct rank_time now = times(&s), usual = times(&b);
    const double more = s.step_s / s.steps - b.step_s / b.steps;
    *rank = 0;
    if (r->setup.waits && now.wait_s - usual.wait_s > 0.5 * more) {
        *rank = r->slow_rank;
        if (*rank > 0)
            snprintf(why, ALERT_NAME, "all wait for %.150s", alert_who(r, *rank, who));
        else
            snprintf(why, ALERT_NAME, "rank 0 waits for the others, and none of them alone is slow");
    } else
        snprintf(why, ALERT_NAME, "%.80s: %.140s", alert_who(r, 0, who),
                 alert_blame(r, 0, &now, &usual, s.save_s / s.steps, own));
    return why;
}

static void slow_look(struct alert_rules *r, double now)
{
    char why[ALERT_NAME], x[32], y[32];
    double least;
    const double step = step_now(r, &least), before = step_before(r);
    struct alert_active *a = alert_find(r, "slow", "");
    const struct alert_bucket *last = &r->ring[(r->buckets - 1) % ALERT_BUCKETS];
    if (a) {
        alert_price(r, a, last->step_s - last->steps * before, now);
        if (step < SLOW_OVER * before) alert_end(r, a, now);
        return;
    }
    if ((double)r->bases < MINUTE_S / 2 || r->buckets - r->left < 3 || !(least > SLOW_BY * before)) return;
    a = alert_begin(r, "slow", STATUS_OK, now, r->step, "", -1);
    if (a == NULL) return;
    const struct alert_bucket s = sum_now(r, MINUTE_S);
    alert_price(r, a, s.step_s - s.steps * before, now);
    slow_cause(r, &a->a.rank, why);
    snprintf(a->a.text, sizeof a->a.text,
             "steps take %s for a minute, %s before: costs %.0f %% of the time while it lasts; %s",
             text_time(x, step), text_time(y, before), 100 * (1 - before / step), why);
    alert_emit(r, a);
}

/* Rank 0 or another waits for data for more than a hundredth of the last minute. */
static void data_look(struct alert_rules *r, double now)
{
    char who[ALERT_NAME], x[32];
    const struct alert_bucket s = sum_now(r, MINUTE_S);
    struct alert_active *a = alert_find(r, "data_wait", "");
    const struct alert_bucket *last = &r->ring[(r->buckets - 1) % ALERT_BUCKETS];
    const double share = s.rank.data_s / s.step_s;
    if (a) {
        alert_price(r, a, last->rank.data_s, now);
        if (share < 0.5 * DATA_SHARE) alert_end(r, a, now);
        return;
    }
    if (r->left == 0 || s.steps < 3 || !(share > DATA_SHARE)) return;
    a = alert_begin(r, "data_wait", STATUS_OK, now, r->step, "", 0);
    if (a == NULL) return;
    alert_price(r, a, s.rank.data_s, now);
    snprintf(a->a.text, sizeof a->a.text,
             "%.110s waits for its data: %s of the last minute, %.1f %%; raise data.threads, or put the "
             "shards where "
             "they are read faster",
             alert_who(r, 0, who), text_time(x, s.rank.data_s), 100 * share);
    alert_emit(r, a);
}

static void bucket_close(struct alert_rules *r, double now)
{
    r->ring[r->buckets++ % ALERT_BUCKETS] = r->open;
    r->open = (struct alert_bucket){0};
    const bool slow = alert_find(r, "slow", "") != NULL;
    while (r->buckets - r->left > 3) { /* the last three always count: steps may last */
        const struct alert_bucket *b = &r->ring[r->left % ALERT_BUCKETS];
        if (b->end > now - MINUTE_S && r->buckets - r->left < ALERT_BUCKETS) break;
        if (!slow) r->base[r->bases++ % ALERT_BASE] = *b;
        r->left++;
    }
    slow_look(r, now);
    data_look(r, now);
}

/* One step that took much longer than those around it. */
static void long_step(struct alert_rules *r, const struct alert_step *s)
{
    char who[ALERT_NAME], why[ALERT_NAME], x[32], y[32];
    struct rank_time others;
    const double usual_s = step_now(r, NULL);
    if (!(s->step_s > LONG_S && s->step_s > 10 * usual_s) || r->buckets - r->left < 3) return;
    const struct alert_bucket b = sum_now(r, MINUTE_S);
    const struct rank_time usual = times(&b);
    int rank = 0;
    if (r->setup.waits && r->setup.ranks > 1) rank = slowest(r, s->rank, &others);
    struct alert one = {.code = STATUS_OK, .time = s->time, .step = s->step, .rank = rank, .over = true};
    snprintf(one.name, sizeof one.name, "long_step");
    one.seconds = s->step_s - usual_s;
    one.share = one.seconds / fmax(s->time - r->setup.start_s, one.seconds);
    alert_blame(r, rank, &s->rank[rank], &usual, isfinite(s->save_s) ? s->save_s : 0, why);
    snprintf(one.text, sizeof one.text, "step %lld took %s, usual are %s: %.100s: %.200s", (long long)s->step,
             text_time(x, s->step_s), text_time(y, usual_s), alert_who(r, rank, who), why);
    r->setup.emit(r->setup.emit_ctx, &one);
}

void alert_slow_step(struct alert_rules *r, const struct alert_step *s)
{
    struct alert_active *stalled = alert_find(r, "stall", "");
    if (stalled) {
        alert_price(r, stalled, s->step_s - step_now(r, NULL), s->time);
        alert_end(r, stalled, s->time);
    } else
        long_step(r, s);
    if (r->steps == 0) return; /* the first step warms up */
    ranks_add(r, s);
    struct alert_bucket *b = &r->open;
    if (b->steps == 0) b->begin = s->time - s->step_s;
    b->steps++;
    b->step_s += s->step_s;
    b->save_s += isfinite(s->save_s) ? s->save_s : 0;
    time_add(&b->rank, &s->rank[0]);
    b->end = s->time;
    if (b->end - b->begin >= BUCKET_S) bucket_close(r, s->time);
}

/* ---- steps that do not come */

static void stall_sentence(const struct alert_rules *r, struct alert *a, double silent, double usual,
                           enum alert_work work)
{
    char who[ALERT_NAME], why[ALERT_NAME], x[32], y[32];
    const int other =
        work == ALERT_WORK_STEP && r->setup.awaited ? r->setup.awaited(r->setup.awaited_ctx) : -1;
    a->rank = other >= 0 ? other : 0;
    const struct alert_place *p = &r->setup.places[a->rank];
    if (work == ALERT_WORK_DATA)
        snprintf(why, sizeof why, "it waits for its data: a slow or lost disk below data.train");
    else if (work == ALERT_WORK_SAVE)
        snprintf(why, sizeof why, "it writes a checkpoint: a slow or full disk below run.dir");
    else if (strcmp(p->host, r->setup.places[0].host) == 0)
        alert_process_text(p, why);
    else
        snprintf(why, sizeof why, "its process %d is on another host: look there", p->pid);
    snprintf(a->text, sizeof a->text, "no step for %s, usual are %s: %s%.110s: %.200s", text_time(x, silent),
             text_time(y, usual), other > 0 ? "all wait for " : "", alert_who(r, a->rank, who), why);
}

/* The whole process did not run: stopped, or the machine slept. */
static void pause_look(struct alert_rules *r, double now)
{
    char x[32], who[ALERT_NAME];
    const double gap = now - r->last_look_s;
    if (!(gap > PAUSE_S)) return;
    struct alert one = {.code = STATUS_OK, .time = now, .step = r->step, .seconds = gap, .over = true};
    one.share = gap / fmax(now - r->setup.start_s, gap);
    snprintf(one.name, sizeof one.name, "pause");
    snprintf(one.text, sizeof one.text,
             "%.110s: the process did not run for %s: it was stopped (a signal, a debugger, the batch "
             "system), or the "
             "machine slept",
             alert_who(r, 0, who), text_time(x, gap));
    r->setup.emit(r->setup.emit_ctx, &one);
    r->since_s = now;
}

void alert_slow_look(struct alert_rules *r, double now, enum alert_work work)
{
    pause_look(r, now);
    const bool in_step = work == ALERT_WORK_STEP || work == ALERT_WORK_DATA;
    if (work == ALERT_WORK_OTHER || in_step != r->in_step) r->since_s = now;
    r->in_step = in_step;
    const double usual = step_now(r, NULL), silent = now - r->since_s;
    if (!isfinite(usual) || alert_find(r, "stall", "")) return;
    if (silent <= (in_step ? fmax(STALL_S, 5 * usual) : SAVE_STALL_S)) return;
    struct alert_active *a = alert_begin(r, "stall", STATUS_COMM, now, r->step, "", -1);
    if (a == NULL) return;
    a->begin_s = r->since_s;
    alert_price(r, a, silent - usual, now);
    stall_sentence(r, &a->a, silent, usual, work);
    alert_emit(r, a);
}
