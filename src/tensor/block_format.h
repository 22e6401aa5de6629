/* block_format: 8- and 4-bit codes whose scales come from the tensor that is encoded (current scaling). A line is a
 * row of the matrix, or a column: the elements along the k of the GEMM that reads it. Blocks are parts of lines, or
 * squares.
 *
 *   format   codes  block     scale of a block                                       scale of the tensor
 *   E4M3     E4M3   all       -                                                      2^n
 *   E5M2     E5M2   all       -                                                      2^n
 *   B128     E4M3   128       2^n, F32 (DeepSeek-V3, arXiv:2412.19437)               -
 *   MX       E4M3   32        E8M0: 2^(byte - 127) (OCP MX; arXiv:2506.08027)        -
 *   NV       E2M1   16        E4M3 (NVFP4, arXiv:2509.25149)                         2^n
 *
 * value = code * scale of its block * scale of the tensor. All scales are powers of two except E4M3's, which have 4
 * bits. So a value has at most 6 bits and is exact in bf16: a GEMM of values has exact products. */
#ifndef INGOT_TENSOR_BLOCK_FORMAT_H
#define INGOT_TENSOR_BLOCK_FORMAT_H
#include "base/rng.h"
#include <stdbool.h>
#include <stddef.h>

enum block_format { BLOCKS_E4M3, BLOCKS_E5M2, BLOCKS_B128, BLOCKS_MX, BLOCKS_NV, BLOCK_FORMATS };

/* Elements of a block along a line; 0: the tensor is one block. */
RNG_INLINE int64_t block_length(enum block_format f)
{
    switch (f) {
    case BLOCKS_E4M3:
    case BLOCKS_E5M2:
    case BLOCK_FORMATS: break;
    case BLOCKS_B128: return 128;
    case BLOCKS_MX: return 32;
    case BLOCKS_NV: return 16;
    }
    return 0;
}
RNG_INLINE bool block_tensor_scale(enum block_format f)
{
    return f == BLOCKS_E4M3 || f == BLOCKS_E5M2 || f == BLOCKS_NV;
}
/* Bytes of the codes of `lines` of `length`: E2M1 has two codes in a byte, the first in the low half. A line has a
 * multiple of 16 codes, those behind `length` are 0. */
RNG_INLINE int64_t block_ld(enum block_format f, int64_t length)
{
    const int64_t padded = (length + 15) / 16 * 16;
    return f == BLOCKS_NV ? padded / 2 : padded;
}

/* Where the scale of block b of a line is, for cuBLASLt (VEC128_32F, BLK128x128_32F, VEC32_UE8M0, VEC16_UE4M3).
 *   B128           F32 [blocks][lines padded to 4]
 *   B128, squares  F32 [line / 128][blocks padded to 4]
 *   MX, NV         bytes, tiles of 128 lines and 4 blocks; a square's scale once for each of its lines
 * Padding is 0. */
RNG_INLINE int64_t block_count(enum block_format f, int64_t length)
{
    const int64_t each = block_length(f);
    return each ? (length + each - 1) / each : 0;
}
RNG_INLINE int64_t block_scale_at(enum block_format f, bool square, int64_t lines, int64_t length, int64_t line,
                                     int64_t b)
{
    const int64_t blocks = block_count(f, length);
    if (f == BLOCKS_B128) return square ? line / 128 * ((blocks + 3) / 4 * 4) + b : b * ((lines + 3) / 4 * 4) + line;
    return (line / 128 * ((blocks + 3) / 4) + b / 4) * 512 + line % 32 * 16 + line % 128 / 32 * 4 + b % 4;
}
/* Bytes of all scales of blocks. */
RNG_INLINE size_t block_scale_bytes(enum block_format f, bool square, int64_t lines, int64_t length)
{
    const int64_t blocks = block_count(f, length);
    if (blocks == 0) return 0;
    if (f != BLOCKS_B128) return (size_t)((lines + 127) / 128 * ((blocks + 3) / 4) * 512);
    return sizeof(float) * (size_t)(square ? (lines + 127) / 128 * ((blocks + 3) / 4 * 4)
                                           : blocks * ((lines + 3) / 4 * 4));
}
#endif
