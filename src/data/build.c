/* Reading, cutting into records and writing are sequential and cheap; between them the records of one batch
 * (16 MiB of input) are put into groups of about 64 KiB, which depend on the input alone, and each group is
 * parsed and encoded by one thread. */
#include "data/build.h"

#include "base/io.h"
#include "base/log.h"
#include "base/parallel.h"
#include "data/corpus.h"
#include "data/tokenizer.h"

#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { GROUP_BYTES = 64 << 10, SKIPS_SHOWN = 5 };

struct piece { /* one document of a group */
    enum corpus_split split;
    int64_t tokens;
};
struct group {
    int64_t begin, end; /* records of the batch */
    int32_t *ids;
    int64_t id_count, id_room;
    struct piece *pieces;
    int64_t piece_count, piece_room;
    int64_t skipped;
    status st;         /* what ended the group */
    char message[512]; /* of st, or of the first record that was skipped */
};

struct build {
    const struct build_config *config;
    struct tokenizer *tokenizer;
    struct encoder **encoders; /* one per thread */
    int encoder_count;
    uint32_t *token_bytes;
    int32_t eot;
    struct corpus *corpus;
    struct reader *reader; /* of the current input */
    struct group *groups;
    int64_t group_room;
    struct build_progress progress;
    int64_t record_base, byte_base; /* records and bytes of the input before this batch and this file */
    int64_t tail_at;                /* TAIL: input byte from which documents are validation */
    int64_t skipped;
};

static void *room_for(void *array, int64_t *room, int64_t count, size_t size)
{
    if (count <= *room) return array;
    *room = count > 2 * *room ? count : 2 * *room;
    array = realloc(array, (size_t)*room * size);
    CHECK(array, "no memory for %lld elements of %zu bytes", (long long)*room, size);
    return array;
}

static status encode_text(struct build *b, struct group *g, struct encoder *e, const char *text, size_t bytes,
                          enum corpus_split split)
{
    const int32_t *ids;
    int64_t count;
    TRY(encoder_encode(e, text, bytes, SPECIALS_AS_TEXT, &ids, &count));
    enum eod eod = b->config->eod;
    g->ids = room_for(g->ids, &g->id_room, g->id_count + count + 1, sizeof *g->ids);
    g->pieces = room_for(g->pieces, &g->piece_room, g->piece_count + 1, sizeof *g->pieces);
    int32_t *to = g->ids + g->id_count;
    if (eod == EOD_BEFORE) *to++ = b->eot;
    memcpy(to, ids, (size_t)count * sizeof *ids);
    if (eod == EOD_AFTER) to[count] = b->eot;
    int64_t tokens = count + (eod != EOD_NONE);
    g->id_count += tokens;
    g->pieces[g->piece_count++] = (struct piece){split, tokens};
    return STATUS_OK;
}

static enum corpus_split split_of(const struct build *b, int64_t record, int64_t at,
                                  const struct reader_document *d)
{
    const struct build_config *c = b->config;
    bool val = false;
    switch (c->val) {
    case BUILD_VAL_NONE: break;
    case BUILD_VAL_HASH: val = (double)(XXH64(d->text, d->bytes, 0) >> 11) * 0x1p-53 < c->val_fraction; break;
    case BUILD_VAL_EVERY: val = record % c->val_every == c->val_every - 1; break;
    case BUILD_VAL_TAIL: val = at >= b->tail_at; break;
    }
    return val ? CORPUS_VAL : CORPUS_TRAIN;
}

/* Bytes of the last document that stay in training when the tail begins inside it; else all of them. */
static size_t tail_cut(const struct build *b, const struct reader_batch *batch, int64_t i, int64_t at,
                       const struct reader_document *d)
{
    bool last = batch->last && i == batch->count - 1 &&
                b->byte_base + batch->offset + (int64_t)batch->bytes == b->progress.bytes_total;
    if (b->config->val != BUILD_VAL_TAIL || !last || batch->format != READER_PLAIN || at >= b->tail_at)
        return d->bytes;
    int64_t from = b->tail_at - at;
    if (from >= (int64_t)d->bytes) return d->bytes;
    const char *lf = memchr(d->text + from, '\n', d->bytes - (size_t)from);
    return lf ? (size_t)(lf - d->text) + 1 : d->bytes;
}

static status encode_record(struct build *b, const struct reader_batch *batch, struct group *g,
                            struct encoder *e, int64_t i)
{
    struct reader_document d;
    TRY(reader_text(batch, i, b->config->reader.key, &d));
    int64_t at = b->byte_base + batch->offset + (int64_t)batch->records[i].at;
    size_t cut = tail_cut(b, batch, i, at, &d);
    status st = STATUS_OK;
    if (d.bytes > 0) st = encode_text(b, g, e, d.text, cut, split_of(b, b->record_base + i, at, &d));
    if (st == STATUS_OK && cut < d.bytes) st = encode_text(b, g, e, d.text + cut, d.bytes - cut, CORPUS_VAL);
    reader_document_free(&d);
    return st;
}

static void encode_group(struct build *b, const struct reader_batch *batch, struct group *g)
{
    struct encoder *e = b->encoders[omp_get_thread_num()];
    g->id_count = g->piece_count = g->skipped = 0;
    g->st = STATUS_OK;
    for (int64_t i = g->begin; i < g->end; i++) {
        status st = encode_record(b, batch, g, e, i);
        if (st == STATUS_OK) continue;
        bool skip = st == STATUS_DATA && b->config->skip_errors;
        if (!skip || g->skipped == 0) snprintf(g->message, sizeof g->message, "%s", status_message());
        g->skipped += skip;
        if (skip) continue;
        g->st = st; /* with its message: the error record is this thread's */
        return;
    }
}

static int64_t make_groups(struct build *b, const struct reader_batch *batch)
{
    int64_t count = 0;
    for (int64_t i = 0; i < batch->count; count++) {
        if (count == b->group_room) {
            int64_t before = b->group_room;
            b->groups = room_for(b->groups, &b->group_room, count + 1, sizeof *b->groups);
            memset(b->groups + before, 0, (size_t)(b->group_room - before) * sizeof *b->groups);
        }
        struct group *g = &b->groups[count];
        g->begin = i;
        for (size_t bytes = 0; i < batch->count && bytes < GROUP_BYTES; i++)
            bytes += batch->records[i].bytes + 1;
        g->end = i;
    }
    return count;
}

static status write_group(struct build *b, const struct group *g)
{
    if (g->st != STATUS_OK) return FAIL(g->st, "%s", g->message);
    if (g->skipped > 0 && b->skipped < SKIPS_SHOWN) log_warn("skipped: %s", g->message);
    b->skipped += g->skipped;
    const int32_t *ids = g->ids;
    for (int64_t i = 0; i < g->piece_count; i++) {
        TRY(corpus_add(b->corpus, g->pieces[i].split, ids, g->pieces[i].tokens));
        ids += g->pieces[i].tokens;
        b->progress.tokens += g->pieces[i].tokens;
    }
    b->progress.documents += g->piece_count;
    return STATUS_OK;
}

static status build_file(struct build *b, struct reader *r)
{
    struct reader_batch batch;
    for (;;) {
        bool more;
        TRY(reader_next(r, &batch, &more));
        if (!more) return STATUS_OK;
        int64_t count = make_groups(b, &batch);
        PARALLEL_CHUNKS(c, count) encode_group(b, &batch, &b->groups[c]);
        for (int64_t i = 0; i < count; i++) TRY(write_group(b, &b->groups[i]));
        b->record_base += batch.count;
        b->progress.bytes_done = b->byte_base + batch.offset + (int64_t)batch.bytes;
        if (b->config->progress) b->config->progress(&b->progress, b->config->ctx);
    }
}

/* `to` as seen from directory `from`; absolute when the two share no more than the root. */
static status relative_path(const char *from, const char *to, char *out, size_t size)
{
    char a[PATH_MAX], z[PATH_MAX];
    if (!realpath(from, a)) return FAIL(STATUS_IO, "%s: cannot resolve the path", from);
    if (!realpath(to, z)) return FAIL(STATUS_IO, "%s: cannot resolve the path", to);
    size_t same = 0; /* the common directories end here */
    for (size_t i = 0;; i++) {
        bool a_end = a[i] == '/' || !a[i], z_end = z[i] == '/' || !z[i];
        if (a_end && z_end) same = i;
        if (a[i] != z[i] || !a[i]) break;
    }
    size_t used = 0;
    if (same == 0) {
        used = (size_t)snprintf(out, size, "%s", z);
    } else {
        for (const char *p = a + same; *p; p++)
            if (*p == '/')
                used +=
                    (size_t)snprintf(out + (used < size ? used : size), used < size ? size - used : 0, "../");
        const char *rest = z[same] ? z + same + 1 : ".";
        used +=
            (size_t)snprintf(out + (used < size ? used : size), used < size ? size - used : 0, "%s", rest);
    }
    return used < size ? STATUS_OK : FAIL(STATUS_CONFIG, "%s: the tokenizer's path is too long", to);
}

static status open_tokenizer(struct build *b)
{
    const struct build_config *c = b->config;
    TRY(tokenizer_load(&b->tokenizer, c->tokenizer_dir));
    b->eot = tokenizer_eot(b->tokenizer);
    if (b->eot < 0 && c->eod != EOD_NONE)
        return FAIL(STATUS_CONFIG, "%s: the tokenizer has no end-of-text token; use --eod none",
                    c->tokenizer_dir);
    int32_t vocab = tokenizer_vocab_size(b->tokenizer);
    b->token_bytes = calloc((size_t)vocab, sizeof *b->token_bytes);
    b->encoder_count = parallel_threads();
    b->encoders = calloc((size_t)b->encoder_count, sizeof *b->encoders);
    CHECK(b->token_bytes && b->encoders, "no memory for a table of %d tokens", vocab);
    for (int32_t i = 0; i < vocab; i++)
        b->token_bytes[i] = i == b->eot ? 0 : (uint32_t)tokenizer_bytes(b->tokenizer, i).bytes;
    for (int i = 0; i < b->encoder_count; i++) TRY(encoder_open(&b->encoders[i], b->tokenizer));
    return STATUS_OK;
}

static status open_inputs(struct build *b)
{
    const struct build_config *c = b->config;
    for (int i = 0; i < c->input_count; i++) {
        /* Looked at before the work begins, and closed again: a descriptor for each would be too many. */
        TRY(reader_open(&b->reader, c->inputs[i], &c->reader));
        b->progress.bytes_total += reader_bytes(b->reader);
        reader_close(b->reader);
        b->reader = NULL;
    }
    b->tail_at = b->progress.bytes_total - (int64_t)(c->val_fraction * (double)b->progress.bytes_total);
    return STATUS_OK;
}

static status check_parts(const struct build *b)
{
    struct manifest_sum train = corpus_sum(b->corpus, CORPUS_TRAIN), val = corpus_sum(b->corpus, CORPUS_VAL);
    if (train.tokens == 0)
        return FAIL(STATUS_DATA, "no text for training in the input (%lld documents skipped)",
                    (long long)b->skipped);
    if (val.tokens == 0 && b->config->val != BUILD_VAL_NONE)
        return FAIL(STATUS_DATA,
                    "none of %lld documents fell into the validation part; choose a larger part, or "
                    "--val-tail for few documents",
                    (long long)train.documents);
    return STATUS_OK;
}

static status finish(struct build *b, struct build_report *report)
{
    const struct build_config *c = b->config;
    TRY(check_parts(b));
    struct manifest m = {.vocab_size = tokenizer_vocab_size(b->tokenizer),
                         .eot = b->eot,
                         .eod = c->eod,
                         .skipped = b->skipped};
    tokenizer_hash(b->tokenizer, m.tokenizer_hash);
    const char *slash = strrchr(c->prefix, '/');
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - c->prefix) + 1 : 1, slash ? c->prefix : ".");
    status st = relative_path(dir, c->tokenizer_dir, m.tokenizer_dir, sizeof m.tokenizer_dir);
    report->skipped = b->skipped;
    if (st == STATUS_OK) st = corpus_commit(&b->corpus, &m);
    report->train = manifest_split(&m, "train");
    report->val = manifest_split(&m, "val");
    manifest_free(&m);
    return st;
}

static void build_free(struct build *b)
{
    corpus_abandon(&b->corpus);
    reader_close(b->reader);
    for (int i = 0; b->encoders && i < b->encoder_count; i++)
        if (b->encoders[i]) encoder_close(b->encoders[i]);
    for (int64_t i = 0; i < b->group_room; i++) {
        free(b->groups[i].ids);
        free(b->groups[i].pieces);
    }
    free(b->groups);
    free(b->encoders);
    free(b->token_bytes);
    if (b->tokenizer) tokenizer_free(b->tokenizer);
}

status build_run(const struct build_config *config, struct build_report *report)
{
    struct build b = {.config = config};
    *report = (struct build_report){0};
    CHECK(config->input_count > 0, "no input");
    status st;
    TRY_OUT(open_tokenizer(&b));
    TRY_OUT(open_inputs(&b));
    TRY_OUT(corpus_open(&b.corpus, &(struct corpus_config){.prefix = config->prefix,
                                                           .vocab_size = tokenizer_vocab_size(b.tokenizer),
                                                           .token_bytes = b.token_bytes,
                                                           .shard_tokens = config->shard_tokens,
                                                           .force = config->force}));
    for (int i = 0; i < config->input_count; i++) {
        TRY_OUT(reader_open(&b.reader, config->inputs[i], &config->reader));
        TRY_OUT(build_file(&b, b.reader));
        b.byte_base += reader_bytes(b.reader);
        reader_close(b.reader);
        b.reader = NULL;
    }
    TRY_OUT(finish(&b, report));
out:
    build_free(&b);
    return st;
}
