/* Attention as cuDNN operation graphs. The engines match a pattern of plain operations (GEMMs, pointwise,
 * reductions). The order of operations, the types of intermediate tensors, and which of them are in memory must be as
 * the engines require:
 *
 *   scores   S0 = Q K^T; S1 = S0 scale; [ragged: S1 = -inf outside of the document]; [causal, window: -inf outside]
 *   forward  m = max S1; e = exp(S1 - m); l = sum e; LSE = m + log l; P = bf16(e / l); O = P V
 *   backward DELTA = sum(dO O); P = exp(S1 - LSE); dV = bf16(P)^T dO; dP = dO V^T; dS = (dP - DELTA) P scale;
 *            dK = bf16(dS)^T Q; dQ = dS K
 *
 * Backward masks the document before LSE is subtracted and the band after it. With grouped heads, dV and dK are
 * computed per query head and then summed over the group. In ragged graphs the per-head gradients are tensors in
 * memory; their offsets are those of dV and dK, which the engine multiplies by the group. dQ directly from the GEMM
 * is deterministic. With an f32 accumulator (a tensor in memory) the engine uses atomic adds. The direct form needs a
 * workspace of b h sq skv bf16 values: attn_cudnn.c runs it in parts. */
#include "ops/cuda/attn_cudnn_graph.h"

#include "ops/cuda/libs.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef cudnnBackendDescriptor_t desc;

enum { HELD_MAX = 256, OPS_MAX = 40, TENSORS_MAX = 96, SCALARS_MAX = 12, CONFIGS_MAX = 16 };
enum { NONE = -1 };

struct sdpa_plan {
    struct sdpa_case c;
    desc plan;
    int64_t workspace, engine;
    bool uses[SDPA_PORT_COUNT];
    int scalars;
    int64_t scalar_uid[SCALARS_MAX];
    float scalar[SCALARS_MAX]; /* passed by value: cuDNN reads them when the plan runs */
    int held_count;
    desc held[HELD_MAX]; /* what the plan was built from */
};

struct quad {
    int64_t n[4];
};

struct builder {
    const struct sdpa_target *target;
    struct sdpa_plan *plan;
    status st; /* of the first failed call; later calls do nothing */
    int tensors, ops;
    struct {
        desc d;
        struct quad dim, stride;
    } t[TENSORS_MAX];
    desc op[OPS_MAX];
    int port[SDPA_PORT_COUNT]; /* tensor of each port, or NONE */
};

status sdpa_error(int cudnn_status, const char *doing)
{
    char why[400] = ""; /* from here on: reading results from the library */
    cudnnGetLastErrorString(why, sizeof why);
    for (char *p = why; *p; p++)
        if (*p == '\n' || *p == '\r') *p = ' ';
    return FAIL(STATUS_DEVICE, "cuDNN %d.%d.%d, %s: %s (%s)", (int)(cudnnGetVersion() / 10000),
                (int)(cudnnGetVersion() / 100 % 100), (int)(cudnnGetVersion() % 100), doing,
                cudnnGetErrorString((cudnnStatus_t)cudnn_status), why[0] ? why : "no reason given");
}

#define TRY_CUDNN(call, doing)                                                                               \
    do {                                                                                                     \
        cudnnStatus_t try_err_ = (call);                                                                     \
        if (__builtin_expect(try_err_ != CUDNN_STATUS_SUCCESS, 0)) return sdpa_error((int)try_err_, doing);  \
    } while (0)

/* ---- descriptors */

static desc make(struct builder *g, cudnnBackendDescriptorType_t type)
{
    desc d = NULL;
    if (g->st != STATUS_OK) return NULL;
    CHECK(g->plan->held_count < HELD_MAX, "more than %d descriptors", HELD_MAX);
    cudnnStatus_t err = cudnnBackendCreateDescriptor(type, &d);
    if (err != CUDNN_STATUS_SUCCESS)
        g->st = sdpa_error((int)err, "create descriptor");
    else
        g->plan->held[g->plan->held_count++] = d;
    return d;
}

static void set(struct builder *g, desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *value)
{
    if (g->st != STATUS_OK) return;
    cudnnStatus_t err = cudnnBackendSetAttribute(d, name, type, count, value);
    if (err != CUDNN_STATUS_SUCCESS) g->st = sdpa_error((int)err, "set attribute");
}

static void set_desc(struct builder *g, desc d, cudnnBackendAttributeName_t name, desc value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(struct builder *g, desc d, const char *doing)
{
    if (g->st != STATUS_OK) return;
    cudnnStatus_t err = cudnnBackendFinalize(d);
    if (err != CUDNN_STATUS_SUCCESS) g->st = sdpa_error((int)err, doing);
}

/* ---- tensors */

static struct quad quad(int64_t b, int64_t h, int64_t s, int64_t d)
{
    return (struct quad){{b, h, s, d}};
}

static struct quad swapped(struct quad x)
{
    return quad(x.n[0], x.n[1], x.n[3], x.n[2]);
}

enum place { REAL, VIRTUAL, BY_VALUE };

static int tensor(struct builder *g, int64_t uid, cudnnDataType_t type, struct quad dim, struct quad stride,
                  enum place place, int offsets)
{
    const int64_t align = 16;
    const bool yes = true;
    CHECK(g->tensors < TENSORS_MAX, "more than %d tensors", TENSORS_MAX);
    int i = g->tensors++;
    desc d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    g->t[i].d = d;
    g->t[i].dim = dim;
    g->t[i].stride = stride;
    set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim.n);
    set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride.n);
    set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (place == VIRTUAL) set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (place == BY_VALUE) set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (offsets != NONE) set_desc(g, d, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, g->t[offsets].d);
    finish(g, d, "tensor");
    return i;
}

static int virtual_tensor(struct builder *g, cudnnDataType_t type, struct quad dim, struct quad stride)
{
    return tensor(g, SDPA_PORT_COUNT + 1 + g->tensors, type, dim, stride, VIRTUAL, NONE);
}

static int like(struct builder *g, cudnnDataType_t type, int x)
{
    return virtual_tensor(g, type, g->t[x].dim, g->t[x].stride);
}

static int scalar(struct builder *g, float value)
{
    struct sdpa_plan *p = g->plan;
    CHECK(p->scalars < SCALARS_MAX, "more than %d scalars", SCALARS_MAX);
    int64_t uid = SDPA_PORT_COUNT + 1 + g->tensors;
    p->scalar_uid[p->scalars] = uid;
    p->scalar[p->scalars++] = value;
    return tensor(g, uid, CUDNN_DATA_FLOAT, quad(1, 1, 1, 1), quad(1, 1, 1, 1), BY_VALUE, NONE);
}

/* A tensor in the caller's memory. Its id is its port's number + 1. */
static int port(struct builder *g, enum sdpa_port p, cudnnDataType_t type, struct quad dim,
                struct quad stride, int offsets)
{
    g->plan->uses[p] = true;
    return g->port[p] = tensor(g, p + 1, type, dim, stride, REAL, offsets);
}

/* The offsets of a ragged tensor; NONE in dense graphs. */
static int offsets(struct builder *g, enum sdpa_port p)
{
    const struct sdpa_case *c = &g->plan->c;
    if (!c->ragged) return NONE;
    return port(g, p, CUDNN_DATA_INT64, quad(c->b + 1, 1, 1, 1), quad(1, 1, 1, 1), NONE);
}

/* ---- operations */

static void push(struct builder *g, desc op, const char *doing)
{
    finish(g, op, doing);
    CHECK(g->ops < OPS_MAX, "more than %d operations", OPS_MAX);
    g->op[g->ops++] = op;
}

/* y = mode(x, b, mask); NONE where absent. */
static void pointwise_axis(struct builder *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, int x, int b,
                           int mask, int y, int64_t axis)
{
    const float one = 1;
    desc pw = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, pw, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, pw, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) set(g, pw, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish(g, pw, "pointwise mode");
    desc op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pw);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, g->t[x].d);
    if (b != NONE) set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, g->t[b].d);
    if (mask != NONE) set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, g->t[mask].d);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, g->t[y].d);
    set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one);
    set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one);
    push(g, op, "pointwise operation");
}

static void pointwise(struct builder *g, cudnnPointwiseMode_t mode, cudnnDataType_t math, int x, int b, int y)
{
    pointwise_axis(g, mode, math, x, b, NONE, y, 0);
}

/* In f32, into a virtual tensor of x's shape. */
static int compute(struct builder *g, cudnnPointwiseMode_t mode, int x, int b)
{
    int y = like(g, CUDNN_DATA_FLOAT, x);
    pointwise(g, mode, CUDNN_DATA_FLOAT, x, b, y);
    return y;
}

static int compare(struct builder *g, cudnnPointwiseMode_t mode, int x, int b)
{
    int y = like(g, CUDNN_DATA_BOOLEAN, x);
    pointwise(g, mode, CUDNN_DATA_BOOLEAN, x, b, y);
    return y;
}

static int index_of(struct builder *g, int x, int64_t axis, cudnnDataType_t math)
{
    int y = like(g, CUDNN_DATA_INT32, x);
    pointwise_axis(g, CUDNN_POINTWISE_GEN_INDEX, math, x, NONE, NONE, y, axis);
    return y;
}

/* x where the mask is true, else -inf. */
static int keep_where(struct builder *g, int x, int mask)
{
    int y = like(g, CUDNN_DATA_FLOAT, x), minus_inf = scalar(g, -INFINITY);
    pointwise_axis(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, minus_inf, mask, y, 0);
    return y;
}

static void reduce(struct builder *g, cudnnReduceTensorOp_t how, int x, int y)
{
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    const bool no = false; /* for standalone reductions; these are parts of a pattern */
    desc r = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    set(g, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    set(g, r, CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, 1, &no);
    finish(g, r, "reduction mode");
    desc op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, g->t[x].d);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, g->t[y].d);
    push(g, op, "reduction");
}

/* c = a b; ragged: with m, n, k per document. Unused ones are NONE. */
static void matmul(struct builder *g, int a, int b, int c, int m, int n, int k)
{
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    desc how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math);
    finish(g, how, "matmul mode");
    desc op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, g->t[a].d);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, g->t[b].d);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, g->t[c].d);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    if (m != NONE) set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, g->t[m].d);
    if (n != NONE) set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, g->t[n].d);
    if (k != NONE) set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, g->t[k].d);
    push(g, op, "matmul");
}

static void reshape(struct builder *g, int x, int y)
{
    desc op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, g->t[x].d);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, g->t[y].d);
    push(g, op, "reshape");
}

/* ---- attention */

/* Strides of b x h heads of d in rows of `row` elements. */
static struct quad heads_stride(int64_t row, int64_t s, int64_t d)
{
    return quad(s * row, d, row, 1);
}
static struct quad scores_dim(const struct sdpa_case *c)
{
    return quad(c->b, c->h, c->sq, c->skv);
}
static struct quad scores_stride(const struct sdpa_case *c)
{
    return quad(c->h * c->sq * c->skv, c->sq * c->skv, c->skv, 1);
}
static struct quad rows_dim(const struct sdpa_case *c)
{
    return quad(c->b, c->h, c->sq, 1);
}
static struct quad rows_stride(const struct sdpa_case *c)
{
    return quad(c->h * c->sq, c->sq, 1, 1);
}
/* Strides of a tensor with one f32 per row and head. */
static struct quad stats_stride(const struct sdpa_case *c)
{
    return c->ragged ? quad(c->h * c->sq, 1, c->h, 1) : rows_stride(c);
}

/* q, k, v, o, lse; k always transposed, v in backward. */
static void operands(struct builder *g)
{
    const struct sdpa_case *c = &g->plan->c;
    const cudnnDataType_t B = CUDNN_DATA_BFLOAT16;
    const struct quad one = quad(1, 1, 1, 1), count = quad(c->b, 1, 1, 1);
    int at_q = offsets(g, SDPA_AT_Q), at_k = offsets(g, SDPA_AT_K), at_v = offsets(g, SDPA_AT_V);
    int at_o = offsets(g, SDPA_AT_O), at_lse = offsets(g, SDPA_AT_LSE);
    if (c->ragged) {
        port(g, SDPA_LEN_Q, CUDNN_DATA_INT32, count, one, NONE);
        port(g, SDPA_LEN_KV, CUDNN_DATA_INT32, count, one, NONE);
    }
    struct quad k = quad(c->b, c->hk, c->skv, c->dqk), v = quad(c->b, c->hk, c->skv, c->dv);
    struct quad ks = heads_stride(c->k_stride, c->skv, c->dqk), vs = heads_stride(c->v_stride, c->skv, c->dv);
    bool backward = c->pass == ATTN_BWD;
    port(g, SDPA_Q, B, quad(c->b, c->h, c->sq, c->dqk), heads_stride(c->q_stride, c->sq, c->dqk), at_q);
    port(g, SDPA_K, B, swapped(k), swapped(ks), at_k);
    port(g, SDPA_V, B, backward ? swapped(v) : v, backward ? swapped(vs) : vs, at_v);
    port(g, SDPA_O, B, quad(c->b, c->h, c->sq, c->dv), heads_stride(c->o_stride, c->sq, c->dv), at_o);
    port(g, SDPA_LSE, CUDNN_DATA_FLOAT, rows_dim(c), stats_stride(c), at_lse);
}

/* scale Q K^T, with rows and columns past a document's end set to -inf. */
static int scores(struct builder *g, int scale)
{
    const struct sdpa_case *c = &g->plan->c;
    int len_q = g->port[SDPA_LEN_Q], len_kv = g->port[SDPA_LEN_KV];
    int s = virtual_tensor(g, CUDNN_DATA_FLOAT, scores_dim(c), scores_stride(c));
    matmul(g, g->port[SDPA_Q], g->port[SDPA_K], s, len_q, len_kv, NONE);
    int x = compute(g, CUDNN_POINTWISE_MUL, s, scale);
    if (!c->ragged) return x;
    int row = index_of(g, x, 2, CUDNN_DATA_INT32), col = index_of(g, x, 3, CUDNN_DATA_INT32);
    int in_row = compare(g, CUDNN_POINTWISE_CMP_LT, row, len_q);
    int in_col = compare(g, CUDNN_POINTWISE_CMP_LT, col, len_kv);
    return keep_where(g, x, compare(g, CUDNN_POINTWISE_LOGICAL_AND, in_row, in_col));
}

/* Row t sees column u iff u <= t and, with a window, u + window > t. */
static int band(struct builder *g, int x)
{
    const struct sdpa_case *c = &g->plan->c;
    int row = index_of(g, x, 2, CUDNN_DATA_FLOAT), col = index_of(g, x, 3, CUDNN_DATA_FLOAT);
    x = keep_where(g, x, compare(g, CUDNN_POINTWISE_CMP_GE, row, col));
    if (c->window == 0) return x;
    row = index_of(g, x, 2, CUDNN_DATA_FLOAT);
    col = index_of(g, x, 3, CUDNN_DATA_FLOAT);
    int reach = compute(g, CUDNN_POINTWISE_ADD, col, scalar(g, (float)c->window));
    return keep_where(g, x, compare(g, CUDNN_POINTWISE_CMP_GT, reach, row));
}

static void forward(struct builder *g)
{
    const struct sdpa_case *c = &g->plan->c;
    const cudnnDataType_t F = CUDNN_DATA_FLOAT;
    operands(g);
    int x = band(g, scores(g, scalar(g, (float)c->scale)));
    int max = virtual_tensor(g, F, rows_dim(c), rows_stride(c));
    reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, max);
    int e = compute(g, CUDNN_POINTWISE_EXP, compute(g, CUDNN_POINTWISE_SUB, x, max), NONE);
    int sum = virtual_tensor(g, F, rows_dim(c), rows_stride(c));
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, sum);
    pointwise(g, CUDNN_POINTWISE_ADD, F, max, compute(g, CUDNN_POINTWISE_LOG, sum, NONE), g->port[SDPA_LSE]);
    int p = virtual_tensor(g, CUDNN_DATA_BFLOAT16, scores_dim(c), scores_stride(c));
    pointwise(g, CUDNN_POINTWISE_DIV, F, e, sum, p);
    matmul(g, p, g->port[SDPA_V], g->port[SDPA_O], g->port[SDPA_LEN_Q], NONE, g->port[SDPA_LEN_KV]);
}

/* bf16(x)^T, [b, h, skv, sq]. */
static int transposed(struct builder *g, int x)
{
    const struct sdpa_case *c = &g->plan->c;
    int y =
        virtual_tensor(g, CUDNN_DATA_BFLOAT16, quad(c->b, c->h, c->skv, c->sq), swapped(scores_stride(c)));
    reshape(g, x, y);
    return y;
}

/* Gradient of k or v: out = a^T b, summed over the query heads of each kv head. */
static void grad_kv(struct builder *g, int a, int b, enum sdpa_port out, enum sdpa_port full, int at)
{
    const struct sdpa_case *c = &g->plan->c;
    const int64_t group = c->h / c->hk, d = out == SDPA_DK ? c->dqk : c->dv;
    const int64_t row = out == SDPA_DK ? c->dk_stride : c->dv_stride;
    int len_q = g->port[SDPA_LEN_Q], len_kv = g->port[SDPA_LEN_KV];
    int y = port(g, out, CUDNN_DATA_BFLOAT16, quad(c->b, c->hk, c->skv, d), heads_stride(row, c->skv, d), at);
    if (group == 1) {
        matmul(g, a, b, y, len_kv, NONE, len_q);
        return;
    }
    const struct quad dim = quad(c->b, c->h, c->skv, d);
    int per_head;
    if (c->ragged) /* the engine repeats `at` for the group here */
        per_head = port(g, full, CUDNN_DATA_BFLOAT16, dim, heads_stride(row * group, c->skv, d), at);
    else
        per_head = virtual_tensor(g, CUDNN_DATA_BFLOAT16, dim, quad(c->h * c->skv * d, c->skv * d, d, 1));
    matmul(g, a, b, per_head, len_kv, NONE, len_q);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, per_head, y);
}

/* The offsets of a gradient: those of its operand if rows are equally wide. */
static int grad_offsets(struct builder *g, enum sdpa_port mine, int64_t stride, enum sdpa_port operand,
                        int64_t operand_stride)
{
    return stride == operand_stride ? g->port[operand] : offsets(g, mine);
}

/* delta = sum over d of dO O. */
static int delta_of(struct builder *g, int grad_o)
{
    const struct sdpa_case *c = &g->plan->c;
    const cudnnDataType_t F = CUDNN_DATA_FLOAT;
    int terms = virtual_tensor(g, F, quad(c->b, c->h, c->sq, c->dv),
                               quad(c->h * c->sq * c->dv, c->sq * c->dv, c->h * c->dv, 1));
    pointwise(g, CUDNN_POINTWISE_MUL, F, grad_o, g->port[SDPA_O], terms);
    int sum = virtual_tensor(g, F, rows_dim(c), rows_stride(c));
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, terms, sum);
    int delta = port(g, SDPA_DELTA, F, rows_dim(c), stats_stride(c), g->port[SDPA_AT_LSE]);
    pointwise(g, CUDNN_POINTWISE_MUL, F, sum, scalar(g, 1), delta);
    return delta;
}

static void backward(struct builder *g)
{
    const struct sdpa_case *c = &g->plan->c;
    const cudnnDataType_t B = CUDNN_DATA_BFLOAT16;
    operands(g);
    int len_q = g->port[SDPA_LEN_Q], len_kv = g->port[SDPA_LEN_KV];
    int at_dq = grad_offsets(g, SDPA_AT_DQ, c->dq_stride, SDPA_AT_Q, c->q_stride);
    int at_dk = grad_offsets(g, SDPA_AT_DK, c->dk_stride, SDPA_AT_K, c->k_stride);
    int at_dv = grad_offsets(g, SDPA_AT_DV, c->dv_stride, SDPA_AT_V, c->v_stride);
    int grad_o = port(g, SDPA_DO, B, quad(c->b, c->h, c->sq, c->dv), heads_stride(c->o_stride, c->sq, c->dv),
                      g->port[SDPA_AT_O]);
    int scale = scalar(g, (float)c->scale), delta = delta_of(g, grad_o);
    int x = compute(g, CUDNN_POINTWISE_SUB, scores(g, scale), g->port[SDPA_LSE]);
    int p = compute(g, CUDNN_POINTWISE_EXP, band(g, x), NONE);
    grad_kv(g, transposed(g, p), grad_o, SDPA_DV, SDPA_DV_FULL, at_dv);

    int dp = virtual_tensor(g, CUDNN_DATA_FLOAT, scores_dim(c), scores_stride(c));
    matmul(g, grad_o, g->port[SDPA_V], dp, len_q, len_kv, NONE);
    int ds = compute(g, CUDNN_POINTWISE_SUB, dp, delta);
    ds = compute(g, CUDNN_POINTWISE_MUL, ds, p);
    ds = compute(g, CUDNN_POINTWISE_MUL, ds, scale);
    grad_kv(g, transposed(g, ds), g->port[SDPA_Q], SDPA_DK, SDPA_DK_FULL, at_dk);

    int k = tensor(g, SDPA_PORT_COUNT + 1 + g->tensors, CUDNN_DATA_FLOAT, quad(c->b, c->hk, c->skv, c->dqk),
                   heads_stride(c->k_stride, c->skv, c->dqk), VIRTUAL, g->port[SDPA_AT_K]);
    reshape(g, g->port[SDPA_K], k);
    int dq = port(g, SDPA_DQ, B, quad(c->b, c->h, c->sq, c->dqk), heads_stride(c->dq_stride, c->sq, c->dqk),
                  at_dq);
    if (!c->atomic) {
        matmul(g, ds, k, dq, len_q, NONE, len_kv);
        return;
    }
    int acc = port(g, SDPA_DQ_ACC, CUDNN_DATA_FLOAT, quad(c->b, c->h, c->sq, c->dqk),
                   quad(c->h * c->sq * c->dqk, c->sq * c->dqk, c->dqk, 1), NONE);
    matmul(g, ds, k, acc, len_q, NONE, len_kv);
    pointwise(g, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, acc, NONE, dq);
}

/* ---- plans */

static desc operation_graph(struct builder *g)
{
    desc graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnnHandle_t handle = g->target->handle;
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->ops, g->op);
    if (handle) set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finish(g, graph, "operation graph");
    return graph;
}

/* On sm_100 and sm_103 the deterministic backward kernel must be requested by name. */
static desc named_config(struct builder *g, desc graph)
{
    const int64_t index = 5;
    const struct {
        cudnnBackendKnobType_t type;
        int64_t value;
    } knob[2] = {{CUDNN_KNOB_TYPE_KERNEL_CFG, 31}, {CUDNN_KNOB_TYPE_STAGES, 2}};
    desc choice[2];
    desc engine = make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    set_desc(g, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
    set(g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    if (g->target->properties) set_desc(g, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, g->target->properties);
    finish(g, engine, "the deterministic backward engine");
    for (int i = 0; i < 2; i++) {
        choice[i] = make(g, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        set(g, choice[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &knob[i].type);
        set(g, choice[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &knob[i].value);
        finish(g, choice[i], "knob");
    }
    desc config = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    set_desc(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    set(g, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, 2, choice);
    finish(g, config, "engine configuration");
    return config;
}

/* Takes the heuristics' first proposal. The second is mostly twice as slow, on packed data up to 140 times. */
static desc best_config(struct builder *g, desc graph)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0;
    desc config = NULL, heuristics = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (g->target->properties)
        set_desc(g, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->target->properties);
    finish(g, heuristics, "heuristics");
    config = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->st != STATUS_OK) return NULL;
    cudnnStatus_t err = cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &config);
    if (err != CUDNN_STATUS_SUCCESS || count == 0) g->st = sdpa_error((int)err, "no engine serves the graph");
    return config;
}

/* The engine's name, for the log. */
static void read_engine(struct builder *g, desc config)
{
    int64_t count = 0;
    desc engine = make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (g->st != STATUS_OK) return;
    cudnnStatus_t err = cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine);
    if (err == CUDNN_STATUS_SUCCESS)
        err = cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                                       &g->plan->engine);
    if (err != CUDNN_STATUS_SUCCESS) g->st = sdpa_error((int)err, "read the engine");
}

static void build_plan(struct builder *g)
{
    struct sdpa_plan *p = g->plan;
    int64_t count = 0;
    desc graph = operation_graph(g);
    bool named = p->c.pass == ATTN_BWD && !p->c.atomic && g->target->sm / 10 == 10;
    desc config = named ? named_config(g, graph) : best_config(g, graph);
    read_engine(g, config);
    p->plan = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_desc(g, p->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    finish(g, p->plan, "execution plan");
    if (g->st != STATUS_OK) return;
    cudnnStatus_t err = cudnnBackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                 CUDNN_TYPE_INT64, 1, &count, &p->workspace);
    if (err != CUDNN_STATUS_SUCCESS) g->st = sdpa_error((int)err, "workspace of the plan");
}

status sdpa_plan_open(struct sdpa_plan **plan, const struct sdpa_case *c, const struct sdpa_target *t)
{
    CHECK(c->b > 0 && c->sq > 0 && c->skv > 0, "b %lld sq %lld skv %lld", (long long)c->b, (long long)c->sq,
          (long long)c->skv);
    CHECK(c->hk > 0 && c->h % c->hk == 0, "%lld query heads, %lld kv heads", (long long)c->h,
          (long long)c->hk);
    struct sdpa_plan *p = calloc(1, sizeof *p);
    struct builder *g = calloc(1, sizeof *g);
    if (p == NULL || g == NULL) {
        free(p);
        free(g);
        return FAIL(STATUS_OUT_OF_MEMORY, "no memory for an attention plan");
    }
    p->c = *c;
    *g = (struct builder){.target = t, .plan = p};
    for (int i = 0; i < SDPA_PORT_COUNT; i++) g->port[i] = NONE;
    if (c->pass == ATTN_FWD)
        forward(g);
    else
        backward(g);
    build_plan(g);
    status st = g->st;
    free(g);
    if (st == STATUS_OK)
        *plan = p;
    else
        sdpa_plan_close(p);
    return st;
}

void sdpa_plan_close(struct sdpa_plan *plan)
{
    if (plan == NULL) return;
    for (int i = plan->held_count - 1; i >= 0; i--) (void)cudnnBackendDestroyDescriptor(plan->held[i]);
    free(plan);
}

const struct sdpa_case *sdpa_plan_case(const struct sdpa_plan *plan)
{
    return &plan->c;
}

size_t sdpa_plan_workspace(const struct sdpa_plan *plan)
{
    return (size_t)plan->workspace;
}

int sdpa_plan_engine(const struct sdpa_plan *plan)
{
    return (int)plan->engine;
}

status sdpa_plan_run(const struct sdpa_plan *plan, struct cudnnContext *handle,
                     void *const memory[SDPA_PORT_COUNT], void *workspace)
{
    int64_t uid[SDPA_PORT_COUNT + SCALARS_MAX], count = 0;
    const void *at[SDPA_PORT_COUNT + SCALARS_MAX];
    for (int i = 0; i < SDPA_PORT_COUNT; i++) {
        if (!plan->uses[i]) continue;
        CHECK(memory[i] != NULL, "attention: port %d has no memory", i);
        uid[count] = i + 1;
        at[count++] = memory[i];
    }
    for (int i = 0; i < plan->scalars; i++) {
        uid[count] = plan->scalar_uid[i];
        at[count++] = &plan->scalar[i];
    }
    desc pack = NULL;
    cudnnStatus_t err = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (err == CUDNN_STATUS_SUCCESS)
        err = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                       count, at);
    if (err == CUDNN_STATUS_SUCCESS)
        err =
            cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uid);
    if (err == CUDNN_STATUS_SUCCESS)
        err = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                       &workspace);
    if (err == CUDNN_STATUS_SUCCESS) err = cudnnBackendFinalize(pack);
    if (err == CUDNN_STATUS_SUCCESS) err = cudnnBackendExecute(handle, plan->plan, pack);
    status st = err == CUDNN_STATUS_SUCCESS ? STATUS_OK : sdpa_error((int)err, "run an attention plan");
    if (pack) (void)cudnnBackendDestroyDescriptor(pack);
    return st;
}

/* ---- targets without a GPU */

status sdpa_target_open(struct sdpa_target *t, int sm, const char *json)
{
    *t = (struct sdpa_target){.sm = sm};
    TRY_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &t->properties),
              "device properties");
    TRY_CUDNN(cudnnBackendSetAttribute(t->properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                       CUDNN_TYPE_CHAR, (int64_t)strlen(json) + 1, json),
              "device properties");
    TRY_CUDNN(cudnnBackendFinalize(t->properties), "device properties");
    return STATUS_OK;
}

void sdpa_target_close(struct sdpa_target *t)
{
    if (t->properties) (void)cudnnBackendDestroyDescriptor(t->properties);
    *t = (struct sdpa_target){0};
}
