/* Random valid UTF-8 for tokenizer tests: the characters on which patterns disagree come often. */
#ifndef INGOT_TESTS_DATA_RANDOM_TEXT_H
#define INGOT_TESTS_DATA_RANDOM_TEXT_H
#include "base/rng.h"
#include "base/utf8.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline uint32_t random_below(uint64_t seed, uint64_t index, uint32_t limit)
{
    return rng_at(seed, RNG_TEST, index, 0).u[0] % limit;
}

/* Also unassigned code points, but no surrogates. */
static inline uint32_t random_code(uint64_t seed, uint64_t index)
{
    static const uint32_t special[] = {
        ' ',    ' ',    ' ',    '\n',   '\n',   '\r',    '\t',     '\'',    '\'',    's',
        'S',    't',    'l',    'L',    'r',    'e',     'v',      'm',     'd',     'D',
        '1',    '2',    '.',    '!',    '-',    0x17f,   0x212a,   0xa0,    0x85,    0x1680,
        0x2003, 0x2028, 0x202f, 0x3000, 0x180e, 0x200b,  0xfeff,   0x301,   0xb2,    0x216b,
        0x661,  0x4e2d, 0x6587, 0xe9,   0x439,  0x1f600, 0x10ffff, 0x1d7d8, 0x20000, 0x323af};
    struct rng_block b = rng_at(seed, RNG_TEST, index, 1);
    uint32_t pick = b.u[0] % 100;
    if (pick < 55) return special[b.u[1] % (sizeof special / sizeof *special)];
    if (pick < 75) return 0x20 + b.u[1] % 0x5f;
    if (pick < 95) return 0x80 + b.u[1] % (0xd800 - 0x80);
    uint32_t code = 0xe000 + b.u[1] % (0x110000 - 0xe000);
    return code;
}

/* Fills `out` with about `bytes` bytes of text; returns how many (at most bytes + 3; room for bytes + 4).
 * NULL `use`: any code point. */
static inline size_t random_text(uint64_t seed, size_t bytes, bool (*use)(uint32_t code), char *out)
{
    size_t at = 0;
    for (uint64_t i = 0; at < bytes; i++) {
        uint32_t code = random_code(seed, i);
        if (use == NULL || use(code)) at += (size_t)utf8_write(code, out + at);
    }
    return at;
}
#endif
