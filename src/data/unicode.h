/* Character classes of Unicode 16.0.0 (see tools/gen_unicode.py for why this version), as tokenizer patterns
 * use them: LETTER is \p{L}, NUMBER is \p{N}, SPACE is \s, that is the 25 code points of White_Space;
 * everything else, also unassigned, is OTHER.
 *
 * Two stages: unicode_index names a block of 128 code points, a block holds two bits for each. 6 kB in all,
 * so it stays in cache. */
#ifndef INGOT_DATA_UNICODE_H
#define INGOT_DATA_UNICODE_H
#include <assert.h>
#include <stdint.h>

enum unicode_class { UNICODE_OTHER, UNICODE_SPACE, UNICODE_LETTER, UNICODE_NUMBER };
enum { UNICODE_BLOCK = 128, UNICODE_END = 0x32400 }; /* from UNICODE_END on everything is OTHER */

extern const uint8_t unicode_index[UNICODE_END / UNICODE_BLOCK];
extern const uint64_t unicode_blocks[][4];

static inline enum unicode_class unicode_class_of(uint32_t code)
{
    if (code >= UNICODE_END) return UNICODE_OTHER;
    const uint64_t *block = unicode_blocks[unicode_index[code / UNICODE_BLOCK]];
    return (enum unicode_class)(block[code / 32 % 4] >> (code % 32 * 2) & 3);
}
#endif
