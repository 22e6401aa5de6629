/* Any bytes as tokenizer.json: refused with a message, or a tokenizer that encodes its own file and decodes
 * it to the same bytes. A file that lacks the 256 bytes gets them as its first tokens in a second try, so that
 * small files become tokenizers. */
#include "data/text/alphabet.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/tokenizer_int.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const struct tokenizer *t, const char *text, size_t bytes,
                             enum specials specials)
{
    struct encoder *e;
    const int32_t *ids;
    int64_t count;
    char *back = NULL;
    size_t back_bytes = 0;
    CHECK(encoder_open(&e, t) == STATUS_OK, "memory");
    CHECK(encoder_encode(e, text, bytes, specials, &ids, &count) == STATUS_OK, "%s", status_message());
    CHECK(tokenizer_decode(t, ids, count, &back, &back_bytes) == STATUS_OK, "%s", status_message());
    bool strips = false;
    for (size_t i = 0; i < t->added_count; i++) strips |= t->added[i].lstrip || t->added[i].rstrip;
    CHECK(strips || (back_bytes == bytes && memcmp(back, text, bytes) == 0), "the text does not come back");
    free(back);
    encoder_close(e);
}

/* The status of reading it. */
static status check(const char *data, size_t size)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    CHECK(t != NULL, "memory");
    status st = tokenizer_json_parse(t, data, size);
    if (st == STATUS_OK) st = tokenizer_finish(t);
    if (st == STATUS_OK) {
        check_round_trip(t, data, size, SPECIALS_AS_TEXT);
        check_round_trip(t, data, size, SPECIALS_PARSE);
    } else {
        CHECK(status_message()[0] != 0, "a refusal without words");
    }
    tokenizer_free(t);
    return st;
}

/* Writes "LETTER":ID, for each byte; returns the length. */
static size_t write_bytes(char *out)
{
    size_t used = 0;
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte, letter[4];
        alphabet_write(&c, 1, letter);
        const char *escape = c == '"' || c == '\\' ? "\\" : "";
        used += (size_t)snprintf(out + used, 16, "\"%s%s\":%d,", escape, letter, byte);
    }
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char bytes[256 * 16];
    static size_t bytes_count;
    static const char vocab[] = "\"vocab\":{";
    if (bytes_count == 0) bytes_count = write_bytes(bytes);
    const char *text = (const char *)data;
    if (check(text, size) == STATUS_OK || strstr(status_message(), "vocab") == NULL) return 0;
    const char *at = memmem(text, size, vocab, sizeof vocab - 1);
    if (at == NULL) return 0;
    size_t before = (size_t)(at - text) + sizeof vocab - 1;
    char *whole = malloc(size + bytes_count);
    CHECK(whole != NULL, "memory");
    memcpy(whole, text, before);
    memcpy(whole + before, bytes, bytes_count);
    memcpy(whole + before + bytes_count, text + before, size - before);
    (void)check(whole, size + bytes_count);
    free(whole);
    return 0;
}
