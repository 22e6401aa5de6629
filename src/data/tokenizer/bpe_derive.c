/* tiktoken merges any two neighbours that together are a token; a list of merges names the two. The list
 * needs at most one entry per token:
 *
 *   Let x, y be neighbours that are about to be merged to T. No merge has crossed the ends of T so far, so
 *   those inside T were chosen among the pairs inside T, by the same rule: the lowest id, the leftmost
 *   first. The merges inside T are therefore those of T alone, in any context, and only one pair can be the
 *   last one: the last pair when T is merged by itself. Other pairs that make up T are never neighbours.
 *
 * Merging each token by itself therefore gives all merges that ever happen, in the order of their results:
 * the same ids as tiktoken's on every text. Only shorter tokens are made inside T: when tokens are
 * processed by length, each token finds the merges that it needs. A token that does not end in two parts is
 * unreachable by merges; it occurs only as a complete piece and has no merge. (Where higher ids are needed
 * to make a lower one, as in Llama-3's vocabulary, processing tokens by id would miss it.) */
#include "data/tokenizer/bpe_derive.h"
#include "data/text/array.h"
#include "data/tokenizer/bpe_merge.h"
#include <stdlib.h>
#include <string.h>

struct deriving {
    struct tokenizer *t;
    int32_t *by_length, *parts;
    size_t parts_cap;
    struct bpe_scratch scratch;
};

/* Ids of tokens of two or more bytes, by length, then by id. */
static status sort_by_length(struct deriving *d, size_t *count)
{
    const struct vocab *v = &d->t->vocab;
    size_t longest = 0, *begins;
    for (size_t id = 0; id < v->count; id++)
        if (v->tokens[id].bytes > longest) longest = v->tokens[id].bytes;
    TRY(array_new(&d->by_length, v->count, sizeof *d->by_length));
    TRY(array_new(&begins, longest + 2, sizeof *begins));
    for (size_t id = 0; id < v->count; id++)
        if (v->tokens[id].kind == TOKEN_MODEL) begins[v->tokens[id].bytes + 1]++;
    size_t bytes = longest >= 1 ? begins[2] : 0; /* single bytes are left out */
    for (size_t i = 0; i <= longest; i++) begins[i + 1] += begins[i];
    for (size_t id = 0; id < v->count; id++)
        if (v->tokens[id].kind == TOKEN_MODEL && v->tokens[id].bytes > 1)
            d->by_length[begins[v->tokens[id].bytes]++ - bytes] = (int32_t)id;
    *count = v->model_count - bytes;
    free(begins);
    return STATUS_OK;
}

static status derive(struct deriving *d)
{
    struct tokenizer *t = d->t;
    size_t count;
    t->rank_is_id = true;
    TRY(tokenizer_pairs_begin(t, t->vocab.model_count));
    TRY(array_grow(&t->merges, &t->merge_cap, t->vocab.count, sizeof *t->merges));
    memset(t->merges, 0xff, t->vocab.count * sizeof *t->merges);
    TRY(sort_by_length(d, &count));
    for (size_t i = 0; i < count; i++) {
        int32_t id = d->by_length[i];
        struct text text = vocab_bytes(&t->vocab, id);
        size_t parts;
        TRY(array_grow(&d->parts, &d->parts_cap, text.bytes, sizeof *d->parts));
        TRY(bpe_merge(t, &d->scratch, (const uint8_t *)text.data, text.bytes, d->parts, &parts));
        if (parts != 2) continue;
        t->merges[id] = (struct merge){d->parts[0], d->parts[1], id};
        tokenizer_pair_add(t, (size_t)id);
    }
    for (size_t id = 0; id < t->vocab.count; id++)
        if (t->merges[id].id >= 0) t->merges[t->merge_count++] = t->merges[id];
    return STATUS_OK;
}

status bpe_derive(struct tokenizer *t)
{
    struct deriving d = {.t = t};
    status st = derive(&d);
    free(d.by_length);
    free(d.parts);
    bpe_scratch_fini(&d.scratch);
    return st;
}
