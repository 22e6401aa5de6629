/* CRC-32C runs at memory speed. The CRC32 instruction has a latency of three cycles and a throughput of
 * one. Three chains therefore process three adjacent blocks at once; the remainders are combined by
 * multiplying with x^(8 * BLOCK) modulo the polynomial. SHA-256 is FIPS 180-4 in plain C: it only hashes
 * small files and identities. */
#include "base/hash.h"

#include <stdbool.h>
#include <string.h>
#ifdef __aarch64__
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define CRC_TARGET "+crc"
#define CRC_8      __crc32cd
#define CRC_1      __crc32cb
typedef uint32_t crc_sum;
#else
#include <immintrin.h>
#define CRC_TARGET "sse4.2"
#define CRC_8      _mm_crc32_u64
#define CRC_1      _mm_crc32_u8
typedef uint64_t crc_sum;
#endif

enum { BLOCK = 16384 };  /* bytes per chain: combining then costs under 2 % */
#define POLY 0x82f63b78u /* Castagnoli, bit-reversed */
#define X_8_BLOCK                                                                                            \
    0xbf455269u /* x^(8 * BLOCK) mod POLY, bit-reversed; the tests compare it with the portable loop */

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t bytes)
{
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    const uint8_t *p = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}

/* a * b mod POLY, bit-reversed polynomials: bit 31 is x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (int i = 31; i >= 0; i--) {
        product ^= b & (0u - (a >> i & 1));
        b = b >> 1 ^ (POLY & (0u - (b & 1)));
    }
    return product;
}

static uint64_t word(const uint8_t *p)
{
    uint64_t w;
    memcpy(&w, p, 8);
    return w;
}

__attribute__((target(CRC_TARGET))) static uint32_t crc32c_instruction(uint32_t crc, const uint8_t *p,
                                                                       size_t bytes)
{
    crc_sum c = ~crc;
    for (; bytes >= 3 * (size_t)BLOCK; p += 3 * (size_t)BLOCK, bytes -= 3 * (size_t)BLOCK) {
        crc_sum c1 = 0, c2 = 0;
        for (size_t i = 0; i < BLOCK; i += 8) {
            c = CRC_8(c, word(p + i));
            c1 = CRC_8(c1, word(p + BLOCK + i));
            c2 = CRC_8(c2, word(p + 2 * BLOCK + i));
        }
        c = multiply((uint32_t)c, X_8_BLOCK) ^ (uint32_t)c1;
        c = multiply((uint32_t)c, X_8_BLOCK) ^ (uint32_t)c2;
    }
    for (; bytes >= 8; p += 8, bytes -= 8) c = CRC_8(c, word(p));
    uint32_t rest = (uint32_t)c;
    for (; bytes > 0; p++, bytes--) rest = CRC_1(rest, *p);
    return ~rest;
}

static bool has_instruction(void)
{
#ifdef __aarch64__
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
    return __builtin_cpu_supports("sse4.2");
#endif
}

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return has_instruction() ? crc32c_instruction(crc, data, bytes) : crc32c_portable(crc, data, bytes);
}

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void sha256_block(uint32_t h[8], const uint8_t *p)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 |
               p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, h, sizeof s);
    /* The eight words stay in place and their names rotate: word n of round i is S(n - i). */
    for (int i = 0; i < 64; i += 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
#define S(n) s[((n)-j) & 7]
            uint32_t choose = (S(4) & S(5)) ^ (~S(4) & S(6)),
                     majority = (S(0) & S(1)) ^ (S(0) & S(2)) ^ (S(1) & S(2));
            uint32_t t1 =
                S(7) + (rotate(S(4), 6) ^ rotate(S(4), 11) ^ rotate(S(4), 25)) + choose + k[i + j] + w[i + j];
            S(3) += t1;
            S(7) = t1 + (rotate(S(0), 2) ^ rotate(S(0), 13) ^ rotate(S(0), 22)) + majority;
#undef S
        }
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

void sha256_init(struct sha256 *s)
{
    *s = (struct sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                               0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(struct sha256 *s, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    size_t held = s->bytes % 64;
    s->bytes += bytes;
    if (held) {
        size_t take = bytes < 64 - held ? bytes : 64 - held;
        memcpy(s->block + held, p, take);
        if (held + take < 64) return;
        sha256_block(s->h, s->block);
        p += take;
        bytes -= take;
    }
    for (; bytes >= 64; p += 64, bytes -= 64) sha256_block(s->h, p);
    if (bytes) memcpy(s->block, p, bytes);
}

void sha256_raw(struct sha256 *s, uint8_t out[32])
{
    uint64_t bits = s->bytes * 8;
    uint8_t pad[72] = {0x80};
    size_t held = s->bytes % 64, zeros = held < 56 ? 56 - held : 120 - held;
    for (int i = 0; i < 8; i++) pad[zeros + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, pad, zeros + 8);
    for (int i = 0; i < 32; i++) out[i] = (uint8_t)(s->h[i / 4] >> (24 - i % 4 * 8));
}

void sha256_hex(struct sha256 *s, char out[65])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t raw[32];
    sha256_raw(s, raw);
    for (int i = 0; i < 64; i++) out[i] = digits[raw[i / 2] >> (4 - i % 2 * 4) & 15];
    out[64] = 0;
}

void sha256_hex_of(const void *data, size_t bytes, char out[65])
{
    struct sha256 s;
    sha256_init(&s);
    sha256_add(&s, data, bytes);
    sha256_hex(&s, out);
}

/* ---- HMAC */

void hmac_init(struct hmac *h, const void *key, size_t bytes)
{
    uint8_t block[64] = {0}, pad[64];
    if (bytes > sizeof block) {
        struct sha256 s;
        sha256_init(&s);
        sha256_add(&s, key, bytes);
        sha256_raw(&s, block);
    } else if (bytes > 0) {
        memcpy(block, key, bytes);
    }
    for (int i = 0; i < 64; i++) pad[i] = block[i] ^ 0x36;
    sha256_init(&h->inner);
    sha256_add(&h->inner, pad, sizeof pad);
    for (int i = 0; i < 64; i++) pad[i] = block[i] ^ 0x5c;
    sha256_init(&h->outer);
    sha256_add(&h->outer, pad, sizeof pad);
}

void hmac_end(struct hmac *h, uint8_t out[32])
{
    sha256_raw(&h->inner, out);
    sha256_add(&h->outer, out, 32);
    sha256_raw(&h->outer, out);
}

int hash_equal(const uint8_t a[32], const uint8_t b[32])
{
    unsigned differ = 0;
    for (int i = 0; i < 32; i++) differ |= a[i] ^ b[i];
    return differ == 0;
}
