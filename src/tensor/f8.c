#include "tensor/f8.h"
#include <math.h>

float f8_decode(struct f8_format f, uint8_t code)
{
    if (!f8_is_finite(f, code)) {
        const bool infinite = f.max == f8_e5m2.max && (code & 0x7F) == 0x7C;
        return infinite ? (code & 0x80 ? -INFINITY : INFINITY) : NAN;
    }
    const struct f8_parts p = f8_split(f, code);
    const float v = ldexpf((float)p.significand, p.exponent - f.mantissa);
    return code == 0x80 ? -0.0f : v;
}
