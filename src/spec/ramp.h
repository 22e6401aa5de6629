/* ramp: warm-up of the batch (train.batch_schedule) and of the sequence length (train.sequence_schedule): a size until so
 * many tokens of the run are read, then the next one; behind the last stage the run's own value.
 *
 * "32Ki@1M,64Ki@4M": 32Ki until 1M tokens are read, 64Ki until 4M. Megatron's --rampup-batch-size START INCREMENT SAMPLES
 * is such a list of equal stages. Everything here is a pure function of the step or the tokens: a resume needs no state. */
#ifndef INGOT_SPEC_RAMP_H
#define INGOT_SPEC_RAMP_H
#include "spec/spec.h"

enum { RAMP_STAGES = 32 };
struct ramp {
    int count; /* stages; 0: none was opened */
    struct ramp_stage {
        int64_t size;
        int64_t until;        /* tokens of the run; INT64_MAX in the last stage */
        int64_t step, tokens; /* of a batch's ramp: steps and tokens before the stage */
    } stage[RAMP_STAGES + 1];
};
/* `text`: a list as above, or "": one stage of `last`. `key` is its name in errors: STATUS_CONFIG when the list is not as
 * above, its ends do not ascend, or it has too many stages. */
status ramp_open(struct ramp *r, const char *key, const char *text, int64_t last) WARN_UNUSED;
/* Of a spec that was checked. In tokens per step, and in tokens per sequence. */
struct ramp ramp_batch(const struct run_spec *r);
struct ramp ramp_sequence(const struct run_spec *r);

/* Of a batch's ramp. ramp_steps: steps that read so many tokens, rounded up to whole ones. */
int64_t ramp_size(const struct ramp *r, int64_t step);
int64_t ramp_tokens(const struct ramp *r, int64_t step); /* read before the step; INT64_MAX: more than fit */
int64_t ramp_steps(const struct ramp *r, int64_t tokens);
/* Of a sequence's: the size after so many tokens. */
int64_t ramp_at(const struct ramp *r, int64_t tokens);
/* Greatest number that divides all sizes; the least size. */
int64_t ramp_unit(const struct ramp *r);
int64_t ramp_least(const struct ramp *r);
/* What breaks a schedule's rules: sizes, and what it does not go with. Of a resolved spec. */
status ramp_check(const struct spec *s) WARN_UNUSED;
#endif
