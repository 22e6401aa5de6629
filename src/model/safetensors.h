/* safetensors files, single or sharded, as the Hugging Face libraries write and read them.
 *
 *   offset  bytes
 *   0       8      N, little-endian
 *   8       N      JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}, spaces
 * at the end
 *   8 + N   rest   the tensors, row-major, without gaps; data_offsets count from here
 *
 * Reading is bounded and strict (files come from strangers): header at most 100,000,000 bytes; no duplicate
 * names, holes, overlaps, overflow, or data beyond the last tensor; "__metadata__" maps text to text.
 * Everything wrong is STATUS_CKPT. */
#ifndef INGOT_MODEL_SAFETENSORS_H
#define INGOT_MODEL_SAFETENSORS_H
#include "base/status.h"
#include "tensor/dtype.h"
#include <stdint.h>

enum { SAFETENSORS_RANK_MAX = 8, SAFETENSORS_HEADER_MAX = 100000000 };

struct safetensor {
    const char *name;
    char type[12];      /* as the file spells it: "BF16", "F8_E4M3", ... */
    int dt;             /* enum dtype, or -1 when ingot does not compute with this type */
    int rank;           /* 0: a scalar */
    int64_t shape[SAFETENSORS_RANK_MAX];
    int64_t bytes;
    const void *data;   /* mapped; any alignment */
};

/* An open model: the tensors of all its files in name order. */
struct safetensors;
/* path: a .safetensors file, a .index.json, or a directory with model.safetensors or
 * model.safetensors.index.json. The files are mapped: whoever shortens one while it is open kills this
 * process. STATUS_IO when a file cannot be read. */
status safetensors_open(struct safetensors **s, const char *path) WARN_UNUSED;
/* The same for one file in memory (borrowed); `what` names it in messages. */
status safetensors_open_memory(struct safetensors **s, const void *data, int64_t bytes,
                               const char *what) WARN_UNUSED;
void safetensors_close(struct safetensors *s); /* NULL is fine */
int safetensors_count(const struct safetensors *s);
const struct safetensor *safetensors_item(const struct safetensors *s, int i);
/* NULL: there is none. */
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name);

/* One tensor to write: `data`, or, where that is NULL, fill(ctx, out) makes all its bytes when their turn
 * comes. */
struct safetensors_source {
    const char *name;
    dtype dt;
    int rank;
    int64_t shape[SAFETENSORS_RANK_MAX];
    const void *data;
    status (*fill)(void *ctx, void *out);
    void *ctx;
};
/* Writes DIR/model.safetensors, or, when there are more than `shard_bytes_max` of data, shards with their
 * index last. Every file is committed by rename. Sorts `sources` into file order. Files of an earlier export
 * that would shadow or mix with this one are removed. */
status safetensors_write(const char *dir, struct safetensors_source *sources, int count,
                         int64_t shard_bytes_max) WARN_UNUSED;

/* The pieces of which writers are made. Order in a file: wide types first, then by name, so that all tensors
 * are aligned. */
int safetensors_write_order(const void *a, const void *b); /* of struct safetensors_source, for qsort */
/* The file up to the data (length field and JSON), malloc'd, padded so that the data begin at a multiple of
 * `align` >= 8. */
status safetensors_write_header(const struct safetensors_source *sources, int count, int align, char **header,
                                int64_t *bytes) WARN_UNUSED;
#endif
