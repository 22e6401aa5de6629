/* The ops around the delta rule: the short causal convolution with SiLU, and the gated norm. Rows are cut into
 * chunks. Vectors run along the channels; the taps are transposed to rows of their own beforehand. */
#include "base/parallel.h"
#include "ops/cpu/partial.h"
#include "ops/cpu/simd/simd.h"
#include "ops/cpu/simd/vecmath.h"
#include "ops/cpu/workspace.h"

#include <math.h>

enum { GRAIN = 64, COLUMNS = 1024 };

/* sigmoid(x) for any x. */
VEC_INLINE struct vec_sigmoid sigmoid(vf x)
{
    return vec_sigmoid(vec_clamp(x, -SIGMOID_END, SIGMOID_END));
}

/* taps[j][c] = w[c][j] */
static const float *taps_of(const void *w, int64_t channels, int64_t width, int64_t pad, dtype dt)
{
    float *taps = workspace_get(WORKSPACE_SHARED, (size_t)(width * pad) * sizeof *taps);
    for (int64_t j = 0; j < width; j++)
        for (int64_t c = 0; c < channels; c++) taps[j * pad + c] = (float)dtype_load(w, c * width + j, dt);
    return taps;
}

struct conv {
    const void *x, *bias, *before;
    const float *taps;                                    /* [width] lines of pad */
    int64_t stride, channels, width, dilation, back, pad; /* back: how far the first tap reads back */
    const int32_t *cu;
    int64_t docs;
    dtype dt;
};

/* The document of row t, searched from an earlier row's document. */
static int64_t document(const struct conv *v, int64_t t, int64_t doc)
{
    while (doc + 1 < v->docs && v->cu[doc + 1] <= t) doc++;
    return doc;
}

static int64_t document_first(const struct conv *v, int64_t t)
{
    int64_t low = 0, high = v->docs; /* cu[low] <= t < cu[high] */
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (v->cu[middle] <= t)
            low = middle;
        else
            high = middle;
    }
    return document(v, t, low);
}

/* p of row t at channels [c, c + n): the sum over the taps whose rows are in the document, or before it: documents with
 * such rows have one row each, or there is one, so document `begin` starts at row `begin`. */
VEC_INLINE vf taps_sum(const struct conv *v, int64_t begin, int64_t t, int64_t c, int n, dtype dt)
{
    vf p = {0};
    if (v->bias) p = vec_load(v->bias, c, n, dt);
    for (int64_t j = 0; j < v->width; j++) {
        const int64_t from = t - v->back + j * v->dilation;
        if (from >= begin)
            p += vec_load(v->taps, j * v->pad + c, VEC, DTYPE_F32) *
                 vec_load(v->x, from * v->stride + c, n, dt);
        else if (v->before)
            p += vec_load(v->taps, j * v->pad + c, VEC, DTYPE_F32) *
                 vec_load(v->before, (from - begin + (begin + 1) * v->back) * v->channels + c, n, dt);
    }
    return p;
}

static struct conv conv_open(const void *x, const void *w, int64_t stride, int64_t channels, int64_t width,
                             int64_t dilation, const int32_t *cu, int64_t docs, dtype dt)
{
    dilation = conv_dilation(dilation);
    CHECK(dilation <= CONV_DILATION_MAX, "taps %lld rows apart", (long long)dilation);
    CHECK(dt == DTYPE_F32 || dt == DTYPE_BF16, "dtype %s", dtype_name(dt));
    CHECK(width >= 2 && width <= CONV_WIDTH_MAX, "a convolution over %lld rows", (long long)width);
    const int64_t pad = partial_pad(channels);
    return (struct conv){.x = x,
                         .taps = taps_of(w, channels, width, pad, dt),
                         .stride = stride,
                         .channels = channels,
                         .width = width,
                         .dilation = dilation,
                         .back = (width - 1) * dilation,
                         .pad = pad,
                         .cu = cu,
                         .docs = docs,
                         .dt = dt};
}

VEC_INLINE void conv_row(const struct conv *v, int64_t begin, int64_t t, void *y, int64_t y_stride, dtype dt)
{
    for (int64_t c = 0; c < v->channels; c += VEC) {
        const int n = vec_n(v->channels - c);
        const vf p = taps_sum(v, begin, t, c, n, dt);
        vec_store(y, t * y_stride + c, n, dt, p * sigmoid(p).yes);
    }
}

static status conv_fwd(const struct conv_fwd_args *a, dev_stream s)
{
    (void)s;
    CHECK(!a->before || a->docs == 1 || a->docs == a->rows, "rows before the first of %lld in %lld documents",
          (long long)a->rows, (long long)a->docs);
    struct conv v =
        conv_open(a->x, a->w, a->x_stride, a->channels, a->width, a->dilation, a->cu_seqlens, a->docs, a->dt);
    v.before = a->before;
    v.bias = a->bias;
    PARALLEL_CHUNKS(chunk, chunk_count(a->rows, GRAIN))
    {
        const struct span rows = chunk_span(chunk, a->rows, GRAIN);
        for (int64_t t = rows.begin, doc = document_first(&v, t); t < rows.end; t++) {
            doc = document(&v, t, doc);
            if (a->dt == DTYPE_F32)
                conv_row(&v, v.cu[doc], t, a->y, a->y_stride, DTYPE_F32);
            else
                conv_row(&v, v.cu[doc], t, a->y, a->y_stride, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

/* dp = dy silu'(p) of rows [first, last) of one document into lines of `pad` floats. */
VEC_INLINE void slopes(const struct conv_bwd_args *a, const struct conv *v, int64_t begin, struct span rows,
                       float *dp, dtype dt)
{
    for (int64_t t = rows.begin; t < rows.end; t++) {
        for (int64_t c = 0; c < v->channels; c += VEC) {
            const int n = vec_n(v->channels - c);
            const vf p = taps_sum(v, begin, t, c, n, dt);
            const struct vec_sigmoid g = sigmoid(p);
            const vf slope = g.yes * (1.f + p * g.no);
            vec_store(dp, (t - rows.begin) * v->pad + c, VEC, DTYPE_F32,
                      vec_load(a->dy, t * a->dy_stride + c, n, dt) * slope);
        }
    }
}

/* dx of rows [rows.begin, rows.end), whose document ends at `end`; dp begins at rows.begin. dw: [width]
 * lines, and one for the bias, +=. */
VEC_INLINE void conv_back(const struct conv_bwd_args *a, const struct conv *v, int64_t begin, int64_t end,
                          struct span rows, const float *dp, float *dw, dtype dt)
{
    for (int64_t t = rows.begin; t < rows.end; t++) {
        for (int64_t c = 0; c < v->channels; c += VEC) {
            const int n = vec_n(v->channels - c);
            vf dx = {0};
            for (int64_t j = 0; j < v->width; j++) {
                const int64_t off = v->back - j * v->dilation, to = t + off, from = t - off;
                if (to < end)
                    dx += vec_load(v->taps, j * v->pad + c, VEC, DTYPE_F32) *
                          vec_load(dp, (to - rows.begin) * v->pad + c, VEC, DTYPE_F32);
                if (from >= begin)
                    vec_store(dw, j * v->pad + c, VEC, DTYPE_F32,
                              vec_load(dw, j * v->pad + c, VEC, DTYPE_F32) +
                                  vec_load(dp, (t - rows.begin) * v->pad + c, VEC, DTYPE_F32) *
                                      vec_load(v->x, from * v->stride + c, n, dt));
            }
            vec_store(a->dx, t * a->dx_stride + c, n, dt, dx);
            if (v->bias)
                vec_store(dw, v->width * v->pad + c, VEC, DTYPE_F32,
                          vec_load(dw, v->width * v->pad + c, VEC, DTYPE_F32) +
                              vec_load(dp, (t - rows.begin) * v->pad + c, VEC, DTYPE_F32));
        }
    }
}

static void conv_back_chunk(const struct conv_bwd_args *a, const struct conv *v, struct span rows, float *dw)
{
    float *dp = workspace_get(WORKSPACE_MINE, (size_t)((GRAIN + v->back) * v->pad) * sizeof *dp);
    for (int64_t t = rows.begin, doc = document_first(v, t); t < rows.end;) {
        doc = document(v, t, doc);
        const int64_t begin = v->cu[doc], end = v->cu[doc + 1], stop = end < rows.end ? end : rows.end,
                      ahead = stop + v->back < end ? stop + v->back : end;
        if (a->dt == DTYPE_F32) {
            slopes(a, v, begin, (struct span){t, ahead}, dp, DTYPE_F32);
            conv_back(a, v, begin, end, (struct span){t, stop}, dp, dw, DTYPE_F32);
        } else {
            slopes(a, v, begin, (struct span){t, ahead}, dp, DTYPE_BF16);
            conv_back(a, v, begin, end, (struct span){t, stop}, dp, dw, DTYPE_BF16);
        }
        t = stop;
    }
}

/* dw of at most COLUMNS channels at once: a chunk's line fits the buffer of partial sums. */
static void conv_bwd_columns(const struct conv_bwd_args *a, int64_t first, int64_t count)
{
    const size_t element = dtype_bytes(a->dt);
    struct conv_bwd_args part = *a;
    part.dy = (const char *)a->dy + (size_t)first * element;
    part.x = (const char *)a->x + (size_t)first * element;
    part.dx = (char *)a->dx + (size_t)first * element;
    part.w = (const char *)a->w + (size_t)(first * a->width) * element;
    struct conv v =
        conv_open(part.x, part.w, a->x_stride, count, a->width, a->dilation, a->cu_seqlens, a->docs, a->dt);
    if (a->bias) v.bias = (const char *)a->bias + (size_t)first * element;
    const int64_t lines = a->width + (a->bias != NULL);
    struct partial_buffer buffer;
    struct partial sums = partial_init(&buffer, a->rows, lines * v.pad);
    PARALLEL_CHUNKS(c, sums.chunks)
    {
        const struct span rows = chunk_span(c, a->rows, sums.grain);
        float *dw = partial_line(&sums, c);
        for (int64_t t = rows.begin; t < rows.end; t += GRAIN)
            conv_back_chunk(&part, &v, (struct span){t, rows.end - t < GRAIN ? rows.end : t + GRAIN}, dw);
    }
    float line[(CONV_WIDTH_MAX + 1) * COLUMNS] = {0};
    partial_merge(&sums, 0, line, lines * v.pad);
    for (int64_t c = 0; c < count; c++)
        for (int64_t j = 0; j < a->width; j++)
            ((float *)a->dw)[(first + c) * a->width + j] += line[j * v.pad + c];
    for (int64_t c = 0; a->bias && c < count; c++)
        ((float *)a->dbias)[first + c] += line[a->width * v.pad + c];
}

static status conv_bwd(const struct conv_bwd_args *a, dev_stream s)
{
    (void)s;
    for (int64_t first = 0; first < a->channels && a->rows > 0; first += COLUMNS)
        conv_bwd_columns(a, first, a->channels - first < COLUMNS ? a->channels - first : COLUMNS);
    return STATUS_OK;
}

/* ---- the gated norm: rows of one head */

VEC_INLINE void gated_row(const struct gated_norm_fwd_args *a, int64_t r, dtype dt)
{
    const int64_t x = r * a->d, z = r / a->heads * a->z_stride + r % a->heads * a->d;
    vf squares = {0};
    for (int64_t j = 0; j < a->d; j += VEC) {
        const vf v = vec_load(a->x, x + j, vec_n(a->d - j), dt);
        squares += v * v;
    }
    const float rstd = (float)(1 / sqrt((double)vec_sum(squares) / (double)a->d + a->eps));
    for (int64_t j = 0; j < a->d; j += VEC) {
        const int n = vec_n(a->d - j);
        const vf gate = vec_load(a->z, z + j, n, dt),
                 v = vec_load(a->x, x + j, n, dt) * rstd * vec_load(a->w, j, n, dt);
        vec_store(a->y, x + j, n, dt, v * gate * sigmoid(gate).yes);
    }
    if (a->rstd) ((float *)a->rstd)[r] = rstd;
}

static status gated_norm_fwd(const struct gated_norm_fwd_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    PARALLEL_CHUNKS(c, chunk_count(a->rows * a->heads, GRAIN))
    {
        const struct span rows = chunk_span(c, a->rows * a->heads, GRAIN);
        for (int64_t r = rows.begin; r < rows.end; r++) {
            if (a->dt == DTYPE_F32)
                gated_row(a, r, DTYPE_F32);
            else
                gated_row(a, r, DTYPE_BF16);
        }
    }
    return STATUS_OK;
}

VEC_INLINE void gated_row_bwd(const struct gated_norm_bwd_args *a, int64_t r, float *dw, dtype dt)
{
    const int64_t x = r * a->d, z = r / a->heads * a->z_stride + r % a->heads * a->d,
                  dz = r / a->heads * a->dz_stride + r % a->heads * a->d;
    const float rstd = ((const float *)a->rstd)[r];
    vf sum = {0};
    for (int64_t j = 0; j < a->d; j += VEC) {
        const int n = vec_n(a->d - j);
        const vf gate = vec_load(a->z, z + j, n, dt), xh = vec_load(a->x, x + j, n, dt) * rstd;
        const vf dn = vec_load(a->dy, x + j, n, dt) * gate * sigmoid(gate).yes;
        sum += dn * vec_load(a->w, j, n, dt) * xh;
        vec_store(dw, j, VEC, DTYPE_F32, vec_load(dw, j, VEC, DTYPE_F32) + dn * xh);
    }
    const float mean = vec_sum(sum) / (float)a->d;
    for (int64_t j = 0; j < a->d; j += VEC) {
        const int n = vec_n(a->d - j);
        const vf gate = vec_load(a->z, z + j, n, dt), xh = vec_load(a->x, x + j, n, dt) * rstd,
                 w = vec_load(a->w, j, n, dt), dy = vec_load(a->dy, x + j, n, dt);
        const struct vec_sigmoid g = sigmoid(gate);
        vec_store(a->dz, dz + j, n, dt, dy * w * xh * g.yes * (1.f + gate * g.no));
        vec_store(a->dx, x + j, n, dt, (w * dy * gate * g.yes - xh * mean) * rstd);
    }
}

static status gated_norm_bwd(const struct gated_norm_bwd_args *a, dev_stream s)
{
    (void)s;
    CHECK(a->dt == DTYPE_F32 || a->dt == DTYPE_BF16, "dtype %s", dtype_name(a->dt));
    const int64_t rows = a->rows * a->heads;
    struct partial_buffer buffer;
    struct partial sums = partial_init(&buffer, rows, partial_pad(a->d));
    PARALLEL_CHUNKS(c, sums.chunks)
    {
        const struct span span = chunk_span(c, rows, sums.grain);
        float *dw = partial_line(&sums, c);
        for (int64_t r = span.begin; r < span.end; r++) {
            if (a->dt == DTYPE_F32)
                gated_row_bwd(a, r, dw, DTYPE_F32);
            else
                gated_row_bwd(a, r, dw, DTYPE_BF16);
        }
    }
    partial_merge(&sums, 0, a->dw, a->d);
    return STATUS_OK;
}

void SIMD(simd_gdn_conv)(struct ops *o)
{
    o->conv_fwd = conv_fwd;
    o->conv_bwd = conv_bwd;
    o->gated_norm_fwd = gated_norm_fwd;
    o->gated_norm_bwd = gated_norm_bwd;
}
