/* progress: what a person sees while a program works. Nothing that lasts is silent.
 *
 * On a terminal the last line is redrawn by a thread of its own, and what should stay scrolls above it. Elsewhere (a
 * pipe, a file) each record is one key=value line, and work that lasts PROGRESS_FIRST_S says so, then every
 * PROGRESS_AGAIN_S.
 *
 * A process has one display. Without progress_start all calls do nothing: ranks above 0 run the same code. */
#ifndef INGOT_OBSERVE_PROGRESS_H
#define INGOT_OBSERVE_PROGRESS_H
#include <stdint.h>

#define PROGRESS_FIRST_S 10.0
#define PROGRESS_AGAIN_S 30.0

enum progress_work { WORK_OTHER, WORK_STEP, WORK_EVAL, WORK_SAMPLE, WORK_SAVE, WORK_COUNT };

/* Starts the display and its thread; a second start does nothing. progress_stop clears the line. */
void progress_start(void);
void progress_stop(void);
/* The display's thread calls `fn` ten times a second; NULL: nothing. After the return the old one is not called. */
void progress_watch_set(void (*fn)(void *ctx), void *ctx);

/* What the main thread does now: "evaluating", of `total` parts (0: not known). `what` is copied. */
void progress_begin(enum progress_work kind, const char *what, int64_t total);
void progress_done(int64_t done, int64_t total);
void progress_end(void);
/* A step of the run is done, with or without a record (log.every). */
void progress_step(int64_t step);
/* What the main thread does (WORK_COUNT: nothing); the seconds that this still takes after its current part, and those
 * of that part; NaN: not known. */
struct progress_left {
    enum progress_work kind;
    double part_s, rest_s;
};
struct progress_left progress_left(void);

/* The length of a run: for the bar, and for an ETA that counts evaluations and saves to come. */
struct progress_run {
    int64_t step, steps_total;      /* done; 0: the total is not known */
    int64_t eval_every, ckpt_every; /* steps; 0: at the end only */
    int64_t eval_parts, eval_parts_last; /* batches of an evaluation, and of that after the last step; 0: none */
    int64_t layers;                 /* of the model: shown inside a micro-batch that lasts; 0: never */
    /* Before they are measured: seconds of a step (NaN: not known), and of a batch of an evaluation as part of a step */
    double step_s, eval_part_steps;
};
void progress_run_set(const struct progress_run *r);
#endif
