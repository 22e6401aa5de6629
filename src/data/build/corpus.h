/* The output of a build: the shards of both splits, their indexes and their manifest, visible all at once or not
 * at all.
 *
 *   while building    PREFIX_train_000000.bin.open    the shard that is being written, and .idx.open
 *                     PREFIX_train_000000.bin.part    finished shards; no pattern *.bin matches the name
 *   corpus_commit     PREFIX_manifest.pending         from here on readers refuse the prefix
 *                     the old manifest goes, new shards get their names, old ones that are left go
 *                     PREFIX_manifest.json            the pending manifest renamed: valid
 *
 * A process killed before the pending manifest leaves the old corpus, and files from which corpus_open goes on
 * when it is told what corpus_sync last made durable. One killed after it leaves a prefix that readers refuse and
 * corpus_publish finishes. */
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

/* A corpus so far: the rows of both splits, and whether the last row of each is of a shard that goes on. */
struct corpus_state {
    struct manifest rows;
    bool open[CORPUS_COUNT];
};
void corpus_state_free(struct corpus_state *s);

struct corpus_config {
    const char *prefix;          /* directories are made */
    enum shard_format format;    /* LLMC, NPY, MEGATRON */
    int64_t vocab_size;          /* decides the width of a token */
    const uint32_t *token_bytes; /* [vocab_size] bytes of text of each id; end-of-text: 0. NULL: unknown. Borrowed */
    int64_t shard_tokens;        /* a shard is full at exactly so many tokens and documents cross; Megatron's ends with
                                    the document that reaches them */
    bool force;                  /* replace an existing corpus */
    const struct corpus_state *from; /* NULL: begin; files that another build left are removed */
};
struct corpus;
/* STATUS_CONFIG when the prefix has a corpus and force is off; STATUS_DATA when the files do not have what `from`
 * says. */
status corpus_open(struct corpus **c, const struct corpus_config *config) WARN_UNUSED;

/* One document with its end-of-text token, or a part of one: parts follow each other. */
struct corpus_piece {
    enum corpus_split split;
    const int32_t *ids;
    int64_t count, text_bytes; /* the sum of token_bytes of ids */
    bool begins, ends;
};
status corpus_add(struct corpus *c, const struct corpus_piece *piece) WARN_UNUSED;
/* So far; `shards` counts finished ones. */
struct manifest_sum corpus_sum(const struct corpus *c, enum corpus_split split);
/* Between documents: all that was added is on disk when it returns, and *state says what there is. The caller frees
 * it. */
status corpus_sync(struct corpus *c, struct corpus_state *state) WARN_UNUSED;

/* Fills m's width, format and shards (the caller has filled the rest, and frees it) and publishes. Closes, whether or
 * not it succeeds. */
status corpus_commit(struct corpus **c, struct manifest *m) WARN_UNUSED;
void corpus_leave(struct corpus **c);   /* closes; the files stay, for corpus_open with `from` */
void corpus_abandon(struct corpus **c); /* closes and removes them */

/* What a build of `prefix` left behind. */
enum corpus_remains { CORPUS_NOTHING, CORPUS_PARTS, CORPUS_PENDING, CORPUS_WHOLE /* no parts, and a manifest */ };
status corpus_look(const char *prefix, enum corpus_remains *remains) WARN_UNUSED;
/* From PENDING to WHOLE; *m as it was published. */
status corpus_publish(const char *prefix, struct manifest *m) WARN_UNUSED;
#endif
