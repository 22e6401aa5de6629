// QK-norm and rotary embedding of the q and k heads, forward and backward. Bound: memory bandwidth.
//
//   warp   a row of tokens' heads; `lanes` lanes (a power of two) per head, several heads side by side
//   lane   ITEMS pairs of vectors of its head, the same for every head, so cosines and sines are read once per row:
//            item i < half / W   dims [i W, i W + W) and the same + half: rotated with each other
//            later items         dims [2 half + 2 (i - half / W) W, + 2 W): copied; none if these dims stay untouched
//
// Heads are read AHEAD at a time to have bytes in flight. Backward with weights loops over q heads and k heads
// separately, because the sums of their gradients differ. The sums stay in registers until all rows are done
// (partials.cuh).
//
// A vector is 4 elements in both types: with 8 a lane of bf16 would hold twice the angles and sums, and half the
// warps would fit. Unaligned heads use W = 1. Heads are at most 512 wide.
#include "ops/cuda/partials.cuh"
#include "ops/cuda/rowwise.cuh"

namespace {

enum { HD_MAX = 512, WIDTH = 4, WARPS = 4 }; // WIDTH: W of aligned operands; WARPS: per block
// Blocks of a multiprocessor, by what registers allow.
enum { TURN_BLOCKS = 6, NORM_BLOCKS = 5, NORM_BWD_BLOCKS = 2, NORM_BWD_WARPS = 8 };

struct rope {
    const void *from; // in of forward, dout of backward
    void *to;
    int64_t from_stride, to_stride;
    const int32_t *positions;
    const float *cos, *sin;
    const void *qw, *kw;  // QK-norm
    float *rstd;          // forward: written unless NULL; backward: read
    const void *in;       // backward with QK-norm: what forward read
    int64_t in_stride;
    float *partial;       // [blocks][dqw: hd | dkw: hd]
    int64_t rows;
    int heads, heads_kv, head_dim, half;
    int items, lanes;     // of a head
    float sign, eps;      // of the angle: 1 or -1
    float shift;          // of the weights
};

// Offsets of a lane's items in a head; -1: none.
template <int W, int ITEMS> struct places {
    int slot, slots; // index among the heads side by side
    int first[ITEMS], second[ITEMS], angle[ITEMS]; // angle: in a row of cos; -1: not rotated
    __device__ explicit places(const rope &a)
    {
        int lane = threadIdx.x % WARP, pairs = a.half / W;
        slot = lane / a.lanes, slots = WARP / a.lanes;
        for (int k = 0; k < ITEMS; k++) {
            int i = lane % a.lanes + k * a.lanes, past = 2 * a.half + 2 * (i - pairs) * W;
            bool rotated = i < pairs, has = i < a.items;
            angle[k] = rotated ? i * W : -1;
            first[k] = !has ? -1 : rotated ? i * W : past;
            second[k] = !has ? -1 : rotated ? i * W + a.half : past + W < a.head_dim ? past + W : -1;
        }
    }
};

template <typename T, int W, int ITEMS> struct head_part { vec<T, W> first[ITEMS], second[ITEMS]; };
template <int W, int ITEMS> struct head_f32 { float first[ITEMS][W], second[ITEMS][W]; };

template <typename T, int W, int ITEMS>
__device__ inline void load_head(head_part<T, W, ITEMS> &x, const T *head, const places<W, ITEMS> &at)
{
    for (int k = 0; k < ITEMS; k++) {
        if (at.first[k] >= 0) x.first[k] = load_vec_once<W>(head + at.first[k]);
        if (at.second[k] >= 0) x.second[k] = load_vec_once<W>(head + at.second[k]);
    }
}
template <typename T, int W, int ITEMS>
__device__ inline void store_head(const head_f32<W, ITEMS> &f, T *head, const places<W, ITEMS> &at)
{
    for (int k = 0; k < ITEMS; k++) {
        if (at.first[k] >= 0) store_vec(head + at.first[k], narrow<T>(f.first[k]));
        if (at.second[k] >= 0) store_vec(head + at.second[k], narrow<T>(f.second[k]));
    }
}
template <typename T, int W, int ITEMS>
__device__ inline void widen_head(const head_part<T, W, ITEMS> &x, head_f32<W, ITEMS> &f)
{
    for (int k = 0; k < ITEMS; k++) {
        widen(x.first[k], f.first[k]);
        widen(x.second[k], f.second[k]);
    }
}
template <typename T, int W, int ITEMS>
__device__ inline void load_weight(head_part<T, W, ITEMS> &x, const void *from, const places<W, ITEMS> &at)
{
    x = {};
    for (int k = 0; k < ITEMS; k++) {
        if (at.first[k] >= 0) x.first[k] = load_vec<W>((const T *)from + at.first[k]);
        if (at.second[k] >= 0) x.second[k] = load_vec<W>((const T *)from + at.second[k]);
    }
}

// The row's angles; columns that are not rotated get angle 0.
template <int W, int ITEMS>
__device__ inline void load_angles(head_f32<W, ITEMS> &angles, const rope &a, int32_t position,
                                   const places<W, ITEMS> &at)
{
    int64_t row = (int64_t)position * a.half;
    for (int k = 0; k < ITEMS; k++) {
        vec<float, W> c = {}, s = {};
        if (at.angle[k] >= 0) {
            c = load_vec<W>(a.cos + row + at.angle[k]);
            s = load_vec<W>(a.sin + row + at.angle[k]);
        }
        for (int j = 0; j < W; j++) {
            angles.first[k][j] = at.angle[k] >= 0 ? c.v[j] : 1;
            angles.second[k][j] = a.sign * s.v[j];
        }
    }
}
template <int W, int ITEMS> __device__ inline void rotate(head_f32<W, ITEMS> &f, const head_f32<W, ITEMS> &angles)
{
    for (int k = 0; k < ITEMS; k++)
        for (int j = 0; j < W; j++) {
            float x = f.first[k][j], y = f.second[k][j], c = angles.first[k][j], s = angles.second[k][j];
            f.first[k][j] = x * c - y * s;
            f.second[k][j] = y * c + x * s;
        }
}
// Over the lanes of a head; every lane of the warp takes part.
__device__ inline float head_sum(float x, int lanes)
{
    for (int d = lanes / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

// All heads of one row: forward, or backward without a norm; q heads by the first weight, k heads by the second.
template <typename T, int W, int ITEMS, int AHEAD, bool NORM>
__device__ inline void rotate_heads(const rope &a, int64_t row, const head_part<T, W, ITEMS> (&weight)[2],
                                  const places<W, ITEMS> &at, const head_f32<W, ITEMS> &angles)
{
    const T *from = (const T *)a.from + row * a.from_stride;
    T *to = (T *)a.to + row * a.to_stride;
    const int count = a.heads + a.heads_kv;
    float *rstd = a.rstd ? a.rstd + row * count : NULL;
    for (int begin = 0; begin < count; begin += at.slots * AHEAD) {
        head_part<T, W, ITEMS> x[AHEAD] = {};
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int head = begin + u * at.slots + at.slot;
            if (head < count) load_head(x[u], from + head * a.head_dim, at);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int head = begin + u * at.slots + at.slot;
            if (head - at.slot >= count) break; // the whole warp: sums take all of its lanes
            head_f32<W, ITEMS> f, fw;
            widen_head(x[u], f);
            if (NORM) {
                float squares = 0;
                for (int k = 0; k < ITEMS; k++)
                    for (int j = 0; j < W; j++)
                        squares += f.first[k][j] * f.first[k][j] + f.second[k][j] * f.second[k][j];
                float r = 1 / sqrtf(head_sum(squares, a.lanes) / a.head_dim + a.eps);
                widen_head(head < a.heads ? weight[0] : weight[1], fw);
                for (int k = 0; k < ITEMS; k++)
                    for (int j = 0; j < W; j++) {
                        f.first[k][j] *= r * (fw.first[k][j] + a.shift);
                        f.second[k][j] *= r * (fw.second[k][j] + a.shift);
                    }
                if (rstd && head < count && threadIdx.x % a.lanes == 0) rstd[head] = r;
            }
            rotate(f, angles);
            if (head < count) store_head(f, to + head * a.head_dim, at);
        }
    }
}

template <typename T, int W, int ITEMS, int AHEAD, bool NORM>
__global__ void __launch_bounds__(WARPS *WARP, NORM ? NORM_BLOCKS : TURN_BLOCKS) rope_kernel(const rope a)
{
    const places<W, ITEMS> at(a);
    head_part<T, W, ITEMS> weight[2];
    if (NORM) {
        load_weight(weight[0], a.qw, at);
        load_weight(weight[1], a.kw, at);
    }
    int64_t step = (int64_t)gridDim.x * WARPS, row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int32_t position = row < a.rows ? a.positions[row] : 0;
    for (; row < a.rows; row += step) {
        int32_t next = row + step < a.rows ? a.positions[row + step] : 0;
        head_f32<W, ITEMS> angles;
        load_angles(angles, a, position, at);
        rotate_heads<T, W, ITEMS, AHEAD, NORM>(a, row, weight, at, angles);
        position = next;
    }
}

// Heads [begin, begin + count) of one row, backward through rotation and norm; dw += g xhat.
template <typename T, int W, int ITEMS, int AHEAD>
__device__ inline void norm_heads_bwd(const rope &a, int64_t row, int begin, int count, const void *weight,
                                      const places<W, ITEMS> &at, const head_f32<W, ITEMS> &angles,
                                      head_f32<W, ITEMS> &dw)
{
    const T *from = (const T *)a.from + row * a.from_stride + (int64_t)begin * a.head_dim;
    const T *in = (const T *)a.in + row * a.in_stride + (int64_t)begin * a.head_dim;
    T *to = (T *)a.to + row * a.to_stride + (int64_t)begin * a.head_dim;
    const float *rstd = a.rstd + row * (a.heads + a.heads_kv) + begin;
    head_part<T, W, ITEMS> w;
    load_weight(w, weight, at);
    for (int h = at.slot; h - at.slot < count; h += at.slots * AHEAD) {
        head_part<T, W, ITEMS> dout[AHEAD] = {}, x[AHEAD] = {};
        float r[AHEAD] = {};
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int head = h + u * at.slots;
            if (head >= count) continue;
            load_head(dout[u], from + head * a.head_dim, at);
            load_head(x[u], in + head * a.head_dim, at);
            r[u] = rstd[head];
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int head = h + u * at.slots;
            if (head - at.slot >= count) break; // the whole warp: sums take all of its lanes
            head_f32<W, ITEMS> g, xh, fw;
            widen_head(dout[u], g);
            widen_head(x[u], xh);
            widen_head(w, fw);
            rotate(g, angles);
            float sum = 0;
            for (int k = 0; k < ITEMS; k++)
                for (int j = 0; j < W; j++) {
                    xh.first[k][j] *= r[u];
                    xh.second[k][j] *= r[u];
                    dw.first[k][j] += g.first[k][j] * xh.first[k][j];
                    dw.second[k][j] += g.second[k][j] * xh.second[k][j];
                    g.first[k][j] *= fw.first[k][j] + a.shift;
                    g.second[k][j] *= fw.second[k][j] + a.shift;
                    sum += g.first[k][j] * xh.first[k][j] + g.second[k][j] * xh.second[k][j];
                }
            float mean = head_sum(sum, a.lanes) / a.head_dim;
            for (int k = 0; k < ITEMS; k++)
                for (int j = 0; j < W; j++) {
                    g.first[k][j] = r[u] * (g.first[k][j] - xh.first[k][j] * mean);
                    g.second[k][j] = r[u] * (g.second[k][j] - xh.second[k][j] * mean);
                }
            if (head < count) store_head(g, to + head * a.head_dim, at);
        }
    }
}

// The block's sum of one weight's gradient to `to`: heads side by side by a tree, warps in order.
template <int W, int ITEMS>
__device__ inline void leave_partial(const rope &a, const places<W, ITEMS> &at, head_f32<W, ITEMS> &dw, float *shared,
                                     float *to)
{
    for (int d = a.lanes; d < WARP; d *= 2)
        for (int k = 0; k < ITEMS; k++)
            for (int j = 0; j < W; j++) {
                dw.first[k][j] += __shfl_xor_sync(0xffffffffu, dw.first[k][j], d);
                dw.second[k][j] += __shfl_xor_sync(0xffffffffu, dw.second[k][j], d);
            }
    for (int i = threadIdx.x; i < a.head_dim; i += NORM_BWD_WARPS * WARP) shared[i] = 0;
    for (int warp = 0; warp < NORM_BWD_WARPS; warp++) {
        __syncthreads();
        if (threadIdx.x / WARP != warp || at.slot != 0) continue;
        for (int k = 0; k < ITEMS; k++)
            for (int j = 0; j < W; j++) {
                if (at.first[k] >= 0) shared[at.first[k] + j] += dw.first[k][j];
                if (at.second[k] >= 0) shared[at.second[k] + j] += dw.second[k][j];
            }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < a.head_dim; i += NORM_BWD_WARPS * WARP) to[i] = shared[i];
    __syncthreads();
}

template <typename T, int W, int ITEMS, int AHEAD>
__global__ void __launch_bounds__(NORM_BWD_WARPS *WARP, NORM_BWD_BLOCKS) rope_norm_bwd_kernel(const rope a)
{
    __shared__ float shared[HD_MAX];
    const places<W, ITEMS> at(a);
    head_f32<W, ITEMS> dqw = {}, dkw = {};
    int64_t step = (int64_t)gridDim.x * NORM_BWD_WARPS, row = (int64_t)blockIdx.x * NORM_BWD_WARPS + threadIdx.x / WARP;
    int32_t position = row < a.rows ? a.positions[row] : 0;
    for (; row < a.rows; row += step) {
        int32_t next = row + step < a.rows ? a.positions[row + step] : 0;
        head_f32<W, ITEMS> angles;
        load_angles(angles, a, position, at);
        norm_heads_bwd<T, W, ITEMS, AHEAD>(a, row, 0, a.heads, a.qw, at, angles, dqw);
        norm_heads_bwd<T, W, ITEMS, AHEAD>(a, row, a.heads, a.heads_kv, a.kw, at, angles, dkw);
        position = next;
    }
    float *to = a.partial + (int64_t)blockIdx.x * 2 * a.head_dim;
    leave_partial(a, at, dqw, shared, to);
    leave_partial(a, at, dkw, shared, to + a.head_dim);
}

enum { ELEMENTS = 8 }; // pairs of elements per lane with W = 1: 32 lanes hold a head of HD_MAX

// Lanes of a head; false when vectors of W do not fit it.
bool place_heads(rope *a, int W, int items_max, bool copies)
{
    if (a->head_dim % W || a->half % W || a->from_stride % W || a->to_stride % W || a->in_stride % W) return false;
    int past = (a->head_dim - 2 * a->half) / W;
    a->items = a->half / W + (copies ? (past + 1) / 2 : 0);
    for (a->lanes = 1; a->lanes < WARP && a->lanes < a->items;) a->lanes *= 2;
    return a->items <= a->lanes * items_max;
}
unsigned rope_blocks(dev_stream s, int64_t rows, int each, int warps)
{
    int64_t blocks = (int64_t)cuda_set(s)->multiprocessors * each, needed = (rows + warps - 1) / warps;
    return (unsigned)(needed < blocks ? needed : blocks);
}

// Rotation in place without a norm, which every layer of a Llama does twice. A block takes FLAT_ROWS rows, a thread
// the same pair of vectors in each, so all its loads are in flight before the first is used. (Measured on an H200,
// 65536 rows of 24 heads of 64: the kernel above, built for norms, reaches half of copy bandwidth.)
enum { FLAT_ROWS = 4, FLAT_THREADS_MAX = 512 };

template <typename T, int W> __global__ void __launch_bounds__(FLAT_THREADS_MAX) rotate_kernel(const rope a, int pairs)
{
    int head = threadIdx.x / pairs, at = threadIdx.x % pairs * W;
    int64_t first = (int64_t)blockIdx.x * FLAT_ROWS;
    int rows = (int)min((int64_t)FLAT_ROWS, a.rows - first);
    T *x = (T *)a.to + first * a.to_stride + (int64_t)head * a.head_dim + at, *y = x + a.half;
    vec<T, W> vx[FLAT_ROWS], vy[FLAT_ROWS];
    int32_t position[FLAT_ROWS];
#pragma unroll
    for (int r = 0; r < FLAT_ROWS; r++) {
        if (r >= rows) continue;
        position[r] = a.positions[first + r];
        vx[r] = load_vec_once<W>(x + r * a.to_stride);
        vy[r] = load_vec_once<W>(y + r * a.to_stride);
    }
#pragma unroll
    for (int r = 0; r < FLAT_ROWS; r++) {
        if (r >= rows) continue;
        int64_t row = (int64_t)position[r] * a.half + at;
        float fx[W], fy[W], c[W], s[W];
#pragma unroll
        for (int i = 0; i < W; i += 4) {
            *reinterpret_cast<float4 *>(c + i) = *reinterpret_cast<const float4 *>(a.cos + row + i);
            *reinterpret_cast<float4 *>(s + i) = *reinterpret_cast<const float4 *>(a.sin + row + i);
        }
        widen(vx[r], fx);
        widen(vy[r], fy);
#pragma unroll
        for (int i = 0; i < W; i++) {
            float u = fx[i], v = fy[i], angles = a.sign * s[i];
            fx[i] = u * c[i] - v * angles;
            fy[i] = v * c[i] + u * angles;
        }
        store_vec(x + r * a.to_stride, narrow<T>(fx));
        store_vec(y + r * a.to_stride, narrow<T>(fy));
    }
}

// False if it does not support the shape.
template <typename T> bool rotate_launch(const rope &a, bool aligned, dev_stream s)
{
    const int W = WIDE<T>;
    if (a.from != a.to || !aligned || a.half == 0 || a.half % W || a.head_dim % W || a.to_stride % W) return false;
    int pairs = a.half / W;
    int64_t threads = (int64_t)(a.heads + a.heads_kv) * pairs, blocks = (a.rows + FLAT_ROWS - 1) / FLAT_ROWS;
    if (threads > FLAT_THREADS_MAX || blocks > INT32_MAX) return false;
    rotate_kernel<T, W><<<(unsigned)blocks, (unsigned)threads, 0, queue_of(s)>>>(a, pairs);
    return true;
}

template <typename T, bool NORM> void turn_launch(rope a, bool aligned, bool copies, dev_stream s)
{
    if (!NORM && rotate_launch<T>(a, aligned, s)) return;
    unsigned blocks = rope_blocks(s, a.rows, NORM ? NORM_BLOCKS : TURN_BLOCKS, WARPS);
    if (aligned && place_heads(&a, WIDTH, 1, copies)) {
        rope_kernel<T, WIDTH, 1, WIDE<T>, NORM><<<blocks, WARPS * WARP, 0, queue_of(s)>>>(a);
        return;
    }
    CHECK(place_heads(&a, 1, ELEMENTS, copies), "heads of %d dims", a.head_dim);
    rope_kernel<T, 1, ELEMENTS, 1, NORM><<<blocks, WARPS * WARP, 0, queue_of(s)>>>(a);
}

template <typename T> void rope_norm_bwd_launch(rope a, bool aligned, float *dqw, float *dkw, dev_stream s)
{
    unsigned blocks = rope_blocks(s, a.rows, NORM_BWD_BLOCKS, NORM_BWD_WARPS);
    a.partial = (float *)cuda_set_workspace(s, sizeof(float) * 2 * (size_t)a.head_dim * blocks, "rope_bwd");
    if (aligned && place_heads(&a, WIDTH, 1, true)) {
        rope_norm_bwd_kernel<T, WIDTH, 1, WIDE<T> / 2><<<blocks, NORM_BWD_WARPS * WARP, 0, queue_of(s)>>>(a);
    } else {
        CHECK(place_heads(&a, 1, ELEMENTS, true), "heads of %d dims", a.head_dim);
        rope_norm_bwd_kernel<T, 1, ELEMENTS, 1><<<blocks, NORM_BWD_WARPS * WARP, 0, queue_of(s)>>>(a);
    }
    partials_add(s, a.partial, blocks, 2 * a.head_dim, a.head_dim, dqw, dkw);
}

void check_shapes(const rope &a)
{
    CHECK(a.heads > 0 && a.heads_kv > 0, "heads %d heads_kv %d", a.heads, a.heads_kv);
    CHECK(a.head_dim > 0 && a.head_dim <= HD_MAX, "head_dim %d, the limit is %d", a.head_dim, HD_MAX);
    CHECK(a.half >= 0 && 2 * a.half <= a.head_dim, "rotates 2 x %d of %d dims", a.half, a.head_dim);
    CHECK(!a.qw == !a.kw, "QK-norm takes both weights or none");
    CHECK(a.from != a.to || a.from_stride == a.to_stride, "in place with two strides");
    CHECK(a.from_stride >= (int64_t)(a.heads + a.heads_kv) * a.head_dim, "row stride %lld", (long long)a.from_stride);
    CHECK(a.to_stride >= (int64_t)(a.heads + a.heads_kv) * a.head_dim, "row stride %lld", (long long)a.to_stride);
}
bool aligned_heads(const rope &a)
{
    return aligned16(a.from) && aligned16(a.to) && aligned16(a.in) && aligned16(a.cos) && aligned16(a.sin) &&
           aligned16(a.qw) && aligned16(a.kw);
}

status rope_fwd(const struct rope_fwd_args *x, dev_stream s)
{
    rope a = {};
    a.from = x->in, a.from_stride = x->in_stride, a.to = x->out, a.to_stride = x->out_stride;
    a.positions = x->positions, a.cos = (const float *)x->cos, a.sin = (const float *)x->sin;
    a.qw = x->qw, a.kw = x->kw, a.rstd = (float *)x->rstd, a.eps = (float)x->eps, a.shift = (float)x->shift;
    a.sign = 1;
    a.rows = x->rows, a.heads = (int)x->heads, a.heads_kv = (int)x->heads_kv, a.head_dim = (int)x->head_dim,
    a.half = (int)x->half;
    check_shapes(a);
    bool copies = a.qw || a.from != a.to;
    CHECK(a.from != a.to || !a.qw, "in place only without QK-norm");
    if (a.rows == 0 || (!copies && a.half == 0)) return STATUS_OK;
    if (a.qw)
        BY_DTYPE(x->dt, (turn_launch<T, true>(a, aligned_heads(a), copies, s)));
    else
        BY_DTYPE(x->dt, (turn_launch<T, false>(a, aligned_heads(a), copies, s)));
    return cuda_set_launched(s, "rope_fwd");
}

status rope_bwd(const struct rope_bwd_args *x, dev_stream s)
{
    rope a = {};
    a.from = x->dout, a.from_stride = x->dout_stride, a.to = x->din, a.to_stride = x->din_stride;
    a.positions = x->positions, a.cos = (const float *)x->cos, a.sin = (const float *)x->sin, a.sign = -1;
    a.qw = x->qw, a.kw = x->kw;
    a.rows = x->rows, a.heads = (int)x->heads, a.heads_kv = (int)x->heads_kv, a.head_dim = (int)x->head_dim,
    a.half = (int)x->half;
    check_shapes(a);
    bool copies = a.qw || a.from != a.to;
    if (a.rows == 0 || (!copies && a.half == 0)) return STATUS_OK;
    if (a.qw == NULL) {
        BY_DTYPE(x->dt, (turn_launch<T, false>(a, aligned_heads(a), copies, s)));
    } else {
        CHECK(x->in && x->rstd && x->dqw && x->dkw, "QK-norm needs in, rstd, dqw and dkw");
        a.in = x->in, a.in_stride = x->in_stride, a.rstd = (float *)x->rstd, a.shift = (float)x->shift;
        BY_DTYPE(x->dt, (rope_norm_bwd_launch<T>(a, aligned_heads(a), (float *)x->dqw, (float *)x->dkw, s)));
    }
    return cuda_set_launched(s, "rope_bwd");
}

} // namespace

extern "C" void cuda_rope_slots(struct ops *o)
{
    o->rope_fwd = rope_fwd;
    o->rope_bwd = rope_bwd;
}
