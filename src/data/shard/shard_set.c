/* Several shards as one stream, with the data of their manifest. */
#include "base/io.h"
#include "data/text/array.h"
#include "data/shard/manifest.h"
#include "data/shard/shard.h"
#include "data/shard/shard_int.h"
#include "spec/spec.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LLMC_GPT2_EOT = 50256, LLMC_LLAMA3_EOT = 128000 };

/* Natural order: digits by value, so x_2 comes before x_10. */
static int natural(const void *left, const void *right)
{
    const char *const *x = left, *const *y = right;
    const unsigned char *a = (const unsigned char *)*x, *b = (const unsigned char *)*y;
    while (*a && *b) {
        if (!isdigit(*a) || !isdigit(*b)) {
            if (*a != *b) return *a < *b ? -1 : 1;
            a++, b++;
            continue;
        }
        while (*a == '0') a++;
        while (*b == '0') b++;
        size_t n = 0, m = 0;
        while (isdigit(a[n])) n++;
        while (isdigit(b[m])) m++;
        int order = n != m ? (n < m ? -1 : 1) : memcmp(a, b, n);
        if (order != 0) return order;
        a += n, b += m;
    }
    if (*a || *b) return *a ? 1 : -1;
    return strcmp(*x, *y); /* equal except for leading zeros */
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* What a pattern matches in addition to shards: their indexes, masks and manifests. */
static bool passed_over(const char *path)
{
    return ends_in(path, ".idx") || ends_in(path, ".mask") || ends_in(path, "_manifest.json");
}

/* What a user may have meant by a name that matches nothing. */
static status no_match(const char *pattern)
{
    struct stat there;
    if (stat(pattern, &there) != 0 && errno == EACCES)
        return FAIL(STATUS_IO, "%s: permission denied; check owner and permissions", pattern);
    char manifest[PATH_MAX];
    int n = snprintf(manifest, sizeof manifest, "%s_manifest.json", pattern);
    bool build = false;
    if (n < (int)sizeof manifest) TRY(io_exists(manifest, &build));
    if (build)
        return FAIL(STATUS_DATA, "'%s' is the prefix of a build; its shards are '%s_train_*' and '%s_val_*'",
                    pattern, pattern, pattern);
    return FAIL(STATUS_DATA, "no shard matches '%s'; `ingot data build` makes shards of text", pattern);
}

/* The shard that is called `pattern`; *one NULL: it is a pattern. Megatron's data set also goes by its index, or by its
 * prefix: then *one is `with`. */
static status match_name(const char *pattern, char with[PATH_MAX], const char **one)
{
    bool there, other = false;
    TRY(io_exists(pattern, &there));
    *one = there ? pattern : NULL;
    const int length = (int)strlen(pattern) - (there ? (int)strlen(".idx") : 0);
    if (there && !ends_in(pattern, ".idx")) return STATUS_OK;
    if (snprintf(with, PATH_MAX, "%.*s.bin", length, pattern) < PATH_MAX) TRY(io_exists(with, &other));
    if (other) *one = with;
    return STATUS_OK;
}

status shard_match(const char *pattern, struct shard_names *out)
{
    struct io_list found = {0};
    char with[PATH_MAX];
    const char *one;
    *out = (struct shard_names){0};
    TRY(match_name(pattern, with, &one));
    if (!one) TRY(io_match(pattern, &found));
    size_t most = one ? 1 : (size_t)found.count;
    status st = STATUS_OK;
    CHECK(most < INT32_MAX, "'%s' matches %zu files", pattern, most);
    TRY_OUT(array_new(&out->paths, most, sizeof *out->paths));
    for (size_t i = 0; i < most; i++) {
        const char *name = one ? one : found.names[i];
        if (!one && passed_over(name)) continue;
        MEMORY_CHECK(out->paths[out->count] = strdup(name), "no memory for a name");
        out->count++;
    }
    qsort(out->paths, (size_t)out->count, sizeof *out->paths, natural);
    if (out->count == 0) st = no_match(pattern);
    if (st == STATUS_OK && ends_in(out->paths[0], "_manifest.json"))
        st = FAIL(STATUS_DATA, "%s is a manifest; name its shards, as in '%.*s_train_*'", pattern,
                  (int)(strlen(pattern) - strlen("_manifest.json")), pattern);
    enum io_kind kind = IO_NONE;
    if (st == STATUS_OK) st = io_kind(out->paths[0], &kind);
    if (st == STATUS_OK && kind == IO_DIR)
        st = FAIL(STATUS_DATA, "'%s' is a directory; name its shards, as in '%s/*.bin'", out->paths[0],
                  out->paths[0]);
out:
    io_list_free(&found);
    if (st != STATUS_OK) shard_names_free(out);
    return st;
}

status shard_match_all(char *const *patterns, int count, struct shard_names *out)
{
    size_t cap = 0;
    *out = (struct shard_names){0};
    status st = STATUS_OK;
    for (int i = 0; i < count && st == STATUS_OK; i++) {
        struct shard_names more;
        if (count > 1 && passed_over(patterns[i])) continue; /* a shell expanded a pattern */
        TRY_OUT(shard_match(patterns[i], &more));
        st = array_grow(&out->paths, &cap, (size_t)(out->count + more.count), sizeof *out->paths);
        for (int k = 0; k < more.count && st == STATUS_OK; k++) {
            out->paths[out->count++] = more.paths[k];
            more.paths[k] = NULL;
        }
        shard_names_free(&more);
    }
    if (st == STATUS_OK && out->count == 0) st = FAIL(STATUS_DATA, "none of these names is a shard's");
out:
    if (st != STATUS_OK) shard_names_free(out);
    return st;
}

void shard_names_free(struct shard_names *n)
{
    for (int i = 0; i < n->count; i++) free(n->paths[i]);
    free(n->paths);
    *n = (struct shard_names){0};
}

static status check_alike(const struct shard *a, const struct shard *b)
{
    if (a->format != b->format)
        return FAIL(STATUS_DATA, "%s is of format %s, %s of %s: a set has one format", b->path,
                    shard_format_word(b->format), a->path, shard_format_word(a->format));
    if (a->width != b->width)
        return FAIL(STATUS_DATA, "%s has %d bytes per token, %s has %d: they cannot be of one tokenizer",
                    b->path, b->width, a->path, a->width);
    if (a->vocab_size != b->vocab_size)
        return FAIL(STATUS_DATA, "%s has a vocabulary of %lld ids, %s of %lld: they are of two tokenizers",
                    b->path, (long long)b->vocab_size, a->path, (long long)a->vocab_size);
    return STATUS_OK;
}

static status open_shards(struct shard_set *s, const struct shard_names *names, enum shard_type type)
{
    TRY(array_new(&s->shards, (size_t)names->count, sizeof *s->shards));
    TRY(array_new(&s->starts, (size_t)names->count + 1, sizeof *s->starts));
    for (int i = 0; i < names->count; i++) {
        struct shard *shard = &s->shards[i];
        TRY(shard_open_as(shard, names->paths[i], type));
        s->count = i + 1;
        if (__builtin_add_overflow(s->tokens, shard->count, &s->tokens))
            return FAIL(STATUS_DATA, "%s: with it the set has more than 2^63 tokens", shard->path);
        s->starts[i + 1] = s->tokens;
        s->documents += shard->documents;
        s->masked = s->masked || shard->mask;
        TRY(check_alike(&s->shards[0], shard));
    }
    s->format = s->shards[0].format;
    s->vocab_size = s->shards[0].vocab_size;
    return STATUS_OK;
}

/* The tokenizer's directory from here, if it is given relative to the manifest. */
static status place_tokenizer(struct shard_set *s, const struct manifest *m, const char *prefix)
{
    const char *slash = strrchr(prefix, '/');
    int dir = slash && m->tokenizer_dir[0] && m->tokenizer_dir[0] != '/' ? (int)(slash - prefix) + 1 : 0;
    int n = snprintf(s->tokenizer_dir, sizeof s->tokenizer_dir, "%.*s%s", dir, prefix, m->tokenizer_dir);
    return n < (int)sizeof s->tokenizer_dir
               ? STATUS_OK
               : FAIL(STATUS_DATA, "%s: the tokenizer's path is too long", prefix);
}

static status take_manifest(struct shard_set *s, const struct manifest *m, const char *prefix,
                            const struct shard *first)
{
    if (!s->manifest) {
        s->manifest = true;
        s->documents = 0; /* the manifest counts them, match_row adds */
        s->vocab_size = m->vocab_size;
        s->eot = m->eot;
        s->eod = m->eod;
        memcpy(s->tokenizer_hash, m->tokenizer_hash, sizeof s->tokenizer_hash);
        return place_tokenizer(s, m, prefix);
    }
    if (strcmp(s->tokenizer_hash, m->tokenizer_hash) != 0)
        return FAIL(STATUS_DATA, "%s and %s were made with different tokenizers", s->shards[0].path,
                    first->path);
    if (s->eot != m->eot || s->eod != m->eod)
        return FAIL(STATUS_DATA, "%s and %s mark the ends of documents in different ways", s->shards[0].path,
                    first->path);
    return STATUS_OK;
}

/* Adds the manifest's data about this shard. `split` is that of the shards before it, "" at first. */
static status match_row(struct shard_set *s, const struct manifest *m, const char *prefix,
                        struct shard *shard, char split[64])
{
    const char *slash = strrchr(shard->path, '/'), *name = slash ? slash + 1 : shard->path;
    for (int i = 0; i < m->count; i++) {
        const struct manifest_shard *row = &m->shards[i];
        if (strcmp(row->file, name) != 0) continue;
        if (row->tokens != shard->count || m->width != shard->width)
            return FAIL(STATUS_DATA, "%s: %lld tokens of %d bytes, but %s_manifest.json says %lld of %d",
                        shard->path, (long long)shard->count, shard->width, prefix, (long long)row->tokens,
                        m->width);
        if (split[0] && strcmp(split, row->split) != 0) s->mixed = true;
        snprintf(split, 64, "%s", row->split);
        s->documents += row->documents;
        shard->documents = row->documents;
        shard->xxh64 = row->xxh64;
        TRY(shard_blocks_copy(&shard->blocks, &row->blocks));
        shard->indexed = row->indexed;
        shard->index_xxh64 = row->index_xxh64;
        s->text_bytes += row->text_bytes;
        if (!row->masked) return STATUS_OK;
        s->masked = true;
        return shard_open_mask(shard, row->mask_xxh64);
    }
    return FAIL(STATUS_DATA, "%s: not listed in %s_manifest.json; it belongs to another build", shard->path,
                prefix);
}

/* Reads each manifest once: name order groups the shards of a prefix. */
static status read_manifests(struct shard_set *s)
{
    struct manifest m = {0};
    char prefix[1024] = "", path[1056], split[64] = "";
    status st = STATUS_OK;
    int with = 0;
    for (int i = 0; i < s->count; i++) {
        char now[sizeof prefix];
        bool there;
        struct shard *shard = &s->shards[i];
        if (!manifest_prefix(shard->path, now, sizeof now)) continue;
        snprintf(path, sizeof path, "%s_manifest.pending", now);
        TRY_OUT(io_exists(path, &there));
        if (there) {
            st = FAIL(STATUS_DATA, "%s: its build was interrupted (%s exists); build again with --force",
                      shard->path, path);
            goto out;
        }
        snprintf(path, sizeof path, "%s_manifest.json", now);
        TRY_OUT(io_exists(path, &there));
        if (!there) continue;
        if (strcmp(now, prefix) != 0) {
            manifest_free(&m);
            TRY_OUT(manifest_read(&m, path));
            memcpy(prefix, now, sizeof prefix);
            TRY_OUT(take_manifest(s, &m, prefix, shard));
        }
        TRY_OUT(match_row(s, &m, prefix, shard, split));
        with++;
    }
    if (with != 0 && with != s->count)
        st = FAIL(STATUS_DATA,
                  "%d of %d shards have a manifest: shards of ingot and of other programs cannot be one set",
                  with, s->count);
out:
    manifest_free(&m);
    return st;
}

/* Without a manifest: the hints, else the conventions of the format's writers. */
static status take_hints(struct shard_set *s, const struct shard_hints *h)
{
    static const int habits[SHARD_FORMAT_COUNT] = {[SHARD_LLMC] = EOD_BEFORE,
                                                   [SHARD_LLMQ] = EOD_AFTER,
                                                   [SHARD_MEGATRON] = EOD_AFTER,
                                                   [SHARD_NPY] = EOD_AUTO,
                                                   [SHARD_RAW] = EOD_AUTO};
    const char *path = s->shards[0].path;
    s->eot = h->eot;
    if (h->eot == EOT_AUTO && s->format == SHARD_LLMC)
        s->eot = s->shards[0].width == 2 ? LLMC_GPT2_EOT : LLMC_LLAMA3_EOT;
    int eod = h->eod != EOD_AUTO ? h->eod : s->eot == EOT_AUTO ? (int)EOD_NONE : habits[s->format];
    if (eod == EOD_AUTO)
        return FAIL(STATUS_CONFIG,
                    "%s: the end-of-text id %d is given, but not where it stands: data.eod or --eod says "
                    "before or after each document",
                    path, s->eot);
    if (eod != EOD_NONE && s->eot == EOT_AUTO)
        return FAIL(STATUS_CONFIG,
                    "%s: data.eod or --eod needs the end-of-text id, which %s files do not hold: data.eot or "
                    "--eot",
                    path, shard_format_word(s->format));
    if (s->vocab_size > 0 && s->eot >= s->vocab_size)
        return FAIL(STATUS_CONFIG, "%s: the end-of-text id %d lies outside its vocabulary of %lld ids", path,
                    s->eot, (long long)s->vocab_size);
    s->eod = (enum eod)eod;
    return STATUS_OK;
}

static status check_hints(const struct shard_set *s, const struct shard_hints *h)
{
    static const char *const words[] = {
#define X(value, word) [EOD_##value] = (word),
        EOD_WORDS(X)
#undef X
    };
    const char *path = s->shards[0].path;
    if (h->eot != EOT_AUTO && h->eot != s->eot)
        return FAIL(STATUS_CONFIG, "%s: its manifest says end-of-text id %d, data.eot or --eot says %d", path,
                    s->eot, h->eot);
    if (h->eod != EOD_AUTO && h->eod != (int)s->eod)
        return FAIL(STATUS_CONFIG,
                    "%s: its manifest says the end-of-text token stands '%s', data.eod or --eod says '%s'",
                    path, words[s->eod], words[h->eod]);
    return STATUS_OK;
}

struct shard_hints shard_hints_of(const struct run_spec *r)
{
    static const enum shard_type types[] = {[TOKENS_AUTO] = SHARD_TYPE_UNKNOWN,
                                            [TOKENS_UINT16] = SHARD_TYPE_U16,
                                            [TOKENS_UINT32] = SHARD_TYPE_U32,
                                            [TOKENS_INT32] = SHARD_TYPE_I32,
                                            [TOKENS_INT64] = SHARD_TYPE_I64};
    static const int eods[] = {
        [ENDS_AUTO] = EOD_AUTO, [ENDS_NONE] = EOD_NONE, [ENDS_BEFORE] = EOD_BEFORE, [ENDS_AFTER] = EOD_AFTER};
    struct shard_hints none = {SHARD_TYPE_UNKNOWN, EOT_AUTO, EOD_AUTO};
    if (!r) return none;
    return (struct shard_hints){types[r->data_dtype], (int32_t)r->data_eot, eods[r->data_eod]};
}

status shard_set_open_names(struct shard_set *s, const struct shard_names *names,
                            const struct shard_hints *hints)
{
    *s = (struct shard_set){.eot = -1};
    status st = open_shards(s, names, hints->type);
    if (st == STATUS_OK) st = read_manifests(s);
    if (st == STATUS_OK) st = s->manifest ? check_hints(s, hints) : take_hints(s, hints);
    bool indexed = true;
    for (int i = 0; i < s->count; i++) indexed = indexed && s->shards[i].indexed;
    s->bounded = indexed || s->format == SHARD_MEGATRON || (s->eod != EOD_NONE && s->eot >= 0);
    if (st != STATUS_OK) shard_set_close(s);
    return st;
}

status shard_set_open_as(struct shard_set *s, const char *pattern, const struct shard_hints *hints)
{
    struct shard_names names;
    *s = (struct shard_set){.eot = -1};
    TRY(shard_match(pattern, &names));
    status st = shard_set_open_names(s, &names, hints);
    shard_names_free(&names);
    return st;
}

status shard_set_open(struct shard_set *s, const char *pattern)
{
    struct shard_hints none = shard_hints_of(NULL);
    return shard_set_open_as(s, pattern, &none);
}

void shard_set_close(struct shard_set *s)
{
    for (int i = 0; i < s->count; i++) shard_close(&s->shards[i]);
    free(s->shards);
    free(s->starts);
    *s = (struct shard_set){.eot = -1};
}

/* The shard that holds token `at`: the last one that starts at or before it. */
static int shard_of(const struct shard_set *s, int64_t at)
{
    int low = 0, high = s->count;
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        if (s->starts[mid] <= at)
            low = mid;
        else
            high = mid;
    }
    return low;
}

status shard_set_read(const struct shard_set *s, int64_t at, int64_t n, int64_t vocab_size, int32_t *out)
{
    CHECK(at >= 0 && n >= 0 && at <= s->tokens - n, "tokens [%lld, +%lld) of %lld", (long long)at,
          (long long)n, (long long)s->tokens);
    for (int i = shard_of(s, at); n > 0; i++) {
        int64_t from = at - s->starts[i], part = s->shards[i].count - from;
        if (part > n) part = n;
        TRY(shard_read(&s->shards[i], from, part, vocab_size, out));
        at += part, n -= part, out += part;
    }
    return STATUS_OK;
}

int64_t shard_set_mask(const struct shard_set *s, int64_t at, int64_t n, int32_t ignore, int32_t *targets)
{
    CHECK(at >= 0 && n >= 0 && at <= s->tokens - n, "tokens [%lld, +%lld) of %lld", (long long)at,
          (long long)n, (long long)s->tokens);
    int64_t masked = 0;
    for (int i = s->masked ? shard_of(s, at) : 0; s->masked && n > 0; i++) {
        const uint8_t *mask = s->shards[i].mask;
        int64_t from = at - s->starts[i], part = s->shards[i].count - from;
        if (part > n) part = n;
        for (int64_t t = 0; mask && t < part; t++) {
            if (mask[(from + t) / 8] >> ((from + t) % 8) & 1 || targets[t] == ignore) continue;
            targets[t] = ignore;
            masked++;
        }
        at += part, n -= part, targets += part;
    }
    return masked;
}
