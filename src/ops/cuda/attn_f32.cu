// Attention in tiles for F32: blocks, limits and orders of attn_sm80.cu, matmuls by FMA, since tensor cores would
// round their operands. For training in full precision.
//
//   block      128 threads, a tile of scores of 64 rows; heads are zero-padded to HD
//   thread     (y = tid / 8, x = tid % 8): rows 4y + i, i < 4, columns x + 8j of scores; elements 4x + 32j .. + 3 of
//              results as wide as a head
//   exchange   a row is in 8 neighbouring lanes of one warp: maxima and sums by shuffles; scores pass to the next
//              matmul through rows of shared memory that no other warp touches
//   padding    rows of tiles are 4 floats longer: 8 rows at the same element are in all banks once
#include "ops/cuda/attn_docs.cuh"

enum { THREADS = 128, M = 64, PER = 4 };    // rows of a block and of a thread

__device__ inline void copy16(float *to, const float *from, bool there)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(at), "l"(from), "r"(there ? 16 : 0));
}
__device__ inline void copies_wait() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

// Row i of the tile comes from `from` + i * stride; zeros from row `valid` and element hd on.
template <int ROWS, int HD>
__device__ inline void tile_load(float *to, const float *from, int64_t stride, int valid, int hd)
{
    for (int i = threadIdx.x; i < ROWS * (HD / 4); i += THREADS) {
        const int row = i / (HD / 4), at = i % (HD / 4) * 4;
        copy16(to + row * (HD + 4) + at, from + row * stride + at, row < valid && at < hd);
    }
}

// s[i][j] = <row 4y + i of a, row x + 8j of b>.
template <int HD, int N> __device__ inline void rows_by_rows(float (&s)[PER][N / 8], const float *a, const float *b)
{
    a += threadIdx.x / 8 * PER * (HD + 4);
    b += threadIdx.x % 8 * (HD + 4);
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < N / 8; j++) s[i][j] = 0;
#pragma unroll 4
    for (int d = 0; d < HD; d += 4) {
        float4 x[PER], y[N / 8];
#pragma unroll
        for (int i = 0; i < PER; i++) x[i] = *(const float4 *)(a + i * (HD + 4) + d);
#pragma unroll
        for (int j = 0; j < N / 8; j++) y[j] = *(const float4 *)(b + j * (8 * (HD + 4)) + d);
#pragma unroll
        for (int i = 0; i < PER; i++)
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                s[i][j] = fmaf(x[i].x, y[j].x, s[i][j]);
                s[i][j] = fmaf(x[i].y, y[j].y, s[i][j]);
                s[i][j] = fmaf(x[i].z, y[j].z, s[i][j]);
                s[i][j] = fmaf(x[i].w, y[j].w, s[i][j]);
            }
    }
}

// Writes a thread's scores to rows of N + 4 in shared memory, for the lanes of the same rows.
template <int N> __device__ inline void scores_share(float *to, const float (&s)[PER][N / 8])
{
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < N / 8; j++) to[(threadIdx.x / 8 * PER + i) * (N + 4) + threadIdx.x % 8 + 8 * j] = s[i][j];
}

// c[i][j] += sum over the tile's rows u of scores[4y + i][u] tile[u][4x + 32j ...].
template <int HD, int N>
__device__ inline void scores_by_tile(float4 (&c)[PER][HD / 32], const float *scores, const float *tile)
{
    scores += threadIdx.x / 8 * PER * (N + 4);
    tile += threadIdx.x % 8 * 4;
#pragma unroll 1
    for (int u = 0; u < N; u += 4) {
        float4 p[PER];
#pragma unroll
        for (int i = 0; i < PER; i++) p[i] = *(const float4 *)(scores + i * (N + 4) + u);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int j = 0; j < HD / 32; j++) {
                const float4 y = *(const float4 *)(tile + (u + e) * (HD + 4) + 32 * j);
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    const float x = e == 0 ? p[i].x : e == 1 ? p[i].y : e == 2 ? p[i].z : p[i].w;
                    c[i][j].x = fmaf(x, y.x, c[i][j].x);
                    c[i][j].y = fmaf(x, y.y, c[i][j].y);
                    c[i][j].z = fmaf(x, y.z, c[i][j].z);
                    c[i][j].w = fmaf(x, y.w, c[i][j].w);
                }
            }
    }
}

template <int HD> __device__ inline void rows_zero(float4 (&c)[PER][HD / 32])
{
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < HD / 32; j++) c[i][j] = make_float4(0, 0, 0, 0);
}
template <int HD>
__device__ inline void rows_store(const float4 (&c)[PER][HD / 32], const float (&factor)[PER], float *to,
                                  int64_t stride, int valid, int hd)
{
#pragma unroll
    for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < HD / 32; j++) {
            const int row = threadIdx.x / 8 * PER + i, at = threadIdx.x % 8 * 4 + 32 * j;
            const float f = factor[i];
            if (row < valid && at < hd)
                *(float4 *)(to + row * stride + at) =
                    make_float4(c[i][j].x * f, c[i][j].y * f, c[i][j].z * f, c[i][j].w * f);
        }
}

// Over the 8 lanes of a row.
__device__ inline float row_max(float x)
{
    for (int d = 4; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
__device__ inline float row_sum(float x)
{
    for (int d = 4; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

// Late rows see most keys and start first; heads of one group run side by side.
struct row_block { int row, head; };
__device__ inline row_block late_first(int rows, int heads)
{
    return {((rows + M - 1) / M - 1 - (int)(blockIdx.x / heads)) * M, (int)(blockIdx.x % heads)};
}

// Floats of shared memory: RESIDENT tiles of M rows, two of N rows, SCORES tiles of scores, lse and delta of N rows.
template <int HD, int N_, int RESIDENT, int SCORES> struct f32_tile {
    enum {
        N = N_,
        BIG = M * (HD + 4),
        SMALL = N * (HD + 4),
        SCORE = M * (N + 4),
        BYTES = (RESIDENT * BIG + 2 * SMALL + SCORES * SCORE + 2 * N) * 4,
    };
};
template <int HD> using fwd_tile = f32_tile<HD, 32, 1, 1>;
template <int HD> using dq_tile = f32_tile<HD, HD == 64 ? 32 : 16, 2, 1>; // 99 KiB is what every GPU has
template <int HD> using dkv_tile = f32_tile<HD, HD == 64 ? 32 : 16, 2, 2>;

template <int HD> __global__ void __launch_bounds__(THREADS, 2) f32_fwd_kernel(attn_fwd_args a, attn_docs docs)
{
    using tile = fwd_tile<HD>;
    constexpr int N = tile::N;
    extern __shared__ __align__(1024) unsigned char shared[];
    const row_block b = late_first(docs.rows, (int)a.heads);
    const int hd = (int)a.head_dim, hd_v = (int)a.head_dim_v, kv = b.head / (int)(a.heads / a.heads_kv),
              y = threadIdx.x / 8, x = threadIdx.x % 8;
    float *q = (float *)shared, *k = q + tile::BIG, *v = k + tile::SMALL, *p = v + tile::SMALL;
    tile_load<M, HD>(q, (const float *)a.q + b.row * a.q_stride + b.head * hd, a.q_stride, docs.rows - b.row, hd);

    int first[PER], last[PER]; // keys of each row
    float4 o[PER][HD / 32];
    float max[PER], sum[PER];
    rows_zero<HD>(o);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const key_span keys = keys_of(docs, min(b.row + y * PER + i, docs.rows - 1));
        first[i] = keys.first;
        last[i] = keys.last;
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    const int end = keys_of(docs, min(b.row + M, docs.rows) - 1).last + 1;
    for (int key = first_key(docs, b.row); key < end; key += N) {
        __syncthreads(); // all threads have read the tiles before
        tile_load<N, HD>(k, (const float *)a.k + key * a.k_stride + kv * hd, a.k_stride, docs.keys - key, hd);
        tile_load<N, HD>(v, (const float *)a.v + key * a.v_stride + kv * hd_v, a.v_stride, docs.keys - key, hd_v);
        copies_wait();
        __syncthreads();
        float s[PER][N / 8];
        rows_by_rows<HD, N>(s, q, k);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            float top = max[i];
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const int at = key + x + 8 * j;
                s[i][j] = at < first[i] || at > last[i] ? -INFINITY : s[i][j] * (float)a.scale;
                top = fmaxf(top, s[i][j]);
            }
            top = row_max(top);
            const float base = top == -INFINITY ? 0.0f : top; // a row that has seen no key yet
            const float factor = expf(max[i] - base);
            max[i] = top;
            sum[i] *= factor;
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                s[i][j] = expf(s[i][j] - base);
                sum[i] += s[i][j];
            }
#pragma unroll
            for (int j = 0; j < HD / 32; j++) {
                o[i][j].x *= factor;
                o[i][j].y *= factor;
                o[i][j].z *= factor;
                o[i][j].w *= factor;
            }
        }
        scores_share<N>(p, s);
        __syncwarp();
        scores_by_tile<HD, N>(o, p, v);
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int row = b.row + y * PER + i;
        sum[i] = row_sum(sum[i]);
        if (a.lse && x == 0 && row < docs.rows) ((float *)a.lse)[b.head * a.rows + row] = max[i] + logf(sum[i]);
        sum[i] = 1 / sum[i];
    }
    rows_store<HD>(o, sum, (float *)a.o + (b.row * a.heads + b.head) * hd_v, a.heads * hd_v, docs.rows - b.row, hd_v);
}

template <int HD> __global__ void __launch_bounds__(THREADS, 2) f32_dq_kernel(attn_bwd_args a, attn_docs docs)
{
    using tile = dq_tile<HD>;
    constexpr int N = tile::N;
    extern __shared__ __align__(1024) unsigned char shared[];
    const row_block b = late_first(docs.rows, (int)a.heads);
    const int hd = (int)a.head_dim, hd_v = (int)a.head_dim_v, kv = b.head / (int)(a.heads / a.heads_kv),
              y = threadIdx.x / 8, x = threadIdx.x % 8;
    float *q = (float *)shared, *grad = q + tile::BIG, *k = grad + tile::BIG, *v = k + tile::SMALL,
          *ds = v + tile::SMALL;
    tile_load<M, HD>(q, (const float *)a.q + b.row * a.q_stride + b.head * hd, a.q_stride, docs.rows - b.row, hd);
    tile_load<M, HD>(grad, (const float *)a.do_ + (b.row * a.heads + b.head) * hd_v, a.heads * hd_v, docs.rows - b.row,
                     hd_v);

    int first[PER], last[PER]; // keys of each row
    float lse[PER], delta[PER], factor[PER];
    float4 dq[PER][HD / 32];
    rows_zero<HD>(dq);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int row = min(b.row + y * PER + i, docs.rows - 1);
        const key_span keys = keys_of(docs, row);
        first[i] = keys.first;
        last[i] = keys.last;
        lse[i] = ((const float *)a.lse)[b.head * a.rows + row];
        delta[i] = ((const float *)a.scratch)[b.head * a.rows + row];
        factor[i] = (float)a.scale;
    }
    const int end = keys_of(docs, min(b.row + M, docs.rows) - 1).last + 1;
    for (int key = first_key(docs, b.row); key < end; key += N) {
        __syncthreads();
        tile_load<N, HD>(k, (const float *)a.k + key * a.k_stride + kv * hd, a.k_stride, docs.keys - key, hd);
        tile_load<N, HD>(v, (const float *)a.v + key * a.v_stride + kv * hd_v, a.v_stride, docs.keys - key, hd_v);
        copies_wait();
        __syncthreads();
        float s[PER][N / 8], dp[PER][N / 8];
        rows_by_rows<HD, N>(s, q, k);
        rows_by_rows<HD, N>(dp, grad, v);
#pragma unroll
        for (int i = 0; i < PER; i++)
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const int at = key + x + 8 * j;
                const bool seen = at >= first[i] && at <= last[i];
                s[i][j] = seen ? expf(s[i][j] * (float)a.scale - lse[i]) * (dp[i][j] - delta[i]) : 0;
            }
        scores_share<N>(ds, s);
        __syncwarp();
        scores_by_tile<HD, N>(dq, ds, k);
    }
    rows_store<HD>(dq, factor, (float *)a.dq + b.row * a.dq_stride + b.head * hd, a.dq_stride, docs.rows - b.row, hd);
}

template <int HD> __global__ void __launch_bounds__(THREADS, 2) f32_dkv_kernel(attn_bwd_args a, attn_docs docs)
{
    using tile = dkv_tile<HD>;
    constexpr int N = tile::N;
    extern __shared__ __align__(1024) unsigned char shared[];
    const int heads_kv = (int)a.heads_kv, group = (int)(a.heads / a.heads_kv), head = blockIdx.x % heads_kv;
    const int row = (int)(blockIdx.x / heads_kv) * M, hd = (int)a.head_dim, hd_v = (int)a.head_dim_v,
              y = threadIdx.x / 8, x = threadIdx.x % 8;
    float *k = (float *)shared, *v = k + tile::BIG, *q = v + tile::BIG, *grad = q + tile::SMALL,
          *p = grad + tile::SMALL;
    float *ds = p + tile::SCORE, *stats = ds + tile::SCORE; // stats: lse [N], delta [N]
    tile_load<M, HD>(k, (const float *)a.k + row * a.k_stride + head * hd, a.k_stride, docs.keys - row, hd);
    tile_load<M, HD>(v, (const float *)a.v + row * a.v_stride + head * hd_v, a.v_stride, docs.keys - row, hd_v);

    int seen_begin[PER], seen_end[PER]; // queries of each key
    float factor[PER];
    float4 dk[PER][HD / 32], dv[PER][HD / 32];
    rows_zero<HD>(dk);
    rows_zero<HD>(dv);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const query_span queries = queries_of(docs, min(row + y * PER + i, docs.keys - 1));
        seen_begin[i] = queries.begin;
        seen_end[i] = queries.end;
    }
    const int begin = queries_of(docs, row).begin, end = query_end(docs, min(row + M, docs.keys) - 1);
    for (int h = head * group; h < (head + 1) * group; h++)
        for (int query = begin; query < end; query += N) {
            const int valid = docs.rows - query;
            __syncthreads();
            tile_load<N, HD>(q, (const float *)a.q + query * a.q_stride + h * hd, a.q_stride, valid, hd);
            tile_load<N, HD>(grad, (const float *)a.do_ + (query * a.heads + h) * hd_v, a.heads * hd_v, valid, hd_v);
            if (threadIdx.x < 2 * N) {
                const int i = threadIdx.x % N;
                const float *from = (const float *)(threadIdx.x < N ? a.lse : a.scratch) + h * a.rows + query;
                stats[threadIdx.x] = i < valid ? from[i] : 0.0f;
            }
            copies_wait();
            __syncthreads();
            float s[PER][N / 8], dp[PER][N / 8];
            rows_by_rows<HD, N>(s, k, q);
            rows_by_rows<HD, N>(dp, v, grad);
#pragma unroll
            for (int i = 0; i < PER; i++)
#pragma unroll
                for (int j = 0; j < N / 8; j++) {
                    const int c = x + 8 * j, at = query + c;
                    const bool seen = at >= seen_begin[i] && at < seen_end[i];
                    s[i][j] = seen ? expf(s[i][j] * (float)a.scale - stats[c]) : 0;
                    dp[i][j] = s[i][j] * (dp[i][j] - stats[N + c]);
                }
            scores_share<N>(p, s);
            scores_share<N>(ds, dp);
            __syncwarp();
            scores_by_tile<HD, N>(dv, p, grad);
            scores_by_tile<HD, N>(dk, ds, q);
        }
#pragma unroll
    for (int i = 0; i < PER; i++) factor[i] = 1;
    rows_store<HD>(dv, factor, (float *)a.dv + row * a.dv_stride + head * hd_v, a.dv_stride, docs.keys - row, hd_v);
#pragma unroll
    for (int i = 0; i < PER; i++) factor[i] = (float)a.scale;
    rows_store<HD>(dk, factor, (float *)a.dk + row * a.dk_stride + head * hd, a.dk_stride, docs.keys - row, hd);
}

template <typename ARGS>
static void queue_kernel(void (*kernel)(ARGS, attn_docs), const ARGS *a, int64_t rows, int64_t heads, int bytes,
                         cudaStream_t queue)
{
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes); // a failure shows at the launch
    kernel<<<(unsigned)((rows + M - 1) / M * heads), THREADS, bytes, queue>>>(*a, attn_docs_of(a));
}

void attn_f32_fwd_queue(const struct attn_fwd_args *a, cudaStream_t queue)
{
    if (a->head_dim <= 64 && a->head_dim_v <= 64)
        queue_kernel(f32_fwd_kernel<64>, a, a->rows, a->heads, fwd_tile<64>::BYTES, queue);
    else queue_kernel(f32_fwd_kernel<128>, a, a->rows, a->heads, fwd_tile<128>::BYTES, queue);
}
void attn_f32_bwd_queue(const struct attn_bwd_args *a, cudaStream_t queue)
{
    const int64_t keys = a->cp_docs ? a->keys : a->rows;
    if (a->head_dim <= 64 && a->head_dim_v <= 64) {
        queue_kernel(f32_dq_kernel<64>, a, a->rows, a->heads, dq_tile<64>::BYTES, queue);
        queue_kernel(f32_dkv_kernel<64>, a, keys, a->heads_kv, dkv_tile<64>::BYTES, queue);
    } else {
        queue_kernel(f32_dq_kernel<128>, a, a->rows, a->heads, dq_tile<128>::BYTES, queue);
        queue_kernel(f32_dkv_kernel<128>, a, keys, a->heads_kv, dkv_tile<128>::BYTES, queue);
    }
}
