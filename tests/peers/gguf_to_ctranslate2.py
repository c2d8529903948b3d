#!/usr/bin/env python3
"""Makes a CTranslate2 model of a GGUF file, for compare.py: python3 gguf_to_ctranslate2.py MODEL.gguf FOLDER

Needs PyPI's ctranslate2, gguf and numpy. Architectures llama and qwen2 (without scaled rotary embeddings). The weights are decoded
to float32 and quantized anew to int8 by CTranslate2, a scale for each row; its tokens are named by their ids.
"""
import argparse

import ctranslate2
import gguf
import numpy as np
from ctranslate2.converters import utils
from ctranslate2.specs import common_spec, transformer_spec


class Source:
    """The fields and the tensors of a GGUF file."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.ggml.")}
        self.tokens = len(reader.fields["tokenizer.ggml.tokens"].data)
        self.eos = reader.fields["tokenizer.ggml.eos_token_id"].contents()
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = self.fields["general.architecture"]

    def number(self, name, default=None):
        return self.fields.get(f"{self.architecture}.{name}", default)

    def values(self, name):
        tensor = self.tensors[name]
        return np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)

    def linear(self, spec, name):
        spec.weight = self.values(f"{name}.weight")
        if f"{name}.bias" in self.tensors:
            spec.bias = self.values(f"{name}.bias")


def convert(source):
    if source.architecture not in ("llama", "qwen2"):
        raise SystemExit(f"architecture {source.architecture} is not converted")
    if source.number("rope.scaling.type", "none") != "none" or "rope_freqs.weight" in source.tensors:
        raise SystemExit("scaled rotary embeddings are not converted")
    heads = source.number("attention.head_count")
    kv_heads = source.number("attention.head_count_kv", heads)
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        source.number("block_count"), heads, activation=common_spec.Activation.SWISH, pre_norm=True, ffn_glu=True, rms_norm=True,
        rotary_dim=0, rotary_base=source.number("rope.freq_base", 10000.0), num_heads_kv=None if kv_heads == heads else kv_heads,
        # GGUF keeps llama's heads in the order of interleaved pairs.
        rotary_interleave=source.architecture == "llama")
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = source.values("token_embd.weight")
    decoder.layer_norm.gamma = source.values("output_norm.weight")
    source.linear(decoder.projection, "output" if "output.weight" in source.tensors else "token_embd")
    for index, layer in enumerate(decoder.layer):
        block = f"blk.{index}."
        layer.self_attention.layer_norm.gamma = source.values(f"{block}attn_norm.weight")
        layer.ffn.layer_norm.gamma = source.values(f"{block}ffn_norm.weight")
        parts = [common_spec.LinearSpec() for _ in range(3)]
        for part, name in zip(parts, ("attn_q", "attn_k", "attn_v")):
            source.linear(part, block + name)
        utils.fuse_linear(layer.self_attention.linear[0], parts)
        source.linear(layer.self_attention.linear[1], f"{block}attn_output")
        source.linear(layer.ffn.linear_0, f"{block}ffn_gate")
        source.linear(layer.ffn.linear_0_noact, f"{block}ffn_up")
        source.linear(layer.ffn.linear_1, f"{block}ffn_down")
    spec.register_vocabulary([str(token) for token in range(source.tokens)])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = str(source.eos)
    spec.config.layer_norm_epsilon = source.number("attention.layer_norm_rms_epsilon")
    return spec


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder")
    parser.add_argument("--quantization", default="int8", choices=("int8", "float32"))
    parser.add_argument("--force", action="store_true", help="write over an existing folder")
    args = parser.parse_args()
    converter = ctranslate2.converters.converter.Converter
    spec = convert(Source(args.model))

    class FromGguf(converter):
        def _load(self):
            return spec

    print(FromGguf().convert(args.folder, quantization=args.quantization, force=args.force))


if __name__ == "__main__":
    main()
