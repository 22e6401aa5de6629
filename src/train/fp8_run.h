/* fp8_run: an FP8 run from step to step: which linears read codes in the next step, and how far their tensors are from
 * saturation (parallel/fp8.h has the scales).
 *
 *   steps [since, since + fp8.warmup)   the GEMMs of a linear are in bf16; amax is measured
 *   from then on                        they read codes; with fp8.wgrad=bf16 those of its weight gradient do not
 *
 * `since` is the step in which the measuring of a linear began: 0; after a change from bf16 to FP8, or of fp8.exclude,
 * the step of the change. Checkpoints hold it beside the history (train/state.h). So the use is a pure function of the
 * checkpoint and the step, and a resumed run has the bits of one that was not interrupted.
 *
 * Monitor: every fp8.monitor steps amax of the step is compared with the scale that the step used. Names of tensors
 * that saturate are logged once each. A linear with a tensor that saturates in FP8_STRIKES checks in a row computes in
 * bf16 from then on (since = FP8_NEVER). All ranks have the same history, so they decide the same. */
#ifndef INGOT_TRAIN_FP8_RUN_H
#define INGOT_TRAIN_FP8_RUN_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct trainer;
struct checkpoint;
struct step_result;

enum { FP8_STRIKES = 3 };
#define FP8_NEVER INT64_MAX
struct fp8_linear_state { int64_t since, strikes; }; /* a tensor of checkpoints: I64 [2] */
struct fp8_run {
    struct fp8_linear_state *linears;   /* [params.fp8.count]; NULL: the run computes in another precision */
    bool *warned;               /* [2][count]: tensors that were named */
    float *scale;               /* [2][count], of X and DY, in the step that is measured */
    float *history;             /* [2][count][FP8_HISTORY], after it */
};

/* After the parameters are laid out. */
status fp8_run_open(struct trainer *t) WARN_UNUSED;
void fp8_run_close(struct trainer *t);
/* After the history was read from a checkpoint, and t->step: linears that are not in it begin to measure now.
 * STATUS_CKPT: a state that no run has. */
status fp8_run_restored(struct trainer *t, const struct checkpoint *c) WARN_UNUSED;
/* After weights came from elsewhere: the scales, the codes of weights, and the uses of the next step. */
status fp8_run_begin(struct trainer *t) WARN_UNUSED;
/* Log lines: what the next step computes in FP8, and when that changes. */
void fp8_run_log(const struct trainer *t);
/* Before a step: where uses change, the codes of weights, and a new CUDA graph. */
status fp8_run_before(struct trainer *t) WARN_UNUSED;
/* After a step, before t->step counts it: the monitor. Writes out->fp8_*. */
status fp8_run_after(struct trainer *t, struct step_result *out) WARN_UNUSED;
/* After an evaluation or a sample: what it measured is not of the step. */
status fp8_run_forget(struct trainer *t) WARN_UNUSED;
#endif
