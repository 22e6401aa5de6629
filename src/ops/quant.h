/* Optimizer moments in 8 bits. A block of 256 elements stores its largest magnitude in f32 and one code per element:
 * an index into one of the two dynamic maps of bitsandbytes (Dettmers et al., arXiv:2110.02861; the map: Dettmers,
 * arXiv:1511.04561). C and CUDA.
 *
 *   signed (first moment)      decade e = 0..6 has n = 2^e values: the middles of n equal parts of [0.1, 1] 10^(e - 6),
 *                              with both signs; and 0 and +1. Code 127 is 0, 127 + u the u-th magnitude, 127 - u its
 *                              negative. 1 (u = 128) has no negative.
 *   unsigned (second moment)   n = 2^(e + 1), positive only; code 0 is 0, 255 is 1.
 *
 * Rounding is stochastic, with the random words of BF16 moments (rounding.h): up in magnitude with the probability
 * that makes the mean exact. With rounding to nearest, the moments of a row that shares its block with larger ones
 * would stop decaying once a step changes them by less than the distance of two codes. A second moment above 0 never
 * gets the code of 0: its element would move by m / eps when its gradient is 0. */
#ifndef INGOT_OPS_QUANT_H
#define INGOT_OPS_QUANT_H
#include "base/rng.h"
#include <math.h>

enum { QUANT_BLOCK = 256, QUANT_DECADES = 8, QUANT_ZERO = 127 };
enum quant_kind { QUANT_SIGNED, QUANT_UNSIGNED };

/* Magnitudes. Decade e has values first[e] + k step[e]; the last decade has only 1. Encoding uses the intervals d
 * between the first values of decades, starting from 0: low[d] + k / slope[d], with k up to last[d]. `stretch` scales
 * the remaining gap to the next decade. base[d] + k counts the smaller magnitudes. */
struct quant_map {
    float first[QUANT_DECADES], step[QUANT_DECADES];
    float low[QUANT_DECADES], slope[QUANT_DECADES], stretch[QUANT_DECADES], last[QUANT_DECADES], base[QUANT_DECADES];
};

static inline struct quant_map quant_map_of(enum quant_kind kind)
{
    const int more = kind == QUANT_UNSIGNED;
    struct quant_map q = {{0}, {0}, {0}, {0}, {0}, {0}, {0}};
    double top = 1e-6; /* upper end of the decade */
    for (int e = 0; e < QUANT_DECADES - 1; e++, top *= 10) {
        const double n = (double)(1 << (e + more));
        q.first[e] = (float)((0.1 + 0.45 / n) * top);
        q.step[e] = (float)(0.9 / n * top);
    }
    q.first[QUANT_DECADES - 1] = 1;
    q.slope[0] = 1 / q.first[0], q.stretch[0] = 1;
    for (int d = 1; d < QUANT_DECADES; d++) {
        const int e = d - 1, n = 1 << (e + more);
        const double edge = (double)q.first[e] + (n - 1) * (double)q.step[e];
        q.low[d] = q.first[e];
        q.slope[d] = 1 / q.step[e];
        q.stretch[d] = (float)(q.step[e] / ((double)q.first[d] - edge));
        q.last[d] = (float)(n - 1);
        q.base[d] = (float)(n - more);
    }
    return q;
}

/* The value of a code, for a block whose largest magnitude is 1. */
RNG_INLINE float quant_value(const struct quant_map *q, enum quant_kind kind, int code)
{
    int u = kind == QUANT_UNSIGNED ? code + 1 : code < QUANT_ZERO ? QUANT_ZERO - code : code - QUANT_ZERO, e = 0;
    if (u == (kind == QUANT_UNSIGNED)) return 0;
#ifdef __CUDA_ARCH__
    e = 31 - __clz(u);
#else
    while (u >> (e + 1)) e++;
#endif
    u -= 1 << e;
    e -= kind == QUANT_UNSIGNED;
    const float x = fmaf((float)u, q->step[e], q->first[e]);
    return kind == QUANT_SIGNED && code < QUANT_ZERO ? -x : x;
}
#endif
