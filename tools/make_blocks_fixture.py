#!/usr/bin/env python3
"""Writes tests/ops/blocks_reference.h: MXFP8 and NVFP4 codes by ml_dtypes' conversions (pip: ml_dtypes numpy).

Scales follow Transformer Engine's formulas, in float32: E8M0 of amax / 448 rounded up; E4M3 of amax / 6 over the
scale of the tensor (common/cast, custom_recipes/reference_nvfp4.py)."""
import re
import ml_dtypes, numpy as np

N = 96
f32 = np.float32
rng = np.random.default_rng(4)
size = np.repeat(np.exp2(-rng.integers(0, 12, N // 16)), 16)
x = (rng.standard_normal(N) * size).astype(ml_dtypes.bfloat16).astype(f32)
x[40] = 30 * np.abs(x).max()  # an outlier: E2M1's and E4M3's small codes occur beside it


def codes(v, dt):
    return np.asarray(v, f32).astype(dt).view(np.uint8)


def mx():
    out, scales = [], []
    for block in x.reshape(-1, 32):
        exponent = int(np.ceil(np.log2(np.abs(block).max().astype(np.float64) / 448)))
        scales.append(codes(2.0**exponent, ml_dtypes.float8_e8m0fnu)[()])
        out += list(codes(np.clip(block * f32(2.0**-exponent), -448, 448), ml_dtypes.float8_e4m3fn))
    return out, scales


def nv():
    out, scales = [], []
    s_enc = f32(448 * 6) / np.abs(x).max()
    for block in x.reshape(-1, 16):
        s = np.minimum(np.abs(block).max() * (s_enc * (f32(1) / f32(6))), f32(448)).astype(ml_dtypes.float8_e4m3fn)
        enc = np.minimum(f32(1) / (s.astype(f32) * (f32(1) / s_enc)), np.finfo(f32).max)
        scales.append(s.view(np.uint8)[()])
        c = codes(np.clip(block * enc, -6, 6), ml_dtypes.float4_e2m1fn)
        out += [int(a) | int(b) << 4 for a, b in c.reshape(-1, 2)]
    return out, scales


def row(values):
    return ", ".join(f"0x{int(v):02x}" for v in values)


lines = ["/* Written by tools/make_blocks_fixture.py (ml_dtypes %s). */" % ml_dtypes.__version__,
         "#ifndef INGOT_TESTS_OPS_BLOCKS_REFERENCE_H", "#define INGOT_TESTS_OPS_BLOCKS_REFERENCE_H",
         '#include "tensor/block_format.h"', "",
         "/* clang-format off */", "enum { BLOCKS_REFERENCE_N = %d, BLOCKS_REFERENCES = 2 };" % N,
         "static const float blocks_reference_x[BLOCKS_REFERENCE_N] = {"]
lines += ["    " + " ".join(re.sub(r"\.?0*p", "p", float(v).hex()) + "f," for v in x[i : i + 6]) for i in range(0, N, 6)]
lines += ["};", "static const struct blocks_reference {", "    enum block_format format;",
          "    uint8_t codes[BLOCKS_REFERENCE_N], scales[BLOCKS_REFERENCE_N / 16];",
          "} blocks_references[BLOCKS_REFERENCES] = {"]
for name, (c, s) in (("BLOCKS_MX", mx()), ("BLOCKS_NV", nv())):
    lines += ["    {%s, {" % name] + ["        " + row(c[i : i + 16]) + "," for i in range(0, len(c), 16)]
    lines += ["    }, {" + row(s) + "}},"]
lines += ["};", "/* clang-format on */", "#endif", ""]
open("tests/ops/blocks_reference.h", "w").write("\n".join(lines))
