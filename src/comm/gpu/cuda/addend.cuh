// Types of sums over ranks: F32 and F64 as they are; BF16 in F32, rounded once.
#pragma once
#include <cuda_bf16.h>

template <typename T> struct addend { using type = float; };
template <> struct addend<double> { using type = double; };
__device__ inline float addend_of(float x) { return x; }
__device__ inline double addend_of(double x) { return x; }
__device__ inline float addend_of(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void addend_round(float x, float *to) { *to = x; }
__device__ inline void addend_round(double x, double *to) { *to = x; }
__device__ inline void addend_round(float x, __nv_bfloat16 *to) { *to = __float2bfloat16_rn(x); }

// As many as W has room for.
template <typename T, typename W> struct addends {
    enum { COUNT = sizeof(W) / sizeof(T) };
    typename addend<T>::type v[COUNT];
};
template <typename T, typename W> __device__ inline addends<T, W> addends_of(const W &raw)
{
    addends<T, W> a;
    T x[addends<T, W>::COUNT];
    memcpy(x, &raw, sizeof raw);
#pragma unroll
    for (int i = 0; i < addends<T, W>::COUNT; i++) a.v[i] = addend_of(x[i]);
    return a;
}
template <typename T, typename W> __device__ inline W addends_rounded(const addends<T, W> &a)
{
    W raw;
    T x[addends<T, W>::COUNT];
#pragma unroll
    for (int i = 0; i < addends<T, W>::COUNT; i++) addend_round(a.v[i], &x[i]);
    memcpy(&raw, x, sizeof raw);
    return raw;
}
