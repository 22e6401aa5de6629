#include "train/restore.h"
#include "train/data_identity.h"
#include "base/io.h"
#include "base/log.h"
#include "data/tokenizer/tokenizer.h"

#include <string.h>

static status config_of(const struct checkpoint *c, const struct restore_options *o, struct spec *spec)
{
    const json_t *meta = checkpoint_meta(c);
    const char *text = json_string_value(json_object_get(meta, "config"));
    if (text == NULL)
        return FAIL(STATUS_CKPT, "%s: its manifest holds no config: not written by a trainer",
                    checkpoint_path(c));
    return spec_load_text(spec, checkpoint_path(c), text, strlen(text), o->override_count, o->overrides,
                          NULL);
}

static status open_forward(struct trainer *t, struct spec *spec, const struct restore_options *o)
{
    if (spec->run.train_micro_batch == 0) spec->run.train_micro_batch = 1; /* auto */
    struct plan_layout_args args = plan_args(spec, NULL);
    args.use = PLAN_FORWARD;
    args.positions = spec->model.context_length;
    args.micro_count = 1;
    if (o->rows) {
        args.documents = true;
        args.tokens = args.docs_max = args.len_max = o->rows;
    } else if (o->sequences != RESTORE_AS_RUN) {
        args.tokens = o->sequences * spec->run.train_sequence_length;
        args.docs_max = args.documents ? args.tokens : o->sequences;
    }
    return trainer_open(t, spec, &args, o->isa);
}

status restore_spec(struct spec *spec, const char *path, const struct restore_options *o)
{
    struct checkpoint *c = NULL;
    bool found = false;
    TRY(checkpoint_open(&c, path, &found));
    if (!found)
        return FAIL(STATUS_CKPT,
                    "%s: no checkpoint there; give a run directory or one of its ckpt/step-* directories",
                    path);
    status st = config_of(c, o, spec);
    checkpoint_close(c);
    return st;
}

status restore_open(struct trainer *t, const char *path, const struct restore_options *o)
{
    bool found = false;
    struct spec spec;
    TRY(restore_spec(&spec, path, o));
    TRY(o->sequences == 0 && o->rows == 0 ? trainer_open_weights(t, &spec) : open_forward(t, &spec, o));
    t->accept_data = o->accept_data;
    status st = trainer_restore(t, path, &found);
    if (st != STATUS_OK) trainer_close(t);
    return st;
}

status restore_holds_run(const char *dir, bool *held)
{
    char path[1200];
    struct io_list names;
    snprintf(path, sizeof path, "%.1100s/metrics.jsonl", dir);
    TRY(io_exists(path, held));
    snprintf(path, sizeof path, "%.1100s/ckpt", dir);
    TRY(io_list(path, &names));
    for (int i = 0; i < names.count; i++) *held = *held || strncmp(names.names[i], "step-", 5) == 0;
    io_list_free(&names);
    return STATUS_OK;
}

status restore_advise(const struct run_spec *r, status st)
{
    char what[768];
    int64_t step = -1;
    snprintf(what, sizeof what, "%s", status_message());
    if (checkpoint_newest_sound(r->run_dir, &step) != STATUS_OK) log_warn("%s", status_message());
    if (step < 0)
        return FAIL(
            st, "%s; there is no sound checkpoint to go back to: begin again with a lower optim.lr than %g",
            what, r->optim_lr);
    return FAIL(st,
                "%s; step %lld is the last sound checkpoint: `ingot train %s --resume=%lld --optim.lr=...` "
                "goes on from it, "
                "with a lower rate than %g",
                what, (long long)step, r->run_dir, (long long)step, r->optim_lr);
}

static void take_place(struct tokenizer_place *out, const struct shard_set *set)
{
    snprintf(out->dir, sizeof out->dir, "%s", set->tokenizer_dir);
    memcpy(out->sha256, set->tokenizer_hash, sizeof out->sha256);
}

status restore_tokenizer_place(const struct spec *s, struct tokenizer_place *out)
{
    *out = (struct tokenizer_place){0};
    if (s->run.data_tokenizer[0]) {
        snprintf(out->dir, sizeof out->dir, "%s", s->run.data_tokenizer);
        return STATUS_OK;
    }
    struct data_sources train;
    struct shard_set val;
    const struct shard_hints hints = shard_hints_of(&s->run);
    status st = s->run.data_train[0] ? data_sources_open(&train, &s->run) : STATUS_DATA;
    if (st == STATUS_OUT_OF_MEMORY) return st;
    if (st == STATUS_OK) {
        take_place(out, &train.sets[0]);
        data_sources_close(&train);
    }
    st = !out->dir[0] && s->run.data_val[0] ? shard_set_open_as(&val, s->run.data_val, &hints) : STATUS_DATA;
    if (st == STATUS_OUT_OF_MEMORY) return st;
    if (st == STATUS_OK) {
        take_place(out, &val);
        shard_set_close(&val);
    }
    if (out->dir[0]) return STATUS_OK;
    return FAIL(STATUS_DATA, "no tokenizer is known: neither data.tokenizer nor the manifest of the shards "
                             "names one; give --data.tokenizer=DIR");
}

status restore_tokenizer(const struct trainer *t, const struct tokenizer_place *place, struct tokenizer **out)
{
    TRY(tokenizer_load(out, place->dir));
    const status st = data_identity_check_tokenizer(t->data, place->sha256, *out, place->dir, t->accept_data);
    if (st != STATUS_OK) tokenizer_free(*out);
    return st;
}

status restore_fold(struct trainer *t)
{
    struct tokenizer_place place;
    struct tokenizer *tokenizer;
    if (t->decoder.token_map.data == NULL) return STATUS_OK;
    status st = restore_tokenizer_place(&t->spec, &place);
    if (st == STATUS_OK) st = tokenizer_load(&tokenizer, place.dir);
    if (st != STATUS_OK) return status_wrap(st, "model.engram_fold needs the tokenizer");
    st = trainer_fold(t, tokenizer);
    tokenizer_free(tokenizer);
    return st;
}
