/* Short pieces: one number per pair of neighbours holds its rank and position; a few vector instructions
 * find the smallest, and the pairs changed by a merge are looked up again. Long pieces: the same with a
 * heap; an entry is discarded when its position no longer has that rank. Both give the same result, also
 * for ties; a test compares them. */
#include "data/tokenizer/bpe_merge.h"
#include "base/bytes32.h"
#include "data/text/array.h"
#include "data/tokenizer/bpe_chars.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

void bpe_scratch_fini(struct bpe_scratch *s)
{
    free(s->nodes);
    free(s->heap);
    free(s->ranks);
    *s = (struct bpe_scratch){0};
}

/* The smallest of keys[0, 8 * vectors). */
static inline uint32_t smallest(const uint32_t *keys, size_t vectors)
{
    bytes32 low = bytes32_load(keys);
    for (size_t v = 1; v < vectors; v++) low = bytes32_min_u32(low, bytes32_load(keys + 8 * v));
    return bytes32_least_u32(low);
}

/* Rank and position in one number: the smallest is the leftmost of the lowest rank. */
enum { PLACE_BITS = 6, KEY_NONE = 1 << (RANK_BITS + PLACE_BITS) };
static_assert(1 << PLACE_BITS == BPE_MERGE_SHORT, "a place in a short piece");
static_assert(RANK_BITS + PLACE_BITS < 31, "keys fit in 32 bits");

static inline uint32_t key_of(uint32_t rank, uint32_t place)
{
    return rank << PLACE_BITS | place; /* RANK_NONE gives a key above KEY_NONE */
}

/* n units with their ids in `ids`; the merged ids are written to its start. ranks[i] is the rank of units i
 * and i + 1. */
static size_t merge_short(const struct tokenizer *t, size_t n_units, int32_t *ids, const uint32_t *ranks)
{
    _Alignas(32) uint32_t keys[BPE_MERGE_SHORT];
    uint8_t prev[BPE_MERGE_SHORT], next[BPE_MERGE_SHORT];
    const uint32_t n = (uint32_t)n_units;
    const size_t vectors = (n_units + 7) / 8;
    bytes32_store(keys + 8 * (vectors - 1), bytes32_set(-1));
    for (uint32_t i = 0; i < n; i++) {
        prev[i] = (uint8_t)(i - 1);
        next[i] = (uint8_t)(i + 1);
        keys[i] = key_of(ranks[i], i);
    }
    for (uint32_t low; (low = smallest(keys, vectors)) < KEY_NONE;) {
        uint32_t at = low % BPE_MERGE_SHORT, gone = next[at], after = next[gone];
        ids[at] = tokenizer_merged(t, low >> PLACE_BITS);
        next[at] = (uint8_t)after;
        keys[gone] = keys[at] = UINT32_MAX;
        if (after < n) {
            prev[after] = (uint8_t)at;
            keys[at] = key_of(tokenizer_rank(t, ids[at], ids[after]), at);
        }
        if (at > 0) keys[prev[at]] = key_of(tokenizer_rank(t, ids[prev[at]], ids[at]), prev[at]);
    }
    size_t count = 0;
    for (uint32_t i = 0; i < n; i = next[i]) ids[count++] = ids[i];
    return count;
}

static void sift_down(uint64_t *heap, size_t count, size_t i, uint64_t item)
{
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= item) break;
        heap[i] = heap[child];
    }
    heap[i] = item;
}

static size_t heap_push(uint64_t *heap, size_t count, uint64_t item)
{
    size_t i = count;
    for (; i > 0 && item < heap[(i - 1) / 2]; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = item;
    return count + 1;
}

#define LAST UINT32_MAX

/* Sets the rank of node i with its neighbour and pushes it; returns the new size of the heap. */
static size_t rank_node(const struct tokenizer *t, struct bpe_node *nodes, uint32_t i, uint64_t *heap,
                        size_t count)
{
    nodes[i].rank =
        nodes[i].next == LAST ? RANK_NONE : tokenizer_rank(t, nodes[i].id, nodes[nodes[i].next].id);
    return nodes[i].rank == RANK_NONE ? count : heap_push(heap, count, (uint64_t)nodes[i].rank << 32 | i);
}

/* merge_short for any n. */
static status merge_long(const struct tokenizer *t, struct bpe_scratch *s, size_t n, int32_t *ids,
                         const uint32_t *ranks, size_t *count)
{
    TRY(array_grow(&s->nodes, &s->node_cap, n, sizeof *s->nodes));
    TRY(array_grow(&s->heap, &s->heap_cap, 2 * n,
                   sizeof *s->heap)); /* a merge removes one and adds at most two */
    struct bpe_node *nodes = s->nodes;
    uint64_t *heap = s->heap;
    size_t heap_count = 0;
    for (size_t i = 0; i < n; i++) {
        nodes[i] = (struct bpe_node){ids[i], (uint32_t)i - 1, i + 1 < n ? (uint32_t)i + 1 : LAST, ranks[i]};
        if (ranks[i] != RANK_NONE) heap[heap_count++] = (uint64_t)ranks[i] << 32 | i;
    }
    for (size_t i = heap_count / 2; i-- > 0;) sift_down(heap, heap_count, i, heap[i]);
    while (heap_count != 0) {
        uint64_t top = heap[0], last = heap[--heap_count];
        if (heap_count != 0) sift_down(heap, heap_count, 0, last);
        uint32_t i = (uint32_t)top, rank = (uint32_t)(top >> 32);
        if (nodes[i].rank != rank) continue;
        uint32_t gone = nodes[i].next, prev = nodes[i].prev;
        nodes[i].id = tokenizer_merged(t, rank);
        nodes[i].next = nodes[gone].next;
        nodes[gone].rank = RANK_NONE;
        if (nodes[i].next != LAST) nodes[nodes[i].next].prev = i;
        heap_count = rank_node(t, nodes, i, heap, heap_count);
        if (prev != LAST) heap_count = rank_node(t, nodes, prev, heap, heap_count);
    }
    *count = 0;
    for (uint32_t i = 0; i != LAST; i = nodes[i].next) ids[(*count)++] = nodes[i].id;
    return STATUS_OK;
}

static size_t split_bytes(const struct tokenizer *t, const uint8_t *piece, size_t bytes, int32_t *ids,
                          uint32_t *ranks)
{
    for (size_t i = 0; i + 1 < bytes; i++) {
        ids[i] = t->byte_id[piece[i]];
        ranks[i] = t->byte_pairs[piece[i] * 256u + piece[i + 1]];
    }
    ids[bytes - 1] = t->byte_id[piece[bytes - 1]];
    ranks[bytes - 1] = RANK_NONE;
    return bytes;
}

static bool is_ascii(const uint8_t *p, size_t bytes)
{
    uint8_t any = 0;
    for (size_t i = 0; i < bytes; i++) any |= p[i];
    return any < 0x80;
}

static status check_length(size_t bytes)
{
    CHECK(bytes != 0, "an empty piece");
    if (bytes < LAST) return STATUS_OK;
    return FAIL(STATUS_DATA, "a piece of %zu bytes without a place to split is too long", bytes);
}

status bpe_merge(const struct tokenizer *t, struct bpe_scratch *s, const uint8_t *piece, size_t bytes,
                 int32_t *out, size_t *count)
{
    uint32_t room[3 * BPE_MERGE_SHORT], *ranks = room;
    if (bytes > 3 * BPE_MERGE_SHORT) {
        TRY(check_length(bytes));
        TRY(array_grow(&s->ranks, &s->rank_cap, bytes, sizeof *s->ranks));
        ranks = s->ranks;
    }
    size_t n = is_ascii(piece, bytes) ? split_bytes(t, piece, bytes, out, ranks)
                                      : bpe_chars_split(t, piece, bytes, out, ranks);
    if (n > BPE_MERGE_SHORT) return merge_long(t, s, n, out, ranks, count);
    *count = merge_short(t, n, out, ranks);
    return STATUS_OK;
}

status bpe_merge_heap(const struct tokenizer *t, struct bpe_scratch *s, const uint8_t *piece, size_t bytes,
                      int32_t *out, size_t *count)
{
    TRY(check_length(bytes));
    TRY(array_grow(&s->ranks, &s->rank_cap, bytes, sizeof *s->ranks));
    return merge_long(t, s, split_bytes(t, piece, bytes, out, s->ranks), out, s->ranks, count);
}
