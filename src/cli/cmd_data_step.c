/* ingot data inspect --step: prints the batch of one rank in one step of a run, row by row. The batch comes
 * from the functions of the training loop (train/data_sources.h, loader_step_at); the positions of its rows
 * in the shards come from the same samples. */
#include "base/flags.h"
#include "cli/cmd_data.h"
#include "data/tokenizer/tokenizer.h"
#include "plan/plan.h"
#include "train/data_sources.h"
#include "train/lineage.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SHOWN_TOKENS = 48 };

struct inspect_step {
    struct cmd_data_step which;
    struct spec spec;
    struct data_sources data;
    struct loader_config loader;
    struct lineage lineage;                           /* of a run's directory: what it leaves out */
    struct document_index documents[MIXTURE_SOURCES]; /* empty when a source does not know its documents */
    struct tokenizer *tokenizer;                      /* NULL: tokens are shown as numbers */
    struct pack_piece *pieces;                        /* [T] */
    struct mixture_cursor cursor;
};

/* Rows [from, to) of a sequence that lie behind each other in the stream, in one document. */
struct stretch {
    int64_t from, to;
    int64_t at;               /* in the source's stream; -1: padding */
    int64_t document, offset; /* of its first token in the document; -1: not known */
    int shard;
    int64_t shard_at;
};

/* Index of the last of ascending values that is <= x. */
static int64_t last_below(const int64_t *values, int64_t count, int64_t x)
{
    int64_t low = 0, high = count;
    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2;
        if (values[mid] <= x)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* The stretch that begins at row `from` of a sequence whose rows come from `pieces`. */
static struct stretch stretch_at(const struct inspect_step *o, int source, int64_t pieces, int64_t from)
{
    const int64_t t_count = o->spec.run.train_sequence_length;
    const struct shard_set *set = &o->data.sets[source];
    const struct document_index *d = &o->documents[source];
    struct stretch s = {.from = from, .to = t_count, .at = -1, .document = -1, .offset = -1};
    int64_t row = 0;
    for (int64_t i = 0; i < pieces; row += o->pieces[i++].count) {
        if (from >= row + o->pieces[i].count) continue;
        s.at = o->pieces[i].at + from - row;
        s.to = row + o->pieces[i].count;
        break;
    }
    if (s.at < 0) return s;
    s.shard = (int)last_below(set->starts, set->count, s.at);
    s.shard_at = s.at - set->starts[s.shard];
    if (d->starts == NULL) return s;
    s.document = last_below(d->starts, d->count, s.at);
    s.offset = s.at - d->starts[s.document];
    int64_t left = d->starts[s.document + 1] - s.at;
    if (s.to - s.from > left) s.to = s.from + left;
    return s;
}

static void print_stretch(const struct inspect_step *o, const struct shard_set *set, const struct stretch *s,
                          const struct batch *b, int64_t first)
{
    int64_t ignored = 0;
    for (int64_t r = s->from; r < s->to; r++) ignored += b->targets[first + r] == LOADER_IGNORE;
    printf("  rows %lld-%lld  ", (long long)s->from, (long long)s->to - 1);
    if (s->at < 0) {
        printf("padding\n");
        return;
    }
    if (s->document >= 0)
        printf("document %lld from its token %lld, ", (long long)s->document, (long long)s->offset);
    printf("token %lld of %s; positions %d-%d, %lld of %lld targets count\n    ", (long long)s->shard_at,
           set->shards[s->shard].path, b->positions[first + s->from], b->positions[first + s->to - 1],
           (long long)(s->to - s->from - ignored), (long long)(s->to - s->from));
    for (int64_t r = s->from; r < s->to; r++) {
        if (!o->which.full && r - s->from == SHOWN_TOKENS) {
            printf(" ... (%lld more; --full shows them)", (long long)(s->to - r));
            break;
        }
        cmd_data_put_token(o->tokenizer, b->tokens[first + r], stdout);
        if (b->targets[first + r] == LOADER_IGNORE) fputs("[no target]", stdout);
    }
    printf("\n    after the last token: ");
    if (b->targets[first + s->to - 1] == LOADER_IGNORE)
        fputs("nothing", stdout);
    else
        cmd_data_put_token(o->tokenizer, b->targets[first + s->to - 1], stdout);
    puts("");
}

static json_t *stretch_json(const struct shard_set *set, const struct stretch *s)
{
    if (s->at < 0)
        return json_pack("{s:I, s:I, s:b}", "row", (json_int_t)s->from, "rows", (json_int_t)(s->to - s->from),
                         "padding", 1);
    json_t *o = json_pack("{s:I, s:I, s:I, s:s, s:I}", "row", (json_int_t)s->from, "rows",
                          (json_int_t)(s->to - s->from), "stream_token", (json_int_t)s->at, "shard",
                          set->shards[s->shard].path, "shard_token", (json_int_t)s->shard_at);
    if (s->document < 0) return o;
    json_object_set_new(o, "document", json_integer(s->document));
    json_object_set_new(o, "offset", json_integer(s->offset));
    return o;
}

static json_t *column_json(const int32_t *values, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++) json_array_append_new(list, json_integer(values[i]));
    return list;
}

/* One sequence of the step: where it comes from, then its rows. */
static status show_sequence(struct inspect_step *o, const struct step_batch *step, int64_t m, int64_t q,
                            json_t *list)
{
    const int64_t t_count = o->spec.run.train_sequence_length, first = q * t_count;
    const int64_t index = loader_sample(&o->loader, step->step, m, q);
    const struct batch *b = &step->micro[m];
    struct sample_place place;
    TRY(samples_place(o->data.samples, &o->cursor, index, &place));
    const int64_t pieces = samples_pieces(o->data.samples, &place, o->pieces);
    const struct shard_set *set = &o->data.sets[place.source];
    const char *name = o->data.sources->list_of[place.source].name;
    json_t *parts = list ? json_array() : NULL;
    if (!list)
        printf("micro-batch %lld, sequence %lld: sample %lld is sequence %lld of epoch %lld of %s\n",
               (long long)m, (long long)q, (long long)index, (long long)place.row, (long long)place.epoch,
               name);
    for (int64_t row = 0; row < t_count;) {
        struct stretch s = stretch_at(o, place.source, pieces, row);
        if (list)
            json_array_append_new(parts, stretch_json(set, &s));
        else
            print_stretch(o, set, &s, b, first);
        row = s.to;
    }
    if (!list) return STATUS_OK;
    json_t *row =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:o}", "step", (json_int_t)step->step + 1, "rank",
                  (json_int_t)o->which.rank, "micro", (json_int_t)m, "sequence", (json_int_t)q, "sample",
                  (json_int_t)index, "source", name, "epoch", (json_int_t)place.epoch, "row",
                  (json_int_t)place.row, "parts", parts);
    json_object_set_new(row, "tokens", column_json(b->tokens + first, t_count));
    json_object_set_new(row, "targets", column_json(b->targets + first, t_count));
    json_object_set_new(row, "positions", column_json(b->positions + first, t_count));
    json_array_append_new(list, row);
    return STATUS_OK;
}

static status show_step(struct inspect_step *o)
{
    const struct loader_config *c = &o->loader;
    const int64_t t_count = o->spec.run.train_sequence_length, micros = loader_micros(c, o->which.step - 1);
    if (o->which.micro >= micros || o->which.sequence >= c->sequences)
        return FAIL(
            STATUS_CONFIG,
            "a rank has %lld micro-batches of %lld sequences in a step; --micro and --sequence count from 0",
            (long long)micros, (long long)c->sequences);
    struct step_batch *s;
    TRY(loader_step_at(o->data.samples, c, o->which.step - 1, &s));
    json_t *list = o->which.json ? json_array() : NULL;
    if (!list)
        printf(
            "step %lld, rank %lld of %lld: %lld micro-batches of %lld sequences of %lld tokens; %lld targets "
            "count, %lld tokens are padding\n",
            (long long)o->which.step, (long long)o->which.rank, (long long)o->which.ranks, (long long)micros,
            (long long)c->sequences, (long long)t_count, (long long)s->valid, (long long)s->padding);
    status st = STATUS_OK;
    for (int64_t m = 0; m < micros; m++)
        for (int64_t q = 0; q < c->sequences && st == STATUS_OK; q++)
            if ((o->which.micro < 0 || o->which.micro == m) &&
                (o->which.sequence < 0 || o->which.sequence == q))
                st = show_sequence(o, s, m, q, list);
    if (list && st == STATUS_OK) {
        json_dumpf(list, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
        puts("");
    }
    json_decref(list);
    step_batch_free(s);
    return st;
}

static bool ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

/* A run directory's config, a YAML file, or a pattern of shards beside a small model: the order of samples
 * does not ask the model for more than its context length. */
static status load_run(struct inspect_step *o, const char *from, int override_count, char **overrides)
{
    struct stat about;
    char path[SPEC_TEXT + 64];
    const bool dir = stat(from, &about) == 0 && S_ISDIR(about.st_mode);
    if (dir || ends_in(from, ".yaml") || ends_in(from, ".yml")) {
        if (snprintf(path, sizeof path, dir ? "%s/config.yaml" : "%s", from) >= (int)sizeof path)
            return FAIL(STATUS_CONFIG, "%.60s...: the path is too long", from);
        if (dir) TRY(lineage_of_run(&o->lineage, from));
        return spec_load(&o->spec, path, override_count, overrides, NULL);
    }
    char *words[64] = {"model.preset=nano", "model.context_length=1000000", "train.steps=1000000000", path};
    if (override_count > 60) return FAIL(STATUS_CONFIG, "more than 60 keys on the command line");
    if (snprintf(path, sizeof path, "data.train=%s", from) >= (int)sizeof path)
        return FAIL(STATUS_CONFIG, "%.60s...: the pattern is too long", from);
    for (int i = 0; i < override_count; i++) words[4 + i] = overrides[i];
    TRY(spec_load(&o->spec, NULL, 4 + override_count, words, NULL));
    if (o->spec.run.train_sequence_length == 1000000)
        return FAIL(STATUS_CONFIG,
                    "shards alone do not say how a run reads them: give --train.sequence_length=T, and "
                    "what else the run sets: train.micro_batch, train.batch_tokens, run.seed, "
                    "data.packing; or name the run's directory");
    return STATUS_OK;
}

/* The loader of a rank in the mesh of the run's keys; of one rank alone, which sees all of the step,
 * whatever they say. */
static status open_loader(struct inspect_step *o)
{
    struct mesh_shape shape;
    struct mesh place;
    if (o->which.rank < 0 || o->which.rank >= o->which.ranks)
        return FAIL(STATUS_CONFIG, "rank %lld of %lld: ranks count from 0", (long long)o->which.rank,
                    (long long)o->which.ranks);
    if (o->which.ranks == 1) return data_sources_loader(&o->spec, NULL, NULL, &o->loader);
    TRY(mesh_shape(&o->spec, (int)o->which.ranks, &shape));
    place = mesh_place(&shape, (int)o->which.rank);
    return data_sources_loader(&o->spec, &place, NULL, &o->loader);
}

static status inspect(struct inspect_step *o)
{
    if (o->spec.run.train_micro_batch == 0)
        return FAIL(STATUS_CONFIG,
                    "train.micro_batch is auto: give --train.micro_batch=B, or the run's directory, "
                    "whose config.yaml knows it");
    TRY(open_loader(o));
    o->loader.skips = &o->lineage.skips;
    TRY(data_sources_open(&o->data, &o->spec.run));
    TRY(data_sources_mix(&o->data, &o->spec));
    if (!o->which.tokenizer_dir && o->spec.run.data_tokenizer[0])
        o->which.tokenizer_dir = o->spec.run.data_tokenizer;
    if (!o->which.json) TRY(cmd_data_tokenizer(&o->tokenizer, o->which.tokenizer_dir, &o->data.sets[0]));
    for (int i = 0; i < o->data.sources->count; i++)
        if (o->data.sets[i].bounded) TRY(shard_set_documents(&o->data.sets[i], &o->documents[i]));
    o->pieces = malloc((size_t)o->spec.run.train_sequence_length * sizeof *o->pieces);
    if (!o->pieces) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for one sequence");
    return show_step(o);
}

status cmd_data_step(const struct args *a, const struct cmd_data_step *which)
{
    if (which->step < 1 || which->ranks < 1 || which->ranks > INT32_MAX)
        return FAIL(STATUS_CONFIG, "--step counts from 1, --ranks is 1 or more");
    struct inspect_step *o = calloc(1, sizeof *o);
    MEMORY_CHECK(o, "no memory for a description");
    o->which = *which;
    status st = load_run(o, a->words[0], a->key_count, a->keys);
    if (st == STATUS_OK) st = inspect(o);
    for (int i = 0; i < MIXTURE_SOURCES; i++) document_index_free(&o->documents[i]);
    data_sources_close(&o->data);
    lineage_free(&o->lineage);
    if (o->tokenizer) tokenizer_free(o->tokenizer);
    free(o->pieces);
    free(o);
    return st;
}
