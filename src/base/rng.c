#include "base/rng.h"
#include <math.h>

static double to_unit(uint32_t hi, uint32_t lo)
{
    return (double)(((uint64_t)hi << 32 | lo) >> 11) * 0x1p-53;
}

double rng_uniform(uint64_t seed, enum rng_stream stream, uint64_t a, uint64_t b)
{
    struct rng_block r = rng_at(seed, stream, a, b);
    return to_unit(r.u[0], r.u[1]);
}

double rng_normal(uint64_t seed, enum rng_stream stream, uint64_t a, uint64_t b)
{
    struct rng_block r = rng_at(seed, stream, a, b);
    double u1 = 1.0 - to_unit(r.u[0], r.u[1]),
           u2 = to_unit(r.u[2], r.u[3]); /* u1 in (0, 1]: its logarithm is finite */
    return sqrt(-2.0 * log(u1)) * cos(2.0 * 3.14159265358979323846 * u2);
}
