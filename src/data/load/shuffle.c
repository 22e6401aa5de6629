#include "data/load/shuffle.h"
#include "base/rng.h"
#include "base/status.h"

enum { FEISTEL_ROUNDS = 6 };

static uint64_t bits_of(struct rng_block r)
{
    return (uint64_t)r.u[1] << 32 | r.u[0];
}

static uint64_t feistel(uint64_t seed, int64_t key, int bits, uint64_t x)
{
    int low_bits = bits / 2;
    uint64_t low_mask = (1ull << low_bits) - 1, high_mask = (1ull << (bits - low_bits)) - 1;
    uint64_t low = x & low_mask, high = x >> low_bits;
    for (int round = 0; round < FEISTEL_ROUNDS; round++) {
        uint64_t other = round % 2 ? low : high;
        uint64_t mix =
            bits_of(rng_at(seed, RNG_SHUFFLE, (uint64_t)key * FEISTEL_ROUNDS + (uint64_t)round, other));
        if (round % 2)
            high ^= mix & high_mask;
        else
            low ^= mix & low_mask;
    }
    return high << low_bits | low;
}

int64_t shuffle_at(uint64_t seed, int64_t key, int64_t n, int64_t x)
{
    CHECK(n > 0 && x >= 0 && x < n, "place %lld of %lld", (long long)x, (long long)n);
    if (n == 1) return 0;
    int bits = 64 - __builtin_clzll((uint64_t)n - 1);
    if (bits < 2) bits = 2; /* each half needs a bit to mix */
    uint64_t y = (uint64_t)x;
    do y = feistel(seed, key, bits, y);
    while (y >= (uint64_t)n);
    return (int64_t)y;
}

uint64_t shuffle_seed(uint64_t seed, int64_t part)
{
    /* Keys of permutations count up from 0: this counter is far from them. */
    return bits_of(rng_at(seed, RNG_SHUFFLE, UINT64_MAX, (uint64_t)part));
}
