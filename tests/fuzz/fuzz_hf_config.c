/* Any bytes as a config.json: refused with words, or a model whose spec is sound, and which, where a family can hold it, is written
 * and read back as the same model. Nothing is allocated by what the numbers say. */
#include "model/hf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void there_and_back(const struct model_spec *m)
{
    struct spec was = {.model = *m}, is = {0};
    const char *family;
    char *text;
    if (hf_family(m, &family) != STATUS_OK) return;
    status st = hf_config_format(&text, m, DTYPE_F32, -1, -1);
    CHECK(st == STATUS_OK, "not written: %s", status_message());
    st = hf_config_parse(&is.model, "again.json", text, strlen(text));
    CHECK(st == STATUS_OK, "what was written is refused: %s", status_message());
    CHECK(spec_diff(&was, &is, stderr) == 0, "%s reads as another model", family);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct model_spec m;
    if (hf_config_parse(&m, "config.json", (const char *)data, bytes) != STATUS_OK) {
        CHECK(status_message()[0] != 0, "a refusal without words");
        return 0;
    }
    CHECK(model_spec_check(&m) == STATUS_OK, "%s", status_message());
    there_and_back(&m);
    return 0;
}
