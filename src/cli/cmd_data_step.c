/* ingot data inspect RUN --step N: what a step of a run saw. */
#include "cli/cmd_data.h"
#include "data/loader.h"
#include "data/shard.h"
#include "data/tokenizer.h"
#include "plan/plan.h"
#include "spec/spec.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void print_rows(const struct tokenizer *tokenizer, const struct batch *b, int64_t from,
                       int64_t t_count)
{
    int64_t ignored = 0;
    for (int64_t r = from; r < from + t_count; r++) {
        if (b->positions[r] == 0) {
            int64_t end = r + 1;
            while (end < from + t_count && b->positions[end] != 0) end++;
            printf("%s  document of %lld tokens: ", r > from ? "\n" : "", (long long)(end - r));
        }
        cmd_data_put_token(tokenizer, b->tokens[r], stdout);
        if (b->targets[r] != LOADER_IGNORE) continue;
        fputs("[no target]", stdout);
        ignored++;
    }
    int64_t last = from + t_count - 1;
    fputs("\n  after the last token: ", stdout);
    if (b->targets[last] == LOADER_IGNORE)
        fputs("nothing", stdout);
    else
        cmd_data_put_token(tokenizer, b->targets[last], stdout);
    printf("\n  %lld of %lld targets count\n", (long long)(t_count - ignored), (long long)t_count);
}

static void print_rows_json(const struct batch *b, int64_t from, int64_t t_count, json_t *o)
{
    json_t *tokens = json_array(), *targets = json_array(), *positions = json_array();
    for (int64_t r = from; r < from + t_count; r++) {
        json_array_append_new(tokens, json_integer(b->tokens[r]));
        json_array_append_new(targets, json_integer(b->targets[r]));
        json_array_append_new(positions, json_integer(b->positions[r]));
    }
    json_object_set_new(o, "tokens", tokens);
    json_object_set_new(o, "targets", targets);
    json_object_set_new(o, "positions", positions);
}

/* One sequence of the step: where it comes from, then its rows. */
static void print_sequence(const struct tokenizer *tokenizer, const struct shard_set *set,
                           const struct loader_config *c, const struct step_batch *s, int64_t micro,
                           int64_t sequence, json_t *list)
{
    int64_t index = (s->step * c->micro_count + micro) * c->sequences + sequence,
            t_count = c->sequence_length;
    struct sample_place p =
        loader_place(c->seed, index, loader_window_count(set->tokens, t_count, c->shuffle), c->shuffle);
    int64_t at = p.window * t_count;
    int shard = 0;
    while (shard + 1 < set->count && set->starts[shard + 1] <= at) shard++;
    if (list) {
        json_t *row = json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I}", "step", (json_int_t)s->step + 1, "micro",
            (json_int_t)micro, "sequence", (json_int_t)sequence, "sample", (json_int_t)index, "epoch",
            (json_int_t)p.epoch, "window", (json_int_t)p.window, "stream_token", (json_int_t)at, "shard",
            set->shards[shard].path, "shard_token", (json_int_t)(at - set->starts[shard]));
        print_rows_json(&s->micro[micro], sequence * t_count, t_count, row);
        json_array_append_new(list, row);
        return;
    }
    printf("step %lld, micro-batch %lld, sequence %lld: sample %lld is window %lld of epoch %lld, token %lld "
           "of %s\n",
           (long long)s->step + 1, (long long)micro, (long long)sequence, (long long)index,
           (long long)p.window, (long long)p.epoch, (long long)(at - set->starts[shard]),
           set->shards[shard].path);
    print_rows(tokenizer, &s->micro[micro], sequence * t_count, t_count);
}

static status inspect_step(const struct inspect_options *o, const struct tokenizer *tokenizer,
                           const struct shard_set *set, const struct loader_config *c)
{
    if (o->micro >= c->micro_count || o->sequence >= c->sequences)
        return FAIL(STATUS_CONFIG,
                    "a step of this run has %lld micro-batches of %lld sequences; --micro and --sequence "
                    "count from 0",
                    (long long)c->micro_count, (long long)c->sequences);
    struct step_batch *s;
    TRY(loader_step_at(set, c, o->step - 1, &s));
    json_t *list = o->json ? json_array() : NULL;
    if (!list)
        printf("step %lld: %lld micro-batches of %lld sequences of %lld tokens; %lld targets count\n",
               (long long)o->step, (long long)c->micro_count, (long long)c->sequences,
               (long long)c->sequence_length, (long long)s->valid);
    for (int64_t m = 0; m < c->micro_count; m++)
        for (int64_t q = 0; q < c->sequences; q++)
            if ((o->micro < 0 || o->micro == m) && (o->sequence < 0 || o->sequence == q))
                print_sequence(tokenizer, set, c, s, m, q, list);
    if (list) {
        json_dumpf(list, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
        json_decref(list);
        puts("");
    }
    step_batch_free(s);
    return STATUS_OK;
}

status cmd_data_step(const struct inspect_options *o, const char *run)
{
    char path[1024];
    struct stat about;
    struct spec spec;
    struct spec_origin *origin;
    bool dir = stat(run, &about) == 0 && S_ISDIR(about.st_mode);
    if (snprintf(path, sizeof path, dir ? "%s/config.yaml" : "%s", run) >= (int)sizeof path)
        return FAIL(STATUS_CONFIG, "%.60s...: the path is too long", run);
    TRY(spec_load(&spec, path, 0, NULL, &origin));
    spec_origin_free(origin);
    if (!spec.run.data_train[0]) return FAIL(STATUS_CONFIG, "%s: data.train names no shards", path);
    struct shard_set set;
    struct shard_hints hints = shard_hints_of(&spec.run);
    TRY(shard_set_open_as(&set, spec.run.data_train, &hints));
    struct tokenizer *tokenizer;
    const char *named = o->tokenizer_dir;
    if (!named && spec.run.data_tokenizer[0]) named = spec.run.data_tokenizer;
    status st = cmd_data_tokenizer(&tokenizer, named, &set);
    /* As the training loop opens its loader (train/loop.c). */
    if (st == STATUS_OK)
        st = inspect_step(o, tokenizer, &set,
                          &(struct loader_config){.seed = (uint64_t)spec.run.run_seed,
                                                  .sequence_length = spec.run.train_sequence_length,
                                                  .sequences = spec.run.train_micro_batch,
                                                  .micro_count = plan_micro_count(&spec),
                                                  .vocab_size = spec.model.vocab_size,
                                                  .documents = spec.run.data_packing == PACKING_DOCUMENTS,
                                                  .shuffle = 1});
    if (tokenizer) tokenizer_free(tokenizer);
    shard_set_close(&set);
    return st;
}
