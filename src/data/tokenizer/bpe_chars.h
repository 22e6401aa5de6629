/* Characters as the initial units of a merge. Merging begins with bytes, but in most scripts the two or three bytes
 * of each character are merged first. Where that is certain, merging can begin with the character. */
#ifndef INGOT_DATA_TOKENIZER_BPE_CHARS_H
#define INGOT_DATA_TOKENIZER_BPE_CHARS_H
#include "data/tokenizer/tokenizer_int.h"

/* Sets t->chars and t->borders from vocab, merges and pairs. */
status bpe_chars_init(struct tokenizer *t) WARN_UNUSED;

/* Splits a piece (valid UTF-8) into units: characters where that is certain, else bytes. Writes their ids, and the
 * rank of each unit with its successor (RANK_NONE for the last); both arrays need `bytes` elements. Returns the
 * number of units. */
size_t bpe_chars_split(const struct tokenizer *t, const uint8_t *piece, size_t bytes, int32_t *ids,
                       uint32_t *ranks);
#endif
