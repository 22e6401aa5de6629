/* Tokenizers on disk: detection of file types, reading and writing. */
#ifndef INGOT_DATA_TOKENIZER_TOKENIZER_FILE_H
#define INGOT_DATA_TOKENIZER_TOKENIZER_FILE_H
#include "data/tokenizer/tokenizer_int.h"

/* Fills pretokenizer, ignore_merges, vocab, merges and added of a zeroed tokenizer; tokenizer_finish must follow.
 * `path` and `pretokenizer` as for tokenizer_import. */
status tokenizer_file_read(struct tokenizer *t, const char *path, const char *pretokenizer) WARN_UNUSED;
status tokenizer_file_write(const struct tokenizer *t, const char *dir) WARN_UNUSED;
#endif
