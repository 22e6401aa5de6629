#include "base/parallel.h"
#include "ops/block_scale.h"
#include "ops/cpu/oracle/oracle.h"

void quantize_blocks_check(const struct quantize_blocks_args *a)
{
    const int64_t length = quantize_blocks_length(a);
    CHECK(a->format >= 0 && a->format < BLOCK_FORMATS, "block format %d", (int)a->format);
    CHECK(!block_tensor_scale(a->format) || a->tensor,
          "a format with a scale of the tensor, and no place for it");
    CHECK(!a->square || a->format == BLOCKS_B128 || a->format == BLOCKS_NV, "square blocks of format %d",
          (int)a->format);
    CHECK(!(a->hadamard || a->stochastic || a->exact) || a->format == BLOCKS_NV, "format %d as if it were NV",
          (int)a->format);
    CHECK(!a->hadamard || length % 16 == 0, "lines of %lld, rotated in groups of 16", (long long)length);
    CHECK(!a->exact || a->values == NULL, "values with a scale that is no power of two");
    CHECK(!a->stochastic || a->scalars, "random rounding without a step");
}

enum { GROUP = 16 }; /* elements of a line that are read at once */

/* Elements [at, at + 16) of a line; 0 behind its end. */
static void group_load(const struct quantize_blocks_args *a, int64_t line, int64_t at, float x[GROUP])
{
    const int64_t length = quantize_blocks_length(a);
    for (int64_t i = 0; i < GROUP; i++) {
        const int64_t place = at + i;
        x[i] = place < length
                   ? (float)get(a->x, a->columns ? place * a->n + line : line * a->n + place, a->dt)
                   : 0;
    }
    if (a->hadamard) block_rotate(x);
}

static uint32_t span_amax(const struct quantize_blocks_args *a, struct span lines, struct span places)
{
    uint32_t most = 0;
    float x[GROUP];
    for (int64_t line = lines.begin; line < lines.end; line++)
        for (int64_t at = places.begin; at < places.end; at += GROUP) {
            group_load(a, line, at, x);
            for (int i = 0; i < GROUP; i++) {
                const uint32_t size = block_magnitude(x[i]);
                most = size > most ? size : most;
            }
        }
    return most;
}

static void code_store(const struct quantize_blocks_args *a, int64_t line, int64_t place, uint8_t code)
{
    uint8_t *to = a->codes + line * block_ld(a->format, quantize_blocks_length(a));
    if (a->format != BLOCKS_NV)
        to[place] = code;
    else if (place % 2 == 0)
        to[place / 2] = code; /* the other half follows */
    else
        to[place / 2] |= (uint8_t)(code << 4);
}

static void group_store(const struct quantize_blocks_args *a, int64_t line, int64_t at, const float x[GROUP],
                        struct block_scale s)
{
    const int64_t length = quantize_blocks_length(a), ld = chunk_count(length, GROUP) * GROUP;
    struct rng_block words = {{0}};
    for (int64_t i = 0; i < GROUP; i++) {
        const int64_t place = at + i;
        if (a->stochastic && i % 8 == 0)
            words =
                rng_at(a->seed, RNG_CODES, a->scalars->step, a->first + (uint64_t)(line * ld + place) / 8);
        const int random = a->stochastic ? (int)(words.u[i % 8 / 2] >> i % 2 * 16 & 0xffff) : BLOCK_NEAREST;
        const uint8_t code = place < length ? block_encode(a->format, x[i], s.encode, random) : 0;
        if (a->codes) code_store(a, line, place, code);
        if (a->values && place < length)
            a->values[a->columns ? place * a->n + line : line * a->n + place] =
                bf16_from_f32(block_value(a->format, code, s.decode));
    }
}

static void scale_put(const struct quantize_blocks_args *a, struct span lines, int64_t b,
                      struct block_scale s)
{
    const int64_t count = quantize_blocks_lines(a), length = quantize_blocks_length(a);
    const bool each = a->format != BLOCKS_B128; /* squares, too, have a scale for each line */
    for (int64_t line = lines.begin; line < (each ? lines.end : lines.begin + 1); line++) {
        const int64_t at = block_scale_at(a->format, a->square, count, length, line, b);
        if (each)
            ((uint8_t *)a->scales)[at] = s.code;
        else
            ((float *)a->scales)[at] = s.decode;
    }
}

/* The blocks of some lines: of one, or of a row of squares. */
static void lines_encode(const struct quantize_blocks_args *a, struct span lines, float tensor)
{
    const int64_t length = quantize_blocks_length(a),
                  each = block_length(a->format) ? block_length(a->format) : length;
    float x[GROUP];
    for (int64_t b = 0; b * each < length; b++) {
        const struct span places = chunk_span(b, length, each);
        const uint32_t amax = block_length(a->format) ? span_amax(a, lines, places) : 0;
        const struct block_scale s = block_scale_of(a->format, amax, tensor);
        if (a->scales && block_length(a->format)) scale_put(a, lines, b, s);
        for (int64_t line = lines.begin; line < lines.end; line++)
            for (int64_t at = places.begin; at < places.end; at += GROUP) {
                group_load(a, line, at, x);
                group_store(a, line, at, x, s);
            }
    }
}

static float tensor_encode(const struct quantize_blocks_args *a)
{
    if (!block_tensor_scale(a->format)) return 1;
    const int64_t lines = quantize_blocks_lines(a), length = quantize_blocks_length(a);
    const uint32_t most = span_amax(a, (struct span){0, lines}, (struct span){0, length});
    const float encode = block_tensor_encode(a->format, most, a->exact);
    a->tensor[0] = block_float(most);
    a->tensor[1] = 1 / encode;
    return encode;
}

static status quantize_blocks(const struct quantize_blocks_args *a, dev_stream s)
{
    (void)s;
    check_dt(a->dt);
    quantize_blocks_check(a);
    if (a->rows == 0 || a->n == 0) return STATUS_OK;
    const int64_t lines = quantize_blocks_lines(a), high = a->square ? block_length(a->format) : 1;
    const float tensor = tensor_encode(a);
    if (a->scales)
        memset(a->scales, 0, block_scale_bytes(a->format, a->square, lines, quantize_blocks_length(a)));
    PARALLEL_CHUNKS(i, chunk_count(lines, high)) lines_encode(a, chunk_span(i, lines, high), tensor);
    return STATUS_OK;
}

void oracle_blocks(struct ops *o)
{
    o->quantize_blocks = quantize_blocks;
}
