#include "data/corpus.h"

#include "base/io.h"
#include "data/corpus_index.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const split_words[CORPUS_COUNT] = {
#define X(value, word) [CORPUS_##value] = (word),
    CORPUS_WORDS(X)
#undef X
};

struct part {                    /* one split being written */
    struct shard_writer *writer; /* NULL: no shard is open */
    struct corpus_index_writer *index;
    struct manifest_shard *row; /* of the open shard */
    int shards;
    struct manifest_sum sum;
};

struct corpus {
    struct corpus_config config;
    char dir[PATH_MAX], base[256]; /* of the prefix */
    char prefix[PATH_MAX];         /* dir/base */
    struct part parts[CORPUS_COUNT];
    struct manifest rows[CORPUS_COUNT]; /* rows only */
};

enum kind { KIND_OTHER, KIND_PART, KIND_SHARD, KIND_MANIFEST, KIND_PENDING };

/* What a name in the directory is to this prefix. */
static enum kind kind_of(const struct corpus *c, const char *name)
{
    char prefix[512], shard[512];
    static const char *const building[] = {".part", ".open"};
    size_t n = strlen(c->base), length = strlen(name);
    if (strncmp(name, c->base, n) != 0 || length >= sizeof shard) return KIND_OTHER;
    if (strcmp(name + n, "_manifest.json") == 0) return KIND_MANIFEST;
    if (strcmp(name + n, "_manifest.pending") == 0) return KIND_PENDING;
    bool part = false;
    for (int i = 0; i < 2; i++) part |= length > 5 && strcmp(name + length - 5, building[i]) == 0;
    snprintf(shard, sizeof shard, "%.*s", (int)(part ? length - 5 : length), name);
    if (!manifest_prefix(shard, prefix, sizeof prefix) || strcmp(prefix, c->base) != 0) return KIND_OTHER;
    for (int i = 0; i < CORPUS_COUNT; i++) {
        size_t word = strlen(split_words[i]);
        if (strncmp(name + n + 1, split_words[i], word) == 0 && name[n + 1 + word] == '_')
            return part ? KIND_PART : KIND_SHARD;
    }
    return KIND_OTHER;
}

/* Counts the names of each kind; removes those of kind `remove`. */
static status survey(const struct corpus *c, enum kind remove, int counts[5])
{
    struct io_list list;
    TRY(io_list(c->dir, &list));
    status st = STATUS_OK;
    memset(counts, 0, 5 * sizeof *counts);
    for (int i = 0; i < list.count && st == STATUS_OK; i++) {
        enum kind kind = kind_of(c, list.names[i]);
        counts[kind]++;
        if (kind == KIND_OTHER || kind != remove) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", c->dir, list.names[i]);
        st = io_remove_tree(path);
    }
    io_list_free(&list);
    return st;
}

static status prefix_split(struct corpus *c, const char *prefix)
{
    const char *slash = strrchr(prefix, '/'), *base = slash ? slash + 1 : prefix;
    size_t dir = slash ? (size_t)(slash - prefix) : 0;
    if (!*base || strlen(base) > 200 || strlen(prefix) > 900)
        return FAIL(STATUS_CONFIG, "-o %s: a prefix such as data/corpus is expected, of at most 900 bytes",
                    prefix);
    if (!slash)
        snprintf(c->dir, sizeof c->dir, ".");
    else
        snprintf(c->dir, sizeof c->dir, "%.*s", dir ? (int)dir : 1, prefix);
    snprintf(c->base, sizeof c->base, "%s", base);
    snprintf(c->prefix, sizeof c->prefix, "%s", prefix);
    return STATUS_OK;
}

status corpus_open(struct corpus **out, const struct corpus_config *config)
{
    int counts[5];
    status st;
    CHECK(config->shard_tokens > 0 && config->shard_tokens <= INT32_MAX, "%lld tokens per shard",
          (long long)config->shard_tokens);
    *out = NULL;
    struct corpus *c = calloc(1, sizeof *c);
    CHECK(c, "no memory for a corpus");
    c->config = *config;
    TRY_OUT(prefix_split(c, config->prefix));
    TRY_OUT(io_make_dirs(c->dir));
    TRY_OUT(survey(c, KIND_OTHER, counts));
    /* Shards beside a pending manifest are what an interrupted build left: nobody can use them. */
    if (!config->force && !counts[KIND_PENDING] && counts[KIND_MANIFEST] + counts[KIND_SHARD] > 0) {
        st = FAIL(STATUS_CONFIG, "%s: there are shards with this prefix already; --force replaces them",
                  config->prefix);
        goto out;
    }
    TRY_OUT(survey(c, KIND_PART, counts));
    TRY_OUT(io_sweep(c->dir, SWEEP_DEAD));
out:
    if (st != STATUS_OK)
        free(c);
    else
        *out = c;
    return st;
}

static void part_path(const struct corpus *c, const char *file, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%s.part", c->dir, file);
}

static status index_open(struct corpus *c, struct part *p, const char *shard)
{
    char file[512], path[PATH_MAX], temp[PATH_MAX];
    corpus_index_name(shard, file, sizeof file);
    part_path(c, file, path);
    snprintf(temp, sizeof temp, "%s/%s.open", c->dir, file);
    return corpus_index_create(&p->index, path, temp, 0);
}

static status part_open(struct corpus *c, enum corpus_split split)
{
    struct part *p = &c->parts[split];
    char file[512], path[PATH_MAX];
    snprintf(file, sizeof file, "%s_%s_%06d.bin", c->base, split_words[split], p->shards);
    part_path(c, file, path);
    TRY(shard_create(&p->writer, path, SHARD_LLMC, shard_width(c->config.vocab_size)));
    p->row = manifest_add(&c->rows[split], file, split_words[split]);
    p->shards++;
    return index_open(c, p, file);
}

static status part_close(struct part *p)
{
    if (!p->writer) return STATUS_OK;
    TRY(shard_commit(&p->writer, &p->row->xxh64));
    TRY(corpus_index_commit(&p->index, p->row->tokens, &p->row->index_xxh64));
    p->row->indexed = true;
    p->sum.shards++;
    return STATUS_OK;
}

status corpus_add(struct corpus *c, enum corpus_split split, const int32_t *ids, int64_t count)
{
    struct part *p = &c->parts[split];
    for (int64_t at = 0; at < count;) {
        if (!p->writer) TRY(part_open(c, split));
        int64_t room = c->config.shard_tokens - p->row->tokens, n = count - at < room ? count - at : room,
                text = 0;
        if (at == 0) TRY(corpus_index_add(p->index, (uint32_t)p->row->tokens));
        TRY(shard_append(p->writer, ids + at, n));
        for (int64_t i = at; i < at + n; i++) text += c->config.token_bytes[ids[i]];
        p->row->tokens += n;
        p->row->text_bytes += text;
        p->row->documents += at == 0;
        p->sum.text_bytes += text;
        at += n;
        if (p->row->tokens == c->config.shard_tokens) TRY(part_close(p));
    }
    p->sum.documents += count > 0;
    p->sum.tokens += count;
    return STATUS_OK;
}

struct manifest_sum corpus_sum(const struct corpus *c, enum corpus_split split)
{
    return c->parts[split].sum;
}

static status remove_kind(const struct corpus *c, enum kind kind)
{
    int counts[5];
    return survey(c, kind, counts);
}

/* From the pending manifest to the valid one. */
static status publish(struct corpus *c, const struct manifest *m, const char *pending)
{
    char file[512], from[PATH_MAX], to[PATH_MAX];
    TRY(remove_kind(c, KIND_MANIFEST));
    TRY(remove_kind(c, KIND_SHARD));
    for (int i = 0; i < 2 * m->count; i++) {
        const char *shard = m->shards[i / 2].file;
        snprintf(file, sizeof file, "%s", shard);
        if (i % 2) corpus_index_name(shard, file, sizeof file);
        part_path(c, file, from);
        snprintf(to, sizeof to, "%s/%s", c->dir, file);
        TRY(io_rename_dir(from, to));
    }
    snprintf(to, sizeof to, "%s_manifest.json", c->prefix);
    return io_rename_dir(pending, to);
}

status corpus_commit(struct corpus **out, struct manifest *m)
{
    struct corpus *c = *out;
    char pending[PATH_MAX];
    status st = STATUS_OK;
    m->width = shard_width(c->config.vocab_size);
    for (int split = 0; split < CORPUS_COUNT; split++) {
        TRY_OUT(part_close(&c->parts[split]));
        for (int i = 0; i < c->rows[split].count; i++) {
            const struct manifest_shard *row = &c->rows[split].shards[i];
            struct manifest_shard *copy = manifest_add(m, row->file, row->split);
            copy->tokens = row->tokens, copy->documents = row->documents, copy->text_bytes = row->text_bytes,
            copy->xxh64 = row->xxh64, copy->indexed = row->indexed, copy->index_xxh64 = row->index_xxh64;
        }
    }
    snprintf(pending, sizeof pending, "%s_manifest.pending", c->prefix);
    st = manifest_write(m, pending);
    if (st == STATUS_OK) st = publish(c, m, pending);
    /* The mark of an interrupted build goes only when no shard is left that it would guard. */
    if (st != STATUS_OK) {
        char why[1024];
        snprintf(why, sizeof why, "%s", status_message());
        if (remove_kind(c, KIND_SHARD) == STATUS_OK && remove_kind(c, KIND_MANIFEST) == STATUS_OK)
            (void)remove_kind(c, KIND_PENDING);
        st = FAIL(st, "%s", why);
    }
out:
    corpus_abandon(out);
    return st;
}

void corpus_abandon(struct corpus **out)
{
    struct corpus *c = *out;
    if (!c) return;
    for (int split = 0; split < CORPUS_COUNT; split++) {
        shard_abandon(&c->parts[split].writer);
        corpus_index_leave(&c->parts[split].index);
        manifest_free(&c->rows[split]);
    }
    (void)remove_kind(c, KIND_PART); /* none after a commit; the next build removes what stays */
    free(c);
    *out = NULL;
}
