#include "data/tokenizer/vocab.h"
#include "data/text/array.h"
#define XXH_INLINE_ALL
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static uint32_t hash_of(const char *bytes, size_t count)
{
    return (uint32_t)XXH3_64bits(bytes, count);
}

/* The slot with these bytes, or the empty slot for them. slots_count is a power of two; at least half are
 * empty. */
static struct vocab_slot *find_slot(const struct vocab *v, uint32_t hash, const char *bytes, size_t count)
{
    size_t mask = v->slots_count - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        struct vocab_slot *slot = &v->slots[i];
        if (slot->id < 0) return slot;
        if (slot->hash != hash) continue;
        struct text t = vocab_bytes(v, slot->id);
        if (t.bytes == count && memcmp(t.data, bytes, count) == 0) return slot;
    }
}

static status grow_slots(struct vocab *v, size_t tokens)
{
    size_t want = v->slots_count != 0 ? v->slots_count : 1024;
    while (want < 2 * tokens) want *= 2;
    if (want == v->slots_count) return STATUS_OK;
    struct vocab_slot *slots;
    TRY(array_new_table(&slots, want, sizeof *slots, 0xff));
    for (size_t old = 0; old < v->slots_count; old++) {
        if (v->slots[old].id < 0) continue;
        size_t i = v->slots[old].hash & (want - 1);
        while (slots[i].id >= 0) i = (i + 1) & (want - 1);
        slots[i] = v->slots[old];
    }
    free(v->slots);
    v->slots = slots;
    v->slots_count = want;
    return STATUS_OK;
}

status vocab_reserve(struct vocab *v, size_t tokens, size_t bytes)
{
    TRY(array_grow(&v->tokens, &v->tokens_cap, tokens, sizeof *v->tokens));
    TRY(array_grow(&v->blob, &v->blob_cap, bytes + 1, 1));
    return grow_slots(v, tokens);
}

status vocab_append(struct vocab *v, const char *bytes, size_t count, enum token_kind kind)
{
    return vocab_place(v, (int32_t)v->count, bytes, count, kind);
}

status vocab_place(struct vocab *v, int32_t id, const char *bytes, size_t count, enum token_kind kind)
{
    size_t at = (size_t)id;
    if (count == 0 && kind != TOKEN_HOLE) return FAIL(STATUS_DATA, "token %zu is empty", at);
    if (count > UINT32_MAX - v->blob_bytes)
        return FAIL(STATUS_DATA, "the tokens have more than 4 GiB in all");
    if (at < v->count && v->tokens[at].kind != TOKEN_HOLE)
        return FAIL(STATUS_DATA, "two tokens have the same id %zu", at);
    TRY(array_grow(&v->tokens, &v->tokens_cap, at + 1, sizeof *v->tokens));
    TRY(array_grow(&v->blob, &v->blob_cap, v->blob_bytes + count + 1, 1));
    if (kind == TOKEN_MODEL) {
        TRY(grow_slots(v, v->model_count + 1));
        uint32_t hash = hash_of(bytes, count);
        struct vocab_slot *slot = find_slot(v, hash, bytes, count);
        if (slot->id >= 0) return FAIL(STATUS_DATA, "tokens %d and %zu are the same", (int)slot->id, at);
        *slot = (struct vocab_slot){hash, id};
        v->model_count++;
    }
    if (count != 0) memcpy(v->blob + v->blob_bytes, bytes, count);
    for (; v->count <= at; v->count++) v->tokens[v->count] = (struct vocab_token){.kind = TOKEN_HOLE};
    v->tokens[at] = (struct vocab_token){(uint32_t)v->blob_bytes, (uint32_t)count, kind};
    v->blob_bytes += count;
    return STATUS_OK;
}

void vocab_free(struct vocab *v)
{
    free(v->tokens);
    free(v->blob);
    free(v->slots);
    *v = (struct vocab){0};
}

int32_t vocab_find(const struct vocab *v, const char *bytes, size_t count)
{
    return v->slots_count != 0 ? find_slot(v, hash_of(bytes, count), bytes, count)->id : -1;
}
