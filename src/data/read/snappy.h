/* Snappy's raw format, used in Parquet pages: a varint of the decompressed size, then literals and copies. */
#ifndef INGOT_DATA_READ_SNAPPY_H
#define INGOT_DATA_READ_SNAPPY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the decompressed size claimed by the data, which is not to be trusted. False: there is none. */
bool snappy_bytes(const uint8_t *in, size_t in_bytes, uint64_t *out_bytes);
/* Decompresses. Returns false unless the data is complete, claims out_bytes, and decompresses to exactly that size.
 * Never writes beyond it. */
bool snappy_decode(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes);
#endif
