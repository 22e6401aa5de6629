/* tiktoken's rank files: one line for each token, its bytes in base64, a space, its id, which is also its
 * priority. Pattern and special tokens are not in them: they are known for published files, by their
 * size and XXH3-128. */
#ifndef INGOT_DATA_TOKENIZER_TIKTOKEN_H
#define INGOT_DATA_TOKENIZER_TIKTOKEN_H
#include "data/tokenizer/tokenizer_int.h"
#include <stdbool.h>

/* Whether the first line is one of such a file. */
bool tiktoken_is(const char *data, size_t bytes);

/* Fills a zeroed tokenizer; tokenizer_finish must follow. `pretokenizer` is a name (pretokenizer.h) for files
 * that are not known, which have no special tokens then; NULL: STATUS_DATA for those. */
status tiktoken_parse(struct tokenizer *t, const char *data, size_t bytes,
                      const char *pretokenizer) WARN_UNUSED;
#endif
