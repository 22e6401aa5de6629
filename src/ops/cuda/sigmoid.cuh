// Sigmoid and SwiGLU, elementwise. All kernels that compute m = up silu(gate) use these, so they have the same
// bits.
#pragma once
#include "ops/cuda/device.cuh"

// exp(z), and 1 / x for x away from the ends of the range: in bf16 the hardware's fast ones (some 2^-21; results
// below 2^-126 are 0), in f32 the exact ones.
template <typename T> __device__ inline float exp_of(float z)
{
    float y;
    if (sizeof(T) == 4) return expf(z);
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(z * 1.44269504088896340736f));
    return y;
}
template <typename T> __device__ inline float one_over(float x)
{
    float y;
    if (sizeof(T) == 4) return 1.0f / x;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// sigmoid(z) = 1 / (1 + exp(-z)) is right for every z: exp may overflow to infinity, whose reciprocal is 0.
template <typename T> __device__ inline float sigmoid(float z) { return one_over<T>(1.0f + exp_of<T>(-z)); }

// sigmoid(z) and 1 - sigmoid(z), neither by a difference that cancels.
template <typename T> __device__ inline void sigmoids(float z, float &s, float &rest)
{
    const float t = exp_of<T>(-fabsf(z)), larger = one_over<T>(1.0f + t), smaller = t * larger;
    s = z >= 0 ? larger : smaller;
    rest = z >= 0 ? smaller : larger;
}

template <typename T> __device__ inline float swiglu(float gate, float up) { return up * (gate * sigmoid<T>(gate)); }
// From dm to the gradients of gate and up, in place; returns m.
template <typename T> __device__ inline float swiglu_back(float dm, float &gate, float &up)
{
    const float s = sigmoid<T>(gate), silu = gate * s, m = up * silu;
    float careful, rest;
    sigmoids<T>(gate, careful, rest);
    // the loss of 2^-24 where it is small is negligible beside s, to which gate s times it is added
    if (sizeof(T) == 2) rest = 1.0f - s;
    gate = dm * up * (s + silu * rest);
    up = dm * silu;
    return m;
}
