#include "train/state_raw.h"
#include "base/int_math.h"
#include "base/parallel.h"
#include "model/master_weights.h"
#include "train/state_int.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, GRAIN = 4 << 20 };

static size_t aligned(size_t bytes)
{
    return size_round_up(bytes, ALIGN);
}

static void copy(void *to, const void *from, size_t bytes)
{
    PARALLEL_CHUNKS(c, chunk_count((int64_t)bytes, GRAIN))
    {
        const struct span s = chunk_span(c, (int64_t)bytes, GRAIN);
        memcpy((char *)to + s.begin, (const char *)from + s.begin, (size_t)(s.end - s.begin));
    }
}

static size_t fp8_bytes(const struct trainer *t)
{
    return t->fp8.linears ? (size_t)t->decoder.params.fp8.count * 2 * FP8_HISTORY * sizeof(float) : 0;
}

static size_t linears_bytes(const struct trainer *t)
{
    return t->fp8.linears ? (size_t)t->decoder.params.fp8.count * sizeof *t->fp8.linears : 0;
}

static size_t map_bytes(const struct state *s)
{
    return s->t->decoder.token_map.data ? state_map_bytes(s) : 0;
}

size_t state_raw_bytes(struct trainer *t)
{
    struct state s = {.t = t};
    state_list(&s);
    size_t sum = aligned(map_bytes(&s)) + aligned(fp8_bytes(t)) + aligned(linears_bytes(t));
    for (int i = 0; i < STATE_ARRAYS; i++)
        if (s.list[i].device) sum += aligned(state_array_bytes(&s, &s.list[i]));
    return sum;
}

static uint64_t mix(uint64_t h, const void *data, size_t bytes)
{
    const unsigned char *b = data;
    for (size_t i = 0; i < bytes; i++) h = (h ^ b[i]) * 0x100000001b3u; /* FNV-1a */
    return h;
}

uint64_t state_raw_key(struct trainer *t)
{
    const struct params *p = &t->decoder.params;
    struct state s = {.t = t};
    uint64_t h = 0xcbf29ce484222325u;
    state_list(&s);
    for (int i = 0; i < STATE_ARRAYS; i++) {
        const int64_t of[] = {s.list[i].device != NULL, s.list[i].dt, s.list[i].block,
                              s.list[i].device ? (int64_t)state_array_bytes(&s, &s.list[i]) : 0};
        h = mix(h, of, sizeof of);
    }
    for (int i = 0; i < p->count; i++) {
        const struct param_local_range held = params_local_range(p, i);
        const int64_t of[] = {held.from, held.to, held.at, held.master, params_place(p)};
        h = mix(mix(h, p->rows[i].name, strlen(p->rows[i].name)), of, sizeof of);
    }
    const int64_t rest[] = {(int64_t)map_bytes(&s), (int64_t)fp8_bytes(t)};
    return mix(h, rest, sizeof rest);
}

/* What comes behind the arrays, and what forward and backward change of it. */
static status save_rest(struct state *s, char *to)
{
    struct trainer *t = s->t;
    struct stream *stream = t->exec.stream;
    status st = state_open_map(s, STATE_SAVE);
    if (st == STATUS_OK) st = state_open_fp8(s, STATE_SAVE);
    if (st == STATUS_OK && stream) st = dev_sync(stream);
    if (st == STATUS_OK && s->map) memcpy(to, s->map, map_bytes(s));
    to += aligned(map_bytes(s));
    if (st == STATUS_OK && s->fp8) memcpy(to, s->fp8, fp8_bytes(t));
    to += aligned(fp8_bytes(t));
    if (st == STATUS_OK && s->fp8) memcpy(to, t->fp8.linears, linears_bytes(t));
    free(s->map);
    free(s->fp8);
    return st;
}

/* Sets s->arrays to the places of the arrays in `to`; returns what comes behind them. */
static char *place_arrays(struct state *s, char *to)
{
    state_list(s);
    for (int i = 0; i < STATE_ARRAYS; i++) {
        if (s->list[i].device == NULL) continue;
        s->arrays[i] = to;
        to += aligned(state_array_bytes(s, &s->list[i]));
    }
    return to;
}

status state_raw_save(struct trainer *t, char *to)
{
    struct state s = {.t = t};
    to = place_arrays(&s, to);
    for (int i = 0; i < STATE_ARRAYS; i++) {
        if (s.arrays[i] == NULL) continue;
        if (i == 0 && !s.list[0].host)
            TRY(master_weights_get(&t->exec, s.arrays[0]));
        else
            copy(s.arrays[i], s.list[i].device, state_array_bytes(&s, &s.list[i]));
    }
    return save_rest(&s, to);
}

status state_raw_begin(struct trainer *t, char *to)
{
    struct state s = {.t = t};
    to = place_arrays(&s, to);
    return save_rest(&s, to);
}

status state_raw_queue(struct trainer *t, struct stream *side, char *to)
{
    struct state s = {.t = t};
    (void)place_arrays(&s, to);
    return state_queue(&s, side);
}

status state_raw_join(struct trainer *t, char *to)
{
    struct state s = {.t = t};
    (void)place_arrays(&s, to);
    return state_join(&s);
}

status state_raw_load(struct trainer *t, const char *from)
{
    struct state s = {.t = t};
    state_list(&s);
    for (int i = 0; i < STATE_ARRAYS; i++) {
        const struct state_array *a = &s.list[i];
        if (a->device == NULL) continue;
        s.arrays[i] = a->host ? a->device : (void *)(uintptr_t)from; /* state_upload only reads them */
        if (a->host) copy(a->device, from, state_array_bytes(&s, a));
        from += aligned(state_array_bytes(&s, a));
    }
    status st = state_open_map(&s, STATE_LOAD);
    if (st == STATUS_OK) st = state_open_fp8(&s, STATE_LOAD);
    if (st == STATUS_OK && s.map) memcpy(s.map, from, map_bytes(&s));
    from += aligned(map_bytes(&s));
    if (st == STATUS_OK && s.fp8) memcpy(s.fp8, from, fp8_bytes(t));
    from += aligned(fp8_bytes(t));
    if (st == STATUS_OK && s.fp8) memcpy(t->fp8.linears, from, linears_bytes(t));
    if (st == STATUS_OK) st = state_upload(&s);
    free(s.map);
    free(s.fp8);
    return st;
}
