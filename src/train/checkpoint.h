/* Checkpoints: logical tensors with names, committed as a whole or not at all.
 *
 *   RUN/ckpt/step-00000500/manifest.json       written last, fsynced; lists every tensor, chunk checksum, file size; carries its own checksum
 *   RUN/ckpt/step-00000500/state-00000.safetensors    the data, readable by any safetensors reader
 *
 * Save: everything goes into .tmp-STEP-PID; each file: write, fsync, close checked; manifest last; fsync directory; rename; fsync
 * parent. So a directory named step-* is complete, or the disk lied, which the CRC-32C of every 16 MiB chunk shows.
 * Load: newest directory whose manifest verifies; what is skipped is said. Formats byte by byte: docs/FORMATS.md. */
#ifndef INGOT_TRAIN_CHECKPOINT_H
#define INGOT_TRAIN_CHECKPOINT_H
#include "base/status.h"
#include "tensor/dtype.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct ckpt_item {              /* one logical tensor in memory */
    char name[128];             /* "master/layers.0.attn.qkv.weight", "m/...", "v/..." */
    dtype dt;
    int rank;
    int64_t shape[4];
    void *data;                 /* caller's */
};

/* Writes ckpt/step-STEP below run_dir, then deletes all but the newest `keep` (never the one just written). `meta` is stored in the
 * manifest under "meta" (borrowed). STATUS_IO when the disk is full: the temporary directory is removed, older checkpoints are untouched. */
status checkpoint_save(const char *run_dir, int64_t step, const struct ckpt_item *items, int count, const json_t *meta, int keep) WARN_UNUSED;

/* A verified checkpoint. */
struct checkpoint;
/* path: a checkpoint directory (step-*), or a run directory: the newest that verifies, the skipped ones are logged as warnings with the reason.
 * STATUS_CKPT when there is none that verifies; *found = false and STATUS_OK when there is no checkpoint at all. */
status checkpoint_open(struct checkpoint **c, const char *path, bool *found) WARN_UNUSED;
int64_t checkpoint_step(const struct checkpoint *c);
const json_t *checkpoint_meta(const struct checkpoint *c);
const char *checkpoint_path(const struct checkpoint *c);
int checkpoint_count(const struct checkpoint *c);
/* Description of tensor i (data NULL). */
const struct ckpt_item *checkpoint_item(const struct checkpoint *c, int i);
/* Reads the tensors named in items into their memory; every chunk is checked. Name, dtype or shape that differ: STATUS_CKPT with both. */
status checkpoint_read(const struct checkpoint *c, struct ckpt_item *items, int count) WARN_UNUSED;
void checkpoint_close(struct checkpoint *c);

/* Full check of one checkpoint directory: `ingot ckpt verify`. */
status checkpoint_verify(const char *dir) WARN_UNUSED;
#endif
