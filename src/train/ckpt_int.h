/* ckpt_int: shared by the source files of checkpoints (checkpoint.c, checkpoint_read.c, ckpt_chunk.c). */
#ifndef INGOT_TRAIN_CKPT_INT_H
#define INGOT_TRAIN_CKPT_INT_H
#include "base/io.h"
#include "train/ckpt_manifest.h"

enum { CKPT_PATH_MAX = 1024 };
/* A file of several tensors holds no more: several files are written in parallel. */
#define CKPT_FILE_BYTES ((int64_t)4 << 30)

struct checkpoint {
    char path[CKPT_PATH_MAX];
    struct ckpt_manifest manifest;
    int *by_name; /* indices of tensors in name order */
};

/* ---- ckpt_chunk.c: checksums and bulk transport, in parallel over chunks ---- */

/* CRC-32C of a safetensors header of `file`, bound to its place like the chunks. */
uint32_t ckpt_chunk_header_crc(const struct ckpt_manifest *m, int file, const void *header, int64_t bytes);
/* Writes all tensors, each tensor's `item.data`, at their offsets in the open `files` [m->file_count], and sets crcs
 * and hashes. */
status ckpt_chunk_write(struct ckpt_manifest *m, struct io_file *files) WARN_UNUSED;
/* Reads the tensors listed in `which` into the items `to`, and checks every checksum. Chunks that no item needs are
 * skipped. `to` NULL: reads everything, only to check it, including the tensors' hashes. STATUS_CKPT on damage: do not
 * use the data. */
status ckpt_chunk_read(const struct checkpoint *c, const int *which, const struct ckpt_item *const *to,
                       int count) WARN_UNUSED;

/* ---- checkpoint.c ---- */

/* checkpoint_save with chunks and files of other sizes: for tests. */
struct ckpt_cut {
    int64_t chunk_bytes, file_bytes;
};
status ckpt_save_cut(const char *run_dir, int64_t step, const struct ckpt_item *items, int count,
                     const json_t *meta, int keep, struct ckpt_cut cut) WARN_UNUSED;

/* ---- checkpoint_read.c ---- */

/* Steps of the directories named step-N in `dir`, newest first; malloc'd. */
status ckpt_steps(const char *dir, int64_t **steps, int *count) WARN_UNUSED;
/* The step that the run has gone back to (ckpt/back). */
#define CKPT_NOT_BACK INT64_MAX
status ckpt_back(const char *dir, int64_t *step) WARN_UNUSED;
/* Opens one checkpoint directory. */
status ckpt_open_dir(struct checkpoint **c, const char *path) WARN_UNUSED;
void ckpt_step_path(char out[CKPT_PATH_MAX], const char *dir, int64_t step);
#endif
