/* Codes with scales of their own (tensor/block_format.h), each format against a second formulation: nearest values by
 * search in a table, scales by logarithms in f64, layouts by reshaping. tests/ops/test_fast.c and gpu_ops.c compare
 * the sets with the oracle. blocks_reference.h: codes that ml_dtypes' conversions give. */
#include "base/parallel.h"
#include "ops/block_scale.h"
#include "ops/blocks_reference.h"
#include "ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ROWS = 144, N = 160, COUNT = ROWS * N };

/* Noise of about 1; blocks of 16 x 16 have sizes that differ by up to 2^9, every seventh is 0. */
static float noise(int64_t row, int64_t col)
{
    const int64_t block = row / 16 * 7 + col / 16 * 5;
    const float x = (float)rng_normal(3, RNG_TEST, (uint64_t)row, (uint64_t)col);
    return block % 7 == 0 ? 0 : ldexpf(x, -(int)(block % 10));
}
static float rounded(float x)
{
    return bf16_to_f32(bf16_from_f32(x));
}

struct result {
    float x[COUNT];
    bf16 values[COUNT];
    uint8_t codes[2 * COUNT], scales[2 * COUNT];
    float tensor[2];
    int64_t lines, length;
    double amax; /* of x */
    struct last {
        int64_t line, place;
        double amax;
    } last; /* a block, and its largest magnitude */
};
static struct result *run(struct quantize_blocks_args a)
{
    static struct result r;
    struct ops o;
    struct step_scalars s = {.step = 3};
    ops_oracle(&o);
    for (int i = 0; i < COUNT; i++) r.x[i] = rounded(noise(i / N, i % N));
    r.amax = 0;
    for (int i = 0; i < COUNT; i++) r.amax = fmax(r.amax, fabs((double)r.x[i]));
    r.last.line = -1;
    memset(r.codes, 0xEE, sizeof r.codes);
    memset(r.scales, 0xEE, sizeof r.scales);
    a.x = r.x, a.dt = DTYPE_F32, a.rows = ROWS, a.n = N, a.scalars = &s;
    a.codes = r.codes, a.scales = r.scales, a.tensor = r.tensor;
    if (!a.exact) a.values = r.values;
    assert_int_equal(o.quantize_blocks(&a, NULL), STATUS_OK);
    r.lines = quantize_blocks_lines(&a), r.length = quantize_blocks_length(&a);
    assert_true(block_scale_bytes(a.format, a.square, r.lines, r.length) <= sizeof r.scales);
    return &r;
}

/* ---- second formulation */

/* Magnitudes of a format, ascending; returns their number. */
static int table(enum block_format f, double to[128])
{
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    if (f == BLOCKS_NV) {
        memcpy(to, e2m1, sizeof e2m1);
        return 8;
    }
    const int mantissa = f == BLOCKS_E5M2 ? 2 : 3, bias = f == BLOCKS_E5M2 ? 15 : 7,
              most = f == BLOCKS_E5M2 ? 0x7B : 0x7E;
    for (int c = 0; c <= most; c++) {
        const int e = c >> mantissa, m = c & ((1 << mantissa) - 1);
        to[c] = e ? ldexp(1 + ldexp(m, -mantissa), e - bias) : ldexp(m, 1 - bias - mantissa);
    }
    return most + 1;
}
/* The nearest, of two equally near the even one. */
static int nearest(enum block_format f, double x)
{
    double values[128];
    const int count = table(f, values);
    int best = 0;
    for (int c = 1; c < count; c++) {
        const double d = fabs(values[c] - fabs(x)), before = fabs(values[best] - fabs(x));
        if (d < before || (d == before && c % 2 == 0)) best = c;
    }
    return best;
}
static double value_of(enum block_format f, int code)
{
    double values[128];
    const int sign = f == BLOCKS_NV ? 8 : 0x80;
    (void)table(f, values);
    return code & sign ? -values[code & ~sign] : values[code & ~sign];
}

static double x_at(const struct result *r, bool columns, int64_t line, int64_t place)
{
    return (double)r->x[columns ? place * N + line : line * N + place];
}
static int code_at(const struct result *r, enum block_format f, int64_t line, int64_t place)
{
    if (f != BLOCKS_NV) return r->codes[line * ((r->length + 15) / 16 * 16) + place];
    return r->codes[(line * ((r->length + 15) / 16 * 16) + place) / 2] >> place % 2 * 4 & 15;
}
/* MX and NV: the (lines / 128, blocks / 4, 32, 4, 4) reshape of cuBLAS's documentation. */
static int scale_byte(const struct result *r, int64_t blocks, int64_t line, int64_t b)
{
    const int64_t tiles = (blocks + 3) / 4;
    const uint8_t(*tile)[32][4][4] = (const void *)r->scales;
    return tile[line / 128 * tiles + b / 4][line % 32][line / 32 % 4][b % 4];
}

/* The largest magnitude of the block that has this element. */
static double block_amax(struct result *r, bool columns, int64_t each, bool square, int64_t line,
                         int64_t place)
{
    const int64_t first = square ? line / each * each : line, end = square ? first + each : line + 1,
                  from = place / each * each;
    if (r->last.line == first && r->last.place == from) return r->last.amax;
    r->last = (struct last){first, from, 0};
    for (int64_t l = first; l < end && l < r->lines; l++)
        for (int64_t i = from; i < from + each && i < r->length; i++)
            r->last.amax = fmax(r->last.amax, fabs(x_at(r, columns, l, i)));
    return r->last.amax;
}

static void same(enum block_format f, int want, int got, const char *what, int64_t line, int64_t place)
{
    if (want != got)
        fail_msg("format %d: %s of line %lld, element %lld is 0x%02x, expected 0x%02x", (int)f, what,
                 (long long)line, (long long)place, got, want);
}

/* Codes, scales and values of all elements. scale_of: the scale of an element's block, what its byte must be (-1: none).
 */
struct expected {
    double encode, decode;
    int byte;
};
typedef struct expected scale_fn(struct result *r, bool columns, bool square, int64_t line, int64_t place);
static void check(struct quantize_blocks_args a, scale_fn *scale_of)
{
    struct result *r = run(a);
    const enum block_format f = a.format;
    for (int64_t line = 0; line < r->lines; line++)
        for (int64_t i = 0; i < r->length; i++) {
            const struct expected s = scale_of(r, a.columns, a.square, line, i);
            const double x = x_at(r, a.columns, line, i);
            const int code = nearest(f, (double)((float)x * (float)s.encode)),
                      sign = signbit(x) ? (f == BLOCKS_NV ? 8 : 0x80) : 0;
            same(f, code | sign, code_at(r, f, line, i), "the code", line, i);
            if (s.byte >= 0)
                same(f, s.byte, scale_byte(r, block_count(f, r->length), line, i / block_length(f)),
                     "the scale", line, i);
            if (a.exact) continue;
            const int64_t at = a.columns ? i * N + line : line * N + i;
            if ((double)bf16_to_f32(r->values[at]) != value_of(f, code | sign) * s.decode)
                fail_msg("format %d: value [%lld] is %g", (int)f, (long long)at,
                         (double)bf16_to_f32(r->values[at]));
        }
}

static struct expected power(double max, double amax)
{
    const double e = amax > 0 ? floor(log2(max / amax)) : 0;
    return (struct expected){ldexp(1, (int)e), ldexp(1, -(int)e), -1};
}
static struct expected of_e4m3(struct result *r, bool columns, bool square, int64_t line, int64_t place)
{
    (void)columns, (void)square, (void)line, (void)place;
    return power(448, r->amax);
}
static struct expected of_e5m2(struct result *r, bool columns, bool square, int64_t line, int64_t place)
{
    (void)columns, (void)square, (void)line, (void)place;
    return power(57344, r->amax);
}
static struct expected of_b128(struct result *r, bool columns, bool square, int64_t line, int64_t place)
{
    const struct expected s = power(448, block_amax(r, columns, 128, square, line, place));
    const int64_t blocks = (r->length + 127) / 128, b = place / 128;
    const float *scales = (const void *)r->scales, got = square
                                                             ? scales[line / 128 * ((blocks + 3) / 4 * 4) + b]
                                                             : scales[b * ((r->lines + 3) / 4 * 4) + line];
    if ((double)got != s.decode) fail_msg("scale of line %lld, block %lld", (long long)line, (long long)b);
    return s;
}
/* The smallest power of two with which no element is above 448. Of 0: 2^-127. */
static struct expected of_mx(struct result *r, bool columns, bool square, int64_t line, int64_t place)
{
    const double amax = block_amax(r, columns, 32, square, line, place);
    const int e = amax > 0 ? (int)ceil(log2(amax / 448)) : -127;
    return (struct expected){ldexp(1, -e), ldexp(1, e), e + 127};
}
/* Transformer Engine's reference in F32, with E4M3 by search. */
static struct expected nv(double amax, float s_enc)
{
    const float multiplier = s_enc * (1.f / 6), raw = fminf((float)amax * multiplier, 448);
    const int byte = nearest(BLOCKS_E4M3, (double)raw);
    const float s_b = (float)value_of(BLOCKS_E4M3, byte), global = 1 / s_enc;
    return (struct expected){(double)fminf(1 / (s_b * global), 3.40282347e38f), (double)s_b * (double)global,
                             byte};
}
static struct expected of_nv(struct result *r, bool columns, bool square, int64_t line, int64_t place)
{
    const double s_enc = exp2(floor(log2(2688 / r->amax)));
    return nv(block_amax(r, columns, 16, square, line, place), (float)s_enc);
}
static struct expected of_nv_exact(struct result *r, bool columns, bool square, int64_t line, int64_t place)
{
    return nv(block_amax(r, columns, 16, square, line, place), 2688.f / (float)r->amax);
}

static void every_format_is_what_its_papers_say(void **unused)
{
    (void)unused;
    for (int columns = 0; columns < 2; columns++) {
        check((struct quantize_blocks_args){.format = BLOCKS_E4M3, .columns = columns}, of_e4m3);
        check((struct quantize_blocks_args){.format = BLOCKS_E5M2, .columns = columns}, of_e5m2);
        check((struct quantize_blocks_args){.format = BLOCKS_MX, .columns = columns}, of_mx);
        check((struct quantize_blocks_args){.format = BLOCKS_NV, .columns = columns, .exact = true},
              of_nv_exact);
        for (int square = 0; square < 2; square++) {
            check((struct quantize_blocks_args){.format = BLOCKS_B128, .columns = columns, .square = square},
                  of_b128);
            check((struct quantize_blocks_args){.format = BLOCKS_NV, .columns = columns, .square = square},
                  of_nv);
        }
    }
}

static void square_blocks_have_the_same_values_in_both_directions(void **unused)
{
    (void)unused;
    static const enum block_format formats[] = {BLOCKS_B128, BLOCKS_NV};
    static bf16 rows[COUNT];
    for (int k = 0; k < 2; k++) {
        memcpy(rows, run((struct quantize_blocks_args){.format = formats[k], .square = true})->values,
               sizeof rows);
        assert_memory_equal(
            rows,
            run((struct quantize_blocks_args){.format = formats[k], .square = true, .columns = true})->values,
            sizeof rows);
        const bf16 *lines = run((struct quantize_blocks_args){.format = formats[k], .columns = true})->values;
        assert_int_not_equal(memcmp(rows, lines, sizeof rows), 0);
    }
}

/* ---- stochastic rounding */

/* Mean of `DRAWS` roundings: the standard error of one is at most half a step of 2, so of the mean 1 / sqrt(DRAWS). */
static void random_rounding_keeps_the_mean(void **unused)
{
    (void)unused;
    enum { DRAWS = 40000 };
    static const float x[] = {0.1f, 0.25f, 0.7f, 1.3f, 1.99f, 2.6f, 3.9f, 4.5f, 5.99f};
    for (size_t k = 0; k < sizeof x / sizeof x[0]; k++) {
        double sum = 0;
        for (uint64_t i = 0; i < DRAWS; i++) {
            const int random = (int)(rng_at(1, RNG_CODES, 0, i).u[k % 4] & 0xffff);
            const int code = block_encode(BLOCKS_NV, -x[k], 1, random),
                      low = nearest(BLOCKS_NV, (double)x[k]);
            assert_true((code & 8) && abs((code & 7) - low) <= 1);
            sum -= value_of(BLOCKS_NV, code);
        }
        if (fabs(sum / DRAWS - (double)x[k]) > 5 / sqrt(DRAWS))
            fail_msg("mean of %g is %g", (double)x[k], sum / DRAWS);
    }
    for (int c = 0; c < 8; c++) /* what has a code keeps it, whatever is drawn */
        for (int random = 0; random < 65536; random += 4369)
            assert_int_equal(block_encode(BLOCKS_NV, (float)value_of(BLOCKS_NV, c), 1, random), c);
    assert_int_equal(block_encode(BLOCKS_NV, 100, 1, 65535), 7);
}

static void random_bits_depend_on_step_seed_and_place_alone(void **unused)
{
    (void)unused;
    static uint8_t first[2 * COUNT];
    struct quantize_blocks_args a = {.format = BLOCKS_NV, .stochastic = true, .seed = 5, .first = 77};
    memcpy(first, run(a)->codes, sizeof first);
    const int before = parallel_threads();
    parallel_threads_set(1);
    assert_memory_equal(first, run(a)->codes, sizeof first);
    parallel_threads_set(before);
    a.seed = 6;
    assert_int_not_equal(memcmp(first, run(a)->codes, sizeof first), 0);
    a.seed = 5, a.first = 78;
    assert_int_not_equal(memcmp(first, run(a)->codes, sizeof first), 0);
}

/* ---- Hadamard transform */

static void a_rotation_of_both_operands_keeps_their_product(void **unused)
{
    (void)unused;
    static const int sign[16] = {1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1};
    float x[16], y[16], hx[16], hy[16];
    double dot = 0, rotated = 0, norm = 0;
    for (int i = 0; i < 16; i++) {
        hx[i] = x[i] = noise(20, i + 20), hy[i] = y[i] = noise(100, i + 50);
        dot += (double)x[i] * (double)y[i];
        norm += (double)x[i] * (double)x[i] + (double)y[i] * (double)y[i];
    }
    block_rotate(hx);
    block_rotate(hy);
    for (int i = 0; i < 16; i++) {
        double want = 0; /* Sylvester's matrix: the sign is the parity of i & j */
        for (int j = 0; j < 16; j++)
            want += (double)x[j] * sign[j] * (__builtin_popcount((unsigned)(i & j)) % 2 ? -0.25 : 0.25);
        assert_true(fabs(want - (double)hx[i]) < 1e-6 * sqrt(norm));
        rotated += (double)hx[i] * (double)hy[i];
    }
    assert_true(norm > 0 && fabs(rotated - dot) < 1e-6 * norm);
    /* An outlier is spread over its group: that is what the transform is for. */
    float spike[16] = {[5] = 16};
    block_rotate(spike);
    for (int i = 0; i < 16; i++) assert_true(fabsf(spike[i]) == 4);
}

/* ---- ml_dtypes */

static void codes_are_those_of_ml_dtypes(void **unused)
{
    (void)unused;
    struct ops o;
    ops_oracle(&o);
    for (int k = 0; k < BLOCKS_REFERENCES; k++) {
        const struct blocks_reference *want = &blocks_references[k];
        uint8_t codes[BLOCKS_REFERENCE_N], scales[1024];
        float tensor[2];
        assert_true(block_scale_bytes(want->format, false, 1, BLOCKS_REFERENCE_N) <= sizeof scales);
        const struct quantize_blocks_args a = {.x = blocks_reference_x,
                                               .codes = codes,
                                               .scales = scales,
                                               .tensor = tensor,
                                               .rows = 1,
                                               .n = BLOCKS_REFERENCE_N,
                                               .format = want->format,
                                               .exact = want->format == BLOCKS_NV,
                                               .dt = DTYPE_F32};
        assert_int_equal(o.quantize_blocks(&a, NULL), STATUS_OK);
        assert_memory_equal(codes, want->codes, (size_t)block_ld(want->format, BLOCKS_REFERENCE_N));
        for (int64_t b = 0; b < block_count(want->format, BLOCKS_REFERENCE_N); b++)
            same(want->format, want->scales[b], scales[b / 4 * 512 + b % 4], "the scale", 0, b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_is_what_its_papers_say),
        cmocka_unit_test(square_blocks_have_the_same_values_in_both_directions),
        cmocka_unit_test(random_rounding_keeps_the_mean),
        cmocka_unit_test(random_bits_depend_on_step_seed_and_place_alone),
        cmocka_unit_test(a_rotation_of_both_operands_keeps_their_product),
        cmocka_unit_test(codes_are_those_of_ml_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
