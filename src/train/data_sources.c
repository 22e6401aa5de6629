#include "train/data_sources.h"
#include "base/log.h"
#include "base/text.h"
#include "data/tokenizer/tokenizer.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

/* Logs assumptions about the shards, and possible mistakes. */
static void warn_of(const struct shard_set *set, const struct run_spec *r)
{
    const char *path = set->shards[0].path;
    if (set->mixed)
        log_warn(
            "%s and the others: shards of training and of validation are read as one set; a pattern such as "
            "PREFIX_train_*.bin takes one of them",
            path);
    if (r->data_packing != PACKING_STREAM && !set->manifest && set->eod != EOD_NONE && r->data_eot < 0)
        log_warn(
            "%s has no manifest: documents are taken to %s token %d; data.eot and data.eod say otherwise",
            path, set->eod == EOD_AFTER ? "end in" : "begin with", set->eot);
}

static status open_set(struct shard_set *set, const char *pattern, const struct run_spec *r)
{
    const struct shard_hints hints = shard_hints_of(r);
    TRY(shard_set_open_as(set, pattern, &hints));
    status st = STATUS_OK;
    for (int i = 0; i < set->count && r->data_verify != VERIFY_OFF && st == STATUS_OK; i++)
        st = shard_verify_reads(&set->shards[i]);
    if (st != STATUS_OK) shard_set_close(set);
    return st;
}

status data_sources_open_val(struct shard_set *val, const struct run_spec *r)
{
    *val = (struct shard_set){.eot = -1};
    return r->data_val[0] ? open_set(val, r->data_val, r) : STATUS_OK;
}

status data_sources_verify(const struct shard_set *sets, int count, const struct run_spec *r, int part,
                           int parts)
{
    for (int i = 0; i < count && r->data_verify == VERIFY_START; i++)
        TRY(shard_set_verify_now(&sets[i], part, parts));
    return STATUS_OK;
}

static status open_sets(struct data_sources *s, const struct run_spec *r)
{
    for (int i = 0; i < s->sources->count; i++) {
        const struct data_source *from = &s->sources->list_of[i];
        TRY(open_set(&s->sets[i], from->path, r));
        const struct shard_set *set = &s->sets[i], *first = &s->sets[0];
        warn_of(set, r);
        if (set->tokenizer_hash[0] && first->tokenizer_hash[0] &&
            strcmp(set->tokenizer_hash, first->tokenizer_hash) != 0)
            return FAIL(STATUS_DATA,
                        "%s and %s were made with different tokenizers: one model cannot learn from both",
                        s->sources->list_of[0].path, from->path);
    }
    return STATUS_OK;
}

status data_sources_open(struct data_sources *s, const struct run_spec *r)
{
    char why[SPEC_TEXT];
    *s = (struct data_sources){0};
    if (r->data_train[0] == 0)
        return FAIL(STATUS_CONFIG,
                    "data.train is empty; name the shards, e.g. --data.train='data/train_*.bin'");
    s->sources = malloc(sizeof *s->sources);
    if (!s->sources) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a list of sources");
    status st =
        sources_read(s->sources, r->data_train, why) ? STATUS_OK : FAIL(STATUS_CONFIG, "data.train: %s", why);
    if (st == STATUS_OK) {
        s->sets = calloc((size_t)s->sources->count, sizeof *s->sets);
        s->points = calloc((size_t)s->sources->count * SOURCE_POINTS_MAX, sizeof *s->points);
        st = s->sets && s->points ? open_sets(s, r) : FAIL(STATUS_OUT_OF_MEMORY, "no memory for the sources");
    }
    if (st != STATUS_OK) data_sources_close(s);
    return st;
}

void data_sources_close(struct data_sources *s)
{
    samples_close(s->samples);
    for (int i = 0; s->sets && i < s->sources->count; i++) shard_set_close(&s->sets[i]);
    free(s->sets);
    free(s->points);
    free(s->sources);
    *s = (struct data_sources){0};
}

status data_sources_fit(const struct shard_set *set, int64_t vocab_size)
{
    if (set->vocab_size <= vocab_size) return STATUS_OK;
    return FAIL(
        STATUS_DATA,
        "%s: its vocabulary has %lld ids, the model's %lld: another tokenizer made it; name shards of the "
        "model's tokenizer",
        set->shards[0].path, (long long)set->vocab_size, (long long)vocab_size);
}

status data_sources_check(const struct data_sources *s, const struct shard_set *val, const struct run_spec *r)
{
    const char *trained = "", *path = "";
    for (int i = 0; i < s->sources->count && !trained[0]; i++)
        trained = s->sets[i].tokenizer_hash, path = s->sources->list_of[i].path;
    if (val->count > 0 && trained[0] && !val->tokenizer_hash[0])
        return FAIL(
            STATUS_DATA,
            "%s name no tokenizer, %s do: the same ids may mean another text, and a validation loss nothing; "
            "build both with `ingot data build`",
            r->data_val, path);
    if (val->count > 0 && trained[0] && strcmp(trained, val->tokenizer_hash) != 0)
        return FAIL(
            STATUS_DATA,
            "%s and %s were made with different tokenizers: a validation loss would mean nothing; build "
            "both with the same --tokenizer",
            path, r->data_val);
    const int64_t ids = data_sources_vocab_size(s);
    if (val->vocab_size > 0 && ids > 0 && val->vocab_size != ids)
        return FAIL(
            STATUS_DATA,
            "%s has a vocabulary of %lld ids, %s of %lld: they are of two tokenizers, and a validation "
            "loss would mean nothing",
            s->sources->list_of[0].path, (long long)ids, r->data_val, (long long)val->vocab_size);
    return STATUS_OK;
}

status data_sources_tokenizer(const struct shard_set *made, const struct run_spec *r, bool accept)
{
    struct tokenizer *t;
    char hash[65];
    const char *dir = r->data_tokenizer[0] ? r->data_tokenizer : made->tokenizer_dir;
    if (!dir[0] || !made->tokenizer_hash[0] || tokenizer_load(&t, dir) != STATUS_OK) return STATUS_OK;
    const int size = (int)tokenizer_vocab_size(t);
    tokenizer_hash(t, hash);
    tokenizer_free(t);
    if (strcmp(hash, made->tokenizer_hash) == 0) return STATUS_OK;
    const status st =
        r->data_tokenizer[0]
            ? FAIL(STATUS_DATA,
                   "data.tokenizer %s (%d tokens) is not the tokenizer that made %s: name that one, or none "
                   "(--data.tokenizer=), or build shards with it",
                   dir, size, made->shards[0].path)
            : FAIL(STATUS_DATA,
                   "the tokenizer in %s (%d tokens) is not the one that made %s: it has changed; put that "
                   "one back, "
                   "build the shards again, or go on with --accept-data-change",
                   dir, size, made->shards[0].path);
    if (!accept) return st;
    log_warn("accepted: %s", status_message());
    return STATUS_OK;
}

int64_t data_sources_vocab_size(const struct data_sources *s)
{
    int64_t most = 0;
    for (int i = 0; i < s->sources->count; i++)
        most = s->sets[i].vocab_size > most ? s->sets[i].vocab_size : most;
    return most;
}

int64_t data_sources_tokens(const struct data_sources *s)
{
    int64_t sum = 0;
    for (int i = 0; i < s->sources->count; i++) sum += s->sets[i].tokens;
    return sum;
}

void data_sources_log(const struct data_sources *s)
{
    const struct samples_config *c = samples_config_of(s->samples);
    double epochs[MIXTURE_SOURCES], total = (double)(c->samples_total ? c->samples_total : 1);
    char a[32], b[32], padding[64] = "";
    struct mixture_cursor cursor = {0};
    samples_epochs(s->samples, &cursor, c->samples_total, epochs);
    for (int i = 0; i < s->sources->count; i++)
        if (s->sets[i].shards[0].blocks.count == 0)
            log_info("verify    %s: contents are not verified: %s", s->sources->list_of[i].path,
                     s->sets[i].manifest ? "an older ingot wrote its manifest, without checksums of blocks"
                                         : "there is no manifest with checksums");
    for (int i = 0; i < s->sources->count; i++) {
        const bool packed = c->packing == LOADER_BEST_FIT || c->packing == LOADER_PAD;
        if (packed)
            snprintf(padding, sizeof padding, ", %.3f %% padding", 100 * samples_padding(s->samples, i));
        if (!s->sources->list && !packed) continue;
        double given = epochs[i] * (double)samples_rows(s->samples, i);
        log_info("source    %s: %s tokens, %s sequences per epoch%s; %.2f %% of the run, %.3g epochs",
                 s->sources->list_of[i].name, text_count(a, (double)s->sets[i].tokens),
                 text_count(b, (double)samples_rows(s->samples, i)), padding, 100 * given / total, epochs[i]);
    }
    if (samples_bytes(s->samples) > 0)
        log_info("packing   %s of memory for the boundaries of documents and their rows",
                 text_bytes(a, (double)samples_bytes(s->samples)));
}

void data_sources_describe(const struct data_sources *s, struct env_source *out)
{
    const int64_t total = samples_config_of(s->samples)->samples_total;
    double epochs[MIXTURE_SOURCES];
    struct mixture_cursor cursor = {0};
    samples_epochs(s->samples, &cursor, total, epochs);
    for (int i = 0; i < s->sources->count; i++)
        out[i] = (struct env_source){.name = s->sources->list_of[i].name,
                                     .path = s->sources->list_of[i].path,
                                     .tokens = s->sets[i].tokens,
                                     .share = epochs[i] * (double)samples_rows(s->samples, i) /
                                              (double)(total ? total : 1)};
}

status data_sources_mix(struct data_sources *s, const struct spec *spec)
{
    const struct run_spec *r = &spec->run;
    const int64_t steps = spec_step_count(spec), per_step = r->train_batch_tokens / r->train_sequence_length;
    const struct ramp batch = ramp_batch(r);
    struct samples_source from[MIXTURE_SOURCES];
    struct samples_config c = {.seed = (uint64_t)r->run_seed,
                               .sequence_length = r->train_sequence_length,
                               .packing = r->data_packing,
                               .shuffle = 1,
                               .curve = (enum mixture_curve)r->data_weights};
    if (__builtin_mul_overflow(steps, per_step, &c.samples_total))
        return FAIL(STATUS_CONFIG, "%lld steps of %lld sequences: more than 2^63 sequences", (long long)steps,
                    (long long)per_step);
    c.samples_total = ramp_tokens(&batch, steps) / r->train_sequence_length;
    _Static_assert((int)SOURCES_MAX == (int)MIXTURE_SOURCES, "as many sources in a spec as in a mixture");
    for (int i = 0; i < s->sources->count; i++) {
        const struct data_source *source = &s->sources->list_of[i];
        struct mixture_point *points = s->points + (ptrdiff_t)i * SOURCE_POINTS_MAX;
        double unit =
            sources_relative(source) ? (double)c.samples_total : 1 / (double)r->train_sequence_length;
        for (int k = 0; k < source->point_count; k++)
            points[k] = (struct mixture_point){source->points[k].at * unit, source->points[k].weight};
        from[i] = (struct samples_source){.set = &s->sets[i],
                                          .points = points,
                                          .point_count = source->point_count,
                                          .epochs_max = source->epochs_max};
    }
    return samples_open(&s->samples, from, s->sources->count, &c);
}

static status pinned_open(void *ctx, size_t bytes, void **out)
{
    return dev_pinned_open(ctx, bytes, out);
}
static void pinned_close(void *ctx, void *memory)
{
    dev_pinned_close(ctx, memory);
}

/* The batch's ramp in sequences. */
static status sequence_ramp(const struct run_spec *r, int ranks, struct ramp *out)
{
    *out = ramp_batch(r);
    for (int i = 0; i < out->count; i++) {
        struct ramp_stage *s = &out->stage[i];
        if (s->size % (r->train_micro_batch * r->train_sequence_length * ranks) != 0)
            return FAIL(
                STATUS_CONFIG,
                "train.batch_schedule: the micro-batches of a step of %lld tokens cannot be divided by %d "
                "ranks",
                (long long)s->size, ranks);
        s->size /= r->train_sequence_length;
        s->tokens /= r->train_sequence_length;
    }
    return STATUS_OK;
}

status data_sources_loader(const struct spec *spec, const struct mesh *place, const struct dev *dev,
                           struct loader_config *c)
{
    const struct run_spec *r = &spec->run;
    const int64_t micro_count = plan_micro_count(spec);
    const int ranks = place ? place->shape.dp : 1;
    if (micro_count % ranks != 0)
        return FAIL(STATUS_CONFIG, "the %lld micro-batches of a step cannot be divided by %d ranks",
                    (long long)micro_count, ranks);
    *c = (struct loader_config){.sequences = r->train_micro_batch,
                                .micro_count = micro_count / ranks,
                                .vocab_size = spec->model.vocab_size,
                                .rank = place ? place->dp_rank : 0,
                                .ranks = ranks,
                                .blocks = place && place->shape.zero >= 2, /* parallel/zero.h */
                                .threads = (int)r->data_threads};
    if (r->train_batch_schedule[0]) TRY(sequence_ramp(r, ranks, &c->batch));
    if (r->train_sequence_schedule[0]) c->length = ramp_sequence(r);
    if (dev && dev->kind == DEV_CUDA)
        c->memory = (struct loader_memory){(void *)dev, pinned_open, pinned_close};
    return STATUS_OK;
}
