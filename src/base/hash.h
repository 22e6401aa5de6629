/* Checksums and hashes: CRC-32C (Castagnoli) for file chunks, SHA-256 for identity, HMAC-SHA256 for message
 * authentication. */
#ifndef INGOT_BASE_HASH_H
#define INGOT_BASE_HASH_H
#include <stddef.h>
#include <stdint.h>

/* `crc` is 0 for the first part, then the result of the previous part. crc32c(0, "123456789", 9) = 0xe3069283 */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t bytes); /* the same without the CRC32 instruction */

struct sha256 {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t block[64];
};
void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t bytes);
void sha256_hex(struct sha256 *s, char out[65]); /* ends the hash */
void sha256_raw(struct sha256 *s, uint8_t out[32]); /* ends the hash */
void sha256_hex_of(const void *data, size_t bytes, char out[65]); /* all at once */

/* HMAC-SHA256 (RFC 2104): hmac_init, sha256_add(&h.inner, ...), hmac_end. */
struct hmac {
    struct sha256 inner, outer;
};
void hmac_init(struct hmac *h, const void *key, size_t bytes);
void hmac_end(struct hmac *h, uint8_t out[32]);
/* Compares in constant time: the duration does not depend on where the hashes differ. */
int hash_equal(const uint8_t a[32], const uint8_t b[32]);
#endif
