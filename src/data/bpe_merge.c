/* Short pieces: the ranks of all neighbours stand in an array; the smallest is searched by going through it (a handful of vector
 * instructions), and a merge moves the rest down. Long pieces: a linked list and a heap of (rank, place), whose entries are dropped
 * when the place does not have that rank any more. Both do the same, also for ties; a test holds them against each other. */
#include "data/bpe_merge.h"
#include "data/array.h"
#include <stdlib.h>
#include <string.h>

void bpe_scratch_fini(struct bpe_scratch *s)
{
    free(s->nodes);
    free(s->heap);
    *s = (struct bpe_scratch){0};
}

size_t bpe_merge_short(const struct tokenizer *t, const uint8_t *piece, size_t bytes, int32_t *out)
{
    CHECK(bytes >= 1 && bytes <= BPE_MERGE_SHORT, "%zu bytes", bytes);
    uint32_t ranks[BPE_MERGE_SHORT + 8];
    int32_t ids[BPE_MERGE_SHORT + 8];
    size_t n = bytes;
    for (size_t i = 0; i < n; i++) ids[i] = t->byte_id[piece[i]];
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = t->byte_pairs[piece[i] * 256u + piece[i + 1]];
    while (n > 1) {
        uint32_t lowest = RANK_NONE;
        for (size_t i = 0; i < n - 1; i++) lowest = ranks[i] < lowest ? ranks[i] : lowest;
        if (lowest == RANK_NONE) break;
        size_t at = 0;
        while (ranks[at] != lowest) at++;
        ids[at] = t->merges[lowest].id;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        memmove(ranks + at, ranks + at + 1, (n - at - 1) * sizeof *ranks);
        if (at > 0) ranks[at - 1] = tokenizer_rank(t, ids[at - 1], ids[at]);
        if (at + 1 < n) ranks[at] = tokenizer_rank(t, ids[at], ids[at + 1]);
    }
    memcpy(out, ids, n * sizeof *ids);
    return n;
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

status bpe_merge_long(const struct tokenizer *t, struct bpe_scratch *s, const uint8_t *piece, size_t bytes,
                      int32_t *out, size_t *count)
{
    if (bytes >= LAST)
        return FAIL(STATUS_DATA, "a piece of %zu bytes without a place to split is too long", bytes);
    TRY(array_grow(&s->nodes, &s->node_cap, bytes, sizeof *s->nodes));
    TRY(array_grow(&s->heap, &s->heap_cap, 2 * bytes,
                   sizeof *s->heap)); /* a merge takes one out and puts at most two in */
    struct bpe_node *nodes = s->nodes;
    uint64_t *heap = s->heap;
    size_t heap_count = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t rank = i + 1 < bytes ? t->byte_pairs[piece[i] * 256u + piece[i + 1]] : RANK_NONE;
        nodes[i] = (struct bpe_node){t->byte_id[piece[i]], (uint32_t)i - 1,
                                     i + 1 < bytes ? (uint32_t)i + 1 : LAST, rank};
        if (rank != RANK_NONE) heap[heap_count++] = (uint64_t)rank << 32 | i;
    }
    for (size_t i = heap_count / 2; i-- > 0;) sift_down(heap, heap_count, i, heap[i]);
    while (heap_count != 0) {
        uint64_t top = heap[0], last = heap[--heap_count];
        if (heap_count != 0) sift_down(heap, heap_count, 0, last);
        uint32_t i = (uint32_t)top, rank = (uint32_t)(top >> 32);
        if (nodes[i].rank != rank) continue;
        uint32_t gone = nodes[i].next, prev = nodes[i].prev;
        nodes[i].id = t->merges[rank].id;
        nodes[i].next = nodes[gone].next;
        nodes[gone].rank = RANK_NONE;
        if (nodes[i].next != LAST) nodes[nodes[i].next].prev = i;
        heap_count = rank_node(t, nodes, i, heap, heap_count);
        if (prev != LAST) heap_count = rank_node(t, nodes, prev, heap, heap_count);
    }
    *count = 0;
    for (uint32_t i = 0; i != LAST; i = nodes[i].next) out[(*count)++] = nodes[i].id;
    return STATUS_OK;
}
