/* Mistral's tekken.json: the pattern, the bytes of each token in base64, and the special tokens, which have the first
 * ids: the id of a token is its rank and their number. Merging is tiktoken's (tiktoken.h). The reference is
 * mistral_common/tokens/tokenizers/tekken.py of github.com/mistralai/mistral-common, 1.13. */
#ifndef INGOT_DATA_TOKENIZER_TEKKEN_H
#define INGOT_DATA_TOKENIZER_TEKKEN_H
#include "data/tokenizer/tokenizer_int.h"
#include <stdbool.h>

/* True when the first key is one of such a file. */
bool tekken_is(const char *data, size_t bytes);

/* Fills a zeroed tokenizer; tokenizer_finish must follow. STATUS_DATA for anything that the reference refuses, and for
 * a pattern that is not known. */
status tekken_parse(struct tokenizer *t, const char *data, size_t bytes) WARN_UNUSED;
#endif
