/* alert_watch: a thread of rank 0 that looks for alerts while a run goes on, appends them to RUN/alerts.jsonl
 * (docs/FORMATS.md), and hands each to log.alert_exec. The training thread only puts numbers into a queue: it waits for
 * no file, no rule and no command. */
#ifndef INGOT_OBSERVE_ALERT_WATCH_H
#define INGOT_OBSERVE_ALERT_WATCH_H
#include "observe/alert_rules.h"

/* A command that lasts longer is ended, with all that it started. */
#define ALERT_EXEC_S 10.0
struct alert_watch;
struct alert_options {
    const char *run_dir, *run_name;
    const char *exec;            /* a shell command; "": none */
    int64_t step;                /* done before this process */
    struct alert_setup rules;    /* emit is filled in; awaited is called on the thread */
};
/* STATUS_IO when the file cannot be opened or there is no thread: the run goes on without. */
status alert_watch_open(struct alert_watch **out, const struct alert_options *o) WARN_UNUSED;
/* A step is done. NULL watch: nothing, as in all of them. */
void alert_watch_step(struct alert_watch *w, const struct alert_step *s);
/* What the calling thread does from now on, inside a step. */
void alert_watch_loads(struct alert_watch *w, bool loads);
/* The run ends (alert_rules_end). Waits for a command that is under way, ALERT_EXEC_S at most. */
void alert_watch_close(struct alert_watch *w, status st, const char *message, int64_t lost_steps, double lost_s);
#endif
