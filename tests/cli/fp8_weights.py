"""Weights in FP8 with scales for blocks, decoded by the format's definition alone: fp8_weights.py FP8_DIR FP32_DIR BACK_DIR

FP8_DIR: an export with --dtype fp8; FP32_DIR: of the same model in fp32; BACK_DIR: FP8_DIR imported and exported in fp32. Every code is the nearest
one to its weight; what ingot reads back is code x scale, rounded to fp32."""
import json
import struct
import sys

BLOCK = 128


def read(directory):
    with open(directory + "/model.safetensors", "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + size + v["data_offsets"][0] : 8 + size + v["data_offsets"][1]]) for k, v in header.items()}


def e4m3(code):
    sign, exponent, mantissa = -1 if code & 128 else 1, code >> 3 & 15, code & 7
    assert code & 127 != 127, "NaN"
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


VALUES = [e4m3(c) if c & 127 != 127 else None for c in range(256)]


def floats(tensor):
    dtype, shape, data = tensor
    if dtype == "F32":
        return struct.unpack("<%df" % (len(data) // 4), data)
    assert dtype == "BF16", dtype
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


codes, exact, back = (read(d) for d in sys.argv[1:4])
config = json.load(open(sys.argv[1] + "/config.json"))["quantization_config"]
assert config["quant_method"] == "fp8" and config["weight_block_size"] == [BLOCK, BLOCK], config
kept = {name + ".weight" for name in config["modules_to_not_convert"]}
seen = 0
for name, (dtype, shape, data) in codes.items():
    if name.endswith("_scale_inv"):
        assert codes[name[: -len("_scale_inv")]][0] == "F8_E4M3", name
        continue
    want, again = floats(exact[name]), floats(back[name])
    if dtype != "F8_E4M3":
        assert name in kept or "norm" in name or "embed" in name, name + " is neither in codes nor in modules_to_not_convert"
        assert list(again) == list(floats((dtype, shape, data))), name
        continue
    assert name not in kept, name
    seen += 1
    rows, cols = shape
    wide = -(-cols // BLOCK)
    scale_type, scale_shape, _ = codes[name + "_scale_inv"]
    assert (scale_type, scale_shape) == ("F32", [-(-rows // BLOCK), wide]), name
    scales = floats(codes[name + "_scale_inv"])
    top = [0] * len(scales)
    for i, code in enumerate(data):
        block = i // cols // BLOCK * wide + i % cols // BLOCK
        value, scaled = VALUES[code], want[i] / scales[block]
        top[block] = max(top[block], abs(value))
        near = 2.0**-4 * max(abs(scaled), 2.0**-6) * (1 + 1e-6)  # half a step: 3 bits of mantissa, and subnormals below 2^-6
        assert abs(value - scaled) <= near, (name, i, value, scaled)
        assert again[i] == f32(value * scales[block]), (name, i, again[i])
    assert all(t == 448 for t in top), name + ": a block without the largest code"
assert seen > 0
print(seen, "matrices")
