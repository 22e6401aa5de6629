/* Any bytes as characters of an alphabet that PCRE2 and the tables both know (split_reference.h): every scanner finds the
 * pieces of its pattern. The first byte says how much of the alphabet is used, and whether the rest is ASCII alone. */
#include "data/split_reference.h"
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHARACTERS_MAX = 4096 };

static struct reference references[SPLIT_COUNT];

static void check(enum split_id row, const char *text, size_t bytes)
{
    static size_t want[4 * CHARACTERS_MAX + 1];
    size_t count = reference_scan(&references[row], 0, text, bytes, 0, want), next = 0, at = 0, ends[9];
    for (int n; (n = split_table[row].scan((const uint8_t *)text, at, bytes, ends, 9)) > 0; at = ends[n - 1])
        for (int i = 0; i < n; i++, next++)
            CHECK(next < count && ends[i] == want[next], "row %d: piece %zu ends at %zu", (int)row, next,
                  ends[i]);
    CHECK(next == count && at == bytes, "row %d: %zu pieces for %zu", (int)row, next, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (references[0].count == 0)
        for (int row = 0; row < SPLIT_COUNT; row++) references[row] = reference_open((enum split_id)row, 0);
    if (size < 2 || size > CHARACTERS_MAX) return 0;
    size_t bytes = 0, letters = 2 + (data[0] >> 1) % (REFERENCE_LETTERS - 1);
    char *text = malloc(4 * size); /* exactly as long as needed: reads past the text are detected */
    CHECK(text != NULL, "memory");
    for (size_t i = 1; i < size; i++)
        if (data[0] & 1)
            text[bytes++] = (char)(data[i] & 0x7f);
        else
            bytes += (size_t)utf8_write(reference_alphabet[data[i] % letters], text + bytes);
    char *exact = realloc(text, bytes);
    CHECK(exact != NULL, "memory");
    for (int row = 0; row < SPLIT_COUNT; row++) check((enum split_id)row, exact, bytes);
    free(exact);
    return 0;
}
