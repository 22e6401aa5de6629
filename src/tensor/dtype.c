#include "tensor/dtype.h"
#include "base/status.h"
#include "tensor/f8.h"
#include <math.h>

size_t dtype_bytes(dtype dt)
{
    static const size_t bytes[] = {
#define X(name, b, text) [DTYPE_##name] = b,
        DTYPE_LIST(X)
#undef X
    };
    CHECK((unsigned)dt < DTYPE_COUNT, "dtype %d", (int)dt);
    return bytes[dt];
}

const char *dtype_name(dtype dt)
{
    static const char *const names[] = {
#define X(name, b, text) [DTYPE_##name] = text,
        DTYPE_LIST(X)
#undef X
    };
    CHECK((unsigned)dt < DTYPE_COUNT, "dtype %d", (int)dt);
    return names[dt];
}

int dtype_from_name(const char *name)
{
    for (int dt = 0; dt < DTYPE_COUNT; dt++)
        if (strcmp(name, dtype_name((dtype)dt)) == 0) return dt;
    return -1;
}

uint16_t f16_from_f32(float f)
{
    const uint16_t sign = signbit(f) ? 0x8000 : 0;
    const float v = fabsf(f);
    if (isnan(f)) return (uint16_t)(sign | 0x7e00);
    if (v == 0) return sign;
    if (v >= 65520) return (uint16_t)(sign | 0x7c00);
    int exponent;
    frexpf(v, &exponent);                                  /* v < 2^exponent */
    const int step = exponent < -13 ? -24 : exponent - 11; /* of the last bit, as a power of two */
    const int units = (int)nearbyintf(ldexpf(v, -step));
    return (uint16_t)(sign | (step == -24 ? units : ((step + 24) << 10) + units));
}

float f16_to_f32(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float v = exponent == 31 ? (mantissa ? NAN : INFINITY)
              : exponent     ? ldexpf((float)(1024 + mantissa), exponent - 25)
                             : ldexpf((float)mantissa, -24);
    return h & 0x8000 ? -v : v;
}

double dtype_load(const void *p, int64_t i, dtype dt)
{
    switch (dt) {
    case DTYPE_F64: return ((const double *)p)[i];
    case DTYPE_F32: return (double)((const float *)p)[i];
    case DTYPE_BF16: return (double)bf16_to_f32(((const bf16 *)p)[i]);
    case DTYPE_F16: return (double)f16_to_f32(((const uint16_t *)p)[i]);
    case DTYPE_F8_E4M3: return (double)f8_decode(f8_e4m3, ((const uint8_t *)p)[i]);
    case DTYPE_F8_E5M2: return (double)f8_decode(f8_e5m2, ((const uint8_t *)p)[i]);
    default: CHECK(0, "%s holds no real numbers", dtype_name(dt));
    }
}

void dtype_store(void *p, int64_t i, dtype dt, double v)
{
    switch (dt) {
    case DTYPE_F64: ((double *)p)[i] = v; return;
    case DTYPE_F32: ((float *)p)[i] = (float)v; return;
    case DTYPE_BF16: ((bf16 *)p)[i] = bf16_from_f32((float)v); return;
    case DTYPE_F8_E4M3: ((uint8_t *)p)[i] = f8_encode(f8_e4m3, (float)v); return;
    case DTYPE_F8_E5M2: ((uint8_t *)p)[i] = f8_encode(f8_e5m2, (float)v); return;
    default: CHECK(0, "cannot store real numbers as %s", dtype_name(dt));
    }
}
