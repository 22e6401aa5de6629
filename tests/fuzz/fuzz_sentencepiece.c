/* Any bytes as a tokenizer.model of SentencePiece: refused with a message, or pieces that lie within the file. */
#include "data/tokenizer/sentencepiece.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sentencepiece s;
    char *copy = malloc(bytes + 1); /* so that a byte behind the end is seen */
    CHECK(copy != NULL, "memory");
    if (bytes > 0) memcpy(copy, data, bytes);
    const char *end = copy + bytes;
    if (sentencepiece_parse(&s, "input", copy, bytes) != STATUS_OK) {
        CHECK(status_message()[0] != 0, "a refusal without words");
        return 0;
    }
    CHECK(s.count > 0, "no piece");
    for (int32_t i = 0; i < s.count; i++) {
        const struct sp_piece *p = &s.pieces[i];
        CHECK(p->text >= s.data && p->bytes > 0 && p->bytes <= (size_t)(end - p->text), "piece %d", (int)i);
        CHECK(p->type >= SP_NORMAL && p->type <= SP_BYTE && isfinite(p->score), "piece %d", (int)i);
    }
    sentencepiece_free(&s);
    return 0;
}
