#include "data/vocab.h"
#include "data/array.h"
#define XXH_INLINE_ALL
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The slot with these bytes, or the free one where they belong. slots_count is a power of two, at least half
 * of them free. */
static int32_t *find_slot(const struct vocab *v, const char *bytes, size_t count)
{
    size_t mask = v->slots_count - 1;
    for (size_t i = XXH3_64bits(bytes, count) & mask;; i = (i + 1) & mask) {
        if (v->slots[i] < 0) return &v->slots[i];
        struct text t = vocab_bytes(v, v->slots[i]);
        if (t.bytes == count && memcmp(t.data, bytes, count) == 0) return &v->slots[i];
    }
}

static status grow_slots(struct vocab *v)
{
    size_t want = v->slots_count != 0 ? 2 * v->slots_count : 1024;
    int32_t *slots;
    TRY(array_new(&slots, want, sizeof *slots));
    memset(slots, 0xff, want * sizeof *slots);
    free(v->slots);
    v->slots = slots;
    v->slots_count = want;
    for (size_t id = 0; id < v->count; id++) {
        if (v->tokens[id].kind != TOKEN_MODEL) continue;
        struct text t = vocab_bytes(v, (int32_t)id);
        *find_slot(v, t.data, t.bytes) = (int32_t)id;
    }
    return STATUS_OK;
}

status vocab_append(struct vocab *v, const char *bytes, size_t count, enum token_kind kind)
{
    if (count == 0 && kind != TOKEN_HOLE) return FAIL(STATUS_DATA, "token %zu is empty", v->count);
    if (count > UINT32_MAX - v->blob_bytes)
        return FAIL(STATUS_DATA, "the tokens have more than 4 GiB in all");
    TRY(array_grow(&v->tokens, &v->tokens_cap, v->count + 1, sizeof *v->tokens));
    TRY(array_grow(&v->blob, &v->blob_cap, v->blob_bytes + count + 1, 1));
    if (kind == TOKEN_MODEL) {
        if (2 * (v->model_count + 1) > v->slots_count) TRY(grow_slots(v));
        int32_t *slot = find_slot(v, bytes, count);
        CHECK(*slot < 0, "token %zu has the bytes of token %d", v->count, (int)*slot);
        *slot = (int32_t)v->count;
        v->model_count++;
    }
    if (count != 0) memcpy(v->blob + v->blob_bytes, bytes, count);
    v->tokens[v->count++] = (struct vocab_token){(uint32_t)v->blob_bytes, (uint32_t)count, kind};
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
    return v->slots_count != 0 ? *find_slot(v, bytes, count) : -1;
}
