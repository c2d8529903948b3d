"""A tiny BERT with text: random weights, the same on every run, and the tokenizer of tiny_text_model."""

import json
import os
import random
import struct

import tiny_text_model

SIZE, VOCAB, POSITIONS, LAYERS, INNER = 32, 96, 64, 2, 48


def tensors(labels):
    prefix = "bert." if labels else ""
    shapes = {}

    def linear(name, rows, cols):
        shapes[name + ".weight"], shapes[name + ".bias"] = (rows, cols), (rows,)

    def norm(name):
        shapes[name + ".weight"], shapes[name + ".bias"] = (SIZE,), (SIZE,)

    for name, rows in (("word", VOCAB), ("position", POSITIONS), ("token_type", 2)):
        shapes[f"{prefix}embeddings.{name}_embeddings.weight"] = (rows, SIZE)
    norm(prefix + "embeddings.LayerNorm")
    for i in range(LAYERS):
        layer = f"{prefix}encoder.layer.{i}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            linear(layer + name, SIZE, SIZE)
        norm(layer + "attention.output.LayerNorm")
        linear(layer + "intermediate.dense", INNER, SIZE)
        linear(layer + "output.dense", SIZE, INNER)
        norm(layer + "output.LayerNorm")
    linear(prefix + "pooler.dense", SIZE, SIZE)
    if labels:
        linear("classifier", labels, SIZE)
    return shapes


def write(folder, labels=0, pooling=None):
    """Writes the model into a folder that exists; labels: of a classifier; pooling: as sentence-transformers names it."""
    draw = random.Random(1)
    header, data = {}, b""
    for name, shape in tensors(labels).items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        one = 1.0 if "LayerNorm.weight" in name else 0.0
        values = [one + draw.uniform(-0.3, 0.3) for _ in range(count)]
        bytes_ = struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    config = {
        "architectures": ["BertForSequenceClassification" if labels else "BertModel"], "model_type": "bert",
        "vocab_size": VOCAB, "hidden_size": SIZE, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": 2, "max_position_embeddings": POSITIONS, "type_vocab_size": 2,
    }
    files = {"config.json": config, "tokenizer.json": tiny_text_model.tokenizer_json()}
    if pooling:
        kinds = (("", "Transformer"), ("1_Pooling", "Pooling"))
        files["modules.json"] = [{"path": path, "type": "sentence_transformers.models." + kind} for path, kind in kinds]
        os.mkdir(os.path.join(folder, "1_Pooling"))
        files["1_Pooling/config.json"] = {"pooling_mode_" + pooling: True}
    for name, content in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)
    return folder
