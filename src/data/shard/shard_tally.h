/* The frequency of each id in a set: a histogram, from which the bytes of text are computed too. */
#ifndef INGOT_DATA_SHARD_SHARD_TALLY_H
#define INGOT_DATA_SHARD_SHARD_TALLY_H
#include "base/status.h"
#include "data/shard/shard.h"
#include <stdint.h>

struct shard_tally {
    int64_t ids;     /* size of counts */
    int64_t *counts; /* [ids]: tokens with this id */
    int64_t beyond;  /* tokens with larger ids; only id_max records their ids */
    int64_t id_max;  /* -1: no tokens */
    uint32_t *parts; /* several counters per id, which removes dependencies between equal consecutive ids */
    int64_t unflushed;
};
/* Opens a tally for ids below vocab_size; 0 (unknown): for all ids of the set's type, or the first 2^20. */
status shard_tally_open(struct shard_tally *t, const struct shard *s, int64_t vocab_size) WARN_UNUSED;
void shard_tally_close(struct shard_tally *t); /* accepts a zeroed or closed tally */
/* Adds tokens [at, at+n) of a shard. Errors as shard_read. `counts` is complete after the next flush. */
status shard_tally_add(struct shard_tally *t, const struct shard *s, int64_t at, int64_t n,
                       int64_t vocab_size) WARN_UNUSED;
void shard_tally_flush(struct shard_tally *t);

/* Counts all tokens of a set on all threads. An error is that of the first bad token in the stream. After success the
 * caller calls shard_tally_close. */
status shard_tally_set(struct shard_tally *t, const struct shard_set *s, int64_t vocab_size) WARN_UNUSED;
#endif
