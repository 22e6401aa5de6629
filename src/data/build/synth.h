/* Synthetic sequences that test recall of a model, as shards in which only the answers are targets (LLMQ's mask:
 * docs/FORMATS.md).
 *
 *   mqar   associative recall (Arora et al., arXiv:2312.04927): `items` keys, each followed by its value, then every
 *          key once more at a random later place, followed by its value as the answer. Places are drawn without
 *          replacement, place i with weight i^(power-1).
 *              k3 v7 k1 v2 _ _ k1 [v2] _ _ _ _ k3 [v7] _ _ $
 *   copy   `items` symbols, scattered among blanks if the length allows, then the sign `=` and the symbols again, all
 *          answers.
 *              s5 _ s2 _ _ s9 = [s5] [s2] [s9] $
 *
 *   parity `items` bits (ids 3 and 4), scattered as in copy, then the sign and whether the ones are odd in number.
 *              0 _ 1 _ 1 = [0] $
 *   needle a haystack of symbols; in it, at a random place, the sign and `items` symbols, the needle; at the end the sign
 *          and the needle once more, all answers.
 *              s5 s1 = s7 s4 s8 s1 s3 = [s7] [s4] $
 *
 * Ids: 0 ends a sample ($), 1 is the blank (_), 2 is the sign; the rest are symbols, in mqar, which has no sign, half of
 * them keys, half values. All samples have `length` tokens, and one more 0 ends the file. With train.sequence_length =
 * length and stream packing, a sequence is therefore a sample. A sample is a pure function of (seed, split, its
 * number). */
#ifndef INGOT_DATA_BUILD_SYNTH_H
#define INGOT_DATA_BUILD_SYNTH_H
#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

#define SYNTH_TASKS(X) X(MQAR, "mqar") X(COPY, "copy") X(PARITY, "parity") X(NEEDLE, "needle")
enum synth_task {
#define X(value, word) SYNTH_##value,
    SYNTH_TASKS(X)
#undef X
};
enum synth_split { SYNTH_TRAIN, SYNTH_VAL };

struct synth_config {
    enum synth_task task;
    int64_t items, length, vocab_size;
    int64_t samples[2];     /* per split */
    double power;           /* mqar; 1: uniform over all places */
    uint64_t seed;
};
/* STATUS_CONFIG in one line: which setting does not fit. */
status synth_check(const struct synth_config *c) WARN_UNUSED;
/* Writes sample `index` of a checked configuration: tokens [length], and answers [length] with 1 at answers. `space`:
 * see synth_space. */
void synth_sample(const struct synth_config *c, enum synth_split split, int64_t index, int32_t *tokens,
                  uint8_t *answers, void *space);
size_t synth_space(const struct synth_config *c); /* bytes of `space` for one call */
int64_t synth_answers(const struct synth_config *c); /* answers in a sample */
/* Writes the validation samples as JSONL, one text each, up to its last answer, which is the last word: a file of the task
 * `lambada` of `ingot eval`. Symbol n is the word "n", the blank ".", the sign "=". */
status synth_write_text(const struct synth_config *c, const char *path) WARN_UNUSED;
/* Writes a shard at `path` and replaces an existing one. */
status synth_write(const struct synth_config *c, enum synth_split split, const char *path) WARN_UNUSED;
#endif
