#include "model/gguf_int.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 32, BLOCK_BYTES = 2 + BLOCK }; /* Q8_0: a scale in f16, then codes */

static const struct {
    enum gguf_type type;
    const char *word;
} types[] = {{GGUF_F32, "f32"}, {GGUF_F16, "f16"}, {GGUF_BF16, "bf16"}, {GGUF_Q8_0, "q8_0"}};

int gguf_type_find(const char *word)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].word, word) == 0) return (int)types[i].type;
    return -1;
}

const char *gguf_type_word(enum gguf_type t)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].type == t) return types[i].word;
    CHECK(0, "GGUF type %d", (int)t);
}

int64_t gguf_type_bytes(enum gguf_type t, int64_t n)
{
    if (t == GGUF_Q8_0) return n / BLOCK * BLOCK_BYTES;
    return n * (t == GGUF_F32 ? 4 : 2);
}

/* Q8_0: a block's largest magnitude becomes 127. */
static void encode_block(const float *in, char *out)
{
    float most = 0;
    for (int i = 0; i < BLOCK; i++) most = fmaxf(most, fabsf(in[i]));
    const float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
    const uint16_t stored = f16_from_f32(scale);
    memcpy(out, &stored, sizeof stored);
    for (int i = 0; i < BLOCK; i++) out[2 + i] = (char)(int8_t)roundf(in[i] * inverse);
}

bool gguf_encode(enum gguf_type t, const float *in, int64_t n, void *out)
{
    const float most = t == GGUF_F16 ? 65504 : t == GGUF_Q8_0 ? 65504 * 127.0f : INFINITY;
    bool good = true;
    for (int64_t i = 0; i < n; i++) good &= isfinite(in[i]) && fabsf(in[i]) <= most;
    if (!good) return false;
    for (int64_t i = 0; i < n && t == GGUF_F16; i++) ((uint16_t *)out)[i] = f16_from_f32(in[i]);
    for (int64_t i = 0; i < n && t == GGUF_BF16; i++) ((bf16 *)out)[i] = bf16_from_f32(in[i]);
    for (int64_t i = 0; i < n && t == GGUF_Q8_0; i += BLOCK)
        encode_block(in + i, (char *)out + gguf_type_bytes(t, i));
    if (t == GGUF_F32) memcpy(out, in, (size_t)n * sizeof *in);
    return true;
}
