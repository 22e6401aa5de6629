/* Many shards as one stream, with what their manifest says. */
#include "base/io.h"
#include "data/manifest.h"
#include "data/shard.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LLMC_GPT2_EOT = 50256, LLMC_LLAMA3_EOT = 128000 };

static status open_shards(struct shard_set *s, const char *pattern)
{
    glob_t found = {0};
    char *literal = (char *)pattern;
    char **paths = &literal;
    size_t count = 1;
    if (!io_exists(pattern)) { /* a name that exists is taken literally, whatever characters it has */
        int rc = glob(pattern, 0, NULL, &found);
        if (rc != 0 && rc != GLOB_NOMATCH) return FAIL(STATUS_IO, "%s: cannot list the directory", pattern);
        paths = found.gl_pathv;
        count = rc == 0 ? found.gl_pathc : 0;
    }
    status st = STATUS_OK;
    if (count == 0) {
        st = FAIL(STATUS_DATA, "no shard matches '%s'", pattern);
        goto out;
    }
    if (count > INT32_MAX / 2) {
        st = FAIL(STATUS_DATA, "'%s' matches %zu files", pattern, count);
        goto out;
    }
    s->shards = calloc(count, sizeof *s->shards);
    s->starts = calloc(count + 1, sizeof *s->starts);
    CHECK(s->shards && s->starts, "no memory for %zu shards", count);
    for (size_t i = 0; i < count; i++) {
        TRY_OUT(shard_open(&s->shards[i], paths[i]));
        s->count = (int)i + 1;
        s->tokens += s->shards[i].count; /* < 2^31 * 2^30 */
        s->starts[i + 1] = s->tokens;
        if (s->shards[i].width != s->shards[0].width) {
            st = FAIL(STATUS_DATA, "%s has %d bytes per token, %s has %d: they cannot be of one tokenizer",
                      paths[i], s->shards[i].width, paths[0], s->shards[0].width);
            goto out;
        }
    }
out:
    globfree(&found);
    return st;
}

/* The tokenizer's directory as seen from here, when it is given relative to the manifest. */
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

/* Adds what the manifest says of this shard; `split` is that of the shards before it, "" at first. */
static status match_row(struct shard_set *s, const struct manifest *m, const char *prefix,
                        const struct shard *shard, char split[64])
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
        s->text_bytes += row->text_bytes;
        return STATUS_OK;
    }
    return FAIL(STATUS_DATA, "%s: not listed in %s_manifest.json; it belongs to another build", shard->path,
                prefix);
}

/* Reads each manifest once: shards of one prefix follow each other in name order. */
static status read_manifests(struct shard_set *s)
{
    struct manifest m = {0};
    char prefix[1024] = "", path[1056], split[64] = "";
    status st = STATUS_OK;
    int with = 0;
    for (int i = 0; i < s->count; i++) {
        char now[sizeof prefix];
        const struct shard *shard = &s->shards[i];
        if (!manifest_prefix(shard->path, now, sizeof now)) continue;
        snprintf(path, sizeof path, "%s_manifest.pending", now);
        if (io_exists(path)) {
            st = FAIL(STATUS_DATA, "%s: its build was interrupted (%s exists); build again with --force",
                      shard->path, path);
            goto out;
        }
        snprintf(path, sizeof path, "%s_manifest.json", now);
        if (!io_exists(path)) continue;
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

status shard_set_open(struct shard_set *s, const char *pattern)
{
    *s = (struct shard_set){.eot = -1};
    status st = open_shards(s, pattern);
    if (st == STATUS_OK) st = read_manifests(s);
    if (st == STATUS_OK && !s->manifest) {
        s->eod = EOD_BEFORE;
        s->eot = s->shards[0].width == 2 ? LLMC_GPT2_EOT : LLMC_LLAMA3_EOT;
    }
    if (st != STATUS_OK) shard_set_close(s);
    return st;
}

void shard_set_close(struct shard_set *s)
{
    for (int i = 0; i < s->count; i++) shard_close(&s->shards[i]);
    free(s->shards);
    free(s->starts);
    *s = (struct shard_set){.eot = -1};
}

status shard_set_read(const struct shard_set *s, int64_t at, int64_t n, int64_t vocab_size, int32_t *out)
{
    CHECK(at >= 0 && n >= 0 && at <= s->tokens - n, "tokens [%lld, +%lld) of %lld", (long long)at,
          (long long)n, (long long)s->tokens);
    int low = 0, high = s->count; /* the last shard that starts at or before `at` */
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        if (s->starts[mid] <= at)
            low = mid;
        else
            high = mid;
    }
    for (; n > 0; low++) {
        int64_t from = at - s->starts[low], part = s->shards[low].count - from;
        if (part > n) part = n;
        TRY(shard_read(&s->shards[low], from, part, vocab_size, out));
        at += part, n -= part, out += part;
    }
    return STATUS_OK;
}
