/* The output of a build: the shards of both splits and their manifest, visible all at once or not at all.
 *
 *   while building    PREFIX_train_000000.bin.part    finished shards; no pattern *.bin matches the name
 *   corpus_commit     PREFIX_manifest.pending         from here on readers refuse the prefix
 *                     the old manifest and the old shards go, the new ones get their names
 *                     PREFIX_manifest.json            the pending manifest renamed: valid
 *
 * A process killed at any moment leaves the old corpus, or the new one, or one that readers refuse and the
 * next build replaces. */
#ifndef INGOT_DATA_CORPUS_H
#define INGOT_DATA_CORPUS_H
#include "base/status.h"
#include "data/manifest.h"
#include <stdbool.h>
#include <stdint.h>

#define CORPUS_WORDS(X) X(TRAIN, "train") X(VAL, "val")
enum corpus_split {
#define X(value, word) CORPUS_##value,
    CORPUS_WORDS(X)
#undef X
        CORPUS_COUNT
};

struct corpus_config {
    const char *prefix;          /* directories are made */
    int64_t vocab_size;          /* decides the width of a token */
    const uint32_t *token_bytes; /* [vocab_size] bytes of text of each id; end-of-text: 0. Borrowed */
    int64_t shard_tokens;        /* a shard is full at exactly so many tokens; documents may cross */
    bool force;                  /* replace an existing corpus */
};
struct corpus;
/* STATUS_CONFIG when the prefix has a corpus and force is off. */
status corpus_open(struct corpus **c, const struct corpus_config *config) WARN_UNUSED;
/* One document, with its end-of-text token. */
status corpus_add(struct corpus *c, enum corpus_split split, const int32_t *ids, int64_t count) WARN_UNUSED;
/* So far; `shards` counts finished ones. */
struct manifest_sum corpus_sum(const struct corpus *c, enum corpus_split split);
/* Fills m's width and shards (the caller has filled the rest, and frees it). Closes, whether or not it
 * succeeds. */
status corpus_commit(struct corpus **c, struct manifest *m) WARN_UNUSED;
void corpus_abandon(struct corpus **c);
#endif
