/* From texts to tokens. A continuation's tokens are those that the whole text has behind as many as the context alone
 * has; blanks at the end of a context belong to the continuation. */
#include "data/text/array.h"
#include "harness/harness_int.h"

#include <stdlib.h>
#include <string.h>

struct tokens {
    int32_t *ids;
    int64_t count;
};

/* Requests hold offsets while the array of tokens grows. */
struct work {
    struct harness_task *t;
    const struct harness_encoding *e;
    struct encoder *encoder;
    const struct harness_item *item;
};

static status fail_at(const struct work *w, const char *why)
{
    return FAIL(STATUS_DATA, "%s: %s of row %lld: %s", w->t->path, w->t->name, (long long)w->item->line, why);
}

static status encode(const struct work *w, const char *text, size_t bytes, struct tokens *out)
{
    const int32_t *ids;
    *out = (struct tokens){0};
    TRY(encoder_encode(w->encoder, text, bytes, SPECIALS_PARSE, &ids, &out->count));
    out->ids = malloc((size_t)(out->count + 1) * sizeof *out->ids);
    if (out->ids == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld tokens", (long long)out->count);
    if (out->count) memcpy(out->ids, ids, (size_t)out->count * sizeof *ids);
    return STATUS_OK;
}

/* Appends ids[0, count); `scored` of them at the end are the continuation. */
static status add(const struct work *w, const int32_t *ids, int64_t count, int64_t scored)
{
    struct harness_task *t = w->t;
    TRY(array_grow(&t->requests, &t->request_room, (size_t)t->request_count + 1, sizeof *t->requests));
    TRY(array_grow(&t->tokens, &t->token_room, (size_t)(t->token_count + count), sizeof *t->tokens));
    memcpy(t->tokens + t->token_count, ids, (size_t)count * sizeof *ids);
    t->requests[t->request_count++] = (struct score_request){.count = count, .first = count - scored};
    t->token_count += count;
    return STATUS_OK;
}

/* The last tokens, of which the model sees all but the very last. */
static status add_cut(const struct work *w, const struct tokens *all, int64_t scored)
{
    const int64_t most = w->e->positions + 1, begin = all->count > most ? all->count - most : 0;
    char why[160];
    if (scored <= 0 || scored >= all->count)
        return fail_at(w, "the continuation or its context has no token");
    snprintf(why, sizeof why, "its continuation has %lld tokens, the model %lld positions", (long long)scored,
             (long long)w->e->positions);
    if (scored > w->e->positions) return fail_at(w, why);
    w->t->cut += begin > 0;
    return add(w, all->ids + begin, all->count - begin, scored);
}

static status need_prefix(const struct work *w)
{
    if (w->e->prefix >= 0) return STATUS_OK;
    return fail_at(w, "a text without a context begins behind a special token, and the tokenizer has none");
}

/* The prefix token, then the text. */
static status encode_bare(const struct work *w, const char *text, struct tokens *out)
{
    TRY(need_prefix(w));
    TRY(encode(w, text, strlen(text), out));
    memmove(out->ids + 1, out->ids, (size_t)out->count * sizeof *out->ids);
    out->ids[0] = w->e->prefix;
    out->count++;
    return STATUS_OK;
}

static status encode_pair(const struct work *w, const struct harness_pair *p)
{
    struct tokens whole = {0}, context = {.count = 1};
    char *text = harness_join("%s%s", p->context, p->continuation);
    status st;
    if (p->context[0] == 0) {
        st = encode_bare(w, p->continuation, &whole);
    } else {
        st = encode(w, text, strlen(text), &whole);
        if (st == STATUS_OK) st = encode(w, text, harness_blank_end(p->context), &context);
    }
    if (st == STATUS_OK) st = add_cut(w, &whole, whole.count - context.count);
    free(text);
    free(whole.ids);
    free(context.ids);
    return st;
}

/* A whole text in windows: each target once, and as much before it as the window holds. */
static status encode_text(const struct work *w, const char *text)
{
    struct tokens all;
    const int64_t most = w->e->positions;
    status st = encode_bare(w, text, &all);
    for (int64_t done = 1; st == STATUS_OK && done < all.count;) {
        const int64_t left = all.count - done, scored = left < most ? left : most, end = done + scored;
        const int64_t begin = end - most - 1 > 0 ? end - most - 1 : 0;
        st = add(w, all.ids + begin, end - begin, scored);
        done = end;
    }
    free(all.ids);
    return st;
}

static status encode_item(struct work *w, struct harness_item *item)
{
    struct harness_task *t = w->t;
    w->item = item;
    item->first_request = t->request_count;
    for (int64_t i = 0; i < item->pairs; i++) {
        const struct harness_pair *p = &t->pair[item->first_pair + i];
        TRY(t->format->kind == HARNESS_TEXT ? encode_text(w, p->continuation) : encode_pair(w, p));
    }
    item->requests = t->request_count - item->first_request;
    return STATUS_OK;
}

/* Now that nothing grows, requests point to their tokens. */
static status place(struct harness_task *t, bool each)
{
    int64_t at = 0;
    if (each) TRY(array_new(&t->each, (size_t)t->token_count + 1, sizeof *t->each));
    for (int64_t i = 0; i < t->request_count; at += t->requests[i++].count) {
        struct score_request *q = &t->requests[i];
        q->tokens = t->tokens + at;
        q->each = each ? t->each + at : NULL;
    }
    return STATUS_OK;
}

status harness_encode(struct harness_task *t, const struct harness_encoding *e)
{
    struct work w = {.t = t, .e = e};
    TRY(encoder_open(&w.encoder, e->tokenizer));
    status st = STATUS_OK;
    for (int64_t i = 0; i < t->item_count && st == STATUS_OK; i++) st = encode_item(&w, &t->items[i]);
    encoder_close(w.encoder);
    if (st == STATUS_OK) st = place(t, e->each);
    return st;
}

int64_t harness_longest(const struct harness_task *t)
{
    int64_t most = 0;
    for (int64_t i = 0; i < t->request_count; i++)
        if (t->requests[i].count - 1 > most) most = t->requests[i].count - 1;
    return most;
}
