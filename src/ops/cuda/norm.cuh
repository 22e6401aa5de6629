// Norms of rows: what the kernels with and without FP8 codes share (norm.cu, norm_fp8.cu).
#pragma once
#include "ops/cuda/partials.cuh"
#include "ops/cuda/rowwise.cuh"

enum { BLOCK = 512, PACKS_FWD = 4, ELEMENTS = 32, STAGES = 3 }; // ELEMENTS: of a thread with W = 1

struct norm_fwd {
    const void *x, *branch, *w, *b;
    void *sum, *y;
    float *mean, *rstd;
    int64_t rows;
    int x_stride, y_stride, d, threads; // threads: of a group
    float eps, shift; // shift: of RMSNorm's weight
};
struct norm_bwd {
    const void *dy, *s, *w, *dres;
    const float *mean, *rstd;
    void *dx;
    float *partial; // [blocks][dw: d | db: d]; without db for RMSNorm
    int64_t rows;
    int dy_stride, s_stride, dx_stride, d, threads;
    float shift;
};

// The part of a row that belongs to a thread.
template <typename T, int W, int P> struct row_part {
    vec<T, W> v[P];
};
template <int W, int P> struct columns {
    int at[P];
    bool has[P];
    __device__ columns(const row_group &g, int d)
    {
        for (int p = 0; p < P; p++) {
            at[p] = (p * g.threads + g.rank) * W;
            has[p] = at[p] < d;
        }
    }
};
template <typename T, int W, int P>
__device__ inline void load_row(row_part<T, W, P> &x, const void *from, int64_t at, const columns<W, P> &c)
{
    for (int p = 0; p < P; p++)
        if (c.has[p]) x.v[p] = load_vec_once<W>((const T *)from + at + c.at[p]);
}
template <typename T, int W, int P>
__device__ inline void load_weight(row_part<T, W, P> &x, const void *from, const columns<W, P> &c)
{
    for (int p = 0; p < P; p++)
        if (c.has[p]) x.v[p] = load_vec<W>((const T *)from + c.at[p]);
}
// Widening a vector again is cheaper than registers for its floats: values computed from x before this call are
// dropped.
template <typename T, int W, int P> __device__ inline void keep_narrow(row_part<T, W, P> &x)
{
    if constexpr (W * sizeof(T) == 16)
        for (int p = 0; p < P; p++) {
            int4 *raw = reinterpret_cast<int4 *>(&x.v[p]);
            asm volatile("" : "+r"(raw->x), "+r"(raw->y), "+r"(raw->z), "+r"(raw->w));
        }
}

// s = x + branch, rounded to T, and stored if there is a buffer for it.
template <typename T, int W, int P>
__device__ inline void form_sum(const norm_fwd &a, int64_t at, const columns<W, P> &c, const row_part<T, W, P> &x,
                                const row_part<T, W, P> &branch, row_part<T, W, P> &s)
{
    for (int p = 0; p < P; p++) {
        s.v[p] = x.v[p];
        if (a.branch) {
            float f[W], add[W];
            widen(x.v[p], f);
            widen(branch.v[p], add);
            for (int j = 0; j < W; j++) f[j] += add[j];
            s.v[p] = narrow<T>(f);
        }
        if (a.sum && c.has[p]) store_vec_once((T *)a.sum + at + c.at[p], s.v[p]);
    }
}

// sum over the row of (s - mean)^2; columns beyond d do not count.
template <typename T, int W, int P>
__device__ inline float squares(const row_part<T, W, P> &s, const columns<W, P> &c, float mean)
{
    float sum = 0;
    for (int p = 0; p < P; p++) {
        float f[W];
        widen(s.v[p], f);
        if (c.has[p])
            for (int j = 0; j < W; j++) sum += (f[j] - mean) * (f[j] - mean);
    }
    return sum;
}

// y of a vector, in place of s.
template <bool LAYER, int W>
__device__ inline void normalize(float (&f)[W], const float (&fw)[W], const float (&fb)[W], float mean, float rstd,
                                 float shift)
{
    for (int j = 0; j < W; j++) f[j] = LAYER ? (f[j] - mean) * rstd * fw[j] + fb[j] : f[j] * rstd * (fw[j] + shift);
}

// The block's sums of a parameter's gradient to `to`: group after group, in a fixed order. Once per block and
// parameter.
template <int W, int P>
__device__ inline void leave_partial(const row_group &g, const columns<W, P> &c, const float (&sum)[P * W],
                                     float *shared, float *to, int d)
{
    for (int i = 0; i < g.count; i++) {
        for (int p = 0; p < P; p++)
            if (g.index == i && c.has[p])
                for (int j = 0; j < W; j++) {
                    int at = c.at[p] + j;
                    float before = i == 0 ? 0 : shared[at];
                    (i == g.count - 1 ? to : shared)[at] = before + sum[p * W + j];
                }
        __syncthreads();
    }
}

template <bool LAYER, typename T, int W>
__device__ inline void widen_weight(const vec<T, W> &w, float (&f)[W], float shift)
{
    widen(w, f);
    if (!LAYER)
        for (int j = 0; j < W; j++) f[j] += shift;
}

// Backward's rows in flight: a thread's own vectors of dy, s and dres, `stages` rows ahead in shared memory. No
// other thread reads them, so there are no barriers: a thread waits for its own copies. Registers would hold one
// row, and spill.
template <typename T, int W, int P> struct rows_ahead {
    enum { DY, S, DRES, ARRAYS, IN_RING = W * sizeof(T) == 16 }; // unaligned operands are read in place
    int4 *own;
    int block, stages, stage; // stage: of the row that is next
    const T *from[ARRAYS];    // in place: the row's parts
    __device__ rows_ahead(void *shared, int stages_)
        : own((int4 *)shared + threadIdx.x), block(blockDim.x), stages(stages_), stage(0)
    {
    }
    __device__ int4 *place(int array, int p) const { return own + ((stage * ARRAYS + array) * P + p) * block; }
    __device__ void point(const norm_bwd &a, int64_t row, int dy_stride, int s_stride)
    {
        from[DY] = (const T *)a.dy + row * dy_stride;
        from[S] = (const T *)a.s + row * s_stride;
        from[DRES] = a.dres ? (const T *)a.dres + row * a.d : nullptr;
    }
    __device__ void advance() { stage = stage + 1 == stages ? 0 : stage + 1; }
    // Loads a row into the next stage. One without elements counts, too: waits count rows.
    __device__ void ask(const norm_bwd &a, int64_t row, int dy_stride, int s_stride, const columns<W, P> &c)
    {
        if constexpr (IN_RING) {
            if (row < a.rows) {
                point(a, row, dy_stride, s_stride);
                for (int p = 0; p < P; p++)
                    for (int k = 0; k < ARRAYS; k++)
                        if (c.has[p] && from[k])
                            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                                             (uint32_t)__cvta_generic_to_shared(place(k, p))),
                                         "l"(from[k] + c.at[p])
                                         : "memory");
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        advance();
    }
    // Waits until the row of this stage has arrived, while the others are in flight.
    __device__ void wait() const
    {
        if constexpr (IN_RING) {
            if (stages == 3)
                asm volatile("cp.async.wait_group 2;" ::: "memory");
            else if (stages == 2)
                asm volatile("cp.async.wait_group 1;" ::: "memory");
            else
                asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
    }
    __device__ void get(int array, int p, const columns<W, P> &c, float (&f)[W]) const
    {
        if constexpr (IN_RING)
            widen(*(const vec<T, W> *)place(array, p), f);
        else
            widen(load_vec<W>(from[array] + c.at[p]), f);
    }
};

// Of the row that has arrived, the thread's part of the sums of g xhat and of g.
template <bool LAYER, typename T, int W, int P>
__device__ inline void gradient_sums(const rows_ahead<T, W, P> &rows, const row_part<T, W, P> &w,
                                     const columns<W, P> &c, float shift, float mean, float rstd,
                                     float (&sums)[1 + LAYER])
{
    typedef rows_ahead<T, W, P> ahead;
    for (int p = 0; p < P; p++) {
        if (!c.has[p]) continue;
        float fdy[W], fs[W], fw[W];
        rows.get(ahead::DY, p, c, fdy);
        rows.get(ahead::S, p, c, fs);
        widen_weight<LAYER>(w.v[p], fw, shift);
        for (int j = 0; j < W; j++) {
            float gj = __fmul_rn(fdy[j], fw[j]); // the same bits in gradient(): a row of equal ones cancels to 0
            sums[0] += gj * (fs[j] - mean) * rstd;
            if (LAYER) sums[LAYER] += gj;
        }
    }
}
// dx of vector p of that row; adds to the thread's sums of dw and db.
template <bool LAYER, typename T, int W, int P, int N>
__device__ inline void gradient(const rows_ahead<T, W, P> &rows, const row_part<T, W, P> &w, const columns<W, P> &c,
                                int p, bool dres, float shift, float mean, float rstd, float g_mean, float gx_mean,
                                float (&dx)[W], float (&dw)[P * W], float (&db)[N])
{
    typedef rows_ahead<T, W, P> ahead;
    float fdy[W], fs[W], fw[W];
    for (int j = 0; j < W; j++) dx[j] = 0;
    rows.get(ahead::DY, p, c, fdy);
    rows.get(ahead::S, p, c, fs);
    if (dres) rows.get(ahead::DRES, p, c, dx);
    widen_weight<LAYER>(w.v[p], fw, shift);
    for (int j = 0; j < W; j++) {
        float xh = (fs[j] - mean) * rstd;
        dw[p * W + j] += fdy[j] * xh;
        if (LAYER) db[p * W + j] += fdy[j];
        dx[j] += rstd * (__fmul_rn(fdy[j], fw[j]) - g_mean - xh * gx_mean);
    }
}

// Vectors of W elements, P per thread: warps per row; 0 if a block is not enough.
static inline int group_threads(int64_t d, int width, int packs)
{
    int64_t threads = (d + (int64_t)width * packs - 1) / (width * packs);
    threads = (threads + WARP - 1) / WARP * WARP;
    return threads <= BLOCK ? (int)threads : 0;
}
// Rows ahead: as many as a multiprocessor's shared memory holds at full occupancy, at most 3.
static inline int stages_of(dev_stream s, int block, int row_bytes)
{
    int of_sm = 0, of_block = 0, reserved = 0;
    // The launch reports an error of this call.
    (void)cudaDeviceGetAttribute(&of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, s->dev->index);
    (void)cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, s->dev->index);
    (void)cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, s->dev->index);
    const int each = of_sm / (BLOCK / block) - reserved, fixed = (int)sizeof(row_exchange<BLOCK, 2>);
    const int stages = ((each < of_block ? each : of_block) - fixed) / row_bytes;
    return stages < 1 ? 1 : stages < STAGES ? stages : STAGES;
}

// The kernels' form of the arguments; *aligned: all pointers allow accesses of 16 bytes. Strides fit in an int.
static inline norm_fwd rmsnorm_fwd_of(const struct rmsnorm_fwd_args *a, bool *aligned)
{
    const int stride = (int)(a->x_stride ? a->x_stride : a->d), y_stride = (int)(a->y_stride ? a->y_stride : a->d);
    *aligned = aligned16(a->x) && aligned16(a->branch) && aligned16(a->w) && aligned16(a->sum) && aligned16(a->y);
    return {a->x,    a->branch, a->w,     NULL,      a->sum, a->y,          NULL,           (float *)a->rstd,
            a->rows, stride,    y_stride, (int)a->d, 0,      (float)a->eps, (float)a->shift};
}
static inline norm_bwd rmsnorm_bwd_of(const struct rmsnorm_bwd_args *a, bool *aligned)
{
    const int dy_stride = (int)(a->dy_stride ? a->dy_stride : a->d), s_stride = (int)(a->s_stride ? a->s_stride : a->d),
              dx_stride = (int)(a->dx_stride ? a->dx_stride : a->d);
    *aligned = aligned16(a->dy) && aligned16(a->s) && aligned16(a->w) && aligned16(a->dres) && aligned16(a->dx);
    return {a->dy,     a->s,     a->w,      a->dres,   NULL, (const float *)a->rstd, a->dx, NULL, a->rows,
            dy_stride, s_stride, dx_stride, (int)a->d, 0,    (float)a->shift};
}

// norm_fp8.cu: the op and what its q asks for in one kernel; false: not for these arguments, nothing was launched.
bool rmsnorm_fwd_codes(const struct rmsnorm_fwd_args *a, dev_stream s);
bool rmsnorm_bwd_codes(const struct rmsnorm_bwd_args *a, dev_stream s);
