// The gated delta rule in chunks (Yang et al., arXiv:2406.06484 and 2412.06464; without the delta term Dao & Gu,
// arXiv:2405.21060) on any GPU from sm_80 on: forward, and what backward shares with it. Per chunk and value head, S
// the state that enters, with
//
//   cum   sums of g inside the chunk;  Gam_ij = exp(cum_i - cum_j), i >= j;  e = exp(cum);  f = exp(cum_last - cum)
//   A   = strictly lower part of beta Gam K K^T;   Tm = (I + A)^-1;   P = lower part of Gam Q K^T
//   R   = beta (V - e K S);   D = Tm R             (D = V without the delta term; its rows are the u of ops_gdn.h)
//   O   = scale (e Q S + P D)
//   S  <- e_last S + K^T (f D)
//
//   pack      q and k of each row and key head, normalised, in whole rows of DK: everything behind it reads aligned
//             rows
//   prepare   block = the chunks that begin in C rows, one value head: Tm and P, which need no state
//   forward   block = the documents that begin in one segment of rows, one value head, one tile of dv columns: chunk
//             after chunk, S in registers in f32. For backward, S is left in memory where it enters a chunk.
//
// Inverse: the 16 x 16 blocks on the diagonal by substitution, the others from those above and beside them, in f32.
#include "ops/cuda/gdn_delta_sm80.cuh"

namespace delta {
namespace {

// ---- pack

enum { PACK_ROWS = THREADS / WARP };
template <typename T>
__device__ inline void pack_row(const T *from, T *to, float *rho, int n, int wide_n, bool normalize)
{
    const int lane = threadIdx.x % WARP;
    float x[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int c = i * WARP + lane;
        x[i] = c < n ? to_f32(from[c]) : 0;
        sum += x[i] * x[i];
    }
    sum = warp_sum(sum);
    const float factor = normalize ? 1 / sqrtf(sum + 1e-6f) : 1;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i * WARP + lane < wide_n) to[i * WARP + lane] = from_f32<T>(x[i] * factor);
    if (lane == 0) *rho = factor;
}
template <typename T> __global__ void __launch_bounds__(THREADS) pack_kernel(const call x, int wide_dk)
{
    const int64_t i = (int64_t)blockIdx.x * PACK_ROWS + threadIdx.x / WARP; // row and head
    if (i >= (int64_t)x.rows * x.heads_k) return;
    const int64_t row = i / x.heads_k, at = i % x.heads_k * x.dk_size;
    pack_row((const T *)x.q + row * x.q_stride + at, (T *)x.qn + i * wide_dk, x.rho + 2 * i, x.dk_size, wide_dk,
             x.normalize);
    pack_row((const T *)x.k + row * x.k_stride + at, (T *)x.kn + i * wide_dk, x.rho + 2 * i + 1, x.dk_size, wide_dk,
             x.normalize);
}

// ---- prepare

enum { SLICE = 64, BLOCK = 16 }; // columns of q and k at a time; of the inverse

template <typename T, int DK> struct prepare_shared {
    typedef cut<T, DK> S;
    enum { WIDTH = SLICE + S::PAD, SQUARE = S::C + 1 };
    alignas(16) T q[S::C * WIDTH];
    alignas(16) T k[S::C * WIDTH];
    float a[S::C * SQUARE], inverse[S::C * SQUARE];
    float between[S::C / BLOCK][BLOCK][BLOCK + 1];
    gates<S::C> gate;
};

// inverse = (I + a)^-1, a strictly lower, of C rows; all threads.
template <int C, int SQUARE, typename BETWEEN>
__device__ inline void invert(const float *a, float *inverse, BETWEEN between)
{
    const int thread = threadIdx.x;
    for (int i = thread; i < C * SQUARE; i += THREADS) inverse[i] = 0;
    __syncthreads();
    if (thread < 4 * C) { // four neighbours per column of a block on the diagonal
        const int column = thread / 4, part = thread % 4, first = column / BLOCK * BLOCK;
        float x[BLOCK / 4] = {};
#pragma unroll
        for (int i = 0; i < BLOCK; i++) {
            float sum = 0;
#pragma unroll
            for (int m = 0; m < BLOCK / 4; m++)
                if (4 * m + part < i) sum += a[(first + i) * SQUARE + first + 4 * m + part] * x[m];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const float value = (first + i == column ? 1.f : 0.f) - sum;
            if (i % 4 == part) {
                x[i / 4] = value;
                inverse[(first + i) * SQUARE + column] = value;
            }
        }
    }
    const int r = thread / BLOCK, c = thread % BLOCK;
    for (int d = 1; d < C / BLOCK; d++) {
        __syncthreads();
        for (int j = 0; j + d < C / BLOCK; j++) {
            const int row = (j + d) * BLOCK + r;
            float sum = 0;
            for (int m = j * BLOCK; m < (j + d) * BLOCK; m++)
                sum += a[row * SQUARE + m] * inverse[m * SQUARE + j * BLOCK + c];
            between[j][r][c] = sum;
        }
        __syncthreads();
        for (int j = 0; j + d < C / BLOCK; j++) {
            const int row = (j + d) * BLOCK;
            float sum = 0;
            for (int m = 0; m < BLOCK; m++) sum += inverse[(row + r) * SQUARE + row + m] * between[j][m][c];
            inverse[(row + r) * SQUARE + j * BLOCK + c] = -sum;
        }
    }
    __syncthreads();
}

template <typename T, int DK> __global__ void __launch_bounds__(THREADS) prepare_kernel(const call x)
{
    typedef cut<T, DK> S;
    typedef prepare_shared<T, DK> M;
    extern __shared__ __align__(16) unsigned char raw[];
    M &m = *reinterpret_cast<M *>(raw);
    const int head = blockIdx.y, head_k = head / (x.heads / x.heads_k);
    const warp_place w(S::M_WARPS);
    const int row0 = w.m * 16, column0 = w.n * S::NC * 8;
    const bool delta = x.beta != NULL;
    chunk_walk walk(x.cu, x.docs, x.rows, blockIdx.x * S::C, S::C);
    chunk now;
    while (walk.take(now)) {
        float kk[1][S::NC][4], qk[1][S::NC][4];
        clear(kk);
        clear(qk);
        const int64_t at = ((int64_t)now.start * x.heads_k + head_k) * DK, stride = (int64_t)x.heads_k * DK;
        gates_load(m.gate, x.g, x.beta, (int64_t)now.start * x.heads + head, x.heads, now.rows);
        for (int c = 0; c < DK; c += SLICE) {
            tile_load<S::C, SLICE, M::WIDTH>(m.q, (const T *)x.qn + at + c, stride, now.rows, SLICE, true);
            tile_load<S::C, SLICE, M::WIDTH>(m.k, (const T *)x.kn + at + c, stride, now.rows, SLICE, true);
            tile_wait();
            __syncthreads();
            matmul<AS_IS, TRANS>(qk, m.q + row0 * M::WIDTH, M::WIDTH, 0, m.k + column0 * M::WIDTH, M::WIDTH, SLICE);
            if (delta)
                matmul<AS_IS, TRANS>(kk, m.k + row0 * M::WIDTH, M::WIDTH, 0, m.k + column0 * M::WIDTH, M::WIDTH,
                                       SLICE);
            __syncthreads();
        }
        T *p = (T *)x.p + ((int64_t)now.start * x.heads + head) * S::C,
          *inverse = (T *)x.inverse + ((int64_t)now.start * x.heads + head) * S::C;
        const int64_t next = (int64_t)x.heads * S::C;
        each(qk, row0, 0, column0, [&](int i, int j, float &v) {
            if (i < now.rows) p[i * next + j] = from_f32<T>(i >= j ? v * decay(m.gate, i, j) : 0.f);
        });
        if (delta) {
            each(kk, row0, 0, column0, [&](int i, int j, float &v) {
                m.a[i * M::SQUARE + j] = i > j ? v * decay(m.gate, i, j) * m.gate.beta[i] : 0.f;
            });
            invert<S::C, M::SQUARE>(m.a, m.inverse, m.between);
            for (int i = threadIdx.x; i < S::C * S::C; i += THREADS) {
                const int row = i / S::C, c = i % S::C;
                if (row < now.rows) inverse[row * next + c] = from_f32<T>(m.inverse[row * M::SQUARE + c]);
            }
        }
        __syncthreads();
    }
}

// ---- forward

template <typename T, int DK> struct forward_shared {
    typedef cut<T, DK> S;
    enum { BOTH = DK <= 128 }; // q and k have places of their own
    alignas(16) T k[S::C * S::LK];
    alignas(16) T q[BOTH ? S::C * S::LK : 16];
    alignas(16) T state[DK * S::LV];
    alignas(16) T v[S::C * S::LV]; // V, then R, then O
    alignas(16) T d[S::C * S::LV]; // D, then f D
    alignas(16) T inverse[S::C * S::LC];
    alignas(16) T p[S::C * S::LC];
    gates<S::C> gate;
};

template <typename T, int DK>
__device__ inline void forward_load(const call &x, forward_shared<T, DK> &m, const chunk &now, int head, int tile)
{
    typedef cut<T, DK> S;
    typedef forward_shared<T, DK> M;
    const int head_k = head / (x.heads / x.heads_k), columns = min((int)S::DV, x.dv_size - tile * S::DV);
    const int64_t at = ((int64_t)now.start * x.heads_k + head_k) * DK, stride = (int64_t)x.heads_k * DK,
                  square = ((int64_t)now.start * x.heads + head) * S::C, next = (int64_t)x.heads * S::C;
    tile_load<S::C, DK, S::LK>(M::BOTH ? m.q : m.k, (const T *)x.qn + at, stride, now.rows, DK, true);
    if (M::BOTH) tile_load<S::C, DK, S::LK>(m.k, (const T *)x.kn + at, stride, now.rows, DK, true);
    tile_load<S::C, S::DV, S::LV>(x.beta ? m.v : m.d,
                                  (const T *)x.v + now.start * x.v_stride + (int64_t)head * x.dv_size + tile * S::DV,
                                  x.v_stride, now.rows, columns, x.wide_v);
    if (x.beta) tile_load<S::C, S::C, S::LC>(m.inverse, (const T *)x.inverse + square, next, now.rows, S::C, true);
    tile_load<S::C, S::C, S::LC>(m.p, (const T *)x.p + square, next, now.rows, S::C, true);
    gates_load(m.gate, x.g, x.beta, (int64_t)now.start * x.heads + head, x.heads, now.rows);
    tile_wait();
    __syncthreads();
}

// One chunk: o, and the state behind it.
template <typename T, int DK>
__device__ inline void forward_chunk(const call &x, forward_shared<T, DK> &m, const chunk &now, int head, int tile,
                                     float (&state)[cut<T, DK>::MK][cut<T, DK>::NV][4])
{
    typedef cut<T, DK> S;
    typedef forward_shared<T, DK> M;
    const warp_place w(S::M_WARPS);
    const int row0 = w.m * 16, column0 = w.n * S::NV * 8, columns = min((int)S::DV, x.dv_size - tile * S::DV);
    each(state, row0, S::C, column0, [&](int i, int j, float &s) { m.state[i * S::LV + j] = from_f32<T>(s); });
    forward_load(x, m, now, head, tile);
    if (x.states && !now.first)
        tile_store<DK, S::DV, S::LV>(state_at<S>(x, (T *)x.states, now.start, head, tile), S::DV, m.state, DK, S::DV,
                                     true);
    float o[1][S::NV][4], d[1][S::NV][4];
    clear(o);
    clear(d);
    matmul<AS_IS, AS_IS>(o, (M::BOTH ? m.q : m.k) + row0 * S::LK, S::LK, 0, m.state + column0, S::LV, DK);
    each(o, row0, 0, column0, [&](int i, int, float &v) { v *= m.gate.e[i]; });
    if (!M::BOTH) {
        const int head_k = head / (x.heads / x.heads_k);
        __syncthreads();
        tile_load<S::C, DK, S::LK>(m.k, (const T *)x.kn + ((int64_t)now.start * x.heads_k + head_k) * DK,
                                   (int64_t)x.heads_k * DK, now.rows, DK, true);
        tile_wait();
        __syncthreads();
    }
    if (x.beta) {
        matmul<AS_IS, AS_IS>(d, m.k + row0 * S::LK, S::LK, 0, m.state + column0, S::LV, DK);
        each(d, row0, 0, column0, [&](int i, int j, float &v) {
            T &at = m.v[i * S::LV + j];
            at = from_f32<T>(m.gate.beta[i] * (to_f32(at) - m.gate.e[i] * v));
            v = 0;
        });
        __syncthreads();
        matmul<AS_IS, AS_IS>(d, m.inverse + row0 * S::LC, S::LC, 0, m.v + column0, S::LV, S::C);
        each(d, row0, 0, column0, [&](int i, int j, float &v) { m.d[i * S::LV + j] = from_f32<T>(v); });
        __syncthreads();
    } else {
        each(d, row0, 0, column0, [&](int i, int j, float &v) { v = to_f32(m.d[i * S::LV + j]); });
    }
    matmul<AS_IS, AS_IS>(o, m.p + row0 * S::LC, S::LC, 0, m.d + column0, S::LV, S::C);
    __syncthreads();
    each(d, row0, 0, column0, [&](int i, int j, float &v) { m.d[i * S::LV + j] = from_f32<T>(m.gate.f[i] * v); });
    each(o, row0, 0, column0, [&](int i, int j, float &v) { m.v[i * S::LV + j] = from_f32<T>(x.scale * v); });
    __syncthreads();
    each(state, row0, S::C, column0, [&](int, int, float &s) { s *= m.gate.e[S::C - 1]; });
    matmul<TRANS, AS_IS>(state, m.k + row0, S::LK, S::C, m.d + column0, S::LV, S::C);
    tile_store<S::C, S::DV, S::LV>((T *)x.o + ((int64_t)now.start * x.heads + head) * x.dv_size + tile * S::DV,
                                   (int64_t)x.heads * x.dv_size, m.v, now.rows, columns, x.wide_o);
    __syncthreads();
}

// grid: segments, heads, tiles of dv.
template <typename T, int DK> __global__ void __launch_bounds__(THREADS) forward_kernel(const call x)
{
    typedef cut<T, DK> S;
    extern __shared__ __align__(16) unsigned char raw[];
    forward_shared<T, DK> &m = *reinterpret_cast<forward_shared<T, DK> *>(raw);
    const int head = blockIdx.y, tile = blockIdx.z, columns = x.dv_size - tile * S::DV;
    const warp_place w(S::M_WARPS);
    const int row0 = w.m * 16, column0 = w.n * S::NV * 8;
    const segment docs(x);
    for (int doc = docs.doc; doc < docs.end; doc++) {
        const int begin = __ldg(x.cu + doc), end = __ldg(x.cu + doc + 1);
        const int64_t at = ((int64_t)doc * x.heads + head) * x.dk_size * x.dv_size + tile * S::DV;
        float state[S::MK][S::NV][4];
        each(state, row0, S::C, column0, [&](int i, int j, float &s) {
            s = x.state_in && i < x.dk_size && j < columns ? x.state_in[at + (int64_t)i * x.dv_size + j] : 0.f;
        });
        for (int start = begin; start < end; start += S::C)
            forward_chunk<T, DK>(x, m, {start, min((int)S::C, end - start), start == begin, start + S::C >= end}, head,
                                 tile, state);
        if (!x.state_out) continue;
        each(state, row0, S::C, column0, [&](int i, int j, float &s) {
            if (i < x.dk_size && j < columns) x.state_out[at + (int64_t)i * x.dv_size + j] = s;
        });
    }
}

template <typename T, int DK> void forward_queue(const call &x, cudaStream_t queue)
{
    static_assert(sizeof(forward_shared<T, DK>) <= SHARED_MAX, "more than a block may have");
    queue_kernel(forward_kernel<T, DK>, x, dim3(x.segments, x.heads, x.tiles), sizeof(forward_shared<T, DK>), queue);
}
template <typename T, int DK> void prepare_queue(const call &x, cudaStream_t queue)
{
    const int64_t rows = (int64_t)x.rows * x.heads_k;
    pack_kernel<T><<<(unsigned)((rows + PACK_ROWS - 1) / PACK_ROWS), THREADS, 0, queue>>>(x, DK);
    queue_kernel(prepare_kernel<T, DK>, x, dim3((x.rows + cut<T, DK>::C - 1) / cut<T, DK>::C, x.heads),
                 sizeof(prepare_shared<T, DK>), queue);
}

} // namespace

void prepare(const call &x, dtype dt, int64_t dk, cudaStream_t queue)
{
    BY_DTYPE(dt, (dk == 64    ? prepare_queue<T, 64>(x, queue)
                  : dk == 128 ? prepare_queue<T, 128>(x, queue)
                              : prepare_queue<T, 256>(x, queue)));
}

} // namespace delta

using namespace delta;

extern "C" size_t delta_mma_bytes(const struct delta_shape *shape, enum delta_memory what)
{
    const layout l = layout_of(shape);
    if (what == DELTA_SAVED) return l.states;
    const size_t common = 2 * l.qk + 2 * l.square + l.rho;
    return what == DELTA_FWD ? common : common + l.states + l.du + 2 * l.dqk;
}

extern "C" status delta_mma_fwd(const struct delta_fwd_args *a, dev_stream s)
{
    const layout l = layout_of(&a->shape);
    const int64_t each = 16 / (int64_t)dtype_bytes(a->shape.dt);
    call x = call_of(a, l);
    if (a->shape.docs == 0 || (a->shape.rows == 0 && !a->state_out)) return STATUS_OK;
    x.o = a->o, x.states = a->saved;
    x.state_in = (const float *)a->state_in, x.state_out = (float *)a->state_out;
    x.wide_o = aligned16(a->o) && a->shape.dv % each == 0;
    (void)layout_common(x, l, a->scratch);
    cudaStream_t queue = queue_of(s);
    if (x.rows > 0) prepare(x, a->shape.dt, l.dk, queue);
    BY_DTYPE(a->shape.dt, (l.dk == 64    ? forward_queue<T, 64>(x, queue)
                           : l.dk == 128 ? forward_queue<T, 128>(x, queue)
                                         : forward_queue<T, 256>(x, queue)));
    return cuda_set_launched(s, "delta_fwd");
}
