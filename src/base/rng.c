#include "base/rng.h"
#include <math.h>

struct rng_block rng_at(uint64_t seed, enum rng_stream stream, uint64_t a, uint64_t b)
{
    uint32_t c0 = (uint32_t)b, c1 = (uint32_t)(b >> 32), c2 = (uint32_t)a, c3 = (uint32_t)(a >> 32);
    /* The stream is mixed into the key, so that streams of one seed are unrelated. */
    uint64_t key = seed ^ ((uint64_t)stream * 0x9E3779B97F4A7C15u);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return (struct rng_block){{c0, c1, c2, c3}};
}

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
