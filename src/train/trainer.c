#include "train/data_identity.h"
#include "train/trainer.h"
#include "base/io.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/scope.h"
#include "data/tokenizer/token_map.h"
#include "dev/near.h"
#include "model/init.h"
#include "ops/precision.h"
#include "parallel/fp8.h"
#include "spec/ramp.h"
#include "spec/sources.h"
#include "train/algorithm_record.h"
#include "train/save.h"
#include "train/snapshot.h"
#include "train/state.h"
#include "train/state_raw.h"
#include "train/spike_act.h"
#include "train/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Path of the file of measured GEMM algorithms. Without HOME there is none. */
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
    if (st != STATUS_OK) return STATUS_OK; /* optional: the user did not set the directory */
    snprintf(t->gemm_cache, sizeof t->gemm_cache, "%s/gemm.txt", path);
    return STATUS_OK;
}

/* Pins the host's part of a GPU run to the cores near the GPU (dev/near.h), with no more threads than there are such
 * cores unless machine.threads says so. */
static status stay_near(const struct dev *d, int64_t threads)
{
    char address[DEV_ADDRESS], text[256];
    cpu_set_t cores;
    TRY(dev_address(d, address));
    const int count = near_bind(address, &cores);
    if (count == 0) {
        log_debug("host threads are not bound: the place of GPU %s is unknown", address);
        return STATUS_OK;
    }
    if (threads == 0 && count < parallel_threads()) parallel_threads_set(count);
    log_debug("host threads on the cores near GPU %s: %s", address, near_text(&cores, text, sizeof text));
    return STATUS_OK;
}

/* Rejects what a device of this kind does not support. Called before a device is touched, and again once `auto` has
 * found one. */
static status check_device(const struct trainer *t, enum dev_kind kind)
{
    const bool gpu = kind == DEV_CUDA;
    const struct mesh_shape *m = &t->mesh.shape;
    if (gpu && mesh_ep(m) > 1 && t->spec.run.parallel_transport == TRANSPORT_NCCL)
        return FAIL(STATUS_CONFIG,
                    "parallel.expert %d needs GPUs that reach each other's memory so far, which "
                    "parallel.transport: nccl does not use; set it to auto",
                    mesh_ep(m));
    if (gpu) TRY(mesh_check_gpu(&t->spec, m));
    if (gpu && mesh_cp(m) > 1 && m->context_kind == CONTEXT_RING)
        return FAIL(STATUS_CONFIG,
                    "parallel.context_kind ring is built for CPU ranks so far: take all_gather or "
                    "ulysses, or set machine.device to cpu");
    return spike_check(t, gpu);
}

static enum gpu_backend backend_of(enum gpu_transport transport)
{
    switch (transport) {
    case TRANSPORT_AUTO: break;
    case TRANSPORT_NCCL: return GPU_BACKEND_NCCL;
    }
    return GPU_BACKEND_AUTO;
}

static status open_device(struct trainer *t, const char *isa)
{
    struct choose_ops choice = plan_ops(&t->spec, isa);
    struct stream *s = NULL;
    TRY(check_device(t, plan_device(&t->spec)));
    TRY(dev_open_local(&t->dev, plan_device(&t->spec), comm_local_rank(t->mesh.world)));
    TRY(check_device(t, t->dev.kind));
    if (t->dev.kind == DEV_CUDA) {
        s = &t->stream;
        TRY(stay_near(&t->dev, t->spec.run.machine_threads));
        TRY(dev_stream_open(&t->dev, s));
        TRY(comm_devices_open(t->mesh.world, s,
                              backend_of((enum gpu_transport)t->spec.run.parallel_transport)));
        if (t->mesh.world) dev_measure(&t->dev);
        t->dev.bytes_free += comm_memory_used(t->mesh.world).device; /* the plan counts it */
        TRY(cache_path(t));
        if (t->gemm_cache[0]) choice.gemm_cache = t->gemm_cache;
    }
    TRY(choose_open(&t->ops, t->dev.kind, s, &choice));
    t->exec = (struct exec){.ops = &t->ops,
                            .stream = s,
                            .params = &t->decoder.params,
                            .tp = t->mesh.tp,
                            .cp = t->mesh.cp,
                            .ep = t->mesh.ep};
    return STATUS_OK;
}

/* ZeRO 2 and 3 reduce the gradients of every micro-batch, so every micro-batch must be a group: else the tree
 * differs. */
static status resolve_groups(struct trainer *t)
{
    int64_t *groups = &t->spec.run.train_gradient_groups;
    const int64_t micro_count = plan_micro_count(&t->spec);
    const int zero = t->mesh.shape.zero, ranks = t->mesh.shape.dp;
    const struct ramp batch = ramp_batch(&t->spec.run);
    const int64_t micro = t->spec.run.train_micro_batch * t->spec.run.train_sequence_length;
    for (int i = 0; i < batch.count && zero < 2; i++)
        TRY(grad_reduce_check(*groups, batch.stage[i].size / micro, ranks, GRAD_REDUCE_LAST));
    if (zero < 2) return STATUS_OK;
    if (*groups > 0 && *groups != micro_count)
        return FAIL(
            STATUS_CONFIG,
            "parallel.zero %d sums the gradients of every micro-batch apart: set train.gradient_groups "
            "to their number, %lld, or leave it out",
            zero, (long long)micro_count);
    *groups = micro_count;
    return grad_reduce_check(*groups, micro_count, ranks, GRAD_REDUCE_FIRST);
}

/* Registers the arenas with the communicator: other GPUs map them for peer access. */
static status register_arenas(struct trainer *t)
{
#define X(name, category, text)                                                                              \
    TRY(comm_devices_register(t->mesh.world, t->memory.name.base, t->memory.name.size));
    MEMORY_LIST(X)
#undef X
    return STATUS_OK;
}

static status open_context(struct trainer *t, const struct plan_layout_args *args)
{
    const struct mesh *mesh = &t->mesh;
    t->feed.context = &t->context;
    return context_open(&t->context, &(struct context_shape){.rank = mesh->cp_rank,
                                                             .ranks = mesh_cp(&mesh->shape),
                                                             .length = t->spec.run.train_sequence_length,
                                                             .rows = args->tokens,
                                                             .kind = mesh->shape.context_kind,
                                                             .micro_count = t->feed.shape.micro_count});
}

static status open_memory(struct trainer *t, const struct plan_layout_args *given)
{
    TRY(plan_micro_batch(&t->spec, &t->ops, &t->dev, &t->mesh));
    if (given == NULL) TRY(resolve_groups(t));
    struct plan_layout_args args = given ? *given : plan_args(&t->spec, &t->mesh);
    args.ops = &t->ops;
    args.kind = t->dev.kind;
    args.stream = t->exec.stream;
    args.bytes_max = plan_bytes(&t->spec, &t->dev, &t->mesh);
    TRY(decoder_init(&t->decoder, &t->spec.model, &t->mesh));
    TRY(plan_reserve(&t->memory, &t->decoder, &t->rank, &t->acts, &args));
    TRY(fp8_run_open(t));
    choose_workspace(t->exec.stream, t->acts.workspace.data, (size_t)tensor_count(t->acts.workspace));
    struct feed_shape shape = plan_feed(&args);
    TRY(feed_open(&t->feed, &t->dev, t->exec.stream, &shape, t->memory.input.base));
    t->exec.scalars = t->feed.scalars;
    TRY(open_context(t, &args));
    TRY(side_stream_open(&t->side_stream, t->mesh.world ? t->exec.stream : NULL));
    t->exec.side = t->mesh.ep || t->mesh.cp ? &t->side_stream : NULL;
    if (t->exec.stream) TRY(sp_overlap_open(&t->sp_overlap, &t->side_stream, t->mesh.tp));
    t->exec.sp_overlap = t->sp_overlap.side_stream ? &t->sp_overlap : NULL;
    TRY(zero_open(&t->rank.zero, &(struct zero_open){.grad_reduce = &t->rank.grad_reduce,
                                                     .ops = &t->ops,
                                                     .side_stream = &t->side_stream}));
    TRY(register_arenas(t));
    TRY(grad_overlap_open(&t->grad_overlap,
                          &(struct grad_overlap_args){.grad_reduce = &t->rank.grad_reduce,
                                                      .params = &t->decoder.params,
                                                      .ops = &t->ops,
                                                      .side_stream = &t->side_stream,
                                                      .segments = model_segments(&t->spec.model)}));
    const struct params *p = &t->decoder.params;
    if (args.use == PLAN_TRAIN && p->zero && p->balance_count && params_host_master(p))
        return FAIL(STATUS_CONFIG,
                    "memory.offload_optimizer leaves routers' biases no place on the GPU under "
                    "parallel.zero so far; set one of the two to false, or 0");
    TRY(offload_open(&t->rank.offload, t->exec.stream));
    if (args.use == PLAN_TRAIN)
        TRY(optim_chunks(&t->decoder.params, &t->spec.run, &t->rank.offload, t->exec.stream));
    t->exec.sparse_grad = &t->rank.sparse_grad;
    return sparse_grad_open(&t->rank.sparse_grad, t->exec.stream);
}

/* Communication buffers must be as large as planned. */
static void check_comm_memory(const struct trainer *t)
{
    const struct comm_memory planned = t->memory.comm, taken = comm_memory_used(t->mesh.world);
    CHECK(planned.device == taken.device, "communication: planned %zu bytes of the GPU, taken %zu",
          planned.device, taken.device);
    CHECK(planned.host == taken.host, "communication: planned %zu bytes of the host, taken %zu", planned.host,
          taken.host);
}

/* Names a weight whose width FP8 does not support, before a device is opened. */
static status check_fp8(const struct trainer *t)
{
    struct decoder d;
    const enum recipe recipe = precision_recipe(&t->spec.run);
    if (recipe == RECIPE_PLAIN) return STATUS_OK;
    TRY(decoder_init(&d, &t->spec.model, &t->mesh));
    d.params.recipe = recipe;
    d.params.current = precision_current(&t->spec.run);
    const status st = fp8_claim(&d.params, t->spec.run.fp8_exclude);
    decoder_fini(&d);
    return st;
}

static status open_all(struct trainer *t, const struct plan_layout_args *args, const char *isa)
{
    if (args == NULL) TRY(check_fp8(t));
    if (args == NULL) TRY(verify_check(t, plan_device(&t->spec) == DEV_CUDA));
    status st = open_device(t, isa);
    if (st == STATUS_OK && args == NULL) st = verify_check(t, t->dev.kind == DEV_CUDA);
    if (st == STATUS_OK && args == NULL) st = plan_check_gpu(&t->spec, &t->dev);
    if (st == STATUS_OK) st = open_memory(t, args);
    if (st == STATUS_OK) st = pipeline_open(t);
    if (st == STATUS_OK && args == NULL) st = verify_open(t);
    if (st != STATUS_OK) {
        trainer_close(t);
        return st;
    }
    check_comm_memory(t);
    t->steps_total = spec_step_count(&t->spec);
    return STATUS_OK;
}

status trainer_open(struct trainer *t, const struct spec *spec, const struct plan_layout_args *args,
                    const char *isa)
{
    *t = (struct trainer){.spec = *spec,
                          .mesh = mesh_place(&(struct mesh_shape){1, 1, 1, .chunks = 1, .shard = 1}, 0)};
    return open_all(t, args, isa);
}

/* Ranks with different specs would train a mixture of runs. They may differ in where they run and what they log. */
static status same_run(struct comm *comm, const struct spec *spec)
{
    const struct run_spec *run = &spec->run;
    const int64_t mine[] = {(int64_t)spec_frozen_hash(spec),
                            run->parallel_tensor,
                            run->parallel_pipeline,
                            run->parallel_context,
                            run->parallel_context_kind,
                            run->parallel_schedule,
                            run->parallel_chunks,
                            run->parallel_zero,
                            run->parallel_shard,
                            run->parallel_expert,
                            run->train_micro_batch,
                            run->train_gradient_groups,
                            run->train_precision,
                            (int64_t)spec_section_hash(spec, "fp8"),
                            (int64_t)spec_section_hash(spec, "nvfp4")};
    int64_t all[COMM_RANKS_MAX][sizeof mine / sizeof *mine];
    TRY(comm_all_gather(comm, "configuration", mine, all, sizeof mine, NULL));
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
    const struct plan_layout_args args = {.use = PLAN_FORWARD, .dt = DTYPE_F32, .tokens = 1, .positions = 1};
    TRY(trainer_open(t, &plain, &args, NULL));
    t->spec = *spec;
    return STATUS_OK;
}

void trainer_close(struct trainer *t)
{
    save_close(t);
    free(t->hosts);
    t->hosts = NULL;
    snapshot_close(t);
    verify_close(t);
    step_graphs_close(t);
    offload_close(&t->rank.offload);
    grad_overlap_close(&t->grad_overlap);
    zero_close(&t->rank.zero);
    sp_overlap_close(&t->sp_overlap);
    side_stream_close(&t->side_stream);
    pipeline_close(t);
    feed_close(&t->feed);
    context_close(&t->context);
    fp8_run_close(t);
    activations_fini(&t->acts);
    decoder_fini(&t->decoder);
    memory_free(&t->memory);
    json_decref(t->data);
    t->data = NULL;
    lineage_free(&t->lineage);
    choose_close(t->exec.stream);
    dev_stream_close(&t->stream);
    dev_close(&t->dev);
}

/* Uploads the token map: of a tokenizer, or (NULL) the identity. */
static status upload_token_map(struct trainer *t, const struct tokenizer *tokenizer, int32_t *distinct)
{
    const struct tensor to = t->decoder.token_map;
    const int32_t vocab = (int32_t)to.shape[0];
    int32_t *map = malloc((size_t)vocab * sizeof *map);
    if (map == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the map of %d tokens", vocab);
    status st = STATUS_OK;
    for (int32_t i = 0; i < vocab; i++) map[i] = i;
    if (tokenizer) st = token_map_of(tokenizer, vocab, map, distinct);
    if (st == STATUS_OK) st = dev_upload(t->exec.stream, to.data, map, (size_t)vocab * sizeof *map);
    if (st == STATUS_OK) st = dev_sync(t->exec.stream);
    free(map);
    return st;
}

status trainer_fold(struct trainer *t, const struct tokenizer *tokenizer)
{
    int32_t distinct;
    CHECK(t->decoder.token_map.data, "a map of tokens that is not laid out");
    TRY(upload_token_map(t, tokenizer, &distinct));
    log_info("n-grams   of %d ids that %lld tokens share", distinct, (long long)t->spec.model.vocab_size);
    return STATUS_OK;
}

status trainer_init_weights(struct trainer *t)
{
    SCOPE("train.init", -1);
    if (t->decoder.token_map.data) TRY(upload_token_map(t, NULL, NULL)); /* until trainer_fold */
    TRY(init_weights(&t->decoder, &t->exec, (uint64_t)t->spec.run.run_seed));
    TRY(zero_all_gather_weights(&t->rank.zero));
    TRY(fp8_run_begin(t));
    return dev_sync(t->exec.stream);
}

status trainer_write_config(const struct spec *spec, const char *run_dir)
{
    char path[SPEC_TEXT + 32], *text = spec_dump_text(spec);
    snprintf(path, sizeof path, "%s/config.yaml", run_dir);
    if (text == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for %s", path);
    status st = io_write_file(path, text, strlen(text));
    free(text);
    return st;
}

/* A checkpoint of `ingot ckpt import`: weights alone, not yet part of a run. */
static bool is_import(const struct checkpoint *c)
{
    return json_is_true(json_object_get(checkpoint_meta(c), "imported"));
}

static status read_progress(struct trainer *t, const struct checkpoint *c)
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

/* bf16 and FP8 have the same weights and moments; FP8 adds a history, which begins with the change. */
static status precision_check(const struct spec *old, const struct spec *now, const char *path)
{
    const enum precision was = (enum precision)old->run.train_precision,
                         is = (enum precision)now->run.train_precision;
    if (was == is || (precision_of(was).split && precision_of(is).split)) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "%s: train.precision %s -> %s: a run may change between bf16, fp8, mxfp8 and nvfp4 "
                "alone; take it back, or begin another run with --run.name=OTHER",
                path, precision_name(was), precision_name(is));
}

/* Rejects changes of frozen keys when a run resumes; logs the ANNOUNCED ones. After an import every change is
 * allowed. */
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
    FILE *f = memory_stream(&diff, &size);
    int lines = spec_diff_announced(&old, &t->spec, f);
    memory_stream_close(f);
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
    TRY(precision_check(&old, &t->spec, checkpoint_path(c)));
    if (spec_frozen_hash(&old) == spec_frozen_hash(&t->spec)) return STATUS_OK;
    return FAIL(
        STATUS_CONFIG,
        "%s: model, data, batch or optimizer differ from what the run began with (lines above that say so); "
        "take them back, or begin "
        "another run with --run.name=OTHER",
        checkpoint_path(c));
}

static status check_moments(const struct trainer *t, const struct checkpoint *c, const struct state *s)
{
    for (int i = 0; i < s->count && !is_import(c); i++)
        if (s->items[i].tag >= t->decoder.params.count && s->items[i].tag != STATE_FP8 &&
            checkpoint_find(c, s->items[i].name) < 0)
            return FAIL(STATUS_CKPT, "%s: has no tensor '%s', and is no import: cannot resume",
                        checkpoint_path(c), s->items[i].name);
    return STATUS_OK;
}

/* Checks that the token map's ids are in range: they index rows of tables. */
static status check_map(const struct trainer *t, const struct checkpoint *c, const int32_t *map)
{
    for (int64_t i = 0; map && i < t->spec.model.vocab_size; i++)
        if (map[i] < 0 || map[i] >= t->spec.model.vocab_size)
            return FAIL(STATUS_CKPT,
                        "%s: map/tokens gives token %lld the id %d, outside the vocabulary of %lld",
                        checkpoint_path(c), (long long)i, map[i], (long long)t->spec.model.vocab_size);
    return STATUS_OK;
}

/* Restores the choice of GEMM algorithms, which is part of a run's bits. */
static status restore_algorithms(struct trainer *t, const struct checkpoint *c)
{
    char *text = algorithm_record_text(checkpoint_meta(c), comm_rank(t->mesh.world));
    if (text == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the record of algorithms");
    status st = *text ? choose_algorithms_set(t->exec.stream, text) : STATUS_OK;
    free(text);
    return st;
}

/* If one rank finds the checkpoint damaged, all ranks skip it. */
static status agree_damage(void *ctx, bool *damaged)
{
    const struct trainer *t = ctx;
    const int32_t mine = *damaged;
    int32_t all[COMM_RANKS_MAX];
    TRY(comm_all_gather(t->mesh.world, "checkpoint is sound", &mine, all, sizeof mine, NULL));
    for (int r = 0; r < comm_ranks(t->mesh.world); r++) *damaged |= all[r] != 0;
    return STATUS_OK;
}

/* Checks that a resumed run's data are those of the checkpoint, or an accepted change of them. */
static status take_identity(struct trainer *t, const struct checkpoint *c, bool training)
{
    json_t *old = json_object_get(checkpoint_meta(c), "data");
    if (!training) {
        t->data = json_incref(old);
        return STATUS_OK;
    }
    if (t->data == NULL) return STATUS_OK;
    TRY(data_identity_compare(old, t->data, checkpoint_path(c), t->accept_data));
    return data_identity_inherit(old, t->data, checkpoint_step(c));
}

static status check_run(const struct trainer *t, const struct checkpoint *c)
{
    TRY(config_check(t, c));
    if (t->data == NULL || t->accept_data) return STATUS_OK; /* take_identity says what was accepted */
    return data_identity_compare(json_object_get(checkpoint_meta(c), "data"), t->data, checkpoint_path(c),
                                 false);
}

/* Reads the checkpoint's metadata. */
static status take_meta(struct trainer *t, const struct checkpoint *c, bool training)
{
    TRY(read_progress(t, c));
    verify_forget(t);
    TRY(take_identity(t, c, training));
    TRY(restore_algorithms(t, c));
    if (!training) return STATUS_OK;
    health_read(&t->health, checkpoint_meta(c));
    spike_read(&t->spike, checkpoint_meta(c));
    return lineage_read(&t->lineage, checkpoint_meta(c), checkpoint_path(c));
}

status trainer_restore_raw(struct trainer *t, json_t *meta, const char *from)
{
    struct checkpoint *c;
    TRY(checkpoint_of_meta(&c, "the copy in memory", meta));
    status st = check_run(t, c);
    if (st == STATUS_OK) st = take_meta(t, c, true);
    if (st == STATUS_OK) st = state_raw_load(t, from);
    if (st == STATUS_OK) st = fp8_run_begin(t);
    checkpoint_close(c);
    return st;
}

status trainer_restore(struct trainer *t, const char *path, bool *found)
{
    SCOPE("train.restore", -1);
    struct checkpoint *c = NULL;
    struct state state = {0};
    const struct ckpt_ranks ranks = {agree_damage, t};
    bool training = t->decoder.params.grad != NULL;
    TRY(checkpoint_open(&c, path, found));
    if (!*found) return STATUS_OK;
    status st = STATUS_OK;
    if (training) TRY_OUT(check_run(t, c));
    checkpoint_close(c);
    c = NULL;
    TRY_OUT(state_open(&state, t, STATE_LOAD));
    /* An import has weights alone: moments start at zero. Which checkpoint is used is known only after its data have been
     * checked: if the newest is damaged, the next may be the import that the run started from. */
    for (int i = 0; i < state.count; i++)
        state.items[i].optional = state.items[i].tag >= t->decoder.params.count;
    TRY_OUT(checkpoint_restore(&c, path, state.items, state.count, &ranks, found));
    TRY_OUT(check_moments(t, c, &state));
    TRY_OUT(check_map(t, c, state.map));
    TRY_OUT(take_meta(t, c, training));
    if (training) TRY_OUT(fp8_run_restored(t, c));
    st = state_upload(&state);
    if (st == STATUS_OK && training) st = fp8_run_begin(t);
    if (st == STATUS_OK) log_info("weights   of step %lld from %s", (long long)t->step, checkpoint_path(c));
out:
    state_close(&state);
    checkpoint_close(c);
    return st;
}

struct eval_sums {
    double loss, hits;
    int64_t valid;
};
static status eval_batch(struct trainer *t, struct loader *l, struct eval_sums *out)
{
    const struct step_batch *b;
    struct step_scalars scalars = {0};
    TRY(loader_next(l, &b));
    TRY(feed_put(&t->feed, b->micro, 1, &scalars));
    TRY(t->mesh.pp ? pipeline_loss(t) : decoder_loss(&t->decoder, &t->acts, &t->feed.micro[0], 0, &t->exec));
    TRY(feed_read(&t->feed, &scalars));
    double sums[] = {scalars.loss_sum, scalars.hits};
    TRY(comm_all_reduce_f64(t->mesh.cp, "validation", sums, 2, NULL));
    *out = (struct eval_sums){.loss = sums[0], .hits = sums[1], .valid = b->valid};
    return STATUS_OK;
}

status train_eval(struct trainer *t, const struct shard_set *val, int64_t tokens, struct eval_result *out)
{
    SCOPE("train.eval", t->step);
    int64_t length = t->spec.run.train_sequence_length,
            at_once = t->acts.layout.n * mesh_cp(&t->mesh.shape) / length;
    struct loader *l = NULL;
    struct samples *samples;
    TRY(samples_open(&samples, &(struct samples_source){.set = val}, 1,
                     &(struct samples_config){.sequence_length = length,
                                              .packing = t->spec.run.data_packing,
                                              .rows_max = tokens > 0 ? (tokens - 1) / length + 1 : 0}));
    const int ranks = comm_ranks(t->mesh.dp);
    struct loader_config c = {.sequences = at_once,
                              .micro_count = 1,
                              .vocab_size = t->spec.model.vocab_size,
                              .rank = comm_rank(t->mesh.dp),
                              .ranks = ranks};
    /* Not shuffled: every target once; the last batches are padded with masked targets. */
    const int64_t windows = samples_rows(samples, 0), round = at_once * ranks;
    double sum = 0, hits = 0;
    int64_t valid = 0;
    status st = STATUS_OK;
    TRY_OUT(loader_open(&l, samples, &c, 0));
    const int64_t batches = (windows + round - 1) / round;
    for (int64_t i = 0; i < batches; i++) {
        struct eval_sums mine, all[COMM_RANKS_MAX];
        TRY_OUT(eval_batch(t, l, &mine));
        TRY_OUT(comm_all_gather(t->mesh.dp, "evaluation", &mine, all, sizeof mine, NULL));
        for (int r = 0; r < ranks; r++) {
            sum += all[r].loss;
            hits += all[r].hits;
            valid += all[r].valid;
        }
        if (t->pause.fn && t->mesh.pp == NULL) TRY_OUT(t->pause.fn(t->pause.ctx, i + 1, batches));
    }
    double sums[] = {sum, hits}; /* from the last stage; other stages add zeros */
    TRY_OUT(comm_all_reduce_f64(t->mesh.pp, "validation", sums, 2, NULL));
    sum = sums[0], hits = sums[1];
    if (valid == 0) {
        st = FAIL(STATUS_DATA, "the validation shards have no target that counts");
        goto out;
    }
    if (!isfinite(sum)) {
        st = FAIL(STATUS_NUMERIC, "the validation loss after step %lld is not finite: training diverged",
                  (long long)t->step);
        goto out;
    }
    *out = (struct eval_result){
        .loss = sum / (double)valid, .accuracy = hits / (double)valid, .tokens = valid, .bits_per_byte = NAN};
    if (val->text_bytes > 0 && !val->masked) /* the text of the targets alone is not counted */
        out->bits_per_byte = out->loss / log(2) * (double)val->tokens / (double)val->text_bytes;
out:
    if (st == STATUS_OK) st = fp8_run_forget(t);
    loader_close(l);
    samples_close(samples);
    return st;
}
