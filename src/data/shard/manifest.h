/* PREFIX_manifest.json: the description of the shards PREFIX_SPLIT_NNNNNN.bin. Byte by byte: docs/FORMATS.md.
 *
 * The manifest makes a build valid. `ingot data build` first completes every shard under a name that no reader opens,
 * then writes PREFIX_manifest.pending, renames the shards, and renames the pending manifest last. Shards next to a
 * pending manifest belong to an interrupted build. */
#ifndef INGOT_DATA_SHARD_MANIFEST_H
#define INGOT_DATA_SHARD_MANIFEST_H
#include "base/status.h"
#include "data/shard/shard.h"
#include <stdbool.h>

/* The version written: 2, or 3 with masks, which readers of version 2 refuse. Version 1, without inputs and indexes, can be
 * read too. */
enum { MANIFEST_VERSION = 2, MANIFEST_VERSION_MASKED = 3 };

struct manifest_shard {
    char *file;  /* name, without directory */
    char *split; /* "train" or "val" */
    int64_t tokens, documents, text_bytes;
    uint64_t xxh64; /* checksum of the token bytes */
    struct shard_blocks blocks; /* checksums of blocks of them; count 0: none, as older ingots write it */
    bool indexed;   /* the shard has an index file: data/shard/corpus_index.h */
    uint64_t index_xxh64;
    bool masked;    /* the shard has a mask file: data/shard/shard_mask.h */
    uint64_t mask_xxh64;
};
struct manifest_input {
    char *path; /* path as given to the build */
    int64_t bytes;
    uint64_t xxh64; /* checksum of the file as stored, compressed or not */
};
/* Documents whose text is byte-identical to an earlier one. */
struct manifest_duplicates {
    bool counted, removed;
    int64_t documents, text_bytes; /* counts of the input text */
    bool near_removed; /* documents that are like an earlier one were removed, too: */
    int64_t near_documents, near_text_bytes;
};
struct manifest {
    char tokenizer_dir[512]; /* as written: absolute, or relative to the manifest's directory; "": unknown */
    char tokenizer_hash[65];
    int64_t vocab_size;
    int32_t eot;
    enum eod eod;
    enum shard_format format; /* LLMC, NPY, MEGATRON */
    int width;
    int64_t skipped; /* documents skipped by --on-error skip */
    int64_t empty;   /* documents passed over because their text is empty or null */
    struct manifest_duplicates duplicates;
    struct manifest_shard *shards;
    int count;
    struct manifest_input *inputs;
    int input_count;
};
struct json_t; /* jansson's */
/* Converts to a JSON object (a new reference), and from one; `path` is for messages. */
struct json_t *manifest_to_json(const struct manifest *m);
status manifest_from_json(struct manifest *m, const char *path, const struct json_t *root) WARN_UNUSED;
/* STATUS_DATA names the file and the faulty key. After success the caller calls manifest_free. */
status manifest_parse(struct manifest *m, const char *path, const char *data, size_t bytes) WARN_UNUSED;
status manifest_read(struct manifest *m, const char *path) WARN_UNUSED;
/* Writes and commits `path`. */
status manifest_write(const struct manifest *m, const char *path) WARN_UNUSED;
void manifest_free(struct manifest *m);

/* Adds a shard; the strings are copied. */
struct manifest_shard *manifest_add(struct manifest *m, const char *file, const char *split);

/* Adds an input; the path is copied. */
struct manifest_input *manifest_add_input(struct manifest *m, const char *path);

/* Sums of one split. */
struct manifest_sum {
    int64_t shards, tokens, documents, text_bytes;
};
struct manifest_sum manifest_split(const struct manifest *m, const char *split);

/* Writes the prefix of a shard's path ("d/x" of "d/x_train_000000.bin", also .npy, .idx and .mask); returns false when the
 * path has another form. */
bool manifest_prefix(const char *shard_path, char *prefix, size_t size);
#endif
