/* A keyed permutation of [0, n): random order without an index in memory.
 *
 * A Feistel network over `bits` bits, 2^bits >= n, is a bijection of [0, 2^bits) whatever its round function; here the low and
 * the high half take turns in being XORed with Philox of the other. Walking the cycle of a value until it falls below n (Black
 * and Rogaway, "Ciphers with arbitrary finite domains", 2002) makes it a bijection of [0, n); 2^bits < 2n (from n = 3 on), so a
 * walk has fewer than two turns on average. */
#ifndef INGOT_DATA_LOAD_SHUFFLE_H
#define INGOT_DATA_LOAD_SHUFFLE_H
#include <stdint.h>

/* Where x of [0, n) goes in permutation `key` (such as an epoch) of `seed`. n > 0. */
int64_t shuffle_at(uint64_t seed, int64_t key, int64_t n, int64_t x);
/* A seed for part `part` of what `seed` orders, unrelated to the seed itself. */
uint64_t shuffle_seed(uint64_t seed, int64_t part);
#endif
