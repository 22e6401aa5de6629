/* Text from a model: shared by `ingot generate`, the samples of a run, and the demo. */
#ifndef INGOT_CLI_SAMPLE_H
#define INGOT_CLI_SAMPLE_H
#include "data/tokenizer/tokenizer.h"
#include "infer/generate.h"
#include "train/trainer.h"

struct sample_config {
    const char *prompt; /* UTF-8; empty: begins from the end-of-text token, or id 0 */
    int64_t tokens; /* at most; 0: as many as the model has positions for, at most 128. Stops at end of text */
    struct sampling sampling;
    void (*emit)(void *ctx, const char *bytes,
                 size_t count); /* each token's bytes as they come; NULL: none */
    void *ctx;
};
/* *text: the continuation without the prompt, malloc'd. */
status sample_text(struct trainer *t, const struct tokenizer *tok, const struct sample_config *c,
                   char **text) WARN_UNUSED;
#endif
