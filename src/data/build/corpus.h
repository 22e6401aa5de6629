/* The output of a build: the shards of both splits, their indexes, masks and manifest. They become visible all at once
 * or not at all.
 *
 *   while building    PREFIX_train_000000.bin.open    the shard being written, and .idx.open
 *                     PREFIX_train_000000.bin.part    finished shards; no pattern *.bin matches the name
 *   corpus_commit     PREFIX_manifest.pending         from here on readers reject the prefix
 *                     the old manifest is removed, new shards get their names, remaining old ones are removed
 *                     PREFIX_manifest.json            the pending manifest renamed: valid
 *
 * A process killed before the pending manifest leaves the old corpus, and files from which corpus_open resumes, given
 * the state that corpus_sync last made durable. A process killed after it leaves a prefix that readers reject and
 * corpus_publish completes. */
#ifndef INGOT_DATA_BUILD_CORPUS_H
#define INGOT_DATA_BUILD_CORPUS_H
#include "base/status.h"
#include "data/shard/manifest.h"
#include <stdbool.h>
#include <stdint.h>

#define CORPUS_WORDS(X) X(TRAIN, "train") X(VAL, "val")
enum corpus_split {
#define X(value, word) CORPUS_##value,
    CORPUS_WORDS(X)
#undef X
        CORPUS_COUNT
};

/* State of a partial corpus: the rows of both splits, and whether the last row of each belongs to an unfinished
 * shard. */
struct corpus_state {
    struct manifest rows;
    bool open[CORPUS_COUNT];
};
void corpus_state_free(struct corpus_state *s);

struct corpus_config {
    const char *prefix;          /* missing directories are created */
    enum shard_format format;    /* LLMC, NPY, MEGATRON */
    int64_t vocab_size;          /* determines the width of a token */
    const uint32_t *token_bytes; /* [vocab_size] bytes of text of each id; end-of-text: 0. NULL: unknown. Borrowed */
    /* tokens of a full shard: exact, and documents span shards; a Megatron shard ends with the document that reaches
     * it */
    int64_t shard_tokens;
    bool masked;                 /* each piece has targets, and each shard a mask (data/shard/shard_mask.h) */
    bool force;                  /* replace an existing corpus */
    const struct corpus_state *from; /* NULL: start a new corpus and remove files left by another build */
};
struct corpus;
/* STATUS_CONFIG when the prefix has a corpus and force is off; STATUS_DATA when the files do not match `from`. */
status corpus_open(struct corpus **c, const struct corpus_config *config) WARN_UNUSED;

/* One document with its end-of-text token, or a part of one; parts of a document are consecutive. */
struct corpus_piece {
    enum corpus_split split;
    const int32_t *ids;
    const uint8_t *targets;    /* [count] 1: the token is a target; for a masked corpus */
    int64_t count, text_bytes; /* the sum of token_bytes of ids */
    bool begins, ends;
};
status corpus_add(struct corpus *c, const struct corpus_piece *piece) WARN_UNUSED;
/* Sums so far; `shards` counts finished ones. */
struct manifest_sum corpus_sum(const struct corpus *c, enum corpus_split split);
/* Call it between documents: makes all added data durable and writes the state to *state, which the caller frees. */
status corpus_sync(struct corpus *c, struct corpus_state *state) WARN_UNUSED;

/* Fills in width, format and shards of m (the caller fills in the rest, and frees it) and publishes the corpus.
 * Closes on success and on failure. */
status corpus_commit(struct corpus **c, struct manifest *m) WARN_UNUSED;
void corpus_leave(struct corpus **c);   /* closes and keeps the files for corpus_open with `from` */
void corpus_abandon(struct corpus **c); /* closes and removes the files */

/* Files left by a build of `prefix`. */
enum corpus_remains { CORPUS_NOTHING, CORPUS_PARTS, CORPUS_PENDING, CORPUS_WHOLE /* a manifest and no parts */ };
status corpus_look(const char *prefix, enum corpus_remains *remains) WARN_UNUSED;
/* Completes PENDING to WHOLE; *m is the published manifest. */
status corpus_publish(const char *prefix, struct manifest *m) WARN_UNUSED;
#endif
