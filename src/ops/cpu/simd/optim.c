#include "ops/cpu/simd/simd.h"

void SIMD(simd_optim)(struct ops *o)
{
    (void)o;
}
