#include "data/shard/shard_identity.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { PIECE = 4096, PIECES = 32 };

/* Up to PIECES pieces, evenly spread, the first and the last byte among them. */
static void add_pieces(struct sha256 *sum, const uint8_t *at, int64_t bytes)
{
    if (at == NULL || bytes <= (int64_t)PIECE * PIECES) {
        if (at) sha256_add(sum, at, (size_t)bytes);
        return;
    }
    const int64_t room = bytes - PIECE;
    for (int64_t i = 0; i < PIECES; i++)
        sha256_add(sum, at + room / (PIECES - 1) * i + room % (PIECES - 1) * i / (PIECES - 1), PIECE);
}

void shard_set_identity(const struct shard_set *s, char out[65])
{
    struct sha256 sum;
    char text[160];
    sha256_init(&sum);
    snprintf(text, sizeof text, "eot %d eod %d\n", (int)s->eot, (int)s->eod);
    sha256_add(&sum, text, strlen(text));
    for (int i = 0; i < s->count; i++) {
        const struct shard *shard = &s->shards[i];
        snprintf(text, sizeof text, "%lld tokens of %d bytes, xxh64 %016llx, index %d %016llx\n",
                 (long long)shard->count, shard->width, (unsigned long long)shard->xxh64, shard->indexed,
                 (unsigned long long)shard->index_xxh64);
        sha256_add(&sum, text, strlen(text));
        if (s->manifest && shard->mask) {
            snprintf(text, sizeof text, "mask %016llx\n",
                     (unsigned long long)XXH64(shard->mask, (size_t)(shard->count + 7) / 8, 0));
            sha256_add(&sum, text, strlen(text));
        }
        if (s->manifest) continue;
        add_pieces(&sum, shard->tokens, shard->count * shard->width);
        add_pieces(&sum, shard->mask, (shard->count + 7) / 8);
        add_pieces(&sum, shard->index, shard->index_bytes);
    }
    sha256_hex(&sum, out);
}
