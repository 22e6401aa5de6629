/* ingot data verify: checks shards, manifests and indexes token by token. */
#include "base/clock.h"
#include "base/io.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cmd_data.h"
#include "data/shard/manifest.h"
#include "data/shard/shard_verify.h"
#include "data/tokenizer/tokenizer.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

struct verify {
    int64_t vocab_size; /* for shards without a manifest; 0: not known */
    const char *tokenizer_dir;
    struct shard_hints hints;
    json_t *list; /* NULL: lines for people */
    struct cmd_data_meter meter;
    int64_t shards, bad, tokens, unchecked;
    int64_t unread;   /* shards that the file system did not give */
    char reason[512]; /* of the first of them */
    json_t *changed;  /* manifests whose tokenizer is another one now; one line for each */
};

/* A shard that is missing, or no file, is damage to its corpus; one that the file system does not give may be sound. */
static bool is_unread(struct verify *v, const struct shard_check *check)
{
    enum io_kind kind;
    if (check->st != STATUS_IO) return false;
    if (io_kind(check->path, &kind) == STATUS_OK && kind != IO_FILE) return false;
    if (v->unread++ == 0) snprintf(v->reason, sizeof v->reason, "%s", check->message);
    return true;
}

static status run(struct verify *v, struct shard_check *checks, int count, struct shard_verify_config *c)
{
    c->progress = cmd_data_meter_show;
    c->ctx = &v->meter;
    cmd_data_meter_begin(&v->meter, "verified");
    status st = shard_verify(checks, count, c);
    cmd_data_meter_end(&v->meter);
    TRY(st);
    for (int i = 0; i < count; i++) {
        const struct shard_check *check = &checks[i];
        bool ok = check->st == STATUS_OK, unread = is_unread(v, check);
        v->shards++;
        v->bad += !ok && !unread;
        v->tokens += check->tokens;
        if (v->list)
            json_array_append_new(
                v->list, json_pack("{s:s, s:b, s:I, s:o, s:o}", "path", check->path, "ok", ok, "tokens",
                                   (json_int_t)check->tokens, "documents",
                                   ok && check->documents >= 0 ? json_integer(check->documents) : json_null(),
                                   "error", ok ? json_null() : json_string(check->message)));
        else if (ok)
            printf("ok      %s\n", check->path);
        else
            printf("%s %s\n", unread ? "UNREAD " : "DAMAGED", check->message);
    }
    return STATUS_OK;
}

/* Bytes of text of each id of the tokenizer that made the shards. NULL otherwise: with a warning when it is not there,
 * and a line in v->changed when it has changed. */
static uint32_t *token_bytes(struct verify *v, const struct manifest *m, const char *path, int dir)
{
    char where[1024], hash[65];
    struct tokenizer *t = NULL;
    snprintf(where, sizeof where, "%.*s%s", m->tokenizer_dir[0] == '/' ? 0 : dir, path, m->tokenizer_dir);
    if (!m->tokenizer_dir[0] || tokenizer_load(&t, where) != STATUS_OK) {
        log_warn("%s: text bytes are not checked: %s", path,
                 m->tokenizer_dir[0] ? status_message() : "it names no tokenizer");
        return NULL;
    }
    tokenizer_hash(t, hash);
    uint32_t *out = NULL;
    if (strcmp(hash, m->tokenizer_hash) == 0) {
        out = calloc((size_t)m->vocab_size, sizeof *out);
        MEMORY_CHECK(out, "no memory for %lld lengths", (long long)m->vocab_size);
        for (int32_t id = 0; id < m->vocab_size && id < tokenizer_vocab_size(t); id++)
            if (id != m->eot) out[id] = (uint32_t)tokenizer_bytes(t, id).bytes;
    } else {
        json_array_append_new(
            v->changed,
            json_sprintf("%s: the tokenizer in %s (%d ids, sha256 %.12s) is not the one that made "
                         "these shards (%lld ids, sha256 %.12s): put that one back, or build "
                         "them again",
                         path, where, (int)tokenizer_vocab_size(t), hash, (long long)m->vocab_size,
                         m->tokenizer_hash));
    }
    tokenizer_free(t);
    return out;
}

static status verify_manifest(struct verify *v, const char *path)
{
    struct manifest m;
    TRY(manifest_read(&m, path));
    const char *slash = strrchr(path, '/');
    int dir = slash ? (int)(slash - path) + 1 : 0;
    struct shard_verify_config c = {
        .hints = {.eot = m.eot, .eod = (int)m.eod}, .width = m.width, .vocab_size = m.vocab_size};
    struct shard_check *checks = calloc((size_t)m.count + 1, sizeof *checks);
    char(*paths)[PATH_MAX] = calloc((size_t)m.count + 1, sizeof *paths);
    MEMORY_CHECK(checks && paths, "no memory for %d shards", m.count);
    for (int i = 0; i < m.count; i++) {
        snprintf(paths[i], sizeof paths[i], "%.*s%s", dir, path, m.shards[i].file);
        checks[i].path = paths[i];
        checks[i].promise = &m.shards[i];
        checks[i].first = i == 0 || strcmp(m.shards[i].split, m.shards[i - 1].split) != 0;
    }
    uint32_t *lengths = token_bytes(v, &m, path, dir);
    c.token_bytes = lengths;
    status st = run(v, checks, m.count, &c);
    free(lengths);
    free(paths);
    free(checks);
    manifest_free(&m);
    return st;
}

/* Shards without a manifest: structure, ids when a vocabulary is known, the index when an end-of-text id
 * is. */
static status verify_foreign(struct verify *v, char *const *paths, int count, const struct shard_hints *hints,
                             int64_t vocab_size)
{
    struct shard_check *checks = calloc((size_t)count, sizeof *checks);
    MEMORY_CHECK(checks, "no memory for %d shards", count);
    for (int i = 0; i < count; i++) checks[i] = (struct shard_check){.path = paths[i], .first = i == 0};
    struct shard_verify_config c = {.hints = *hints,
                                    .vocab_size = v->vocab_size ? v->vocab_size : vocab_size};
    if (c.vocab_size == 0) v->unchecked += count;
    status st = run(v, checks, count, &c);
    free(checks);
    return st;
}

/* The manifests of the names, each once, then what has none. */
static status verify_names(struct verify *v, const struct shard_names *names, const struct shard_hints *hints,
                           int64_t vocab_size)
{
    char prefix[1024], last[1024] = "", path[1056];
    char **foreign = calloc((size_t)names->count, sizeof *foreign);
    MEMORY_CHECK(foreign, "no memory for %d names", names->count);
    int count = 0;
    status st = STATUS_OK;
    for (int i = 0; i < names->count && st == STATUS_OK; i++) {
        bool named = manifest_prefix(names->paths[i], prefix, sizeof prefix), there = false;
        if (named) snprintf(path, sizeof path, "%s_manifest.json", prefix);
        if (named) st = io_exists(path, &there);
        if (!there) {
            foreign[count++] = names->paths[i];
        } else if (strcmp(prefix, last) != 0) { /* the whole corpus of each prefix */
            memcpy(last, prefix, sizeof last);
            st = verify_manifest(v, path);
        }
    }
    if (st == STATUS_OK && count > 0) st = verify_foreign(v, foreign, count, hints, vocab_size);
    free(foreign);
    return st;
}

static status verify_argument(struct verify *v, const char *argument)
{
    size_t length = strlen(argument);
    if (length > 5 && strcmp(argument + length - 5, ".json") == 0) return verify_manifest(v, argument);
    char manifest[1056];
    int n = snprintf(manifest, sizeof manifest, "%s_manifest.json", argument);
    bool shard, build = false;
    TRY(io_exists(argument, &shard));
    if (!shard && n < (int)sizeof manifest) TRY(io_exists(manifest, &build));
    if (build) return verify_manifest(v, manifest);
    struct shard_names names;
    struct shard_set set;
    char why[1024];
    int64_t bad = v->bad + v->unread;
    TRY(shard_match(argument, &names));
    struct shard_hints hints = v->hints;
    int64_t vocab_size = 0;
    status opened = shard_set_open_as(&set, argument, &hints), st = opened;
    snprintf(why, sizeof why, "%s", status_message());
    if (opened == STATUS_OK) {
        hints.eot = set.eot;
        hints.eod = (int)set.eod;
        vocab_size = set.vocab_size;
        shard_set_close(&set);
    }
    /* One bad shard is no reason not to look at the others; a bad set without a bad shard is an error. */
    if (opened == STATUS_OK || (names.count > 1 && opened != STATUS_CONFIG)) {
        st = verify_names(v, &names, &hints, vocab_size);
        if (st == STATUS_OK && opened != STATUS_OK && v->bad + v->unread == bad) st = FAIL(opened, "%s", why);
    }
    shard_names_free(&names);
    return st;
}

static void print_json(struct verify *v)
{
    json_t *o = json_pack("{s:O, s:I, s:I, s:I, s:I, s:O}", "shards", v->list, "count", (json_int_t)v->shards,
                          "tokens", (json_int_t)v->tokens, "damaged", (json_int_t)v->bad, "unread",
                          (json_int_t)v->unread, "tokenizer_changed", v->changed);
    if (o) json_dumpf(o, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(o);
    puts("");
}

/* One line of error: of damage, else of the first tokenizer that has changed. */
static status judge(const struct verify *v)
{
    const size_t changed = json_array_size(v->changed);
    for (size_t i = v->bad ? 0 : 1; i < changed; i++)
        log_warn("%s", json_string_value(json_array_get(v->changed, i)));
    if (v->unread)
        return FAIL(STATUS_IO, "%lld of %lld shards cannot be read, %lld are damaged; the first: %s",
                    (long long)v->unread, (long long)v->shards, (long long)v->bad, v->reason);
    if (v->bad)
        return FAIL(STATUS_DATA, "%lld of %lld shards are damaged", (long long)v->bad, (long long)v->shards);
    return changed ? FAIL(STATUS_DATA, "%s", json_string_value(json_array_get(v->changed, 0))) : STATUS_OK;
}

status cmd_data_verify(struct args *a)
{
    struct verify v = {0};
    struct cmd_data_hints h = CMD_DATA_HINTS_NONE;
    bool json = false;
    const struct flag flags[] = {FLAG("vocab-size", &v.vocab_size), FLAG("tokenizer", &v.tokenizer_dir),
                                 CMD_DATA_HINT_FLAGS(h), FLAG("json", &json)};
    TRY(args_parse(a, flags, COUNT(flags)));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, INT_MAX));
    if (v.vocab_size < 0 || v.vocab_size > (int64_t)INT32_MAX + 1)
        return FAIL(STATUS_CONFIG, "--vocab-size %lld: 1 to 2147483648 is expected", (long long)v.vocab_size);
    if (v.vocab_size && v.tokenizer_dir)
        return FAIL(STATUS_CONFIG, "--vocab-size and --tokenizer exclude each other");
    TRY(cmd_data_hints(&h, &v.hints));
    if (v.tokenizer_dir) {
        struct tokenizer *t;
        TRY(tokenizer_load(&t, v.tokenizer_dir));
        v.vocab_size = tokenizer_vocab_size(t);
        tokenizer_free(t);
    }
    if (json) v.list = json_array();
    v.changed = json_array();
    status st = STATUS_OK;
    for (int i = 0; i < a->word_count && st == STATUS_OK; i++) st = verify_argument(&v, a->words[i]);
    if (st == STATUS_OK && json) print_json(&v);
    if (st == STATUS_OK) st = judge(&v);
    json_decref(v.list);
    json_decref(v.changed);
    TRY(st);
    char tokens[32];
    if (v.unchecked)
        log_warn(
            "%lld shards name no vocabulary: their ids are only known to lie below 2^31; --vocab-size or "
            "--tokenizer checks them",
            (long long)v.unchecked);
    if (!json)
        printf("%lld shard%s, %s tokens: all as they should be\n", (long long)v.shards,
               v.shards == 1 ? "" : "s", text_count(tokens, (double)v.tokens));
    return STATUS_OK;
}
