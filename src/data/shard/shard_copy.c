/* Copies ids of any width to int32. Each loop vectorises: the range check of a block is one maximum, tested
 * once; if it fails, the caller searches for the position. Uses memcpy because ids in a file need not be
 * aligned. */
#include "data/shard/shard_int.h"

#include "base/status.h"

#define COPY(name, ctype, unsigned_type)                                                                     \
    static uint64_t copy_##name(const uint8_t *from, int64_t n, int32_t *out)                                \
    {                                                                                                        \
        unsigned_type most = 0;                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            ctype id;                                                                                        \
            memcpy(&id, from + i * (int64_t)sizeof id, sizeof id);                                           \
            unsigned_type u = (unsigned_type)id;                                                             \
            most = u > most ? u : most;                                                                      \
            out[i] = (int32_t)u;                                                                             \
        }                                                                                                    \
        return most;                                                                                         \
    }
COPY(u8, uint8_t, uint32_t)
COPY(i8, int8_t, uint32_t)
COPY(u16, uint16_t, uint32_t)
COPY(i16, int16_t, uint32_t)
COPY(u32, uint32_t, uint32_t)
COPY(u64, uint64_t, uint64_t)
#undef COPY

uint64_t shard_copy(enum shard_type t, const uint8_t *from, int64_t n, int32_t *out)
{
    switch (t) {
    case SHARD_TYPE_U8: return copy_u8(from, n, out);
    case SHARD_TYPE_I8: return copy_i8(from, n, out);
    case SHARD_TYPE_U16: return copy_u16(from, n, out);
    case SHARD_TYPE_I16: return copy_i16(from, n, out);
    case SHARD_TYPE_U32:
    case SHARD_TYPE_I32: return copy_u32(from, n, out);
    case SHARD_TYPE_U64:
    case SHARD_TYPE_I64: return copy_u64(from, n, out);
    case SHARD_TYPE_UNKNOWN:
    case SHARD_TYPE_COUNT: break;
    }
    CHECK(0, "ids of type %d", t);
    return 0;
}

/* Most blocks contain no end of a document: a block is scanned only if its (vectorised) count says so. */
#define FIND(name, ctype)                                                                                    \
    static int64_t find_##name(const uint8_t *from, int64_t n, ctype want, int64_t *at, int64_t room)        \
    {                                                                                                        \
        enum { BLOCK = 256 };                                                                                \
        int64_t found = 0;                                                                                   \
        for (int64_t begin = 0; begin < n; begin += BLOCK) {                                                 \
            int count = n - begin < BLOCK ? (int)(n - begin) : BLOCK;                                        \
            const uint8_t *block = from + begin * (int64_t)sizeof want;                                      \
            ctype hits = 0, id; /* 256 hits of u8 wrap to 0: that width scans every block */                 \
            for (int i = 0; i < count; i++) {                                                                \
                memcpy(&id, block + i * (int)sizeof id, sizeof id);                                          \
                hits = (ctype)(hits + (id == want));                                                         \
            }                                                                                                \
            for (int i = 0; (hits || sizeof want == 1) && i < count; i++) {                                  \
                memcpy(&id, block + i * (int)sizeof id, sizeof id);                                          \
                if (id != want) continue;                                                                    \
                if (found < room) at[found] = begin + i;                                                     \
                found++;                                                                                     \
            }                                                                                                \
        }                                                                                                    \
        return found;                                                                                        \
    }
FIND(1, uint8_t)
FIND(2, uint16_t)
FIND(4, uint32_t)
FIND(8, uint64_t)
#undef FIND

int64_t shard_find_id(enum shard_type t, const uint8_t *from, int64_t n, int32_t id, int64_t *at,
                      int64_t room)
{
    int width = shard_type_bytes(t);
    if (id < 0 || (width < 4 && id >> (8 * width))) return 0; /* no token of this width has this id */
    if (width == 1) return t == SHARD_TYPE_I8 && id > INT8_MAX ? 0 : find_1(from, n, (uint8_t)id, at, room);
    if (width == 2)
        return t == SHARD_TYPE_I16 && id > INT16_MAX ? 0 : find_2(from, n, (uint16_t)id, at, room);
    return width == 4 ? find_4(from, n, (uint32_t)id, at, room) : find_8(from, n, (uint64_t)id, at, room);
}
