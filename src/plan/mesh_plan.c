#include "ops/precision.h"
#include "plan/mesh_plan_int.h"
#include "model/param_count.h"
#include "optim/optim.h"
#include "parallel/tp_grad.h"
#include "plan/grad_overlay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum precision run_precision(const struct mesh_plan *p)
{
    return (enum precision)p->spec.run.train_precision;
}

static int64_t step_sequences(const struct mesh_plan *p)
{
    return p->spec.run.train_batch_tokens / p->spec.run.train_sequence_length;
}

status mesh_plan_open(struct mesh_plan **out, const struct spec *s, const struct cluster *c)
{
    const struct machine *m = c->machine;
    struct mesh_plan *p = calloc(1, sizeof *p);
    MEMORY_CHECK(p != NULL, "no memory to plan with");
    *p = (struct mesh_plan){.spec = *s, .cluster = *c, .machine = *c->machine, .own_layout = true};
    p->assume = c->assume ? *c->assume : assume_default();
    p->cluster.machine = &p->machine;
    if (c->machine == &c->own) p->machine.name = p->cluster.own_name;
    p->cluster.assume = &p->assume;
    assume_machine(&p->assume, &p->machine);
    struct choose_ops choice = plan_ops(&p->spec, NULL);
    choice.sm = m->sm;
    status st = choose_open(&p->ops, m->kind, NULL, &choice);
    if (st == STATUS_DEVICE) { /* a build without CUDA */
        p->own_layout = false;
        st = ops_cpu(&p->ops, NULL);
    }
    p->peak = machine_peak(m, run_precision(p));
    /* The CUDA context and its libraries' kernels: about 0.5 and 0.4 GiB on an H200; NCCL's channels and
     * buffers: an estimate. */
    const double gib = 1073741824.0, taken = m->kind == DEV_CPU ? 0 : (c->devices > 1 ? 2 : 1) * gib;
    p->bytes = s->run.machine_memory_gib > 0 ? s->run.machine_memory_gib * gib : m->memory_bytes - taken;
    if (st == STATUS_OK && p->peak <= 0)
        st = FAIL(STATUS_CONFIG, "%s has no rate for this train.precision", m->name);
    if (st == STATUS_OK && precision_needs_fp8(run_precision(p)) && !machine_has_fp8(m))
        st = FAIL(STATUS_CONFIG, "train.precision fp8: %s has no FP8; use bf16", m->name);
    if (st == STATUS_OK && s->run.ckpt_memory_every > 0 && c->devices > c->node)
        st = FAIL(
            STATUS_CONFIG,
            "ckpt.memory_every: %d devices are several hosts, whose ranks `ingot launch` does not start: "
            "leave it out",
            c->devices);
    if (st != STATUS_OK)
        mesh_plan_close(p);
    else
        *out = p;
    return st;
}

void mesh_plan_close(struct mesh_plan *p)
{
    if (p == NULL) return;
    for (int i = 0; i < p->share_count; i++) rank_share_close(p->shares[i]);
    mesh_walk_forget(&p->walk);
    free(p);
}

static status find_share(struct mesh_plan *p, const struct mesh_variant *v, const struct rank_share **out)
{
    for (int i = 0; i < p->share_count; i++)
        if (rank_share_is(p->shares[i], v)) {
            *out = p->shares[i];
            return STATUS_OK;
        }
    if (p->share_count == MESH_SHARES_MAX) rank_share_close(p->shares[--p->share_count]);
    TRY(rank_share_open(&p->shares[p->share_count], v,
                        &(struct rank_share_args){.spec = &p->spec, .cluster = &p->cluster, .ops = &p->ops}));
    *out = p->shares[p->share_count++];
    return STATUS_OK;
}

struct mesh_state mesh_state_bytes(enum precision precision, double moments, int zero, int shards)
{
    const struct precision_types types = precision_of(precision);
    const double weight = (double)dtype_bytes(types.act), whole = (double)dtype_bytes(types.master);
    /* The low half of a split master; in fp32 the weights are the master. */
    struct mesh_state s = {.weight = weight,
                           .master = whole - weight,
                           .grad = (double)dtype_bytes(types.grad),
                           .moments = moments};
    if (zero >= 1) s.master /= shards;
    if (zero >= 1) s.moments /= shards;
    if (zero >= 2) s.grad /= shards;
    if (zero >= 3) s.weight /= shards;
    return s;
}

struct mesh_state mesh_state_of(const struct run_spec *r, const struct mesh_moments *m, int zero, int shards)
{
    const enum optim_state kind = (enum optim_state)r->optim_state;
    struct mesh_state s = mesh_state_bytes((enum precision)r->train_precision, m->bytes, zero, shards);
    if (r->optim_master == OPTIM_MASTER_NONE) s.master = 0;
    if (!r->memory_offload_optimizer) return s;
    const double scale = kind == OPTIM_STATE_INT8 ? 4.0 / PARAM_ALIGN : 0;
    const double moments = optim_moments((enum optim)r->optim_name) == 2 ? 1 + m->second : 1;
    const double all = moments * ((double)dtype_bytes(optim_moment_dt(kind)) + scale);
    s.host = 2 * s.master + all / (zero >= 1 ? shards : 1); /* on the host it is not split */
    s.master = 0;
    return s;
}

double mesh_memory_sum(const struct mesh_memory *m)
{
    double sum = 0;
#define X(name, text) sum += m->name;
    MESH_MEMORY(X)
#undef X
    return sum;
}

/* Files hold masters and moments of the whole model; weights where there are no masters. */
double mesh_checkpoint_bytes(const struct mesh_plan *p)
{
    struct run_spec r = p->spec.run;
    r.memory_offload_optimizer = false;
    CHECK(p->share_count > 0, "an outlook on a mesh that was not planned");
    const struct mesh_state s = mesh_state_of(&r, &p->shares[0]->moments, 0, 1);
    return (double)model_param_count(&p->spec.model, p->spec.model.vocab_size) *
           (s.weight + s.master + s.moments);
}

/* A device's share of the two copies that `ingot launch` holds for its ranks (train/memory_copy.h). */
double mesh_copies_bytes(const struct mesh_plan *p)
{
    return p->spec.run.ckpt_memory_every > 0 ? 2 * mesh_checkpoint_bytes(p) / p->cluster.devices : 0;
}

static bool on_host(const struct mesh_plan *p)
{
    return p->cluster.machine->kind == DEV_CPU;
}

double mesh_host_bytes(const struct mesh_plan *p, const struct mesh_result *r)
{
    double most = 0;
    for (int i = 0; i < r->variant.mesh.pp; i++) most = fmax(most, r->stages[i].host);
    return most + (double)r->comm_memory.host + (on_host(p) ? 0 : mesh_copies_bytes(p));
}

double mesh_host_max(const struct mesh_plan *p)
{
    const double share = 0.9; /* of its memory: system and page cache have the rest */
    const double have = p->cluster.machine->host_bytes;
    return have > 0 ? share * have : INFINITY;
}

double mesh_result_bytes(const struct mesh_result *r)
{
    return mesh_memory_sum(&r->stages[r->fullest].memory);
}

bool mesh_fits(const struct mesh_plan *p, const struct mesh_result *r)
{
    return mesh_result_bytes(r) + (on_host(p) ? mesh_copies_bytes(p) : 0) <= p->bytes &&
           mesh_host_bytes(p, r) <= mesh_host_max(p);
}

bool mesh_plan_is_given(const struct run_spec *r)
{
    return r->parallel_tensor > 1 || r->parallel_pipeline > 1 || r->parallel_zero > 0 ||
           r->parallel_context > 1 || r->parallel_expert > 1;
}

const char *mesh_axes(char buf[MESH_AXES], const struct mesh_shape *m)
{
    char ep[32] = "", cp[32] = "";
    if (mesh_ep(m) > 1) snprintf(ep, sizeof ep, " (ep %d)", m->ep);
    if (mesh_cp(m) > 1) snprintf(cp, sizeof cp, " x cp %d", m->cp);
    snprintf(buf, MESH_AXES, "dp %d%s%s x tp %d x pp %d", m->dp, ep, cp, m->tp, m->pp);
    return buf;
}

/* Checks what depends on the batch and the machine; mesh_check checks what depends on the model. */
static status check_variant(const struct mesh_plan *p, const struct mesh_variant *v)
{
    const int64_t sequences = step_sequences(p);
    if (p->spec.run.train_sequence_length % (2 * mesh_cp(&v->mesh)) != 0 && mesh_cp(&v->mesh) > 1)
        return FAIL(
            STATUS_CONFIG,
            "parallel.context %d: train.sequence_length %lld is no multiple of %d, two chunks for each "
            "rank",
            v->mesh.cp, (long long)p->spec.run.train_sequence_length, 2 * v->mesh.cp);
    if (v->mesh.tp > p->cluster.node)
        return FAIL(STATUS_CONFIG, "tp %d goes beyond a node of %d devices", v->mesh.tp, p->cluster.node);
    if (v->mesh.zero > 0 && mesh_dp_cp(&v->mesh) == 1)
        return FAIL(STATUS_CONFIG, "ZeRO %d has nobody to share with", v->mesh.zero);
    if (p->spec.run.memory_offload_optimizer && p->cluster.machine->kind != DEV_CUDA)
        return FAIL(STATUS_CONFIG, "memory.offload_optimizer needs GPUs; %s has none",
                    p->cluster.machine->name);
    if (sequences % (v->mesh.dp * v->micro_batch) != 0)
        return FAIL(STATUS_CONFIG,
                    "train.batch_tokens holds %lld sequences: not a multiple of dp %d x micro_batch %lld",
                    (long long)sequences, v->mesh.dp, (long long)v->micro_batch);
    return STATUS_OK;
}

/* Parameters of a unit as ZeRO pads it over `shards`: a whole number of optimizer chunks per rank (tensor/params.h). */
static double padded_over(const struct mesh_shape *m, int shards, double count)
{
    const double grid = (double)shards * PARAMS_CHUNK_ALIGN;
    return m->zero > 0 ? ceil(count / grid) * grid : count;
}

static double padded(const struct mesh_shape *m, double count)
{
    return padded_over(m, m->shard, count);
}

static double padded_experts(const struct mesh_shape *m, double count)
{
    return padded_over(m, mesh_expert_shards(m), count);
}

/* Scratch of the reduction of a unit over `ranks` data-parallel ranks (parallel/grad_reduce.h). */
static double reduction_scratch(const struct mesh_shape *m, int ranks, int shards, double count)
{
    const int64_t part = (int64_t)count / shards;
    return fmax((double)comm_reduce_scatter_scratch(m->zero > 0 ? shards : 1, part, DTYPE_F32),
                (double)comm_all_reduce_scratch(m->zero > 0 ? ranks / shards : ranks, part, DTYPE_F32));
}

/* Buffers of Muon's GEMMs. A rank's part of a layer bounds its part of a matrix. */
static double muon_scratch(const struct mesh_shape *m, const struct rank_share *s, double layer)
{
    const int64_t part = (int64_t)layer / m->shard;
    struct muon_ranks by = {.ranks = mesh_dp_cp(m), .slices = m->tp};
    if (m->zero > 0) by = (struct muon_ranks){m->shard, m->tp, part < s->muon.slab ? part : s->muon.slab};
    return (double)muon_bytes(&s->muon, s->weight_bytes > 2 ? DTYPE_F32 : DTYPE_BF16, &by);
}

/* Muon's communication for a layer's matrices (optim/muon.h): gradients and updates; without ZeRO and tensor
 * parallelism updates only. */
struct muon_share {
    double matrices;
    int shard, stride; /* the data-parallel ranks that they are dealt to */
};
static double muon_communication_s(const struct mesh_plan *p, const struct mesh_shape *m,
                                   const struct rank_share *s, const struct muon_share *of)
{
    if (of->matrices == 0) return 0;
    const struct axis dp = traffic_axis(&p->cluster, of->shard, of->stride),
                      tp = traffic_axis(&p->cluster, m->tp, 1);
    const double matrices = of->matrices, there_and_back = (4 + s->weight_bytes) * matrices / of->shard;
    return traffic_all_gather_s(&dp, m->zero > 0 ? there_and_back : s->weight_bytes * matrices) +
           traffic_all_gather_s(&tp, there_and_back);
}

/* Gradients of this size overlay activations that backward has used up (grad_overlay.h). */
static void overlay(struct mesh_memory *m, const struct mesh_variant *v, const struct rank_share *s,
                    double grads)
{
    double from = s->act_front, end = s->act_front, before = 4 * padded(&v->mesh, s->count_first);
    for (int64_t i = 0; i < s->layers; i++) {
        const struct rank_share_layer *l = &s->layer[i];
        const struct grad_overlay_block b = {end + l->act_mixer, end + l->act, before,
                                             before + 4 * l->count_mixer};
        end += l->act;
        from = grad_overlay_block(from, &b, s->tp);
        before += 4 * padded(&v->mesh, s->layer[i].count);
    }
    m->act = grad_overlay_from(from, m->act, before) + grads;
    m->grads -= grads;
}

/* Of a layer. */
static double muon_s(const struct mesh_plan *p, const struct mesh_shape *m, const struct rank_share *s,
                     const struct rank_share_layer *l)
{
    const int ep = mesh_ep(m), all = m->zero > 0 ? m->shard : mesh_dp_cp(m);
    const struct muon_share dense = {l->matrices, all, m->tp},
                            experts = {l->expert_matrices, all / ep, m->tp * ep};
    return muon_communication_s(p, m, s, &dense) + muon_communication_s(p, m, s, &experts);
}

/* Parameters of the largest unit of each kind that a stage holds; dense: of tables with dense gradients. */
struct largest {
    double layer, experts, table, dense, front, back, unit;
    double staging, beside; /* FP8 under ZeRO 3: bytes of codes in transit; of whole rows beside codes */
};

/* The codes of a layer's units, of so many parameters with padding. */
struct unit_codes {
    const struct rank_share_codes *codes;
    double count, experts;
};
static void add_codes(const struct mesh_result *r, struct mesh_stage *stage, const struct mesh_plan *p,
                      const struct unit_codes *u, struct largest *most)
{
    const struct mesh_shape *m = &r->variant.mesh;
    const struct rank_share_codes *c = u->codes;
    const double moved = c->moves ? u->count : 0, experts = c->experts_move ? u->experts : 0;
    if (m->zero < 3) {
        stage->codes += c->bytes, stage->codes_s += c->seconds;
        return;
    }
    stage->codes += moved / m->shard + experts / mesh_expert_shards(m) + c->beside;
    stage->moved += moved, stage->moved_experts += experts;
    most->staging = fmax(most->staging, fmax(c->largest, fmax(moved, experts)));
    most->beside += c->beside;
    /* Per micro-batch: rows are copied out of the gathered codes twice, and transposed once. */
    const double bytes = 2 * (1 + 1) + (1 + 1);
    stage->codes_s +=
        c->seconds / m->shard + r->micros * bytes * (moved + experts) / p->cluster.machine->stream_rate;
}

/* Buffers of units. DDP: the reduction of one unit. ZeRO 2 and 3: two layers, one table, the experts of one layer, and the ends of
 * the model, which share a slot unless both are in use at once (parallel/zero.h). gathered: whole weights are, as under
 * ZeRO 3. */
static void fill_buffers(struct mesh_stage *stage, const struct mesh_shape *m, const struct rank_share *s,
                         const struct largest *most, bool gathered)
{
    const double slots =
        2 * most->layer + (s->embedding_resident ? most->front + most->back : fmax(most->front, most->back));
    const int ranks = mesh_dp_cp(m), shards = m->zero > 0 ? m->shard : 1;
    if (ranks > 1)
        stage->memory.buffers =
            fmax(reduction_scratch(m, ranks, shards, most->unit),
                 reduction_scratch(m, ranks / s->ep, mesh_expert_shards(m), most->experts));
    if (m->zero >= 2) stage->memory.buffers += (slots + most->dense + most->experts) * 4;
    if (m->zero >= 3 || gathered)
        stage->unit_weights = (slots + most->table + most->experts) * s->weight_bytes;
    /* Half of the rows beside codes are at the beginning of their unit: its first rank sends them for all. */
    stage->memory.buffers += most->staging + m->shard * most->beside / 2;
    stage->memory.buffers += stage->unit_weights;
}

/* Bytes of weights and FP8 codes that another program does not hold; weights: bytes of a stage's. A code and its
 * transpose are 2 bytes per parameter, as its bf16 weight is, which is then the upper half of a master. */
static double fp8_held_elsewhere(const struct mesh_plan *p, const struct mesh_variant *v,
                                 const struct mesh_stage *stage, double weights)
{
    const double shards = v->mesh.zero > 0 ? v->mesh.shard : 1;
    if (stage->codes == 0) return 0;
    if (p->assume.fp8_param_gather > 0) return p->assume.fp8_param_gather * stage->codes * (1 - 1 / shards);
    const bool sharded = v->mesh.zero == 2 && p->assume.fsdp_fp8 > 0;
    return sharded ? p->assume.fsdp_fp8 * (weights + stage->codes) * (1 - 1 / shards) : 0;
}

/* Weights, gradients and moments, and the data of a step; summed: parameters with partial gradients. */
static void fill_state(struct mesh_result *r, int rank, const struct mesh_plan *p, const struct rank_share *s,
                       double summed)
{
    const struct mesh_variant *v = &r->variant;
    struct mesh_stage *stage = &r->stages[rank];
    struct mesh_memory *m = &stage->memory;
    struct mesh_state b = mesh_state_of(&p->spec.run, &s->moments, v->mesh.zero, v->mesh.shard),
                      e = mesh_state_of(&p->spec.run, &s->moments, v->mesh.zero,
                                        mesh_expert_shards(&v->mesh));
    b.grad *= p->assume.grad_memory / 4, e.grad *= p->assume.grad_memory / 4;
    const double dense = stage->count - stage->experts, away = p->assume.offload_optimizer;
    m->weights = dense * (b.weight + b.master) + stage->experts * (e.weight + e.master) + s->param_other +
                 stage->codes;
    m->weights -= fp8_held_elsewhere(p, v, stage, dense * b.weight + stage->experts * e.weight);
    m->grads = (dense - stage->tables) * b.grad + stage->experts * e.grad + stage->row_bytes + s->grad_other;
    if (s->tp > 1)
        m->grads += (double)tp_grad_bytes(s->tp, (int64_t)summed / (v->mesh.zero > 0 ? v->mesh.shard : 1));
    if (overlay_apart(&p->spec.model, &v->mesh, r->micros) == NULL && !assume_memory(&p->assume))
        overlay(m, v, s, (stage->count - stage->tables) * b.grad);
    const double part = stage->count / s->count / (v->mesh.zero > 0 ? v->mesh.shard : 1);
    m->optim = dense * b.moments + stage->experts * e.moments + rank_share_norm(s, &v->mesh, part);
    stage->host = dense * b.host + stage->experts * e.host;
    if (away > 0) { /* what is left on the device; masters are whole on the host */
        const double masters = dense * b.master + stage->experts * e.master,
                     moments = dense * b.moments + stage->experts * e.moments;
        m->weights -= away * masters, m->optim -= away * moments;
        stage->host += away * (2 * masters + moments);
    }
    struct feed_shape feed = s->feed;
    feed.micro_count = r->micros;
    m->inputs = (double)((feed_bytes(s->kind, &feed) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN);
    const int64_t groups = v->mesh.zero >= 2 ? r->micros : p->spec.run.train_gradient_groups / v->mesh.dp;
    m->grads += grad_reduce_pending(groups) *
                ((dense - stage->tables) * b.grad + stage->experts * e.grad); /* of the tree */
}

/* Of a rank's micro-batch. */
static double logits_of(const struct mesh_plan *p, const struct mesh_variant *v)
{
    const double tokens =
        (double)v->micro_batch * (double)p->spec.run.train_sequence_length / mesh_cp(&v->mesh);
    return tokens * (double)p->spec.model.vocab_size / v->mesh.tp;
}

/* Sums over a rank's layers, chunk by chunk. */
static void fill_stage(struct mesh_result *r, int rank, const struct mesh_plan *p, const struct rank_share *s)
{
    const struct mesh_variant *v = &r->variant;
    struct mesh_stage *stage = &r->stages[rank];
    struct mesh_memory *m = &stage->memory;
    const bool first = rank == 0, last = rank == v->mesh.pp - 1;
    double act = 0, set = 0, store = 0, kept = 0,
           summed = last ? s->partial_grads_last + (double)s->modules * s->partial_grads_module : 0;
    const double front = padded(&v->mesh, s->count_first), back = padded(&v->mesh, s->count_last),
                 module = padded(&v->mesh, s->count_module);
    const double module_experts = padded_experts(&v->mesh, s->experts_module);
    struct largest most = {0};
    double offloaded = 0; /* the largest layer's activations: two buffers of them while they are copied */
    stage->count = (first ? front : 0) + (last ? back + (double)s->modules * module : 0);
    if (last) stage->experts = (double)s->modules * module_experts, most.experts = module_experts;
    if (last && !first) stage->count += padded(&v->mesh, s->count_tied);
    for (int64_t i = 0; last && i < s->modules; i++)
        add_codes(r, stage, p, &(struct unit_codes){&s->codes_module, module, module_experts}, &most);
    m->scratch = last ? s->scratch_last : s->scratch_head;
    for (int c = 0; c < v->mesh.chunks; c++) {
        const struct mesh_range layers = mesh_stage_range(&v->mesh, s->layers, c * v->mesh.pp + rank);
        double chunk = last && c == v->mesh.chunks - 1 && v->mesh.pp > 1 ? s->sum_bytes : 0;
        for (int64_t i = layers.begin; i < layers.end; i++) {
            const struct rank_share_layer *l = rank_share_at(s, layers.begin, i);
            chunk += l->act;
            offloaded = fmax(offloaded, l->act);
            store += l->store;
            kept += l->kept;
            stage->count += padded(&v->mesh, l->count) + padded(&v->mesh, l->table);
            const double experts = padded_experts(&v->mesh, l->experts);
            stage->experts += experts;
            most.experts = fmax(most.experts, experts);
            summed += l->partial_grads;
            stage->layers++;
            stage->muon += l->muon / (v->mesh.zero > 0 ? v->mesh.shard : mesh_dp_cp(&v->mesh));
            stage->communication += muon_s(p, &v->mesh, s, l);
            m->scratch = fmax(m->scratch, l->scratch);
            most.layer = fmax(most.layer, padded(&v->mesh, l->count));
            most.table = fmax(most.table, padded(&v->mesh, l->table));
            if (l->row_bytes > 0)
                stage->tables += padded(&v->mesh, l->table);
            else
                most.dense = fmax(most.dense, padded(&v->mesh, l->table));
            stage->rows += l->rows, stage->row_bytes += l->row_bytes;
            add_codes(r, stage, p, &(struct unit_codes){&l->codes, padded(&v->mesh, l->count), experts},
                      &most);
        }
        act += chunk;
        set = fmax(set, chunk);
    }
    /* With a pipeline, each set is as large as the largest chunk, and the final sum exists once. Without,
     * each layer is stored once. */
    const double here = 1 - p->assume.offload_act, sets = v->mesh.pp > 1 ? stage->slots * set : act;
    m->act = s->act_fixed + (last ? s->act_last : 0) + here * sets + fmin(2 * offloaded, sets) * (1 - here) +
             (v->mesh.pp > 1 ? stage->stores * store + s->once - s->sum_bytes : 0);
    stage->count += stage->experts;
    fill_state(r, rank, p, s, summed);
    stage->host += (1 - here) * sets;
    if (last) most.layer = fmax(most.layer, module);
    most.front = first || (last && s->count_tied > 0) ? front : 0, most.back = last ? back : 0;
    most.unit = fmax(fmax(most.layer, most.dense), fmax(first ? front : 0, last ? back : 0));
    fill_buffers(stage, &v->mesh, s, &most, v->mesh.zero == 2 && stage->codes > 0 && p->assume.fsdp_fp8 > 0);
    m->buffers += v->mesh.zero >= 2 ? stage->stores * kept * 4 : 0;
    m->communication = (double)(s->kind == DEV_CUDA ? r->comm_memory.device : r->comm_memory.host);
    if (s->muon.count > 0) m->scratch = fmax(m->scratch, muon_scratch(&v->mesh, s, most.layer));
    m->scratch += s->operands;
    if (last) m->scratch += p->assume.logits * logits_of(p, v);
}

/* Seconds of one micro-batch on a rank. */
struct passes {
    double forward, backward, wgrad;
    double tp_exposed, cp_exposed, ep_exposed;
    struct layer_time compute;
};

enum { MODULE_TRANSFERS = 14 }; /* of the residual stream, per MTP module */

static void passes_add(struct passes *sum, const struct passes *t)
{
    sum->forward += t->forward, sum->backward += t->backward, sum->wgrad += t->wgrad;
    sum->tp_exposed += t->tp_exposed, sum->cp_exposed += t->cp_exposed, sum->ep_exposed += t->ep_exposed;
    layer_time_add(&sum->compute, &t->compute, 1);
}

/* Exposed seconds of a sequence-parallel collective that overlaps a GEMM. The GEMM has one block per tp rank,
 * and the first block overlaps nothing (nn/sequence_parallel.h). */
static double sp_exposed(const struct rank_share *s, int64_t layer, double gemm)
{
    const double hidden = s->layer[layer].overlap * fmin(s->gather_s, gemm * (s->tp - 1) / s->tp);
    return mesh_paid(s->gather_s, s->overlap_tp * hidden);
}

/* Both branches of a layer: all-gather before the first GEMM, reduce-scatter after the last. Backward does
 * the reverse, and gathers the input once more for weight gradients. */
static double sp_exposed_forward(const struct rank_share *s, int64_t layer)
{
    const struct layer_times *l = &s->layer[layer].times;
    return 2 * (sp_exposed(s, layer, l->enter.forward) + sp_exposed(s, layer, l->leave.forward));
}
static double sp_exposed_backward(const struct rank_share *s, int64_t layer)
{
    const struct layer_times *l = &s->layer[layer].times;
    return 2 * (sp_exposed(s, layer, l->leave.dgrad) + sp_exposed(s, layer, l->enter.dgrad) +
                sp_exposed(s, layer, l->enter.wgrad));
}

/* `first`: of the chunk (rank_share_at). */
static struct passes layer_passes(const struct mesh_variant *v, const struct rank_share *s, int64_t layer,
                                  int64_t first)
{
    const struct rank_share_layer *at = rank_share_at(s, first, layer);
    const struct layer_times *l = &at->times;
    const double again = v->recompute == RECOMPUTE_FULL || at != &s->layer[layer];
    const double forward = sp_exposed_forward(s, layer),
                 backward = sp_exposed_backward(s, layer) + again * forward;
    const struct exchange *cp = &at->context, *ep = &at->dispatch;
    const double cp_forward = cp->exposed * cp->forward, cp_backward = cp->exposed * cp->backward,
                 ep_forward = ep->exposed * ep->forward, ep_backward = ep->exposed * ep->backward;
    struct passes t = {.forward = layer_time_sum(&l->forward) + forward + cp_forward + ep_forward,
                       .backward = layer_time_sum(&l->backward) + layer_time_sum(&l->recompute) + backward +
                                   cp_backward + ep_backward,
                       .wgrad = l->wgrad,
                       .tp_exposed = forward + backward,
                       .cp_exposed = cp_forward + cp_backward,
                       .ep_exposed = ep_forward + ep_backward,
                       .compute = l->forward};
    layer_time_add(&t.compute, &l->backward, 1);
    layer_time_add(&t.compute, &l->recompute, 1);
    return t;
}

/* What first and last stage compute in addition to layers. */
static struct passes end_passes(const struct rank_share *s, bool first, bool last)
{
    struct passes t = {0};
    const struct layer_times *ends[] = {first ? &s->embed : NULL, last ? &s->head : NULL};
    for (int k = 0; k < 2; k++) {
        if (ends[k] == NULL) continue;
        t.forward += layer_time_sum(&ends[k]->forward) + (k == 0 ? s->gather_s : 0);
        t.backward += layer_time_sum(&ends[k]->backward) + (k == 0 ? 1 : 2) * s->gather_s;
        t.wgrad += ends[k]->wgrad;
        t.tp_exposed += 2 * s->gather_s;
        layer_time_add(&t.compute, &ends[k]->forward, 1);
        layer_time_add(&t.compute, &ends[k]->backward, 1);
    }
    if (last) { /* of MTP; their compute is counted in the head */
        const double dispatch =
            s->dispatch_modules.exposed * (s->dispatch_modules.forward + s->dispatch_modules.backward);
        t.backward += (double)s->modules * MODULE_TRANSFERS * s->gather_s + dispatch;
        t.ep_exposed += dispatch;
        t.tp_exposed += (double)s->modules * MODULE_TRANSFERS * s->gather_s;
    }
    return t;
}

/* Activations that are copied to the host and back take the link as long as they take; compute may hide it. */
static void pass_offloaded(const struct mesh_plan *p, double act, struct passes *t)
{
    const double rate = p->cluster.machine->host_rate, copied = p->assume.offload_act * act;
    if (copied <= 0) return;
    t->forward = fmax(t->forward, copied / rate), t->backward = fmax(t->backward, copied / rate);
}

static struct passes rank_passes(const struct mesh_plan *p, const struct mesh_variant *v, int rank,
                                 const struct rank_share *s, int chunk)
{
    const int stages = v->mesh.pp * v->mesh.chunks, at = chunk * v->mesh.pp + rank;
    const struct mesh_range layers = mesh_stage_range(&v->mesh, s->layers, at);
    struct passes sum = end_passes(s, at == 0, at == stages - 1);
    double act = 0;
    for (int64_t i = layers.begin; i < layers.end; i++) {
        const struct passes t = layer_passes(v, s, i, layers.begin);
        passes_add(&sum, &t);
        act += rank_share_at(s, layers.begin, i)->act;
    }
    pass_offloaded(p, act, &sum);
    return sum;
}

/* True: stages of at most `most` seconds hold all layers. Filled from the last stage on, so the first stages,
 * which hold most sets of activations, get fewest layers. */
static bool fill_stages(struct mesh_variant *v, const struct rank_share *s, double most)
{
    int64_t left = s->layers;
    for (int at = v->mesh.pp - 1; at >= 0; at--) {
        const struct passes ends = end_passes(s, at == 0, at == v->mesh.pp - 1);
        double sum = ends.forward + ends.backward;
        int count = 0;
        while (left > at) { /* leaves one for each earlier stage */
            const struct passes t = layer_passes(v, s, left - 1, left - 1 - s->full_layers);
            if (count > 0 && sum + t.forward + t.backward > most) break;
            sum += t.forward + t.backward;
            count++, left--;
        }
        v->mesh.layers[at] = count;
        if (sum > most) return false;
    }
    return left == 0;
}

status mesh_plan_balance(struct mesh_plan *p, struct mesh_variant *v)
{
    enum { HALVINGS = 40 };
    const struct rank_share *s;
    CHECK(v->mesh.chunks == 1, "stages of one chunk are balanced");
    TRY(find_share(p, v, &s));
    double low = 0, high = 0;
    for (int64_t i = 0; i < s->layers; i++) {
        const struct passes t = layer_passes(v, s, i, i);
        high += t.forward + t.backward;
    }
    const struct passes ends = end_passes(s, true, true);
    high += ends.forward + ends.backward;
    for (int i = 0; i < HALVINGS; i++) {
        const double middle = (low + high) / 2;
        *(fill_stages(v, s, middle) ? &high : &low) = middle;
    }
    CHECK(fill_stages(v, s, high), "%d stages have no room for %lld layers", v->mesh.pp,
          (long long)s->layers);
    return STATUS_OK;
}

/* AdamW reads and writes weights and moments, and reads the gradient twice (once for its norm). Offloaded
 * state is uploaded and downloaded at the same time, which hides the rest. */
static double optim_s(const struct mesh_plan *p, const struct rank_share *s, const struct mesh_variant *v,
                      const struct mesh_stage *stage)
{
    const double dense = stage->count - stage->experts - stage->tables + stage->rows;
    const struct mesh_state b = mesh_state_of(&p->spec.run, &s->moments, 0, 1);
    const double bytes = 2 * (b.weight + b.master + b.moments + b.grad);
    const double own =
        dense / (v->mesh.zero > 0 ? v->mesh.shard : 1) + stage->experts / mesh_expert_shards(&v->mesh);
    if (b.host > 0) return own * b.host / machine_host_both(p->cluster.machine);
    const double away = p->assume.offload_optimizer;
    return own * bytes * (1 - away) / p->cluster.machine->stream_rate +
           own * away * (2 * b.master + b.moments) / machine_host_both(p->cluster.machine);
}

/* Times of all stages, each micro-batch with its part of dp's communication; then simulates the schedule. */
static status time_step(struct mesh_plan *p, const struct rank_share *s, struct mesh_result *r)
{
    const struct mesh_variant *v = &r->variant;
    const struct axis pp = traffic_axis(&p->cluster, v->mesh.pp, v->mesh.tp * mesh_dp_cp(&v->mesh));
    const double sent = traffic_stage_bytes(s->stream_bytes, v->mesh.tp),
                 message = v->mesh.pp > 1 ? traffic_send_s(&p->cluster, &pp, sent) : 0;
    const double blocked = s->overlap ? 0 : message; /* the sender waits until it is read */
    struct pipeline_stage_time *times = calloc((size_t)v->mesh.pp * (size_t)v->mesh.chunks, sizeof *times);
    if (times == NULL)
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the times of %d stages",
                    v->mesh.pp * v->mesh.chunks);
    double slowest = 0, once = 0;
    for (int i = 0; i < v->mesh.pp; i++) {
        struct passes all = {0};
        struct mesh_stage *stage = &r->stages[i];
        for (int c = 0; c < v->mesh.chunks; c++) {
            const struct passes t = rank_passes(p, v, i, s, c);
            times[c * v->mesh.pp + i] = (struct pipeline_stage_time){
                .forward = t.forward + blocked, .dgrad = t.backward - t.wgrad + blocked, .wgrad = t.wgrad};
            passes_add(&all, &t);
        }
        const struct mesh_dp_cost cost =
            mesh_dp_cost(p, r, i, s, &(struct mesh_pass){all.forward, all.backward, optim_s(p, s, v, stage)});
        for (int c = 0; c < v->mesh.chunks; c++) {
            times[c * v->mesh.pp + i].forward += cost.forward / v->mesh.chunks;
            times[c * v->mesh.pp + i].dgrad += cost.backward / v->mesh.chunks;
        }
        stage->forward = all.forward + cost.forward + v->mesh.chunks * blocked;
        stage->backward = all.backward + cost.backward + v->mesh.chunks * blocked;
        if (stage->forward + stage->backward > slowest) {
            slowest = stage->forward + stage->backward;
            r->slowest = i;
            r->compute = (struct layer_time){0};
            layer_time_add(&r->compute, &all.compute, r->micros);
            r->tp.exposed = r->micros * all.tp_exposed;
            r->cp.exposed = r->micros * all.cp_exposed;
            r->ep.exposed = r->micros * all.ep_exposed;
        }
        if (cost.sum.seconds > r->dp.seconds) r->dp = cost.sum;
        once = fmax(once, cost.once);
        r->optim =
            fmax(r->optim, optim_s(p, s, v, stage) + stage->muon + stage->communication + stage->codes_s);
    }
    double makespan = r->micros * slowest;
    status st = STATUS_OK;
    for (int i = 0; i < v->mesh.pp; i++) r->stages[i].slots = v->mesh.chunks;
    if (v->mesh.pp > 1) {
        st = mesh_walk_pipeline(p, r, s, times, message, &makespan);
        r->bubble -= r->micros * slowest;
    } else {
        free(times);
    }
    r->step = makespan + once + r->optim;
    return st;
}

/* Ranks of one node communicate through shared memory, as `ingot launch` starts them; those that mpirun starts do not.
 * A pipeline over several nodes has neighbours on two of them. */
static struct comm_memory room_of(const struct mesh_plan *p, const struct rank_share *s,
                                  const struct mesh_shape *m)
{
    const int ranks = mesh_ranks(m), here = ranks < p->cluster.node ? ranks : p->cluster.node;
    const struct comm_job job = {.ranks = ranks,
                                 .here = here,
                                 .shares_memory = here == ranks && p->assume.mpi == 0,
                                 .mail_by_nccl =
                                     here < ranks || p->spec.run.parallel_transport == TRANSPORT_NCCL};
    return plan_comm_memory(m, &job, s->kind, (size_t)s->stream_bytes / (size_t)m->tp,
                            m->pp > 1 ? p->walk.few.depth : 0);
}

/* Transfers of the residual stream: ten per layer, four more with full recompute, two for each end of the
 * model; an MTP module counts as a layer with both ends. */
static void count_tp(const struct mesh_plan *p, const struct rank_share *s, struct mesh_result *r)
{
    const struct mesh_variant *v = &r->variant;
    const struct axis tp = traffic_axis(&p->cluster, v->mesh.tp, 1);
    const int ends = (r->slowest == 0) + (r->slowest == v->mesh.pp - 1);
    const double layer =
        traffic_tensor_bytes(&tp, s->stream_bytes) * (v->recompute == RECOMPUTE_FULL ? 1.4 : 1);
    const double modules = r->slowest == v->mesh.pp - 1 ? (double)s->modules * MODULE_TRANSFERS : 0;
    r->tp.bytes = r->micros * (r->stages[r->slowest].layers * layer +
                               (2 * ends + modules) * traffic_all_gather_bytes(&tp, s->stream_bytes));
    r->tp.seconds =
        v->mesh.tp > 1 ? r->tp.bytes / traffic_all_gather_bytes(&tp, s->stream_bytes) * s->gather_s : 0;
}

static void count_exchange(struct mesh_traffic *t, int micros, const struct exchange *x)
{
    t->bytes += micros * (x->forward_bytes + x->backward_bytes);
    t->seconds += micros * (x->forward + x->backward);
}

/* What ranks of the slowest stage exchange (plan/exchange.h). */
static void count_exchanges(const struct rank_share *s, struct mesh_result *r)
{
    const struct mesh_variant *v = &r->variant;
    for (int c = 0; c < v->mesh.chunks; c++) {
        const struct mesh_range at = mesh_stage_range(&v->mesh, s->layers, c * v->mesh.pp + r->slowest);
        for (int64_t i = at.begin; i < at.end; i++) {
            const struct rank_share_layer *l = rank_share_at(s, at.begin, i);
            count_exchange(&r->cp, r->micros, &l->context);
            count_exchange(&r->ep, r->micros, &l->dispatch);
        }
    }
    if (r->slowest == v->mesh.pp - 1) count_exchange(&r->ep, r->micros, &s->dispatch_modules);
}

status mesh_plan_one(struct mesh_plan *p, const struct mesh_variant *v, struct mesh_result *r)
{
    const struct rank_share *s;
    *r = (struct mesh_result){.variant = *v};
    TRY(mesh_check(&p->spec, &v->mesh));
    TRY(check_variant(p, v));
    TRY(find_share(p, v, &s));
    r->micros = (int)(step_sequences(p) / (v->mesh.dp * v->micro_batch));
    for (int i = 0; i < v->mesh.pp; i++) fill_stage(r, i, p, s); /* layer counts; slots are not known yet */
    TRY(time_step(p, s, r));
    r->comm_memory = room_of(p, s, &v->mesh);
    for (int i = 0; i < v->mesh.pp; i++) {
        const struct mesh_stage timed = r->stages[i];
        r->stages[i] = (struct mesh_stage){.slots = timed.slots,
                                           .stores = timed.stores,
                                           .forward = timed.forward,
                                           .backward = timed.backward};
        fill_stage(r, i, p, s);
        if (mesh_memory_sum(&r->stages[i].memory) > mesh_result_bytes(r)) r->fullest = i;
    }
    count_tp(p, s, r);
    count_exchanges(s, r);
    r->fits = mesh_fits(p, r);
    const double tokens = (double)p->spec.run.train_batch_tokens;
    r->tokens_per_s = tokens / r->step;
    r->mfu = r->tokens_per_s * plan_model_flops(&p->spec.model, p->spec.run.train_sequence_length) /
             (p->peak * mesh_ranks(&v->mesh));
    return STATUS_OK;
}
