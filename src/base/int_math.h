/* int_math: minimum, maximum and rounding up of integers. */
#ifndef INGOT_BASE_INT_MATH_H
#define INGOT_BASE_INT_MATH_H
#include <stddef.h>
#include <stdint.h>

static inline int64_t int64_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t int64_max(int64_t a, int64_t b) { return a > b ? a : b; }
/* The least multiple of `unit` that is at least n; n >= 0, unit > 0. */
static inline int64_t int64_round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static inline size_t size_round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
#endif
