#!/usr/bin/env python3
"""Writes tests/data/dequantize/TYPE.bin: random blocks of a type and the float32 values they decode to.

The oracle is PyPI's gguf (pip install gguf==0.19.0); the types it does not decode (Q1_0, Q2_0, Q8_1, Q8_K) are
decoded below with NumPy from docs/formats.md. A file: uint32 elements, uint32 bytes, the bytes, the float32 values,
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
PLAIN = {"F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}
# Where the float16 scales lie in a block: kept in a usual range in most blocks, so that values are not all huge.
HALVES = {
    "Q1_0": [0], "Q2_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q8_1": [0, 2],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ1_S": [0], "IQ2_XXS": [0],
    "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52],
    "TQ2_0": [64],
}


def random_blocks(name, count, rng):
    size = SIZES[name][1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in HALVES.get(name, []):
        usual = rng.normal(0, 0.02, count - 1).astype(np.float16).view(np.uint8).reshape(-1, 2)
        blocks[:-1, offset:offset + 2] = usual  # the last block keeps random bits
    if name == "Q8_K":
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


def decode(name, blocks):
    with np.errstate(all="ignore"):
        if name in ("Q1_0", "Q2_0", "Q8_1", "Q8_K") or name in PLAIN:
            return decode_by_hand(name, blocks)
        return quants.dequantize(blocks, T[name])


def main():
    FOLDER.mkdir(exist_ok=True)
    for index, name in enumerate(sorted(SIZES)):
        rng = np.random.default_rng(1000 + index)
        elements_per_block = SIZES[name][0]
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
