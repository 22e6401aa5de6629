// The gated delta rule in chunks, backward; gdn_delta_fwd_sm80.cu has the names. dS is the gradient of the state that
// leaves a chunk.
//
//   dD  = scale P^T dO + f (K dS);   dU = Tm^T dD;   dV = beta dU          (dU = dD without the delta term)
//   dS <- e_last dS + (scale e Q)^T dO - (beta e K)^T dU
//   dX  = -beta e dU                  gradient of X = K S;   Z = V - e X,  R = beta Z
//   E   = scale lower(Gam dO D^T);   H = -beta strictly_lower(Gam dU D^T)
//   dQ  = scale e (dO S^T) + E K;    dK = f (D dS^T) + E^T Q + dX S^T + H K + H^T K
//   M   = E Q K^T;   N = H K K^T      (element by element; N without beta is n)
//   dbeta_i = <dU_i, Z_i> + row sum of n
//   dcum_i  = <Q_i, scale e dO S^T> + rows M - columns M - <f K dS, D>_i + <X, dX>_i + rows N - columns N
//   dcum_last += sum of <f K dS, D> + e_last <S, dS>;   dg_t = sum of dcum_i, i >= t
//
// Every term of dcum carries its own decay: where a state is forgotten, its gradient is 0 and not what is left of two
// large numbers. M and N enter with the same rounding on both sides, so that what a row gives and a column takes
// cancels.
//
//   pack, prepare   as in forward
//   back            the blocks of forward, chunks from last to first, dS in registers: leaves dU of every row and dS
//                   of every chunk
//   gather          block = the chunks that begin in C rows, one value head: everything else, for one value head
//   fold            sums dq and dk over the value heads of a key head, in their order, and goes back through the
//                   normalisation
#include "ops/cuda/gdn_delta_sm80.cuh"

namespace delta {
namespace {

// ---- back

template <typename T, int DK> struct back_shared {
    typedef cut<T, DK> S;
    enum { BOTH = DK <= 128 };
    alignas(16) T k[S::C * S::LK];
    alignas(16) T q[BOTH ? S::C * S::LK : 16];
    alignas(16) T state[DK * S::LV]; // dS
    alignas(16) T dout[S::C * S::LV]; // dO, then scale e dO
    alignas(16) T d[S::C * S::LV];    // dD, then dU
    alignas(16) T x[S::C * S::LV];    // dX
    alignas(16) T inverse[S::C * S::LC];
    alignas(16) T p[S::C * S::LC];
    gates<S::C> gate;
};

template <typename T, int DK>
__device__ inline void keys_load(const call &x, const void *from, T *to, const chunk &now, int head)
{
    typedef cut<T, DK> S;
    const int head_k = head / (x.heads / x.heads_k);
    tile_load<S::C, DK, S::LK>(to, (const T *)from + ((int64_t)now.start * x.heads_k + head_k) * DK,
                               (int64_t)x.heads_k * DK, now.rows, DK, true);
}
template <typename T, int DK>
__device__ inline void squares_load(const call &x, const void *from, T *to, const chunk &now, int head)
{
    typedef cut<T, DK> S;
    tile_load<S::C, S::C, S::LC>(to, (const T *)from + ((int64_t)now.start * x.heads + head) * S::C,
                                 (int64_t)x.heads * S::C, now.rows, S::C, true);
}
// A tile of rows as the caller has them (o's rows and strides), or of rows of scratch in whole tiles.
template <typename T, int DK>
__device__ inline void values_load(const call &x, const void *from, T *to, const chunk &now, int head, int tile)
{
    typedef cut<T, DK> S;
    const int64_t width = (int64_t)x.heads * x.dv_size;
    tile_load<S::C, S::DV, S::LV>(to, (const T *)from + now.start * width + (int64_t)head * x.dv_size + tile * S::DV,
                                  width, now.rows, min((int)S::DV, x.dv_size - tile * S::DV), x.wide_o);
}
template <typename T, int DK>
__device__ inline T *sp_rows(const call &x, void *rows, const chunk &now, int head, int tile)
{
    typedef cut<T, DK> S;
    return (T *)rows + (((int64_t)now.start * x.heads + head) * x.tiles + tile) * S::DV;
}

template <typename T, int DK>
__device__ inline void back_chunk(const call &x, back_shared<T, DK> &m, const chunk &now, int head, int tile,
                                  float (&state)[cut<T, DK>::MK][cut<T, DK>::NV][4])
{
    typedef cut<T, DK> S;
    typedef back_shared<T, DK> M;
    const warp_place w(S::M_WARPS);
    const int row0 = w.m * 16, column0 = w.n * S::NV * 8;
    each(state, row0, S::C, column0, [&](int i, int j, float &s) { m.state[i * S::LV + j] = from_f32<T>(s); });
    keys_load<T, DK>(x, x.kn, m.k, now, head);
    if (M::BOTH) keys_load<T, DK>(x, x.qn, m.q, now, head);
    values_load<T, DK>(x, x.do_, m.dout, now, head, tile);
    if (x.beta) squares_load<T, DK>(x, x.inverse, m.inverse, now, head);
    squares_load<T, DK>(x, x.p, m.p, now, head);
    gates_load(m.gate, x.g, x.beta, (int64_t)now.start * x.heads + head, x.heads, now.rows);
    tile_wait();
    __syncthreads();
    if (!now.last) // beside the state that enters the next chunk
        tile_store<DK, S::DV, S::LV>(state_at<S>(x, (T *)x.dstates, now.start + S::C, head, tile), S::DV, m.state, DK,
                                     S::DV, true);
    float d[1][S::NV][4], other[1][S::NV][4];
    clear(d);
    clear(other);
    matmul<AS_IS, AS_IS>(other, m.k + row0 * S::LK, S::LK, 0, m.state + column0, S::LV, DK);
    matmul<TRANS, AS_IS>(d, m.p + row0, S::LC, 0, m.dout + column0, S::LV, S::C);
#pragma unroll
    for (int n = 0; n < S::NV; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            d[0][n][e] = x.scale * d[0][n][e] + m.gate.f[row0 + e / 2 * 8 + threadIdx.x % WARP / 4] * other[0][n][e];
    if (x.beta) {
        each(d, row0, 0, column0, [&](int i, int j, float &v) {
            m.d[i * S::LV + j] = from_f32<T>(v);
            v = 0;
        });
        __syncthreads();
        matmul<TRANS, AS_IS>(d, m.inverse + row0, S::LC, 0, m.d + column0, S::LV, S::C);
    }
    __syncthreads(); // all have read dO and dD
    each(d, row0, 0, column0, [&](int i, int j, float &v) {
        m.d[i * S::LV + j] = from_f32<T>(v);
        m.x[i * S::LV + j] = from_f32<T>(x.beta ? -m.gate.beta[i] * m.gate.e[i] * v : 0.f);
        T &dout = m.dout[i * S::LV + j];
        dout = from_f32<T>(x.scale * m.gate.e[i] * to_f32(dout));
    });
    each(state, row0, S::C, column0, [&](int, int, float &s) { s *= m.gate.e[S::C - 1]; });
    __syncthreads();
    if (x.beta) matmul<TRANS, AS_IS>(state, m.k + row0, S::LK, S::C, m.x + column0, S::LV, S::C);
    if (!M::BOTH) {
        __syncthreads();
        keys_load<T, DK>(x, x.qn, m.k, now, head);
        tile_wait();
        __syncthreads();
    }
    matmul<TRANS, AS_IS>(state, (M::BOTH ? m.q : m.k) + row0, S::LK, S::C, m.dout + column0, S::LV, S::C);
    tile_store<S::C, S::DV, S::LV>(sp_rows<T, DK>(x, x.du, now, head, tile), (int64_t)x.heads * x.tiles * S::DV, m.d,
                                   now.rows, S::DV, true);
    __syncthreads();
}

// grid: segments, heads, tiles of dv.
template <typename T, int DK> __global__ void __launch_bounds__(THREADS) back_kernel(const call x)
{
    typedef cut<T, DK> S;
    extern __shared__ __align__(16) unsigned char raw[];
    back_shared<T, DK> &m = *reinterpret_cast<back_shared<T, DK> *>(raw);
    const segment docs(x);
    for (int doc = docs.doc; doc < docs.end; doc++) {
        const int begin = __ldg(x.cu + doc), end = __ldg(x.cu + doc + 1), chunks = (end - begin + S::C - 1) / S::C;
        float state[S::MK][S::NV][4];
        clear(state);
        for (int i = chunks - 1; i >= 0; i--) {
            const int start = begin + i * S::C;
            back_chunk<T, DK>(x, m, {start, min((int)S::C, end - start), i == 0, i == chunks - 1}, blockIdx.y,
                              blockIdx.z, state);
        }
    }
}

// ---- gather

// Its sums take most of a thread's registers: sixteen warps, as long as pieces of columns still come in pairs.
template <typename T, int DK> constexpr int GATHER_WARPS = sizeof(T) == 2 && DK <= 128 ? 2 * WARPS : WARPS;
template <typename T, int DK> using gather_cut = cut<T, DK, GATHER_WARPS<T, DK>>;

template <typename T, int DK> struct gather_shared {
    typedef gather_cut<T, DK> S;
    alignas(16) T k[S::C * S::LK];   // K, at last Q
    alignas(16) T state[DK * S::LV]; // S, then dS
    union {
        struct {
            alignas(16) T d[S::C * S::LV];    // V, then R, then D
            alignas(16) T dout[S::C * S::LV]; // dO
            alignas(16) T du[S::C * S::LV];   // dU
            alignas(16) T x[S::C * S::LV];    // dX, then f D
        };
        alignas(16) T h[S::C * S::LC];
    };
    alignas(16) T e[S::C * S::LC]; // Tm, then E
    gates<S::C> gate;
    // partial sums: dcum, dbeta, <f K dS, D>; what columns take
    float rows[3][S::N_WARPS][S::C], columns[S::M_WARPS][S::C];
    float dcum[S::C], exchange[WARP];
};

// Sums of one thread for its two rows, row0 + g and row0 + 8 + g.
struct two_rows { float v[2]; };
__device__ inline void rows_leave(const two_rows &x, float *to)
{
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = x.v[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0) to[half * 8 + lane / 4] = sum;
    }
}

// What all tiles of dv add to, in registers.
template <typename T, int DK> struct gathered {
    typedef gather_cut<T, DK> S;
    float dq[1][S::NK][4], dk[1][S::NK][4], e[1][S::NC][4], h[1][S::NC][4];
    two_rows dcum, dbeta, leaving; // leaving: <f K dS, D>
    float states;                  // this thread's part of <S, dS>
};

template <typename T, int DK> __device__ inline void gather_begin(gathered<T, DK> &to)
{
    clear(to.dq);
    clear(to.dk);
    clear(to.e);
    clear(to.h);
    to.dcum = to.dbeta = to.leaving = {};
    to.states = 0;
}

// Everything of one tile of dv.
template <typename T, int DK>
__device__ inline void gather_tile(const call &x, gather_shared<T, DK> &m, const chunk &now, int head, int tile,
                                   gathered<T, DK> &to)
{
    typedef gather_cut<T, DK> S;
    const warp_place w(S::M_WARPS);
    const int row0 = w.m * 16, column0 = w.n * S::NV * 8, key0 = w.n * S::NK * 8, square0 = w.n * S::NC * 8,
              columns = min((int)S::DV, x.dv_size - tile * S::DV);
    const T *entering = state_at<S>(x, (T *)x.states, now.start, head, tile),
            *leaving = state_at<S>(x, (T *)x.dstates, now.start + S::C, head, tile);
    tile_load<S::C, S::DV, S::LV>(m.d,
                                  (const T *)x.v + now.start * x.v_stride + (int64_t)head * x.dv_size + tile * S::DV,
                                  x.v_stride, now.rows, columns, x.wide_v);
    values_load<T, DK>(x, x.do_, m.dout, now, head, tile);
    tile_load<S::C, S::DV, S::LV>(m.du, sp_rows<T, DK>(x, x.du, now, head, tile), (int64_t)x.heads * x.tiles * S::DV,
                                  now.rows, S::DV, true);
    if (!now.first) tile_load<DK, S::DV, S::LV>(m.state, entering, S::DV, DK, S::DV, true);
    tile_wait();
    __syncthreads();
    float d[1][S::NV][4];
    clear(d);
    if (x.beta) {
        if (!now.first) matmul<AS_IS, AS_IS>(d, m.k + row0 * S::LK, S::LK, 0, m.state + column0, S::LV, DK);
        each_half(d, row0, column0, [&](int i, int j, int half, float &v) {
            const float du = to_f32(m.du[i * S::LV + j]), e = m.gate.e[i], z = to_f32(m.d[i * S::LV + j]) - e * v,
                        dx = -m.gate.beta[i] * e * du;
            to.dcum.v[half] += v * dx;
            to.dbeta.v[half] += du * z;
            m.d[i * S::LV + j] = from_f32<T>(m.gate.beta[i] * z);
            m.x[i * S::LV + j] = from_f32<T>(dx);
            v = 0;
        });
        __syncthreads();
        matmul<AS_IS, AS_IS>(d, m.e + row0 * S::LC, S::LC, 0, m.d + column0, S::LV, S::C);
        __syncthreads();
        each(d, row0, 0, column0, [&](int i, int j, float &v) { m.d[i * S::LV + j] = from_f32<T>(v); });
    } else {
        each(d, row0, 0, column0, [&](int i, int j, float &v) { v = to_f32(m.d[i * S::LV + j]); });
    }
    __syncthreads();
    for (int i = threadIdx.x; i < S::C * S::DV; i += blockDim.x) { // dv, which may have any stride
        const int row = i / S::DV, c = i % S::DV;
        if (row < now.rows && c < columns)
            ((T *)x.dv)[(now.start + row) * x.dv_stride + (int64_t)head * x.dv_size + tile * S::DV + c] =
                from_f32<T>(m.gate.beta[row] * to_f32(m.du[row * S::LV + c]));
    }
    matmul<AS_IS, TRANS>(to.e, m.dout + row0 * S::LV, S::LV, 0, m.d + square0 * S::LV, S::LV, S::DV);
    if (x.beta) matmul<AS_IS, TRANS>(to.h, m.du + row0 * S::LV, S::LV, 0, m.d + square0 * S::LV, S::LV, S::DV);
    if (!now.first) {
        matmul<AS_IS, TRANS>(to.dq, m.dout + row0 * S::LV, S::LV, 0, m.state + key0 * S::LV, S::LV, S::DV);
        if (x.beta) matmul<AS_IS, TRANS>(to.dk, m.x + row0 * S::LV, S::LV, 0, m.state + key0 * S::LV, S::LV, S::DV);
    }
    __syncthreads();
    if (now.last) return;
    tile_load<DK, S::DV, S::LV>(m.state, leaving, S::DV, DK, S::DV, true);
    each(d, row0, 0, column0, [&](int i, int j, float &v) { m.x[i * S::LV + j] = from_f32<T>(m.gate.f[i] * v); });
    tile_wait();
    __syncthreads();
    for (int i = threadIdx.x; !now.first && i < DK * S::DV; i += blockDim.x)
        to.states += to_f32(entering[i]) * to_f32(m.state[i / S::DV * S::LV + i % S::DV]);
    float y[1][S::NV][4];
    clear(y);
    matmul<AS_IS, AS_IS>(y, m.k + row0 * S::LK, S::LK, 0, m.state + column0, S::LV, DK);
#pragma unroll
    for (int n = 0; n < S::NV; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            to.leaving.v[e / 2] += m.gate.f[row0 + e / 2 * 8 + threadIdx.x % WARP / 4] * y[0][n][e] * d[0][n][e];
    matmul<AS_IS, TRANS>(to.dk, m.x + row0 * S::LV, S::LV, 0, m.state + key0 * S::LV, S::LV, S::DV);
    __syncthreads();
}

// E and H to shared memory; what M and N add to rows and subtract from columns.
template <typename T, int DK>
__device__ inline void gather_squares(const call &x, gather_shared<T, DK> &m, const chunk &now, int head,
                                      gathered<T, DK> &to)
{
    typedef gather_cut<T, DK> S;
    const warp_place w(S::M_WARPS);
    const int row0 = w.m * 16, square0 = w.n * S::NC * 8, lane = threadIdx.x % WARP;
    const T *p = (const T *)x.p + ((int64_t)now.start * x.heads + head) * S::C;
    float kk[1][S::NC][4], taken[S::NC][2] = {};
    clear(kk);
    if (x.beta) matmul<AS_IS, TRANS>(kk, m.k + row0 * S::LK, S::LK, 0, m.k + square0 * S::LK, S::LK, DK);
#pragma unroll
    for (int n = 0; n < S::NC; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = row0 + e / 2 * 8 + lane / 4, j = square0 + n * 8 + lane % 4 * 2 + e % 2;
            const bool there = i >= j && i < now.rows;
            // P already holds Gam
            const float gam = there ? decay(m.gate, i, j) : 0.f, out = there ? x.scale * to.e[0][n][e] : 0.f;
            float moved = there ? out * to_f32(p[(int64_t)i * x.heads * S::C + j]) : 0.f;                // M
            m.e[i * S::LC + j] = from_f32<T>(out * gam);
            if (x.beta) {
                const float h = i > j ? -to.h[0][n][e] * gam : 0.f, by_beta = h * kk[0][n][e]; // n
                m.h[i * S::LC + j] = from_f32<T>(m.gate.beta[i] * h);
                to.dbeta.v[e / 2] += by_beta;
                moved += m.gate.beta[i] * by_beta;
            }
            to.dcum.v[e / 2] += moved;
            taken[n][e % 2] += moved;
        }
#pragma unroll
    for (int n = 0; n < S::NC; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            for (int d = 4; d < WARP; d *= 2) taken[n][e] += __shfl_xor_sync(0xffffffffu, taken[n][e], d);
            if (lane < 4) m.columns[w.m][square0 + n * 8 + lane * 2 + e] = taken[n][e];
        }
}

// dg and dbeta from all the sums.
template <typename T, int DK>
__device__ inline void gather_gates(const call &x, gather_shared<T, DK> &m, const chunk &now, int head,
                                    const gathered<T, DK> &from)
{
    typedef gather_cut<T, DK> S;
    const warp_place w(S::M_WARPS);
    rows_leave(from.dcum, m.rows[0][w.n] + w.m * 16);
    rows_leave(from.dbeta, m.rows[1][w.n] + w.m * 16);
    rows_leave(from.leaving, m.rows[2][w.n] + w.m * 16);
    const float states = block_sum(from.states, m.exchange); // its barriers also cover the sums of rows and columns
    const int i = threadIdx.x;
    float dcum = 0, dbeta = 0, leaving = 0;
    if (i < S::C) {
        for (int n = 0; n < S::N_WARPS; n++)
            dcum += m.rows[0][n][i], dbeta += m.rows[1][n][i], leaving += m.rows[2][n][i];
        for (int n = 0; n < S::M_WARPS; n++) dcum -= m.columns[n][i];
        dcum -= leaving;
        m.dcum[i] = dcum;
    }
    const float all_leaving = block_sum(i < S::C ? leaving : 0.f, m.exchange);
    __syncthreads();
    if (i >= now.rows) return;
    float sum = all_leaving + m.gate.e[S::C - 1] * states;
    for (int j = now.rows - 1; j >= i; j--) sum += m.dcum[j];
    const int64_t at = ((int64_t)now.start + i) * x.heads + head;
    x.dg[at] = sum;
    if (x.beta) x.dbeta[at] = dbeta;
}

template <typename T, int DK> __global__ void __launch_bounds__(GATHER_WARPS<T, DK> *WARP) gather_kernel(const call x)
{
    typedef gather_cut<T, DK> S;
    extern __shared__ __align__(16) unsigned char raw[];
    gather_shared<T, DK> &m = *reinterpret_cast<gather_shared<T, DK> *>(raw);
    const int head = blockIdx.y, head_k = head / (x.heads / x.heads_k);
    const warp_place w(S::M_WARPS);
    const int row0 = w.m * 16, key0 = w.n * S::NK * 8;
    chunk_walk walk(x.cu, x.docs, x.rows, blockIdx.x * S::C, S::C);
    chunk now;
    while (walk.take(now)) {
        gathered<T, DK> to;
        gather_begin(to);
        __syncthreads();
        keys_load<T, DK>(x, x.kn, m.k, now, head);
        if (x.beta) squares_load<T, DK>(x, x.inverse, m.e, now, head);
        gates_load(m.gate, x.g, x.beta, (int64_t)now.start * x.heads + head, x.heads, now.rows);
        for (int tile = 0; tile < x.tiles; tile++) gather_tile(x, m, now, head, tile, to);
        const T *q = (const T *)x.qn + ((int64_t)now.start * x.heads_k + head_k) * DK;
        each_half(to.dq, row0, key0, [&](int i, int j, int half, float &v) {
            v *= x.scale * m.gate.e[i];
            if (i < now.rows) to.dcum.v[half] += v * to_f32(q[(int64_t)i * x.heads_k * DK + j]);
        });
        gather_squares(x, m, now, head, to);
        __syncthreads();
        matmul<AS_IS, AS_IS>(to.dq, m.e + row0 * S::LC, S::LC, 0, m.k + key0, S::LK, S::C);
        if (x.beta) {
            matmul<AS_IS, AS_IS>(to.dk, m.h + row0 * S::LC, S::LC, 0, m.k + key0, S::LK, S::C);
            matmul<TRANS, AS_IS>(to.dk, m.h + row0, S::LC, 0, m.k + key0, S::LK, S::C);
        }
        __syncthreads();
        keys_load<T, DK>(x, x.qn, m.k, now, head);
        tile_wait();
        __syncthreads();
        matmul<TRANS, AS_IS>(to.dk, m.e + row0, S::LC, 0, m.k + key0, S::LK, S::C);
        const int64_t at = ((int64_t)now.start * x.heads + head) * DK, next = (int64_t)x.heads * DK;
        each(to.dq, row0, 0, key0, [&](int i, int j, float &v) {
            if (i < now.rows) ((T *)x.dqs)[at + i * next + j] = from_f32<T>(v);
        });
        each(to.dk, row0, 0, key0, [&](int i, int j, float &v) {
            if (i < now.rows) ((T *)x.dks)[at + i * next + j] = from_f32<T>(v);
        });
        gather_gates(x, m, now, head, to);
    }
}

// ---- fold

enum { FOLD_ROWS = THREADS / WARP };
template <typename T>
__device__ inline void fold_row(const T *parts, int heads, int wide_dk, const T *unit, float rho, bool normalize, T *to,
                                int n)
{
    const int lane = threadIdx.x % WARP;
    float y[8], dy[8], along = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = i * WARP + lane;
        y[i] = dy[i] = 0;
        if (c >= n) continue;
        y[i] = to_f32(unit[c]);
        for (int h = 0; h < heads; h++) dy[i] += to_f32(parts[(int64_t)h * wide_dk + c]);
        along += y[i] * dy[i];
    }
    along = normalize ? warp_sum(along) : 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i * WARP + lane < n) to[i * WARP + lane] = from_f32<T>(rho * (dy[i] - y[i] * along));
}
template <typename T> __global__ void __launch_bounds__(THREADS) fold_kernel(const call x, int wide_dk)
{
    const int64_t i = (int64_t)blockIdx.x * FOLD_ROWS + threadIdx.x / WARP; // row and key head
    if (i >= (int64_t)x.rows * x.heads_k) return;
    const int group = x.heads / x.heads_k;
    const int64_t row = i / x.heads_k, at = i % x.heads_k * x.dk_size, parts = i * group * wide_dk;
    fold_row((const T *)x.dqs + parts, group, wide_dk, (const T *)x.qn + i * wide_dk, x.rho[2 * i], x.normalize,
             (T *)x.dq + row * x.dq_stride + at, x.dk_size);
    fold_row((const T *)x.dks + parts, group, wide_dk, (const T *)x.kn + i * wide_dk, x.rho[2 * i + 1], x.normalize,
             (T *)x.dk + row * x.dk_stride + at, x.dk_size);
}

template <typename T, int DK> void backward_queue(const call &x, cudaStream_t queue)
{
    const int64_t rows = (int64_t)x.rows * x.heads_k;
    static_assert(sizeof(back_shared<T, DK>) <= SHARED_MAX && sizeof(gather_shared<T, DK>) <= SHARED_MAX,
                  "more than a block may have");
    queue_kernel(back_kernel<T, DK>, x, dim3(x.segments, x.heads, x.tiles), sizeof(back_shared<T, DK>), queue);
    queue_kernel(gather_kernel<T, DK>, x, dim3((x.rows + cut<T, DK>::C - 1) / cut<T, DK>::C, x.heads),
                 sizeof(gather_shared<T, DK>), queue, GATHER_WARPS<T, DK> * WARP);
    fold_kernel<T><<<(unsigned)((rows + FOLD_ROWS - 1) / FOLD_ROWS), THREADS, 0, queue>>>(x, DK);
}

} // namespace
} // namespace delta

using namespace delta;

extern "C" status delta_mma_bwd(const struct delta_bwd_args *a, dev_stream s)
{
    const layout l = layout_of(&a->shape);
    const int64_t each = 16 / (int64_t)dtype_bytes(a->shape.dt);
    call x = call_of(a, l);
    if (a->shape.rows == 0) return STATUS_OK;
    CHECK(a->saved, "backward of a forward pass that kept nothing");
    x.do_ = a->do_, x.dq = a->dq, x.dk = a->dk, x.dv = a->dv, x.dg = (float *)a->dg, x.dbeta = (float *)a->dbeta;
    x.dq_stride = a->dq_stride, x.dk_stride = a->dk_stride, x.dv_stride = a->dv_stride;
    x.wide_o = aligned16(a->do_) && a->shape.dv % each == 0;
    x.states = (void *)(uintptr_t)a->saved;
    char *at = layout_common(x, l, a->scratch);
    x.dstates = at, at += l.states;
    x.du = at, at += l.du;
    x.dqs = at, at += l.dqk;
    x.dks = at;
    cudaStream_t queue = queue_of(s);
    prepare(x, a->shape.dt, l.dk, queue);
    BY_DTYPE(a->shape.dt, (l.dk == 64    ? backward_queue<T, 64>(x, queue)
                           : l.dk == 128 ? backward_queue<T, 128>(x, queue)
                                         : backward_queue<T, 256>(x, queue)));
    return cuda_set_launched(s, "delta_bwd");
}
