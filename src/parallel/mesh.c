#include "parallel/mesh.h"
#include "ops/precision.h"
#include "parallel/pipeline_schedule.h"
#include "spec/layer_traits.h"
#include "tensor/param_row.h"

#include <stdio.h>
#include <stdlib.h>

static status check_widths(const struct layer_traits *t, const struct model_spec *given, int tp)
{
    struct model_spec m = *given;
    struct layer_width widths[LAYER_WIDTHS_MAX];
    const int count = t->widths(&m, widths);
    for (int i = 0; i < count; i++)
        if (*widths[i].value % tp != 0)
            return FAIL(STATUS_CONFIG, "parallel.tensor %d does not divide model.%s %lld", tp, widths[i].key,
                        (long long)*widths[i].value);
    return STATUS_OK;
}

/* What tp ranks shard in equal parts. */
static status check_tensor(const struct model_spec *m, int tp)
{
#define WORD(prefix, value, word)                                                                            \
    if (model_mixer_count(m, prefix##_##value) > 0) TRY(check_widths(mixer_traits(prefix##_##value), m, tp));
    MIXER_WORDS(WORD)
#undef WORD
#define WORD(prefix, value, word)                                                                            \
    if (model_ffn_count(m, prefix##_##value) > 0) TRY(check_widths(ffn_traits(prefix##_##value), m, tp));
    FFN_WORDS(WORD)
#undef WORD
    if (m->vocab_size % tp != 0)
        return FAIL(STATUS_CONFIG, "parallel.tensor %d does not divide model.vocab_size %lld", tp,
                    (long long)m->vocab_size);
    if (tp > 1 && m->engram_layers[0] && m->engram_dim % (16 * tp) != 0)
        return FAIL(STATUS_CONFIG,
                    "parallel.tensor %d: model.engram_dim %lld is no multiple of 16 for each of the ranks",
                    tp, (long long)m->engram_dim);
    return STATUS_OK;
}

/* Limits of a pipeline on the model. pipeline_schedule_build checks the number of micro-batches later. */
static status check_pipeline(const struct model_spec *m, const struct mesh_shape *shape)
{
    const int64_t stages = (int64_t)shape->pp * shape->chunks;
    if (shape->pp == 1 && shape->chunks > 1)
        return FAIL(STATUS_CONFIG, "parallel.chunks does nothing without parallel.pipeline");
    if (shape->pp == 1) return STATUS_OK;
    if (shape->pp > PIPELINE_RANKS_MAX || stages > MESH_STAGES_MAX || stages > m->layer_count)
        return FAIL(STATUS_CONFIG,
                    "parallel.pipeline x parallel.chunks = %d x %d: there are at most %d ranks, %d stages, "
                    "and no more than the %lld layers",
                    shape->pp, shape->chunks, (int)PIPELINE_RANKS_MAX, (int)MESH_STAGES_MAX,
                    (long long)m->layer_count);
    return STATUS_OK;
}

/* What ranks that share layers or sequences do not do for hierarchical reasoning. */
static status check_hrm(const struct model_spec *m, const struct mesh_shape *shape)
{
    if (m->hrm_cycles > 0 && shape->pp > 1)
        return FAIL(STATUS_CONFIG,
                    "model.hrm_cycles: hierarchical reasoning goes through the same layers many times, which "
                    "no chain of stages does; leave out parallel.pipeline");
    if (m->hrm_halt && (shape->tp > 1 || mesh_cp(shape) > 1))
        return FAIL(STATUS_CONFIG,
                    "model.hrm_halt: the halting head reads all rows of a document, of which a rank has a "
                    "part; leave out parallel.%s",
                    shape->tp > 1 ? "tensor" : "context");
    return STATUS_OK;
}

/* parallel.stages: the number of layers of each stage; the sum must be all layers. */
static status read_stages(const struct spec *s, struct mesh_shape *m)
{
    const char *text = s->run.parallel_stages;
    const int stages = m->pp * m->chunks;
    int64_t sum = 0;
    int count = 0;
    if (text[0] == 0) return STATUS_OK;
    for (const char *at = text; count <= stages; count++) {
        char *end;
        const int64_t layers = strtoll(at, &end, 10);
        if (end == at || layers < 1 || layers > s->model.layer_count || (*end != ',' && *end != 0))
            return FAIL(STATUS_CONFIG,
                        "parallel.stages '%s': number %d is no number of layers; give one for each of the "
                        "%d stages, such as 5,7,7,5",
                        text, count + 1, stages);
        if (count < stages) m->layers[count] = (int)layers;
        sum += layers;
        if (*end == 0) break;
        at = end + 1;
    }
    if (count + 1 != stages)
        return FAIL(STATUS_CONFIG,
                    "parallel.stages '%s' has %s numbers than the %d stages (parallel.pipeline x "
                    "parallel.chunks)",
                    text, count + 1 < stages ? "fewer" : "more", stages);
    if (sum != s->model.layer_count)
        return FAIL(STATUS_CONFIG, "parallel.stages '%s' has %lld layers, the model has %lld", text,
                    (long long)sum, (long long)s->model.layer_count);
    return STATUS_OK;
}

/* What tensor parallelism does not support. */
static status check_tensor_run(const struct spec *s)
{
    const struct run_spec *r = &s->run;
    const long long tp = r->parallel_tensor;
    const int64_t tokens = (r->train_micro_batch > 0 ? r->train_micro_batch : 1) * r->train_sequence_length /
                           r->parallel_context;
    if (tokens % tp != 0)
        return FAIL(
            STATUS_CONFIG,
            "parallel.tensor %lld does not divide the %lld tokens of a micro-batch (train.micro_batch "
            "x train.sequence_length%s)",
            tp, (long long)tokens, r->parallel_context > 1 ? " / parallel.context" : "");
    if (tp > 1 && r->log_sample_prompt[0])
        return FAIL(STATUS_CONFIG,
                    "parallel.tensor %lld: no rank has the whole model to continue log.sample_prompt; leave "
                    "it empty",
                    tp);
    return STATUS_OK;
}

/* ZeRO 3 with FP8 moves codes, or values: which GEMMs read does not depend on the micro-batch. */
static status check_codes_rows(const struct spec *s, const struct mesh_shape *m)
{
    const struct run_spec *r = &s->run;
    const int64_t ranks = (int64_t)m->tp * mesh_cp(m),
                  tokens = (r->train_micro_batch > 0 ? r->train_micro_batch : 1) * r->train_sequence_length;
    if (precision_recipe(r) != RECIPE_FP8 || m->zero < 3 || tokens % (16 * ranks) == 0) return STATUS_OK;
    return FAIL(STATUS_CONFIG,
                "parallel.zero 3 with train.precision fp8: %lld tokens of a micro-batch (train.micro_batch x "
                "train.sequence_length) are no multiple of %lld, 16 for each rank that shares them; use "
                "parallel.zero 2, or other lengths",
                (long long)tokens, (long long)(16 * ranks));
}

/* What ZeRO does not support. */
static status check_zero(const struct spec *s, const struct mesh_shape *m)
{
    if (m->zero == 0) return STATUS_OK;
    if (m->zero < 2) return STATUS_OK;
    if (model_segments(&s->model) > 1)
        return FAIL(STATUS_CONFIG,
                    "parallel.zero %d: model.hrm_segments %lld add to one gradient, which no rank has whole; "
                    "set parallel.zero to 1 or 0",
                    m->zero, (long long)model_segments(&s->model));
    if (m->zero == 3 && s->run.log_sample_prompt[0])
        return FAIL(
            STATUS_CONFIG,
            "log.sample_prompt: no rank of parallel.zero 3 has the model to continue it; leave it empty");
    return STATUS_OK;
}

/* What FP8, MXFP8 and NVFP4 do not support. */
static status check_codes(const struct spec *s, const struct mesh_shape *m)
{
    char name[64];
    const enum recipe recipe = precision_recipe(&s->run);
    if (recipe == RECIPE_PLAIN) return STATUS_OK;
    if (recipe == RECIPE_CURRENT && m->tp > 1)
        return FAIL(STATUS_CONFIG,
                    "parallel.tensor %d: %s takes scales from whole tensors, of which a rank has a slice; "
                    "set it to 1, "
                    "or use train.precision fp8 with fp8.recipe bound",
                    m->tp, precision_codes_name(&s->run, name));
    if (m->pp > 1 && m->schedule == PIPELINE_ZB_H1)
        return FAIL(STATUS_CONFIG,
                    "parallel.schedule zb_h1 keeps the values of which weight gradients are made, and "
                    "train.precision %s does not; use 1f1b or interleaved",
                    precision_name((enum precision)s->run.train_precision));
    return STATUS_OK;
}

static bool exchanges_heads(const struct layer_traits *mixer, const struct mesh_shape *shape)
{
    return mixer->context == LAYER_CONTEXT_HEADS ||
           (mixer->context == LAYER_CONTEXT_KIND && shape->context_kind == CONTEXT_ULYSSES);
}

/* Rows against heads: context-parallel ranks share the heads of a tensor-parallel rank in equal parts. */
static status check_mixer_context(enum mixer mixer, const struct model_spec *given,
                                  const struct mesh_shape *shape)
{
    struct model_spec m = *given;
    struct layer_width widths[LAYER_WIDTHS_MAX];
    const struct layer_traits *traits = mixer_traits(mixer);
    if (traits->context == LAYER_CONTEXT_NONE)
        return FAIL(STATUS_CONFIG, "layers of %s do not go with parallel.context %d; set it to 1",
                    mixer_word(mixer), mesh_cp(shape));
    const int count = exchanges_heads(traits, shape) ? traits->widths(&m, widths) : 0;
    for (int i = 0; i < count; i++)
        if (*widths[i].value % (mesh_cp(shape) * shape->tp) != 0)
            return FAIL(
                STATUS_CONFIG,
                "parallel.context %d x parallel.tensor %d does not divide model.%s %lld, which the ranks "
                "share while a layer of its kind runs",
                mesh_cp(shape), shape->tp, widths[i].key, (long long)*widths[i].value);
    return STATUS_OK;
}

static status check_mixers_context(const struct model_spec *m, const struct mesh_shape *shape)
{
#define WORD(prefix, value, word)                                                                            \
    if (model_mixer_count(m, prefix##_##value) > 0) TRY(check_mixer_context(prefix##_##value, m, shape));
    MIXER_WORDS(WORD)
#undef WORD
    return STATUS_OK;
}

/* What context parallelism does not support yet. */
static status check_context(const struct spec *s, const struct mesh_shape *m)
{
    const struct model_spec *model = &s->model;
    const int cp = mesh_cp(m);
    if (cp == 1) return STATUS_OK;
    char name[64];
    if (precision_recipe(&s->run) == RECIPE_CURRENT)
        return FAIL(STATUS_CONFIG,
                    "parallel.context %d: %s takes scales from whole tensors, of which a rank has some rows; "
                    "set it to 1, or use train.precision fp8 with fp8.recipe bound",
                    cp, precision_codes_name(&s->run, name));
    if (model->engram_layers[0] && model->hidden_size % cp != 0)
        return FAIL(STATUS_CONFIG,
                    "parallel.context %d does not divide model.hidden_size %lld, whose channels the ranks "
                    "share in the convolution of model.engram_layers",
                    cp, (long long)model->hidden_size);
    return check_mixers_context(model, m);
}

/* What context parallelism needs of a run. */
static status check_context_run(const struct spec *s)
{
    const struct run_spec *r = &s->run;
    const long long cp = r->parallel_context;
    if (cp == 1) return STATUS_OK;
    if (r->train_sequence_length % (2 * cp) != 0)
        return FAIL(
            STATUS_CONFIG,
            "parallel.context %lld: train.sequence_length %lld is no multiple of %lld, two chunks for each "
            "rank",
            cp, (long long)r->train_sequence_length, 2 * cp);
    if (r->log_sample_prompt[0])
        return FAIL(STATUS_CONFIG,
                    "parallel.context %lld: the memory of a rank is for a part of a sequence, so it does not "
                    "continue "
                    "log.sample_prompt; leave it empty",
                    cp);
    return STATUS_OK;
}

/* Limits of expert parallelism: what ranks shard, and what it is not built for. */
static status check_expert(const struct spec *s, const struct mesh_shape *m)
{
    const struct model_spec *model = &s->model;
    const int ep = mesh_ep(m);
    if (ep == 1) return STATUS_OK;
    if (model_ffn_count(model, FFN_MOE) == 0)
        return FAIL(STATUS_CONFIG,
                    "parallel.expert %d does nothing: model.layers names no moe, as in gqa/moe; leave it out",
                    ep);
    const int all = mesh_dp_cp(m);
    const char *of = mesh_cp(m) > 1 ? " (data x parallel.context)" : "";
    if (all % ep != 0)
        return FAIL(
            STATUS_CONFIG,
            "parallel.expert %d does not divide the %d data-parallel ranks%s; use a divisor of %d, or "
            "start a multiple of %d ranks",
            ep, all, of, all, ep * mesh_cp(m) * m->tp * m->pp);
    if (model->moe_experts % ep != 0)
        return FAIL(STATUS_CONFIG,
                    "parallel.expert %d does not divide model.moe_experts %lld; use a divisor of both %lld "
                    "and the %d data-parallel ranks%s",
                    ep, (long long)model->moe_experts, (long long)model->moe_experts, all, of);
    if (m->zero > 0 && m->shard % ep != 0)
        return FAIL(STATUS_CONFIG,
                    "parallel.shard %d is no multiple of parallel.expert %d: a copy of the state has all "
                    "experts; use a multiple that divides %d",
                    m->shard, ep, all);
    if (s->run.optim_state == OPTIM_STATE_INT8 &&
        model->moe_experts / ep * model->moe_size * model->hidden_size % PARAM_ALIGN != 0)
        return FAIL(
            STATUS_CONFIG,
            "optim.state int8: the %lld experts of a rank (parallel.expert %d) are no whole blocks of "
            "%d elements; use bf16 or fp32",
            (long long)(model->moe_experts / ep), ep, (int)PARAM_ALIGN);
    return STATUS_OK;
}

status mesh_check_gpu(const struct spec *s, const struct mesh_shape *m)
{
    const struct model_spec *model = &s->model;
    for (int64_t i = 0; mesh_cp(m) > 1 && i < model->layer_count; i++) {
        const enum mixer mixer = model_layer(model, i).mixer;
        if (!mixer_traits(mixer)->context_gpu)
            return FAIL(
                STATUS_CONFIG,
                "layers of %s beside parallel.context %d are built for CPU ranks so far: set it to 1, or "
                "set machine.device to cpu",
                mixer_word(mixer), mesh_cp(m));
    }
    if (mesh_cp(m) > 1 && model_mixer_count(model, MIXER_MLA) > 0 && m->pp > 1 &&
        m->schedule == PIPELINE_ZB_H1)
        return FAIL(
            STATUS_CONFIG,
            "parallel.schedule zb_h1 of mla layers beside parallel.context %d is built for CPU ranks so "
            "far: use 1f1b, or set machine.device to cpu",
            mesh_cp(m));
    if (mesh_groups(m) > COMM_DEVICE_GROUPS)
        return FAIL(STATUS_CONFIG,
                    "each rank of this mesh is in %d groups of ranks, and in at most %d on GPUs: leave out "
                    "parallel.shard, or one of the axes",
                    mesh_groups(m), (int)COMM_DEVICE_GROUPS);
    return STATUS_OK;
}

status mesh_check_hosts(const struct mesh_shape *m, int host)
{
    const int together = mesh_ep(m) * m->tp;
    if (mesh_ranks(m) <= host) return STATUS_OK;
    if (mesh_ep(m) > 1 && host % together != 0)
        return FAIL(STATUS_CONFIG,
                    "the GPUs of parallel.expert must be in one host so far: parallel.expert %d x "
                    "parallel.tensor %d spans hosts of %d",
                    mesh_ep(m), m->tp, host);
    return STATUS_OK;
}

status mesh_check(const struct spec *s, const struct mesh_shape *shape)
{
    const struct model_spec *m = &s->model;
    TRY(check_hrm(m, shape));
    if (mesh_dp_cp(shape) % shape->shard != 0)
        return FAIL(STATUS_CONFIG, "parallel.shard %d does not divide the %d data-parallel ranks%s",
                    shape->shard, mesh_dp_cp(shape), mesh_cp(shape) > 1 ? " (data x parallel.context)" : "");
    if (shape->chunks > 1 && shape->schedule != PIPELINE_INTERLEAVED)
        return FAIL(STATUS_CONFIG, "parallel.chunks %d needs parallel.schedule: interleaved", shape->chunks);
    TRY(check_pipeline(m, shape));
    TRY(check_tensor(m, shape->tp));
    TRY(check_codes(s, shape));
    TRY(check_context(s, shape));
    TRY(check_expert(s, shape));
    return check_zero(s, shape);
}

status mesh_shape(const struct spec *s, int ranks, struct mesh_shape *out)
{
    const struct run_spec *r = &s->run;
    const int64_t model = r->parallel_tensor * r->parallel_pipeline * r->parallel_context;
    char context[64] = "", width[32] = "";
    if (r->parallel_context > 1) {
        snprintf(context, sizeof context, " x parallel.context");
        snprintf(width, sizeof width, " x %lld", (long long)r->parallel_context);
    }
    if (ranks % model != 0)
        return FAIL(
            STATUS_CONFIG,
            "parallel.tensor x parallel.pipeline%s = %lld x %lld%s cannot be made of %d rank%s; start a "
            "multiple of %lld: ingot launch -n %lld -- train ...",
            context, (long long)r->parallel_tensor, (long long)r->parallel_pipeline, width, ranks,
            ranks == 1 ? "" : "s", (long long)model, (long long)model);
    *out = (struct mesh_shape){.pp = (int)r->parallel_pipeline,
                               .dp = (int)(ranks / model),
                               .cp = (int)r->parallel_context,
                               .context_kind = (enum context_kind)r->parallel_context_kind,
                               .tp = (int)r->parallel_tensor,
                               .chunks = (int)r->parallel_chunks,
                               .schedule = (enum pipeline_kind)r->parallel_schedule,
                               .zero = (int)r->parallel_zero,
                               .ep = (int)r->parallel_expert};
    out->shard = r->parallel_shard ? (int)r->parallel_shard : mesh_dp_cp(out);
    if (r->parallel_shard > 0 && out->zero == 0)
        return FAIL(STATUS_CONFIG, "parallel.shard %lld does nothing without parallel.zero",
                    (long long)r->parallel_shard);
    if (out->context_kind != CONTEXT_ALL_GATHER && out->cp == 1)
        return FAIL(STATUS_CONFIG, "parallel.context_kind does nothing without parallel.context");
    if (out->schedule != PIPELINE_1F1B && out->pp == 1)
        return FAIL(STATUS_CONFIG, "parallel.schedule does nothing without parallel.pipeline");
    if (r->parallel_stages[0] && out->pp == 1)
        return FAIL(STATUS_CONFIG, "parallel.stages does nothing without parallel.pipeline");
    if (r->log_sample_prompt[0] && out->pp > 1)
        return FAIL(STATUS_CONFIG, "log.sample_prompt: no rank of a pipeline has the model to continue it; "
                                   "leave it empty");
    if (r->log_sample_prompt[0] && out->ep > 1)
        return FAIL(STATUS_CONFIG,
                    "parallel.expert %d: no rank has all experts to continue log.sample_prompt; leave it "
                    "empty",
                    out->ep);
    if (out->shard == 1) out->zero = 0; /* one rank per copy: nothing to shard */
    TRY(mesh_check(s, out));
    TRY(check_context_run(s));
    TRY(check_tensor_run(s));
    TRY(check_codes_rows(s, out));
    return read_stages(s, out);
}

int64_t mesh_stage_layers(const struct mesh_shape *shape, int64_t layers, int stage)
{
    const int64_t stages = (int64_t)shape->pp * shape->chunks;
    if (shape->layers[0] > 0) return shape->layers[stage];
    return layers / stages + (stage < layers % stages);
}

struct mesh mesh_place(const struct mesh_shape *shape, int rank)
{
    const int all = mesh_dp_cp(shape), cp = mesh_cp(shape), copies = all / shape->shard, ep = mesh_ep(shape);
    const int r = rank / shape->tp % all, ordered = r % shape->shard * copies + r / shape->shard;
    const int part = r % shape->shard / ep, sharded = shape->zero > 0 && copies > 1;
    return (struct mesh){.shape = *shape,
                         .tp_rank = rank % shape->tp,
                         .cp_rank = r % cp,
                         .dp_rank = cp > 1 ? r / cp : ordered,
                         .dp_cp_rank = ordered,
                         .ep_rank = r % ep,
                         .edp_rank = sharded ? part * copies + r / shape->shard : r / ep,
                         .pp_rank = rank / shape->tp / all};
}

static status open_data(struct mesh *m, const struct mesh_shape *shape, int slice)
{
    const int cp = mesh_cp(shape);
    TRY(comm_split(m->world, "dp", slice * cp + m->cp_rank, m->dp_rank, &m->dp));
    TRY(comm_split(m->world, "cp", slice * shape->dp + m->dp_rank, m->cp_rank, &m->cp));
    m->dp_cp = m->dp ? m->dp : m->cp;
    return m->dp && m->cp ? comm_split(m->world, "dp x cp", slice, m->dp_cp_rank, &m->dp_cp) : STATUS_OK;
}

/* The groups of experts: those that share them out, and those with the same ones. */
static status open_experts(struct mesh *m, const struct mesh_shape *shape, struct comm *world)
{
    const int edp = mesh_edp(shape), ep = mesh_ep(shape), of = m->pp_rank * shape->tp + m->tp_rank;
    TRY(comm_split(world, "ep", of * edp + m->edp_rank, m->ep_rank, &m->ep));
    TRY(comm_split(world, "edp", of * ep + m->ep_rank, m->edp_rank, &m->edp));
    if (mesh_copies(m) == 1 || shape->zero == 0) return STATUS_OK;
    const struct mesh_data d = mesh_data_of(m, true);
    TRY(comm_split(m->edp, "shards of experts", d.replica, m->edp_rank / d.copies, &m->edp_inside));
    return comm_split(m->edp, "copies of experts", m->edp_rank / d.copies, d.replica, &m->edp_across);
}

status mesh_open(struct mesh *m, const struct mesh_shape *shape, struct comm *world)
{
    *m = mesh_place(shape, comm_rank(world));
    m->world = world;
    const int all = mesh_dp_cp(shape), slice = m->pp_rank * shape->tp + m->tp_rank;
    TRY(comm_split(world, "tp", m->pp_rank * all + m->dp_cp_rank, m->tp_rank, &m->tp));
    TRY(open_data(m, shape, slice));
    TRY(comm_split(world, "pp", m->dp_cp_rank * shape->tp + m->tp_rank, m->pp_rank, &m->pp));
    if (mesh_ep(shape) > 1) TRY(open_experts(m, shape, world));
    if (mesh_copies(m) == 1 || shape->zero == 0) return STATUS_OK;
    TRY(comm_split(m->dp_cp, "shards", mesh_replica(m), mesh_shard_rank(m), &m->inside));
    return comm_split(m->dp_cp, "copies", mesh_shard_rank(m), mesh_replica(m), &m->across);
}

int mesh_groups(const struct mesh_shape *m)
{
    const bool copies = m->zero > 0 && mesh_dp_cp(m) > m->shard, cp = mesh_cp(m) > 1;
    const int ep = mesh_ep(m);
    int groups = 1 + (m->tp > 1) + (m->dp > 1) + (m->pp > 1) + cp + (m->dp > 1 && cp) + (copies ? 2 : 0);
    if (ep > 1) groups += 1 + (mesh_dp_cp(m) > ep) + (copies ? 1 + (m->shard > ep) : 0);
    return groups;
}

struct mesh_data mesh_data_of(const struct mesh *m, bool experts)
{
    const int copies = mesh_copies(m), edp = mesh_edp(&m->shape);
    if (!experts)
        return (struct mesh_data){.all = m->dp_cp,
                                  .inside = mesh_shards(m),
                                  .across = m->across,
                                  .copies = copies,
                                  .replica = mesh_replica(m)};
    const int of = m->shape.zero > 0 ? copies : edp;
    return (struct mesh_data){.all = m->edp,
                              .inside = copies > 1 ? m->edp_inside : m->edp,
                              .across = m->edp_across,
                              .copies = of,
                              .replica = m->edp_rank % of};
}
