/* Each shard is opened first, with its index. Then units of work, a complete shard or a piece of one, run
 * on all threads. Each processes blocks small enough to stay in the cache for all checks. */
#include "data/shard/shard_verify.h"

#include "base/parallel.h"
#include "data/text/array.h"
#include "data/shard/corpus_index.h"
#include "data/shard/shard_int.h"
#include "data/shard/shard_tally.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCK = 1 << 14, PIECE = 1 << 24 };

/* One open shard. Documents begin at `begins` by its index (ingot's: u32, mapped; Megatron's: i64, iterated). */
struct row {
    struct shard shard;
    struct corpus_index index;
    int64_t *walked;
    size_t walked_count, walked_cap;
    int64_t walked_at;
    bool has_index;
    int32_t last; /* its last token; -1: none, or not open */
};

struct unit {
    int64_t row, from, count;
    int64_t documents; /* found */
    status st;
    char message[768];
};

struct job {
    struct shard_check *checks;
    const struct shard_verify_config *config;
    struct row *rows;
    struct unit *units;
    int64_t row_count, unit_count, done, total;
    pthread_mutex_t lock;
};

static int64_t begin_count(const struct row *r)
{
    return r->shard.format == SHARD_MEGATRON ? (int64_t)r->walked_count : r->index.documents;
}

static int64_t begin_at(const struct row *r, int64_t i)
{
    return r->shard.format == SHARD_MEGATRON ? r->walked[i] : (int64_t)r->index.begins[i];
}

static status push_begin(void *ctx, int64_t tokens)
{
    struct row *r = ctx;
    if (tokens > 0) {
        TRY(array_grow(&r->walked, &r->walked_cap, r->walked_count + 1, sizeof *r->walked));
        r->walked[r->walked_count++] = r->walked_at;
    }
    r->walked_at += tokens;
    return STATUS_OK;
}

static status open_row(struct row *r, const struct shard_check *check, const struct shard_verify_config *c)
{
    struct shard *s = &r->shard;
    const struct manifest_shard *promise = check->promise;
    r->last = -1;
    TRY(shard_open_as(s, check->path, c->hints.type));
    if (promise && (promise->tokens != s->count || (c->width != 0 && c->width != s->width)))
        return FAIL(STATUS_DATA, "%s: %lld tokens of %d bytes, its manifest says %lld of %d", s->path,
                    (long long)s->count, s->width, (long long)promise->tokens, c->width);
    if (promise && s->format == SHARD_LLMC) TRY(shard_llmc_reserved(s));
    if (s->count > 0 && shard_copy(s->type, s->tokens + (s->count - 1) * s->width, 1, &r->last) > INT32_MAX)
        r->last = -1; /* the range check reports it */
    if (promise) TRY(shard_blocks_copy(&s->blocks, &promise->blocks));
    TRY(shard_verify_reads(s));
    if (promise && promise->masked) TRY(shard_open_mask(s, promise->mask_xxh64));
    if (s->format == SHARD_MEGATRON) {
        r->has_index = true;
        return shard_megatron_walk(s, push_begin, r);
    }
    if (!promise || !promise->indexed) return STATUS_OK;
    r->has_index = true;
    s->documents = promise->documents;
    s->index_xxh64 = promise->index_xxh64;
    return shard_index_open(&r->index, s);
}

static void row_close(struct row *r)
{
    corpus_index_close(&r->index);
    free(r->walked);
    shard_close(&r->shard);
}

/* The first entry of the index at or after token `at`. */
static int64_t lower_bound(const struct row *r, int64_t at)
{
    int64_t low = 0, high = begin_count(r);
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (begin_at(r, mid) < at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Compares the document starts of the tokens with those of the index. */
struct cursor {
    const struct row *row;
    int64_t next, documents;
    int32_t eot;
};

static status disagree(const struct cursor *k, int64_t token)
{
    const struct row *r = k->row;
    if (k->next < begin_count(r) && begin_at(r, k->next) < token)
        return FAIL(STATUS_DATA,
                    "%s: by its index document %lld begins at token %lld, but no end-of-text token %d stands "
                    "there",
                    r->shard.path, (long long)k->next, (long long)begin_at(r, k->next), k->eot);
    return FAIL(STATUS_DATA,
                "%s: by the end-of-text token %d a document begins at token %lld, but not by its index",
                r->shard.path, k->eot, (long long)token);
}

static status step(struct cursor *k, int64_t token)
{
    k->documents++;
    if (!k->row->has_index) return STATUS_OK;
    if (k->next >= begin_count(k->row) || begin_at(k->row, k->next) != token) return disagree(k, token);
    k->next++;
    return STATUS_OK;
}

static status check_block(const struct job *j, const struct unit *u, struct cursor *k, int64_t at, int64_t n,
                          int64_t *places)
{
    const struct shard *s = &j->rows[u->row].shard;
    const struct shard_hints *h = &j->config->hints;
    int64_t found = shard_find_id(s->type, s->tokens + at * s->width, n, h->eot, places, n);
    for (int64_t i = 0; i < found && i < n; i++) {
        int64_t token = at + places[i] + (h->eod == EOD_AFTER);
        if (token == s->count) continue; /* the next shard's check covers it */
        /* Each file of Megatron begins with a document, whatever its first token is. */
        if (token == 0 && s->format == SHARD_MEGATRON) continue;
        TRY(step(k, token));
    }
    return STATUS_OK;
}

/* True: a document begins with the shard's first token for another reason than that token. */
static bool begins_at_zero(const struct job *j, const struct unit *u)
{
    const struct row *r = &j->rows[u->row];
    const struct shard_check *check = &j->checks[u->row];
    if (u->from != 0 || r->shard.count == 0) return false;
    if (r->shard.format == SHARD_MEGATRON) return true;
    if (j->config->hints.eod != EOD_AFTER) return false;
    if (check->first || u->row == 0) return true;
    const struct row *before = &j->rows[u->row - 1];
    return before->last == j->config->hints.eot;
}

static bool documents_known(const struct shard_hints *h)
{
    return h->eot >= 0 && (h->eod == EOD_BEFORE || h->eod == EOD_AFTER);
}

static void show(struct job *j, int64_t bytes)
{
    if (!j->config->progress) return;
    pthread_mutex_lock(&j->lock);
    j->done += bytes;
    j->config->progress(j->config->ctx, j->done, j->total);
    pthread_mutex_unlock(&j->lock);
}

/* The pass over the tokens of a unit; outputs that are NULL are skipped. */
static status scan(struct job *j, struct unit *u, XXH64_state_t *hash, struct shard_tally *tally,
                   int32_t *ids, int64_t *places)
{
    const struct shard *s = &j->rows[u->row].shard;
    int64_t vocab = j->config->vocab_size ? j->config->vocab_size : s->vocab_size, shown = 0;
    struct cursor k = {.row = &j->rows[u->row], .eot = j->config->hints.eot};
    bool after = j->config->hints.eod == EOD_AFTER, documents = documents_known(&j->config->hints);
    if (documents) k.next = u->from == 0 ? 0 : lower_bound(k.row, u->from + after);
    if (documents && begins_at_zero(j, u)) TRY(step(&k, 0));
    for (int64_t at = u->from, end = u->from + u->count; at < end;) {
        int64_t n = end - at < BLOCK ? end - at : BLOCK;
        const uint8_t *from = s->tokens + at * s->width;
        if (hash) XXH64_update(hash, from, (size_t)(n * s->width));
        TRY(shard_blocks_check(s, at, n));
        if (tally)
            TRY(shard_tally_add(tally, s, at, n, vocab));
        else
            TRY(shard_read(s, at, n, vocab, ids));
        if (documents) TRY(check_block(j, u, &k, at, n, places));
        at += n;
        if (at - shown < PIECE && at < end) continue;
        show(j, (at - shown) * s->width);
        shown = at;
    }
    int64_t end = u->from + u->count;
    if (documents && k.row->has_index) {
        int64_t stop = end == s->count ? begin_count(k.row) : lower_bound(k.row, end + after);
        if (k.next < stop) return disagree(&k, INT64_MAX);
    }
    u->documents = k.documents;
    return STATUS_OK;
}

static status check_promise(const struct job *j, const struct unit *u, XXH64_state_t *hash,
                            struct shard_tally *tally)
{
    const struct manifest_shard *promise = j->checks[u->row].promise;
    const char *path = j->rows[u->row].shard.path;
    uint64_t sum = XXH64_digest(hash);
    if (sum != promise->xxh64)
        return FAIL(STATUS_DATA, "%s: checksum %016llx, its manifest says %016llx: the file has changed",
                    path, (unsigned long long)sum, (unsigned long long)promise->xxh64);
    if (documents_known(&j->config->hints) && u->documents != promise->documents)
        return FAIL(STATUS_DATA, "%s: %lld documents begin here, its manifest says %lld", path,
                    (long long)u->documents, (long long)promise->documents);
    if (!tally) return STATUS_OK;
    int64_t text = 0;
    shard_tally_flush(tally);
    for (int64_t i = 0; i < tally->ids; i++) text += tally->counts[i] * j->config->token_bytes[i];
    if (text != promise->text_bytes)
        return FAIL(STATUS_DATA, "%s: its tokens stand for %lld bytes of text, its manifest says %lld", path,
                    (long long)text, (long long)promise->text_bytes);
    return STATUS_OK;
}

static void run_unit(struct job *j, struct unit *u)
{
    const struct shard *s = &j->rows[u->row].shard;
    struct shard_tally tally = {0};
    XXH64_state_t *hash = NULL;
    bool promised = j->checks[u->row].promise, texts = promised && j->config->token_bytes;
    int64_t *places = malloc(BLOCK * sizeof *places);
    int32_t *ids = malloc(BLOCK * sizeof *ids);
    if (promised) hash = XXH64_createState();
    if (!places || !ids || (promised && !hash))
        u->st = FAIL(STATUS_OUT_OF_MEMORY, "no memory to check %s", s->path);
    if (u->st == STATUS_OK && texts) u->st = shard_tally_open(&tally, s, j->config->vocab_size);
    if (hash) XXH64_reset(hash, 0);
    if (u->st == STATUS_OK) u->st = scan(j, u, hash, texts ? &tally : NULL, ids, places);
    /* A wrong checksum explains all other errors, so it is reported first: reads the rest of the file for it. */
    if (u->st == STATUS_DATA && hash && shard_hash(s) != j->checks[u->row].promise->xxh64) {
        XXH64_reset(hash, 0);
        XXH64_update(hash, s->tokens, (size_t)(s->count * s->width));
        u->st = check_promise(j, u, hash, NULL);
    } else if (u->st == STATUS_OK && hash) {
        u->st = check_promise(j, u, hash, texts ? &tally : NULL);
    }
    if (u->st != STATUS_OK) snprintf(u->message, sizeof u->message, "%s", status_message());
    shard_tally_close(&tally);
    XXH64_freeState(hash);
    free(places);
    free(ids);
}

/* Units are whole shards if there is a checksum, else pieces. */
static status cut(struct job *j)
{
    size_t cap = 0;
    for (int64_t r = 0; r < j->row_count; r++) {
        const struct shard_check *check = &j->checks[r];
        int64_t count = j->rows[r].shard.count, from = 0;
        if (check->st != STATUS_OK) continue;
        do {
            int64_t n = check->promise || count - from < PIECE ? count - from : PIECE;
            TRY(array_grow(&j->units, &cap, (size_t)j->unit_count + 1, sizeof *j->units));
            j->units[j->unit_count++] = (struct unit){.row = r, .from = from, .count = n};
            from += n;
            j->total += n * j->rows[r].shard.width;
        } while (from < count);
    }
    return STATUS_OK;
}

static void gather(struct job *j)
{
    for (int64_t i = 0; i < j->unit_count; i++) {
        const struct unit *u = &j->units[i];
        struct shard_check *check = &j->checks[u->row];
        if (check->documents >= 0) check->documents += u->documents;
        if (u->st == STATUS_OK || check->st != STATUS_OK) continue;
        check->st = u->st;
        snprintf(check->message, sizeof check->message, "%s", u->message);
    }
}

/* A shard that could not be looked at for want of memory is not a damaged one. */
static status memory_sufficed(const struct job *j)
{
    for (int64_t r = 0; r < j->row_count; r++)
        if (j->checks[r].st == STATUS_OUT_OF_MEMORY)
            return FAIL(STATUS_OUT_OF_MEMORY, "%s", j->checks[r].message);
    return STATUS_OK;
}

status shard_verify(struct shard_check *checks, int64_t count, const struct shard_verify_config *c)
{
    struct job j = {.checks = checks, .config = c, .row_count = count};
    TRY(array_new(&j.rows, (size_t)count, sizeof *j.rows));
    pthread_mutex_init(&j.lock, NULL);
    PARALLEL_CHUNKS(r, count)
    {
        struct shard_check *check = &checks[r];
        check->st = open_row(&j.rows[r], check, c);
        check->message[0] = 0;
        if (check->st != STATUS_OK) snprintf(check->message, sizeof check->message, "%s", status_message());
        check->tokens = j.rows[r].shard.count;
        bool walked = j.rows[r].shard.format == SHARD_MEGATRON && !documents_known(&c->hints);
        check->documents = walked ? (int64_t)j.rows[r].walked_count : documents_known(&c->hints) ? 0 : -1;
    }
    status st = cut(&j);
    if (st == STATUS_OK) {
        PARALLEL_CHUNKS(u, j.unit_count) run_unit(&j, &j.units[u]);
        gather(&j);
        st = memory_sufficed(&j);
    }
    for (int64_t r = 0; r < count; r++) row_close(&j.rows[r]);
    pthread_mutex_destroy(&j.lock);
    free(j.rows);
    free(j.units);
    return st;
}
