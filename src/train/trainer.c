#include "train/trainer.h"
#include "base/log.h"
#include "base/scope.h"
#include "model/init.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

status trainer_open(struct trainer *t, const struct spec *spec, const struct plan_lay_args *args, const char *isa)
{
    *t = (struct trainer){.spec = *spec, .steps_total = plan_steps(spec)};
    TRY(ops_cpu(&t->ops, isa));
    TRY(ops_check(&t->ops));
    TRY(decoder_init(&t->decoder, &spec->model));
    status st = plan_reserve(&t->memory, &t->decoder, &t->acts, args);
    if (st != STATUS_OK) {
        trainer_close(t);
        return st;
    }
    t->run = (struct run){.ops = &t->ops, .params = &t->decoder.params};
    return STATUS_OK;
}

void trainer_close(struct trainer *t)
{
    activations_fini(&t->acts);
    decoder_fini(&t->decoder);
    memory_free(&t->memory);
}

void trainer_init_weights(struct trainer *t)
{
    SCOPE("train.init", -1);
    init_weights(&t->decoder, (uint64_t)t->spec.run.run_seed);
}

/* The logical tensors of a checkpoint: master/NAME, m/NAME, v/NAME. Caller frees. */
static struct ckpt_item *items_list(const struct trainer *t, int *count)
{
    const struct params *p = &t->decoder.params;
    const struct { const char *prefix; void *base; } arrays[] = {{"master", p->master}, {"m", p->m}, {"v", p->v}};
    struct ckpt_item *items = calloc((size_t)p->count * 3, sizeof *items);
    *count = 0;
    if (items == NULL) return NULL;
    for (size_t k = 0; k < 3; k++) {
        if (arrays[k].base == NULL) continue;
        for (int i = 0; i < p->count; i++) {
            const struct param *row = &p->rows[i];
            struct ckpt_item *item = &items[(*count)++];
            *item = (struct ckpt_item){.dt = DTYPE_F32, .rank = row->rank, .shape = {row->shape[0], row->shape[1]},
                                       .data = (float *)arrays[k].base + row->offset};
            snprintf(item->name, sizeof item->name, "%s/%s", arrays[k].prefix, row->name);
        }
    }
    return items;
}

static char *spec_text(const struct spec *s)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (f == NULL) return NULL;
    spec_dump(s, NULL, f);
    return fclose(f) == 0 ? text : NULL;
}

status trainer_save(struct trainer *t, const char *run_dir)
{
    SCOPE("train.save", t->step);
    int count;
    char *config = spec_text(&t->spec);
    struct ckpt_item *items = items_list(t, &count);
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)spec_frozen_hash(&t->spec));
    json_t *meta = config ? json_pack("{s:I, s:I, s:I, s:s, s:s}", "step", (json_int_t)t->step, "tokens", (json_int_t)t->tokens,
                                      "steps_total", (json_int_t)t->steps_total, "frozen_hash", hash, "config", config) : NULL;
    status st = items && meta ? checkpoint_save(run_dir, t->step, items, count, meta, (int)t->spec.run.ckpt_keep)
                              : FAIL(STATUS_FIT, "no memory for the checkpoint's description");
    json_decref(meta);
    free(items);
    free(config);
    return st;
}

static status meta_check(struct trainer *t, const json_t *meta)
{
    json_t *step = json_object_get(meta, "step"), *tokens = json_object_get(meta, "tokens");
    const char *hash = json_string_value(json_object_get(meta, "frozen_hash"));
    if (!json_is_integer(step) || !json_is_integer(tokens) || hash == NULL)
        return FAIL(STATUS_CKPT, "its manifest lacks step, tokens or frozen_hash: not written by a trainer");
    char mine[17];
    snprintf(mine, sizeof mine, "%016llx", (unsigned long long)spec_frozen_hash(&t->spec));
    if (strcmp(hash, mine) != 0)
        return FAIL(STATUS_CONFIG, "model, data or batch differ from what the checkpoint was trained with; use its config, or another run.name for a new run");
    t->step = json_integer_value(step);
    t->tokens = json_integer_value(tokens);
    return STATUS_OK;
}

status trainer_restore(struct trainer *t, const struct checkpoint *c)
{
    SCOPE("train.restore", -1);
    if (t->decoder.params.grad) {
        status st = meta_check(t, checkpoint_meta(c));
        if (st != STATUS_OK) return status_wrap(st, "%s", checkpoint_path(c));
    }
    int count;
    struct ckpt_item *items = items_list(t, &count);
    if (items == NULL) return FAIL(STATUS_FIT, "no memory for the checkpoint's description");
    status st = checkpoint_read(c, items, count);
    free(items);
    if (st == STATUS_OK) st = init_sync(&t->decoder, &t->run);
    return st;
}

/* Windows [first, first + count) in order, `sequences` at a time. */
static status eval_windows(struct trainer *t, const struct shard_set *val, int64_t first, int64_t count, int64_t sequences, double *sum,
                           int64_t *valid)
{
    if (count == 0) return STATUS_OK;
    CHECK(first % sequences == 0 && count % sequences == 0, "windows %lld+%lld by %lld", (long long)first, (long long)count, (long long)sequences);
    struct loader *l = NULL;
    struct loader_config c = {.sequence_length = plan_sequence_length(&t->spec), .sequences = sequences, .micro_count = 1,
                              .vocab_size = t->spec.model.vocab_size, .documents = t->spec.run.data_packing == PACKING_DOCUMENTS};
    TRY(loader_open(&l, val, &c, first / sequences));
    status st = STATUS_OK;
    for (int64_t i = 0; i < count / sequences; i++) {
        const struct step_batch *b;
        TRY_OUT(loader_next(l, &b));
        TRY_OUT(decoder_loss(&t->decoder, &t->acts, &b->micro[0], 0, sum, &t->run));
        *valid += b->valid;
    }
out:
    loader_close(l);
    return st;
}

status train_eval(struct trainer *t, const struct shard_set *val, int64_t tokens, struct eval_result *out)
{
    SCOPE("train.eval", t->step);
    int64_t length = plan_sequence_length(&t->spec), at_once = t->acts.lay.n / length;
    int64_t windows = (val->tokens - 1) / length;
    if (tokens > 0 && tokens / length < windows) windows = tokens / length > 0 ? tokens / length : 1;
    if (windows <= 0)
        return FAIL(STATUS_DATA, "the validation shards hold %lld tokens: not one window of %lld", (long long)val->tokens, (long long)length + 1);
    double sum = 0;
    int64_t valid = 0, whole = windows / at_once * at_once;
    TRY(eval_windows(t, val, 0, whole, at_once, &sum, &valid));
    TRY(eval_windows(t, val, whole, windows - whole, 1, &sum, &valid));
    if (valid == 0) return FAIL(STATUS_DATA, "the validation shards have no target that counts");
    *out = (struct eval_result){.loss = sum / (double)valid, .tokens = valid, .bits_per_byte = NAN};
    if (val->text_bytes > 0) out->bits_per_byte = out->loss / log(2) * (double)val->tokens / (double)val->text_bytes;
    return STATUS_OK;
}
