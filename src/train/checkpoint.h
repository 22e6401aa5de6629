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
/* For a tensor that is not whole in memory. Saving: writes it to `data`. Called once per tensor, in the order of
 * checkpoint_order. */
typedef status ckpt_fill_fn(void *ctx, const struct ckpt_item *item, void *data);
/* Loading: copies what it needs of bytes [begin, end) of the tensor; returns whether it needs any. With `data` NULL it
 * only returns that, and bytes that are not needed are not read. Called by several threads at once. */
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
};

/* Writes ckpt/step-STEP below run_dir (one of the same step is replaced in one move), then deletes older
 * ones beyond the newest `keep` >= 1 that open, but never the newest one of a run that learned (train/health.h); that a
 * deletion failed is a warning. `meta` (NULL: none) is
 * stored in the manifest. STATUS_IO when the disk is full or fails: what was written is removed, older
 * checkpoints are untouched. Names: letters, digits and . _ - / only, unique. One caller at a time per run
 * directory (train/runlock.h).
 * A full disk (also a quota) is waited for: the oldest checkpoints go that will not be needed once this one is
 * there, but never the last sound one; then the save is tried again until there is space. `may_wait` (NULL: fail)
 * is called a few times per second; false ends the wait with STATUS_IO. A save of tensors whose `fill` cannot be called
 * `again` cannot be repeated, and fails. */
typedef bool ckpt_may_wait_fn(void);
status checkpoint_save(const char *run_dir, int64_t step, const struct ckpt_item *items, int count,
                            const json_t *meta, int keep, ckpt_may_wait_fn *may_wait) WARN_UNUSED;

/* Sorts tensors into file order. */
void checkpoint_order(struct ckpt_item *items, int count);

/* A checkpoint whose manifest, file sizes and file headers have been checked; the data are checked as they
 * are read. */
struct checkpoint;
/* path: a checkpoint directory (step-*), or a run directory: the newest that passes; the skipped ones are
 * logged as warnings with the reason. No checkpoint at all: *found = false and STATUS_OK. None that passes:
 * STATUS_CKPT. A file system that fails is STATUS_IO and never leads to an older checkpoint. */
status checkpoint_open(struct checkpoint **c, const char *path, bool *found) WARN_UNUSED;
/* Reads the tensors named in items into their memory; every chunk that is read is checked. Name, dtype or shape that
 * differ, or damaged data: STATUS_CKPT; after damage the memory holds garbage. A missing tensor may be `optional`. */
status checkpoint_read(const struct checkpoint *c, struct ckpt_item *items, int count) WARN_UNUSED;
/* Both in one, for resuming: the newest checkpoint that opens and whose data pass; damaged ones are skipped with a
 * warning. Tensors that do not match are an error at once: an older checkpoint would not help. `ranks` (NULL: one
 * rank): `agree` is called after each attempt, and sets *damaged on all ranks if it is set on one. */
struct ckpt_ranks {
    status (*agree)(void *ctx, bool *damaged);
    void *ctx;
};
status checkpoint_restore(struct checkpoint **c, const char *path, struct ckpt_item *items, int count,
                          const struct ckpt_ranks *ranks, bool *found) WARN_UNUSED;
void checkpoint_close(struct checkpoint *c); /* NULL is fine */

/* The newest step that a checkpoint is there of, sound or not; -1: there is none. */
status checkpoint_newest(const char *run_dir, int64_t *step) WARN_UNUSED;
/* The newest step whose checkpoint opens and was saved by a run that learned (train/health.h); -1: there is none. */
status checkpoint_newest_sound(const char *run_dir, int64_t *step) WARN_UNUSED;
/* The same of those not behind step `last`. */
status checkpoint_newest_sound_until(const char *run_dir, int64_t last, int64_t *step) WARN_UNUSED;
/* Path of the checkpoint of a step; STATUS_CKPT with the steps that are there when it is not. */
status checkpoint_at(const char *run_dir, int64_t step, char *path, size_t size) WARN_UNUSED;
/* From now on the newest checkpoint of the run is that of `step`, as if later ones were not there. */
status checkpoint_go_back(const char *run_dir, int64_t step) WARN_UNUSED;
/* Removes these later ones, with a line for each; nothing to do unless the run has gone back. */
status checkpoint_drop_later(const char *run_dir) WARN_UNUSED;

/* One without tensors, for a state that comes from elsewhere: `name` is its path, `meta` is borrowed. */
status checkpoint_of_meta(struct checkpoint **c, const char *name, json_t *meta) WARN_UNUSED;

int64_t checkpoint_step(const struct checkpoint *c);
const json_t *checkpoint_meta(const struct checkpoint *c); /* borrowed */
const char *checkpoint_path(const struct checkpoint *c);
int checkpoint_count(const struct checkpoint *c);
const struct ckpt_item *checkpoint_item(const struct checkpoint *c, int i); /* data NULL */
uint64_t checkpoint_item_hash(const struct checkpoint *c, int i); /* of the bytes */
int checkpoint_find(const struct checkpoint *c, const char *name);          /* index, or -1 */

/* Full check of one checkpoint directory: every byte of every file, and that it contains no other files. */
status checkpoint_verify(const char *dir) WARN_UNUSED;
#endif
