/* tiktoken's rank files: one line per token with its bytes in base64, a space, and its id, which is also its
 * priority. Pattern and special tokens are not in the file; they are known for published files, which are identified
 * by size and XXH3-128. */
#ifndef INGOT_DATA_TOKENIZER_TIKTOKEN_H
#define INGOT_DATA_TOKENIZER_TIKTOKEN_H
#include "data/tokenizer/tokenizer_int.h"
#include <stdbool.h>

/* True when the first line has the form of such a file. */
bool tiktoken_is(const char *data, size_t bytes);

/* Fills a zeroed tokenizer; tokenizer_finish must follow. `pretokenizer` is a name (pretokenizer.h) for files that
 * are not published ones, which then have no special tokens; NULL: such files are STATUS_DATA. */
status tiktoken_parse(struct tokenizer *t, const char *data, size_t bytes,
                      const char *pretokenizer) WARN_UNUSED;
#endif
