/* NFC as its definition reads (Unicode Standard Annex 15), one step after the other and quadratic; of nfc.c it shares
 * only the tables. */
#ifndef INGOT_TESTS_DATA_NFC_REFERENCE_H
#define INGOT_TESTS_DATA_NFC_REFERENCE_H
#include "base/status.h"
#include "base/utf8.h"
#include "data/text/unicode.h"
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { NFC_REFERENCE_MAX = 20000 };

static inline unsigned nfc_reference_class(uint32_t code)
{
    return unicode_nfc_records[unicode_nfc_number(code)].combining;
}

/* Appends the full decomposition of `code`. */
static inline size_t nfc_reference_decompose(uint32_t code, uint32_t *out)
{
    if (code >= 0xac00 && code <= 0xd7a3) {
        uint32_t s = code - 0xac00;
        out[0] = 0x1100 + s / 588;
        out[1] = 0x1161 + s % 588 / 28;
        out[2] = 0x11a7 + s % 28;
        return s % 28 ? 3 : 2;
    }
    const struct unicode_nfc *r = &unicode_nfc_records[unicode_nfc_number(code)];
    if (r->first == 0) {
        out[0] = code;
        return 1;
    }
    size_t n = nfc_reference_decompose(r->first, out);
    return r->second != 0 ? n + nfc_reference_decompose(r->second, out + n) : n;
}

static inline uint32_t nfc_reference_pair(uint32_t a, uint32_t b)
{
    if (a >= 0x1100 && a <= 0x1112 && b >= 0x1161 && b <= 0x1175)
        return 0xac00 + (a - 0x1100) * 588 + (b - 0x1161) * 28;
    if (a >= 0xac00 && a <= 0xd7a3 && (a - 0xac00) % 28 == 0 && b >= 0x11a8 && b <= 0x11c2)
        return a + b - 0x11a7;
    static int row_of[UNICODE_NFC_END], next[4096]; /* rows with one first character, linked; numbers from 1 */
    CHECK(unicode_nfc_pair_count < 4096, "%d pairs", unicode_nfc_pair_count);
    for (int row = 1; next[0] == 0 && row <= unicode_nfc_pair_count; row++) {
        int *first = &row_of[unicode_nfc_pairs[row - 1][0]];
        next[row] = *first;
        *first = row;
    }
    next[0] = 1; /* they are */
    for (int row = a < UNICODE_NFC_END ? row_of[a] : 0; row > 0; row = next[row])
        if (unicode_nfc_pairs[row - 1][1] == b) return unicode_nfc_pairs[row - 1][2];
    return 0;
}

/* `out` has space for 3 times the bytes; returns how many were written. */
static inline size_t nfc_reference(const char *text, size_t bytes, char *out)
{
    static uint32_t code[NFC_REFERENCE_MAX];
    size_t n = 0;
    for (size_t at = 0; at < bytes;) {
        struct utf8_char c = utf8_read((const uint8_t *)text + at);
        n += nfc_reference_decompose(c.code, code + n);
        at += c.bytes;
    }
    for (bool swapped = true; swapped;) {
        swapped = false;
        for (size_t i = 1; i < n; i++) {
            unsigned a = nfc_reference_class(code[i - 1]), b = nfc_reference_class(code[i]);
            if (b == 0 || a <= b) continue;
            uint32_t keep = code[i];
            code[i] = code[i - 1];
            code[i - 1] = keep;
            swapped = true;
        }
    }
    for (size_t i = 1; i < n;
         i++) /* each with the last starter before it, unless something between blocks it */
        for (size_t s = i; s-- > 0;) {
            unsigned class = nfc_reference_class(code[s]);
            uint32_t both = class == 0 ? nfc_reference_pair(code[s], code[i]) : 0;
            if (both != 0) {
                code[s] = both;
                memmove(code + i, code + i + 1, (n - i - 1) * sizeof *code);
                n--;
                i--;
            }
            if (class == 0 || class >= nfc_reference_class(code[i])) break;
        }
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += (size_t)utf8_write(code[i], out + used);
    return used;
}
#endif
