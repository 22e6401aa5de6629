/* Text files -> token shards: what `ingot data build` does.
 *
 * One thread reads, one writes, and between them documents are encoded in parallel; they are written in input
 * order, so the output is the same bytes for any number of threads, and for a build that was interrupted. Memory:
 * 16 MiB and a little per thread, some batches of 4 MiB with their ids, the longest document twice, and what
 * duplicates cost. The validation part is chosen per document:
 *   HASH    a hash of the text is below val_fraction: stable when documents are added or reordered, and copies
 *           of a text fall together
 *   EVERY   every n-th document
 *   TAIL    documents that begin in the last val_fraction of the input bytes; if that point lies in the last
 *           document (plain text), it is divided at the next line end */
#ifndef INGOT_DATA_BUILD_BUILD_H
#define INGOT_DATA_BUILD_BUILD_H
#include "base/status.h"
#include "data/build/dedup.h"
#include "data/shard/manifest.h"
#include "data/read/reader.h"
#include <stdbool.h>
#include <stdint.h>

enum build_dedup {
    BUILD_DEDUP_REPORT, /* count documents whose text was there before */
    BUILD_DEDUP_EXACT,  /* and leave them out: the first one stays */
    BUILD_DEDUP_OFF,    /* do not look: saves 20 to 25 bytes of memory per document */
};
enum build_val { BUILD_VAL_NONE, BUILD_VAL_HASH, BUILD_VAL_EVERY, BUILD_VAL_TAIL };
struct build_progress {
    int64_t bytes_done, bytes_total; /* of the input files */
    int64_t bytes_before;            /* done by the build that this one goes on with */
    int64_t documents, tokens, tokens_before;
};
struct build_config {
    const char *const *inputs;
    int input_count;
    const char *prefix; /* shards are PREFIX_train_000000.bin, ... */
    const char *tokenizer_dir; /* NULL: the inputs are token ids */
    int64_t vocab_size;        /* of token ids without a tokenizer; 0: as the shards' manifests say */
    struct shard_hints hints;  /* {.eot = EOT_AUTO, .eod = EOD_AUTO}, or of inputs that are shards; .type makes every input one; .eot also of the output,
                                  where there is no tokenizer */
    enum shard_format format;  /* of the output: LLMC, NPY, MEGATRON */
    enum build_dedup dedup;
    bool near_report; /* of near duplicates: data/build/dedup.h */
    struct reader_config reader;
    enum build_val val;
    double val_fraction; /* HASH, TAIL: in (0, 1) */
    int64_t val_every;   /* EVERY: 2 or more */
    enum eod eod;
    int64_t shard_tokens;
    bool skip_errors; /* leave out documents that cannot be read, and count them */
    bool force;       /* replace an existing corpus; leave an interrupted build of other inputs or settings */
    double sync_s;    /* work that a kill may cost; 0: 10 s; below: a durable point behind every batch */
    bool (*stop)(void *ctx); /* asked between batches; NULL: never */
    void (*progress)(const struct build_progress *p, void *ctx);
    void *ctx;
};
struct build_report {
    struct manifest_sum train, val;
    int64_t skipped;
    struct manifest_duplicates duplicates;
    struct dedup_near_report near; /* with near_report */
};
/* STATUS_DATA: a document that cannot be read, or an empty part; STATUS_CONFIG: the prefix is taken, or the
 * tokenizer has no end-of-text token, or an interrupted build of this prefix had other inputs or settings;
 * STATUS_STOPPED: config->stop said so. After a failure or a kill the old corpus is there as it was. What was built
 * stays, and the same call goes on from it, when PREFIX_build.journal is there; it is written every sync_s seconds
 * and before the corpus becomes visible. Otherwise nothing stays behind. */
status build_run(const struct build_config *config, struct build_report *report) WARN_UNUSED;
#endif
