/* checkpoint: saves and loads named logical tensors. A checkpoint is committed as a whole or not at all.
 *
 *   RUN/ckpt/step-00000500/manifest.json              written last; ends with its own hash
 *   RUN/ckpt/step-00000500/state-00000.safetensors    the data, readable by any safetensors reader
 *
 * Save: write into .tmp-STEP-PID. For each file: write, fsync, check close; manifest last; fsync the directory; rename;
 * fsync the parent. So a directory named step-* is complete. If the disk lost data all the same, the CRC-32C of each
 * chunk of 1 MiB shows it. Load: the newest directory whose manifest verifies. Skipped ones are logged. Formats byte by
 * byte: docs/FORMATS.md. */
#ifndef INGOT_TRAIN_CHECKPOINT_H
#define INGOT_TRAIN_CHECKPOINT_H
#include "base/status.h"
#include "tensor/dtype.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct ckpt_item;
/* Callbacks for a tensor that is not whole in memory. Saving: writes the tensor to `data`. Called once per tensor, in
 * the order of checkpoint_order. */
typedef status ckpt_fill_fn(void *ctx, const struct ckpt_item *item, void *data);
/* Loading: copies what it needs of the tensor's bytes [begin, end), and returns whether it needs any. With `data` NULL
 * it copies nothing; bytes that are not needed are then not read. Called by several threads at once. */
typedef bool ckpt_take_fn(void *ctx, const struct ckpt_item *item, const void *data, int64_t begin, int64_t end);
struct ckpt_item {              /* one logical tensor in memory */
    char name[128];             /* "master/layers.0.attn.qkv.weight", "m/...", "v/..." */
    dtype dt;
    int rank;
    int64_t shape[4];
    void *data;                 /* caller's; NULL: `fill` or `take` is called */
    ckpt_fill_fn *fill;
    ckpt_take_fn *take;
    void *ctx;
    bool again;                 /* `fill` may be called once more: the save can be repeated */
    int tag;                    /* caller's */
    bool optional;              /* loading: zeros if the checkpoint has no such tensor */
    int writer;                 /* saving: the rank that writes it (train/checkpoint_parts.h), else 0 */
    const struct ckpt_piece *piece; /* saving: what of a tensor this is (train/ckpt_pieces.h); NULL: all of it */
};

/* Writes ckpt/step-STEP below run_dir, and stores `meta` (NULL: none) in its manifest. A checkpoint of the same step is
 * replaced in one move. Then deletes older checkpoints beyond the newest `keep` >= 1 that open, but never the newest
 * sound one (train/health.h); a failed deletion is a warning. STATUS_IO when the disk is full or fails: what was
 * written is removed, older checkpoints are untouched. Names are unique and have only letters, digits and . _ - /. One
 * caller at a time per run directory (train/runlock.h).
 *
 * The save waits while the disk (or quota) is full: it deletes the oldest checkpoints that the new one makes
 * unnecessary, but never the last sound one, and tries again until there is space. `may_wait` (NULL: fail at once) is
 * called a few times per second; if it returns false, the wait ends with STATUS_IO. A save that cannot be repeated,
 * because a tensor's `fill` may not be called `again`, fails at once. */
typedef bool ckpt_may_wait_fn(void);
status checkpoint_save(const char *run_dir, int64_t step, const struct ckpt_item *items, int count,
                            const json_t *meta, int keep, ckpt_may_wait_fn *may_wait) WARN_UNUSED;

/* Sorts tensors into file order. */
void checkpoint_order(struct ckpt_item *items, int count);

/* A checkpoint whose manifest, file sizes and file headers have been checked. Its data are checked when they are
 * read. */
struct checkpoint;
/* Opens a checkpoint directory (step-*), or the newest checkpoint of a run directory that passes; the skipped ones are
 * logged as warnings with the reason. If there is no checkpoint: *found = false and STATUS_OK. If none passes:
 * STATUS_CKPT. A file system that fails is STATUS_IO and never leads to an older checkpoint. */
status checkpoint_open(struct checkpoint **c, const char *path, bool *found) WARN_UNUSED;
/* Reads the tensors named in items into their memory; every chunk that is read is checked. Name, dtype or shape that
 * differ, or damaged data: STATUS_CKPT; after damage the memory holds garbage. A missing tensor may be `optional`. */
status checkpoint_read(const struct checkpoint *c, struct ckpt_item *items, int count) WARN_UNUSED;
/* Opens and reads in one call, to resume: takes the newest checkpoint that opens and whose data pass, and skips damaged
 * ones with a warning. Tensors that do not match are an error at once, because an older checkpoint would not help.
 * `ranks` (NULL: one rank): `agree` is called after each attempt, and sets *damaged on all ranks if it is set on
 * one. */
struct ckpt_ranks {
    status (*agree)(void *ctx, bool *damaged);
    void *ctx;
};
status checkpoint_restore(struct checkpoint **c, const char *path, struct ckpt_item *items, int count,
                          const struct ckpt_ranks *ranks, bool *found) WARN_UNUSED;
void checkpoint_close(struct checkpoint *c); /* NULL is fine */

/* Step of the newest checkpoint, sound or not; -1: there is none. */
status checkpoint_newest(const char *run_dir, int64_t *step) WARN_UNUSED;
/* Step of the newest checkpoint that opens and is sound (train/health.h); -1: there is none. */
status checkpoint_newest_sound(const char *run_dir, int64_t *step) WARN_UNUSED;
/* As above, considering only steps <= `last`. */
status checkpoint_newest_sound_until(const char *run_dir, int64_t last, int64_t *step) WARN_UNUSED;
/* Path of the checkpoint of a step. If there is none: STATUS_CKPT, whose message lists the steps that exist. */
status checkpoint_at(const char *run_dir, int64_t step, char *path, size_t size) WARN_UNUSED;
/* Makes the checkpoint of `step` the newest of the run: from now on later ones are ignored. */
status checkpoint_go_back(const char *run_dir, int64_t step) WARN_UNUSED;
/* Removes those later checkpoints, and logs a line for each. Does nothing unless the run has gone back. */
status checkpoint_drop_later(const char *run_dir) WARN_UNUSED;

/* Makes a checkpoint without tensors, for a state that comes from elsewhere. `name` is its path; `meta` is borrowed. */
status checkpoint_of_meta(struct checkpoint **c, const char *name, json_t *meta) WARN_UNUSED;

int64_t checkpoint_step(const struct checkpoint *c);
const json_t *checkpoint_meta(const struct checkpoint *c); /* borrowed */
const char *checkpoint_path(const struct checkpoint *c);
int checkpoint_count(const struct checkpoint *c);
const struct ckpt_item *checkpoint_item(const struct checkpoint *c, int i); /* data NULL */
/* Whether the checkpoint has the hash of a tensor's bytes: not of one that is stored in pieces. The hash. */
bool checkpoint_item_hashed(const struct checkpoint *c, int i);
uint64_t checkpoint_item_hash(const struct checkpoint *c, int i);
int checkpoint_find(const struct checkpoint *c, const char *name);          /* index, or -1 */

/* Full check of one checkpoint directory: every byte of every file, and that it contains no other files. */
status checkpoint_verify(const char *dir) WARN_UNUSED;
#endif
