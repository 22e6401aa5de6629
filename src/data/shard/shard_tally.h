/* How often each id stands in a set: a histogram, from which the bytes of text follow too. */
#ifndef INGOT_DATA_SHARD_SHARD_TALLY_H
#define INGOT_DATA_SHARD_SHARD_TALLY_H
#include "base/status.h"
#include "data/shard/shard.h"
#include <stdint.h>

struct shard_tally {
    int64_t ids;     /* size of counts */
    int64_t *counts; /* [ids]: tokens with this id */
    int64_t beyond;  /* tokens with larger ids; their ids are in id_max alone */
    int64_t id_max;  /* -1: there were no tokens */
    uint32_t *parts; /* several counters per id, so that equal ids in a row do not wait for each other */
    int64_t unflushed;
};
/* For ids below vocab_size; 0 (unknown): for all that the set's type can hold, or the first 2^20. */
status shard_tally_open(struct shard_tally *t, const struct shard *s, int64_t vocab_size) WARN_UNUSED;
void shard_tally_close(struct shard_tally *t); /* a zeroed or closed one is fine */
/* Adds tokens [at, at+n) of a shard. Errors as shard_read. `counts` is complete after the next flush. */
status shard_tally_add(struct shard_tally *t, const struct shard *s, int64_t at, int64_t n,
                       int64_t vocab_size) WARN_UNUSED;
void shard_tally_flush(struct shard_tally *t);

/* All tokens of a set, on all threads; the error is that of the first bad token in the stream. On success:
 * shard_tally_close. */
status shard_tally_set(struct shard_tally *t, const struct shard_set *s, int64_t vocab_size) WARN_UNUSED;
#endif
