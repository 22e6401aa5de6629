/* Any bytes as a rank file, and, when no line of it is wrong, behind lines for the 256 bytes: refused with a message, or a tokenizer whose
 * ids for its own file are those of tiktoken's rule, one piece being merged at a time. */
#include "data/tokenizer/tiktoken.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PIECE_MAX = 48 };

/* tiktoken's rule on all of a text. */
static size_t plain_encode(const struct vocab *v, const char *text, size_t bytes, int32_t *ids)
{
    size_t ends[PIECE_MAX + 1], n = bytes;
    ids[0] = vocab_find(v, text, bytes);
    if (ids[0] >= 0) return 1;
    for (size_t i = 0; i <= n; i++) ends[i] = i;
    for (;;) {
        int32_t low = INT32_MAX;
        size_t best = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            int32_t id = vocab_find(v, text + ends[i], ends[i + 2] - ends[i]);
            if (id < 0 || id >= low) continue;
            low = id;
            best = i;
        }
        if (low == INT32_MAX) break;
        memmove(ends + best + 1, ends + best + 2, (n - best - 1) * sizeof *ends);
        n--;
    }
    for (size_t i = 0; i < n; i++) ids[i] = vocab_find(v, text + ends[i], ends[i + 1] - ends[i]);
    return n;
}

/* Runs of the file's letters and digits, each one piece of the split. */
static void check(const struct tokenizer *t, const char *text, size_t size)
{
    struct encoder *e;
    CHECK(encoder_open(&e, t) == STATUS_OK, "memory");
    for (size_t at = 0, end; at < size; at = end + 1) {
        for (end = at;
             end < size && end - at < PIECE_MAX && (text[end] | 0x20) >= 'a' && (text[end] | 0x20) <= 'z';)
            end++;
        if (end == at) continue;
        int32_t want[PIECE_MAX];
        const int32_t *ids;
        int64_t count;
        size_t want_count = plain_encode(&t->vocab, text + at, end - at, want);
        CHECK(encoder_encode(e, text + at, end - at, SPECIALS_AS_TEXT, &ids, &count) == STATUS_OK, "%s",
              status_message());
        CHECK(count == (int64_t)want_count && memcmp(ids, want, want_count * sizeof *want) == 0,
              "other ids than tiktoken's");
    }
    encoder_close(e);
}

/* The status of reading `file`; what it makes of `text`. */
static status try(const char *file, size_t bytes, const char *text, size_t text_bytes)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    CHECK(t != NULL, "memory");
    status st = tiktoken_parse(t, file, bytes, "gpt2");
    if (st == STATUS_OK) st = tokenizer_finish(t);
    if (st == STATUS_OK)
        check(t, text, text_bytes);
    else
        CHECK(status_message()[0] != 0, "a refusal without words");
    tokenizer_free(t);
    return st;
}

/* The lines of the 256 bytes; returns their length. */
static size_t write_bytes(char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t used = 0;
    for (unsigned i = 0; i < 256; i++)
        used += (size_t)snprintf(out + used, 16, "%c%c== %u\n", digits[i >> 2], digits[i << 4 & 63], i);
    return used;
}

/* Ranks of four digits and more: the tables up to them are most of the time, so a few such files are enough. */
static bool is_large(const char *text, size_t size)
{
    size_t digits = 0;
    for (size_t i = 0; i < size && digits < 4; i++)
        digits = text[i] >= '0' && text[i] <= '9' ? digits + 1 : 0;
    return digits == 4;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char bytes[256 * 16];
    static size_t bytes_count;
    if (bytes_count == 0) bytes_count = write_bytes(bytes);
    const char *text = (const char *)data;
    if (is_large(text, size) && text[size - 1] % 16 != 0) return 0;
    if (try(text, size, text, size) == STATUS_OK || strncmp(status_message(), "line ", 5) == 0) return 0;
    char *file = malloc(bytes_count + size);
    CHECK(file != NULL, "memory");
    memcpy(file, bytes, bytes_count);
    if (size != 0) memcpy(file + bytes_count, data, size);
    (void)try(file, bytes_count + size, text, size);
    free(file);
    return 0;
}
