/* Converts text files to token shards, for `ingot data build`.
 *
 * One thread reads and one writes; between them documents are encoded in parallel. Documents are written in input
 * order. The output is therefore the same bytes for any number of threads, and after an interruption. Memory: 16 MiB
 * and a little per thread, some batches of 4 MiB with their ids, the longest document twice, and the table of
 * duplicates. The validation split is chosen per document:
 *   HASH    a hash of the text is below val_fraction: stable when documents are added or reordered, and copies
 *           of a text are in the same split
 *   EVERY   every n-th document
 *   TAIL    documents that begin in the last val_fraction of the input bytes; if that point is in the last
 *           document (plain text), the document is divided at the next line end */
#ifndef INGOT_DATA_BUILD_BUILD_H
#define INGOT_DATA_BUILD_BUILD_H
#include "base/status.h"
#include "data/build/chat.h"
#include "data/build/dedup.h"
#include "data/shard/manifest.h"
#include "data/read/reader.h"
#include <stdbool.h>
#include <stdint.h>

enum build_dedup {
    BUILD_DEDUP_REPORT, /* count documents whose text occurred before */
    BUILD_DEDUP_EXACT,  /* count and remove them: the first one stays */
    BUILD_DEDUP_NEAR,   /* remove also documents that are like one that stays: data/build/dedup.h */
    BUILD_DEDUP_OFF,    /* no check: saves 20 to 25 bytes of memory per document */
};
enum build_val { BUILD_VAL_NONE, BUILD_VAL_HASH, BUILD_VAL_EVERY, BUILD_VAL_TAIL };
struct build_progress {
    int64_t bytes_done, bytes_total; /* bytes of the input files */
    int64_t bytes_before;            /* bytes done by the build that this one resumes */
    int64_t documents, tokens, tokens_before;
};
struct build_config {
    const char *const *inputs;
    int input_count;
    const int *words; /* [input_count], ascending: the word of the user that each input is of; NULL: one each */
    const char *prefix; /* shards are PREFIX_train_000000.bin, ... */
    const char *tokenizer_dir; /* NULL: the inputs are token ids */
    int64_t vocab_size;        /* for token ids without a tokenizer; 0: the value of the shards' manifests */
    /* default {.eot = EOT_AUTO, .eod = EOD_AUTO}; describes inputs that are shards. A .type makes every input a
     * shard. Without a tokenizer .eot also applies to the output */
    struct shard_hints hints;
    enum shard_format format;  /* output format: LLMC, NPY, MEGATRON */
    enum build_dedup dedup;
    bool near_report; /* report near duplicates: data/build/dedup.h */
    struct reader_config reader;
    struct chat_config chat; /* {0}: documents are texts */
    enum build_val val;
    double val_fraction; /* HASH, TAIL: in (0, 1) */
    int64_t val_every;   /* EVERY: 2 or more */
    enum eod eod;
    int64_t shard_tokens;
    bool skip_errors; /* skip and count documents that cannot be read; a word of which none can be read still fails */
    bool force;       /* replace an existing corpus; discard an interrupted build of other inputs or settings */
    double sync_s;    /* maximum time of work lost by a kill; 0: 10 s; negative: a durable point after every batch */
    bool (*stop)(void *ctx); /* called between batches; true stops the build; NULL: never */
    void (*progress)(const struct build_progress *p, void *ctx);
    void *ctx;
};
struct build_report {
    struct manifest_sum train, val;
    int64_t skipped, empty;
    struct manifest_duplicates duplicates;
    struct dedup_near_report near; /* set with near_report */
};
/* Runs a build. STATUS_DATA: a document that cannot be read, or an empty split. STATUS_CONFIG: the prefix is in use,
 * the tokenizer has no end-of-text token, or an interrupted build of this prefix had other inputs or settings.
 * STATUS_STOPPED: config->stop returned true.
 *
 * After a failure or a kill the old corpus is unchanged. If PREFIX_build.journal exists, the partial build is kept
 * and the same call resumes it; the journal is written every sync_s seconds and before the corpus becomes visible.
 * Otherwise no files are left. */
status build_run(const struct build_config *config, struct build_report *report) WARN_UNUSED;
#endif
