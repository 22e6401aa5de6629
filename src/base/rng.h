/* Counter-based random numbers: a pure function of (seed, stream, a, b). A resumed run and any thread count draw the
 * same numbers. Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11). */
#ifndef INGOT_BASE_RNG_H
#define INGOT_BASE_RNG_H
#include <stdint.h>

enum rng_stream { RNG_INIT = 1, RNG_SHUFFLE = 2, RNG_SAMPLE = 3, RNG_ROUND = 4, RNG_TEST = 5, RNG_SYNTH = 6,
    RNG_HASH = 7, RNG_HALT = 8, RNG_PLAN = 9, RNG_CODES = 10 };

struct rng_block { uint32_t u[4]; };

/* Kernels draw the same numbers as the host. */
#ifdef __CUDACC__
#define RNG_INLINE static inline __host__ __device__
#else
#define RNG_INLINE static inline
#endif

/* Returns the 128 random bits at counter (a, b) of the stream. The stream is mixed into the key; streams of one seed
 * are independent. */
RNG_INLINE struct rng_block rng_at(uint64_t seed, enum rng_stream stream, uint64_t a, uint64_t b)
{
    uint32_t c0 = (uint32_t)b, c1 = (uint32_t)(b >> 32), c2 = (uint32_t)a, c3 = (uint32_t)(a >> 32);
    uint64_t key = seed ^ ((uint64_t)stream * 0x9E3779B97F4A7C15u);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    struct rng_block r = {{c0, c1, c2, c3}};
    return r;
}
double rng_uniform(uint64_t seed, enum rng_stream stream, uint64_t a, uint64_t b);       /* [0, 1), 53 bits */
double rng_normal(uint64_t seed, enum rng_stream stream, uint64_t a, uint64_t b);        /* N(0, 1), Box-Muller */
#endif
