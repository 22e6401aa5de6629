/* safetensors files, single or sharded, as the Hugging Face libraries write and read them.
 *
 *   offset  bytes
 *   0       8      N, little-endian
 *   8       N      JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}, spaces at the end
 *   8 + N   rest   the tensors, row-major, without gaps; data_offsets count from here
 *
 * Reading is bounded and strict, because files may be hostile: header at most 100,000,000 bytes; no duplicate names,
 * holes, overlaps, overflow, or data after the last tensor; "__metadata__" maps text to text. Every violation is
 * STATUS_CKPT. */
#ifndef INGOT_MODEL_SAFETENSORS_H
#define INGOT_MODEL_SAFETENSORS_H
#include "base/status.h"
#include "tensor/dtype.h"
#include <stdint.h>

enum { SAFETENSORS_RANK_MAX = 8, SAFETENSORS_HEADER_MAX = 100000000 };

struct safetensor {
    const char *name;
    char type[12];      /* as in the file: "BF16", "F8_E4M3", ... */
    int dt;             /* enum dtype; -1: ingot does not compute with this type */
    int rank;           /* 0: a scalar */
    int64_t shape[SAFETENSORS_RANK_MAX];
    int64_t bytes;
    const void *data;   /* mapped; any alignment */
};

/* An open model: the tensors of all its files, sorted by name. */
struct safetensors;
/* path: a .safetensors file, a .index.json, or a directory with model.safetensors or model.safetensors.index.json.
 * The files are mapped: truncating one while it is open kills this process. STATUS_IO: a file cannot be read. */
status safetensors_open(struct safetensors **s, const char *path) WARN_UNUSED;
/* The same for one file in memory (borrowed); `what` names it in messages. */
status safetensors_open_memory(struct safetensors **s, const void *data, int64_t bytes,
                               const char *what) WARN_UNUSED;
void safetensors_close(struct safetensors *s); /* NULL is allowed */
int safetensors_count(const struct safetensors *s);
const struct safetensor *safetensors_item(const struct safetensors *s, int i);
/* NULL: not found. */
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name);

/* One tensor to write: `data` or, if that is NULL, fill(ctx, out) writes all its bytes when the writer reaches it. */
struct safetensors_source {
    const char *name;
    dtype dt;
    int rank;
    int64_t shape[SAFETENSORS_RANK_MAX];
    const void *data;
    status (*fill)(void *ctx, void *out);
    void *ctx;
};
/* Writes DIR/model.safetensors or, for more than `shard_bytes_max` of data, shards and then their index. Every file
 * is committed by rename. Sorts `sources` into file order. Removes files of an earlier export that would shadow this
 * one or mix with it. */
status safetensors_write(const char *dir, struct safetensors_source *sources, int count,
                         int64_t shard_bytes_max) WARN_UNUSED;

/* Building blocks of writers. File order: wide types first, then by name, which aligns all tensors. */
int safetensors_write_order(const void *a, const void *b); /* compares struct safetensors_source, for qsort */
/* The file up to the data (length field and JSON), malloc'd, padded until the data begin at a multiple of `align` >=
 * 8. */
status safetensors_write_header(const struct safetensors_source *sources, int count, int align, char **header,
                                int64_t *bytes) WARN_UNUSED;
#endif
