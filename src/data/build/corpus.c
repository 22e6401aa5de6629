#include "data/build/corpus.h"

#include "base/io.h"
#include "data/shard/corpus_index.h"
#include "data/shard/shard_mask.h"

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
    struct shard_mask_writer *mask; /* NULL: all tokens are targets */
    struct manifest_shard *row;     /* the open shard's row */
    int shards;
    struct manifest_sum sum;
};

struct place { /* of a prefix */
    char dir[PATH_MAX], base[256];
    char prefix[PATH_MAX]; /* dir/base */
};
struct corpus {
    struct corpus_config config;
    struct place place;
    struct part parts[CORPUS_COUNT];
    struct manifest rows[CORPUS_COUNT]; /* rows only */
};

/* OPEN and PART are files of shards that are not visible yet. */
enum kind { KIND_OTHER, KIND_OPEN, KIND_PART, KIND_SHARD, KIND_MANIFEST, KIND_PENDING, KIND_COUNT };

/* The kind of a file name for this prefix. */
static enum kind kind_of(const struct place *at, const char *name)
{
    char prefix[512], shard[512];
    size_t n = strlen(at->base), length = strlen(name);
    if (strncmp(name, at->base, n) != 0 || length >= sizeof shard) return KIND_OTHER;
    if (strcmp(name + n, "_manifest.json") == 0) return KIND_MANIFEST;
    if (strcmp(name + n, "_manifest.pending") == 0) return KIND_PENDING;
    const char *end = length > 5 ? name + length - 5 : "";
    enum kind kind = strcmp(end, ".open") == 0   ? KIND_OPEN
                     : strcmp(end, ".part") == 0 ? KIND_PART
                                                 : KIND_SHARD;
    snprintf(shard, sizeof shard, "%.*s", (int)(kind == KIND_SHARD ? length : length - 5), name);
    if (!manifest_prefix(shard, prefix, sizeof prefix) || strcmp(prefix, at->base) != 0) return KIND_OTHER;
    for (int i = 0; i < CORPUS_COUNT; i++) {
        size_t word = strlen(split_words[i]);
        if (strncmp(name + n + 1, split_words[i], word) == 0 && name[n + 1 + word] == '_') return kind;
    }
    return KIND_OTHER;
}

/* True if a row of m has this file, its index or its mask. */
static bool listed(const struct manifest *m, const char *name)
{
    char index[512], mask[512];
    for (int i = 0; i < m->count; i++) {
        corpus_index_name(m->shards[i].file, index, sizeof index);
        shard_mask_name(m->shards[i].file, mask, sizeof mask);
        if (strcmp(m->shards[i].file, name) == 0 || strcmp(index, name) == 0 || strcmp(mask, name) == 0)
            return true;
    }
    return false;
}

/* Counts the files of each kind. Removes those of kind `remove` that `keep` (NULL: none) does not list. */
static status survey(const struct place *at, enum kind remove, const struct manifest *keep,
                     int counts[KIND_COUNT])
{
    struct io_list list;
    TRY(io_list(at->dir, &list));
    status st = STATUS_OK;
    memset(counts, 0, KIND_COUNT * sizeof *counts);
    for (int i = 0; i < list.count && st == STATUS_OK; i++) {
        char path[PATH_MAX], file[512];
        enum kind kind = kind_of(at, list.names[i]);
        counts[kind]++;
        if (kind == KIND_OTHER || kind != remove) continue;
        int end = kind == KIND_OPEN || kind == KIND_PART ? 5 : 0;
        snprintf(file, sizeof file, "%.*s", (int)strlen(list.names[i]) - end, list.names[i]);
        if (keep && listed(keep, file)) continue;
        snprintf(path, sizeof path, "%s/%s", at->dir, list.names[i]);
        st = io_remove_tree(path);
    }
    io_list_free(&list);
    return st;
}

static status remove_kind(const struct place *at, enum kind kind, const struct manifest *keep)
{
    int counts[KIND_COUNT];
    return survey(at, kind, keep, counts);
}

static status place_of(struct place *at, const char *prefix)
{
    const char *slash = strrchr(prefix, '/'), *base = slash ? slash + 1 : prefix;
    size_t dir = slash ? (size_t)(slash - prefix) : 0;
    if (!*base || strlen(base) > 200 || strlen(prefix) > 900)
        return FAIL(STATUS_CONFIG, "-o %s: a prefix such as data/corpus is expected, of at most 900 bytes",
                    prefix);
    if (!slash)
        snprintf(at->dir, sizeof at->dir, ".");
    else
        snprintf(at->dir, sizeof at->dir, "%.*s", dir ? (int)dir : 1, prefix);
    snprintf(at->base, sizeof at->base, "%s", base);
    snprintf(at->prefix, sizeof at->prefix, "%s", prefix);
    return STATUS_OK;
}

void corpus_state_free(struct corpus_state *s)
{
    manifest_free(&s->rows);
}

static status copy_row(struct manifest *to, const struct manifest_shard *row)
{
    struct manifest_shard *copy = manifest_add(to, row->file, row->split);
    char *file = copy->file, *split = copy->split;
    *copy = *row;
    copy->file = file;
    copy->split = split;
    return shard_blocks_copy(&copy->blocks, &row->blocks);
}

/* --- writing -------------------------------------------------------------------------------------------- */

static void path_of(const struct place *at, const char *file, const char *end, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%s%s", at->dir, file, end);
}

/* If a file was finished after the last saved state, renames it back to open. */
static status unfinish(const struct place *at, const char *file)
{
    char open[PATH_MAX], part[PATH_MAX];
    path_of(at, file, ".open", open);
    path_of(at, file, ".part", part);
    enum io_kind at_open, at_part;
    TRY(io_kind(open, &at_open));
    TRY(io_kind(part, &at_part));
    return at_open == IO_NONE && at_part != IO_NONE ? io_rename_dir(part, open) : STATUS_OK;
}

static status mask_open(struct corpus *c, struct part *p)
{
    char mask[512], path[PATH_MAX], temp[PATH_MAX];
    if (!c->config.masked) return STATUS_OK;
    shard_mask_name(p->row->file, mask, sizeof mask);
    path_of(&c->place, mask, ".part", path);
    path_of(&c->place, mask, ".open", temp);
    if (p->row->tokens > 0) TRY(unfinish(&c->place, mask));
    return shard_mask_create(&p->mask, path, temp, p->row->tokens);
}

/* Opens the shard of p->row, truncated to the row's counts. */
static status part_open(struct corpus *c, struct part *p)
{
    char index[512], path[PATH_MAX], temp[PATH_MAX], index_path[PATH_MAX], index_temp[PATH_MAX];
    struct manifest_shard *row = p->row;
    bool goes_on = row->tokens > 0;
    corpus_index_name(row->file, index, sizeof index);
    path_of(&c->place, row->file, ".part", path);
    path_of(&c->place, row->file, ".open", temp);
    path_of(&c->place, index, ".part", index_path);
    path_of(&c->place, index, ".open", index_temp);
    if (goes_on) TRY(unfinish(&c->place, row->file));
    /* Megatron's index has the same name as ours, but only after the shard is finished. */
    if (goes_on && c->config.format != SHARD_MEGATRON) TRY(unfinish(&c->place, index));
    uint32_t *begins = NULL;
    if (c->config.format == SHARD_MEGATRON) TRY(corpus_index_load(index_temp, row->documents, &begins));
    status st =
        shard_resume(&p->writer, &(struct shard_resume_config){.path = path,
                                                               .temp = temp,
                                                               .format = c->config.format,
                                                               .width = shard_width(c->config.vocab_size),
                                                               .tokens = row->tokens,
                                                               .documents = row->documents,
                                                               .begins = begins});
    free(begins);
    TRY(st);
    TRY(corpus_index_create(&p->index, index_path, index_temp, row->documents));
    return mask_open(c, p);
}

static status part_begin(struct corpus *c, enum corpus_split split)
{
    struct part *p = &c->parts[split];
    char file[512];
    snprintf(file, sizeof file, "%s_%s_%06d%s", c->place.base, split_words[split], p->shards,
             shard_suffix(c->config.format, 0));
    p->row = manifest_add(&c->rows[split], file, split_words[split]);
    p->shards++;
    return part_open(c, p);
}

static status part_close(struct corpus *c, struct part *p)
{
    if (!p->writer) return STATUS_OK;
    struct shard_sums sums;
    TRY(shard_commit(&p->writer, &sums));
    p->row->xxh64 = sums.xxh64;
    p->row->blocks = sums.blocks;
    if (c->config.format == SHARD_MEGATRON) {
        /* Its own index has the documents. Ours is removed at the end: the saved state may still list this shard
         * as open. */
        corpus_index_leave(&p->index);
    } else {
        TRY(corpus_index_commit(&p->index, p->row->tokens, &p->row->index_xxh64));
        p->row->indexed = true;
    }
    if (p->mask) {
        TRY(shard_mask_commit(&p->mask, &p->row->mask_xxh64));
        p->row->masked = true;
    }
    p->sum.shards++;
    return STATUS_OK;
}

/* Appends the n tokens of a piece from `at` on to the open shard. */
static status append(struct corpus *c, struct part *p, const struct corpus_piece *piece, int64_t at,
                     int64_t n, int64_t text_bytes)
{
    TRY(shard_append(p->writer, piece->ids + at, n));
    if (p->mask) TRY(shard_mask_add(p->mask, piece->targets + at, n));
    p->row->tokens += n;
    p->row->text_bytes += text_bytes;
    p->sum.tokens += n;
    p->sum.text_bytes += text_bytes;
    bool whole_documents = c->config.format == SHARD_MEGATRON;
    return p->row->tokens == c->config.shard_tokens && !whole_documents ? part_close(c, p) : STATUS_OK;
}

status corpus_add(struct corpus *c, const struct corpus_piece *piece)
{
    struct part *p = &c->parts[piece->split];
    bool whole_documents = c->config.format == SHARD_MEGATRON;
    int64_t text_left = piece->text_bytes;
    for (int64_t at = 0; at < piece->count;) {
        if (!p->writer) TRY(part_begin(c, piece->split));
        int64_t room = c->config.shard_tokens - p->row->tokens, n = piece->count - at, text = text_left;
        if (!whole_documents && n > room) {
            n = room, text = 0;
            for (int64_t i = at; c->config.token_bytes && i < at + n; i++)
                text += c->config.token_bytes[piece->ids[i]];
        }
        if (at == 0 && piece->begins) {
            TRY(corpus_index_add(p->index, (uint32_t)p->row->tokens));
            p->row->documents++;
            p->sum.documents++;
        }
        TRY(append(c, p, piece, at, n, text));
        text_left -= text;
        at += n;
    }
    if (!piece->ends || !whole_documents) return STATUS_OK;
    TRY(shard_document_end(p->writer));
    return p->row->tokens >= c->config.shard_tokens ? part_close(c, p) : STATUS_OK;
}

struct manifest_sum corpus_sum(const struct corpus *c, enum corpus_split split)
{
    return c->parts[split].sum;
}

status corpus_sync(struct corpus *c, struct corpus_state *state)
{
    *state = (struct corpus_state){.rows.width = shard_width(c->config.vocab_size),
                                   .rows.format = c->config.format};
    for (int split = 0; split < CORPUS_COUNT; split++) {
        struct part *p = &c->parts[split];
        if (p->writer) TRY(shard_sync(p->writer));
        if (p->index) TRY(corpus_index_sync(p->index));
        if (p->mask) TRY(shard_mask_sync(p->mask));
        state->open[split] = p->writer != NULL;
    }
    for (int split = 0; split < CORPUS_COUNT; split++)
        for (int i = 0; i < c->rows[split].count; i++) TRY(copy_row(&state->rows, &c->rows[split].shards[i]));
    return io_sync_dir(c->place.dir); /* names of new files */
}

/* --- opening -------------------------------------------------------------------------------------------- */

/* Adopts a row of the saved state. The last shard of a split is continued if the state says so. */
static status take_row(struct corpus *c, enum corpus_split split, const struct manifest_shard *row, bool open)
{
    struct part *p = &c->parts[split];
    TRY(copy_row(&c->rows[split], row));
    p->row = &c->rows[split].shards[c->rows[split].count - 1];
    p->shards++;
    p->sum.shards += !open;
    p->sum.tokens += row->tokens;
    p->sum.documents += row->documents;
    p->sum.text_bytes += row->text_bytes;
    if (open) return part_open(c, p);
    char path[PATH_MAX];
    path_of(&c->place, row->file, ".part", path);
    enum io_kind kind;
    TRY(io_kind(path, &kind));
    return kind != IO_NONE ? STATUS_OK : FAIL(STATUS_DATA, "%s is not there", path);
}

static status take_state(struct corpus *c, const struct corpus_state *s)
{
    TRY(remove_kind(&c->place, KIND_OPEN, &s->rows));
    TRY(remove_kind(&c->place, KIND_PART, &s->rows));
    for (int split = 0; split < CORPUS_COUNT; split++) {
        int last = -1;
        for (int i = 0; i < s->rows.count; i++)
            if (strcmp(s->rows.shards[i].split, split_words[split]) == 0) last = i;
        for (int i = 0; i <= last; i++)
            if (strcmp(s->rows.shards[i].split, split_words[split]) == 0)
                TRY(take_row(c, (enum corpus_split)split, &s->rows.shards[i], s->open[split] && i == last));
    }
    return STATUS_OK;
}

static status begin(struct corpus *c)
{
    TRY(remove_kind(&c->place, KIND_OPEN, NULL));
    TRY(remove_kind(&c->place, KIND_PART, NULL));
    return io_sweep(c->place.dir, SWEEP_DEAD, NULL);
}

status corpus_open(struct corpus **out, const struct corpus_config *config)
{
    int counts[KIND_COUNT];
    status st;
    CHECK(config->shard_tokens > 0 && config->shard_tokens <= INT32_MAX, "%lld tokens per shard",
          (long long)config->shard_tokens);
    *out = NULL;
    struct corpus *c = calloc(1, sizeof *c);
    MEMORY_CHECK(c, "no memory for a corpus");
    c->config = *config;
    TRY_OUT(place_of(&c->place, config->prefix));
    TRY_OUT(io_make_dirs(c->place.dir));
    TRY_OUT(survey(&c->place, KIND_OTHER, NULL, counts));
    /* Shards beside a pending manifest are left from an interrupted build and unusable. */
    if (!config->force && !counts[KIND_PENDING] && counts[KIND_MANIFEST] + counts[KIND_SHARD] > 0) {
        st = FAIL(STATUS_CONFIG, "%s: there are shards with this prefix already; --force replaces them",
                  config->prefix);
        goto out;
    }
    st = config->from ? take_state(c, config->from) : begin(c);
out:
    *out = c;
    if (st != STATUS_OK) corpus_leave(out);
    return st;
}

/* --- publishing ----------------------------------------------------------------------------------------- */

static status give_name(const struct place *at, const char *file)
{
    char from[PATH_MAX], to[PATH_MAX];
    path_of(at, file, ".part", from);
    path_of(at, file, "", to);
    enum io_kind at_from, at_to;
    TRY(io_kind(from, &at_from));
    TRY(io_kind(to, &at_to));
    return at_from != IO_NONE || at_to == IO_NONE ? io_rename_dir(from, to) : STATUS_OK;
}

/* Renames the pending manifest to the valid one. Can be repeated after a kill at any point. */
static status publish(const struct place *at, const struct manifest *m)
{
    char file[512], from[PATH_MAX], to[PATH_MAX];
    TRY(remove_kind(at, KIND_MANIFEST, NULL));
    TRY(remove_kind(at, KIND_OPEN, NULL));
    for (int i = 0; i < m->count; i++) {
        const struct manifest_shard *row = &m->shards[i];
        TRY(give_name(at, row->file));
        corpus_index_name(row->file, file, sizeof file);
        if (row->indexed || m->format == SHARD_MEGATRON) TRY(give_name(at, file));
        shard_mask_name(row->file, file, sizeof file);
        if (row->masked) TRY(give_name(at, file));
    }
    TRY(remove_kind(at, KIND_SHARD, m));
    snprintf(from, sizeof from, "%s_manifest.pending", at->prefix);
    snprintf(to, sizeof to, "%s_manifest.json", at->prefix);
    return io_rename_dir(from, to);
}

status corpus_commit(struct corpus **out, struct manifest *m)
{
    struct corpus *c = *out;
    char pending[PATH_MAX];
    status st;
    m->width = shard_width(c->config.vocab_size);
    m->format = c->config.format;
    for (int split = 0; split < CORPUS_COUNT; split++) {
        TRY_OUT(part_close(c, &c->parts[split]));
        for (int i = 0; i < c->rows[split].count; i++) TRY_OUT(copy_row(m, &c->rows[split].shards[i]));
    }
    snprintf(pending, sizeof pending, "%s_manifest.pending", c->place.prefix);
    TRY_OUT(manifest_write(m, pending));
    st = publish(&c->place, m);
out:
    corpus_leave(out);
    return st;
}

status corpus_look(const char *prefix, enum corpus_remains *remains)
{
    struct place at;
    int counts[KIND_COUNT];
    TRY(place_of(&at, prefix));
    TRY(survey(&at, KIND_OTHER, NULL, counts));
    *remains = counts[KIND_PENDING]                    ? CORPUS_PENDING
               : counts[KIND_OPEN] + counts[KIND_PART] ? CORPUS_PARTS
               : counts[KIND_MANIFEST]                 ? CORPUS_WHOLE
                                                       : CORPUS_NOTHING;
    return STATUS_OK;
}

status corpus_publish(const char *prefix, struct manifest *m)
{
    struct place at;
    char pending[PATH_MAX];
    TRY(place_of(&at, prefix));
    snprintf(pending, sizeof pending, "%s_manifest.pending", at.prefix);
    TRY(manifest_read(m, pending));
    status st = publish(&at, m);
    if (st != STATUS_OK) manifest_free(m);
    return st;
}

void corpus_leave(struct corpus **out)
{
    struct corpus *c = *out;
    if (!c) return;
    for (int split = 0; split < CORPUS_COUNT; split++) {
        shard_leave(&c->parts[split].writer);
        corpus_index_leave(&c->parts[split].index);
        shard_mask_leave(&c->parts[split].mask);
        manifest_free(&c->rows[split]);
    }
    free(c);
    *out = NULL;
}

void corpus_abandon(struct corpus **out)
{
    if (!*out) return;
    struct place at = (*out)->place;
    corpus_leave(out);
    /* the next build removes what stays */
    (void)remove_kind(&at, KIND_OPEN, NULL);
    (void)remove_kind(&at, KIND_PART, NULL);
}
