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
    if (st == STATUS_OK && run_precision(p) == PRECISION_FP8 && !machine_has_fp8(m))
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

static void forget_walk(struct mesh_walk *w)
{
    if (w->schedule.ranks > 0) pipeline_schedule_free(&w->schedule);
    if (w->longer.ranks > 0) pipeline_schedule_free(&w->longer);
    free(w->times);
    *w = (struct mesh_walk){0};
}

void mesh_plan_close(struct mesh_plan *p)
{
    if (p == NULL) return;
    for (int i = 0; i < p->share_count; i++) rank_share_close(p->shares[i]);
    forget_walk(&p->walk);
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
    return most + (double)r->room.host + (on_host(p) ? 0 : mesh_copies_bytes(p));
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

static bool fits(const struct mesh_plan *p, const struct mesh_result *r)
{
    return mesh_result_bytes(r) + (on_host(p) ? mesh_copies_bytes(p) : 0) <= p->bytes &&
           mesh_host_bytes(p, r) <= mesh_host_max(p);
}

/* Checks what depends on the batch and the machine; mesh_check checks what depends on the model. */
static status check_variant(const struct mesh_plan *p, const struct mesh_variant *v)
{
    const int64_t sequences = step_sequences(p);
    const struct model_spec *m = &p->spec.model;
    const int64_t attention = model_mixer_count(m, MIXER_GQA) + model_mixer_count(m, MIXER_SWA);
    if (mesh_cp(&v->mesh) > 1 && (v->mesh.context_kind != CONTEXT_ALL_GATHER || attention < m->layer_count))
        return FAIL(STATUS_CONFIG,
                    "parallel.context %d: a plan for a mesh knows gqa and swa layers under "
                    "parallel.context_kind all_gather so far",
                    v->mesh.cp);
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

struct range {
    int64_t begin, end;
};
static struct range stage_range(const struct mesh_shape *m, int64_t layers, int stage)
{
    struct range r = {0};
    for (int i = 0; i <= stage; i++) r = (struct range){r.end, r.end + mesh_stage_layers(m, layers, i)};
    return r;
}

/* Parameters of a unit as ZeRO pads it: a whole number of optimizer chunks per rank (tensor/params.h). */
static double padded(const struct mesh_shape *m, double count)
{
    const double grid = (double)m->shard * PARAMS_GRID;
    return m->zero > 0 ? ceil(count / grid) * grid : count;
}

/* Buffers of Muon's GEMMs. A rank's part of a layer bounds its part of a matrix. */
static double muon_scratch(const struct mesh_shape *m, const struct rank_share *s, double layer)
{
    const int64_t part = (int64_t)layer / m->shard;
    struct muon_ranks by = {.ranks = mesh_dp_cp(m), .slices = m->tp};
    if (m->zero > 0) by = (struct muon_ranks){m->shard, m->tp, part < s->ortho.slab ? part : s->ortho.slab};
    return (double)muon_bytes(&s->ortho, s->weight_bytes > 2 ? DTYPE_F32 : DTYPE_BF16, &by);
}

/* Muon's communication for a layer's matrices (optim/muon.h): gradients and updates; without ZeRO and tensor
 * parallelism updates only. */
static double muon_communication_s(const struct mesh_plan *p, const struct mesh_shape *m,
                                   const struct rank_share *s, double matrices)
{
    const int shard = m->zero > 0 ? m->shard : mesh_dp_cp(m);
    const struct axis dp = traffic_axis(&p->cluster, shard, m->tp), tp = traffic_axis(&p->cluster, m->tp, 1);
    const double there_and_back = (4 + s->weight_bytes) * matrices / shard;
    if (matrices == 0) return 0;
    return traffic_gather_s(&dp, m->zero > 0 ? there_and_back : s->weight_bytes * matrices) +
           traffic_gather_s(&tp, there_and_back);
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

/* Sums over a rank's layers, chunk by chunk. */
static void fill_stage(struct mesh_result *r, int rank, const struct mesh_plan *p, const struct rank_share *s)
{
    const struct mesh_variant *v = &r->variant;
    struct mesh_stage *stage = &r->stages[rank];
    struct mesh_memory *m = &stage->memory;
    const bool first = rank == 0, last = rank == v->mesh.pp - 1;
    double act = 0, set = 0, store = 0, kept = 0, layer_max = 0, table_max = 0, dense_max = 0,
           summed = last ? s->summed_last + (double)s->modules * s->summed_module : 0;
    const double front = padded(&v->mesh, s->count_first), back = padded(&v->mesh, s->count_last),
                 module = padded(&v->mesh, s->count_module);
    stage->count = (first ? front : 0) + (last ? back + (double)s->modules * module : 0);
    if (last && !first) stage->count += padded(&v->mesh, s->count_tied);
    if (last) stage->codes += (double)s->modules * s->codes_module;
    if (last) stage->codes_s += (double)s->modules * s->codes_module_s;
    m->scratch = s->scratch_head;
    for (int c = 0; c < v->mesh.chunks; c++) {
        const struct range layers = stage_range(&v->mesh, s->layers, c * v->mesh.pp + rank);
        double chunk = last && c == v->mesh.chunks - 1 && v->mesh.pp > 1 ? s->sum_bytes : 0;
        for (int64_t i = layers.begin; i < layers.end; i++) {
            const struct rank_share_layer *l = &s->layer[i];
            chunk += l->act;
            store += l->store;
            kept += l->kept;
            stage->count += padded(&v->mesh, l->count) + padded(&v->mesh, l->table);
            summed += l->summed;
            stage->layers++;
            stage->ortho += l->ortho / (v->mesh.zero > 0 ? v->mesh.shard : mesh_dp_cp(&v->mesh));
            stage->communication += muon_communication_s(p, &v->mesh, s, l->matrices);
            m->scratch = fmax(m->scratch, l->scratch);
            layer_max = fmax(layer_max, padded(&v->mesh, l->count));
            table_max = fmax(table_max, padded(&v->mesh, l->table));
            if (l->row_bytes > 0)
                stage->tables += padded(&v->mesh, l->table);
            else
                dense_max = fmax(dense_max, padded(&v->mesh, l->table));
            stage->rows += l->rows, stage->row_bytes += l->row_bytes;
            stage->codes += l->codes, stage->codes_s += l->codes_s;
        }
        act += chunk;
        set = fmax(set, chunk);
    }
    /* With a pipeline, each set is as large as the largest chunk, and the final sum exists once. Without,
     * each layer is stored once. */
    m->act = s->act_fixed + (last ? s->act_last : 0) +
             (v->mesh.pp > 1 ? stage->slots * set + stage->stores * store + s->once - s->sum_bytes : act);
    const struct mesh_state b = mesh_state_of(&p->spec.run, &s->moments, v->mesh.zero, v->mesh.shard);
    m->weights = stage->count * (b.weight + b.master) + s->param_other + stage->codes;
    m->grads = (stage->count - stage->tables) * b.grad + stage->row_bytes + s->grad_other;
    if (s->tp > 1)
        m->grads += (double)tp_grad_bytes(s->tp, (int64_t)summed / (v->mesh.zero > 0 ? v->mesh.shard : 1));
    if (overlay_apart(&p->spec.model, &v->mesh, r->micros) == NULL)
        overlay(m, v, s, (stage->count - stage->tables) * b.grad);
    m->optim = stage->count * b.moments;
    stage->host = stage->count * b.host;
    struct feed_shape feed = s->feed;
    feed.micro_count = r->micros;
    m->inputs = (double)((feed_bytes(s->kind, &feed) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN);
    const int64_t groups = v->mesh.zero >= 2 ? r->micros : p->spec.run.train_gradient_groups / v->mesh.dp;
    m->grads += sync_pending(groups) * (stage->count - stage->tables) * b.grad; /* partial sums of the tree */
    /* Buffers of units. DDP: the reduction of one unit. ZeRO 2 and 3: two layers, one table, and the ends of
     * the model, which share a slot unless both are in use at once (parallel/zero.h). */
    if (last) layer_max = fmax(layer_max, module);
    const double unit = fmax(fmax(layer_max, dense_max), fmax(first ? front : 0, last ? back : 0));
    const double slots = 2 * layer_max + (s->stays ? front + back : fmax(front, back));
    if (mesh_dp_cp(&v->mesh) > 1) m->buffers += (v->mesh.zero > 0 ? 1 : 2) * unit * 4;
    if (v->mesh.zero >= 2) m->buffers += (slots + dense_max) * 4;
    if (v->mesh.zero >= 2) m->buffers += stage->stores * kept * 4;
    if (v->mesh.zero >= 3) m->buffers += (slots + table_max) * s->weight_bytes;
    m->communication = (double)(s->kind == DEV_CUDA ? r->room.device : r->room.host);
    if (s->ortho.count > 0) m->scratch = fmax(m->scratch, muon_scratch(&v->mesh, s, layer_max));
}

/* Seconds of one micro-batch on a rank. */
struct passes {
    double forward, backward, wgrad;
    double tp_exposed, cp_exposed;
    struct layer_time compute;
};

enum { MODULE_TRANSFERS = 14 }; /* of the residual stream, per MTP module */

static void passes_add(struct passes *sum, const struct passes *t)
{
    sum->forward += t->forward, sum->backward += t->backward, sum->wgrad += t->wgrad;
    sum->tp_exposed += t->tp_exposed, sum->cp_exposed += t->cp_exposed;
    layer_time_add(&sum->compute, &t->compute, 1);
}

/* Exposed seconds of a transfer of which `hidden` seconds overlap with compute. Overlapped GEMMs slow down by
 * a part of the copies' time (two H200s: 7 ms of a step for 13.5 hidden by DDP, 12 for 26 by ZeRO 3). */
static double paid(double transfer, double hidden)
{
    const double slower = 0.4;
    return transfer - (1 - slower) * fmin(transfer, hidden);
}

/* Exposed seconds of a sequence-parallel collective that overlaps a GEMM. The GEMM has one block per tp rank,
 * and the first block overlaps nothing (nn/sequence_parallel.h). */
static double sp_exposed(const struct rank_share *s, int64_t layer, double gemm)
{
    const double hidden = s->layer[layer].overlap * fmin(s->gather_s, gemm * (s->tp - 1) / s->tp);
    return paid(s->gather_s, s->overlap_tp * hidden);
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

static struct passes layer_passes(const struct mesh_variant *v, const struct rank_share *s, int64_t layer)
{
    const struct layer_times *l = &s->layer[layer].times;
    const double again = v->recompute == RECOMPUTE_FULL;
    const double forward = sp_exposed_forward(s, layer),
                 backward = sp_exposed_backward(s, layer) + again * forward,
                 keys = s->layer[layer].keys_s; /* nothing overlaps the exchange of keys and values */
    struct passes t = {.forward = layer_time_sum(&l->forward) + forward + keys,
                       .backward = layer_time_sum(&l->backward) + layer_time_sum(&l->recompute) + backward +
                                   (2 + again) * keys,
                       .wgrad = l->wgrad,
                       .tp_exposed = forward + backward,
                       .cp_exposed = (3 + again) * keys,
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
        t.backward += (double)s->modules * MODULE_TRANSFERS * s->gather_s;
        t.tp_exposed += (double)s->modules * MODULE_TRANSFERS * s->gather_s;
    }
    return t;
}

static struct passes rank_passes(const struct mesh_variant *v, int rank, const struct rank_share *s,
                                 int chunk)
{
    const int stages = v->mesh.pp * v->mesh.chunks, at = chunk * v->mesh.pp + rank;
    const struct range layers = stage_range(&v->mesh, s->layers, at);
    struct passes sum = end_passes(s, at == 0, at == stages - 1);
    for (int64_t i = layers.begin; i < layers.end; i++) {
        const struct passes t = layer_passes(v, s, i);
        passes_add(&sum, &t);
    }
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
            const struct passes t = layer_passes(v, s, left - 1);
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
        const struct passes t = layer_passes(v, s, i);
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
    const double count = stage->count - stage->tables + stage->rows;
    const struct mesh_state b = mesh_state_of(&p->spec.run, &s->moments, 0, 1);
    const double bytes = 2 * (b.weight + b.master + b.moments + b.grad);
    const double own = count / (v->mesh.zero > 0 ? v->mesh.shard : 1);
    if (b.host > 0) return own * b.host / machine_host_both(p->cluster.machine);
    return own * bytes / p->cluster.machine->stream_rate;
}

/* The cost of data parallelism on a rank: per pass of a micro-batch, and once per step. */
struct dp_cost {
    double forward, backward; /* per micro-batch */
    double once;
    struct mesh_traffic sum;
};

/* Exposed seconds of a transfer of all layers that overlaps a pass over them: what is longer than the pass,
 * and always one layer. overlap: the
 * fraction of the rest that does. */
static double uncovered(double transfer, double pass, int layers, double overlap)
{
    return layers > 0 ? paid(transfer, overlap * fmin(transfer, pass) * (layers - 1) / layers) : transfer;
}

/* ZeRO shards a copy over `shard` neighbours of dp (parallel/mesh.h). All-reduces over copies follow each
 * reduce-scatter. Each unit of the parameter table is one collective. */
static struct dp_cost dp_cost(const struct mesh_plan *p, const struct mesh_result *r, int rank,
                              const struct rank_share *s, const struct passes *t)
{
    const struct mesh_shape *v = &r->variant.mesh;
    const struct mesh_stage *stage = &r->stages[rank];
    struct dp_cost c = {0};
    if (mesh_dp_cp(v) == 1) return c;
    const int shard = v->zero > 0 ? v->shard : 1, copies = mesh_dp_cp(v) / shard;
    const struct axis inner = traffic_axis(&p->cluster, shard, v->tp),
                      outer = traffic_axis(&p->cluster, copies, v->tp * shard);
    struct state_traffic bytes = traffic_state(v->zero, stage->count, s->weight_bytes);
    bytes.scatter = p->assume.grad_bytes * (stage->count - stage->tables);
    const int units = stage->layers + (rank == 0) + (rank == v->pp - 1);
    const double sums = bytes.each_micro ? r->micros : 1, gathers = v->zero == 3 ? sums : 1;
    const double sum = units * (traffic_gather_s(&inner, bytes.scatter / units) +
                                traffic_sum_s(&outer, bytes.scatter / units / shard)),
                 gather = units * traffic_gather_s(&inner, bytes.gather / units);
    c.sum.bytes = sums * (traffic_gather_bytes(&inner, bytes.scatter) +
                          traffic_sum_bytes(&outer, bytes.scatter / shard)) +
                  gathers * traffic_gather_bytes(&inner, bytes.gather);
    c.sum.seconds = sums * sum + gathers * gather;
    /* The first stages finish last: later stages reduce while earlier ones still compute. */
    const double slack = s->overlap_dp * rank * t->backward / v->chunks;
    /* New weights are gathered while the optimizer runs; those of Muon come last. */
    const double overlap = p->spec.run.optim_name != OPTIM_MUON ? s->overlap_dp : 0;
    const double moved = uncovered(gather, optim_s(p, s, &r->variant, stage), stage->layers, overlap);
    if (v->zero < 2) {
        c.once = fmax(0, uncovered(sum, t->backward, stage->layers, s->overlap_dp) - slack) + moved;
    } else { /* gathers and reduce-scatters of a backward pass overlap it together */
        const double recompute = v->zero == 3 ? gather / 2 : 0;
        c.backward = uncovered(sum + recompute, t->backward, stage->layers, s->overlap_dp);
        c.forward = v->zero == 3 ? uncovered(gather / 2, t->forward, stage->layers, s->overlap_dp) : 0;
        c.once = v->zero == 2 ? moved : 0;
    }
    /* Sparse gradients of n-gram tables: all-gathered at the end of the step. */
    const struct axis all = traffic_axis(&p->cluster, mesh_dp_cp(v), v->tp);
    const double reads = stage->row_bytes - stage->rows * 4,
                 read_s = reads > 0 ? traffic_gather_s(&all, reads) : 0;
    c.sum.bytes += traffic_gather_bytes(&all, reads), c.sum.seconds += read_s, c.once += read_s;
    c.sum.exposed = c.once + r->micros * (c.forward + c.backward);
    return c;
}

/* Once a pipeline is full, each group of micro-batches takes as long as the last one. So of very many, FIRST per rank are
 * simulated, and then MORE: the same groups with the same remainder. Returns `micros` if all are needed. */
enum { WALK_FIRST = 4, WALK_MORE = 2, WALK_MOST = 8 };
static int walked_micros(const struct mesh_shape *m, int micros, int least)
{
    const int group = m->chunks > 1 ? pipeline_schedule_group(m->pp, micros) : 1;
    if (micros <= WALK_MOST * m->pp || group > WALK_FIRST * m->pp || m->schedule == PIPELINE_GPIPE)
        return micros;
    int few = micros % group + group * ((least + group - 1) / group);
    while (few < micros && m->chunks > 1 && pipeline_schedule_group(m->pp, few) != group) few += group;
    return few < micros ? few : micros;
}

static status build_schedule(struct mesh_walk *w, const struct mesh_result *r)
{
    const struct mesh_shape *m = &r->variant.mesh;
    const struct pipeline_schedule *s = &w->schedule;
    if (s->ranks == m->pp && w->micros == r->micros && s->chunks == m->chunks && s->kind == m->schedule)
        return STATUS_OK;
    forget_walk(w);
    w->micros = r->micros;
    const int few = walked_micros(m, r->micros, WALK_FIRST * m->pp),
              more = walked_micros(m, r->micros, few + WALK_MORE * m->pp);
    status st =
        pipeline_schedule_build(&w->schedule, m->schedule, m->pp, more > few ? few : r->micros, m->chunks);
    if (st == STATUS_OK) st = pipeline_schedule_depth(&w->schedule, &w->depth);
    if (st == STATUS_OK && more > few)
        st = pipeline_schedule_build(&w->longer, m->schedule, m->pp, more, m->chunks);
    if (st != STATUS_OK) forget_walk(w);
    return st;
}

static status makespan_of(const struct mesh_walk *w, double message, double *makespan)
{
    const struct pipeline_simulate_args a = {.stages = w->times, .message = message};
    struct pipeline_simulated few, more;
    TRY(pipeline_simulate(&w->schedule, &a, &few));
    *makespan = few.makespan;
    if (w->longer.ranks == 0) return STATUS_OK;
    TRY(pipeline_simulate(&w->longer, &a, &more));
    *makespan += (more.makespan - few.makespan) * (w->micros - w->schedule.micros) /
                 (w->longer.micros - w->schedule.micros);
    return STATUS_OK;
}

/* Takes ownership of `times`. */
static status walk_schedule(struct mesh_walk *w, struct pipeline_stage_time *times, size_t count,
                            double message)
{
    if (w->times && w->message == message && memcmp(w->times, times, count * sizeof *times) == 0) {
        free(times);
        return STATUS_OK;
    }
    free(w->times);
    w->times = times, w->message = message;
    TRY(makespan_of(w, message, &w->with));
    return makespan_of(w, 0, &w->without);
}

/* Takes ownership of `times`. */
static status walk_pipeline(struct mesh_plan *p, struct mesh_result *r, const struct rank_share *s,
                            struct pipeline_stage_time *times, double message, double *makespan)
{
    const struct mesh_shape *m = &r->variant.mesh;
    struct mesh_walk *w = &p->walk;
    status st = build_schedule(w, r);
    if (st != STATUS_OK) free(times);
    TRY(st);
    TRY(walk_schedule(w, times, (size_t)m->pp * (size_t)m->chunks, message));
    for (int i = 0; i < m->pp; i++) {
        r->stages[i].slots = w->schedule.rank[i].slots;
        r->stages[i].stores = w->schedule.rank[i].stores;
    }
    const double sends = 2.0 * r->micros * m->chunks;
    r->pp = (struct mesh_traffic){.bytes = sends * traffic_stage_bytes(s->stream_bytes, m->tp),
                                  .seconds = sends * message,
                                  .exposed = w->with - w->without};
    r->bubble = w->without;
    *makespan = w->with;
    return STATUS_OK;
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
        return FAIL(STATUS_FIT, "no memory for the times of %d stages", v->mesh.pp * v->mesh.chunks);
    double slowest = 0, once = 0;
    for (int i = 0; i < v->mesh.pp; i++) {
        struct passes all = {0};
        struct mesh_stage *stage = &r->stages[i];
        for (int c = 0; c < v->mesh.chunks; c++) {
            const struct passes t = rank_passes(v, i, s, c);
            times[c * v->mesh.pp + i] = (struct pipeline_stage_time){
                .forward = t.forward + blocked, .dgrad = t.backward - t.wgrad + blocked, .wgrad = t.wgrad};
            passes_add(&all, &t);
        }
        const struct dp_cost cost = dp_cost(p, r, i, s, &all);
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
            r->cp.exposed = r->cp.seconds = r->micros * all.cp_exposed;
        }
        if (cost.sum.seconds > r->dp.seconds) r->dp = cost.sum;
        once = fmax(once, cost.once);
        r->optim =
            fmax(r->optim, optim_s(p, s, v, stage) + stage->ortho + stage->communication + stage->codes_s);
    }
    double makespan = r->micros * slowest;
    status st = STATUS_OK;
    for (int i = 0; i < v->mesh.pp; i++) r->stages[i].slots = v->mesh.chunks;
    if (v->mesh.pp > 1) {
        st = walk_pipeline(p, r, s, times, message, &makespan);
        r->bubble -= r->micros * slowest;
    } else {
        free(times);
    }
    r->step = makespan + once + r->optim;
    return st;
}

/* Ranks of one node communicate through shared memory, as `ingot launch` starts them. */
static struct comm_memory room_of(const struct mesh_plan *p, const struct rank_share *s,
                                  const struct mesh_shape *m)
{
    const int ranks = mesh_ranks(m), here = ranks < p->cluster.node ? ranks : p->cluster.node;
    const struct comm_job job = {.ranks = ranks, .here = here, .memory = here == ranks};
    return plan_comm_memory(m, &job, s->kind, (size_t)s->stream_bytes / (size_t)m->tp,
                            m->pp > 1 ? p->walk.depth : 0);
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
                               (2 * ends + modules) * traffic_gather_bytes(&tp, s->stream_bytes));
    r->tp.seconds =
        v->mesh.tp > 1 ? r->tp.bytes / traffic_gather_bytes(&tp, s->stream_bytes) * s->gather_s : 0;
}

/* Keys and values of the slowest stage's layers: gathered forward and backward, their gradients scattered; gathered once
 * more by full recompute. */
static void count_cp(const struct rank_share *s, struct mesh_result *r)
{
    const struct mesh_variant *v = &r->variant;
    const int cp = mesh_cp(&v->mesh);
    const double times = v->recompute == RECOMPUTE_FULL ? 4 : 3;
    double bytes = 0;
    for (int c = 0; c < v->mesh.chunks; c++) {
        const struct range at = stage_range(&v->mesh, s->layers, c * v->mesh.pp + r->slowest);
        for (int64_t i = at.begin; i < at.end; i++) bytes += s->layer[i].keys_bytes;
    }
    r->cp.bytes = r->micros * times * bytes * (cp - 1) / cp;
}

status mesh_plan_one(struct mesh_plan *p, const struct mesh_variant *v, struct mesh_result *r)
{
    const struct rank_share *s;
    *r = (struct mesh_result){.variant = *v};
    TRY(mesh_check(&p->spec, &v->mesh));
    if (mesh_ep(&v->mesh) > 1)
        return FAIL(
            STATUS_CONFIG,
            "parallel.expert %d: no plan counts what ranks send to experts so far; leave it out of the "
            "plan, which is then that of whole experts on each rank",
            v->mesh.ep);
    TRY(check_variant(p, v));
    TRY(find_share(p, v, &s));
    r->micros = (int)(step_sequences(p) / (v->mesh.dp * v->micro_batch));
    for (int i = 0; i < v->mesh.pp; i++) fill_stage(r, i, p, s); /* layer counts; slots are not known yet */
    TRY(time_step(p, s, r));
    r->room = room_of(p, s, &v->mesh);
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
    count_cp(s, r);
    r->fits = fits(p, r);
    const double tokens = (double)p->spec.run.train_batch_tokens;
    r->tokens_per_s = tokens / r->step;
    r->mfu = r->tokens_per_s * plan_model_flops(&p->spec.model, p->spec.run.train_sequence_length) /
             (p->peak * mesh_ranks(&v->mesh));
    return STATUS_OK;
}
