#include "ops/cuda/attn_cudnn_parts.h"
#include "base/int_math.h"
#include "ops/cuda/attn_backends.h"

/* Workspace of cuDNN 9.19 plans beyond the formulas: up to 17 KiB and 512 bytes per document were reported. */
enum { SLACK = 64 << 10, SLACK_DOC = 512, ALIGN = 256 };
/* Packed documents: slots x longest over rows. A training run has a slot per token, since documents may be
 * that short. */
enum { SLOTS_EMPTY_MAX = 8 };

static int64_t parts_of(int64_t n, int64_t most) /* equal parts: the size of the larger ones */
{
    int64_t count = (n + most - 1) / most;
    return (n + count - 1) / count;
}

bool sdpa_dense(const struct attn_shape *a)
{
    return a->docs * a->len_max == a->rows;
}

/* Workspace of the direct dQ, of one head of one sequence. */
static int64_t bytes_head(const struct attn_shape *a)
{
    return 2 * int64_round_up(a->len_max, 64) * int64_round_up(a->len_max, 128);
}

struct sdpa_part sdpa_part(const struct attn_shape *a)
{
    int64_t group = bytes_head(a) * (a->heads / a->heads_kv), budget = (int64_t)SDPA_BUDGET;
    if (!sdpa_dense(a)) return (struct sdpa_part){a->docs, a->heads_kv};
    if (group * a->heads_kv <= budget)
        return (struct sdpa_part){parts_of(a->docs, budget / (group * a->heads_kv)), a->heads_kv};
    if (group > budget) return (struct sdpa_part){0, 0};
    return (struct sdpa_part){1, parts_of(a->heads_kv, budget / group)};
}

/* ---- cases */

/* The longest document, at most `rows`; with one document exactly that. */
static int64_t tight(int64_t rows, int64_t docs, int64_t len_max)
{
    return docs == 1 || len_max > rows ? rows : len_max;
}

#define SHAPE_OF(a)                                                                                          \
    ((struct attn_shape){.rows = (a)->rows,                                                                  \
                         .docs = (a)->docs,                                                                  \
                         .len_max = tight((a)->rows, (a)->docs, (a)->len_max),                               \
                         .heads = (a)->heads,                                                                \
                         .heads_kv = (a)->heads_kv,                                                          \
                         .head_dim = (a)->head_dim,                                                          \
                         .head_dim_v = (a)->head_dim_v,                                                      \
                         .window = (a)->window,                                                              \
                         .dt = (a)->dt})

struct attn_shape sdpa_shape_fwd(const struct attn_fwd_args *a)
{
    return SHAPE_OF(a);
}

struct attn_shape sdpa_shape_bwd(const struct attn_bwd_args *a)
{
    return SHAPE_OF(a);
}

static struct sdpa_case case_of(const struct attn_shape *a, enum attn_pass pass, struct sdpa_part part)
{
    return (struct sdpa_case){.pass = pass,
                              .ragged = !sdpa_dense(a),
                              .b = part.b,
                              .h = part.hk * (a->heads / a->heads_kv),
                              .hk = part.hk,
                              .sq = a->len_max,
                              .skv = a->len_max,
                              .dqk = a->head_dim,
                              .dv = a->head_dim_v,
                              .window = a->window < a->len_max ? a->window : 0, /* wider: it hides nothing */
                              .o_stride = a->heads * a->head_dim_v};
}

struct sdpa_case sdpa_case_fwd(const struct attn_fwd_args *a)
{
    const struct attn_shape shape = SHAPE_OF(a);
    struct sdpa_case c = case_of(&shape, ATTN_FWD, (struct sdpa_part){a->docs, a->heads_kv});
    c.q_stride = a->q_stride;
    c.k_stride = a->k_stride;
    c.v_stride = a->v_stride;
    c.scale = a->scale;
    return c;
}

struct sdpa_case sdpa_case_bwd(const struct attn_bwd_args *a, struct sdpa_part part)
{
    const struct attn_shape shape = SHAPE_OF(a);
    struct sdpa_case c = case_of(&shape, ATTN_BWD, part);
    bool spread =
        c.ragged && c.h > c.hk; /* per-head gradients are as wide as rows of dk: keep them contiguous */
    c.q_stride = a->q_stride;
    c.k_stride = a->k_stride;
    c.v_stride = a->v_stride;
    c.dq_stride = a->dq_stride;
    c.dk_stride = spread ? a->heads_kv * a->head_dim : a->dk_stride;
    c.dv_stride = spread ? a->heads_kv * a->head_dim_v : a->dv_stride;
    c.scale = a->scale;
    return c;
}

/* ---- memory */

static size_t place(size_t *at, int64_t bytes)
{
    size_t here = *at;
    *at += (size_t)int64_round_up(bytes, ALIGN);
    return here;
}

/* Workspace of a plan for `docs` sequences or documents. */
static int64_t plan_fwd(int64_t docs)
{
    return SLACK + SLACK_DOC * docs;
}
static int64_t plan_bwd(const struct attn_shape *a, int64_t docs)
{
    int64_t head = bytes_head(a), budget = (int64_t)SDPA_BUDGET;
    return plan_fwd(docs) + (head > budget ? budget : int64_min(docs * a->heads * head, budget));
}
/* Gradients of k and v per query head: in the workspace of dense plans. */
static int64_t full_dense(const struct attn_shape *a)
{
    int64_t rows = a->rows, most = (int64_t)SDPA_BUDGET / (a->heads * bytes_head(a));
    if (a->heads == a->heads_kv) return 0;
    if (sdpa_dense(a)) rows = int64_min(a->docs, most > 0 ? most : 1) * a->len_max;
    return 2 * rows * a->heads * (a->head_dim + a->head_dim_v);
}
/* In ragged plans they are tensors of ours, at 4 bytes per value as in cuDNN's own front end. `width`: of a
 * head. */
static int64_t full_ragged(const struct attn_shape *a, int64_t width)
{
    return a->heads == a->heads_kv ? 0 : 4 * a->rows * a->heads * width;
}
static int64_t ragged_bytes(const struct attn_shape *a)
{
    int64_t grads = a->heads == a->heads_kv ? 0 : 2 * a->rows * a->heads_kv * (a->head_dim + a->head_dim_v);
    if (bytes_head(a) > (int64_t)SDPA_BUDGET) return bytes_head(a);
    return a->docs * a->heads * bytes_head(a) + full_ragged(a, a->head_dim + a->head_dim_v) + grads;
}

size_t sdpa_accumulator(const struct sdpa_case *c)
{
    int64_t bytes = 4 * c->b * c->h * c->sq * c->dqk;
    return c->ragged ? 0 : (size_t)int64_round_up(bytes, ALIGN);
}

struct sdpa_layout sdpa_layout(const struct attn_shape *a, enum attn_pass pass)
{
    struct sdpa_layout l = {0};
    size_t at = 0;
    const int64_t docs = int64_min(a->docs, SDPA_DOCS_MAX);
    l.stats = place(&at, 4 * a->rows * a->heads);
    l.lengths = place(&at, 4 * docs);
    l.offsets_each = (size_t)int64_round_up(8 * (docs + 1), ALIGN);
    l.offsets = place(&at, 8 * (int64_t)l.offsets_each);
    l.plan = at;
    if (pass == ATTN_FWD) {
        l.plan_bytes = (size_t)plan_fwd(docs);
        l.total = l.plan + l.plan_bytes;
        return l;
    }
    /* The scratch of a ragged shape must also fit a call whose documents have equal lengths. */
    l.plan_bytes = (size_t)plan_bwd(a, docs);
    l.total = l.plan + l.plan_bytes + (size_t)full_dense(a);
    if (sdpa_dense(a)) {
        l.plan_bytes += (size_t)full_dense(a);
        return l;
    }
    at = l.plan + l.plan_bytes;
    l.k_full = place(&at, full_ragged(a, a->head_dim));
    l.v_full = place(&at, full_ragged(a, a->head_dim_v));
    l.dk = place(&at, 2 * a->rows * a->heads_kv * a->head_dim);
    l.dv = place(&at, 2 * a->rows * a->heads_kv * a->head_dim_v);
    size_t most =
        l.plan + (size_t)plan_fwd(docs) + SDPA_BUDGET + 4 * ALIGN; /* above it, ragged is rejected */
    if (at > most) at = most;
    if (l.total < at) l.total = at;
    return l;
}

bool sdpa_atomic_fits(const struct attn_shape *a)
{
    const int64_t rows = a->rows * a->heads,
                  full = a->heads == a->heads_kv ? 0 : 2 * rows * (a->head_dim + a->head_dim_v);
    if (!sdpa_dense(a)) return false;
    return (size_t)(4 * rows * a->head_dim + full + plan_fwd(a->docs) + ALIGN) <=
           sdpa_layout(a, ATTN_BWD).plan_bytes;
}

static const char *refuses_type(const struct attn_shape *a, int head_dim_max)
{
    if (a->dt != DTYPE_BF16) return "cuDNN's attention serves bf16 alone";
    if (a->head_dim % 8 != 0) return "cuDNN's attention needs a head size that is a multiple of 8";
    if (a->head_dim == 192 && a->head_dim_v == 128) return NULL;
    if (a->head_dim_v != a->head_dim) return "cuDNN's attention was never tried with values of this width";
    if (a->head_dim > head_dim_max)
        return head_dim_max == 128 ? "cuDNN's attention backward serves heads up to 128 on this GPU"
                                   : "cuDNN's attention serves heads up to 256";
    return NULL;
}

static const char *refuses_parts(const struct attn_shape *a)
{
    struct sdpa_part part = sdpa_part(a);
    if (part.b == 0)
        return "cuDNN's deterministic backward needs more than 1 GiB for one kv head of this length";
    if ((part.b < a->docs || part.hk < a->heads_kv) && a->len_max % 4 != 0)
        return "cuDNN's backward runs this shape in parts, whose statistics would not begin at 16 bytes";
    return NULL;
}

const char *cuda_sdpa_refuses(const struct attn_shape *shape, int sm)
{
    const struct attn_shape tight_shape = SHAPE_OF(shape), *a = &tight_shape;
    const char *why = refuses_type(a, sm == 90 ? 256 : 128);
    if (why) return why;
    if (a->docs > SDPA_DOCS_MAX || a->docs * a->heads > 65535) return "too many documents for a cuDNN plan";
    if (sdpa_dense(a)) return refuses_parts(a);
    if (sm / 10 != 9 && sm / 10 != 10)
        return "cuDNN has no deterministic backward for packed documents on this GPU";
    if (a->docs * a->len_max > SLOTS_EMPTY_MAX * a->rows)
        return "cuDNN's plan would take every slot for a longest document, and most are short or empty";
    return ragged_bytes(a) <= (int64_t)SDPA_BUDGET
               ? NULL
               : "cuDNN's deterministic backward needs more than 1 GiB for packed documents of this length";
}

size_t cuda_sdpa_scratch(const struct attn_shape *shape, enum attn_pass pass)
{
    const struct attn_shape tight_shape = SHAPE_OF(shape), *a = &tight_shape;
    if (a->rows == 0 || refuses_type(a, 256)) return 0;
    if (pass == ATTN_BWD && sdpa_dense(a) && cuda_sdpa_refuses(a, 90)) return 0;
    return sdpa_layout(a, pass).total;
}
