/* alert_rules: finds alerts while a run goes on. It has no clock, no thread and no file: the same calls give the same
 * alerts. Each alert comes twice: when its condition has lasted long enough (docs/GUIDE.md), and when it is over. */
#ifndef INGOT_OBSERVE_ALERT_RULES_H
#define INGOT_OBSERVE_ALERT_RULES_H
#include "observe/alert.h"
#include "observe/host_lines.h"
#include "observe/observe.h"

/* Where a rank runs. */
struct alert_place {
    char host[128];
    char pci[32];       /* of its GPU; "": none */
    int32_t pid;
    int32_t gpu;        /* NVML's number; -1: none, or not known yet */
};
struct alert_setup {
    int ranks;
    struct alert_place *places; /* [ranks]; the caller's, and outlives the rules */
    bool waits;                 /* the ranks' waits are known: not where they are part of a GPU's queue */
    double start_s;             /* wall clock; prices are shares of the time since then */
    int64_t warmup;             /* steps of the learning rate's warm-up */
    double checkpoint_bytes;
    void (*emit)(void *ctx, const struct alert *a);
    void *emit_ctx;
    /* The rank that the others wait for now; -1: none is known. NULL: one rank alone. */
    int (*awaited)(void *ctx);
    void *awaited_ctx;
};
/* A step that is done. Times in seconds; NaN: not known. */
struct alert_step {
    int64_t step;
    double time;                /* wall clock of its end */
    double loss, grad_norm, step_s;
    double save_s;              /* waited for a checkpoint */
    const struct rank_time *rank; /* [ranks], read during the call */
};
/* What the main thread does at a look. */
enum alert_work { ALERT_WORK_OTHER, ALERT_WORK_STEP, ALERT_WORK_DATA, ALERT_WORK_SAVE };

struct alert_rules;
struct alert_rules *alert_rules_open(const struct alert_setup *s);
void alert_rules_step(struct alert_rules *r, const struct alert_step *s);
/* Once a second or so. */
void alert_rules_look(struct alert_rules *r, double now, enum alert_work work);
/* What the hosts' records say, every few seconds. disk_free: bytes where the run is written; NaN: not known. */
void alert_rules_hosts(struct alert_rules *r, double now, const struct host_lines *hosts, int count, double disk_free);
/* The run ends. An error becomes the alert `ended`, with its message and what a resume repeats: lost_s seconds of
 * lost_steps steps. All others are over. */
void alert_rules_end(struct alert_rules *r, double now, status st, const char *message, int64_t lost_steps, double lost_s);
void alert_rules_close(struct alert_rules *r); /* accepts NULL */
#endif
