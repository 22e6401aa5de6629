/* Shards as inputs. Documents come from their manifest, index or end-of-text tokens, and are read without
 * these tokens: the build adds its own. Marks count documents. */
#include "data/build/build_source.h"

#include "base/io.h"
#include "base/log.h"
#include "data/build/build_int.h"
#include "data/shard/corpus_index.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 8 };

static status read_head(const char *path, char head[HEAD_BYTES])
{
    int fd;
    int64_t bytes;
    memset(head, 0, HEAD_BYTES);
    TRY(io_open(path, LINKS_FOLLOW, &fd, &bytes));
    status st = io_pread(fd, path, head, bytes < HEAD_BYTES ? (size_t)bytes : HEAD_BYTES, 0);
    io_close(&fd);
    return st;
}

status build_source_is_shards(const struct build_config *config, const char *input, bool *shards)
{
    *shards = true;
    if (config->hints.type != SHARD_TYPE_UNKNOWN) return STATUS_OK;
    bool there, indexed = false;
    TRY(io_exists(input, &there));
    if (!there) { /* a pattern, or a wrong name, which the reader reports */
        *shards = strpbrk(input, "*?[") != NULL;
        return STATUS_OK;
    }
    char head[HEAD_BYTES], beside[4096];
    TRY(read_head(input, head));
    *shards = shard_begins(head, sizeof head);
    if (!*shards && shard_file(SHARD_MEGATRON, input, 1, beside, sizeof beside))
        TRY(io_exists(beside, &indexed));
    if (!indexed) return STATUS_OK;
    TRY(read_head(beside, head));
    *shards = memcmp(head, "MMIDIDX", strlen("MMIDIDX")) == 0;
    return STATUS_OK;
}

status build_source_set(const struct build_config *config, const char *input, struct shard_set *set)
{
    TRY(shard_set_open_as(set, input, &config->hints));
    if (!set->masked) return STATUS_OK;
    shard_set_close(set);
    return FAIL(STATUS_CONFIG,
                "%s: its mask of targets would be lost: such shards can be trained on, not built from",
                input);
}

/* A single shard of a build may begin inside a document, which is then counted as two. */
static void warn_of_cut(const struct build_source *s, const char *input)
{
    char path[4096];
    struct corpus_index index;
    corpus_index_name(s->set.shards[0].path, path, sizeof path);
    if (!s->set.manifest || s->set.format == SHARD_MEGATRON || corpus_index_open(&index, path) != STATUS_OK)
        return;
    if (index.documents == 0 || index.begins[0] > 0)
        log_warn("%s begins within a document, which becomes two; give all shards as one pattern in quotes",
                 input);
    corpus_index_close(&index);
}

/* --input-eod none: nothing in the tokens ends a document, so each file is one. */
static status whole_files(const struct shard_set *set, struct document_index *out)
{
    *out = (struct document_index){.starts = malloc(((size_t)set->count + 1) * sizeof *out->starts)};
    if (!out->starts)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the documents of %d shards", set->count);
    for (int i = 0; i < set->count; i++)
        if (set->shards[i].count > 0) out->starts[out->count++] = set->starts[i];
    out->starts[out->count] = set->tokens;
    return STATUS_OK;
}

static status open_shards(struct build_source *s, const char *input, struct reader_mark at)
{
    TRY(build_source_set(s->config, input, &s->set));
    const bool whole = !s->set.bounded && s->config->hints.eod == EOD_NONE;
    status st = whole ? whole_files(&s->set, &s->documents) : shard_set_documents(&s->set, &s->documents);
    if (st != STATUS_OK)
        return status_wrap(st, "--eot ID with --input-eod before|after, or --input-eod none may help");
    if (at.at > s->documents.count)
        return FAIL(STATUS_DATA, "%s: document %lld of %lld", input, (long long)at.at,
                    (long long)s->documents.count);
    s->next = at.at;
    warn_of_cut(s, input);
    return st;
}

status build_source_open(struct build_source **out, const struct build_config *config, int input,
                         struct reader_mark at)
{
    struct build_source *s = *out = calloc(1, sizeof *s);
    MEMORY_CHECK(s, "no memory for an input");
    s->users = 1;
    s->config = config;
    bool shards;
    status st;
    TRY_OUT(build_source_is_shards(config, config->inputs[input], &shards));
    if (shards) {
        st = open_shards(s, config->inputs[input], at);
        goto out;
    }
    struct reader_config c = config->reader;
    if (c.batch_bytes == 0) c.batch_bytes = BATCH_BYTES;
    TRY_OUT(reader_open(&s->reader, config->inputs[input], &c));
    st = reader_seek(s->reader, at);
out:
    if (st == STATUS_OK) return st;
    build_source_close(s);
    *out = NULL;
    return st;
}

/* Documents [s->next, end) are a batch: as many as fit, at least one. */
static int64_t batch_end(const struct build_source *s)
{
    size_t bytes = s->config->reader.batch_bytes ? s->config->reader.batch_bytes : BATCH_BYTES;
    const int64_t *starts = s->documents.starts;
    int64_t end = s->next + 1, most = starts[s->next] + (int64_t)(bytes / sizeof *s->ids);
    while (end < s->documents.count && starts[end + 1] <= most) end++;
    return end;
}

/* A document without its end-of-text token. */
static struct reader_record bare(const struct build_source *s, int64_t from, int64_t to)
{
    const int32_t *ids = s->ids;
    if (s->set.eod == EOD_BEFORE && from < to && ids[from] == s->set.eot) from++;
    if (s->set.eod == EOD_AFTER && from < to && ids[to - 1] == s->set.eot) to--;
    return (struct reader_record){.at = (size_t)from * sizeof *ids,
                                  .bytes = (size_t)(to - from) * sizeof *ids};
}

static status next_documents(struct build_source *s, struct reader_batch *batch, bool *more)
{
    *more = s->next < s->documents.count;
    if (!*more) return STATUS_OK;
    const int64_t *starts = s->documents.starts;
    int64_t end = batch_end(s), from = starts[s->next], count = starts[end] - from, records = end - s->next;
    if (count > s->id_room) {
        free(s->ids);
        s->ids = malloc((size_t)count * sizeof *s->ids);
        s->id_room = s->ids ? count : 0;
        if (!s->ids)
            return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a document of %lld tokens", (long long)count);
    }
    if (records > s->record_room) {
        s->records = realloc(s->records, (size_t)records * sizeof *s->records);
        MEMORY_CHECK(s->records, "no memory for %lld records", (long long)records);
        s->record_room = records;
    }
    TRY(shard_set_read(&s->set, from, count, s->set.vocab_size, s->ids));
    for (int64_t i = 0; i < records; i++)
        s->records[i] = bare(s, starts[s->next + i] - from, starts[s->next + i + 1] - from);
    *batch = (struct reader_batch){.path = s->set.shards[0].path,
                                   .data = (const char *)s->ids,
                                   .bytes = (size_t)count * sizeof *s->ids,
                                   .offset = s->next,
                                   .records = s->records,
                                   .count = records,
                                   .last = end == s->documents.count,
                                   .id_bytes = sizeof *s->ids};
    s->next = end;
    return STATUS_OK;
}

status build_source_next(struct build_source *s, struct reader_batch *batch, bool *more)
{
    return s->reader ? reader_next(s->reader, batch, more) : next_documents(s, batch, more);
}

status build_source_document(const struct build_source *s, const struct reader_batch *batch, int64_t i,
                             struct reader_document *d)
{
    if (s->reader) return reader_text(batch, i, s->config->reader.key, d);
    const struct reader_record *record = &batch->records[i];
    *d = (struct reader_document){.bytes = record->bytes,
                                  .ids = (const int32_t *)(const void *)(batch->data + record->at),
                                  .id_count = (int64_t)(record->bytes / sizeof *d->ids)};
    return STATUS_OK;
}

struct reader_mark build_source_mark(const struct build_source *s)
{
    return s->reader ? reader_mark(s->reader) : (struct reader_mark){.at = s->next};
}

int64_t build_source_bytes(const struct build_source *s)
{
    return s->reader ? reader_bytes(s->reader) : s->set.tokens * s->set.shards[0].width;
}

int64_t build_source_done(const struct build_source *s)
{
    return s->reader ? reader_bytes_done(s->reader) : s->documents.starts[s->next] * s->set.shards[0].width;
}

int64_t build_source_place(const struct build_source *s, const struct reader_batch *batch, int64_t i)
{
    if (s->reader) return reader_place(batch, i);
    return s->documents.starts[batch->offset + i] * s->set.shards[0].width;
}

void build_source_close(struct build_source *s)
{
    if (!s) return;
    if (s->reader) reader_close(s->reader);
    document_index_free(&s->documents);
    shard_set_close(&s->set);
    free(s->records);
    free(s->ids);
    free(s);
}
