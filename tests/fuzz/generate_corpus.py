#!/usr/bin/env python3
"""Writes the seed corpora tests/fuzz/corpus/{gguf,safetensors,packed_file,model}: small good files that fuzzers start from.

A GGUF seed has one byte in front: where the fuzzer cuts it into two parts of a split model (0: one file).
The seeds of whole models are configs and headers of the golden models in HEADRACE_TEST_DATA; without it they stay as they are.
"""
import json
import os
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"
# GGML type number, elements and bytes of a block (lib/tensor/dtype.cpp).
TYPES = [
    (0, 1, 4), (1, 1, 2), (30, 1, 2), (28, 1, 8), (24, 1, 1), (25, 1, 2), (26, 1, 4), (27, 1, 8), (41, 128, 18),
    (42, 64, 18), (2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34), (9, 32, 36), (10, 256, 84),
    (11, 256, 110), (12, 256, 144), (13, 256, 176), (14, 256, 210), (15, 256, 292), (19, 256, 50), (29, 256, 56),
    (16, 256, 66), (17, 256, 74), (22, 256, 82), (18, 256, 98), (21, 256, 110), (20, 32, 18), (23, 256, 136),
    (34, 256, 54), (35, 256, 66), (39, 32, 17), (40, 64, 36),
]


# Golden models that together have every kind of block.
MODELS = ["bert", "cohere", "deepseek_v3", "deepseek_v32", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss", "kimi_linear",
          "lfm2_moe", "llama", "llava_clip", "mamba", "mamba2", "minimax", "qwen2_moe", "qwen3_5_vl", "t5", "whisper"]


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(keys, tensors, version=3, alignment=32):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys)
    body = b""
    for name, shape, (number, block, size) in tensors:
        count = 1
        for dimension in shape:
            count *= dimension
        data = bytes((37 * i + number) % 256 for i in range(count // block * size))
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, len(body))
        body += data + bytes(-len(data) % alignment)
    return out + bytes(-len(out) % alignment) + body


def key(name, number, data):
    return text(name) + struct.pack("<I", number) + data


def array(name, number, count, data):
    return key(name, 9, struct.pack("<IQ", number, count) + data)


def write(folder, name, data):
    path = CORPUS / folder
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(data)


def main():
    scalars = [
        key("u8", 0, b"\x07"), key("i8", 1, b"\xf9"), key("u16", 2, b"\x01\x02"), key("i16", 3, b"\x01\xff"),
        key("u32", 4, b"\x01\0\0\0"), key("i32", 5, b"\xff\xff\xff\xff"), key("f32", 6, struct.pack("<f", 0.5)),
        key("bool", 7, b"\x01"), key("string", 8, text("llama")), key("u64", 10, b"\xff" * 8),
        key("i64", 11, b"\xff" * 8), key("f64", 12, struct.pack("<d", 1e-5)),
    ]
    arrays = [
        array("strings", 8, 3, text("a") + text("") + text("bc")), array("i32s", 5, 2, b"\0" * 8),
        array("f32s", 6, 2, b"\0" * 8), array("bools", 7, 3, b"\0\1\0"), array("none", 10, 0, b""),
    ]
    write("gguf", "metadata", b"\0" + gguf(scalars + arrays, []))
    write("gguf", "version2", b"\0" + gguf(scalars[:1], [("t", [4], TYPES[0])], version=2))
    write("gguf", "alignment", b"\0" + gguf([key("general.alignment", 4, b"\x08\0\0\0")],
                                            [("a", [3], TYPES[0]), ("b", [5], TYPES[0])], alignment=8))
    write("gguf", "every_type",
          b"\0" + gguf([], [(f"t{t[0]}", [t[1], 2], t) for t in TYPES]))
    parts = [gguf([key("split.no", 2, struct.pack("<H", i)), key("split.count", 2, b"\x02\0")],
                  [(f"t{i}", [8], TYPES[0])]) for i in range(2)]
    assert len(parts[0]) == len(parts[1])
    write("gguf", "split", b"\x80" + parts[0] + parts[1])

    def safetensors(header, body):
        data = json.dumps(header, separators=(",", ":")).encode()
        return struct.pack("<Q", len(data)) + data + bytes(i % 256 for i in range(body))

    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    write("safetensors", "empty", safetensors({}, 0))
    write("safetensors", "scalar", safetensors({"s": entry("F32", [], 0, 4)}, 4))
    write("safetensors", "every_type", safetensors({
        "__metadata__": {"format": "pt"}, "f32": entry("F32", [2, 2], 0, 16), "f16": entry("F16", [3], 16, 22),
        "bf16": entry("BF16", [1, 1], 22, 24), "f64": entry("F64", [1], 24, 32), "i8": entry("I8", [4], 32, 36),
        "i16": entry("I16", [2], 36, 40), "i32": entry("I32", [2], 40, 48), "i64": entry("I64", [1], 48, 56),
        "none": entry("F32", [0, 7], 56, 56)}, 56))

    def packed(tensors, body):
        """To be sealed by the fuzzer, which the first byte asks for."""
        def name(value):
            return struct.pack("<I", len(value)) + value.encode()
        table = name("cpu/1") + b"".join(
            name(label) + struct.pack("<I5Q", dtype, rows, cols, offset, size, 0)
            for label, dtype, rows, cols, offset, size in tensors)
        head = b"HRPACKED" + struct.pack("<II5Q", 1, len(tensors), 1, 2, 0, len(table), 0) + bytes(8)
        return b"\x01" + head + table + bytes(body - len(head) - len(table))

    write("packed_file", "empty", packed([], 128))
    write("packed_file", "one", packed([("embed", 0, 2, 8, 192, 64)], 256))
    write("packed_file", "two", packed([("embed", 0, 2, 8, 192, 64), ("lm_head", 8, 4, 32, 256, 128)], 384))
    write("packed_file", "beyond", packed([("embed", 0, 2, 8, 128, 1 << 63)], 192))
    one = packed([("embed", 0, 2, 8, 128, 64)], 192)
    name = one.index(struct.pack("<I", 5) + b"embed")
    write("packed_file", "long_name", one[:name] + struct.pack("<I", 0xc0000009) + one[name + 4:])
    write("packed_file", "unsealed", b"\0" + packed([], 128)[1:])

    goldens = pathlib.Path(os.environ.get("HEADRACE_TEST_DATA", "")) / "goldens" / "models"
    for name in MODELS if goldens.is_dir() else []:
        config = json.loads((goldens / name / "config.json").read_text())
        with open(goldens / name / "model.safetensors", "rb") as file:
            header = file.read(struct.unpack("<Q", file.read(8))[0]).strip()
        write("model", name, json.dumps(config, separators=(",", ":")).encode() + b"\0" + header)


main()
