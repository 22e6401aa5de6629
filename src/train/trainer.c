#include "train/trainer.h"
#include "base/io.h"
#include "base/log.h"
#include "base/scope.h"
#include "model/init.h"
#include "spec/sources.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The file that remembers products; a machine without a home remembers nothing. */
static status cache_path(struct trainer *t)
{
    const char *dir = t->spec.run.machine_cache_dir, *home = getenv("HOME");
    char path[SPEC_TEXT + 32];
    if (dir[0] == 0 && (home == NULL || strlen(home) > SPEC_TEXT - 32)) return STATUS_OK;
    if (dir[0])
        snprintf(path, sizeof path, "%s", dir);
    else
        snprintf(path, sizeof path, "%s/.cache/ingot", home);
    status st = io_make_dirs(path);
    if (st != STATUS_OK && dir[0]) return st;
    if (st != STATUS_OK) return STATUS_OK; /* nobody asked for it */
    snprintf(t->gemm_cache, sizeof t->gemm_cache, "%s/gemm.txt", path);
    return STATUS_OK;
}

static status open_device(struct trainer *t, const char *isa)
{
    struct choose_ops choice = plan_ops(&t->spec, isa);
    struct stream *s = NULL;
    TRY(dev_open(&t->dev, plan_device(&t->spec)));
    if (t->dev.kind == DEV_CUDA) {
        s = &t->stream;
        TRY(dev_stream_open(&t->dev, s));
        TRY(cache_path(t));
        if (t->gemm_cache[0]) choice.gemm_cache = t->gemm_cache;
    }
    TRY(choose_open(&t->ops, t->dev.kind, s, &choice));
    t->run = (struct run){.ops = &t->ops, .stream = s, .params = &t->decoder.params, .tp = t->mesh.tp};
    return STATUS_OK;
}

static status open_memory(struct trainer *t, const struct plan_lay_args *given)
{
    TRY(plan_micro_batch(&t->spec, &t->ops, &t->dev, &t->mesh));
    struct plan_lay_args args = given ? *given : plan_args(&t->spec, &t->mesh);
    args.sync = &t->sync;
    args.squares = &t->squares;
    args.share = &t->share;
    args.ops = &t->ops;
    args.kind = t->dev.kind;
    args.stream = t->run.stream;
    args.bytes_max = plan_bytes(&t->spec, &t->dev);
    TRY(decoder_init(&t->decoder, &t->spec.model, &t->mesh));
    TRY(plan_reserve(&t->memory, &t->decoder, &t->acts, &args));
    choose_workspace(t->run.stream, t->acts.workspace.data, (size_t)tensor_count(t->acts.workspace));
    struct feed_shape shape = plan_feed(&args);
    TRY(feed_open(&t->feed, &t->dev, t->run.stream, &shape, t->memory.input.base));
    t->run.scalars = t->feed.scalars;
    if (args.use == PLAN_TRAIN) TRY(optim_chunks(&t->decoder.params, &t->spec.run, t->run.stream));
    return STATUS_OK;
}

static status open_all(struct trainer *t, const struct plan_lay_args *args, const char *isa)
{
    status st = open_device(t, isa);
    if (st == STATUS_OK && t->mesh.world && t->dev.kind != DEV_CPU)
        st = FAIL(STATUS_CONFIG, "several ranks train on the CPU alone so far; use --machine.device=cpu");
    if (st == STATUS_OK) st = open_memory(t, args);
    if (st == STATUS_OK) st = pipeline_open(t);
    if (st == STATUS_OK && args == NULL)
        st = sync_check(t->spec.run.train_gradient_groups, plan_micro_count(&t->spec), t->mesh.shape.dp);
    if (st != STATUS_OK) {
        trainer_close(t);
        return st;
    }
    t->steps_total = spec_step_count(&t->spec);
    return STATUS_OK;
}

status trainer_open(struct trainer *t, const struct spec *spec, const struct plan_lay_args *args,
                    const char *isa)
{
    *t = (struct trainer){.spec = *spec,
                          .mesh = mesh_place(&(struct mesh_shape){1, 1, 1, .chunks = 1, .shard = 1}, 0)};
    return open_all(t, args, isa);
}

/* Ranks that mean different runs would train a mixture of them. What may differ: where they run and what they tell. */
static status same_run(struct comm *comm, const struct spec *spec)
{
    const struct run_spec *run = &spec->run;
    const int64_t mine[] = {(int64_t)spec_frozen_hash(spec),
                            run->parallel_tensor,
                            run->parallel_pipeline,
                            run->parallel_schedule,
                            run->parallel_chunks,
                            run->parallel_zero,
                            run->parallel_shard,
                            run->train_micro_batch,
                            run->train_gradient_groups};
    int64_t all[COMM_RANKS_MAX][sizeof mine / sizeof *mine];
    TRY(comm_all_gather(comm, "configuration", mine, all, sizeof mine));
    for (int r = 0; r < comm_ranks(comm); r++)
        if (memcmp(all[r], mine, sizeof mine) != 0)
            return FAIL(STATUS_COMM,
                        "rank %d and rank %d have different models, data, optimizers or meshes: `ingot "
                        "config` on both "
                        "shows where; give all ranks the same files and arguments",
                        comm_rank(comm), r);
    return STATUS_OK;
}

status trainer_open_rank(struct trainer *t, const struct spec *spec, const char *isa, struct comm *comm)
{
    struct mesh_shape shape;
    *t = (struct trainer){.spec = *spec};
    TRY(same_run(comm, spec));
    TRY(mesh_shape(spec, comm_ranks(comm), &shape));
    if (shape.tp > 1) return FAIL(STATUS_CONFIG, "parallel.tensor %d: not served yet; set it to 1", shape.tp);
    TRY(mesh_open(&t->mesh, &shape, comm));
    return open_all(t, NULL, isa);
}

status trainer_open_weights(struct trainer *t, const struct spec *spec)
{
    struct spec plain = *spec;
    plain.run.machine_device = DEVICE_CPU;
    plain.run.attention_backend = ATTENTION_AUTO;
    plain.run.train_precision = PRECISION_FP32;
    plain.run.train_micro_batch = 1;
    const struct plan_lay_args args = {.use = PLAN_FORWARD, .dt = DTYPE_F32, .tokens = 1, .positions = 1};
    TRY(trainer_open(t, &plain, &args, NULL));
    t->spec = *spec;
    return STATUS_OK;
}

void trainer_close(struct trainer *t)
{
    dev_graph_close(&t->dev, &t->graph);
    pipeline_close(&t->pipeline);
    feed_close(&t->feed);
    activations_fini(&t->acts);
    decoder_fini(&t->decoder);
    memory_free(&t->memory);
    choose_close(t->run.stream);
    dev_stream_close(&t->stream);
    dev_close(&t->dev);
}

/* The flat arrays of the state: what lies where, and as what tensors a checkpoint has it. */
enum { STATE_ARRAYS = 5 };
struct state_array {
    const char *prefix;
    void *device; /* NULL: not laid out */
    dtype dt;
    int64_t block; /* elements of a parameter that share one of these: 1, or PARAM_ALIGN for scales */
    bool second;   /* of the second moment, which `ortho` rows have none of */
};
/* The same in host memory: themselves on the CPU, copies of what a GPU holds. */
struct host_state {
    struct state_array list[STATE_ARRAYS];
    void *arrays[STATE_ARRAYS];
    bool owned;
};
enum state_copy { STATE_SPACE, STATE_CONTENTS }; /* memory alone, or what the device holds too */

static void state_list(const struct trainer *t, struct state_array list[STATE_ARRAYS])
{
    const struct params *p = &t->decoder.params;
    const struct state_array all[STATE_ARRAYS] = {
        {"master", p->master, DTYPE_F32, 1, false},
        {"m", p->m, p->moment_dt, 1, false},
        {"v", p->v, p->moment_dt, 1, true},
        {"m_scale", p->m_scale, DTYPE_F32, PARAM_ALIGN, false},
        {"v_scale", p->v_scale, DTYPE_F32, PARAM_ALIGN, true},
    };
    memcpy(list, all, sizeof all);
}

static size_t state_bytes(const struct trainer *t, const struct state_array *a)
{
    const struct params *p = &t->decoder.params;
    return (size_t)((a->second ? p->total_v : p->total) / a->block) * dtype_bytes(a->dt);
}

static void state_free(struct host_state *h)
{
    for (int i = 0; i < STATE_ARRAYS && h->owned; i++) free(h->arrays[i]);
    *h = (struct host_state){0};
}

static status state_open(struct trainer *t, struct host_state *h, enum state_copy copy)
{
    struct stream *s = t->run.stream;
    *h = (struct host_state){.owned = s != NULL};
    state_list(t, h->list);
    status st = STATUS_OK;
    for (int i = 0; i < STATE_ARRAYS && st == STATUS_OK; i++) {
        const size_t bytes = state_bytes(t, &h->list[i]);
        if (s == NULL) h->arrays[i] = h->list[i].device;
        if (s == NULL || h->list[i].device == NULL) continue;
        h->arrays[i] = malloc(bytes);
        if (h->arrays[i] == NULL)
            st = FAIL(STATUS_FIT, "no host memory for %zu bytes of the GPU's state", bytes);
        if (st == STATUS_OK && copy == STATE_CONTENTS)
            st = dev_download(s, h->arrays[i], h->list[i].device, bytes);
    }
    if (st == STATUS_OK && s) st = dev_sync(s);
    if (st != STATUS_OK) state_free(h);
    return st;
}

/* Back to the device, and the weights that products read from the master weights. */
static status state_upload(struct trainer *t, const struct host_state *h)
{
    for (int i = 0; i < STATE_ARRAYS && h->owned; i++)
        if (h->arrays[i])
            TRY(dev_upload(t->run.stream, h->list[i].device, h->arrays[i], state_bytes(t, &h->list[i])));
    TRY(init_sync(&t->decoder, &t->run));
    return dev_sync(t->run.stream);
}

status trainer_init_weights(struct trainer *t)
{
    SCOPE("train.init", -1);
    TRY(init_weights(&t->decoder, &t->run, (uint64_t)t->spec.run.run_seed));
    return dev_sync(t->run.stream);
}

/* Row `row` in array `k`. Scales are a vector: blocks do not end with the rows of a matrix. */
static struct ckpt_item item_of(const struct host_state *h, int k, const struct param *row)
{
    const struct state_array *a = &h->list[k];
    const int64_t at = (a->second ? row->offset - row->no_v : row->offset) / a->block;
    struct ckpt_item item = {.dt = a->dt,
                             .rank = row->rank,
                             .shape = {row->shape[0], row->shape[1]},
                             .data = (char *)h->arrays[k] + (size_t)at * dtype_bytes(a->dt)};
    if (a->block > 1) {
        item.rank = 1;
        item.shape[0] = (row->count + a->block - 1) / a->block;
        item.shape[1] = 0;
    }
    snprintf(item.name, sizeof item.name, "%s/%s", a->prefix, row->name);
    return item;
}

/* The logical tensors of a checkpoint: master/NAME, m/NAME, v/NAME, and m_scale/NAME, v_scale/NAME of moments in 8 bits. Caller frees. */
static struct ckpt_item *items_list(const struct trainer *t, const struct host_state *h, int *count)
{
    const struct params *p = &t->decoder.params;
    struct ckpt_item *items = calloc((size_t)p->count * STATE_ARRAYS, sizeof *items);
    *count = 0;
    for (int k = 0; k < STATE_ARRAYS && items; k++)
        for (int i = 0; i < p->count && h->arrays[k]; i++)
            if (!h->list[k].second || !p->rows[i].ortho) items[(*count)++] = item_of(h, k, &p->rows[i]);
    return items;
}

static bool all_finite(const struct ckpt_item *item)
{
    const uint32_t exponent = 0x7f800000; /* all ones: infinite or not a number */
    const int64_t n = item->shape[0] * (item->rank > 1 ? item->shape[1] : 1);
    int bad = 0;
    if (item->dt == DTYPE_U8) return true; /* codes */
    if (item->dt == DTYPE_BF16) {
        const bf16 *bits = item->data;
        for (int64_t k = 0; k < n; k++) bad |= (bits[k] & exponent >> 16) == exponent >> 16;
    } else {
        const uint32_t *bits = item->data;
        for (int64_t k = 0; k < n; k++) bad |= (bits[k] & exponent) == exponent;
    }
    return !bad;
}

/* A checkpoint that cannot be gone on from would push out those that can. */
static status check_finite(const struct trainer *t, const struct ckpt_item *items, int count)
{
    for (int i = 0; i < count; i++)
        if (!all_finite(&items[i]))
            return FAIL(STATUS_NUMERIC,
                        "%s is not finite after step %lld: training diverged, and this is not saved; resume "
                        "from the last checkpoint with a lower optim.lr",
                        items[i].name, (long long)t->step);
    return STATUS_OK;
}

static json_t *describe(struct trainer *t)
{
    char *config = spec_dump_text(&t->spec), *algorithms = choose_algorithms(t->run.stream);
    json_t *meta = config ? json_pack("{s:I, s:I, s:s, s:b}", "step", (json_int_t)t->step, "tokens",
                                      (json_int_t)t->tokens, "config", config, "imported",
                                      t->decoder.params.grad == NULL)
                          : NULL;
    if (meta && algorithms) json_object_set_new(meta, "algorithms", json_string(algorithms));
    free(algorithms);
    free(config);
    return meta;
}

status trainer_save(struct trainer *t, const char *run_dir)
{
    SCOPE("train.save", t->step);
    int count;
    struct host_state h;
    TRY(state_open(t, &h, STATE_CONTENTS));
    struct ckpt_item *items = items_list(t, &h, &count);
    json_t *meta = describe(t);
    status st = items && meta ? check_finite(t, items, count)
                              : FAIL(STATUS_FIT, "no memory for the checkpoint's description");
    if (st == STATUS_OK)
        st = checkpoint_save(run_dir, t->step, items, count, meta, (int)t->spec.run.ckpt_keep);
    json_decref(meta);
    free(items);
    state_free(&h);
    return st;
}

status trainer_write_config(const struct spec *spec, const char *run_dir)
{
    char path[SPEC_TEXT + 32], *text = spec_dump_text(spec);
    snprintf(path, sizeof path, "%s/config.yaml", run_dir);
    if (text == NULL) return FAIL(STATUS_FIT, "no memory for %s", path);
    status st = io_write_file(path, text, strlen(text));
    free(text);
    return st;
}

/* A checkpoint that `ingot ckpt import` made: weights alone, of no run yet. */
static bool is_import(const struct checkpoint *c)
{
    return json_is_true(json_object_get(checkpoint_meta(c), "imported"));
}

static status place_of(struct trainer *t, const struct checkpoint *c)
{
    json_t *step = json_object_get(checkpoint_meta(c), "step"),
           *tokens = json_object_get(checkpoint_meta(c), "tokens");
    if (!json_is_integer(step) || !json_is_integer(tokens))
        return FAIL(STATUS_CKPT, "%s: its manifest lacks step or tokens: not written by a trainer",
                    checkpoint_path(c));
    t->step = json_integer_value(step);
    t->tokens = json_integer_value(tokens);
    return STATUS_OK;
}

/* What a run may not change once it has begun; other changes are said. From an import no run has begun yet. */
static status config_check(const struct trainer *t, const struct checkpoint *c)
{
    const char *text = json_string_value(json_object_get(checkpoint_meta(c), "config"));
    struct spec old;
    char *diff = NULL;
    size_t size = 0;
    if (text == NULL)
        return FAIL(STATUS_CKPT, "%s: its manifest holds no config: not written by a trainer",
                    checkpoint_path(c));
    TRY(spec_load_text(&old, checkpoint_path(c), text, strlen(text), 0, NULL, NULL));
    FILE *f = open_memstream(&diff, &size);
    if (f == NULL) return FAIL(STATUS_FIT, "no memory to compare configurations");
    int lines = spec_diff(&old, &t->spec, f);
    fclose(f);
    if (lines > 0) log_info("configuration since %s:\n%s", checkpoint_path(c), diff);
    free(diff);
    if (is_import(c)) return STATUS_OK;
    if (sources_any_relative(t->spec.run.data_train) && spec_step_count(&old) != spec_step_count(&t->spec))
        return FAIL(
            STATUS_CONFIG,
            "%s: the weights of data.train are given for parts of the run, and its length has changed from "
            "%lld to %lld steps: that is another order of samples; give the points in tokens, or keep the "
            "length",
            checkpoint_path(c), (long long)spec_step_count(&old), (long long)spec_step_count(&t->spec));
    if (spec_frozen_hash(&old) == spec_frozen_hash(&t->spec)) return STATUS_OK;
    return FAIL(
        STATUS_CONFIG,
        "%s: model, data, batch or optimizer differ from what the run began with (lines above that say so); "
        "take them back, or begin "
        "another run with --run.name=OTHER",
        checkpoint_path(c));
}

static status check_moments(const struct trainer *t, const struct checkpoint *c,
                            const struct ckpt_item *items, int count)
{
    for (int i = t->decoder.params.count; i < count && !is_import(c); i++)
        if (checkpoint_find(c, items[i].name) < 0)
            return FAIL(STATUS_CKPT, "%s: has no tensor '%s', and is no import: nothing to go on from",
                        checkpoint_path(c), items[i].name);
    return STATUS_OK;
}

/* The algorithms of products are part of a run's bits. */
static status algorithms_of(struct trainer *t, const struct checkpoint *c)
{
    const char *text = json_string_value(json_object_get(checkpoint_meta(c), "algorithms"));
    return text ? choose_algorithms_set(t->run.stream, text) : STATUS_OK;
}

status trainer_restore(struct trainer *t, const char *path, bool *found)
{
    SCOPE("train.restore", -1);
    struct checkpoint *c = NULL;
    struct ckpt_item *items = NULL;
    struct host_state h = {0};
    int count = 0;
    bool training = t->decoder.params.grad != NULL;
    TRY(checkpoint_open(&c, path, found));
    if (!*found) return STATUS_OK;
    status st = STATUS_OK;
    if (training) TRY_OUT(config_check(t, c));
    checkpoint_close(c);
    c = NULL;
    TRY_OUT(state_open(t, &h, STATE_SPACE));
    items = items_list(t, &h, &count);
    if (items == NULL) {
        st = FAIL(STATUS_FIT, "no memory for the checkpoint's description");
        goto out;
    }
    /* An import is weights alone, which come first in the list: the moments begin at zero. Which checkpoint it will be is known
     * only when its data have passed: behind a damaged one there may be the import that the run began with. */
    for (int i = t->decoder.params.count; i < count; i++) items[i].optional = true;
    TRY_OUT(checkpoint_restore(&c, path, items, count, found));
    TRY_OUT(check_moments(t, c, items, count));
    TRY_OUT(place_of(t, c));
    TRY_OUT(algorithms_of(t, c));
    st = state_upload(t, &h);
    if (st == STATUS_OK) log_info("weights   of step %lld from %s", (long long)t->step, checkpoint_path(c));
out:
    free(items);
    state_free(&h);
    checkpoint_close(c);
    return st;
}

status train_eval(struct trainer *t, const struct shard_set *val, int64_t tokens, struct eval_result *out)
{
    SCOPE("train.eval", t->step);
    int64_t length = t->spec.run.train_sequence_length, at_once = t->acts.lay.n / length;
    struct loader *l = NULL;
    struct samples *samples;
    TRY(samples_open(&samples, &(struct samples_source){.set = val}, 1,
                     &(struct samples_config){.sequence_length = length,
                                              .packing = t->spec.run.data_packing,
                                              .rows_max = tokens > 0 ? (tokens - 1) / length + 1 : 0}));
    struct loader_config c = {.sequences = at_once, .micro_count = 1, .vocab_size = t->spec.model.vocab_size};
    /* Unshuffled, every target comes once, and the last batch is filled up with targets that do not count. */
    int64_t windows = samples_rows(samples, 0);
    double sum = 0, hits = 0;
    int64_t valid = 0;
    status st = STATUS_OK;
    TRY_OUT(loader_open(&l, samples, &c, 0));
    for (int64_t i = 0; i < (windows + at_once - 1) / at_once; i++) {
        const struct step_batch *b;
        TRY_OUT(loader_next(l, &b));
        struct step_scalars scalars = {0};
        TRY_OUT(feed_put(&t->feed, b->micro, 1, &scalars));
        TRY_OUT(t->mesh.pp ? pipeline_loss(t)
                           : decoder_loss(&t->decoder, &t->acts, &t->feed.micro[0], 0, &t->run));
        TRY_OUT(feed_read(&t->feed, &scalars));
        sum += scalars.loss_sum;
        hits += scalars.hits;
        valid += b->valid;
    }
    double sums[] = {sum, hits}; /* of the last stage; zeros elsewhere */
    TRY_OUT(comm_sum_f64(t->mesh.pp, "validation", sums, 2));
    sum = sums[0], hits = sums[1];
    if (valid == 0) {
        st = FAIL(STATUS_DATA, "the validation shards have no target that counts");
        goto out;
    }
    if (!isfinite(sum)) {
        st = FAIL(STATUS_NUMERIC,
                  "the validation loss after step %lld is not finite: training diverged; begin "
                  "again with a lower optim.lr",
                  (long long)t->step);
        goto out;
    }
    *out = (struct eval_result){
        .loss = sum / (double)valid, .accuracy = hits / (double)valid, .tokens = valid, .bits_per_byte = NAN};
    if (val->text_bytes > 0)
        out->bits_per_byte = out->loss / log(2) * (double)val->tokens / (double)val->text_bytes;
out:
    loader_close(l);
    samples_close(samples);
    return st;
}
