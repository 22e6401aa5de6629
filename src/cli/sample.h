/* Text generation, shared by `ingot generate`, the samples of a run, and the demo. */
#ifndef INGOT_CLI_SAMPLE_H
#define INGOT_CLI_SAMPLE_H
#include "data/tokenizer/tokenizer.h"
#include "infer/generate.h"
#include "train/trainer.h"

struct sample_token {
    int32_t id;
    struct text bytes;
    double logprob; /* nats, by the model: before temperature, top-k and top-p; NaN unless config.logprobs */
};
struct sample_config {
    const char *prompt; /* UTF-8; empty: starts from the end-of-text token, or id 0 */
    int64_t tokens; /* maximum; 0: the positions of the model, at most 128. Stops at end of text */
    struct sampling sampling;
    /* Called with each token as it is generated; NULL: none. */
    void (*emit)(void *ctx, const struct sample_token *token);
    void *ctx;
    bool logprobs;
};
/* Generates text. *text is the continuation without the prompt, malloc'd. */
status sample_text(struct trainer *t, const struct tokenizer *tok, const struct sample_config *c,
                   char **text) WARN_UNUSED;

/* One of several texts. */
struct sample_job {
    struct sample_config config;
    int32_t *ids; /* of the prompt; owned */
    int64_t count, tokens; /* of the prompt; to be generated, at most */
    char *text; /* the continuation; owned */
    size_t bytes;
    int64_t made; /* tokens */
};
/* Makes ids. STATUS_CONFIG when the model has no positions left behind the prompt. */
status sample_prepare(const struct trainer *t, const struct tokenizer *tok, const struct sample_config *c,
                      struct sample_job *job) WARN_UNUSED;
/* The texts of jobs that are prepared, side by side: each step passes one token of every text through the model. A
 * prompt that is longer than the trainer's rows goes alone. */
status sample_run(struct trainer *t, const struct tokenizer *tok, struct sample_job *jobs,
                  int64_t count) WARN_UNUSED;
void sample_job_free(struct sample_job *job); /* accepts a zeroed one */
#endif
