#include "plan/exchange.h"
#include "parallel/context.h"
#include "plan/assume.h"
#include "plan/traffic.h"
#include "spec/layer_traits.h"

#include <math.h>

/* Adds `times` transfers of which each sends `bytes` and takes `seconds`. */
static void add(double *bytes, double *seconds, double times, double sent, double took)
{
    *bytes += times * sent;
    *seconds += times * took;
}

/* Elements per token that a rank passes to others under all_gather, and between rows and heads. */
struct widths {
    double gathered, to_heads, to_rows, backward_to_heads;
};
static struct widths widths_of(const struct model_spec *m, enum mixer mixer)
{
    struct layer_gemm gemms[LAYER_GEMMS_MAX];
    const int n = mixer_traits(mixer)->gemms(m, gemms, 0);
    const struct mixer_flow w = mixer_traits(mixer)->mixer_flow(m);
    if (mixer == MIXER_MLA) return (struct widths){.gathered = (double)(m->mla_kv_rank + m->mla_rope_dim)};
    if (w.linear) {
        const double in = (double)gemms[0].out, out = (double)gemms[n - 1].in;
        return (struct widths){.to_heads = in, .to_rows = out, .backward_to_heads = out};
    }
    const double all = w.query + 2 * w.key;
    return (struct widths){
        .gathered = 2 * w.key, .to_heads = all, .to_rows = w.query, .backward_to_heads = all + 2 * w.query};
}

static void add_rows(const struct exchange_args *a, const struct axis *cp, double width, struct exchange *x)
{
    const double bytes = width * a->tokens * cp->ranks * a->element,
                 sent = traffic_all_gather_bytes(cp, bytes), took = traffic_all_gather_s(cp, bytes);
    add(&x->forward_bytes, &x->forward, 1, sent, took);
    add(&x->backward_bytes, &x->backward, 2, sent, took);
}

static void add_heads(const struct exchange_args *a, const struct axis *cp, const struct widths *w,
                      struct exchange *x)
{
    const double each = a->tokens * a->element;
    const double widths[] = {w->to_heads, w->to_rows, w->backward_to_heads, w->to_heads};
    for (int i = 0; i < 4; i++) {
        const double bytes = widths[i] * each;
        const bool forward = i < 2;
        add(forward ? &x->forward_bytes : &x->backward_bytes, forward ? &x->forward : &x->backward, 1,
            traffic_all_gather_bytes(cp, bytes), traffic_all_to_all_s(a->cluster, cp, bytes, 0));
    }
}

/* The recurrent mixers' convolutions are not kept, and their values go to rows again (nn/gdn.c). */
static void add_values(const struct exchange_args *a, const struct axis *cp, const struct widths *w,
                       struct exchange *x)
{
    const double bytes = w->to_rows * a->tokens * a->element;
    if (a->recompute == RECOMPUTE_SELECTIVE)
        add(&x->backward_bytes, &x->backward, 1, traffic_all_gather_bytes(cp, bytes),
            traffic_all_to_all_s(a->cluster, cp, bytes, 0));
}

static void add_ring(const struct exchange_args *a, const struct axis *cp, int64_t window, double width,
                     struct exchange *x)
{
    const double bytes = width * a->tokens * a->element;
    for (int step = 1; step < cp->ranks; step++) {
        if (!context_step_needed(cp->ranks, step, a->sequence / (2 * cp->ranks), window)) continue;
        const double took = traffic_ring_shift_s(a->cluster, cp, step, bytes);
        add(&x->forward_bytes, &x->forward, 1, bytes, took);
        add(&x->backward_bytes, &x->backward, 2, bytes, took);
    }
}

/* Choices of experts, which auxiliary losses and the capacity count over all ranks of a sequence. */
static void add_choices(const struct exchange_args *a, const struct axis *cp, int64_t layer,
                        struct exchange *x)
{
    const struct model_spec *m = a->model;
    const double bytes = 4 * (double)m->moe_top_k * a->tokens * cp->ranks,
                 sent = traffic_all_gather_bytes(cp, bytes), took = traffic_all_gather_s(cp, bytes);
    if (model_layer(m, layer).ffn != FFN_MOE) return;
    if (m->moe_capacity > 0) add(&x->forward_bytes, &x->forward, 1, sent, took);
    if (m->moe_aux > 0) add(&x->backward_bytes, &x->backward, 1, sent, took);
}

/* An n-gram memory's convolution: rows against channels and back; in backward two and one. */
static void add_memory(const struct exchange_args *a, const struct axis *cp, int64_t layer,
                       struct exchange *x)
{
    const double bytes = (double)a->model->hidden_size * a->tokens * a->element,
                 sent = traffic_all_gather_bytes(cp, bytes),
                 took = traffic_all_to_all_s(a->cluster, cp, bytes, 0);
    if (!model_layer_engram(a->model, layer)) return;
    add(&x->forward_bytes, &x->forward, 2, sent, took);
    add(&x->backward_bytes, &x->backward, 3, sent, took);
}

struct exchange exchange_context(const struct exchange_args *a, int64_t layer)
{
    struct exchange x = {.exposed = 1 - a->cluster->assume->overlap_cp};
    const int ranks = mesh_cp(a->mesh);
    if (ranks == 1) return x;
    const struct model_spec *m = a->model;
    const enum mixer mixer = model_layer(m, layer).mixer;
    const struct axis cp = traffic_axis(a->cluster, ranks, a->mesh->tp);
    const struct widths w = widths_of(m, mixer);
    const enum layer_context how = mixer_traits(mixer)->context;
    const bool recurrent = how == LAYER_CONTEXT_HEADS, choice = how == LAYER_CONTEXT_KIND;
    if (recurrent || (choice && a->mesh->context_kind == CONTEXT_ULYSSES))
        add_heads(a, &cp, &w, &x);
    else if (choice && a->mesh->context_kind == CONTEXT_RING)
        add_ring(a, &cp, model_layer_window(m, layer) ? m->window : 0, w.gathered, &x);
    else
        add_rows(a, &cp, w.gathered, &x);
    if (recurrent) add_values(a, &cp, &w, &x);
    add_choices(a, &cp, layer, &x);
    add_memory(a, &cp, layer, &x);
    if (a->recompute == RECOMPUTE_FULL) add(&x.backward_bytes, &x.backward, 1, x.forward_bytes, x.forward);
    return x;
}

struct exchange exchange_experts(const struct exchange_args *a, int64_t layer)
{
    const struct assume *assume = a->cluster->assume;
    struct exchange x = {.exposed = 1 - assume->overlap_ep};
    const struct model_spec *m = a->model;
    const int ranks = mesh_ep(a->mesh);
    if (ranks == 1 || model_layer(m, layer).ffn != FFN_MOE) return x;
    const struct axis ep = traffic_axis(a->cluster, ranks, a->mesh->tp);
    const double weight = 4, slots = a->tokens * (double)m->moe_top_k * fmax(1, assume->imbalance);
    const double rows = slots * (double)m->hidden_size * a->element, weights = slots * weight,
                 counts = 4 * (double)m->moe_experts * ranks;
    const double crossing = assume->ep_nodes / (double)m->moe_top_k;
    const double rows_sent = traffic_all_gather_bytes(&ep, rows),
                 rows_s = traffic_all_to_all_s(a->cluster, &ep, rows, crossing),
                 weights_s = traffic_all_to_all_s(a->cluster, &ep, weights, crossing);
    add(&x.forward_bytes, &x.forward, 2, rows_sent, rows_s);
    add(&x.backward_bytes, &x.backward, a->recompute == RECOMPUTE_FULL ? 3 : 2, rows_sent, rows_s);
    add(&x.forward_bytes, &x.forward, 1, traffic_all_gather_bytes(&ep, weights), weights_s);
    add(&x.backward_bytes, &x.backward, 1, traffic_all_gather_bytes(&ep, weights), weights_s);
    add(&x.forward_bytes, &x.forward, 1, traffic_all_gather_bytes(&ep, counts),
        traffic_all_gather_s(&ep, counts));
    return x;
}
