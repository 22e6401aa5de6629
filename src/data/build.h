/* Text files -> token shards: what `ingot data build` does.
 *
 * Documents are encoded in parallel and written in input order, so the output is the same bytes for any
 * number of threads. The validation part is chosen per document:
 *   HASH    a hash of the text is below val_fraction: stable when documents are added or reordered, and copies
 *           of a text fall together
 *   EVERY   every n-th document
 *   TAIL    documents that begin in the last val_fraction of the input bytes; if that point lies in the last
 *           document (plain text), it is divided at the next line end */
#ifndef INGOT_DATA_BUILD_H
#define INGOT_DATA_BUILD_H
#include "base/status.h"
#include "data/manifest.h"
#include "data/reader.h"
#include <stdbool.h>
#include <stdint.h>

enum build_val { BUILD_VAL_NONE, BUILD_VAL_HASH, BUILD_VAL_EVERY, BUILD_VAL_TAIL };
struct build_progress {
    int64_t bytes_done, bytes_total; /* of the input files */
    int64_t documents, tokens;
};
struct build_config {
    const char *const *inputs;
    int input_count;
    const char *prefix; /* shards are PREFIX_train_000000.bin, ... */
    const char *tokenizer_dir;
    struct reader_config reader;
    enum build_val val;
    double val_fraction; /* HASH, TAIL: in (0, 1) */
    int64_t val_every;   /* EVERY: 2 or more */
    enum eod eod;
    int64_t shard_tokens;
    bool skip_errors; /* leave out documents that cannot be read, and count them */
    bool force;       /* replace an existing corpus */
    void (*progress)(const struct build_progress *p, void *ctx);
    void *ctx;
};
struct build_report {
    struct manifest_sum train, val;
    int64_t skipped;
};
/* STATUS_DATA: a document that cannot be read, or an empty part; STATUS_CONFIG: the prefix is taken, or the
 * tokenizer has no end-of-text token. On failure no shard and no temporary stays behind. */
status build_run(const struct build_config *config, struct build_report *report) WARN_UNUSED;
#endif
