#!/usr/bin/env python3
"""Writes tests/data/dequantize/TYPE.bin: random blocks of a type and the float32 values they decode to.

The oracle is PyPI's gguf (pip install gguf==0.19.0); the types it does not decode (Q1_0, Q2_0, Q8_1, Q8_K, and those of
quantized checkpoints) are decoded below with NumPy from docs/formats.md. A file: uint32 elements, uint32 bytes, the bytes, the float32 values,
little-endian.
"""
import pathlib
import struct

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

FOLDER = pathlib.Path(__file__).parent / "dequantize"
SIZES = {t.name: GGML_QUANT_SIZES[t] for t in T} | {"Q2_0": (64, 18)}
SIZES["Q8_1"] = (32, 36)  # gguf 0.19 still has the 40 bytes of the time when d and s were float32
PLAIN = {"F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64, "U8": np.uint8}
# Of quantized checkpoints: a float32 scale comes first.
GROUPS = {"INT4_G32": (32, 21), "INT4_G128": (128, 69), "INT8_G32": (32, 38), "INT8_G128": (128, 134),
          "FP8_G32": (32, 36), "FP8_G128": (128, 132), "NF4_G64": (64, 36), "NVFP4_G64": (64, 40)}
# Where the float16 scales lie in a block: kept in a usual range in most blocks, so that values are not all huge.
HALVES = {
    "Q1_0": [0], "Q2_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q8_1": [0, 2],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ1_S": [0], "IQ2_XXS": [0],
    "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52],
    "TQ2_0": [64],
}


def sizes(name):
    return SIZES.get(name) or GROUPS.get(name, (1, 1))


def random_blocks(name, count, rng):
    size = sizes(name)[1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in HALVES.get(name, []):
        usual = rng.normal(0, 0.02, count - 1).astype(np.float16).view(np.uint8).reshape(-1, 2)
        blocks[:-1, offset:offset + 2] = usual  # the last block keeps random bits
    if name == "Q8_K" or name in GROUPS:
        blocks[:, :4] = rng.normal(0, 0.02, count).astype(np.float32).view(np.uint8).reshape(-1, 4)
    return blocks


def decode_by_hand(name, blocks):
    if name in PLAIN:
        return blocks.reshape(-1).view(PLAIN[name]).astype(np.float32)
    if name == "Q8_K":
        return blocks[:, :4].copy().view(np.float32) * blocks[:, 4:260].copy().view(np.int8).astype(np.float32)
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if name == "Q8_1":
        return d * blocks[:, 4:].copy().view(np.int8).astype(np.float32)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.int32)
    if name == "Q1_0":
        return np.where(bits == 1, d, -d)
    assert name == "Q2_0"
    return d * (bits[:, 0::2] + 2 * bits[:, 1::2] - 1).astype(np.float32)


def e4m3(codes):
    """Sign, four bits of exponent with bias 7, three of mantissa; the largest magnitude is NaN."""
    magnitude = codes.astype(np.int32) & 127
    exponent, mantissa = magnitude >> 3, magnitude & 7
    value = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7))
    value = np.where(magnitude == 127, np.nan, value)
    return np.where(codes >= 128, -value, value).astype(np.float32)


# Quantiles of the normal distribution: QLoRA (arXiv 2305.14314), appendix E.
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                0.7229568362236023, 1.0], np.float32)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def halves(codes, run):
    """Nibbles whose byte j holds element j (low) and j + run / 2 (high) of each run."""
    runs = codes.reshape(len(codes), -1, run // 2)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(len(codes), -1)


def decode_group(name, blocks):
    d = blocks[:, :4].copy().view(np.float32)
    if name.startswith("INT4"):
        return d * (halves(blocks[:, 5:], 32).astype(np.int32) - blocks[:, 4:5]).astype(np.float32)
    if name.startswith("INT8"):
        zero = blocks[:, 4:6].copy().view(np.int16).astype(np.int32)
        return d * (blocks[:, 6:].copy().view(np.int8) - zero).astype(np.float32)
    if name.startswith("FP8"):
        return d * e4m3(blocks[:, 4:])
    if name == "NF4_G64":
        return d * NF4[halves(blocks[:, 4:], 64)]
    scales = np.where((blocks[:, 4:8] & 127) == 127, np.float32(0), e4m3(blocks[:, 4:8] & 127))
    scales = np.where(d < 0, scales / -d, scales * d)
    return np.repeat(scales, 16, 1) * E2M1[halves(blocks[:, 8:], 16)]


def decode(name, blocks):
    with np.errstate(all="ignore"):
        if name in GROUPS:
            return decode_group(name, blocks)
        if name == "F8_E4M3":
            return e4m3(blocks)
        if name in ("Q1_0", "Q2_0", "Q8_1", "Q8_K") or name in PLAIN:
            return decode_by_hand(name, blocks)
        return quants.dequantize(blocks, T[name])


def main():
    FOLDER.mkdir(exist_ok=True)
    # The first ones' seeds stay what they were.
    for index, name in enumerate([*sorted(SIZES), *GROUPS, "U8", "F8_E4M3"]):
        rng = np.random.default_rng(1000 + index)
        elements_per_block = sizes(name)[0]
        count = max(3, 512 // elements_per_block)
        if elements_per_block == 1:
            count = 128
        blocks = random_blocks(name, count, rng)
        values = np.ascontiguousarray(decode(name, blocks).reshape(-1), dtype=np.float32)
        assert len(values) == count * elements_per_block, (name, len(values))
        data = struct.pack("<II", len(values), blocks.size) + blocks.tobytes() + values.tobytes()
        (FOLDER / f"{name}.bin").write_bytes(data)


if __name__ == "__main__":
    main()
