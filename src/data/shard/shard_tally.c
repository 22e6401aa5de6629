#include "data/shard/shard_tally.h"

#include "base/parallel.h"
#include "data/text/array.h"
#include "data/shard/shard_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 4, BLOCK = 4096, IDS_MAX = 1 << 22, IDS_UNKNOWN = 1 << 20, PIECE = 1 << 23, FLUSH = 1 << 30 };

status shard_tally_open(struct shard_tally *t, const struct shard *s, int64_t vocab_size)
{
    int64_t ids = vocab_size > 0 ? vocab_size : s->width == 1 ? 256 : s->width == 2 ? 65536 : IDS_UNKNOWN;
    *t = (struct shard_tally){.ids = ids < IDS_MAX ? ids : IDS_MAX, .id_max = -1};
    status st = array_new(&t->counts, (size_t)t->ids, sizeof *t->counts);
    if (st == STATUS_OK) st = array_new(&t->parts, (size_t)t->ids * PARTS, sizeof *t->parts);
    if (st != STATUS_OK) shard_tally_close(t);
    return st;
}

void shard_tally_close(struct shard_tally *t)
{
    free(t->counts);
    free(t->parts);
    *t = (struct shard_tally){.id_max = -1};
}

void shard_tally_flush(struct shard_tally *t)
{
    int64_t end = t->id_max + 1 < t->ids ? t->id_max + 1 : t->ids;
    for (int p = 0; p < PARTS; p++) {
        uint32_t *part = t->parts + p * t->ids;
        for (int64_t i = 0; i < end; i++) t->counts[i] += part[i];
        memset(part, 0, (size_t)end * sizeof *part);
    }
    t->unflushed = 0;
}

/* All ids are below t->ids. */
static void count_block(struct shard_tally *t, const int32_t *ids, int n)
{
    uint32_t *a = t->parts, *b = a + t->ids, *c = b + t->ids, *d = c + t->ids;
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        a[ids[i]]++;
        b[ids[i + 1]]++;
        c[ids[i + 2]]++;
        d[ids[i + 3]]++;
    }
    for (; i < n; i++) a[ids[i]]++;
}

status shard_tally_add(struct shard_tally *t, const struct shard *s, int64_t at, int64_t n,
                       int64_t vocab_size)
{
    int32_t ids[BLOCK];
    int64_t limit = vocab_size > 0 ? vocab_size : (int64_t)INT32_MAX + 1;
    for (int64_t end = at + n; at < end;) {
        int count = end - at < BLOCK ? (int)(end - at) : BLOCK;
        int64_t most = (int64_t)shard_copy(s->type, s->tokens + at * s->width, count, ids);
        if (most < 0 || most >= limit) TRY(shard_read(s, at, count, vocab_size, ids)); /* names it */
        if (most > t->id_max) t->id_max = most;
        at += count;
        if (most >= t->ids) { /* rare: no vocabulary was given, and it is huge */
            int kept = 0;
            for (int i = 0; i < count; i++) {
                ids[kept] = ids[i];
                kept += ids[i] < t->ids;
            }
            t->beyond += count - kept;
            count = kept;
        }
        count_block(t, ids, count);
        t->unflushed += count;
        if (t->unflushed >= FLUSH) shard_tally_flush(t);
    }
    return STATUS_OK;
}

/* Integers: pieces may arrive in any order. */
static void merge(struct shard_tally *to, struct shard_tally *from)
{
    shard_tally_flush(from);
    for (int64_t i = 0; i < from->ids && i <= from->id_max; i++)
        if (from->counts[i]) __atomic_fetch_add(&to->counts[i], from->counts[i], __ATOMIC_RELAXED);
    __atomic_fetch_add(&to->beyond, from->beyond, __ATOMIC_RELAXED);
    int64_t most = __atomic_load_n(&to->id_max, __ATOMIC_RELAXED);
    while (most < from->id_max && !__atomic_compare_exchange_n(&to->id_max, &most, from->id_max, true,
                                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

struct piece {
    int shard;
    int64_t from, count;
    status st;
};

static status tally_piece(struct shard_tally *out, const struct shard_set *s, const struct piece *p,
                          int64_t vocab_size)
{
    struct shard_tally t;
    TRY(shard_tally_open(&t, &s->shards[p->shard], vocab_size));
    status st = shard_tally_add(&t, &s->shards[p->shard], p->from, p->count, vocab_size);
    if (st == STATUS_OK) merge(out, &t);
    shard_tally_close(&t);
    return st;
}

status shard_tally_set(struct shard_tally *t, const struct shard_set *s, int64_t vocab_size)
{
    struct piece *pieces = NULL;
    size_t count = 0, cap = 0;
    TRY(shard_tally_open(t, &s->shards[0], vocab_size));
    status st = STATUS_OK;
    for (int i = 0; i < s->count; i++)
        for (int64_t from = 0; from < s->shards[i].count; from += PIECE) {
            int64_t rest = s->shards[i].count - from;
            TRY_OUT(array_grow(&pieces, &cap, count + 1, sizeof *pieces));
            pieces[count++] = (struct piece){i, from, rest < PIECE ? rest : PIECE, STATUS_OK};
        }
    PARALLEL_CHUNKS(c, (int64_t)count) pieces[c].st = tally_piece(t, s, &pieces[c], vocab_size);
    /* The error record belongs to its thread: repeats the first failure here. Memory may be there the second time. */
    for (size_t c = 0; c < count && st == STATUS_OK; c++)
        if (pieces[c].st != STATUS_OK) {
            st = tally_piece(t, s, &pieces[c], vocab_size);
            if (st == STATUS_OK && pieces[c].st != STATUS_OUT_OF_MEMORY)
                st = FAIL(STATUS_DATA, "%s: changed while it was read", s->shards[pieces[c].shard].path);
        }
out:
    free(pieces);
    if (st != STATUS_OK) shard_tally_close(t);
    return st;
}
