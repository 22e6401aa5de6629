/* Any bytes: a spec is refused with a message, or it loads, and then its dump loads to the same values. Bytes that begin with '!' (a tag,
 * which no spec may have) are an override of a small spec instead. */
#include "spec/spec.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct spec first, second;
    struct spec_origin *origin;
    static const char small[] = "model: {preset: nano}\ntrain: {steps: 10}\n";
    char word[4096];
    char *words[] = {word};
    bool override = size > 0 && data[0] == '!' && size <= sizeof word;
    if (override) {
        memcpy(word, data + 1, size - 1);
        word[size - 1] = 0;
    }
    status st = override ? spec_load_text(&first, "small.yaml", small, sizeof small - 1, 1, words, &origin)
                         : spec_load_text(&first, "fuzz.yaml", (const char *)data, size, 0, NULL, &origin);
    if (st != STATUS_OK) {
        CHECK(status_message()[0] != 0, "a refusal without words");
        return 0;
    }
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out, "memory");
    spec_dump(&first, origin, out);
    fclose(out);
    st = spec_load_text(&second, "dump.yaml", text, bytes, 0, NULL, NULL);
    CHECK(st == STATUS_OK, "the dump of a good spec is refused: %s", status_message());
    CHECK(spec_diff(&first, &second, stderr) == 0, "the dump of a spec reads as another spec");
    CHECK(spec_frozen_hash(&first) == spec_frozen_hash(&second), "hash");
    free(text);
    free(spec_dump_json(&first, origin));
    spec_origin_free(origin);
    return 0;
}
