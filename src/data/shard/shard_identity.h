/* What a set of shards holds, as one hash. */
#ifndef INGOT_DATA_SHARD_SHARD_IDENTITY_H
#define INGOT_DATA_SHARD_SHARD_IDENTITY_H
#include "data/shard/shard.h"

/* SHA-256 of what the set holds, in the order of its shards and whatever their names and formats: by the manifest's
 * counts and checksums. Without a manifest it is that of counts and of 32 pieces of 4 KiB from each shard: other files
 * are noticed, a few changed tokens may not be. */
void shard_set_identity(const struct shard_set *s, char out[65]);
#endif
