/* All variants of all meshes of a cluster. A variant's needs are cheap to compute (mesh_plan_one), so the search
 * skips only micro-batches of more than MICRO_TOKENS tokens, which benefit no schedule. */
#include "plan/mesh_plan_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO_TOKENS = 1 << 17, CHUNKS_MAX = 16, CONTEXT_TOKENS_MIN = 1024 };

struct search {
    struct mesh_plan *plan;
    struct mesh_list *list;
    struct mesh_result *one;   /* of the current variant */
    struct mesh_result *mesh;  /* fastest that fits for the current dp x tp x pp; step 0: none */
    struct mesh_result *start; /* the same of those that a command starts */
    char reason[512];          /* why the first invalid variant is invalid */
};

/* Seconds with a small penalty: of nearly equal variants, the simpler and smaller one wins. */
static double cost(const struct search *s, const struct mesh_result *r)
{
    const struct mesh_variant *v = &r->variant;
    const double full = mesh_result_bytes(r) / s->plan->bytes;
    return r->step * (1 + 1e-3 * (v->mesh.zero + (double)v->recompute + (v->mesh.chunks > 1) + 3 * full));
}

/* Above this share of the memory the search's bytes do not tell whether a variant fits: they are near a run's. */
#define NEAR_FULL 0.97

/* Takes `one` in the place of `kept` if it is better, and fits in a run's own layout. */
static status keep_better(struct search *s, struct mesh_result *kept)
{
    if (!s->one->fits || (kept->step > 0 && cost(s, s->one) >= cost(s, kept))) return STATUS_OK;
    if (mesh_result_bytes(s->one) > NEAR_FULL * s->plan->bytes)
        TRY(mesh_plan_layout_fullest(s->plan, s->one));
    if (s->one->fits) *kept = *s->one;
    return STATUS_OK;
}

static status look_at(struct search *s, const struct mesh_variant *v)
{
    char why[PLAN_WHY];
    const bool gpu = s->plan->cluster.machine->kind == DEV_CUDA;
    status st = gpu ? mesh_check_gpu(&s->plan->spec, &v->mesh) : STATUS_OK;
    if (st == STATUS_OK) st = mesh_plan_one(s->plan, v, s->one);
    if (st == STATUS_CONFIG && s->reason[0] == 0)
        snprintf(s->reason, sizeof s->reason, "%s", status_message());
    if (st == STATUS_CONFIG) return STATUS_OK;
    TRY(st);
    struct mesh_list *list = s->list;
    if (list->legal++ == 0 || mesh_result_bytes(s->one) < mesh_result_bytes(&list->least))
        list->least = *s->one;
    if (!s->one->fits) return STATUS_OK;
    list->fit++;
    TRY(keep_better(s, s->mesh));
    return mesh_lacks(why, s->plan, &v->mesh) == NULL ? keep_better(s, s->start) : STATUS_OK;
}

/* One sharded copy over all of dp x cp. If they span nodes, also one copy per node (parallel.shard), whose links
 * are fast. */
static status look_at_zeros(struct search *s, struct mesh_variant v)
{
    const int node = s->plan->cluster.node / v.mesh.tp, ranks = mesh_dp_cp(&v.mesh);
    v.mesh.shard = ranks;
    for (v.mesh.zero = 0; v.mesh.zero <= (ranks > 1 ? 3 : 0); v.mesh.zero++) TRY(look_at(s, &v));
    if (node <= 1 || node >= ranks || ranks % node != 0) return STATUS_OK;
    v.mesh.shard = node;
    for (v.mesh.zero = 1; v.mesh.zero <= 3; v.mesh.zero++) TRY(look_at(s, &v));
    return STATUS_OK;
}

/* Stages with head or embedding take longer, so they get fewer layers. */
static status look_at_uneven(struct search *s, struct mesh_variant v)
{
    const struct mesh_shape even = v.mesh;
    bool differ = false;
    v.mesh.shard = mesh_dp_cp(&v.mesh);
    if (mesh_check(&s->plan->spec, &v.mesh) != STATUS_OK) return STATUS_OK; /* reported for the even ones */
    const status st = mesh_plan_balance(s->plan, &v);
    if (st == STATUS_CONFIG) return STATUS_OK;
    TRY(st);
    for (int i = 0; i < v.mesh.pp; i++)
        differ |= v.mesh.layers[i] != mesh_stage_layers(&even, s->plan->spec.model.layer_count, i);
    return differ ? look_at_zeros(s, v) : STATUS_OK;
}

/* Of the numbers of chunks whose largest has as many layers, the smallest: more of them only send more. */
static bool worth_chunks(int64_t layers, int pp, int chunks)
{
    const int64_t most = (layers + pp * chunks - 1) / (pp * chunks),
                  fewer = (layers + pp * (chunks - 1) - 1) / (pp * (chunks - 1));
    return most < fewer;
}

static status look_at_schedules(struct search *s, struct mesh_variant v)
{
    static const enum pipeline_kind plain[] = {
        PIPELINE_1F1B, PIPELINE_ZB_H1}; /* GPipe takes as long as 1F1B, and more memory */
    v.mesh.chunks = 1;
    if (v.mesh.pp == 1) return look_at_zeros(s, v);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        v.mesh.schedule = plain[i];
        TRY(look_at_zeros(s, v));
        TRY(look_at_uneven(s, v));
    }
    v.mesh.schedule = PIPELINE_INTERLEAVED;
    const int64_t stages = s->plan->spec.model.layer_count;
    for (v.mesh.chunks = 2; v.mesh.chunks <= CHUNKS_MAX && v.mesh.chunks * v.mesh.pp <= stages;
         v.mesh.chunks++)
        if (worth_chunks(stages, v.mesh.pp, v.mesh.chunks)) TRY(look_at_zeros(s, v));
    return STATUS_OK;
}

/* Inserts r into a list of *count rows, fastest first. */
static status rank_in(const struct search *s, const struct mesh_result *r, struct mesh_result **rows,
                      int *count, int *capacity)
{
    if (*count == *capacity) {
        const int more = *capacity ? 2 * *capacity : 16;
        struct mesh_result *grown = realloc(*rows, (size_t)more * sizeof *grown);
        if (grown == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for a list of %d meshes", more);
        *rows = grown;
        *capacity = more;
    }
    int at = (*count)++;
    for (; at > 0 && cost(s, &(*rows)[at - 1]) > cost(s, r); at--) (*rows)[at] = (*rows)[at - 1];
    (*rows)[at] = *r;
    return STATUS_OK;
}

static status keep_best(struct search *s)
{
    struct mesh_list *l = s->list;
    if (s->mesh->step == 0) return STATUS_OK;
    TRY(mesh_plan_layout_fullest(s->plan, s->mesh));
    TRY(rank_in(s, s->mesh, &l->best, &l->count, &l->capacity));
    if (s->start->step == 0) return STATUS_OK;
    if (memcmp(&s->start->variant, &s->mesh->variant, sizeof s->mesh->variant) == 0)
        *s->start = *s->mesh;
    else
        TRY(mesh_plan_layout_fullest(s->plan, s->start));
    return rank_in(s, s->start, &l->starts, &l->start_count, &l->start_capacity);
}

static status look_at_axes(struct search *s, struct mesh_variant v)
{
    const struct run_spec *r = &s->plan->spec.run;
    const int64_t sequences = r->train_batch_tokens / r->train_sequence_length;
    const struct plan_command *given = &s->plan->command;
    for (v.micro_batch = 1; v.micro_batch * v.mesh.dp <= sequences; v.micro_batch++) {
        if (sequences % (v.micro_batch * v.mesh.dp) != 0) continue;
        const bool wanted = given->micro_batch && r->train_micro_batch == v.micro_batch;
        if (!wanted && v.micro_batch > 1 && v.micro_batch * r->train_sequence_length > MICRO_TOKENS) continue;
        if (given->micro_batch && r->train_micro_batch > 0 && !wanted) continue;
        for (int policy = RECOMPUTE_NONE; policy <= RECOMPUTE_FULL; policy++) {
            if (given->recompute && policy != r->train_recompute) continue;
            v.recompute = (enum recompute)policy;
            TRY(look_at_schedules(s, v));
        }
    }
    return STATUS_OK;
}

/* Ranks that shard the experts: 1, and what divides both them and dp x cp. */
static status look_at_experts(struct search *s, struct mesh_variant v, int asked)
{
    const int64_t experts =
        model_ffn_count(&s->plan->spec.model, FFN_MOE) > 0 ? s->plan->spec.model.moe_experts : 1;
    const int ranks = mesh_dp_cp(&v.mesh);
    for (int ep = 1; ep <= experts && ep <= ranks; ep++) {
        if (experts % ep != 0 || ranks % ep != 0 || (asked > 0 && ep != asked)) continue;
        v.mesh.ep = ep;
        TRY(look_at_axes(s, v));
    }
    return STATUS_OK;
}

/* Whether more context ranks may help the best so far: it has few micro-batches for its stages, computes activations again,
 * or nothing fits. */
static bool crowded(const struct search *s, int64_t tokens)
{
    const struct mesh_result *r = s->mesh;
    if (tokens < CONTEXT_TOKENS_MIN) return false;
    if (r->step == 0) return true;
    return r->micros < 4 * r->variant.mesh.pp * (r->variant.mesh.pp > 1) ||
           (r->variant.recompute != RECOMPUTE_NONE && r->variant.micro_batch == 1);
}

static status look_at_mesh(struct search *s, const struct mesh_asked *a)
{
    const int64_t length = s->plan->spec.run.train_sequence_length;
    const int ranks = s->plan->cluster.devices / a->tp / a->pp;
    s->mesh->step = s->start->step = 0;
    for (int cp = a->cp > 0 ? a->cp : 1; ranks % cp == 0; cp *= 2) {
        struct mesh_variant v = {.mesh = {.tp = a->tp, .pp = a->pp, .cp = cp, .dp = ranks / cp}};
        TRY(look_at_experts(s, v, a->ep));
        if (a->cp > 0 || !crowded(s, length / cp / 2)) break;
    }
    return keep_best(s);
}

static status look_at_all(struct search *s)
{
    const struct cluster *c = &s->plan->cluster;
    const int64_t sequences = s->plan->spec.run.train_batch_tokens / s->plan->spec.run.train_sequence_length;
    for (int tp = 1; tp <= c->node; tp++) {
        if (s->plan->cluster.devices % tp != 0) continue;
        for (int pp = 1; pp <= s->plan->cluster.devices / tp && pp <= PIPELINE_RANKS_MAX; pp++)
            if (s->plan->cluster.devices / tp % pp == 0)
                TRY(look_at_mesh(s, &(struct mesh_asked){.tp = tp, .pp = pp}));
    }
    if (s->list->legal > 0) return STATUS_OK;
    if (sequences < s->plan->cluster.devices)
        return FAIL(
            STATUS_CONFIG,
            "a step of %lld sequences (train.batch_tokens %lld) cannot occupy %d devices in any mesh of "
            "this model: raise train.batch_tokens",
            (long long)sequences, (long long)s->plan->spec.run.train_batch_tokens, s->plan->cluster.devices);
    char micro[64] = "", multiple[128] = "";
    if (sequences % c->devices != 0)
        snprintf(multiple, sizeof multiple,
                 "; %d data-parallel ranks need train.batch_tokens of a multiple of %lld", c->devices,
                 (long long)c->devices * (long long)s->plan->spec.run.train_sequence_length);
    if (s->plan->command.micro_batch)
        snprintf(micro, sizeof micro, " in micro-batches of %lld",
                 (long long)s->plan->spec.run.train_micro_batch);
    return FAIL(STATUS_CONFIG,
                "no mesh of %d devices is possible for this model and its %lld sequences per step%s; %s%s%s",
                s->plan->cluster.devices, (long long)sequences, micro,
                s->reason[0] ? "the first refused: " : "no number of data-parallel ranks divides them",
                s->reason, multiple);
}

static status plan_given(struct mesh_plan *p, struct mesh_result *r)
{
    const struct run_spec *run = &p->spec.run;
    struct mesh_variant v = {.recompute = (enum recompute)run->train_recompute,
                             .micro_batch = run->train_micro_batch};
    TRY(mesh_shape(&p->spec, p->cluster.devices, &v.mesh));
    if (v.micro_batch > 0) return mesh_plan_one(p, &v, r);
    const int64_t sequences = run->train_batch_tokens / run->train_sequence_length;
    struct search s = {.plan = p};
    struct mesh_result one;
    bool found = false;
    status st = STATUS_OK;
    for (v.micro_batch = 1; v.micro_batch * v.mesh.dp <= sequences; v.micro_batch++) {
        if (sequences % (v.micro_batch * v.mesh.dp) != 0) continue;
        if (v.micro_batch > 1 && v.micro_batch * run->train_sequence_length > MICRO_TOKENS) break;
        st = mesh_plan_one(p, &v, &one);
        if (st != STATUS_OK) continue;
        if (!found || (one.fits && (!r->fits || cost(&s, &one) < cost(&s, r)))) *r = one;
        found = true;
    }
    if (found) return STATUS_OK;
    return st != STATUS_OK
               ? st
               : FAIL(STATUS_CONFIG,
                      "train.batch_tokens holds %lld sequences: no micro_batch deals them to dp %d",
                      (long long)sequences, v.mesh.dp);
}

status mesh_plan_given(struct mesh_plan *p, struct mesh_result *r)
{
    TRY(plan_given(p, r));
    return mesh_plan_layout(p, r);
}

/* `asked` NULL: all meshes. */
static status search_over(struct mesh_plan *p, const struct mesh_asked *asked, struct mesh_list *list)
{
    *list = (struct mesh_list){0};
    struct search s = {.plan = p,
                       .list = list,
                       .one = malloc(sizeof *s.one),
                       .mesh = malloc(sizeof *s.mesh),
                       .start = malloc(sizeof *s.start)};
    MEMORY_CHECK(s.one && s.mesh && s.start, "no memory to plan with");
    status st = asked ? look_at_mesh(&s, asked) : look_at_all(&s);
    if (st == STATUS_OK && asked && list->legal == 0)
        st = FAIL(STATUS_CONFIG, "%s",
                  s.reason[0] ? s.reason : "no micro-batch divides train.batch_tokens over dp");
    if (st == STATUS_OK && list->legal > 0) st = mesh_plan_layout(p, &list->least);
    if (st == STATUS_OK && list->count > 0) st = mesh_plan_layout(p, &list->best[0]);
    if (st == STATUS_OK && list->start_count > 0) st = mesh_plan_layout(p, &list->starts[0]);
    free(s.one);
    free(s.mesh);
    free(s.start);
    if (st != STATUS_OK) mesh_list_free(list);
    return st;
}

status mesh_plan_search(struct mesh_plan *p, struct mesh_list *list)
{
    return search_over(p, NULL, list);
}

status mesh_plan_search_one(struct mesh_plan *p, const struct mesh_asked *asked, struct mesh_list *list)
{
    return search_over(p, asked, list);
}

void mesh_list_free(struct mesh_list *list)
{
    free(list->best);
    free(list->starts);
    *list = (struct mesh_list){0};
}
