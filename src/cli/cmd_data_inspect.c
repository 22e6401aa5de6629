/* ingot data inspect SHARDS: what shards hold. */
#include "base/log.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cmd_data.h"
#include "data/shard.h"
#include "data/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define INSPECT_USAGE                                                                                        \
    "data inspect SHARDS [--documents N] [--json]   |   data inspect RUN|RUN.yaml|SHARDS --step N [...]   "  \
    "(data inspect --step=1 --help)"

enum { CHUNK = 1 << 20, BUCKETS = 32, DOCUMENT_TOKENS = 64 };

void cmd_data_put_token(const struct tokenizer *tokenizer, int32_t id, FILE *out)
{
    if (!tokenizer) {
        fprintf(out, "%d ", id);
        return;
    }
    struct text t = tokenizer_bytes(tokenizer, id);
    bool valid = utf8_valid(t.data, t.bytes) == t.bytes;
    for (size_t i = 0; i < t.bytes; i++) {
        unsigned char c = (unsigned char)t.data[i];
        if (c == '\n')
            fputs("\\n", out);
        else if (c < 32 || c == 127 || (!valid && c >= 128))
            fprintf(out, "\\x%02x", c);
        else
            fputc(c, out);
    }
}

status cmd_data_tokenizer(struct tokenizer **t, const char *named, const struct shard_set *set)
{
    const char *dir = named ? named : set->tokenizer_dir;
    *t = NULL;
    if (!dir[0]) return STATUS_OK;
    status st = tokenizer_load(t, dir);
    if (st != STATUS_OK && named) return st;
    if (st != STATUS_OK) {
        log_warn("tokens are shown as numbers: %s; --tokenizer DIR names another place", status_message());
        *t = NULL;
        return STATUS_OK;
    }
    char hash[65];
    tokenizer_hash(*t, hash);
    if (!set->tokenizer_hash[0] || strcmp(hash, set->tokenizer_hash) == 0) return STATUS_OK;
    tokenizer_free(*t);
    *t = NULL;
    return FAIL(STATUS_DATA, "%s: this is not the tokenizer that made the shards; --tokenizer names it", dir);
}

/* One pass over all tokens. Lengths count tokens with the end-of-text token; histogram[k] counts documents of
 * 2^k to 2^(k+1)-1 tokens. */
struct survey {
    int32_t id_min, id_max;
    int64_t documents, longest, histogram[BUCKETS];
};

static void end_document(struct survey *s, int64_t length)
{
    if (length == 0) return;
    int k = 63 - __builtin_clzll((uint64_t)length);
    s->documents++;
    s->histogram[k < BUCKETS ? k : BUCKETS - 1]++;
    if (length > s->longest) s->longest = length;
}

static status survey_run(const struct shard_set *set, struct survey *s)
{
    int32_t *ids = malloc(CHUNK * sizeof *ids), previous = -1;
    CHECK(ids, "no memory for a chunk");
    *s = (struct survey){.id_min = INT32_MAX, .id_max = -1};
    int64_t length = 0;
    status st = STATUS_OK;
    for (int64_t at = 0; at < set->tokens && st == STATUS_OK; at += CHUNK) {
        int64_t n = set->tokens - at < CHUNK ? set->tokens - at : CHUNK;
        st = shard_set_read(set, at, n, set->vocab_size, ids);
        for (int64_t i = 0; i < n && st == STATUS_OK; i++) {
            if (ids[i] < s->id_min) s->id_min = ids[i];
            if (ids[i] > s->id_max) s->id_max = ids[i];
            if (shard_set_document_begins(set, previous, ids[i])) {
                end_document(s, length);
                length = 0;
            }
            length++;
            previous = ids[i];
        }
    }
    if (set->eod != EOD_NONE) end_document(s, length);
    free(ids);
    return st;
}

static void print_survey(const struct shard_set *set, const struct survey *s)
{
    static const char *const eods[] = {[EOD_NONE] = "none", [EOD_BEFORE] = "before", [EOD_AFTER] = "after"};
    char a[32], b[32];
    for (int i = 0; i < set->count; i++)
        printf("%s  %lld tokens of %d bytes\n", set->shards[i].path, (long long)set->shards[i].count,
               set->shards[i].width);
    printf("tokens      %lld (%s) in %d shards, ids %d to %d", (long long)set->tokens,
           text_count(a, (double)set->tokens), set->count, s->id_max < 0 ? 0 : s->id_min, s->id_max);
    if (set->vocab_size) printf(", vocabulary %lld", (long long)set->vocab_size);
    printf("\n");
    if (set->text_bytes)
        printf("text        %s, %.3f bytes per token\n", text_bytes(b, (double)set->text_bytes),
               (double)set->text_bytes / (double)set->tokens);
    printf("tokenizer   %s\n", set->tokenizer_dir[0] ? set->tokenizer_dir : "unknown: there is no manifest");
    printf("documents   end-of-text token %d, %s each document%s\n", set->eot, eods[set->eod],
           set->manifest ? "" : " (assumed: there is no manifest)");
    if (set->eod == EOD_NONE || s->documents == 0) return;
    printf("            %lld, mean %.1f tokens, longest %lld\n", (long long)s->documents,
           (double)set->tokens / (double)s->documents, (long long)s->longest);
    int64_t most = 1;
    for (int k = 0; k < BUCKETS; k++) most = s->histogram[k] > most ? s->histogram[k] : most;
    for (int k = 0; k < BUCKETS; k++)
        if (s->histogram[k])
            printf("  %8lld to %8lld tokens  %9lld  %.*s\n", 1ll << k, (2ll << k) - 1,
                   (long long)s->histogram[k], (int)(40 * s->histogram[k] / most),
                   "########################################");
}

static status print_documents(const struct inspect_options *o, const struct tokenizer *tokenizer,
                              const struct shard_set *set)
{
    int64_t room = 1 << 16, n = set->tokens < room ? set->tokens : room, shown = 0, in_document = 0;
    int32_t *ids = malloc((size_t)room * sizeof *ids);
    CHECK(ids, "no memory for a chunk");
    status st = shard_set_read(set, 0, n, set->vocab_size, ids);
    for (int64_t i = 0; i < n && st == STATUS_OK; i++, in_document++) {
        if (i == 0 || shard_set_document_begins(set, ids[i - 1], ids[i])) {
            if (shown == o->documents) break;
            printf("%sdocument %lld: ", shown ? "\n" : "", (long long)shown);
            shown++;
            in_document = 0;
        }
        if (in_document < DOCUMENT_TOKENS)
            cmd_data_put_token(tokenizer, ids[i], stdout);
        else if (in_document == DOCUMENT_TOKENS)
            fputs(" ...", stdout);
    }
    if (shown) puts("");
    free(ids);
    return st;
}

static void print_survey_json(const struct shard_set *set, const struct survey *s)
{
    static const char *const eods[] = {[EOD_NONE] = "none", [EOD_BEFORE] = "before", [EOD_AFTER] = "after"};
    json_t *shards = json_array(), *histogram = json_array();
    for (int i = 0; i < set->count; i++)
        json_array_append_new(shards, json_pack("{s:s, s:I, s:i}", "path", set->shards[i].path, "tokens",
                                                (json_int_t)set->shards[i].count, "token_bytes",
                                                set->shards[i].width));
    for (int k = 0; k < BUCKETS; k++)
        if (s->histogram[k])
            json_array_append_new(histogram, json_pack("{s:I, s:I}", "tokens_min", (json_int_t)(1ll << k),
                                                       "documents", (json_int_t)s->histogram[k]));
    json_t *o =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:i, s:i, s:b, s:i, s:s, s:s, s:s, s:I, s:o}", "shards", shards,
                  "tokens", (json_int_t)set->tokens, "text_bytes", (json_int_t)set->text_bytes, "vocab_size",
                  (json_int_t)set->vocab_size, "documents", (json_int_t)s->documents, "id_min",
                  s->id_max < 0 ? 0 : s->id_min, "id_max", s->id_max, "manifest", set->manifest, "eot",
                  set->eot, "eod", eods[set->eod], "tokenizer", set->tokenizer_dir, "tokenizer_sha256",
                  set->tokenizer_hash, "longest", (json_int_t)s->longest, "lengths", histogram);
    if (o) json_dumpf(o, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(o);
    puts("");
}

static status inspect_shards(const struct inspect_options *o, const char *pattern)
{
    struct shard_set set;
    struct tokenizer *tokenizer = NULL;
    struct survey survey;
    TRY(shard_set_open(&set, pattern));
    status st = survey_run(&set, &survey);
    if (st == STATUS_OK && o->json) print_survey_json(&set, &survey);
    if (st == STATUS_OK && !o->json) {
        st = cmd_data_tokenizer(&tokenizer, o->tokenizer_dir, &set);
        if (st == STATUS_OK) print_survey(&set, &survey);
        if (st == STATUS_OK && o->documents > 0) st = print_documents(o, tokenizer, &set);
        if (tokenizer) tokenizer_free(tokenizer);
    }
    shard_set_close(&set);
    return st;
}

status cmd_data_inspect(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--step") == 0 || strncmp(argv[i], "--step=", 7) == 0)
            return cmd_data_step(argc, argv);
    struct inspect_options o = {.documents = 3};
    const struct flag flags[] = {
        {"documents", FLAG_INT, &o.documents,
         "shards: show the beginnings of the first N documents; default 3"},
        {"tokenizer", FLAG_TEXT, &o.tokenizer_dir,
         "directory with tokenizer.json; default: the one the manifest names"},
        {"json", FLAG_SWITCH, &o.json, "JSON"},
    };
    int help;
    TRY(flags_parse(INSPECT_USAGE, flags, COUNT(flags), &argc, argv, 0, &help));
    if (help) return STATUS_OK;
    if (argc != 1 || o.documents < 0) return FAIL(STATUS_CONFIG, "usage: ingot %s", INSPECT_USAGE);
    return inspect_shards(&o, argv[0]);
}
