/* A tokenizer with more special tokens, for a model that goes on with them. */
#ifndef INGOT_DATA_TOKENIZER_TOKENIZER_EXTEND_H
#define INGOT_DATA_TOKENIZER_TOKENIZER_EXTEND_H
#include "data/tokenizer/tokenizer.h"

/* Writes DIR/tokenizer.json of `from` (a directory with one) with texts[0, count) as special tokens, whose ids follow
 * the largest; all other ids stay. Copies the files beside it (tokenizer_copy_beside). STATUS_CONFIG: `to` has a
 * tokenizer, or a text is empty or a token already. */
status tokenizer_extend(const char *from, const char *const *texts, int count, const char *to) WARN_UNUSED;
/* Copies tokenizer_config.json, special_tokens_map.json and chat_template.jinja, those that are there, byte for byte. */
status tokenizer_copy_beside(const char *from, const char *to) WARN_UNUSED;
/* STATUS_CONFIG unless `more` has every token of `t` under its id: a model of `t` can then use it. The message names the
 * first that differs. */
status tokenizer_extends(const struct tokenizer *more, const struct tokenizer *t) WARN_UNUSED;
#endif
