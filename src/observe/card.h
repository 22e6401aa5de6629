/* card: README.md of an exported model, a Hugging Face model card: front matter in YAML, then what the run has recorded
 * of itself: data, tokens, evaluations, command, configuration. What no record says is left out; the card says so. */
#ifndef INGOT_OBSERVE_CARD_H
#define INGOT_OBSERVE_CARD_H
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct card {
    const char *run;          /* its directory, or that of one of its checkpoints */
    const char *name;         /* of the model */
    const char *family;       /* model_type; "ingot": transformers does not load it */
    const char *dtype;        /* of the weights */
    int64_t step, tokens;     /* of the checkpoint; step 0: imported, and not trained here */
    double parameters;
    int64_t layers, width, heads, context, vocabulary;
};
/* Writes README.md of the directory. */
status card_write(const struct card *c, const char *dir) WARN_UNUSED;
#endif
