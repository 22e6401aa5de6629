/* Any bytes as the body of a manifest, sealed as if by someone who knows how (and as they are): parsed or refused; what is
 * parsed satisfies what the reader relies on, and is written and parsed again as the same. */
#include "train/ckpt_manifest.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(const struct ckpt_manifest *m)
{
    int64_t chunks = 0;
    for (int i = 0; i < m->tensor_count; i++) {
        const struct ckpt_manifest_tensor *t = &m->tensors[i];
        CHECK(t->file >= 0 && t->file < m->file_count, "file %d", t->file);
        CHECK(t->offset >= m->files[t->file].data_start, "offset %lld", (long long)t->offset);
        CHECK(t->bytes >= 0 && t->bytes <= m->files[t->file].bytes - t->offset, "bytes %lld",
              (long long)t->bytes);
        CHECK(t->bytes == ckpt_manifest_item_bytes(&t->item), "bytes %lld", (long long)t->bytes);
        CHECK(!ckpt_manifest_name_fault(t->item.name), "name '%s'", t->item.name);
        CHECK(t->chunk_first == chunks, "chunk %lld", (long long)t->chunk_first);
        chunks += ckpt_manifest_chunks(t->bytes, m->chunk_bytes);
    }
    CHECK(chunks == m->crc_count, "%lld checksums", (long long)m->crc_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ckpt_manifest m, again;
    if (ckpt_manifest_parse(&m, (const char *)data, bytes, "input") == STATUS_OK) ckpt_manifest_free(&m);
    size_t sealed_bytes, text_bytes;
    char *sealed = ckpt_manifest_seal((const char *)data, bytes, &sealed_bytes), *text;
    CHECK(sealed, "no memory");
    if (ckpt_manifest_parse(&m, sealed, sealed_bytes, "input") == STATUS_OK) {
        check(&m);
        CHECK(ckpt_manifest_format(&m, &text, &text_bytes) == STATUS_OK, "%s", status_message());
        CHECK(ckpt_manifest_parse(&again, text, text_bytes, "again") == STATUS_OK, "%s", status_message());
        CHECK(again.tensor_count == m.tensor_count && again.crc_count == m.crc_count && again.step == m.step,
              "differs");
        ckpt_manifest_free(&again);
        ckpt_manifest_free(&m);
        free(text);
    }
    free(sealed);
    return 0;
}
