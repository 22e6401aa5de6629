/* Finds the starts of documents in a set. */
#include "base/io.h"
#include "base/parallel.h"
#include "data/text/array.h"
#include "data/shard/corpus_index.h"
#include "data/shard/shard_int.h"

#include <limits.h>
#include <stdlib.h>

struct list {
    int64_t *starts;
    size_t count, cap;
    int64_t at; /* tokens before the next document */
};

static status push(struct list *l, int64_t start)
{
    TRY(array_grow(&l->starts, &l->cap, l->count + 1, sizeof *l->starts));
    l->starts[l->count++] = start;
    return STATUS_OK;
}

static status push_document(void *ctx, int64_t tokens)
{
    struct list *l = ctx;
    if (tokens > 0) TRY(push(l, l->at));
    l->at += tokens;
    return STATUS_OK;
}

static status from_megatron(const struct shard_set *s, struct list *l)
{
    for (int i = 0; i < s->count; i++) TRY(shard_megatron_walk(&s->shards[i], push_document, l));
    return STATUS_OK;
}

status shard_index_open(struct corpus_index *x, const struct shard *s)
{
    char path[PATH_MAX];
    corpus_index_name(s->path, path, sizeof path);
    TRY(corpus_index_open(x, path));
    status st = STATUS_OK;
    if (x->xxh64 != s->index_xxh64 || x->tokens != s->count || x->documents != s->documents)
        st = FAIL(STATUS_DATA,
                  "%s: %lld documents in %lld tokens, checksum %016llx; the manifest says %lld in %lld, "
                  "%016llx: it "
                  "belongs to another build",
                  path, (long long)x->documents, (long long)x->tokens, (unsigned long long)x->xxh64,
                  (long long)s->documents, (long long)s->count, (unsigned long long)s->index_xxh64);
    if (st != STATUS_OK) corpus_index_close(x);
    return st;
}

static status from_indexes(const struct shard_set *s, struct list *l)
{
    for (int i = 0; i < s->count; i++) {
        const struct shard *shard = &s->shards[i];
        struct corpus_index x;
        TRY(shard_index_open(&x, shard));
        status st = array_grow(&l->starts, &l->cap, l->count + (size_t)x.documents + 2, sizeof *l->starts);
        if (st == STATUS_OK && l->count == 0 && shard->count > 0 && (x.documents == 0 || x.begins[0] != 0))
            l->starts[l->count++] = 0; /* the rest of a document of an earlier shard */
        for (int64_t d = 0; d < x.documents && st == STATUS_OK; d++)
            l->starts[l->count++] = s->starts[i] + x.begins[d];
        corpus_index_close(&x);
        TRY(st);
    }
    return STATUS_OK;
}

/* If an index was lost and the tokens give the same boundaries, uses them. */
static status use_indexes(const struct shard_set *s, bool *use)
{
    char path[PATH_MAX];
    *use = true;
    for (int i = 0; i < s->count && *use; i++) {
        *use = s->shards[i].indexed;
        corpus_index_name(s->shards[i].path, path, sizeof path);
        if (*use && s->eod != EOD_NONE) TRY(io_exists(path, use));
    }
    return STATUS_OK;
}

/* A piece of a shard, and where its tokens start documents in the stream. */
struct piece {
    int shard;
    int64_t from, count;
    int64_t *begins;
    size_t found, cap;
    status st;
};

enum { PIECE = 1 << 22, BLOCK = 1 << 14 };

static int64_t cut(const struct shard_set *s, struct piece *out)
{
    int64_t n = 0;
    for (int i = 0; i < s->count; i++)
        for (int64_t from = 0; from < s->shards[i].count; from += PIECE, n++) {
            int64_t rest = s->shards[i].count - from;
            if (out) out[n] = (struct piece){.shard = i, .from = from, .count = rest < PIECE ? rest : PIECE};
        }
    return n;
}

static status search(const struct shard_set *s, struct piece *p)
{
    const struct shard *shard = &s->shards[p->shard];
    int64_t places[BLOCK];
    for (int64_t at = p->from, end = p->from + p->count; at < end; at += BLOCK) {
        int64_t n = end - at < BLOCK ? end - at : BLOCK,
                base = s->starts[p->shard] + at + (s->eod == EOD_AFTER);
        int64_t found = shard_find_id(shard->type, shard->tokens + at * shard->width, n, s->eot, places, n);
        TRY(array_grow(&p->begins, &p->cap, p->found + (size_t)found, sizeof *p->begins));
        for (int64_t i = 0; i < found; i++) p->begins[p->found++] = base + places[i];
    }
    return STATUS_OK;
}

static status from_tokens(const struct shard_set *s, struct list *l)
{
    int64_t count = cut(s, NULL);
    struct piece *pieces;
    TRY(array_new(&pieces, (size_t)count, sizeof *pieces));
    cut(s, pieces);
    PARALLEL_CHUNKS(c, count) pieces[c].st = search(s, &pieces[c]);
    size_t all = s->tokens > 0; /* the stream begins with a document */
    status st = STATUS_OK;
    for (int64_t c = 0; c < count; c++) {
        all += pieces[c].found;
        if (pieces[c].st != STATUS_OK)
            st = FAIL(STATUS_OUT_OF_MEMORY, "no memory for the places of %zu documents", all);
    }
    if (st == STATUS_OK) st = array_grow(&l->starts, &l->cap, all + 1, sizeof *l->starts);
    if (st == STATUS_OK && s->tokens > 0) l->starts[l->count++] = 0;
    for (int64_t c = 0; c < count; c++) {
        for (size_t i = 0; i < pieces[c].found && st == STATUS_OK; i++) {
            int64_t begin = pieces[c].begins[i];
            if (begin > 0 && begin < s->tokens) l->starts[l->count++] = begin; /* no empty one at the end */
        }
        free(pieces[c].begins);
    }
    free(pieces);
    return st;
}

status shard_set_documents(const struct shard_set *s, struct document_index *out)
{
    *out = (struct document_index){0};
    if (!s->bounded)
        return FAIL(
            STATUS_DATA,
            "%s: nothing says where documents end: data.eot and data.eod (or --eot and --eod) name the "
            "end-of-text token and its place",
            s->shards[0].path);
    struct list l = {0};
    bool indexes = false;
    if (s->format != SHARD_MEGATRON) TRY(use_indexes(s, &indexes));
    status st = s->format == SHARD_MEGATRON ? from_megatron(s, &l)
                : indexes                   ? from_indexes(s, &l)
                                            : from_tokens(s, &l);
    if (st == STATUS_OK) st = push(&l, s->tokens);
    if (st != STATUS_OK) {
        free(l.starts);
        return st;
    }
    *out = (struct document_index){l.starts, (int64_t)l.count - 1};
    return STATUS_OK;
}

void document_index_free(struct document_index *d)
{
    free(d->starts);
    *d = (struct document_index){0};
}
