/* Characters as the first units of a merge. Merging begins with bytes, but for most scripts the first thing that
 * happens is that the two or three bytes of each character come together. Where that is certain, merging may as
 * well begin with the character. */
#ifndef INGOT_DATA_TOKENIZER_BPE_CHARS_H
#define INGOT_DATA_TOKENIZER_BPE_CHARS_H
#include "data/tokenizer/tokenizer_int.h"

/* Sets t->chars and t->borders from vocab, merges and pairs. */
status bpe_chars_init(struct tokenizer *t) WARN_UNUSED;

/* The units of a piece (valid UTF-8): characters where that is certain, else bytes. Their ids, and the rank of
 * each with the one behind it (RANK_NONE for the last); both have room for `bytes`. Returns how many. */
size_t bpe_chars_split(const struct tokenizer *t, const uint8_t *piece, size_t bytes, int32_t *ids,
                       uint32_t *ranks);
#endif
