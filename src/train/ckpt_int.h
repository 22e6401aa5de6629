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
    int *by_name; /* indices of manifest.whole in name order */
};

/* ---- ckpt_chunk.c: checksums and bulk transport, in parallel over chunks ---- */

/* CRC-32C of a safetensors header of `file`, bound to its place like the chunks. */
uint32_t ckpt_chunk_header_crc(const struct ckpt_manifest *m, int file, const void *header, int64_t bytes);
/* Writes tensors [first, end), each tensor's `item.data`, at their offsets in `files` [m->file_count], of which theirs
 * are open, and sets crcs and hashes. */
struct ckpt_span {
    int first, end;
};
status ckpt_chunk_write(struct ckpt_manifest *m, struct io_file *files, struct ckpt_span span) WARN_UNUSED;
/* Reads the tensors listed in `which` into the items `to`, and checks every checksum. Chunks that no item needs are
 * skipped. `to` NULL: reads everything, only to check it, including the tensors' hashes. STATUS_CKPT on damage: do not
 * use the data. */
status ckpt_chunk_read(const struct checkpoint *c, const int *which, const struct ckpt_item *const *to,
                       int count) WARN_UNUSED;

/* ---- checkpoint_plan.c ---- */

/* What is to be written: the manifest, and the safetensors headers of its files. */
struct ckpt_plan {
    struct ckpt_manifest m;
    int64_t file_bytes;
    char **headers; /* [m.file_count] */
};
/* Fills p->m with the tensors in file order, and their files: each has those of one writer. Set before: m.run_id, step
 * and chunk_bytes, file_bytes. `me`: the writer whose tensors are in memory. */
status ckpt_plan_make(struct ckpt_plan *p, const struct ckpt_item *items, int count, int me) WARN_UNUSED;
void ckpt_plan_free(struct ckpt_plan *p);
/* The tensors and the files of a writer. */
struct ckpt_span ckpt_plan_tensors(const struct ckpt_plan *p, int writer);
struct ckpt_span ckpt_plan_files(const struct ckpt_plan *p, int writer);

/* ---- checkpoint.c: the steps of a save ---- */

/* Draws an identity of `digits` (at most 64) hex digits, which no other directory or save has. */
void ckpt_draw_id(const char *dir, int digits, char *id);
/* Draws the identity of a run directory at its first save, else reads it. */
status ckpt_run_id(const char *dir, char id[33]) WARN_UNUSED;
/* Bytes of files, with the manifest, and with what a file system needs besides. */
int64_t ckpt_bytes_needed(const struct ckpt_manifest *m, struct ckpt_span files);
/* What a save does while the disk is full. */
struct ckpt_room {
    const char *dir;
    int64_t step, need;
    int keep;
    ckpt_may_wait_fn *may_wait; /* NULL: it does not wait */
    bool (*ended)(void *ctx);   /* NULL: never; the job ends, which ends the wait */
    void (*ask)(void *ctx);     /* NULL: this process deletes old checkpoints; else it asks the one that does */
    void *ctx;
    double said;
};
status ckpt_check_space(const struct ckpt_room *r) WARN_UNUSED; /* fails when `need` is not free */
/* After a try that ended with `st`: whether to try again, having made room, or waited for it. If not, status_message is
 * that of the try. */
bool ckpt_try_again(struct ckpt_room *r, status st);
/* Deletes the oldest checkpoints that one of `step` will make unnecessary; returns how many. */
int ckpt_make_room(const char *dir, int64_t step, int keep);
/* Writes and syncs the files of a writer. */
status ckpt_write_files(struct ckpt_plan *p, const char *tmp, int writer) WARN_UNUSED;
status ckpt_write_manifest(const struct ckpt_plan *p, const char *tmp) WARN_UNUSED;
/* Moves the finished directory to its final name. */
status ckpt_place(const char *dir, const char *tmp, int64_t step) WARN_UNUSED;
/* After that: marks the run as saved, and deletes what `keep` does not need. Failures are warnings. */
void ckpt_saved(const char *run_dir, int64_t step, const json_t *meta, int keep);

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
