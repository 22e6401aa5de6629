#include "data/build/dedup_index.h"

#include <stdlib.h>
#include <xxhash.h>

enum { ROOM_FIRST = 1 << 12 };

static uint64_t key_of(const uint32_t *sketch, int band)
{
    const uint32_t *part = sketch + band * DEDUP_ROWS;
    const uint64_t key = XXH3_64bits_withSeed(part, DEDUP_ROWS * sizeof *part, (uint64_t)band);
    return key ? key : 1;
}

/* The slot of a key, or the empty one for it. */
static struct dedup_index_slot *slot_of(const struct dedup_index *x, uint64_t key)
{
    size_t i = (size_t)(((unsigned __int128)key * x->room) >> 64);
    while (x->slots[i].key && x->slots[i].key != key)
        if (++i == x->room) i = 0;
    return &x->slots[i];
}

static status grow(struct dedup_index *x)
{
    struct dedup_index larger = {.room = x->room ? x->room + x->room / 2 : ROOM_FIRST, .used = x->used};
    larger.slots = calloc(larger.room, sizeof *larger.slots);
    if (!larger.slots)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the bands of %zu sketches; --dedup exact needs less",
                    x->used / DEDUP_BANDS);
    for (size_t i = 0; i < x->room; i++)
        if (x->slots[i].key) *slot_of(&larger, x->slots[i].key) = x->slots[i];
    free(x->slots);
    *x = larger;
    return STATUS_OK;
}

const struct dedup_index_slot *dedup_index_find(const struct dedup_index *x, const uint32_t *sketch, int band)
{
    const struct dedup_index_slot *slot = x->room ? slot_of(x, key_of(sketch, band)) : NULL;
    return slot && slot->key ? slot : NULL;
}

status dedup_index_put(struct dedup_index *x, const uint32_t *sketch, uint32_t row)
{
    for (int band = 0; band < DEDUP_BANDS; band++) {
        if (x->used * 5 >= x->room * 4) TRY(grow(x));
        const uint64_t key = key_of(sketch, band);
        struct dedup_index_slot *slot = slot_of(x, key);
        if (!slot->key) {
            *slot = (struct dedup_index_slot){key, row, row};
            x->used++;
        }
        slot->last = row;
    }
    return STATUS_OK;
}

void dedup_index_free(struct dedup_index *x)
{
    free(x->slots);
    *x = (struct dedup_index){0};
}
