#include "data/text/base64.h"
#include <stdint.h>

/* Value of each digit of base64, + 1; 0: none. */
static const uint8_t digit_value[256] = {
    ['A'] = 1,  ['B'] = 2,  ['C'] = 3,  ['D'] = 4,  ['E'] = 5,  ['F'] = 6,  ['G'] = 7,  ['H'] = 8,
    ['I'] = 9,  ['J'] = 10, ['K'] = 11, ['L'] = 12, ['M'] = 13, ['N'] = 14, ['O'] = 15, ['P'] = 16,
    ['Q'] = 17, ['R'] = 18, ['S'] = 19, ['T'] = 20, ['U'] = 21, ['V'] = 22, ['W'] = 23, ['X'] = 24,
    ['Y'] = 25, ['Z'] = 26, ['a'] = 27, ['b'] = 28, ['c'] = 29, ['d'] = 30, ['e'] = 31, ['f'] = 32,
    ['g'] = 33, ['h'] = 34, ['i'] = 35, ['j'] = 36, ['k'] = 37, ['l'] = 38, ['m'] = 39, ['n'] = 40,
    ['o'] = 41, ['p'] = 42, ['q'] = 43, ['r'] = 44, ['s'] = 45, ['t'] = 46, ['u'] = 47, ['v'] = 48,
    ['w'] = 49, ['x'] = 50, ['y'] = 51, ['z'] = 52, ['0'] = 53, ['1'] = 54, ['2'] = 55, ['3'] = 56,
    ['4'] = 57, ['5'] = 58, ['6'] = 59, ['7'] = 60, ['8'] = 61, ['9'] = 62, ['+'] = 63, ['/'] = 64,
};

ptrdiff_t base64_read(const char *digits, size_t count, char *out)
{
    ptrdiff_t n = 0;
    if (count == 0 || count % 4 != 0) return -1;
    for (size_t at = 0; at < count; at += 4) {
        int pad =
            at + 4 < count ? 0 : (digits[at + 3] == '=') + (digits[at + 3] == '=' && digits[at + 2] == '=');
        uint32_t group = 0;
        for (int i = 0; i < 4; i++) {
            uint32_t value = i < 4 - pad ? digit_value[(uint8_t)digits[at + (size_t)i]] : 1;
            if (value == 0) return -1;
            group = group << 6 | (value - 1);
        }
        if ((group & ((1u << 8 * pad) - 1)) != 0) return -1; /* unused bits */
        for (int i = 0; i < 3 - pad; i++) out[n++] = (char)(group >> (16 - 8 * i));
    }
    return n;
}
