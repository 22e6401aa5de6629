#include "plan/layer_time.h"
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

int layer_gemms(const struct model_spec *m, int64_t layer, struct layer_gemm out[LAYER_GEMMS_MAX])
{
    const struct layer_spec l = model_layer(m, layer);
    return ffn_traits(l.ffn)->gemms(m, out, mixer_traits(l.mixer)->gemms(m, out, 0));
}

/* With fewer 128 x 128 tiles than multiprocessors, a GEMM takes as long as with one tile for each. Weight
 * gradients are also split along the tokens. */
static double filled(const struct layer_shape *s, double rows, double columns)
{
    const double tiles = rows * columns / (128.0 * 128.0);
    return s->machine->multiprocessors ? fmin(1, tiles / s->machine->multiprocessors) : 1;
}

static double experts_here(const struct layer_shape *s)
{
    return (double)(s->experts > 0 ? s->experts : s->model->moe_experts);
}

/* Grouped GEMMs reach 0.85 of dense ones of an expert's rows (docs/perf-log), and all wait for the fullest expert. */
static double grouped_rate(const struct layer_shape *s)
{
    return 0.85 / fmax(1, s->imbalance);
}

/* Seconds of a forward GEMM and of its two backward GEMMs. */
struct gemm_s {
    double forward, dgrad, wgrad;
};
static struct gemm_s gemm_s(const struct layer_shape *s, const struct layer_gemm *p)
{
    const double tokens = (double)s->tokens * p->copies, in = (double)p->in, out = (double)p->out;
    const double rows = p->grouped ? tokens / experts_here(s) : tokens;
    const double faster = s->gemms > 0 ? s->gemms : 1,
                 rate = faster * machine_gemm_rate(s->machine, s->precision, fmin(fmin(in, out), rows));
    const double grouped = p->grouped ? grouped_rate(s) : 1;
    const double t = 2 * tokens * in * out / (rate * grouped);
    return (struct gemm_s){t / filled(s, tokens, out), t / filled(s, tokens, in), t};
}

/* The same GEMMs of a linear that reads codes. cuBLASLt keeps fast sums in forward alone. */
static struct gemm_s fp8_gemm_s(const struct layer_shape *s, const struct layer_linear *l, double bf16_wgrad)
{
    const bool experts = l->copies > 0;
    const double tokens = (double)s->tokens * (experts ? l->copies : 1), in = (double)l->in,
                 out = (double)l->out, rows = experts ? tokens / experts_here(s) : tokens,
                 width = fmin(fmin(in, out), rows), rate = experts ? grouped_rate(s) : 1,
                 flops = 2 * tokens * in * out / rate;
    const double fast = flops / machine_fp8_rate(s->machine, width, true),
                 full = flops / machine_fp8_rate(s->machine, width, false);
    return (struct gemm_s){fast / filled(s, tokens, out), full / filled(s, tokens, in),
                           s->fp8.wgrad ? full : bf16_wgrad};
}

static double element_bytes(const struct layer_shape *s)
{
    return (double)dtype_bytes(precision_of(s->precision).act);
}

/* What remains of the time of elementwise passes that become epilogues (ops.h: struct epilogue), if the op
 * set fuses them and nothing is in between. FUSED: measured 0.6 to 0.9 of SwiGLU's pass and 0.6 to 0.8 of
 * RoPE's; FUSED_CODES: of SwiGLU's behind a GEMM of codes (docs/perf-log). */
struct fused {
    double act_forward, act_backward, rope_forward, rope_backward; /* fractions */
    double stream; /* elements of the residual stream that forward need not move, per token */
};

static struct fused fused_of(const struct layer_shape *s, const struct mixer_flow *w,
                             const struct ffn_flow *f)
{
    static const double FUSED = 0.7, FUSED_CODES = 0.4;
    const struct model_spec *m = s->model;
    const int64_t d = m->hidden_size;
    struct fused j = {1, 1, 1, 1, 0};
    if (s->machine->kind != DEV_CUDA || s->stream != s->tokens) return j; /* communication is in between */
    if (!m->out_bias) j.stream += (double)d;
    if (f->adds) j.stream += (double)d;
    if (s->machine->sm != 90 || precision_of(s->precision).act != DTYPE_BF16 || s->tokens < FUSION_ROWS_MIN)
        return j;
    if (m->activation == ACT_SWIGLU && !m->mlp_bias) {
        if (fusion_swiglu_fwd(s->tokens, d)) j.act_forward = FUSED;
        if (fusion_swiglu_bwd(s->tokens, d)) j.act_backward = FUSED;
    }
    if (w->rope_fused && fusion_rope_fwd(s->tokens, d)) j.rope_forward = FUSED;
    if (w->rope_fused && fusion_rope_bwd(w->head_dim, s->sequence)) j.rope_backward = FUSED;
    if (s->fp8.current && s->fp8.count > 0) {
        if (s->fp8.up) j.act_forward = 1;
        if (s->fp8.down) j.act_backward = 1;
        if (s->fp8.qkv) j.rope_forward = 1;
        return j;
    }
    if (s->fp8.count >
        0) { /* less is read beside codes, so that half of the residual's read hides behind the GEMM */
        j.stream *= 1.5;
        if (j.act_forward < 1) j.act_forward = FUSED_CODES;
    }
    for (int i = 0; i < s->fp8.count; i++) { /* of GEMMs of codes, up alone has such an epilogue */
        const struct layer_linear *l = &s->fp8.linears[i];
        if (l->dy == CODES_BY_SWIGLU && l->x != CODES_BY_NORM) j.act_forward = 1;
        if (l->x == CODES_BY_SWIGLU) j.act_backward = 1;
        if (l->x == CODES_BY_NORM && l->dy == CODES_BY_PASS) j.rope_forward = 1;
    }
    return j;
}

/* Memory traffic. Each norm reads two tensors of residual width and writes two, in both directions. Backward
 * recomputes activation inputs. Around the mixer's core, rotations or convolutions read and write queries and
 * keys; backward reads gradient and output once more for its GEMMs. */
static void memory_s(const struct layer_shape *s, const struct layer_spec *l, const struct mixer_flow *w,
                     struct layer_times *t)
{
    const double bytes = element_bytes(s) / s->machine->stream_rate, n = (double)s->tokens;
    const double stream = 8 * (double)s->model->hidden_size * (double)s->stream;
    const double ends = 2 * (w->query + w->key), scores = w->linear ? 0 : 2 * w->query;
    const struct ffn_flow f = ffn_traits(l->ffn)->ffn_flow(s->model);
    const struct fused j = fused_of(s, w, &f);
    t->forward.memory = bytes * (stream + n * (j.rope_forward * ends + j.act_forward * f.forward - j.stream));
    t->backward.memory =
        bytes * (stream + n * (j.rope_backward * ends + scores + j.act_backward * f.backward));
    if (s->recompute == RECOMPUTE_SELECTIVE) t->recompute.memory = bytes * (stream / 2 + n * f.recompute);
}

/* Fixed cost of a micro-batch: weight gradients are read in order to accumulate, and each kernel launch
 * leaves a gap. */
static void add_fixed(const struct layer_shape *s, double weights, struct layer_times *t)
{
    enum { FORWARD_KERNELS = 10, BACKWARD_KERNELS = 22 };
    t->forward.memory += FORWARD_KERNELS * s->machine->gap;
    t->backward.memory += BACKWARD_KERNELS * s->machine->gap + weights * 4 / s->machine->stream_rate;
    if (s->recompute == RECOMPUTE_FULL) t->recompute.memory += FORWARD_KERNELS * s->machine->gap;
}

static void add_edge(struct layer_edge *e, const struct gemm_s *p)
{
    enum { BRANCHES = 2 };
    e->forward += p->forward / BRANCHES, e->dgrad += p->dgrad / BRANCHES, e->wgrad += p->wgrad / BRANCHES;
}

/* Bytes per element that codes add to what bf16 moves (tensor/quantized.h). Codes are one byte, transposed codes, which
 * wgrad reads, one more; values that nothing reads any more are not written. */
struct codes_bytes {
    double x_forward, x_backward, dy;
};
static struct codes_bytes codes_bytes(const struct layer_linear *l, bool wgrad)
{
    const double value = 2, code = 1, transposed = 1, unread = wgrad ? value : 0;
    struct codes_bytes b = {0};
    switch (l->x) {
    case CODES_BY_PASS: /* backward makes the transposed codes, from values that it has kept */
        b.x_forward = value + code;
        b.x_backward = wgrad ? value + transposed : 0;
        break;
    case CODES_BY_NORM: /* values that wgrad reads are not kept: the norm computes all again */
        b.x_forward = code + transposed - unread;
        b.x_backward = wgrad ? 0 : value + value + code + transposed;
        break;
    case CODES_BY_SWIGLU: /* backward computes them again in any case */
        b.x_forward = code - value;
        b.x_backward = transposed - unread;
        break;
    }
    switch (l->dy) {
    case CODES_BY_PASS: b.dy = value + code + (wgrad ? transposed : 0); break;
    case CODES_BY_NORM: b.dy = code + transposed; break; /* the values are the stream's gradient */
    case CODES_BY_SWIGLU: b.dy = code + transposed - unread; break;
    }
    return b;
}

/* Seconds of making codes for experts (nn/moe_fp8.h), in forward and backward: passes over y and dout, by token. The
 * activation writes codes, and transposed ones, in place of the values that it and its readers would move. */
static void add_expert_passes(const struct layer_shape *s, const struct layer_linear *l,
                              struct layer_times *t)
{
    const double value = 2, code = 1, wgrad = s->fp8.wgrad, rate = s->machine->stream_rate,
                 in = (double)s->tokens * (double)l->in / rate,
                 out = (double)s->tokens * (double)l->out / rate, made = value + code,
                 unread = wgrad > 0 ? value : 0;
    if (l->by_token) { /* up: y by token, again in backward; dup */
        t->forward.memory += made * in + s->machine->gap;
        t->backward.memory += wgrad * made * in + l->copies * (code + wgrad * code - unread) * out;
        t->backward.memory += wgrad * s->machine->gap;
    } else { /* down: m, in backward transposed alone; dout by token */
        t->forward.memory += l->copies * (code - value) * in;
        t->backward.memory += l->copies * (wgrad * code - unread) * in + made * out;
        t->backward.memory += s->machine->gap;
    }
}

/* What a linear that reads codes takes instead of `plain`. */
static void add_codes(const struct layer_shape *s, const struct layer_linear *l, struct layer_times *t)
{
    const struct layer_gemm p = {
        .in = l->in, .out = l->out, .copies = l->copies > 0 ? l->copies : 1, .grouped = l->copies > 0};
    const struct gemm_s plain = gemm_s(s, &p), with = fp8_gemm_s(s, l, plain.wgrad);
    const struct gemm_s more = {with.forward - plain.forward, with.dgrad - plain.dgrad,
                                with.wgrad - plain.wgrad};
    const struct codes_bytes b = codes_bytes(l, s->fp8.wgrad);
    const double in = (double)s->tokens * (double)l->in / s->machine->stream_rate,
                 out = (double)s->tokens * (double)l->out / s->machine->stream_rate;
    if (l->in == s->model->hidden_size) add_edge(&t->enter, &more);
    if (l->out == s->model->hidden_size) add_edge(&t->leave, &more);
    t->forward.gemms += more.forward;
    t->backward.gemms += more.dgrad + more.wgrad;
    t->wgrad += more.wgrad;
    if (l->copies > 0) {
        add_expert_passes(s, l, t);
        return;
    }
    t->forward.memory += b.x_forward * in;
    t->backward.memory += b.x_backward * in + b.dy * out;
    if (l->x == CODES_BY_PASS) t->forward.memory += s->machine->gap;
    if (l->x == CODES_BY_PASS && s->fp8.wgrad) t->backward.memory += s->machine->gap;
    if (l->dy == CODES_BY_PASS) t->backward.memory += s->machine->gap;
}

/* Whether a GEMM reads codes of its operands' formats, which mix only where a tensor is one block. */
static bool reads_codes(const struct layer_shape *s, double m, double n, double k)
{
    const double side = block_length(s->fp8.x) > 0 ? 128 : 16;
    return machine_has_blocks(s->machine, s->fp8.x) && fmod(m, side) == 0 && fmod(n, side) == 0 &&
           fmod(k, side) == 0;
}

/* A GEMM of operands that are rounded for it, instead of `plain` seconds; `a`, `b`: their elements. */
struct rounded {
    double m, n, k, plain, filled, a, b;
    enum block_format formats[2];
    bool fast;
};
struct rounded_s {
    double gemm, passes; /* seconds more */
};

/* Seconds to round `count` elements: the largest magnitude of the tensor first where its scale needs it; then codes and
 * their scales, or decoded values. */
static double rounding_s(const struct layer_shape *s, double count, enum block_format f, bool codes)
{
    const bool first = block_tensor_scale(f);
    const double value = 2, code = f == BLOCKS_NV ? 0.5 : 1,
                 scale = f == BLOCKS_NV     ? 1.0 / 16
                         : f == BLOCKS_MX   ? 1.0 / 32
                         : f == BLOCKS_B128 ? 4.0 / 128
                                            : 0;
    const double bytes = (first ? 2 : 1) * value + (codes ? code + scale : value);
    if (s->machine->round_rate > 0) return count / s->machine->round_rate;
    return count * bytes / s->machine->stream_rate + (first ? 2 : 1) * s->machine->gap;
}

static struct rounded_s rounded_s(const struct layer_shape *s, const struct rounded *r)
{
    const bool codes = reads_codes(s, r->m, r->n, r->k);
    const double width = fmin(fmin(r->m, r->n), r->k), flops = 2 * r->m * r->n * r->k;
    struct rounded_s t = {0, rounding_s(s, r->a, r->formats[0], codes) +
                                 rounding_s(s, r->b, r->formats[1], codes)};
    if (codes)
        t.gemm = flops / (machine_blocks_rate(s->machine, s->fp8.x, width, r->fast) * r->filled) - r->plain;
    return t;
}

/* RECIPE_CURRENT: a linear's GEMMs, and the passes in front of each. */
static void add_rounded(const struct layer_shape *s, const struct layer_linear *l, struct layer_times *t)
{
    const struct layer_gemm p = {.in = l->in, .out = l->out, .copies = 1};
    const struct gemm_s plain = gemm_s(s, &p);
    const double rows = (double)s->tokens, in = (double)l->in, out = (double)l->out, w = in * out;
    const enum block_format x = s->fp8.x, dy = s->fp8.dy;
    const struct rounded_s forward = rounded_s(s, &(struct rounded){.m = rows,
                                                                    .n = out,
                                                                    .k = in,
                                                                    .plain = plain.forward,
                                                                    .filled = filled(s, rows, out),
                                                                    .a = rows * in,
                                                                    .b = w,
                                                                    .formats = {x, s->fp8.w},
                                                                    .fast = true}),
                           dgrad = rounded_s(s, &(struct rounded){.m = rows,
                                                                  .n = in,
                                                                  .k = out,
                                                                  .plain = plain.dgrad,
                                                                  .filled = filled(s, rows, in),
                                                                  .a = rows * out,
                                                                  .b = w,
                                                                  .formats = {dy, s->fp8.w}}),
                           wgrad = s->fp8.wgrad ? rounded_s(s, &(struct rounded){.m = out,
                                                                                 .n = in,
                                                                                 .k = rows,
                                                                                 .plain = plain.wgrad,
                                                                                 .filled = 1,
                                                                                 .a = rows * out,
                                                                                 .b = rows * in,
                                                                                 .formats = {dy, x}})
                                                : (struct rounded_s){0};
    t->forward.gemms += forward.gemm;
    t->backward.gemms += dgrad.gemm + wgrad.gemm;
    t->wgrad += wgrad.gemm;
    t->forward.memory += forward.passes;
    t->backward.memory += dgrad.passes + wgrad.passes;
}

double layer_times_codes(const struct machine *m, double count)
{
    const double amax = 2, codes = 2 + 1 + 1; /* bytes read and written per element */
    const double kernels = 3;                 /* the third: the scale of the linear's input */
    return count * (amax + codes) / m->stream_rate + kernels * m->gap;
}

/* Forward parts that backward repeats (struct layer_extra_recompute). `first`: of the feed-forward part's GEMMs. */
struct repeated {
    const struct layer_gemm *gemms;
    int first, count;
    double act; /* elements of the feed-forward part's own ops, per token */
};
static struct layer_time repeated(const struct layer_shape *s, const struct layer_spec *l,
                                  const struct repeated *r, const struct layer_time *forward)
{
    const struct layer_extra_recompute *a = &s->extra_recompute;
    const double bytes = element_bytes(s) / s->machine->stream_rate, d = (double)s->model->hidden_size;
    const bool moe = l->ffn == FFN_MOE, whole = moe ? a->moe : a->mlp;
    struct layer_time t = {0};
    if (s->recompute == RECOMPUTE_FULL) return t;
    if (a->core_attn) t.mixing += forward->mixing;
    if (a->layernorm && s->recompute == RECOMPUTE_NONE) t.memory += bytes * 4 * d * (double)s->stream;
    if (whole) t.memory += bytes * (double)s->tokens * r->act;
    for (int i = 0; i < r->count; i++) {
        const struct layer_gemm *g = &r->gemms[i];
        const bool ffn = i >= r->first, router = moe && g->out == s->model->moe_experts,
                   shared = ffn && moe && !g->grouped && !router,
                   latent = !ffn && l->mixer == MIXER_MLA && g->in != s->model->hidden_size &&
                            g->out != s->model->hidden_size;
        if ((ffn && whole) || (shared && a->shared_experts) ||
            (latent && a->mla_up_proj && s->recompute == RECOMPUTE_NONE))
            t.gemms += gemm_s(s, g).forward;
    }
    return t;
}

/* Of latent attention's GEMMs, without a latent of queries: the one that forms keys and values (nn/mla.c). */
enum { MLA_KEYS = 2 };

struct layer_times layer_times_of(const struct layer_shape *s, int64_t layer)
{
    const struct model_spec *m = s->model;
    const struct layer_spec l = model_layer(m, layer);
    struct layer_gemm gemms[LAYER_GEMMS_MAX];
    const struct mixer_flow w = mixer_traits(l.mixer)->mixer_flow(m);
    struct layer_times t = {0};
    double weights = 0;
    const int n = layer_gemms(m, layer, gemms);
    for (int i = 0; i < n; i++) {
        const bool keys = l.mixer == MIXER_MLA && i == MLA_KEYS + (m->mla_q_rank > 0);
        if (keys && s->context > 1) gemms[i].copies *= s->context;
        const struct gemm_s p = gemm_s(s, &gemms[i]);
        if (gemms[i].in == m->hidden_size) add_edge(&t.enter, &p);
        if (gemms[i].out == m->hidden_size) add_edge(&t.leave, &p);
        t.forward.gemms += p.forward;
        t.backward.gemms += p.dgrad + p.wgrad;
        t.wgrad += p.wgrad;
        weights += (double)gemms[i].in * (double)gemms[i].out * (gemms[i].grouped ? experts_here(s) : 1);
    }
    const double flops = plan_layer_flops(m, layer, s->sequence).scores * (double)s->tokens;
    const struct machine *machine = s->machine;
    if (w.linear) {
        t.forward.mixing = flops / machine_linear_rate(machine, s->precision, false);
        t.backward.mixing = 2.7 * flops / machine_linear_rate(machine, s->precision, true);
    } else { /* backward recomputes the scores */
        const int64_t seen =
            model_layer_window(m, layer) && m->window < s->sequence ? m->window : s->sequence;
        t.forward.mixing = flops / machine_attention_rate(machine, s->precision, w.head_dim, seen, false);
        t.backward.mixing =
            2.5 * flops / machine_attention_rate(machine, s->precision, w.head_dim, seen, true);
    }
    memory_s(s, &l, &w, &t);
    for (int i = 0; i < s->fp8.count; i++)
        (s->fp8.current ? add_rounded : add_codes)(s, &s->fp8.linears[i], &t);
    if (s->recompute == RECOMPUTE_FULL) t.recompute = t.forward;
    struct layer_gemm mixer[LAYER_GEMMS_MAX];
    const struct repeated parts = {.gemms = gemms,
                                   .first = mixer_traits(l.mixer)->gemms(m, mixer, 0),
                                   .count = n,
                                   .act = ffn_traits(l.ffn)->ffn_flow(m).forward};
    const struct layer_time again = repeated(s, &l, &parts, &t.forward);
    layer_time_add(&t.recompute, &again, 1);
    add_fixed(s, weights, &t);
    return t;
}

double layer_times_muon(const struct layer_shape *s, int64_t layer)
{
    struct layer_gemm gemms[LAYER_GEMMS_MAX];
    const int count = layer_gemms(s->model, layer, gemms);
    double sum = 0;
    for (int i = 0; i < count; i++) { /* stacked matrices count as one: a few percent less than separate */
        const double in = (double)gemms[i].in, out = (double)gemms[i].out, n = fmin(in, out);
        const double matrices = gemms[i].grouped ? (double)s->model->moe_experts : 1;
        sum += matrices * 5 * (4 * n * in * out + 2 * n * n * n) /
               machine_gemm_rate(s->machine, s->precision, n);
    }
    return sum;
}

/* The head computes loss and gradients in one pass: three GEMMs, and between them logits that are read and written once: 2.2
 * passes of a copy, measured (docs/perf-log). What the GEMMs write and read of them is in their rates. */
struct layer_times layer_times_head(const struct layer_shape *s, int heads)
{
    const struct layer_gemm p = {.in = s->model->hidden_size, .out = s->model->vocab_size, .copies = heads};
    struct layer_times t = {0};
    struct layer_shape own = *s;
    own.gemms = 1;
    const struct gemm_s gemm = gemm_s(&own, &p);
    t.wgrad = gemm.wgrad;
    t.backward.gemms = gemm.forward + gemm.dgrad + gemm.wgrad;
    const double passes = s->model->logit_softcap > 0 ? 2.2 + 2 : 2.2; /* softcap: once more in place */
    t.backward.memory = heads * passes * element_bytes(s) * (double)s->model->vocab_size * (double)s->tokens /
                        s->machine->stream_rate;
    add_fixed(s, (double)p.in * (double)p.out, &t);
    return t;
}

/* Forward reads and writes rows; backward sorts, reads and writes gradients. */
struct layer_times layer_times_embed(const struct layer_shape *s)
{
    struct layer_times t = {0};
    const double row =
        element_bytes(s) * (double)s->model->hidden_size * (double)s->stream / s->machine->stream_rate;
    t.forward.memory = 2 * row;
    t.backward.memory = 5 * row;
    return t;
}
