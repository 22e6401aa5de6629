/* The text of a tokenizer.json, or of vocab.json and merges.txt, as a tokenizer. */
#ifndef INGOT_DATA_TOKENIZER_TOKENIZER_JSON_H
#define INGOT_DATA_TOKENIZER_TOKENIZER_JSON_H
#include "data/tokenizer/tokenizer_int.h"

/* Fills pretokenizer, ignore_merges, vocab, merges and added of a zeroed tokenizer; tokenizer_finish must
 * follow. What this program does not do exactly is refused by name: STATUS_DATA. */
status tokenizer_json_parse(struct tokenizer *t, const char *json, size_t bytes) WARN_UNUSED;
/* The same from the two older files; the pretokenizer is the caller's, and `end` (NULL: none) is a special
 * token when the vocabulary has it. */
status tokenizer_json_parse_pair(struct tokenizer *t, struct text vocab, struct text merges,
                                 const char *end) WARN_UNUSED;
#endif
