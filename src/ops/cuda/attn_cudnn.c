/* Attention through cuDNN: its handle, the plans built so far, and their execution on the stream.
 *
 * A plan is built when a case first occurs. That must not happen during graph capture: the step before the capture
 * uses all cases. Plans are never freed, because captured graphs use their kernels. All memory is the call's
 * scratch. */
#include "dev/cuda/cuda_int.h"
#include "ops/cuda/attn_backends.h"
#include "ops/cuda/attn_cudnn_offsets.h"
#include "ops/cuda/set.h"
#include "ops/cuda/attn_cudnn_parts.h"
#include "base/clock.h"
#include "base/log.h"

#include "ops/cuda/libs.h"
#include <stdlib.h>
#include <string.h>

enum { CUDNN_OLDEST = 90800 }; /* older ones are untested; tested with 9.19 */

struct sdpa {
    struct sdpa_target target; /* handle NULL until bf16 attention is asked for */
    int count, room;
    struct sdpa_plan **plans;
};

status cuda_sdpa_open(struct cuda_set *set, dev_stream s)
{
    TRY(cuda_libs_open());
    size_t version = cudnnGetVersion();
    bool wanted =
        set->options.attention == CUDA_ATTENTION_AUTO || set->options.attention == CUDA_ATTENTION_CUDNN;
    if (wanted && version < CUDNN_OLDEST)
        return FAIL(STATUS_DEVICE,
                    "cuDNN %zu.%zu.%zu is too old for attention, which needs 9.8: install a newer one, or "
                    "choose the attention backend 'own'",
                    version / 10000, version / 100 % 100, version % 100);
    set->sdpa = calloc(1, sizeof *set->sdpa);
    if (set->sdpa == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for attention plans");
    set->sdpa->target.sm = s->dev->sm;
    return STATUS_OK;
}

void cuda_sdpa_close(struct cuda_set *set)
{
    struct sdpa *p = set->sdpa;
    if (p == NULL) return;
    for (int i = 0; i < p->count; i++) sdpa_plan_close(p->plans[i]);
    free(p->plans);
    if (p->target.handle) (void)cudnnDestroy(p->target.handle);
    free(p);
    set->sdpa = NULL;
}

/* ---- plans */

static status open_handle(struct sdpa *p, dev_stream s)
{
    if (p->target.handle) return STATUS_OK;
    cudnnHandle_t handle = NULL;
    cudnnStatus_t err = cudnnCreate(&handle);
    if (err == CUDNN_STATUS_SUCCESS) err = cudnnSetStream(handle, cuda_queue(s));
    if (err != CUDNN_STATUS_SUCCESS) {
        status st = sdpa_error((int)err, "open the library");
        if (handle) (void)cudnnDestroy(handle);
        return st;
    }
    p->target.handle = handle;
    return STATUS_OK;
}

/* Rejects what must not happen during a capture. */
static status not_capturing(dev_stream s, const struct sdpa_case *c)
{
    enum cudaStreamCaptureStatus state;
    TRY_CUDA(cudaStreamIsCapturing(cuda_queue(s), &state));
    if (state == cudaStreamCaptureStatusNone) return STATUS_OK;
    return FAIL(
        STATUS_INTERNAL,
        "attention %s of %lld x %lld rows, %lld heads of %lld, has no plan yet and the stream is being "
        "captured: run the step once before",
        c->pass == ATTN_FWD ? "forward" : "backward", (long long)c->b, (long long)c->sq, (long long)c->h,
        (long long)c->dqk);
}

/* The plan of a case, built on first use. `bytes`: available workspace. */
static status plan_of(dev_stream s, const struct sdpa_case *c, size_t bytes, const struct sdpa_plan **out)
{
    struct sdpa *p = cuda_set(s)->sdpa;
    struct sdpa_plan *plan = NULL;
    for (int i = 0; i < p->count; i++)
        if (memcmp(sdpa_plan_case(p->plans[i]), c, sizeof *c) == 0) {
            *out = p->plans[i];
            return STATUS_OK;
        }
    TRY(not_capturing(s, c));
    TRY(open_handle(p, s));
    if (p->count == p->room) {
        int room = p->room ? 2 * p->room : 16;
        void *grown = realloc(p->plans, (size_t)room * sizeof(struct sdpa_plan *));
        if (grown == NULL) return FAIL(STATUS_OUT_OF_MEMORY, "no memory for attention plans");
        p->plans = grown;
        p->room = room;
    }
    int64_t began = clock_ns();
    TRY(sdpa_plan_open(&plan, c, &p->target));
    size_t need = sdpa_plan_workspace(plan);
    log_debug(
        "attention %s: cuDNN engine %d, b=%lld h=%lld/%lld s=%lld d=%lld window=%lld%s, %zu bytes of %zu, "
        "built in %.0f ms",
        c->pass == ATTN_FWD ? "forward" : "backward", sdpa_plan_engine(plan), (long long)c->b,
        (long long)c->h, (long long)c->hk, (long long)c->sq, (long long)c->dqk, (long long)c->window,
        c->ragged ? " ragged" : "", need, bytes, (double)(clock_ns() - began) * 1e-6);
    if (need > bytes) {
        sdpa_plan_close(plan);
        return FAIL(STATUS_INTERNAL,
                    "cuDNN's attention plan needs %zu bytes of workspace, %zu are planned for it: choose the "
                    "attention backend 'own'",
                    need, bytes);
    }
    p->plans[p->count++] = plan;
    *out = plan;
    return STATUS_OK;
}

static bool is_atomic(const struct attn_shape *shape, dev_stream s)
{
    return cuda_set(s)->options.attention_atomic && sdpa_atomic_fits(shape);
}
static struct sdpa_part part_of(const struct attn_shape *shape, dev_stream s)
{
    return is_atomic(shape, s) ? (struct sdpa_part){shape->docs, shape->heads_kv} : sdpa_part(shape);
}
/* Uses the atomic backward if allowed; returns the bytes of its accumulator, at the start of the workspace. */
static size_t relax(struct sdpa_case *c, const struct attn_shape *shape, dev_stream s)
{
    c->atomic = is_atomic(shape, s);
    return c->atomic ? sdpa_accumulator(c) : 0;
}

/* Builds both plans, for gradients packed in one row as in nn/attn.c or as in nn/mla.c. */
static status prepare(const struct attn_fwd_args *a, dev_stream s)
{
    const struct sdpa_plan *plan;
    const struct attn_shape shape = sdpa_shape_fwd(a);
    const struct sdpa_case fwd = sdpa_case_fwd(a);
    TRY(plan_of(s, &fwd, sdpa_layout(&shape, ATTN_FWD).plan_bytes, &plan));
    if (a->lse == NULL) return STATUS_OK;
    const bool packed =
        a->head_dim ==
        a->head_dim_v; /* if values have another width, gradients have their operands' layout */
    const int64_t row = (a->heads + 2 * a->heads_kv) * a->head_dim;
    const struct attn_bwd_args grads = {.q_stride = a->q_stride,
                                        .k_stride = a->k_stride,
                                        .v_stride = a->v_stride,
                                        .dq_stride = packed ? row : a->q_stride,
                                        .dk_stride = packed ? row : a->k_stride,
                                        .dv_stride = packed ? row : a->v_stride,
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
    struct sdpa_case bwd = sdpa_case_bwd(&grads, part_of(&shape, s));
    size_t accumulator = relax(&bwd, &shape, s);
    return plan_of(s, &bwd, sdpa_layout(&shape, ATTN_BWD).plan_bytes - accumulator, &plan);
}

status cuda_sdpa_prepare(const struct attn_fwd_args *a, dev_stream s)
{
    const struct sdpa_case c = sdpa_case_fwd(a);
    TRY(not_capturing(s, &c));
    TRY(open_handle(cuda_set(s)->sdpa, s));
    status st = prepare(a, s);
    return st == STATUS_DEVICE ? status_wrap(STATUS_CONFIG, "cuDNN has no plan") : st;
}

/* ---- runs */

static void *bytes_at(const void *base, int64_t offset)
{
    return (char *)(uintptr_t)base + offset;
}

/* Offsets of every operand's rows, and the lengths, for ragged cases. */
static status place_documents(const struct sdpa_case *c, const int32_t *cu_seqlens, int64_t docs,
                              const struct sdpa_layout *l, void *scratch, void *memory[SDPA_PORT_COUNT],
                              dev_stream s)
{
    const struct {
        enum sdpa_port port;
        int64_t width;
    } operand[ATTN_OFFSETS_MAX] = {{SDPA_AT_Q, c->q_stride},   {SDPA_AT_K, c->k_stride},
                                   {SDPA_AT_V, c->v_stride},   {SDPA_AT_O, c->o_stride},
                                   {SDPA_AT_LSE, c->h},        {SDPA_AT_DQ, c->dq_stride},
                                   {SDPA_AT_DK, c->dk_stride}, {SDPA_AT_DV, c->dv_stride}};
    struct attn_offsets_args a = {
        .cu_seqlens = cu_seqlens, .docs = docs, .lengths = bytes_at(scratch, (int64_t)l->lengths)};
    memory[SDPA_LEN_Q] = memory[SDPA_LEN_KV] = a.lengths;
    for (int i = 0; i < ATTN_OFFSETS_MAX; i++) {
        if (operand[i].width == 0) continue;
        a.offsets[i] = bytes_at(scratch, (int64_t)(l->offsets + (size_t)i * l->offsets_each));
        a.width[i] = operand[i].width;
        memory[operand[i].port] = a.offsets[i];
    }
    return cuda_attn_offsets(&a, s);
}

status cuda_sdpa_fwd(const struct attn_fwd_args *a, dev_stream s)
{
    const struct attn_shape shape = sdpa_shape_fwd(a);
    const struct sdpa_layout l = sdpa_layout(&shape, ATTN_FWD);
    const struct sdpa_case c = sdpa_case_fwd(a);
    const struct sdpa_plan *plan;
    TRY(plan_of(s, &c, l.plan_bytes, &plan));
    void *memory[SDPA_PORT_COUNT] = {
        [SDPA_Q] = bytes_at(a->q, 0),
        [SDPA_K] = bytes_at(a->k, 0),
        [SDPA_V] = bytes_at(a->v, 0),
        [SDPA_O] = a->o,
        [SDPA_LSE] = a->lse ? a->lse : bytes_at(a->scratch, (int64_t)l.stats),
    };
    if (c.ragged) TRY(place_documents(&c, a->cu_seqlens, a->docs, &l, a->scratch, memory, s));
    TRY(sdpa_plan_run(plan, cuda_set(s)->sdpa->target.handle, memory, bytes_at(a->scratch, (int64_t)l.plan)));
    return cuda_set_launched(s, "attention forward");
}

/* Sequences from b0 on, kv heads from g0 on: one part. */
static status run_part(const struct attn_bwd_args *a, const struct sdpa_layout *l, struct sdpa_part part,
                       int64_t b0, int64_t g0, dev_stream s)
{
    struct sdpa_case c = sdpa_case_bwd(a, part);
    const struct attn_shape shape = sdpa_shape_bwd(a);
    const size_t accumulator = relax(&c, &shape, s);
    const struct sdpa_plan *plan;
    TRY(plan_of(s, &c, l->plan_bytes - accumulator, &plan));
    const int64_t r0 = b0 * c.sq, head_dim = a->head_dim, head_dim_v = a->head_dim_v,
                  size = (int64_t)sizeof(bf16);
    const int64_t h0 = g0 * (a->heads / a->heads_kv),
                  stat = (b0 * a->heads + h0) * c.sq * (int64_t)sizeof(float);
    void *memory[SDPA_PORT_COUNT] = {
        [SDPA_Q] = bytes_at(a->q, (r0 * a->q_stride + h0 * head_dim) * size),
        [SDPA_K] = bytes_at(a->k, (r0 * a->k_stride + g0 * head_dim) * size),
        [SDPA_V] = bytes_at(a->v, (r0 * a->v_stride + g0 * head_dim_v) * size),
        [SDPA_O] = bytes_at(a->o, (r0 * a->heads + h0) * head_dim_v * size),
        [SDPA_DO] = bytes_at(a->do_, (r0 * a->heads + h0) * head_dim_v * size),
        [SDPA_LSE] = bytes_at(a->lse, stat),
        [SDPA_DELTA] = bytes_at(a->scratch, (int64_t)l->stats),
        [SDPA_DQ_ACC] = bytes_at(a->scratch, (int64_t)l->plan),
        [SDPA_DQ] = bytes_at(a->dq, (r0 * a->dq_stride + h0 * head_dim) * size),
        [SDPA_DK] = bytes_at(a->dk, (r0 * a->dk_stride + g0 * head_dim) * size),
        [SDPA_DV] = bytes_at(a->dv, (r0 * a->dv_stride + g0 * head_dim_v) * size),
    };
    return sdpa_plan_run(plan, cuda_set(s)->sdpa->target.handle, memory,
                         bytes_at(a->scratch, (int64_t)(l->plan + accumulator)));
}

static status run_ragged(const struct attn_bwd_args *a, const struct sdpa_layout *l, struct sdpa_part whole,
                         dev_stream s)
{
    const struct sdpa_case c = sdpa_case_bwd(a, whole);
    const struct sdpa_plan *plan;
    const bool spread = a->heads > a->heads_kv;
    TRY(plan_of(s, &c, l->plan_bytes, &plan));
    void *memory[SDPA_PORT_COUNT] = {
        [SDPA_Q] = bytes_at(a->q, 0),
        [SDPA_K] = bytes_at(a->k, 0),
        [SDPA_V] = bytes_at(a->v, 0),
        [SDPA_O] = bytes_at(a->o, 0),
        [SDPA_DO] = bytes_at(a->do_, 0),
        [SDPA_LSE] = bytes_at(a->lse, 0),
        [SDPA_DELTA] = bytes_at(a->scratch, (int64_t)l->stats),
        [SDPA_DQ] = a->dq,
        [SDPA_DK] = spread ? bytes_at(a->scratch, (int64_t)l->dk) : a->dk,
        [SDPA_DV] = spread ? bytes_at(a->scratch, (int64_t)l->dv) : a->dv,
        [SDPA_DK_FULL] = bytes_at(a->scratch, (int64_t)l->k_full),
        [SDPA_DV_FULL] = bytes_at(a->scratch, (int64_t)l->v_full),
    };
    TRY(place_documents(&c, a->cu_seqlens, a->docs, l, a->scratch, memory, s));
    TRY(sdpa_plan_run(plan, cuda_set(s)->sdpa->target.handle, memory,
                      bytes_at(a->scratch, (int64_t)l->plan)));
    if (!spread) return STATUS_OK;
    return cuda_attn_spread(
        &(struct attn_spread_args){.from = {memory[SDPA_DK], memory[SDPA_DV]},
                                   .to = {a->dk, a->dv},
                                   .stride = {a->dk_stride, a->dv_stride},
                                   .rows = a->rows,
                                   .width = {a->heads_kv * a->head_dim, a->heads_kv * a->head_dim_v}},
        s);
}

status cuda_sdpa_bwd(const struct attn_bwd_args *a, dev_stream s)
{
    const struct attn_shape shape = sdpa_shape_bwd(a);
    const struct sdpa_layout l = sdpa_layout(&shape, ATTN_BWD);
    const struct sdpa_part whole = part_of(&shape, s);
    if (!sdpa_dense(&shape)) {
        TRY(run_ragged(a, &l, whole, s));
        return cuda_set_launched(s, "attention backward");
    }
    CHECK(whole.b > 0, "attention backward of %lld rows was refused", (long long)shape.len_max);
    for (int64_t b = 0; b < a->docs; b += whole.b)
        for (int64_t g = 0; g < a->heads_kv; g += whole.hk) {
            struct sdpa_part part = whole;
            if (part.b > a->docs - b) part.b = a->docs - b;
            if (part.hk > a->heads_kv - g) part.hk = a->heads_kv - g;
            TRY(run_part(a, &l, part, b, g, s));
        }
    return cuda_set_launched(s, "attention backward");
}
