/* The merges that a vocabulary implies when ids are priorities (tiktoken's files list no merges). */
#ifndef INGOT_DATA_TOKENIZER_BPE_DERIVE_H
#define INGOT_DATA_TOKENIZER_BPE_DERIVE_H
#include "data/tokenizer/tokenizer_int.h"

/* Fills merges and the table of pairs of a tokenizer with a vocabulary and none of the two. With them and
 * ignore_merges every text gets the ids that tiktoken's rule gives: a piece that is a token is that token; else
 * the neighbours whose bytes together have the lowest id are merged, the leftmost first, until none is left.
 * STATUS_DATA for a byte that has no token. */
status bpe_derive(struct tokenizer *t) WARN_UNUSED;
#endif
