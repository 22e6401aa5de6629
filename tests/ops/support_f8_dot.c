#include "f8_dot.h"
#include <limits.h>
#include <math.h>

enum { FRACTION = 13 }; /* bits of the accumulator behind its leading one */

static float not_a_number(void)
{
    const uint32_t bits = 0x7fffffffu;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* A term's value is significand * 2^exponent; `top` is the exponent that alignment sees. */
struct term {
    int64_t significand;
    int exponent, top;
};
static struct term term_of_product(const struct f8_dot *d, int64_t i)
{
    const struct f8_parts a = f8_split(d->format_a, d->a[i]), b = f8_split(d->format_b, d->b[i]);
    const int top = a.exponent + b.exponent;
    return (struct term){(int64_t)a.significand * b.significand,
                         top - d->format_a.mantissa - d->format_b.mantissa, top};
}
static struct term term_of_sum(float c)
{
    int exponent;
    const float fraction = frexpf(c, &exponent); /* in [0.5, 1) */
    return (struct term){(int64_t)ldexpf(fraction, 24), exponent - 24, exponent - 1};
}

/* In units of 2^unit, truncated toward zero. */
static int64_t truncated(struct term t, int unit)
{
    const int shift = t.exponent - unit;
    if (shift >= 0) return t.significand * ((int64_t)1 << shift);
    return shift > -63 ? t.significand / ((int64_t)1 << -shift) : 0;
}

static float add_32(const struct f8_dot *d, int64_t from, int64_t to, float c)
{
    struct term terms[F8_DOT_STEP + 1];
    int count = 0, top = INT_MIN;
    terms[count++] = term_of_sum(c);
    for (int64_t i = from; i < to; i++) terms[count++] = term_of_product(d, i);
    for (int i = 0; i < count; i++)
        if (terms[i].significand != 0 && terms[i].top > top) top = terms[i].top;
    if (top == INT_MIN) return 0;
    int64_t sum = 0;
    for (int i = 0; i < count; i++)
        if (terms[i].significand != 0) sum += truncated(terms[i], top - FRACTION);
    int unit = top - FRACTION;
    while (sum >= (int64_t)2 << FRACTION || sum <= -((int64_t)2 << FRACTION)) sum /= 2, unit++;
    return sum ? ldexpf((float)sum, unit) : 0;
}

/* What IEEE makes of the products that are not finite; 0 when there is none. */
static float sum_of_infinite(const struct f8_dot *d)
{
    float sum = 0;
    for (int64_t i = 0; i < d->k; i++)
        if (!f8_is_finite(d->format_a, d->a[i]) || !f8_is_finite(d->format_b, d->b[i]))
            sum += f8_decode(d->format_a, d->a[i]) * f8_decode(d->format_b, d->b[i]);
    return isnan(sum) ? not_a_number() : sum;
}

float f8_dot(const struct f8_dot *d)
{
    const float infinite = sum_of_infinite(d);
    if (infinite != 0) return infinite;
    float sum = 0, chunk = 0;
    for (int64_t i = 0; i < d->k; i += F8_DOT_STEP) {
        chunk = add_32(d, i, i + F8_DOT_STEP < d->k ? i + F8_DOT_STEP : d->k, chunk);
        if (d->promote && (i + F8_DOT_STEP) % d->promote == 0) sum += chunk, chunk = 0;
    }
    return d->promote ? sum + chunk : chunk;
}

double f8_dot_rms(int64_t products)
{
    static const struct {
        int64_t products;
        double rms;
    } simulated[] = {{128, 1.3e-4},  {256, 2.1e-4},   {512, 3.5e-4},   {1024, 5e-4},
                     {2048, 8.4e-4}, {4096, 1.16e-3}, {16384, 3.2e-3}, {32768, 4.5e-3}};
    int i = 0;
    while (i < 7 && simulated[i].products < products) i++;
    return simulated[i].rms;
}
