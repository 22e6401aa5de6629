/* Any bytes as tokenizer.json: refused with a message, or a tokenizer that encodes its own file and decodes
 * it to the same bytes. */
#include "data/tokenizer_json.h"
#include "data/tokenizer_int.h"
#include <stdint.h>
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    CHECK(t != NULL, "memory");
    status st = tokenizer_json_parse(t, (const char *)data, size);
    if (st == STATUS_OK) st = tokenizer_finish(t);
    if (st == STATUS_OK) {
        check_round_trip(t, (const char *)data, size, SPECIALS_AS_TEXT);
        check_round_trip(t, (const char *)data, size, SPECIALS_PARSE);
    } else {
        CHECK(status_message()[0] != 0, "a refusal without words");
    }
    tokenizer_free(t);
    return 0;
}
