#include "data/load/loader_int.h"
#include "base/int_math.h"

#include <stdlib.h>
#include <string.h>

status filler_open(struct filler *f, const struct samples *samples, const struct loader_config *c)
{
    const size_t t = (size_t)samples_config_of(samples)->sequence_length;
    *f = (struct filler){.samples = samples, .config = c};
    f->pieces = malloc(t * sizeof *f->pieces);
    f->window = malloc((t + 1) * sizeof *f->window);
    if (f->pieces && f->window) return STATUS_OK;
    filler_close(f);
    return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the loader");
}

void filler_close(struct filler *f)
{
    free(f->pieces);
    free(f->window);
    f->pieces = NULL;
    f->window = NULL;
}

static int64_t aligned(int64_t count)
{
    const int64_t unit = LOADER_ALIGN / (int64_t)sizeof(int32_t);
    return int64_round_up(count, unit);
}

static status memory_open(struct slot *s, const struct loader_memory *from, int64_t bytes)
{
    s->owner = *from;
    if (from->open) return from->open(from->ctx, (size_t)bytes, &s->memory);
    s->memory = aligned_alloc(LOADER_ALIGN, (size_t)bytes);
    return s->memory
               ? STATUS_OK
               : FAIL(STATUS_OUT_OF_MEMORY, "the batches of one step need %lld bytes", (long long)bytes);
}

status slot_open(struct slot *s, int64_t sequence_length, const struct loader_config *c)
{
    int64_t rows, per_micro, all, bytes;
    CHECK(sequence_length > 0 && c->sequences > 0 && c->micro_count > 0, "T %lld, B %lld, %lld micro-batches",
          (long long)sequence_length, (long long)c->sequences, (long long)c->micro_count);
    *s = (struct slot){0};
    if (__builtin_mul_overflow(sequence_length, c->sequences, &rows) || rows > INT32_MAX - 1 ||
        c->micro_count > INT32_MAX ||
        __builtin_mul_overflow(per_micro = aligned(rows) * 3 + aligned(rows + 1), c->micro_count, &all) ||
        __builtin_mul_overflow(all, 4, &bytes))
        return FAIL(STATUS_CONFIG,
                    "%lld sequences of %lld tokens in %lld micro-batches: more than 2^31 "
                    "tokens in a micro-batch or 2^63 bytes",
                    (long long)c->sequences, (long long)sequence_length, (long long)c->micro_count);
    s->micro = calloc((size_t)c->micro_count, sizeof *s->micro);
    if (!s->micro)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %lld micro-batches", (long long)c->micro_count);
    TRY(memory_open(s, &c->memory, bytes));
    for (int64_t m = 0; m < c->micro_count; m++) {
        int32_t *at = (int32_t *)s->memory + m * per_micro;
        s->micro[m] = (struct batch){.rows = rows,
                                     .len_max = sequence_length,
                                     .tokens = at,
                                     .targets = at + aligned(rows),
                                     .positions = at + 2 * aligned(rows),
                                     .cu_seqlens = at + 3 * aligned(rows),
                                     .block = c->memory.open != NULL};
    }
    s->batch.micro = s->micro;
    s->batch.micro_count = (int)c->micro_count;
    return STATUS_OK;
}

void slot_close(struct slot *s)
{
    free(s->micro);
    if (s->memory && s->owner.close)
        s->owner.close(s->owner.ctx, s->memory);
    else
        free(s->memory);
    s->micro = NULL;
    s->memory = NULL;
}

/* The sequence being filled, and the list for its documents. */
struct row {
    int32_t *tokens, *targets, *positions; /* [T] */
    int32_t *cu;                           /* of the micro-batch */
    int64_t *docs;
    int64_t first; /* row of the micro-batch where the sequence begins */
    int64_t most;  /* rows of a piece of a document */
};

/* Positions of a document of rows [from, to) of the sequence, in pieces that do not see each other. */
static void put_document(struct row *r, int64_t from, int64_t to)
{
    for (int64_t piece = from; piece < to; piece += r->most) {
        const int64_t end = to - piece > r->most ? piece + r->most : to;
        r->cu[(*r->docs)++] = (int32_t)(r->first + piece);
        for (int64_t t = piece; t < end; t++) r->positions[t] = (int32_t)(t - piece);
    }
}

/* Documents packing: splits rows [from, to), which begin at token `at` of the stream, where documents begin.
 * `last` is the target of the last row. Returns how many targets are in another document than their input. */
static int64_t put_documents(const struct shard_set *set, const struct document_index *index, int64_t at,
                             struct row *r, int64_t from, int64_t to)
{
    int64_t start = from, crossing = 0, next = 0, high = index ? index->count : 0;
    while (next < high) { /* the first document that begins after `at` */
        int64_t mid = next + (high - next) / 2;
        if (index->starts[mid] <= at)
            next = mid + 1;
        else
            high = mid;
    }
    for (int64_t t = from; t < to; t++) {
        bool begins = index ? next < index->count && index->starts[next] == at + (t - from) + 1
                            : shard_set_document_begins(set, r->tokens[t], r->targets[t]);
        if (!begins) continue;
        next++;
        r->targets[t] = LOADER_IGNORE;
        crossing++;
        put_document(r, start, t + 1);
        start = t + 1;
    }
    if (start < to) put_document(r, start, to);
    return crossing;
}

/* Writes inputs and targets of a piece to rows [from, from + count) of the sequence. */
static status put_tokens(struct filler *f, const struct shard_set *set, const struct pack_piece *p,
                         struct row *r, int64_t from, int64_t t_count)
{
    const int64_t vocab = f->config->vocab_size;
    if (from + p->count <
        t_count) { /* writes the last target to the next row's input, which is overwritten later */
        TRY(shard_set_read(set, p->at, p->count + 1, vocab, r->tokens + from));
        memcpy(r->targets + from, r->tokens + from + 1, (size_t)p->count * 4);
        return STATUS_OK;
    }
    TRY(shard_set_read(set, p->at, p->count + 1, vocab, f->window));
    memcpy(r->tokens + from, f->window, (size_t)p->count * 4);
    memcpy(r->targets + from, f->window + 1, (size_t)p->count * 4);
    return STATUS_OK;
}

static status fill_sequence(struct filler *f, const struct sample_place *place, struct row *r,
                            struct fill_count *count)
{
    const struct samples_config *c = samples_config_of(f->samples);
    const struct shard_set *set = samples_set(f->samples, place->source);
    const int64_t t_count = c->sequence_length, pieces = samples_pieces(f->samples, place, f->pieces);
    int64_t t = 0;
    for (int64_t i = 0; i < pieces; i++) {
        const struct pack_piece *p = &f->pieces[i];
        TRY(put_tokens(f, set, p, r, t, t_count));
        int64_t ignored = 0;
        if (c->packing == LOADER_DOCUMENTS)
            ignored =
                put_documents(set, samples_documents(f->samples, place->source), p->at, r, t, t + p->count);
        else
            put_document(r, t, t + p->count);
        ignored += shard_set_mask(set, p->at + 1, p->count, LOADER_IGNORE, r->targets + t);
        count->valid += p->count - ignored;
        t += p->count;
    }
    if (t == t_count) return STATUS_OK;
    count->padding += t_count - t;
    memset(r->tokens + t, 0, (size_t)(t_count - t) * 4);
    for (int64_t k = t; k < t_count; k++) r->targets[k] = LOADER_IGNORE;
    /* Padding is a document of its own; in stream packing, where a document is a sequence, it is the
     * sequence's end. */
    if (c->packing != LOADER_STREAM || t == 0)
        put_document(r, t, t_count);
    else
        for (int64_t k = t; k < t_count; k++) r->positions[k] = (int32_t)k;
    return STATUS_OK;
}

status filler_run(struct filler *f, struct slot *s, int64_t step, int64_t m, struct fill_count *count)
{
    const int64_t t_count = samples_config_of(f->samples)->sequence_length;
    struct batch *b = &s->micro[m];
    int32_t *cu = (int32_t *)b->cu_seqlens;
    const struct loader_config *c = f->config;
    const int64_t first = c->batch.count
                              ? ramp_tokens(&c->batch, step)
                              : step * c->micro_count * c->sequences * (c->ranks > 0 ? c->ranks : 1);
    const int64_t most = c->length.count ? ramp_at(&c->length, first * t_count) : t_count;
    *count = (struct fill_count){0};
    b->docs = 0;
    for (int64_t q = 0; q < f->config->sequences; q++) {
        const int64_t at = q * t_count;
        struct sample_place place;
        struct row r = {.tokens = (int32_t *)b->tokens + at,
                        .targets = (int32_t *)b->targets + at,
                        .positions = (int32_t *)b->positions + at,
                        .cu = cu,
                        .docs = &b->docs,
                        .first = at,
                        .most = most};
        TRY(samples_place(f->samples, &f->cursor, loader_sample(f->config, step, m, q), &place));
        TRY(fill_sequence(f, &place, &r, count));
    }
    cu[b->docs] = (int32_t)b->rows;
    if (samples_config_of(f->samples)->packing != LOADER_STREAM || c->length.count)
        for (int64_t k = b->docs + 1; k <= b->rows; k++) cu[k] = (int32_t)b->rows;
    return STATUS_OK;
}
