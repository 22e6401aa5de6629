/* Shared by the files of the shard module: one parser per format, over untrusted bytes. */
#ifndef INGOT_DATA_SHARD_SHARD_INT_H
#define INGOT_DATA_SHARD_SHARD_INT_H
#include "data/shard/shard.h"
#include <stdint.h>
#include <string.h>

/* Each parser gets a shard with path (and index) set and the bytes of the file, and sets all fields that the file
 * defines. Sizes must match exactly, else STATUS_DATA; nothing is read beyond `bytes`. */
status shard_llmc_parse(struct shard *s, const uint8_t *data, int64_t bytes) WARN_UNUSED;
status shard_llmq_parse(struct shard *s, const uint8_t *data, int64_t bytes) WARN_UNUSED;
status shard_npy_parse(struct shard *s, const uint8_t *data, int64_t bytes) WARN_UNUSED;
status shard_megatron_parse(struct shard *s, const uint8_t *data, int64_t bytes) WARN_UNUSED;

enum { SHARD_LLMC_HEADER = 1024, SHARD_NPY_HEADER = 128 /* size as written by ingot */ };
/* The header of a finished npy file. */
void shard_npy_header(int64_t count, int width, char out[SHARD_NPY_HEADER]);
/* Writes and commits NAME.idx for documents of these lengths in tokens. */
status shard_megatron_index(const char *path, int width, const int32_t *lengths, int64_t count) WARN_UNUSED;
/* Calls `each` with the length of every document in order, including empty ones, after checking that the index is
 * consistent with itself and the file. */
typedef status shard_length_fn(void *ctx, int64_t tokens);
status shard_megatron_walk(const struct shard *s, shard_length_fn *each, void *ctx) WARN_UNUSED;

/* STATUS_DATA unless the part of llm.c's header that means nothing is zero, as ingot writes it. */
status shard_llmc_reserved(const struct shard *s) WARN_UNUSED;

/* Opens the mask beside the shard (data/shard/shard_mask.h). STATUS_DATA: damaged, of another shard, or with another
 * checksum than `xxh64`. */
status shard_open_mask(struct shard *s, uint64_t xxh64) WARN_UNUSED;
/* Opens the index of a shard; it must match `documents` and `index_xxh64` of the shard's manifest. */
struct corpus_index;
status shard_index_open(struct corpus_index *x, const struct shard *s) WARN_UNUSED;

/* Copies n ids of a type to int32 and returns the largest as an unsigned number; negative ids are therefore large. */
uint64_t shard_copy(enum shard_type t, const uint8_t *from, int64_t n, int32_t *out);
/* Finds `id` in [0, n): returns the number of occurrences, and writes the positions of the first `room` of them to
 * `at`. */
int64_t shard_find_id(enum shard_type t, const uint8_t *from, int64_t n, int32_t id, int64_t *at, int64_t room);

int shard_type_bytes(enum shard_type t);
void shard_set_type(struct shard *s, enum shard_type t); /* sets type and width */

static inline int32_t shard_i32(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline int64_t shard_i64(const uint8_t *p)
{
    int64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
#endif
