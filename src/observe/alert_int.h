/* Inside alert_rules: what its files share. */
#ifndef INGOT_OBSERVE_ALERT_INT_H
#define INGOT_OBSERVE_ALERT_INT_H
#include "observe/alert_rules.h"
#include "observe/monitor_int.h"

/* Sums over the steps of a second, or of one longer step, of rank 0. */
struct alert_bucket {
    double begin, end;
    double steps, step_s;
    struct rank_time rank;
    double save_s;
};
enum { ALERT_BUCKETS = 1024, ALERT_BASE = 600, ALERT_NAME = 224 };
struct alert_active {
    bool used, of_host;
    bool lasts;              /* the run ended in it: it keeps its code */
    double begin_s, seen_s;
    struct alert a;
};
struct alert_rules {
    struct alert_setup setup;
    struct alert_active active[ALERTS_MAX];
    struct alert_spike loss, grad;
    /* Buckets of the last minute, and what steps took before it. */
    struct alert_bucket ring[ALERT_BUCKETS], open, base[ALERT_BASE];
    int64_t buckets, left;   /* closed; those that have left the minute */
    int64_t bases;
    int64_t step;            /* the last */
    int64_t steps;           /* of this process */
    /* What the main thread does: for how long it has been at this. */
    bool in_step;
    double since_s, last_look_s;
    /* Ranks: sums since rank_begin_s, and for how long the same one is slow. */
    struct rank_time *sum;   /* [ranks] */
    double *scratch;         /* [ranks] */
    double rank_begin_s, slow_since_s;
    int64_t rank_steps;
    int slow_rank;
    double xid_seen_s;
};

/* alert_rules.c */
struct alert_active *alert_find(struct alert_rules *r, const char *name, const char *where);
/* A new one, not yet said; NULL: there are too many. */
struct alert_active *alert_begin(struct alert_rules *r, const char *name, status code, double now, int64_t step,
                                 const char *where, int rank);
void alert_emit(struct alert_rules *r, const struct alert_active *a);
/* Says that it is over. */
void alert_end(struct alert_rules *r, struct alert_active *a, double now);
/* Adds to an alert's price. */
void alert_price(struct alert_rules *r, struct alert_active *a, double seconds, double now);
/* "rank 2 on node07, gpu3". Returns buf. */
const char *alert_who(const struct alert_rules *r, int rank, char buf[ALERT_NAME]);

/* alert_blame.c: what made a step of a rank longer than usual, in words. `usual`: the same means before, or of the
 * other ranks. Returns buf. */
const char *alert_blame(const struct alert_rules *r, int rank, const struct rank_time *now,
                        const struct rank_time *usual, double save_s, char buf[ALERT_NAME]);
/* "its process is stopped: kill -CONT 4711 lets it go on"; by /proc, for a process of this host. */
const char *alert_process_text(const struct alert_place *p, char buf[ALERT_NAME]);

/* alert_slow.c: steps and ranks that are slow, steps that do not come. */
void alert_slow_step(struct alert_rules *r, const struct alert_step *s);
void alert_slow_look(struct alert_rules *r, double now, enum alert_work work);
#endif
