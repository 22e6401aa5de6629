/* Documents of supervised tuning: JSONL whose tokens are targets only in part.
 *
 *   prompt and completion   two texts; the ids of the prompt, then those of the completion. The completion is the target
 *   messages                a list of {"role": ..., "content": ...}, written with a template; what the role `assistant`
 *                           says, and the token that ends it, are the targets
 *
 * A template is a text with {role} and {content}, once per message:
 *
 *   chatml   <|im_start|>{role}\n{content}<|im_end|>\n
 *   llama3   <|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>     after <|begin_of_text|>; content is
 *                                                                                  stripped of white space at its ends
 *   roles    <|{role}|>\n{content}<|end|>\n
 *   or the caller's own, with the special tokens of its tokenizer
 *
 * Special tokens are recognised in the template, never in what a message says: a text cannot forge a turn. The parts
 * (prompt, completion, head, content, tail) are encoded one by one, as generation encodes a prompt before it continues. */
#ifndef INGOT_DATA_BUILD_CHAT_H
#define INGOT_DATA_BUILD_CHAT_H
#include "base/status.h"
#include "data/read/reader.h"
#include "data/tokenizer/tokenizer.h"

struct chat_config { /* names of keys in JSONL; NULL: not given */
    const char *prompt, *completion; /* both or none */
    const char *messages;            /* then `layout` is given, too */
    const char *layout;              /* a template: chatml, llama3, roles, or a text with {role} and {content} */
};
static inline bool chat_given(const struct chat_config *c)
{
    return c->prompt || c->completion || c->messages || c->layout;
}

struct chat; /* read-only: any number of threads may use it, each with its own encoder */
/* STATUS_CONFIG in one line: keys that exclude each other, a template without {role} or {content}, or one whose special
 * tokens the tokenizer does not have. The configuration and the tokenizer must outlive it. */
status chat_open(struct chat **c, const struct chat_config *config, const struct tokenizer *t) WARN_UNUSED;
void chat_close(struct chat *c);
/* Fills *d with ids and targets of record i, which the caller frees; a completion or a list of messages that is empty
 * is an empty document. STATUS_DATA names file and line: no JSONL, no such key, a message without role or content, no
 * message of the assistant. */
status chat_read(const struct chat *c, struct encoder *e, const struct reader_batch *batch, int64_t i,
                 struct reader_document *d) WARN_UNUSED;
/* The template as a text; "" for prompt and completion. */
const char *chat_template_of(const struct chat *c);
#endif
