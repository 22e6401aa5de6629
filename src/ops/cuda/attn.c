/* Attention's slots: choice of the backend for a shape. Both passes of a shape must use the same backend, because
 * each backend has its own order of lse. The choice is made at the first call and kept. It depends on the shape, and
 * on the alignment and strides of q, k, v and o, which both passes have.
 *
 *   auto   own on Hopper; else cuDNN if it supports the shape; else own; else reference (see own_is_faster)
 *   else   the requested backend, or STATUS_CONFIG with the reason */
#include "ops/cuda/attn_backends.h"
#include "ops/cuda/set.h"
#include "ops/fusion.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHY_SIZE = 640 };

struct choice {
    int64_t rows, docs, len_max, heads, heads_kv, head_dim, head_dim_v, window, dt, keys, aligned,
        contiguous;  /* 8-byte fields: compared with memcmp; keys: with split, else 0 */
    int64_t backend; /* enum cuda_attention, never AUTO */
};

struct attn_choices {
    int count, room;
    struct choice *at;
};

void cuda_attn_close(struct cuda_set *set)
{
    if (set->attn) free(set->attn->at);
    free(set->attn);
    set->attn = NULL;
}

static const char *backend_name(int64_t backend)
{
    return backend == CUDA_ATTENTION_CUDNN ? "cudnn" : backend == CUDA_ATTENTION_OWN ? "own" : "reference";
}

/* ---- alignment that cuDNN's tensors declare */

static bool aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

static bool aligned_rows(const void *p, int64_t stride, dtype dt)
{
    return aligned(p) && (size_t)stride * dtype_bytes(dt) % 16 == 0;
}

static bool aligned_inputs(const struct attn_fwd_args *a)
{
    return aligned_rows(a->q, a->q_stride, a->dt) && aligned_rows(a->k, a->k_stride, a->dt) &&
           aligned_rows(a->v, a->v_stride, a->dt) && aligned_rows(a->o, a->heads * a->head_dim_v, a->dt) &&
           aligned(a->lse);
}

/* True: rows of q, k and v hold nothing else. */
static bool contiguous(const struct attn_fwd_args *a)
{
    return a->q_stride == a->heads * a->head_dim && a->k_stride == a->heads_kv * a->head_dim &&
           a->v_stride == a->heads_kv * a->head_dim_v;
}

static bool aligned_grads(const struct attn_bwd_args *a)
{
    return aligned(a->do_) && aligned_rows(a->dq, a->dq_stride, a->dt) &&
           aligned_rows(a->dk, a->dk_stride, a->dt) && aligned_rows(a->dv, a->dv_stride, a->dt);
}

/* ---- the choice */

static struct choice key_of(const struct attn_fwd_args *a)
{
    return (struct choice){.rows = a->rows,
                           .docs = a->docs,
                           .len_max = a->len_max,
                           .heads = a->heads,
                           .heads_kv = a->heads_kv,
                           .head_dim = a->head_dim,
                           .head_dim_v = a->head_dim_v,
                           .window = a->window,
                           .dt = a->dt,
                           .keys = a->cp_docs ? a->keys : 0,
                           .aligned = aligned_inputs(a),
                           .contiguous = contiguous(a)};
}

static struct attn_shape shape_of(const struct choice *c)
{
    return (struct attn_shape){.rows = c->rows,
                               .docs = c->docs,
                               .len_max = c->len_max,
                               .heads = c->heads,
                               .heads_kv = c->heads_kv,
                               .head_dim = c->head_dim,
                               .head_dim_v = c->head_dim_v,
                               .window = c->window,
                               .dt = (dtype)c->dt,
                               .keys = c->keys};
}

/* The sm90 kernels replace the portable ones where they support the call. The passes may differ: lse is the
 * same. With split, the backward of keys wider than values is the portable one. */
static bool hopper_serves(const struct attn_fwd_args *a, dev_stream s)
{
    const struct cuda_set *set = cuda_set(s);
    return set->sm / 10 == 9 && set->tensor_map_encode && a->dt == DTYPE_BF16 &&
           cuda_hopper_attn_widths(a->head_dim, a->head_dim_v) &&
           !(a->cp_docs && a->head_dim != a->head_dim_v) && a->scale > 0 && aligned_inputs(a);
}

/* True: cuDNN is never used for this shape on sm90. A function of the shape alone, since the scratch is
 * planned without cuDNN's. */
static bool own_on_hopper(const struct attn_shape *a, bool atomic)
{
    return a->dt == DTYPE_BF16 && cuda_hopper_attn_widths(a->head_dim, a->head_dim_v) &&
           !(atomic && a->window > 0);
}

/* Why `own` is chosen although cuDNN may support the call; NULL: it is not. sm90, TFLOP/s forward / backward, one
 * H200 (cuDNN backward: deterministic, atomic; docs/PERF.md):
 *
 *   8 x 4096 rows, 32/8 heads of 64      own 506 / 508     cuDNN 477 / 260, 369
 *   4 x 4096 rows, 32/8 heads of 128     own 603 / 468     cuDNN 615 / 380, 470
 *   2 x 8192 rows, the same heads        own 632 / 480     cuDNN 643 / 364, 490
 *   24 documents in 16384 rows           own 453 / 279     cuDNN: no packed rows
 *   4 x 4096 rows, 32 heads of 192/128   own 675 / 510     cuDNN 599 / 404 (published), 423
 *   window 1024 at 8192 rows             own 563 / 299     cuDNN 512 / 86, 370
 *
 * With a window, cuDNN's deterministic backward writes and reads all pairs of rows, also hidden ones. */
static const char *own_is_faster(const struct choice *c, dev_stream s)
{
    const bool atomic = cuda_set(s)->options.attention_atomic;
    const struct attn_shape shape = shape_of(c);
    if (cuda_set(s)->sm / 10 == 9 && own_on_hopper(&shape, atomic))
        return "Hopper's own kernels are faster than cuDNN's";
    if (c->window > 0 && 4 * c->window <= c->len_max && !atomic)
        return "a window, which cuDNN's deterministic backward does not use";
    return NULL;
}

/* Why cuDNN does not support the call; "" if it does. */
static status cudnn_refuses(const struct attn_fwd_args *a, const struct choice *c, dev_stream s,
                            char why[WHY_SIZE])
{
    const struct attn_shape shape = shape_of(c);
    const char *reason = cuda_sdpa_refuses(&shape, cuda_set(s)->sm);
    if (c->keys > 0) reason = "queries and keys of different rows (parallel.context)";
    if (reason == NULL && c->docs * c->len_max != c->rows && !c->contiguous)
        reason = "packed documents whose rows hold q, k and v together: cuDNN's backward leaves such "
                 "gradients wrong";
    if (reason == NULL && !c->aligned) reason = "pointers or strides are not multiples of 16 bytes";
    if (reason == NULL) {
        status st = cuda_sdpa_prepare(a, s);
        if (st != STATUS_OK && st != STATUS_CONFIG) return st;
        if (st == STATUS_CONFIG) reason = status_message();
    }
    snprintf(why, WHY_SIZE, "%s", reason ? reason : "");
    return STATUS_OK;
}

static status decide(const struct attn_fwd_args *a, struct choice *c, dev_stream s)
{
    char no_cudnn[WHY_SIZE] = "";
    const enum cuda_attention want = cuda_set(s)->options.attention;
    const struct attn_shape shape = shape_of(c);
    const char *no_own = cuda_own_attn_refuses(&shape), *reason = "";
    const char *faster = no_own ? NULL : own_is_faster(c, s);
    if (want == CUDA_ATTENTION_AUTO && faster)
        snprintf(no_cudnn, sizeof no_cudnn, "%s", faster);
    else if (want == CUDA_ATTENTION_AUTO || want == CUDA_ATTENTION_CUDNN)
        TRY(cudnn_refuses(a, c, s, no_cudnn));
    if (want == CUDA_ATTENTION_CUDNN && no_cudnn[0])
        return FAIL(STATUS_CONFIG, "the attention backend 'cudnn' was asked for: %s", no_cudnn);
    if (want == CUDA_ATTENTION_OWN && no_own)
        return FAIL(STATUS_CONFIG, "the attention backend 'own' was asked for: %s", no_own);
    c->backend = (int64_t)want;
    if (want == CUDA_ATTENTION_AUTO) {
        reason = no_cudnn;
        c->backend = CUDA_ATTENTION_CUDNN;
        if (no_cudnn[0]) c->backend = no_own ? CUDA_ATTENTION_REFERENCE : CUDA_ATTENTION_OWN;
    }
    log_detail(
        "attention %s: %s, %lld rows in %lld documents of at most %lld, heads %lld/%lld of %lld, window "
        "%lld%s%s",
        backend_name(c->backend), dtype_name(a->dt), (long long)a->rows, (long long)a->docs,
        (long long)a->len_max, (long long)a->heads, (long long)a->heads_kv, (long long)a->head_dim,
        (long long)a->window, reason[0] ? "; " : "", reason);
    return STATUS_OK;
}

static status choose(const struct attn_fwd_args *a, dev_stream s, enum cuda_attention *backend)
{
    struct cuda_set *set = cuda_set(s);
    struct choice key = key_of(a);
    if (set->attn == NULL) set->attn = calloc(1, sizeof *set->attn);
    struct attn_choices *all = set->attn;
    if (all == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the choice of attention backends");
    for (int i = 0; i < all->count; i++)
        if (memcmp(&all->at[i], &key, offsetof(struct choice, backend)) == 0) {
            *backend = (enum cuda_attention)all->at[i].backend;
            return STATUS_OK;
        }
    if (all->count == all->room) {
        int room = all->room ? 2 * all->room : 8;
        struct choice *grown = realloc(all->at, (size_t)room * sizeof *grown);
        if (grown == NULL)
            return FAIL(STATUS_OUT_OF_MEMORY, "no memory for the choice of attention backends");
        all->at = grown;
        all->room = room;
    }
    TRY(decide(a, &key, s));
    all->at[all->count++] = key;
    *backend = (enum cuda_attention)key.backend;
    return STATUS_OK;
}

/* ---- slots */

static status own_fwd(const struct attn_fwd_args *a, dev_stream s)
{
    return hopper_serves(a, s) ? cuda_hopper_attn_fwd(a, s) : cuda_own_attn_fwd(a, s);
}

static status own_bwd(const struct attn_bwd_args *a, const struct attn_fwd_args *forward, dev_stream s)
{
    if (hopper_serves(forward, s) && aligned_grads(a)) return cuda_hopper_attn_bwd(a, s);
    return cuda_own_attn_bwd(a, s);
}

static status attn_fwd(const struct attn_fwd_args *a, dev_stream s)
{
    enum cuda_attention backend;
    if (a->rows == 0) return STATUS_OK;
    TRY(choose(a, s, &backend));
    switch (backend) {
    case CUDA_ATTENTION_CUDNN: return cuda_sdpa_fwd(a, s);
    case CUDA_ATTENTION_OWN: return own_fwd(a, s);
    case CUDA_ATTENTION_AUTO: /* choose has replaced it */
    case CUDA_ATTENTION_REFERENCE: break;
    }
    return cuda_reference_attn_fwd(a, s);
}

/* The forward call that the backward call belongs to. */
static struct attn_fwd_args forward_of(const struct attn_bwd_args *a)
{
    return (struct attn_fwd_args){.q = a->q,
                                  .k = a->k,
                                  .v = a->v,
                                  .o = (void *)(uintptr_t)a->o,
                                  .lse = (void *)(uintptr_t)a->lse,
                                  .q_stride = a->q_stride,
                                  .k_stride = a->k_stride,
                                  .v_stride = a->v_stride,
                                  .cu_seqlens = a->cu_seqlens,
                                  .cp_docs = a->cp_docs,
                                  .keys = a->keys,
                                  .docs = a->docs,
                                  .rows = a->rows,
                                  .heads = a->heads,
                                  .heads_kv = a->heads_kv,
                                  .head_dim = a->head_dim,
                                  .head_dim_v = a->head_dim_v,
                                  .window = a->window,
                                  .len_max = a->len_max,
                                  .scale = a->scale,
                                  .dt = a->dt};
}

static bool attn_bwd_supports(const struct attn_bwd_args *a, dev_stream s)
{
    enum cuda_attention backend;
    const struct attn_fwd_args forward = forward_of(a);
    return fusion_rope_bwd(a->head_dim, a->len_max) && a->head_dim_v == a->head_dim &&
           hopper_serves(&forward, s) && aligned_grads(a) && choose(&forward, s, &backend) == STATUS_OK &&
           backend == CUDA_ATTENTION_OWN;
}

static status attn_bwd(const struct attn_bwd_args *a, dev_stream s)
{
    enum cuda_attention backend;
    const struct attn_fwd_args forward = forward_of(a);
    if (a->rows == 0) return STATUS_OK;
    TRY(choose(&forward, s, &backend));
    if (a->rope && !attn_bwd_supports(a, s))
        return FAIL(STATUS_INTERNAL, "attention's backward was told to rotate what it does not");
    if (backend == CUDA_ATTENTION_CUDNN && !aligned_grads(a))
        return FAIL(STATUS_INTERNAL,
                    "attention's gradients are not aligned to 16 bytes as its inputs are, and forward "
                    "has left its statistics in cuDNN's order");
    switch (backend) {
    case CUDA_ATTENTION_CUDNN: return cuda_sdpa_bwd(a, s);
    case CUDA_ATTENTION_OWN: return own_bwd(a, &forward, s);
    case CUDA_ATTENTION_AUTO:
    case CUDA_ATTENTION_REFERENCE: break;
    }
    return cuda_reference_attn_bwd(a, s);
}

/* ---- scratch: the maximum over the backends that a call may use. The reference takes no more than the
 * portable kernels. */

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t scratch_own(const struct attn_shape *shape, enum attn_pass pass)
{
    return most(cuda_own_attn_scratch(shape, pass), cuda_hopper_attn_scratch(shape, pass));
}
static size_t scratch_elsewhere(const struct attn_shape *shape, enum attn_pass pass)
{
    return most(cuda_own_attn_scratch(shape, pass), cuda_sdpa_scratch(shape, pass));
}
static size_t scratch_anywhere(const struct attn_shape *shape, enum attn_pass pass)
{
    return most(scratch_own(shape, pass), cuda_sdpa_scratch(shape, pass));
}
static size_t scratch_hopper(const struct attn_shape *shape, enum attn_pass pass)
{
    return own_on_hopper(shape, false) ? scratch_own(shape, pass) : scratch_elsewhere(shape, pass);
}
static size_t scratch_hopper_atomic(const struct attn_shape *shape, enum attn_pass pass)
{
    return own_on_hopper(shape, true) ? scratch_own(shape, pass) : scratch_anywhere(shape, pass);
}

attn_scratch_fn *cuda_attn_scratch(const struct cuda_options *options, int sm)
{
    switch (options->attention) {
    case CUDA_ATTENTION_CUDNN: return cuda_sdpa_scratch;
    case CUDA_ATTENTION_OWN: return sm == 0 || sm / 10 == 9 ? scratch_own : cuda_own_attn_scratch;
    case CUDA_ATTENTION_REFERENCE: return cuda_reference_attn_scratch;
    case CUDA_ATTENTION_AUTO: break;
    }
    if (sm == 0) return scratch_anywhere;
    if (sm / 10 != 9) return scratch_elsewhere;
    return options->attention_atomic ? scratch_hopper_atomic : scratch_hopper;
}

void cuda_attn_slots(struct ops *o)
{
    o->attn_fwd = attn_fwd;
    o->attn_bwd = attn_bwd;
    o->attn_bwd_supports = attn_bwd_supports;
    o->attn_decode = cuda_attn_decode;
}
