"""A low-rank adapter, in PEFT's form, of the model that tiny_text_model writes."""

import json
import os
import random
import struct

HIDDEN, HEADS, INTERMEDIATE = 32, 64, 48
MODULES = {"self_attn.q_proj": (HEADS, HIDDEN), "mlp.down_proj": (HIDDEN, INTERMEDIATE)}


def write(folder, seed=0, rank=3, **changes):
    """The folder; `changes` go into adapter_config.json."""
    os.makedirs(folder, exist_ok=True)
    draw = random.Random(seed)
    header, data = {}, b""
    for layer in range(2):
        for module, (rows, cols) in MODULES.items():
            for part, shape in (("lora_A", (rank, cols)), ("lora_B", (rows, rank))):
                values = [draw.uniform(-1, 1) for _ in range(shape[0] * shape[1])]
                raw = struct.pack(f"<{len(values)}f", *values)
                header[f"base_model.model.model.layers.{layer}.{module}.{part}.weight"] = {
                    "dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
                data += raw
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none", "target_modules": ["q_proj", "down_proj"]}
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({**config, **changes}, file)
    return folder
