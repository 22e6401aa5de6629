/* Normalization Form C (Unicode Standard Annex 15), as the normalizer NFC of Hugging Face tokenizers does it: with
 * the data of Unicode 9.0. */
#ifndef INGOT_DATA_TEXT_NFC_H
#define INGOT_DATA_TEXT_NFC_H
#include "base/status.h"
#include <stddef.h>

/* The text in normal form: *out is `text` itself when a fast check finds nothing to do, else *buffer, which grows
 * (array_grow) and is the caller's. The text must be valid UTF-8; time is linear in its bytes. STATUS_FIT. */
status nfc_normalize(const char *text, size_t bytes, char **buffer, size_t *cap, const char **out,
                     size_t *out_bytes) WARN_UNUSED;
#endif
