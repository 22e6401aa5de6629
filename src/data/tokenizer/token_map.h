/* Which tokens mean the same, for Engram's hashes (arXiv:2601.07372): two share an id when their texts are equal in compatibility
 * decomposition (NFKD), without nonspacing marks, in lower case, with each run of blanks, tabs and line ends made one blank and white space
 * off the ends; a text of blanks alone stays one blank. A text of which nothing is left stands for itself, and so does a token that is
 * not valid UTF-8. Ids of the map are counted by first appearance. Unicode 16.0.0. */
#ifndef INGOT_DATA_TOKENIZER_TOKEN_MAP_H
#define INGOT_DATA_TOKENIZER_TOKEN_MAP_H
#include "data/tokenizer/tokenizer.h"

/* map[id] for ids below `vocab`, of which the first `count` have the texts of `tokens`; one without text, or without a token, stands for
 * itself. `distinct`: how many ids the map has. A pure function of its arguments. STATUS_FIT. */
status token_map_build(const struct text *tokens, int32_t count, int32_t vocab, int32_t *map, int32_t *distinct) WARN_UNUSED;
/* The same of a tokenizer's tokens, of which there may be no more than `vocab`. */
status token_map_of(const struct tokenizer *t, int32_t vocab, int32_t *map, int32_t *distinct) WARN_UNUSED;
#endif
