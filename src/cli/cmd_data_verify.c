/* ingot data verify: everything that a shard and its manifest promise, checked token by token. */
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cmd_data.h"
#include "data/manifest.h"
#include "data/tokenizer.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define VERIFY_USAGE "data verify SHARDS|PREFIX_manifest.json ... [--vocab-size N]"

enum { CHUNK = 1 << 20 };

struct verify {
    int64_t vocab_size; /* for shards without a manifest; 0: not known */
    int32_t *chunk;     /* [CHUNK] */
    int64_t shards, bad, tokens;
};

struct tally {
    int64_t documents, text_bytes;
};

/* Reads all of a shard; `previous` is the last token before it (-1: none) and becomes its last one. */
static status tally_shard(struct verify *v, const struct shard_set *set, const struct tokenizer *tokenizer,
                          int32_t *previous, struct tally *out)
{
    *out = (struct tally){0};
    for (int64_t at = 0; at < set->tokens; at += CHUNK) {
        int64_t n = set->tokens - at < CHUNK ? set->tokens - at : CHUNK;
        TRY(shard_set_read(set, at, n, set->vocab_size ? set->vocab_size : v->vocab_size, v->chunk));
        for (int64_t i = 0; i < n; i++) {
            int32_t id = v->chunk[i];
            out->documents +=
                (*previous < 0 && set->eod == EOD_AFTER) || shard_set_document_begins(set, *previous, id);
            if (tokenizer && id != set->eot) out->text_bytes += (int64_t)tokenizer_bytes(tokenizer, id).bytes;
            *previous = id;
        }
    }
    return STATUS_OK;
}

static status check_row(struct verify *v, const char *path, const struct manifest_shard *row,
                        const struct tokenizer *tokenizer, int32_t *previous)
{
    struct shard_set set;
    struct tally tally;
    TRY(shard_set_open(&set, path));
    v->tokens += set.tokens;
    uint64_t hash = shard_hash(&set.shards[0]);
    status st = STATUS_OK;
    if (hash != row->xxh64)
        st = FAIL(STATUS_DATA, "%s: checksum %016llx, its manifest says %016llx: the file has changed", path,
                  (unsigned long long)hash, (unsigned long long)row->xxh64);
    if (st == STATUS_OK) st = tally_shard(v, &set, tokenizer, previous, &tally);
    if (st == STATUS_OK && set.eod != EOD_NONE && tally.documents != row->documents)
        st = FAIL(STATUS_DATA, "%s: %lld documents begin here, its manifest says %lld", path,
                  (long long)tally.documents, (long long)row->documents);
    if (st == STATUS_OK && tokenizer && tally.text_bytes != row->text_bytes)
        st = FAIL(STATUS_DATA, "%s: its tokens stand for %lld bytes of text, its manifest says %lld", path,
                  (long long)tally.text_bytes, (long long)row->text_bytes);
    shard_set_close(&set);
    return st;
}

static void say(struct verify *v, status st, const char *path)
{
    v->shards++;
    v->bad += st != STATUS_OK;
    if (st == STATUS_OK)
        printf("ok      %s\n", path);
    else
        printf("DAMAGED %s\n", status_message());
}

/* The tokenizer that made the shards, if it is still there; NULL with a warning otherwise. */
static struct tokenizer *load_tokenizer(const struct manifest *m, const char *path, int dir)
{
    char where[1024], hash[65];
    struct tokenizer *t = NULL;
    snprintf(where, sizeof where, "%.*s%s", m->tokenizer_dir[0] == '/' ? 0 : dir, path, m->tokenizer_dir);
    if (tokenizer_load(&t, where) != STATUS_OK) {
        log_warn("%s: text bytes are not checked: %s", path, status_message());
        return NULL;
    }
    tokenizer_hash(t, hash);
    if (strcmp(hash, m->tokenizer_hash) == 0) return t;
    log_warn("%s: text bytes are not checked: the tokenizer in %s is another one", path, where);
    tokenizer_free(t);
    return NULL;
}

static status verify_manifest(struct verify *v, const char *path)
{
    struct manifest m;
    TRY(manifest_read(&m, path));
    const char *slash = strrchr(path, '/');
    int dir = slash ? (int)(slash - path) + 1 : 0;
    struct tokenizer *tokenizer = load_tokenizer(&m, path, dir);
    int32_t previous = -1;
    for (int i = 0; i < m.count; i++) {
        char shard[1280];
        if (i > 0 && strcmp(m.shards[i].split, m.shards[i - 1].split) != 0) previous = -1;
        snprintf(shard, sizeof shard, "%.*s%s", dir, path, m.shards[i].file);
        say(v, check_row(v, shard, &m.shards[i], tokenizer, &previous), shard);
    }
    if (tokenizer) tokenizer_free(tokenizer);
    manifest_free(&m);
    return STATUS_OK;
}

/* Shards without a manifest: structure, and ids when the vocabulary is given. */
static void verify_foreign(struct verify *v, const struct shard_set *all)
{
    for (int i = 0; i < all->count; i++) {
        const struct shard *s = &all->shards[i];
        status st = STATUS_OK;
        for (int64_t at = 0; at < s->count && st == STATUS_OK; at += CHUNK)
            st = shard_read(s, at, s->count - at < CHUNK ? s->count - at : CHUNK, v->vocab_size, v->chunk);
        v->tokens += s->count;
        say(v, st, s->path);
    }
}

static status verify_argument(struct verify *v, const char *argument)
{
    size_t length = strlen(argument);
    if (length > 5 && strcmp(argument + length - 5, ".json") == 0) return verify_manifest(v, argument);
    struct shard_set set;
    char prefix[1024], last[1024] = "", path[1056];
    TRY(shard_set_open(&set, argument));
    status st = STATUS_OK;
    if (!set.manifest) verify_foreign(v, &set);
    for (int i = 0; set.manifest && i < set.count && st == STATUS_OK;
         i++) { /* the whole corpus of each prefix, once */
        if (!manifest_prefix(set.shards[i].path, prefix, sizeof prefix) || strcmp(prefix, last) == 0)
            continue;
        memcpy(last, prefix, sizeof last);
        snprintf(path, sizeof path, "%s_manifest.json", prefix);
        st = verify_manifest(v, path);
    }
    shard_set_close(&set);
    return st;
}

status cmd_data_verify(int argc, char **argv)
{
    struct verify v = {0};
    const struct flag flags[] = {
        {"vocab-size", FLAG_INT, &v.vocab_size,
         "ids at or above it are an error in shards without a manifest"},
    };
    int help;
    TRY(flags_parse(VERIFY_USAGE, flags, COUNT(flags), &argc, argv, 0, &help));
    if (help) return STATUS_OK;
    if (argc == 0) return FAIL(STATUS_CONFIG, "usage: ingot %s", VERIFY_USAGE);
    if (v.vocab_size < 0)
        return FAIL(STATUS_CONFIG, "--vocab-size %lld: a positive number is expected",
                    (long long)v.vocab_size);
    v.chunk = malloc(CHUNK * sizeof *v.chunk);
    CHECK(v.chunk, "no memory for a chunk");
    status st = STATUS_OK;
    for (int i = 0; i < argc && st == STATUS_OK; i++) st = verify_argument(&v, argv[i]);
    free(v.chunk);
    TRY(st);
    char tokens[32];
    if (v.bad)
        return FAIL(STATUS_DATA, "%lld of %lld shards are damaged", (long long)v.bad, (long long)v.shards);
    printf("%lld shards, %s tokens: all as they should be\n", (long long)v.shards,
           text_count(tokens, (double)v.tokens));
    return STATUS_OK;
}
