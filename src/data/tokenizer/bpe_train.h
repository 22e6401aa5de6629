/* Trains the merges of a byte-level BPE tokenizer. */
#ifndef INGOT_DATA_TOKENIZER_BPE_TRAIN_H
#define INGOT_DATA_TOKENIZER_BPE_TRAIN_H
#include "data/tokenizer/tokenizer_int.h"

/* Fills pretokenizer, vocab, merges and added of a zeroed tokenizer (see tokenizer_train); tokenizer_finish must
 * follow. */
status bpe_train(struct tokenizer *t, const struct tokenizer_train_config *config, const struct text *docs,
                 int64_t count) WARN_UNUSED;
#endif
