// Attention by warps: a head spread over the lanes, for any width up to HEAD_CUDA_MAX and any alignment. Used by the
// reference kernels and by decode.
#pragma once
#include "ops/cuda/device.cuh"

enum { HD_MAX = HEAD_CUDA_MAX };

// A head spread over a warp: PER elements in each lane.
template <typename T, int PER> __device__ inline void head_load(float (&x)[PER], const T *from, int hd, int lane)
{
#pragma unroll
    for (int i = 0; i < PER; i++) x[i] = i * WARP + lane < hd ? to_f32(from[i * WARP + lane]) : 0.0f;
}
template <typename T, int PER>
__device__ inline void head_store(T *to, const float (&x)[PER], float factor, int hd, int lane)
{
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (i * WARP + lane < hd) to[i * WARP + lane] = from_f32<T>(x[i] * factor);
}
template <int PER> __device__ inline float head_dot(const float (&x)[PER], const float (&y)[PER])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) sum = fmaf(x[i], y[i], sum);
    return warp_sum(sum);
}

// Online softmax over AT_ONCE keys at a time: independent dot products hide the latency of the sums over lanes.
template <int PER> struct softmax_state {
    enum { AT_ONCE = PER <= 4 ? 4 : 2 };
    float o[PER], max, sum;

    __device__ softmax_state() : max(-INFINITY), sum(0)
    {
        for (int i = 0; i < PER; i++) o[i] = 0;
    }
    // Keys u, u + step, ... below end.
    template <typename T>
    __device__ void add(const float (&q)[PER], const T *k, const T *v, int64_t k_stride, int64_t v_stride, int u,
                        int step, int end, float scale, int hd, int hd_v, int lane)
    {
        float x[AT_ONCE][PER], score[AT_ONCE], top = max;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            head_load(x[j], k + (u + j * step < end ? u + j * step : u) * k_stride, hd, lane);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            score[j] = head_dot(q, x[j]) * scale;
            if (u + j * step >= end) score[j] = -INFINITY;
            top = fmaxf(top, score[j]);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            head_load(x[j], v + (u + j * step < end ? u + j * step : u) * v_stride, hd_v, lane);
        rescale(top);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            float p = expf(score[j] - top);
            sum += p;
#pragma unroll
            for (int i = 0; i < PER; i++) o[i] = fmaf(p, x[j][i], o[i]);
        }
    }
    __device__ void rescale(float top)
    {
        float factor = max == -INFINITY ? 0.0f : expf(max - top);
        for (int i = 0; i < PER; i++) o[i] *= factor;
        sum *= factor;
        max = top;
    }
};

template <typename ARGS> static void check_widths(const ARGS *a)
{
    CHECK(a->head_dim > 0 && a->head_dim <= HD_MAX, "head_dim %lld, the limit is %d", (long long)a->head_dim, HD_MAX);
    CHECK(a->head_dim_v > 0 && a->head_dim_v <= HD_MAX, "head_dim_v %lld, the limit is %d", (long long)a->head_dim_v,
          HD_MAX);
}

// PER = elements of a head per lane. Two sizes, so a head of 128 does not need the registers of 512.
#define BY_HEAD(a_, ...)                            \
    BY_DTYPE((a_)->dt, {                            \
        if ((a_)->head_dim <= 128 && (a_)->head_dim_v <= 128) { \
            constexpr int PER = 4;                  \
            __VA_ARGS__;                            \
        } else {                                    \
            constexpr int PER = HD_MAX / WARP;      \
            __VA_ARGS__;                            \
        }                                           \
    })
