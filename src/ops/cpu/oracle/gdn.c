#include "base/parallel.h"
#include "ops/cpu/oracle/oracle.h"

#include <stdlib.h>
#include <string.h>

static const double L2_EPS = 1e-6;

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double silu(double x)
{
    return x * sigmoid(x);
}
static double silu_slope(double x)
{
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
}

/* ---- convolution */

struct document {
    int64_t begin, end;
};
static struct document document_of(const int32_t *cu, int64_t i)
{
    return (struct document){cu[i], cu[i + 1]};
}

static status conv_fwd(const struct conv_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    CHECK(a->width >= 2 && a->width <= CONV_WIDTH_MAX, "a convolution over %lld rows", (long long)a->width);
    CHECK(!a->before || a->docs == 1 || a->docs == a->rows, "rows before the first of %lld in %lld documents",
          (long long)a->rows, (long long)a->docs);
    const int64_t dilation = conv_dilation(a->dilation), back = (a->width - 1) * dilation;
    for (int64_t d = 0; d < a->docs; d++) {
        struct document doc = document_of(a->cu_seqlens, d);
        PARALLEL_CHUNKS(c, a->channels)
        {
            for (int64_t t = doc.begin; t < doc.end; t++) {
                double p = a->bias ? get(a->bias, c, a->dt) : 0;
                for (int64_t j = 0; j < a->width; j++) {
                    int64_t from = t - back + j * dilation;
                    double w = get(a->w, c * a->width + j, a->dt);
                    if (from >= doc.begin)
                        p += w * get(a->x, from * a->x_stride + c, a->dt);
                    else if (a->before)
                        p += w * get(a->before, (from - doc.begin + (d + 1) * back) * a->channels + c, a->dt);
                }
                put(a->y, t * a->y_stride + c, a->dt, silu(p));
            }
        }
    }
    return STATUS_OK;
}

/* dy silu'(p) at row t. */
static double conv_slope(const struct conv_bwd_args *a, struct document doc, int64_t t, int64_t c)
{
    double p = a->bias ? get(a->bias, c, a->dt) : 0;
    for (int64_t j = 0; j < a->width; j++) {
        int64_t from = t - (a->width - 1 - j) * conv_dilation(a->dilation);
        if (from >= doc.begin)
            p += get(a->w, c * a->width + j, a->dt) * get(a->x, from * a->x_stride + c, a->dt);
    }
    return get(a->dy, t * a->dy_stride + c, a->dt) * silu_slope(p);
}

static status conv_bwd(const struct conv_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt);
    PARALLEL_CHUNKS(c, a->channels)
    {
        double dw[CONV_WIDTH_MAX] = {0}, dbias = 0;
        for (int64_t d = 0; d < a->docs; d++) {
            struct document doc = document_of(a->cu_seqlens, d);
            for (int64_t t = doc.begin; t < doc.end; t++) {
                double dx = 0;
                if (a->bias) dbias += conv_slope(a, doc, t, c);
                for (int64_t j = 0; j < a->width; j++) {
                    const int64_t off = (a->width - 1 - j) * conv_dilation(a->dilation);
                    int64_t from = t - off, to = t + off;
                    if (from >= doc.begin)
                        dw[j] += conv_slope(a, doc, t, c) * get(a->x, from * a->x_stride + c, a->dt);
                    if (to < doc.end) dx += get(a->w, c * a->width + j, a->dt) * conv_slope(a, doc, to, c);
                }
                put(a->dx, t * a->dx_stride + c, a->dt, dx);
            }
        }
        for (int64_t j = 0; j < a->width; j++)
            put(a->dw, c * a->width + j, acc, get(a->dw, c * a->width + j, acc) + dw[j]);
        if (a->bias) put(a->dbias, c, acc, get(a->dbias, c, acc) + dbias);
    }
    return STATUS_OK;
}

/* ---- gates */

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static status gates_fwd(const struct gates_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt);
    for (int64_t t = 0; t < a->rows; t++) {
        for (int64_t h = 0; h < a->heads; h++) {
            double rate = exp(get(a->a_log, h, acc)),
                   x = get(a->a, t * a->stride + h, a->dt) + get(a->dt_bias, h, acc);
            put(a->g, t * a->heads + h, acc, -rate * softplus(x));
            put(a->beta, t * a->heads + h, acc, sigmoid(get(a->b, t * a->stride + h, a->dt)));
        }
    }
    return STATUS_OK;
}

static status gates_bwd(const struct gates_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt);
    for (int64_t h = 0; h < a->heads; h++) {
        double rate = exp(get(a->a_log, h, acc)), da_log = 0, ddt_bias = 0;
        for (int64_t t = 0; t < a->rows; t++) {
            double x = get(a->a, t * a->stride + h, a->dt) + get(a->dt_bias, h, acc),
                   dg = get(a->dg, t * a->heads + h, acc);
            double da = -dg * rate * sigmoid(x), beta = sigmoid(get(a->b, t * a->stride + h, a->dt));
            da_log -= dg * rate * softplus(x);
            ddt_bias += da;
            put(a->da, t * a->d_stride + h, a->dt, da);
            put(a->db, t * a->d_stride + h, a->dt, get(a->dbeta, t * a->heads + h, acc) * beta * (1 - beta));
        }
        put(a->da_log, h, acc, get(a->da_log, h, acc) + da_log);
        put(a->ddt_bias, h, acc, get(a->ddt_bias, h, acc) + ddt_bias);
    }
    return STATUS_OK;
}

/* ---- the gated norm */

static status gated_norm_fwd(const struct gated_norm_fwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    PARALLEL_CHUNKS(r, a->rows * a->heads)
    {
        const int64_t t = r / a->heads, h = r % a->heads;
        double squares = 0;
        for (int64_t j = 0; j < a->d; j++)
            squares += get(a->x, r * a->d + j, a->dt) * get(a->x, r * a->d + j, a->dt);
        const double rstd = 1 / sqrt(squares / (double)a->d + a->eps);
        for (int64_t j = 0; j < a->d; j++) {
            double z = get(a->z, t * a->z_stride + h * a->d + j, a->dt);
            put(a->y, r * a->d + j, a->dt,
                get(a->w, j, a->dt) * get(a->x, r * a->d + j, a->dt) * rstd * silu(z));
        }
        if (a->rstd) put(a->rstd, r, dtype_acc(a->dt), rstd);
    }
    return STATUS_OK;
}

static status gated_norm_bwd(const struct gated_norm_bwd_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    const dtype acc = dtype_acc(a->dt);
    PARALLEL_CHUNKS(j, a->d) /* before dx, which may alias dy */
    {
        double dw = 0;
        for (int64_t r = 0; r < a->rows * a->heads; r++) {
            double z = get(a->z, r / a->heads * a->z_stride + r % a->heads * a->d + j, a->dt);
            dw += get(a->dy, r * a->d + j, a->dt) * silu(z) * get(a->x, r * a->d + j, a->dt) *
                  get(a->rstd, r, acc);
        }
        put(a->dw, j, acc, get(a->dw, j, acc) + dw);
    }
    PARALLEL_CHUNKS(r, a->rows * a->heads)
    {
        const int64_t t = r / a->heads, h = r % a->heads;
        const double rstd = get(a->rstd, r, acc);
        double mean = 0; /* of g xh, g = w dy silu(z) */
        for (int64_t j = 0; j < a->d; j++) {
            double z = get(a->z, t * a->z_stride + h * a->d + j, a->dt),
                   xh = get(a->x, r * a->d + j, a->dt) * rstd;
            mean += get(a->w, j, a->dt) * get(a->dy, r * a->d + j, a->dt) * silu(z) * xh / (double)a->d;
        }
        for (int64_t j = 0; j < a->d; j++) {
            const int64_t zi = t * a->z_stride + h * a->d + j;
            double z = get(a->z, zi, a->dt), xh = get(a->x, r * a->d + j, a->dt) * rstd,
                   w = get(a->w, j, a->dt), dy = get(a->dy, r * a->d + j, a->dt);
            put(a->dz, t * a->dz_stride + h * a->d + j, a->dt, dy * w * xh * silu_slope(z));
            put(a->dx, r * a->d + j, a->dt, rstd * (w * dy * silu(z) - xh * mean));
        }
    }
    return STATUS_OK;
}

/* ---- the delta rule, row by row */

struct head { /* one value head of one document */
    struct document doc;
    int64_t h, hk;
    double *q, *k; /* [dk]: of the current row, normalised */
    double *v, *u; /* [dv] */
    double rho_q, rho_k;
};

struct operands { /* inputs of both passes */
    const void *q, *k, *v, *g, *beta;
    int64_t q_stride, k_stride, v_stride;
    const struct delta_shape *shape;
    bool normalize;
};

static double load_unit(const void *from, int64_t at, int64_t n, dtype dt, bool normalize, double *to)
{
    double squares = 0, rho = 1;
    for (int64_t i = 0; i < n; i++) to[i] = get(from, at + i, dt), squares += to[i] * to[i];
    if (normalize) rho = 1 / sqrt(squares + L2_EPS);
    for (int64_t i = 0; i < n; i++) to[i] *= rho;
    return rho;
}

static void load_row(const struct operands *o, struct head *w, int64_t t)
{
    const struct delta_shape *n = o->shape;
    w->rho_q = load_unit(o->q, t * o->q_stride + w->hk * n->dk, n->dk, n->dt, o->normalize, w->q);
    w->rho_k = load_unit(o->k, t * o->k_stride + w->hk * n->dk, n->dk, n->dt, o->normalize, w->k);
    for (int64_t j = 0; j < n->dv; j++) w->v[j] = get(o->v, t * o->v_stride + w->h * n->dv + j, n->dt);
}

/* Updates S to the state after row t, whose q, k, v are loaded; also computes u. */
static void advance(const struct operands *o, struct head *w, int64_t t, double *state)
{
    const struct delta_shape *n = o->shape;
    const dtype acc = dtype_acc(n->dt);
    const double decay = exp(get(o->g, t * n->heads + w->h, acc));
    const double beta = o->beta ? get(o->beta, t * n->heads + w->h, acc) : 1;
    for (int64_t j = 0; j < n->dv; j++) {
        double read = 0;
        for (int64_t i = 0; i < n->dk; i++) {
            state[i * n->dv + j] *= decay;
            read += state[i * n->dv + j] * w->k[i];
        }
        w->u[j] = o->beta ? beta * (w->v[j] - read) : w->v[j];
        for (int64_t i = 0; i < n->dk; i++) state[i * n->dv + j] += w->k[i] * w->u[j];
    }
}

static void *memory(int64_t doubles)
{
    void *p = calloc((size_t)doubles, sizeof(double));
    MEMORY_CHECK(p != NULL, "no memory for %lld numbers of the oracle", (long long)doubles);
    return p;
}

static struct head head_open(const struct delta_shape *n, const int32_t *cu, int64_t doc, int64_t h)
{
    double *block = memory(2 * n->dk + 2 * n->dv);
    return (struct head){.doc = document_of(cu, doc),
                         .h = h,
                         .hk = h / (n->heads / n->heads_k),
                         .q = block,
                         .k = block + n->dk,
                         .v = block + 2 * n->dk,
                         .u = block + 2 * n->dk + n->dv};
}

static void check_delta(const struct delta_shape *n)
{
    check_dt(n->dt);
    CHECK(n->heads_k > 0 && n->heads % n->heads_k == 0, "%lld value heads over %lld key heads",
          (long long)n->heads, (long long)n->heads_k);
}

static status delta_fwd(const struct delta_fwd_args *a, dev_stream s)
{
    (void)s;
    const struct delta_shape *n = &a->shape;
    const struct operands o = {a->q,        a->k,        a->v,        a->g, a->beta,
                               a->q_stride, a->k_stride, a->v_stride, n,    a->normalize};
    const dtype acc = dtype_acc(n->dt);
    const int64_t size = n->dk * n->dv;
    check_delta(n);
    PARALLEL_CHUNKS(c, n->docs * n->heads)
    {
        struct head w = head_open(n, a->cu_seqlens, c / n->heads, c % n->heads);
        double *state = memory(size);
        for (int64_t i = 0; a->state_in && i < size; i++) state[i] = get(a->state_in, c * size + i, acc);
        for (int64_t t = w.doc.begin; t < w.doc.end; t++) {
            load_row(&o, &w, t);
            advance(&o, &w, t, state);
            for (int64_t j = 0; j < n->dv; j++) {
                double sum = 0;
                for (int64_t i = 0; i < n->dk; i++) sum += state[i * n->dv + j] * w.q[i];
                put(a->o, (t * n->heads + w.h) * n->dv + j, n->dt, a->scale * sum);
            }
        }
        for (int64_t i = 0; a->state_out && i < size; i++) put(a->state_out, c * size + i, acc, state[i]);
        free(w.q);
        free(state);
    }
    return STATUS_OK;
}

struct gradients {   /* of one value head: rows of the document */
    double *dq, *dk; /* [len, dk]: of the normalised q and k */
};

/* Row t of the backward. state: after row t; before: before it. d_state: in: gradient of the state after row
 * t; out: of the state before it. */
static void retreat(const struct delta_bwd_args *a, const struct operands *o, struct head *w, int64_t t,
                    const double *state, const double *before, double *d_state, double *dq, double *dk)
{
    const struct delta_shape *n = o->shape;
    const dtype acc = dtype_acc(n->dt);
    const double decay = exp(get(a->g, t * n->heads + w->h, acc));
    const double beta = a->beta ? get(a->beta, t * n->heads + w->h, acc) : 1;
    double dbeta = 0, d_decay = 0;
    for (int64_t j = 0; j < n->dv; j++) {
        const double d_o = a->scale * get(a->do_, (t * n->heads + w->h) * n->dv + j, n->dt);
        double du = 0, read = 0;
        for (int64_t i = 0; i < n->dk; i++) {
            double *ds = &d_state[i * n->dv + j];
            *ds += w->q[i] * d_o;
            dq[i] += state[i * n->dv + j] * d_o;
            du += *ds * w->k[i];
            read += decay * before[i * n->dv + j] * w->k[i];
        }
        const double u = a->beta ? beta * (w->v[j] - read) : w->v[j];
        put(a->dv, t * a->dv_stride + w->h * n->dv + j, n->dt, beta * du);
        dbeta += du * (w->v[j] - read);
        for (int64_t i = 0; i < n->dk; i++) {
            double *ds = &d_state[i * n->dv + j];
            dk[i] += *ds * u;
            if (a->beta) {
                dk[i] -= decay * before[i * n->dv + j] * beta * du;
                *ds -= w->k[i] * beta * du;
            }
            d_decay += *ds * before[i * n->dv + j];
            *ds *= decay;
        }
    }
    put(a->dg, t * n->heads + w->h, acc, d_decay * decay);
    if (a->beta) put(a->dbeta, t * n->heads + w->h, acc, dbeta);
}

/* One value head of one document; adds to the key head's dq and dk. */
static void head_bwd(const struct delta_bwd_args *a, const struct operands *o, struct head *w,
                     struct gradients d)
{
    const struct delta_shape *n = o->shape;
    const int64_t size = n->dk * n->dv, len = w->doc.end - w->doc.begin;
    double *states = memory((len + 2) * size),
           *d_state = states + (len + 1) * size; /* states[i]: before row i */
    for (int64_t i = 0; i < len; i++) {
        memcpy(states + (i + 1) * size, states + i * size, (size_t)size * sizeof *states);
        load_row(o, w, w->doc.begin + i);
        advance(o, w, w->doc.begin + i, states + (i + 1) * size);
    }
    for (int64_t i = len - 1; i >= 0; i--) {
        load_row(o, w, w->doc.begin + i);
        retreat(a, o, w, w->doc.begin + i, states + (i + 1) * size, states + i * size, d_state,
                d.dq + i * n->dk, d.dk + i * n->dk);
    }
    free(states);
}

/* From the gradient of a normalised row y = rho x to that of x. */
static void store_unit(void *to, int64_t at, int64_t n, dtype dt, bool normalize, double rho, const double *y,
                       const double *dy)
{
    double along = 0;
    for (int64_t i = 0; normalize && i < n; i++) along += y[i] * dy[i];
    for (int64_t i = 0; i < n; i++) put(to, at + i, dt, rho * (dy[i] - y[i] * along));
}

static status delta_bwd(const struct delta_bwd_args *a, dev_stream s)
{
    (void)s;
    const struct delta_shape *n = &a->shape;
    const struct operands o = {a->q,        a->k,        a->v,        a->g, a->beta,
                               a->q_stride, a->k_stride, a->v_stride, n,    a->normalize};
    const int64_t group = n->heads / n->heads_k;
    check_delta(n);
    PARALLEL_CHUNKS(c, n->docs * n->heads_k)
    {
        const int64_t doc = c / n->heads_k, hk = c % n->heads_k;
        struct document rows = document_of(a->cu_seqlens, doc);
        const int64_t len = rows.end - rows.begin;
        struct gradients d = {.dq = memory(2 * len * n->dk + 1)};
        d.dk = d.dq + len * n->dk;
        for (int64_t i = 0; i < group; i++) {
            struct head w = head_open(n, a->cu_seqlens, doc, hk * group + i);
            head_bwd(a, &o, &w, d);
            for (int64_t t = 0; i == group - 1 && t < len; t++) {
                load_row(&o, &w, rows.begin + t);
                store_unit(a->dq, (rows.begin + t) * a->dq_stride + hk * n->dk, n->dk, n->dt, a->normalize,
                           w.rho_q, w.q, d.dq + t * n->dk);
                store_unit(a->dk, (rows.begin + t) * a->dk_stride + hk * n->dk, n->dk, n->dt, a->normalize,
                           w.rho_k, w.k, d.dk + t * n->dk);
            }
            free(w.q);
        }
        free(d.dq);
    }
    return STATUS_OK;
}

static size_t delta_bytes(const struct delta_shape *shape, enum delta_memory what)
{
    (void)shape, (void)what;
    return 0;
}

void oracle_gdn(struct ops *o)
{
    o->conv_fwd = conv_fwd;
    o->conv_bwd = conv_bwd;
    o->gates_fwd = gates_fwd;
    o->gates_bwd = gates_bwd;
    o->delta_fwd = delta_fwd;
    o->delta_bwd = delta_bwd;
    o->gated_norm_fwd = gated_norm_fwd;
    o->gated_norm_bwd = gated_norm_bwd;
    o->delta_bytes = delta_bytes;
}
