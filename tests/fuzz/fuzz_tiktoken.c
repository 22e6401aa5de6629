/* Any bytes as a rank file, behind lines for the 256 bytes: refused with a message, or a tokenizer whose ids for
 * its own file are those of tiktoken's rule, one piece being merged at a time. */
#include "data/tiktoken.h"
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *file = malloc(size + 256 * 16);
    struct tokenizer *t = calloc(1, sizeof *t);
    CHECK(file != NULL && t != NULL, "memory");
    size_t bytes = 0;
    for (unsigned i = 0; i < 256; i++)
        bytes += (size_t)snprintf(file + bytes, 16, "%c%c== %u\n", digits[i >> 2], digits[i << 4 & 63], i);
    if (size != 0) memcpy(file + bytes, data, size);
    bytes += size;
    status st = tiktoken_parse(t, file, bytes, "gpt2");
    if (st == STATUS_OK) st = tokenizer_finish(t);
    if (st == STATUS_OK)
        check(t, (const char *)data, size);
    else
        CHECK(status_message()[0] != 0, "a refusal without words");
    tokenizer_free(t);
    free(file);
    return 0;
}
