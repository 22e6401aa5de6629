/* A keyed permutation of [0, n): random order without an index in memory.
 *
 * A Feistel network over `bits` bits, 2^bits >= n, is a bijection of [0, 2^bits) for any round function. Here the low
 * and the high half are alternately XORed with Philox of the other half. Repeating the permutation until the value is
 * below n (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002) makes it a bijection of
 * [0, n). 2^bits < 2n (from n = 3 on), hence fewer than two rounds of walking on average. */
#ifndef INGOT_DATA_LOAD_SHUFFLE_H
#define INGOT_DATA_LOAD_SHUFFLE_H
#include <stdint.h>

/* Image of x in [0, n) under permutation `key` (such as an epoch) of `seed`. n > 0. */
int64_t shuffle_at(uint64_t seed, int64_t key, int64_t n, int64_t x);
/* Derives an independent seed for part `part` of what `seed` orders. */
uint64_t shuffle_seed(uint64_t seed, int64_t part);
#endif
