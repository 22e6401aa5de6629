#include "plan/layer_time.h"
#include "nn/attn.h"
#include "ops/fusion.h"
#include "ops/precision.h"
#include "plan/plan.h"

#include <math.h>

double layer_time_sum(const struct layer_time *t)
{
    double sum = 0;
#define X(name, text) sum += t->name;
    LAYER_PARTS(X)
#undef X
    return sum;
}

void layer_time_add(struct layer_time *t, const struct layer_time *more, double times)
{
#define X(name, text) t->name += times * more->name;
    LAYER_PARTS(X)
#undef X
}

/* What passes between the GEMMs of a mixer, in elements per token. */
struct widths {
    double query, key; /* rotated, kept; of a delta rule: values, and queries with keys */
    bool linear;       /* no softmax: a state */
    int64_t head_dim;
};

static int64_t head_dim(const struct model_spec *m)
{
    return m->head_dim ? m->head_dim : m->hidden_size / m->head_count;
}

static int add(struct layer_gemm *out, int n, int64_t in, int64_t to)
{
    CHECK(n < LAYER_PRODUCTS_MAX, "a layer of more than %d products", LAYER_PRODUCTS_MAX);
    out[n] = (struct layer_gemm){.in = in, .out = to, .copies = 1};
    return n + 1;
}

static int mixer_gemms(const struct model_spec *m, enum mixer mixer, struct layer_gemm *out, struct widths *w)
{
    const int64_t d = m->hidden_size;
    int n = 0;
    switch (mixer) {
    case MIXER_GQA:
    case MIXER_SWA: {
        const int64_t q = m->head_count * head_dim(m),
                      kv = (m->head_count_kv ? m->head_count_kv : m->head_count) * head_dim(m);
        *w = (struct widths){.query = (double)q, .key = (double)kv, .head_dim = head_dim(m)};
        n = add(out, n, d, q + 2 * kv + (m->attention_gate ? q : 0));
        return add(out, n, q, d);
    }
    case MIXER_GDN: {
        const int64_t keys = m->gdn_key_heads * m->gdn_key_dim,
                      values = m->gdn_value_heads * m->gdn_value_dim;
        *w = (struct widths){.query = 3 * (double)values, .key = 4 * (double)keys, .linear = true};
        n = add(out, n, d, 2 * keys + 2 * values + 2 * m->gdn_value_heads);
        return add(out, n, values, d);
    }
    case MIXER_MLA: {
        const int64_t heads = m->mla_heads ? m->mla_heads : m->head_count,
                      q = heads * (m->mla_nope_dim + m->mla_rope_dim);
        *w = (struct widths){.query = (double)q,
                             .key = (double)(q + heads * m->mla_value_dim),
                             .head_dim = m->mla_nope_dim + m->mla_rope_dim};
        if (m->mla_q_rank > 0) n = add(out, n, d, m->mla_q_rank);
        n = add(out, n, m->mla_q_rank > 0 ? m->mla_q_rank : d, q);
        n = add(out, n, d, m->mla_kv_rank + m->mla_rope_dim);
        n = add(out, n, m->mla_kv_rank, heads * (m->mla_nope_dim + m->mla_value_dim));
        return add(out, n, heads * m->mla_value_dim, d);
    }
    case MIXER_MAMBA2: {
        const int64_t wide = m->mamba_heads * m->mamba_head_dim, states = m->mamba_groups * m->mamba_state;
        *w = (struct widths){.query = 3 * (double)wide, .key = 4 * (double)states, .linear = true};
        n = add(out, n, d, 2 * wide + 2 * states + m->mamba_heads);
        return add(out, n, wide, d);
    }
    }
    return 0;
}

static int ffn_gemms(const struct model_spec *m, enum ffn ffn, struct layer_gemm *out, int n)
{
    const int64_t d = m->hidden_size;
    if (ffn == FFN_MLP) {
        n = add(out, n, d, (m->activation == ACT_SWIGLU ? 2 : 1) * m->ffn_size);
        return add(out, n, m->ffn_size, d);
    }
    n = add(out, n, d, m->moe_experts);
    const int routed = n;
    n = add(out, n, d, 2 * m->moe_size);
    n = add(out, n, m->moe_size, d);
    for (int i = routed; i < n; i++) out[i].copies = (double)m->moe_top_k, out[i].grouped = true;
    if (m->moe_shared_size == 0) return n;
    if (m->moe_shared_gate) n = add(out, n, d, 1);
    n = add(out, n, d, 2 * m->moe_shared_size);
    return add(out, n, m->moe_shared_size, d);
}

int layer_gemms(const struct model_spec *m, int64_t layer, struct layer_gemm out[LAYER_PRODUCTS_MAX])
{
    const struct layer_spec l = model_layer(m, layer);
    struct widths w = {0};
    return ffn_gemms(m, l.ffn, out, mixer_gemms(m, l.mixer, out, &w));
}

/* A GPU whose multiprocessors do not all get a tile of 128 x 128 is as slow as if they had; weight gradients are cut along the tokens. */
static double filled(const struct layer_shape *s, double rows, double columns)
{
    const double tiles = rows * columns / (128.0 * 128.0);
    return s->machine->multiprocessors ? fmin(1, tiles / s->machine->multiprocessors) : 1;
}

/* Seconds of a GEMM and of backward's two. Grouped GEMMs reach 0.85 of dense ones (docs/PERF.md). */
struct product_s {
    double forward, dgrad, wgrad;
};
static struct product_s product_s(const struct layer_shape *s, const struct layer_gemm *p)
{
    const double tokens = (double)s->tokens * p->copies, in = (double)p->in, out = (double)p->out;
    const double rate = machine_gemm_rate(s->machine, s->precision, fmin(fmin(in, out), tokens));
    const double t = 2 * tokens * in * out / (rate * (p->grouped ? 0.85 : 1));
    return (struct product_s){t / filled(s, tokens, out), t / filled(s, tokens, in), t};
}

static double element_bytes(const struct layer_shape *s)
{
    return (double)dtype_bytes(precision_of(s->precision).act);
}

/* Elements that the feed-forward part's own ops move per token: forward, backward; and what selective recompute repeats. */
struct moved {
    double forward, backward, again;
};

static struct moved ffn_moved(const struct model_spec *m, enum ffn ffn)
{
    const double d = (double)m->hidden_size;
    if (ffn == FFN_MLP) {
        const double f = (double)m->ffn_size;
        return m->activation == ACT_SWIGLU ? (struct moved){3 * f, 6 * f, 3 * f}
                                           : (struct moved){2 * f, 3 * f, 2 * f};
    }
    const double k = (double)m->moe_top_k, f = k * (double)m->moe_size + (double)m->moe_shared_size;
    return (struct moved){3 * f + (k + 1) * d + 2 * (double)m->moe_experts,
                          5 * f + 2 * (k + 1) * d + 2 * (double)m->moe_experts, 3 * f};
}

/* What is left of the time of passes that an epilogue does (ops.h: struct epilogue), where the set fuses it and nothing is between.
 * FUSED: measured 0.6 to 0.9 of SwiGLU's pass and 0.6 to 0.8 of RoPE's (docs/PERF.md). */
struct fused {
    double act_forward, act_backward, rope_forward, rope_backward; /* shares */
    double stream; /* elements of the residual stream that forward does not move, per token */
};

static struct fused fused_of(const struct layer_shape *s, const struct layer_spec *l)
{
    static const double FUSED = 0.7;
    const struct model_spec *m = s->model;
    const int64_t d = m->hidden_size;
    struct fused j = {1, 1, 1, 1, 0};
    if (s->machine->kind != DEV_CUDA || s->stream != s->tokens) return j; /* slices stand between */
    if (!m->out_bias) j.stream += (double)d;
    if (l->ffn == FFN_MLP && !m->mlp_bias) j.stream += (double)d;
    if (s->machine->sm != 90 || precision_of(s->precision).act != DTYPE_BF16 || s->tokens < FUSION_ROWS_MIN)
        return j;
    if (m->activation == ACT_SWIGLU && !m->mlp_bias) {
        if (fusion_swiglu_fwd(s->tokens, d)) j.act_forward = FUSED;
        if (fusion_swiglu_bwd(s->tokens, d)) j.act_backward = FUSED;
    }
    const bool rope = (l->mixer == MIXER_GQA || l->mixer == MIXER_SWA) && attn_rope_alone(m) &&
                      !m->qkv_bias && !m->attention_gate;
    if (rope && fusion_rope_fwd(s->tokens, d)) j.rope_forward = FUSED;
    if (rope && fusion_rope_bwd(head_dim(m), s->sequence)) j.rope_backward = FUSED;
    return j;
}

/* Norms each read two tensors of the stream's width and write two, both ways; activations form their GEMM again in backward; around the
 * mixing core rotations or convolutions read and write queries and keys, and backward reads gradient and output for their GEMMs. */
static void memory_s(const struct layer_shape *s, const struct layer_spec *l, const struct widths *w,
                     struct layer_times *t)
{
    const double bytes = element_bytes(s) / s->machine->stream_rate, n = (double)s->tokens;
    const struct fused j = fused_of(s, l);
    const double stream = 8 * (double)s->model->hidden_size * (double)s->stream;
    const double ends = 2 * (w->query + w->key), scores = w->linear ? 0 : 2 * w->query;
    const struct moved f = ffn_moved(s->model, l->ffn);
    t->forward.memory = bytes * (stream + n * (j.rope_forward * ends + j.act_forward * f.forward - j.stream));
    t->backward.memory =
        bytes * (stream + n * (j.rope_backward * ends + scores + j.act_backward * f.backward));
    if (s->recompute == RECOMPUTE_SELECTIVE) t->again.memory = bytes * (stream / 2 + n * f.again);
    if (s->recompute == RECOMPUTE_FULL) t->again = t->forward;
}

/* What each micro-batch costs however small it is: gradients of weights are read, to be added to, and kernels follow each other. */
static void add_fixed(const struct layer_shape *s, double weights, struct layer_times *t)
{
    enum { FORWARD_KERNELS = 10, BACKWARD_KERNELS = 22 };
    t->forward.memory += FORWARD_KERNELS * s->machine->gap;
    t->backward.memory += BACKWARD_KERNELS * s->machine->gap + weights * 4 / s->machine->stream_rate;
    if (s->recompute == RECOMPUTE_FULL) t->again.memory += FORWARD_KERNELS * s->machine->gap;
}

static void add_edge(struct layer_edge *e, const struct product_s *p)
{
    enum { BRANCHES = 2 };
    e->forward += p->forward / BRANCHES, e->dgrad += p->dgrad / BRANCHES, e->wgrad += p->wgrad / BRANCHES;
}

struct layer_times layer_times_of(const struct layer_shape *s, int64_t layer)
{
    const struct model_spec *m = s->model;
    const struct layer_spec l = model_layer(m, layer);
    struct layer_gemm products[LAYER_PRODUCTS_MAX];
    struct widths w = {0};
    struct layer_times t = {0};
    double weights = 0;
    const int n = ffn_gemms(m, l.ffn, products, mixer_gemms(m, l.mixer, products, &w));
    for (int i = 0; i < n; i++) {
        const struct product_s p = product_s(s, &products[i]);
        if (products[i].in == m->hidden_size) add_edge(&t.enter, &p);
        if (products[i].out == m->hidden_size) add_edge(&t.leave, &p);
        t.forward.products += p.forward;
        t.backward.products += p.dgrad + p.wgrad;
        t.wgrad += p.wgrad;
        weights += (double)products[i].in * (double)products[i].out *
                   (products[i].grouped ? (double)m->moe_experts : 1);
    }
    const double flops = plan_layer_flops(m, layer, s->sequence).scores * (double)s->tokens;
    const struct machine *machine = s->machine;
    if (w.linear) {
        t.forward.mixing = flops / machine_linear_rate(machine, s->precision, false);
        t.backward.mixing = 2.7 * flops / machine_linear_rate(machine, s->precision, true);
    } else { /* backward forms the scores again */
        const int64_t seen =
            model_layer_window(m, layer) && m->window < s->sequence ? m->window : s->sequence;
        t.forward.mixing = flops / machine_attention_rate(machine, s->precision, w.head_dim, seen, false);
        t.backward.mixing =
            2.5 * flops / machine_attention_rate(machine, s->precision, w.head_dim, seen, true);
    }
    memory_s(s, &l, &w, &t);
    add_fixed(s, weights, &t);
    return t;
}

double layer_times_ortho(const struct layer_shape *s, int64_t layer)
{
    struct layer_gemm products[LAYER_PRODUCTS_MAX];
    const int count = layer_gemms(s->model, layer, products);
    double sum = 0;
    for (int i = 0; i < count; i++) { /* stacked matrices count as one: a few percent less than apart */
        const double in = (double)products[i].in, out = (double)products[i].out, n = fmin(in, out);
        const double matrices = products[i].grouped ? (double)s->model->moe_experts : 1;
        sum += matrices * 5 * (4 * n * in * out + 2 * n * n * n) /
               machine_gemm_rate(s->machine, s->precision, n);
    }
    return sum;
}

/* The head forms loss and gradients in one pass: three GEMMs, and logits that are written, read twice and written again. */
struct layer_times layer_times_head(const struct layer_shape *s, int heads)
{
    const struct layer_gemm p = {.in = s->model->hidden_size, .out = s->model->vocab_size, .copies = heads};
    struct layer_times t = {0};
    const struct product_s product = product_s(s, &p);
    t.wgrad = product.wgrad;
    t.backward.products = product.forward + product.dgrad + product.wgrad;
    t.backward.memory = heads * 4.5 * element_bytes(s) * (double)s->model->vocab_size * (double)s->tokens /
                        s->machine->stream_rate;
    add_fixed(s, (double)p.in * (double)p.out, &t);
    return t;
}

/* Rows are read and written, and the gradient's are sorted, read and written. */
struct layer_times layer_times_embed(const struct layer_shape *s)
{
    struct layer_times t = {0};
    const double row =
        element_bytes(s) * (double)s->model->hidden_size * (double)s->stream / s->machine->stream_rate;
    t.forward.memory = 2 * row;
    t.backward.memory = 5 * row;
    return t;
}
