/* Token equivalence for Engram's hashes (arXiv:2601.07372). Two tokens share an id when their texts are equal in this
 * normal form: compatibility decomposition (NFKD), without nonspacing marks, lower case, each run of blanks, tabs and
 * line ends replaced by one blank, white space trimmed. A text of blanks only is one blank. A token whose normal form
 * is empty, or which is not valid UTF-8, is equivalent only to itself. Ids of the map are numbered by first
 * appearance. Unicode 16.0.0. */
#ifndef INGOT_DATA_TOKENIZER_TOKEN_MAP_H
#define INGOT_DATA_TOKENIZER_TOKEN_MAP_H
#include "data/tokenizer/tokenizer.h"

/* Fills map[id] for ids below `vocab`; the first `count` ids have the texts of `tokens`. An id without a text or a
 * token is equivalent only to itself. `distinct` is the number of ids in the map. A pure function of its arguments.
 * STATUS_OUT_OF_MEMORY. */
status token_map_build(const struct text *tokens, int32_t count, int32_t vocab, int32_t *map,
                       int32_t *distinct) WARN_UNUSED;
/* The same for the tokens of a tokenizer; it may have at most `vocab`. */
status token_map_of(const struct tokenizer *t, int32_t vocab, int32_t *map, int32_t *distinct) WARN_UNUSED;
#endif
