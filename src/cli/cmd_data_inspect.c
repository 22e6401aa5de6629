/* ingot data inspect SHARDS: prints the contents of shards. */
#include "base/io.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cmd_data.h"
#include "data/shard/shard.h"
#include "data/shard/shard_tally.h"
#include "data/tokenizer/tokenizer.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum { BUCKETS = 40, DOCUMENT_TOKENS = 64, SHARDS_SHOWN = 8, UNUSED_SHOWN = 12, EXACT = 1 << 20 };

static const char *const eod_words[] = {
#define X(value, word) [EOD_##value] = (word),
    EOD_WORDS(X)
#undef X
};

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
    if (st == STATUS_OUT_OF_MEMORY || (st != STATUS_OK && named)) return st;
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
    if (named)
        return FAIL(
            STATUS_DATA,
            "%s: this is not the tokenizer that made the shards; without --tokenizer tokens are numbers",
            dir);
    log_warn("tokens are shown as numbers: %s is not the tokenizer that made the shards any more; "
             "--tokenizer DIR names it",
             dir);
    return STATUS_OK;
}

struct inspect_options {
    int64_t documents, document, top; /* beginnings shown; the one shown whole, or -1; frequent ids shown */
    const char *tokenizer_dir;        /* NULL: that of the manifest */
    bool json;
};

/* Lengths count tokens with the end-of-text token; histogram[k] counts documents of 2^k to 2^(k+1)-1
 * tokens. */
struct lengths {
    int64_t count, longest, median, p90, p99, histogram[BUCKETS];
};

/* What `inspect` knows after its pass. */
struct survey {
    struct shard_set set;
    struct shard_hints hints;
    struct tokenizer *tokenizer; /* NULL: unknown */
    struct shard_tally tally;
    struct document_index documents; /* starts NULL: unknown */
    struct lengths lengths;
    int64_t id_min, used, vocab_size; /* vocab_size: of the set, else of the tokenizer; 0 unknown */
    int64_t text_bytes;               /* 0 unknown */
    int64_t masked;                   /* tokens that are no targets */
};

/* Percentiles are exact below 2^20 tokens; longer documents count as 2^20. */
static status measure(const struct document_index *d, struct lengths *out)
{
    *out = (struct lengths){.count = d->count};
    int64_t *exact = calloc(EXACT + 1, sizeof *exact), seen = 0;
    if (!exact) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for lengths");
    for (int64_t i = 0; i < d->count; i++) {
        int64_t n = d->starts[i + 1] - d->starts[i];
        int k = 63 - __builtin_clzll((uint64_t)n);
        out->histogram[k < BUCKETS ? k : BUCKETS - 1]++;
        exact[n < EXACT ? n : EXACT]++;
        if (n > out->longest) out->longest = n;
    }
    for (int64_t n = 0; n <= EXACT; n++) {
        seen += exact[n];
        if (!out->median && 2 * seen >= d->count) out->median = n;
        if (!out->p90 && 10 * seen >= 9 * d->count) out->p90 = n;
        if (!out->p99 && 100 * seen >= 99 * d->count) out->p99 = n;
    }
    free(exact);
    return STATUS_OK;
}

static int64_t count_masked(const struct shard_set *set)
{
    int64_t masked = 0;
    for (int i = 0; i < set->count; i++) {
        const struct shard *s = &set->shards[i];
        for (int64_t t = 0; s->mask && t < s->count; t += 8) {
            int bits = s->count - t < 8 ? (int)(s->count - t) : 8;
            masked += bits - __builtin_popcount(s->mask[t / 8] & ((1 << bits) - 1));
        }
    }
    return masked;
}

static void survey_close(struct survey *s)
{
    shard_tally_close(&s->tally);
    document_index_free(&s->documents);
    if (s->tokenizer) tokenizer_free(s->tokenizer);
    shard_set_close(&s->set);
}

static status survey_run(struct survey *s)
{
    const struct shard_set *set = &s->set;
    TRY(shard_tally_set(&s->tally, set, set->vocab_size));
    if (set->bounded) TRY(shard_set_documents(set, &s->documents));
    if (set->bounded) TRY(measure(&s->documents, &s->lengths));
    const struct shard_tally *t = &s->tally;
    s->id_min = t->id_max;
    s->vocab_size = set->vocab_size;
    s->text_bytes = set->text_bytes;
    s->masked = count_masked(set);
    if (s->tokenizer && s->vocab_size == 0) s->vocab_size = tokenizer_vocab_size(s->tokenizer);
    for (int64_t id = t->ids - 1; id >= 0; id--) {
        if (t->counts[id] == 0) continue;
        s->used++;
        s->id_min = id;
        if (!s->tokenizer || set->text_bytes || id == set->eot) continue;
        s->text_bytes += t->counts[id] * (int64_t)tokenizer_bytes(s->tokenizer, (int32_t)id).bytes;
    }
    if (s->tokenizer && t->id_max >= tokenizer_vocab_size(s->tokenizer))
        log_warn("%s: ids up to %lld, but the tokenizer has %d: it is not the one that made these shards",
                 set->shards[0].path, (long long)t->id_max, tokenizer_vocab_size(s->tokenizer));
    return STATUS_OK;
}

/* The ids that stand most often, most often first; returns how many there are, at most `room`. */
static int most_frequent(const struct shard_tally *t, int room, int64_t *out)
{
    int n = 0;
    for (int64_t id = 0; id < t->ids; id++) {
        if (t->counts[id] == 0 || (n == room && t->counts[id] <= t->counts[out[n - 1]])) continue;
        int at = n < room ? n++ : n - 1;
        for (; at > 0 && t->counts[out[at - 1]] < t->counts[id]; at--) out[at] = out[at - 1];
        out[at] = id;
    }
    return n;
}

static void print_ids(const struct inspect_options *o, const struct survey *s)
{
    const struct shard_tally *t = &s->tally;
    int64_t *most = malloc((size_t)(o->top + 1) * sizeof *most);
    MEMORY_CHECK(most, "no memory for ids");
    int n = most_frequent(t, (int)o->top, most), shown = 0;
    printf("ids         %lld are used", (long long)s->used);
    if (s->vocab_size > 0 && s->vocab_size <= t->ids && s->vocab_size > s->used) {
        printf(" of %lld; %lld are not:", (long long)s->vocab_size, (long long)(s->vocab_size - s->used));
        for (int64_t id = 0; id < s->vocab_size && shown < UNUSED_SHOWN; id++)
            if (t->counts[id] == 0) shown++, printf(" %lld", (long long)id);
        if (s->vocab_size - s->used > shown) printf(" ...");
    }
    puts("");
    for (int i = 0; i < n; i++) {
        printf("  %8lld  %6.2f %%  ", (long long)most[i],
               100.0 * (double)t->counts[most[i]] / (double)s->set.tokens);
        if (s->tokenizer) putchar('\'');
        if (s->tokenizer) cmd_data_put_token(s->tokenizer, (int32_t)most[i], stdout);
        puts(s->tokenizer ? "'" : "");
    }
    free(most);
    int first = 1;
    for (int32_t id = 0; s->tokenizer && id < tokenizer_vocab_size(s->tokenizer) && id < t->ids; id++) {
        if (!tokenizer_added(s->tokenizer, id) || (t->counts[id] == 0 && id != s->set.eot)) continue;
        printf("%s%lld x ", first ? "special     " : ", ", (long long)t->counts[id]);
        cmd_data_put_token(s->tokenizer, id, stdout);
        first = 0;
        if (id == s->set.eot) printf(" (end of text)");
    }
    if (!first) puts("");
}

/* The text of tokens together: a letter may be split among them. Escapes as cmd_data_put_token. */
static void put_text(const struct tokenizer *tokenizer, const int32_t *ids, int64_t n)
{
    char *text = NULL;
    size_t bytes = 0;
    const status st = tokenizer ? tokenizer_decode(tokenizer, ids, n, &text, &bytes) : STATUS_OK;
    MEMORY_CHECK(st != STATUS_OUT_OF_MEMORY, "%s", status_message());
    if (!tokenizer || st != STATUS_OK) {
        for (int64_t i = 0; i < n; i++) cmd_data_put_token(NULL, ids[i], stdout);
        return;
    }
    for (size_t at = 0; at < bytes;) {
        size_t good = utf8_valid(text + at, bytes - at);
        for (size_t end = at + good; at < end; at++) {
            unsigned char c = (unsigned char)text[at];
            if (c == '\n')
                fputs("\\n", stdout);
            else if (c < 32 || c == 127)
                printf("\\x%02x", c);
            else
                putchar(c);
        }
        if (at < bytes) printf("\\x%02x", (unsigned char)text[at++]);
    }
    free(text);
}

static void print_lengths(const struct shard_set *set, const struct lengths *l)
{
    printf(
        "            %lld, mean %.1f tokens, median %lld, 90 %% up to %lld, 99 %% up to %lld, longest %lld\n",
        (long long)l->count, (double)set->tokens / (double)l->count, (long long)l->median, (long long)l->p90,
        (long long)l->p99, (long long)l->longest);
    int64_t most = 1;
    for (int k = 0; k < BUCKETS; k++) most = l->histogram[k] > most ? l->histogram[k] : most;
    for (int k = 0; k < BUCKETS; k++)
        if (l->histogram[k])
            printf("  %8lld to %8lld tokens  %9lld  %.*s\n", 1ll << k, (2ll << k) - 1,
                   (long long)l->histogram[k], (int)(40 * l->histogram[k] / most),
                   "########################################");
}

static void print_survey(const struct inspect_options *o, const struct survey *s)
{
    char a[32], b[32];
    const struct shard_set *set = &s->set;
    for (int i = 0; i < set->count && (i < SHARDS_SHOWN || set->count == SHARDS_SHOWN + 1); i++)
        printf("%s  %lld tokens of %d bytes\n", set->shards[i].path, (long long)set->shards[i].count,
               set->shards[i].width);
    if (set->count > SHARDS_SHOWN + 1) printf("... and %d more\n", set->count - SHARDS_SHOWN);
    printf("format      %s, %s%s\n", shard_format_word(set->format), shard_type_word(set->shards[0].type),
           set->manifest ? ", with a manifest" : "");
    printf("tokens      %lld (%s) in %d shard%s, ids %lld to %lld", (long long)set->tokens,
           text_count(a, (double)set->tokens), set->count, set->count == 1 ? "" : "s",
           (long long)(s->tally.id_max < 0 ? 0 : s->id_min),
           (long long)(s->tally.id_max < 0 ? 0 : s->tally.id_max));
    if (set->vocab_size) printf(", vocabulary %lld", (long long)set->vocab_size);
    printf("\n");
    if (s->text_bytes)
        printf("text        %s, %.3f bytes per token\n", text_bytes(b, (double)s->text_bytes),
               (double)s->text_bytes / (double)set->tokens);
    printf("tokenizer   %s\n", o->tokenizer_dir ? o->tokenizer_dir
                               : set->tokenizer_dir[0]
                                   ? set->tokenizer_dir
                                   : "unknown: there is no manifest; --tokenizer DIR names it");
    if (set->masked)
        printf("mask        %lld tokens are no targets (%.1f %%)\n", (long long)s->masked,
               100.0 * (double)s->masked / (double)(set->tokens ? set->tokens : 1));
    if (set->eot >= 0)
        printf("documents   end-of-text token %d, %s each document%s\n", set->eot, eod_words[set->eod],
               set->manifest || s->hints.eot >= 0 ? "" : " (assumed: there is no manifest)");
    else
        printf("documents   %s\n", set->bounded ? "by the index; no end-of-text token is known"
                                                : "unknown: --eot ID and --eod before|after name their ends");
    if (s->lengths.count) print_lengths(set, &s->lengths);
    if (set->tokens) print_ids(o, s);
}

/* Tokens [at, at+n) of the set; NULL when they cannot be read (*st says why). */
static int32_t *read_tokens(const struct shard_set *set, int64_t at, int64_t n, status *st)
{
    int32_t *ids = malloc((size_t)n * sizeof *ids + 1);
    *st = ids ? shard_set_read(set, at, n, set->vocab_size, ids)
              : FAIL(STATUS_OUT_OF_MEMORY, "no memory for a document");
    if (*st == STATUS_OK) return ids;
    free(ids);
    return NULL;
}

static status print_beginnings(const struct inspect_options *o, const struct survey *s)
{
    status st = STATUS_OK;
    int64_t count = s->documents.starts ? s->documents.count : s->set.tokens > 0;
    for (int64_t d = 0; d < count && d < o->documents && st == STATUS_OK; d++) {
        int64_t at = s->documents.starts ? s->documents.starts[d] : 0,
                length = (s->documents.starts ? s->documents.starts[d + 1] : s->set.tokens) - at,
                n = length < DOCUMENT_TOKENS ? length : DOCUMENT_TOKENS;
        int32_t *ids = read_tokens(&s->set, at, n, &st);
        if (!ids) break;
        if (s->documents.starts)
            printf("document %lld: ", (long long)d);
        else
            printf("the first tokens: ");
        put_text(s->tokenizer, ids, n);
        puts(n < length ? " ..." : "");
        free(ids);
    }
    return st;
}

/* Which of tokens [at, at+n) are targets: 1 or 0 each. */
static int32_t *targets_of(const struct shard_set *set, int64_t at, int64_t n)
{
    int32_t *targets = malloc((size_t)n * sizeof *targets + 1);
    MEMORY_CHECK(targets, "no memory for the targets of a document");
    for (int64_t i = 0; i < n; i++) targets[i] = 1;
    shard_set_mask(set, at, n, 0, targets);
    return targets;
}

/* The stretches of tokens that are targets, one per line. */
static void print_targets(const struct survey *s, const int32_t *ids, int64_t at, int64_t n)
{
    int32_t *targets = targets_of(&s->set, at, n);
    for (int64_t i = 0, to; i < n; i = to + 1) {
        for (to = i; to < n && targets[to]; to++)
            ;
        if (to == i) continue;
        printf("targets %lld-%lld: ", (long long)i, (long long)to - 1);
        put_text(s->tokenizer, ids + i, to - i);
        puts("");
    }
    free(targets);
}

static json_t *targets_json(const struct shard_set *set, int64_t at, int64_t n)
{
    int32_t *targets = targets_of(set, at, n);
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(targets[i]));
    free(targets);
    return list;
}

/* The whole of document o->document. */
static status print_document(const struct inspect_options *o, const struct survey *s)
{
    const struct shard_set *set = &s->set;
    const struct document_index *d = &s->documents;
    if (o->document >= d->count)
        return FAIL(STATUS_CONFIG, "--document %lld: there are %lld documents, counted from 0",
                    (long long)o->document, (long long)d->count);
    int64_t at = d->starts[o->document], n = d->starts[o->document + 1] - at;
    int shard = 0;
    while (set->starts[shard + 1] <= at) shard++;
    status st;
    int32_t *ids = read_tokens(set, at, n, &st);
    TRY(st);
    if (!o->json) {
        printf("document %lld: %lld tokens from token %lld of %s\n", (long long)o->document, (long long)n,
               (long long)(at - set->starts[shard]), set->shards[shard].path);
        put_text(s->tokenizer, ids, n);
        puts("");
        if (set->masked) print_targets(s, ids, at, n);
    } else {
        json_t *list = json_array(), *text = NULL;
        char *bytes = NULL;
        size_t length = 0;
        for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
        if (s->tokenizer) st = tokenizer_decode(s->tokenizer, ids, n, &bytes, &length);
        if (st == STATUS_OK && bytes) text = json_stringn(bytes, length); /* NULL: not UTF-8 */
        json_t *j = json_pack("{s:I, s:s, s:I, s:o, s:o}", "document", (json_int_t)o->document, "shard",
                              set->shards[shard].path, "shard_token", (json_int_t)(at - set->starts[shard]),
                              "tokens", list, "text", text ? text : json_null());
        if (j && set->masked) json_object_set_new(j, "targets", targets_json(set, at, n));
        if (j && st == STATUS_OK) json_dumpf(j, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
        if (j && st == STATUS_OK) puts("");
        json_decref(j);
        free(bytes);
    }
    free(ids);
    return st;
}

/* An id, how often, and its text as put_token shows it. */
static json_t *id_json(const struct survey *s, int64_t id)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = s->tokenizer ? memory_stream(&text, &bytes) : NULL;
    if (f) cmd_data_put_token(s->tokenizer, (int32_t)id, f);
    if (f) memory_stream_close(f);
    json_t *o = json_pack("{s:I, s:I, s:o}", "id", (json_int_t)id, "count", (json_int_t)s->tally.counts[id],
                          "text", text ? json_stringn(text, bytes) : json_null());
    free(text);
    return o;
}

static json_t *documents_json(const struct survey *s)
{
    const struct lengths *l = &s->lengths;
    if (!s->documents.starts) return json_null();
    return json_pack("{s:I, s:f, s:I, s:I, s:I, s:I}", "count", (json_int_t)l->count, "mean",
                     l->count ? (double)s->set.tokens / (double)l->count : 0.0, "median",
                     (json_int_t)l->median, "p90", (json_int_t)l->p90, "p99", (json_int_t)l->p99, "longest",
                     (json_int_t)l->longest);
}

static void print_survey_json(const struct inspect_options *o, const struct survey *s)
{
    const struct shard_set *set = &s->set;
    const struct shard_tally *t = &s->tally;
    json_t *shards = json_array(), *histogram = json_array(), *most = json_array(), *special = json_array();
    for (int i = 0; i < set->count; i++)
        json_array_append_new(shards, json_pack("{s:s, s:I, s:i}", "path", set->shards[i].path, "tokens",
                                                (json_int_t)set->shards[i].count, "token_bytes",
                                                set->shards[i].width));
    for (int k = 0; k < BUCKETS; k++)
        if (s->lengths.histogram[k])
            json_array_append_new(histogram, json_pack("{s:I, s:I}", "tokens_min", (json_int_t)(1ll << k),
                                                       "documents", (json_int_t)s->lengths.histogram[k]));
    int64_t *ids = malloc((size_t)(o->top + 1) * sizeof *ids);
    MEMORY_CHECK(ids, "no memory for ids");
    int n = most_frequent(t, (int)o->top, ids);
    for (int i = 0; i < n; i++) json_array_append_new(most, id_json(s, ids[i]));
    free(ids);
    for (int32_t id = 0; s->tokenizer && id < tokenizer_vocab_size(s->tokenizer) && id < t->ids; id++)
        if (tokenizer_added(s->tokenizer, id)) json_array_append_new(special, id_json(s, id));
    json_t *j = json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:i, s:s, s:s, s:s, s:I, "
                          "s:o, s:o, s:o, s:o}",
                          "shards", shards, "format", shard_format_word(set->format), "type",
                          shard_type_word(set->shards[0].type), "tokens", (json_int_t)set->tokens,
                          "text_bytes", (json_int_t)s->text_bytes, "vocab_size", (json_int_t)s->vocab_size,
                          "documents", (json_int_t)s->lengths.count, "id_min",
                          (json_int_t)(t->id_max < 0 ? 0 : s->id_min), "id_max", (json_int_t)t->id_max,
                          "ids_used", (json_int_t)s->used, "manifest", set->manifest, "eot", set->eot, "eod",
                          eod_words[set->eod], "tokenizer", set->tokenizer_dir, "tokenizer_sha256",
                          set->tokenizer_hash, "masked", (json_int_t)s->masked, "document_lengths",
                          documents_json(s), "lengths", histogram, "most_frequent", most, "special", special);
    if (j) json_dumpf(j, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(j);
    puts("");
}

/* u32 read as u16 shows a high half in every second place. */
static void warn_type(const struct shard *s)
{
    enum { LOOK = 4096 };
    int32_t ids[LOOK], high = 0;
    int64_t n = s->count < LOOK ? s->count : LOOK;
    if (s->format != SHARD_RAW || s->width != 2 || n < 16 || shard_read(s, 0, n, 0, ids) != STATUS_OK) return;
    for (int64_t i = 1; i < n; i += 2) high = ids[i] > high ? ids[i] : high;
    if (high < 16) log_warn("%s: every second id is 0 to %d: these look like uint32", s->path, high);
}

/* A build's prefix stands for its training shards. */
static status match(char *const *patterns, int count, struct shard_names *names)
{
    char manifest[PATH_MAX], train[PATH_MAX];
    const char *prefix = patterns[0];
    bool shard = count > 1, build = false;
    snprintf(manifest, sizeof manifest, "%s_manifest.json", prefix);
    if (!shard) TRY(io_exists(prefix, &shard));
    if (!shard) TRY(io_exists(manifest, &build));
    if (!build) return shard_match_all(patterns, count, names);
    if (snprintf(train, sizeof train, "%s_train_*", prefix) >= (int)sizeof train)
        return FAIL(STATUS_CONFIG, "%.40s...: the path is too long", prefix);
    char *one[] = {train};
    log_info("%s: its training shards; '%s_val_*' are those of validation", prefix, prefix);
    return shard_match_all(one, 1, names);
}

static status inspect_shards(const struct inspect_options *o, const struct shard_hints *hints, int count,
                             char *const *patterns)
{
    struct survey s = {.hints = *hints};
    struct shard_names names;
    char config[PATH_MAX];
    bool run = false;
    if (snprintf(config, sizeof config, "%s/config.yaml", patterns[0]) < (int)sizeof config)
        TRY(io_exists(config, &run));
    if (run)
        return FAIL(STATUS_CONFIG,
                    "%s is a run: --step N shows what a step of it saw; its shards are data.train of %s",
                    patterns[0], config);
    TRY(match(patterns, count, &names));
    status opened = shard_set_open_names(&s.set, &names, hints);
    shard_names_free(&names);
    TRY(opened);
    warn_type(&s.set.shards[0]);
    status st = cmd_data_tokenizer(&s.tokenizer, o->tokenizer_dir, &s.set);
    if (st == STATUS_OK && o->document >= 0) {
        st = shard_set_documents(&s.set, &s.documents);
        if (st == STATUS_OK) st = print_document(o, &s);
    } else if (st == STATUS_OK) {
        st = survey_run(&s);
        if (st == STATUS_OK && o->json) print_survey_json(o, &s);
        if (st == STATUS_OK && !o->json) print_survey(o, &s);
        if (st == STATUS_OK && !o->json) st = print_beginnings(o, &s);
    }
    survey_close(&s);
    return st;
}

status cmd_data_inspect(struct args *a)
{
    struct inspect_options o = {.documents = 3, .document = -1, .top = 10};
    struct cmd_data_step at = {.step = INT64_MIN, .ranks = 1, .micro = -1, .sequence = -1};
    struct cmd_data_hints h = CMD_DATA_HINTS_NONE;
    struct shard_hints hints;
    const struct flag flags[] = {FLAG("documents", &o.documents),
                                 FLAG("document", &o.document),
                                 FLAG("top", &o.top),
                                 FLAG("tokenizer", &o.tokenizer_dir),
                                 CMD_DATA_HINT_FLAGS(h),
                                 FLAG("step", &at.step),
                                 FLAG("rank", &at.rank),
                                 FLAG("ranks", &at.ranks),
                                 FLAG("micro", &at.micro),
                                 FLAG("sequence", &at.sequence),
                                 FLAG("full", &at.full),
                                 FLAG("json", &o.json)};
    TRY(args_parse(a, flags, COUNT(flags)));
    if (a->help) return STATUS_OK;
    TRY(args_words(a, 1, at.step == INT64_MIN ? INT_MAX : 1));
    at.tokenizer_dir = o.tokenizer_dir;
    at.json = o.json;
    if (at.step != INT64_MIN) return cmd_data_step(a, &at);
    if (a->key_count) return FAIL(STATUS_CONFIG, "%s: keys go with --step N", a->keys[0]);
    if (o.documents < 0 || o.top < 0 || o.top > 1 << 20 || o.document < -1)
        return FAIL(STATUS_CONFIG,
                    "--documents, --document and --top are not negative, and --top is at most 2^20");
    TRY(cmd_data_hints(&h, &hints));
    return inspect_shards(&o, &hints, a->word_count, a->words);
}
