/* Parses the text of a tokenizer.json, or of vocab.json and merges.txt. */
#ifndef INGOT_DATA_TOKENIZER_TOKENIZER_JSON_H
#define INGOT_DATA_TOKENIZER_TOKENIZER_JSON_H
#include "data/tokenizer/tokenizer_int.h"

/* Fills pretokenizer, ignore_merges, vocab, merges and added of a zeroed tokenizer; tokenizer_finish must follow.
 * Anything that this program does not implement exactly is STATUS_DATA, and the message names it. */
status tokenizer_json_parse(struct tokenizer *t, const char *json, size_t bytes) WARN_UNUSED;
/* The same from the two older files. The caller sets the pretokenizer; `end` (NULL: none) is a special token if the
 * vocabulary has it. */
status tokenizer_json_parse_pair(struct tokenizer *t, struct text vocab, struct text merges,
                                 const char *end) WARN_UNUSED;
#endif
