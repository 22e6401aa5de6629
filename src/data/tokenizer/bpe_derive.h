/* Derives the merges of a vocabulary whose ids are priorities (tiktoken's files list no merges). */
#ifndef INGOT_DATA_TOKENIZER_BPE_DERIVE_H
#define INGOT_DATA_TOKENIZER_BPE_DERIVE_H
#include "data/tokenizer/tokenizer_int.h"

/* Fills merges and the table of pairs of a tokenizer that has only a vocabulary. With them and ignore_merges every
 * text gets the ids of tiktoken's rule: a piece that is a token is that token; else the neighbours whose
 * concatenation has the lowest id are merged, leftmost first, until no merge is possible. STATUS_DATA for a byte
 * without a token. */
status bpe_derive(struct tokenizer *t) WARN_UNUSED;
#endif
