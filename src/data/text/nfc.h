/* Normalization Form C (Unicode Standard Annex 15), identical to the normalizer NFC of Hugging Face tokenizers: data
 * of Unicode 9.0. */
#ifndef INGOT_DATA_TEXT_NFC_H
#define INGOT_DATA_TEXT_NFC_H
#include "base/status.h"
#include <stddef.h>

/* Normalizes valid UTF-8. *out is `text` itself when a fast check finds nothing to change, else *buffer, which grows
 * (array_grow) and belongs to the caller. Time is linear in the bytes. STATUS_OUT_OF_MEMORY. */
status nfc_normalize(const char *text, size_t bytes, char **buffer, size_t *cap, const char **out,
                     size_t *out_bytes) WARN_UNUSED;
#endif
