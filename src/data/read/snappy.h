/* Snappy's raw format, which Parquet's pages are in: a varint of the decompressed size, then literals and copies. */
#ifndef INGOT_DATA_READ_SNAPPY_H
#define INGOT_DATA_READ_SNAPPY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The size that the data claims to have when decompressed: not to be trusted. False: it does not say. */
bool snappy_bytes(const uint8_t *in, size_t in_bytes, uint64_t *out_bytes);
/* False unless the data is whole, says out_bytes, and gives exactly these. Nothing is written beyond them. */
bool snappy_decode(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes);
#endif
