/* google/snappy, format_description.txt. A tag's two low bits:
 *
 *   0   literal: the upper six bits are length - 1, or from 60 on the number of bytes, less 59, that hold
 *       it
 *   1   copy of 4 to 11 bytes, offset of 11 bits: 3 in the tag, 8 behind it
 *   2   copy of 1 to 64 bytes, offset of 16 bits
 *   3   copy of 1 to 64 bytes, offset of 32 bits
 *
 * Where space allows, literals up to 16 bytes and all copies from at least 16 bytes back move 16 bytes at a
 * time, past their end: the next element overwrites the excess. */
#include "data/read/snappy.h"

#include <string.h>

enum { WIDE = 16, COPY_MAX = 64 };

static bool varint(const uint8_t **p, const uint8_t *end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 35 && *p < end; shift += 7) {
        uint8_t b = *(*p)++;
        *value |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return *value <= UINT32_MAX;
    }
    return false;
}

bool snappy_bytes(const uint8_t *in, size_t in_bytes, uint64_t *out_bytes)
{
    return varint(&in, in + in_bytes, out_bytes);
}

/* Copies `bytes` from `offset` back. If they overlap, the output repeats. */
static void copy_back(uint8_t *to, size_t offset, size_t bytes, size_t room)
{
    const uint8_t *from = to - offset;
    if (offset >= WIDE && room >= COPY_MAX + WIDE) {
        for (size_t i = 0; i < bytes; i += WIDE) memcpy(to + i, from + i, WIDE);
        return;
    }
    if (offset >= 8 && room >= COPY_MAX + WIDE) {
        for (size_t i = 0; i < bytes; i += 8) memcpy(to + i, from + i, 8);
        return;
    }
    for (size_t i = 0; i < bytes; i++) to[i] = from[i];
}

/* Bytes of the literal after `tag`; SIZE_MAX if the input ends before. */
static size_t literal_bytes(uint8_t tag, const uint8_t **p, const uint8_t *end)
{
    size_t bytes = tag >> 2, extra = bytes < 60 ? 0 : bytes - 59;
    if (extra > (size_t)(end - *p)) return SIZE_MAX;
    if (extra > 0) {
        uint32_t value = 0;
        memcpy(&value, *p, extra);
        *p += extra;
        bytes = value;
    }
    return bytes + 1 <= (size_t)(end - *p) ? bytes + 1 : SIZE_MAX;
}

bool snappy_decode(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes)
{
    static const uint8_t offset_bytes[4] = {0, 1, 2, 4};
    static const uint32_t offset_mask[4] = {0, 0xff, 0xffff, UINT32_MAX};
    const uint8_t *p = in, *end = in + in_bytes;
    uint8_t *to = out, *stop = out + out_bytes;
    uint64_t claimed;
    if (!varint(&p, end, &claimed) || claimed != out_bytes) return false;
    while (p < end) {
        uint8_t tag = *p++;
        unsigned kind = tag & 3;
        if (kind == 0) {
            if (tag < WIDE << 2 && end - p >= WIDE && stop - to >= WIDE) {
                memcpy(to, p, WIDE);
                p += (tag >> 2) + 1;
                to += (tag >> 2) + 1;
                continue;
            }
            size_t bytes = literal_bytes(tag, &p, end);
            if (bytes > (size_t)(stop - to)) return false;
            memcpy(to, p, bytes);
            p += bytes;
            to += bytes;
            continue;
        }
        uint32_t offset = 0;
        if (end - p >= 4)
            memcpy(&offset, p, 4);
        else if (end - p >= offset_bytes[kind])
            memcpy(&offset, p, offset_bytes[kind]);
        else
            return false;
        offset &= offset_mask[kind];
        p += offset_bytes[kind];
        size_t bytes = (tag >> 2) + 1;
        if (kind == 1) {
            bytes = (tag >> 2 & 7) + 4;
            offset |= (uint32_t)(tag >> 5) << 8;
        }
        size_t room = (size_t)(stop - to);
        if (offset == 0 || offset > (size_t)(to - out) || bytes > room) return false;
        copy_back(to, offset, bytes, room);
        to += bytes;
    }
    return to == stop;
}
