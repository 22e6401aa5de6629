/* Tokenizers on disk: tokenizer.json and tokenizer_config.json, or vocab.json beside merges.txt (read only).
 * */
#ifndef INGOT_DATA_TOKENIZER_FILE_H
#define INGOT_DATA_TOKENIZER_FILE_H
#include "data/tokenizer_int.h"

/* Fills pretokenizer, ignore_merges, vocab, merges and added of a zeroed tokenizer; tokenizer_finish must follow.
 * `path` is a directory or a file. What this program does not do exactly is refused by name: STATUS_DATA. */
status tokenizer_file_read(struct tokenizer *t, const char *path) WARN_UNUSED;
/* The same from the text of a tokenizer.json. */
status tokenizer_file_parse(struct tokenizer *t, const char *json, size_t bytes) WARN_UNUSED;
status tokenizer_file_write(const struct tokenizer *t, const char *dir) WARN_UNUSED;
#endif
