#include "data/load/samples.h"
#include "data/load/shuffle.h"

#include <stdlib.h>

struct source {
    const struct shard_set *set;
    uint64_t seed;
    int64_t rows;
    struct document_index documents; /* empty unless the packing needs it */
    struct pack *pack;               /* best_fit, pad */
};
struct samples {
    struct samples_config config;
    int count;
    struct source sources[MIXTURE_SOURCES];
    struct mixture *mixture;
};

/* Rows of `tokens` tokens without packing. */
static int64_t window_count(int64_t tokens, int64_t sequence_length, int shuffle)
{
    if (tokens < 2) return 0;
    return shuffle ? (tokens - 1) / sequence_length : (tokens - 2) / sequence_length + 1;
}

static bool packs(const struct samples *s)
{
    return s->config.packing == LOADER_BEST_FIT || s->config.packing == LOADER_PAD;
}

static status check_source(const struct samples *s, const struct shard_set *set)
{
    const char *path = set->shards[0].path;
    const struct samples_config *c = &s->config;
    if (!packs(s) && window_count(set->tokens, c->sequence_length, c->shuffle) == 0)
        return FAIL(STATUS_DATA,
                    "%s%s: %lld tokens, fewer than the %lld that one sequence and its last target need", path,
                    set->count > 1 ? " and the others" : "", (long long)set->tokens,
                    c->shuffle ? (long long)c->sequence_length + 1 : 2LL);
    if (c->packing == LOADER_STREAM) return STATUS_OK;
    if (!set->bounded)
        return FAIL(
            STATUS_DATA,
            "%s: data.packing=documents, best_fit and pad need to know where documents end: build the shards "
            "with --eod before or after, give data.eot and data.eod for shards of other programs, or use "
            "data.packing=stream",
            path);
    return STATUS_OK;
}

static status open_source(struct samples *s, const struct samples_source *from, int i)
{
    const struct samples_config *c = &s->config;
    struct source *to = &s->sources[i];
    *to = (struct source){.set = from->set, .seed = s->count > 1 ? shuffle_seed(c->seed, i) : c->seed};
    TRY(check_source(s, from->set));
    if (packs(s) || (c->packing == LOADER_DOCUMENTS && from->set->eod == EOD_NONE))
        TRY(shard_set_documents(from->set, &to->documents));
    if (packs(s)) {
        status st = pack_open(&to->pack, to->documents.starts, to->documents.count, c->sequence_length,
                              c->packing == LOADER_PAD ? PACK_ALONE : PACK_BEST_FIT);
        if (st != STATUS_OK) return status_wrap(st, "%s", from->set->shards[0].path);
        to->rows = pack_rows(to->pack);
    } else {
        to->rows = window_count(from->set->tokens, c->sequence_length, c->shuffle);
    }
    if (c->rows_max > 0 && c->rows_max < to->rows) to->rows = c->rows_max;
    return STATUS_OK;
}

status samples_open(struct samples **out, const struct samples_source *sources, int count,
                    const struct samples_config *c)
{
    CHECK(count > 0 && count <= MIXTURE_SOURCES && c->sequence_length > 0, "%d sources, T %lld", count,
          (long long)c->sequence_length);
    CHECK(c->shuffle || count == 1, "%d sources in order", count);
    struct mixture_source mixed[MIXTURE_SOURCES];
    struct samples *s = *out = calloc(1, sizeof *s);
    if (!s) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the sample order");
    s->config = *c;
    s->count = count;
    status st = STATUS_OK;
    for (int i = 0; i < count && st == STATUS_OK; i++) {
        st = open_source(s, &sources[i], i);
        mixed[i] = (struct mixture_source){.samples = s->sources[i].rows,
                                           .epochs_max = sources[i].epochs_max,
                                           .points = sources[i].points,
                                           .point_count = sources[i].point_count};
    }
    if (st == STATUS_OK)
        st = mixture_open(&s->mixture, mixed, count, c->curve, c->seed, c->shuffle ? c->samples_total : 0);
    if (st != STATUS_OK) samples_close(s), *out = NULL;
    return st;
}

void samples_close(struct samples *s)
{
    if (!s) return;
    for (int i = 0; i < s->count; i++) {
        pack_close(s->sources[i].pack);
        document_index_free(&s->sources[i].documents);
    }
    mixture_close(s->mixture);
    free(s);
}

const struct samples_config *samples_config_of(const struct samples *s)
{
    return &s->config;
}
int samples_sources(const struct samples *s)
{
    return s->count;
}
const struct shard_set *samples_set(const struct samples *s, int source)
{
    return s->sources[source].set;
}
int64_t samples_rows(const struct samples *s, int source)
{
    return s->sources[source].rows;
}
const struct document_index *samples_documents(const struct samples *s, int source)
{
    const struct document_index *d = &s->sources[source].documents;
    return d->starts ? d : NULL;
}

double samples_padding(const struct samples *s, int source)
{
    const struct pack *p = s->sources[source].pack;
    if (!p) return 0;
    return 1 - (double)pack_pairs(p) / ((double)pack_rows(p) * (double)s->config.sequence_length);
}

size_t samples_bytes(const struct samples *s)
{
    size_t bytes = 0;
    for (int i = 0; i < s->count; i++) {
        const struct source *from = &s->sources[i];
        if (from->documents.starts) bytes += (size_t)(from->documents.count + 1) * sizeof(int64_t);
        if (from->pack) bytes += pack_bytes(from->pack);
    }
    return bytes;
}

void samples_epochs(const struct samples *s, struct mixture_cursor *c, int64_t index, double *epochs)
{
    mixture_given(s->mixture, c, index, epochs);
    for (int i = 0; i < s->count; i++) epochs[i] /= (double)s->sources[i].rows;
}

status samples_place(const struct samples *s, struct mixture_cursor *c, int64_t index,
                     struct sample_place *place)
{
    int64_t ordinal;
    TRY(mixture_at(s->mixture, c, index, &place->source, &ordinal));
    const struct source *from = &s->sources[place->source];
    place->epoch = ordinal / from->rows;
    place->row = ordinal % from->rows;
    if (s->config.shuffle)
        place->row = shuffle_at(from->seed, place->epoch, from->rows, place->row);
    else if (place->epoch > 0)
        place->row = -1;
    return STATUS_OK;
}

int64_t samples_pieces(const struct samples *s, const struct sample_place *place, struct pack_piece *out)
{
    const struct source *from = &s->sources[place->source];
    int64_t n = 0, t = s->config.sequence_length;
    if (place->row < 0) return 0;
    if (from->pack) {
        struct pack_cursor c;
        pack_row(from->pack, place->row, &c);
        while (pack_next(&c, &out[n])) n++;
        return n;
    }
    int64_t at = place->row * t, left = from->set->tokens - 1 - at;
    out[0] = (struct pack_piece){.document = -1, .at = at, .count = left < t ? left : t};
    return 1;
}
