#!/usr/bin/env python3
"""Makes the tiny quantized checkpoints of tests/data/quantized.

Random models with their weights rounded to a published format, stored as its packages store them, and the logits of
transformers in float32 for the weights that the packages decode: config.json, model.safetensors, golden.safetensors,
golden.json. Where a package's file is named below, its own code packs and decodes; else the NumPy formula beside it
follows the source that is cited.

    pip install torch transformers safetensors compressed-tensors bitsandbytes
    pip download --no-deps auto-gptq autoawq, and unpack both
    python3 tests/golden/make_quantized.py --auto-gptq DIR --autoawq DIR [--only NAME] [OUT]

The same versions give the same files: weights come from a seeded NumPy generator.
"""
import argparse
import importlib.metadata
import importlib.util
import json
import os

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

PROMPT_LENGTH = 24
GREEDY = 24

SMALL = dict(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
             num_key_value_heads=1, head_dim=32, max_position_embeddings=128, rms_norm_eps=1e-5, bos_token_id=0,
             eos_token_id=1, pad_token_id=2, tie_word_embeddings=True)
NARROW = dict(SMALL, intermediate_size=64)  # for formats of a byte an element
TINY = dict(NARROW, num_attention_heads=1)
WIDE = dict(NARROW, hidden_size=128)  # one group of 128


def load_file(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- formats: each function takes a matrix [out, in] and gives the module's tensors by suffix, and the decoded matrix

def grid(weight, group, bits, symmetric, rng, lowest_zero=0):
    """Scales and zero points [out, groups] of float16 values, by the range of each group."""
    out, cols = weight.shape
    group = cols if group < 0 else min(group, cols)
    parts = weight.reshape(out, cols // group, group)
    most = 2**bits - 1
    if symmetric:
        scale = np.abs(parts).max(-1) * 2 / most
        zero = np.full(scale.shape, 2**(bits - 1))
    else:
        low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
        scale = (high - low) / most
        zero = np.clip(np.round(-low / scale), lowest_zero, most)
    return scale.astype(np.float16).astype(np.float32), zero.astype(np.float32)


def gptq(package, bits, group, symmetric, act_order, second):
    def convert(name, weight, rng):
        out, cols = weight.shape
        width = cols if group < 0 else min(group, cols)
        layer = package.QuantLinear(bits, width, cols, out, bias=False, weight_dtype=torch.float32)
        order = np.arange(cols)
        if act_order:
            order = np.random.default_rng(7).permutation(cols)  # the same for weights of the same inputs
        g_idx = np.empty(cols, np.int32)
        g_idx[order] = np.arange(cols) // width
        # A zero point of 0 would be stored as -1, which auto-gptq spreads over the word.
        scale, zero = grid(weight[:, order], width, bits, symmetric, rng, lowest_zero=1)
        linear = torch.nn.Linear(cols, out, bias=False)
        codes = np.clip(np.round(weight[:, order] / np.repeat(scale, width, 1)) + np.repeat(zero, width, 1), 0,
                        2**bits - 1)
        rounded = np.empty_like(weight)
        rounded[:, order] = (codes - np.repeat(zero, width, 1)) * np.repeat(scale, width, 1)
        linear.weight.data = torch.tensor(rounded)
        layer.pack(linear, torch.tensor(scale), torch.tensor(zero), torch.tensor(g_idx))
        decoded = layer(torch.eye(cols)).T.contiguous()
        assert torch.equal(decoded, torch.tensor(rounded))
        zeros = layer.qzeros.clone()
        if second:
            ones = sum(1 << (bits * i) for i in range(32 // bits))
            zeros = torch.tensor((zeros.numpy().view(np.uint32) + np.uint32(ones)).view(np.int32))
        parts = {"qweight": layer.qweight, "qzeros": zeros, "scales": layer.scales.half(), "g_idx": layer.g_idx}
        if not act_order and not second:  # optional without act-order
            del parts["g_idx"]
        return parts, decoded

    config = dict(quant_method="gptq", bits=bits, group_size=group, sym=symmetric, desc_act=act_order,
                  checkpoint_format="gptq_v2" if second else "gptq", true_sequential=True, damp_percent=0.01)
    return config, convert


def gptq_dynamic(package):
    """Version 2 with other bits and groups for some modules, as gptqmodel's `dynamic` has them."""
    config, usual = gptq(package, 4, 64, False, True, True)
    _, gate = gptq(package, 8, 32, False, True, True)
    _, down = gptq(package, 8, -1, False, False, True)
    config["dynamic"] = {r"+:.*\.gate_proj": {"bits": 8, "group_size": 32},
                         r"+:.*\.down_proj": {"bits": 8, "group_size": -1, "desc_act": False}}

    def convert(name, weight, rng):
        return (gate if "gate" in name else down if "down" in name else usual)(name, weight, rng)

    return config, convert


def awq(package, group):
    """Packing: autoawq 0.2.9, awq/modules/linear/gemm.py, from_linear; decoding: its own dequantize_gemm."""
    def pack(rows):  # [rows, out] -> [rows, out / 8]
        words = np.zeros((rows.shape[0], rows.shape[1] // 8), np.uint32)
        for place, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            words |= rows[:, column::8].astype(np.uint32) << np.uint32(4 * place)
        return torch.tensor(words.view(np.int32))

    def convert(name, weight, rng):
        cols = weight.shape[1]
        width = min(group, cols)
        scale, zero = grid(weight, width, 4, False, rng)
        codes = np.clip(np.round(weight / np.repeat(scale, width, 1)) + np.repeat(zero, width, 1), 0, 15)
        parts = {"qweight": pack(codes.T), "qzeros": pack(zero.T), "scales": torch.tensor(scale.T.copy()).half()}
        decoded = package.dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"].float(), 4, width)
        return parts, decoded.T.contiguous()

    return dict(quant_method="awq", bits=4, group_size=group, zero_point=True, version="gemm",
                modules_to_not_convert=["lm_head"]), convert


def compressed(name, **arguments):
    """compressed-tensors: its compressor for the format NAME packs and decodes."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    activations = arguments.pop("activations", None)
    weights = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    compressor = BaseCompressor.get_value_from_registry(name)

    def ranges(weight):
        """Largest magnitude, least and largest value of each part that has a scale."""
        out, cols = weight.shape
        if weights.strategy == "tensor":
            parts, shape = weight.reshape(1, -1), (1,)
        elif weights.strategy == "channel":
            parts, shape = weight, (out, 1)
        elif weights.strategy == "block":
            rows, width = weights.block_structure
            whole = np.zeros((-(-out // rows) * rows, -(-cols // width) * width), np.float32)
            whole[:out, :cols] = weight
            blocks = whole.reshape(-1, rows, whole.shape[1] // width, width).swapaxes(1, 2)
            parts, shape = blocks.reshape(-1, rows * width), blocks.shape[:2]
        else:
            parts, shape = weight.reshape(-1, weights.group_size), (out, cols // weights.group_size)
        return [f(parts).reshape(shape) for f in (lambda p: np.abs(p).max(1), lambda p: np.minimum(p.min(1), 0),
                                                  lambda p: np.maximum(p.max(1), 0))]

    def convert(module, weight, rng):
        largest, low, high = ranges(weight)
        state = {"weight": torch.tensor(weight)}
        if weights.strategy == "tensor_group":
            state["weight_global_scale"] = torch.tensor([448 * 6 / np.abs(weight).max()], dtype=torch.float32)
            scale = torch.tensor(largest / 6 * state["weight_global_scale"].numpy())
            state["weight_scale"] = scale.to(torch.float8_e4m3fn).float()
        elif weights.type == "float":
            state["weight_scale"] = torch.tensor(largest / 448).to(torch.bfloat16).float()
        elif weights.symmetric:
            state["weight_scale"] = torch.tensor(largest / (2**weights.num_bits - 1) * 2).to(torch.bfloat16).float()
        else:
            scale = torch.tensor((high - low) / (2**weights.num_bits - 1)).to(torch.bfloat16).float()
            least = -2**(weights.num_bits - 1)
            zero = torch.clip(torch.round(torch.tensor(-low) / scale) + least, least, -least - 1)
            state.update(weight_scale=scale, weight_zero_point=zero.to(torch.int8))
        parts = compressor.compress(state, scheme)
        if weights.strategy == "tensor_group":  # decompress would round to bfloat16
            values = unpack_fp4_from_uint8(parts["weight_packed"], *weight.shape, dtype=torch.float32)
            decoded = dequantize(values, parts["weight_scale"].float(), args=weights, dtype=torch.float32,
                                 global_scale=parts["weight_global_scale"])
        else:
            decoded = compressor.decompress(parts, scheme)["weight"]
        assert decoded.dtype == torch.float32
        # As checkpoints have them; the values are those that were used.
        if parts["weight_scale"].dtype == torch.float32:
            parts["weight_scale"] = parts["weight_scale"].to(torch.bfloat16)
        if activations is not None and not activations.get("dynamic"):
            parts["input_scale"] = torch.tensor([0.01])
        return parts, decoded

    group = {"targets": ["Linear"], "weights": weights.model_dump(mode="json"), "input_activations": activations,
             "output_activations": None}
    return dict(quant_method="compressed-tensors", format=name, config_groups={"group_0": group}, ignore=["lm_head"],
                kv_cache_scheme=None, quantization_status="compressed", global_compression_ratio=None), convert


def fp8_blocks(rows, cols):
    """DeepSeek-V3, README_WEIGHTS.md: each block of codes times its weight_scale_inv. Its blocks are 128 x 128; smaller ones
    give a small matrix several."""
    def convert(module, weight, rng):
        height, width = -(-weight.shape[0] // rows), -(-weight.shape[1] // cols)
        scale = np.zeros((height, width), np.float32)
        for i in range(height):
            for j in range(width):
                scale[i, j] = np.abs(weight[i * rows:(i + 1) * rows, j * cols:(j + 1) * cols]).max() / 448
        each = torch.tensor(np.repeat(np.repeat(scale, rows, 0), cols, 1)[:weight.shape[0], :weight.shape[1]])
        codes = (torch.tensor(weight) / each).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale_inv": torch.tensor(scale)}, codes.float() * each

    return dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[rows, cols]), convert


def modelopt_nvfp4():
    """NVIDIA/Model-Optimizer, qtensor/nvfp4_tensor.py: code * weight_scale * weight_scale_2. Codes and their packing are
    those of compressed-tensors, whose factor is the reciprocal."""
    _, other = compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16)

    def convert(module, weight, rng):
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        parts, _ = other(module, weight, rng)
        factor = torch.tensor(np.abs(weight).max() / np.float32(448 * 6))
        values = unpack_fp4_from_uint8(parts["weight_packed"], *weight.shape).float()
        decoded = values * torch.repeat_interleave(parts["weight_scale"].float() * factor, 16, 1)
        return {"weight": parts["weight_packed"], "weight_scale": parts["weight_scale"], "weight_scale_2": factor,
                "input_scale": torch.tensor(0.01)}, decoded

    return dict(quant_method="modelopt", quant_algo="NVFP4", ignore=["lm_head"],
                producer={"name": "modelopt", "version": "0.39.0"}), convert


def mxfp4():
    """gpt-oss: transformers' integrations/mxfp4.py decodes."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)

    def convert(module, weight, rng):
        rows = weight.swapaxes(1, 2)  # [experts, out, in]
        groups = rows.reshape(*rows.shape[:2], -1, 32)
        exponent = np.ceil(np.log2(np.abs(groups).max(-1) / 6))
        scaled = groups / np.exp2(exponent)[..., None]
        codes = np.abs(np.abs(scaled)[..., None] - values).argmin(-1) + np.where(scaled < 0, 8, 0)
        blocks = torch.tensor((codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8))
        scales = torch.tensor((exponent + 127).astype(np.uint8))
        return {"_blocks": blocks, "_scales": scales}, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)

    return dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                             "model.embed_tokens", "lm_head"]), convert


def nf4(nested):
    """bitsandbytes, functional.py: quantize_4bit and dequantize_4bit."""
    def convert(module, weight, rng):
        import bitsandbytes.functional as functional
        codes, state = functional.quantize_4bit(torch.tensor(weight), blocksize=64, compress_statistics=nested,
                                                quant_type="nf4")
        parts = {"weight." + key: value for key, value in state.as_dict(packed=True).items()}
        return {"weight": codes, **parts}, functional.dequantize_4bit(codes, state)

    return dict(quant_method="bitsandbytes", load_in_4bit=True, load_in_8bit=False, _load_in_4bit=True,
                _load_in_8bit=False, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=nested,
                bnb_4bit_compute_dtype="bfloat16", bnb_4bit_quant_storage="uint8", llm_int8_threshold=6.0,
                llm_int8_skip_modules=None, llm_int8_has_fp16_weight=False,
                llm_int8_enable_fp32_cpu_offload=False), convert


def llm_int8():
    """bitsandbytes, functional.py: int8_vectorwise_quant and int8_vectorwise_dequant."""
    def convert(module, weight, rng):
        import bitsandbytes.functional as functional
        codes, scales, _ = functional.int8_vectorwise_quant(torch.tensor(weight).half())
        return {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}, \
            functional.int8_vectorwise_dequant(codes, scales)

    config, _ = nf4(False)
    return dict(config, load_in_4bit=False, _load_in_4bit=False, load_in_8bit=True, _load_in_8bit=True), convert


# ---- models

def llama(shape):
    return transformers.LlamaConfig(**shape, rope_parameters=dict(rope_type="default", rope_theta=10000.0))


def deepseek():
    """Latent attention and two dense layers: kv_b_proj is needed as rows and as columns."""
    shape = dict(NARROW, num_key_value_heads=2)
    for key in ("head_dim", "tie_word_embeddings"):
        shape.pop(key)
    return transformers.DeepseekV3Config(**shape, first_k_dense_replace=1, q_lora_rank=64, kv_lora_rank=64,
                                         qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=32,
                                         tie_word_embeddings=True, n_routed_experts=4, n_group=1, topk_group=1,
                                         num_experts_per_tok=2, moe_intermediate_size=32,
                                         rope_parameters=dict(rope_type="default", rope_theta=10000.0))


def gpt_oss():
    shape = dict(NARROW, num_local_experts=4, num_experts_per_tok=2, sliding_window=16, layer_types=["sliding_attention"])
    return transformers.GptOssConfig(**shape, rope_parameters=dict(rope_type="default", rope_theta=10000.0))


def random_state(model, seed):
    """Weights whose logits are neither flat nor saturated."""
    rng = np.random.default_rng(seed)
    state = {}
    for name, parameter in sorted(model.named_parameters()):
        shape = tuple(parameter.shape)
        if parameter.ndim == 1:
            values = 1.0 + 0.2 * rng.standard_normal(shape) if "norm" in name else 0.2 * rng.standard_normal(shape)
        else:
            values = rng.standard_normal(shape) * (0.2 if "embed" in name else 1.2 / np.sqrt(shape[-1]))
        state[name] = torch.tensor(values.astype(np.float32)).to(torch.bfloat16).float()
    return state


def run(config, state, ids, attention="eager", dtype=torch.float32):
    experts = {"experts_implementation": "eager"} if hasattr(config, "num_local_experts") else {}
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype, **experts)
    missing, surplus = model.load_state_dict({k: v.to(dtype) for k, v in state.items()}, strict=False)
    assert not surplus and set(missing) <= {"lm_head.weight"}, (missing, surplus)
    model.tie_weights()
    model.eval()
    with torch.no_grad():
        return model, model(torch.tensor([ids])).logits[0].double().numpy()


def greedy(model, ids):
    tokens, margins = [], []
    ids = list(ids)
    with torch.no_grad():
        for _ in range(GREEDY):
            logits = model(torch.tensor([ids])).logits[0, -1]
            top = torch.topk(logits, 2).values
            tokens.append(int(logits.argmax()))
            margins.append(float(top[0] - top[1]))
            ids.append(tokens[-1])
    return np.array(tokens, np.int32), np.array(margins, np.float32)


def make(out, name, config, quantization, convert, seed, quantized):
    rng = np.random.default_rng(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state = random_state(model, seed)
    file, decoded = {}, {}
    for key, value in state.items():
        if not quantized(key):
            file[key], decoded[key] = value.to(torch.bfloat16), value
            continue
        module = key.removesuffix(".weight")
        parts, matrix = convert(module, value.numpy(), rng)
        decoded[key] = matrix.float().contiguous()
        for suffix, tensor in parts.items():
            # NAME_blocks stands beside what NAME would be.
            file[module + ("" if suffix.startswith("_") else ".") + suffix] = tensor.contiguous()
    ids = np.random.default_rng(seed + 1).integers(3, config.vocab_size, PROMPT_LENGTH).astype(np.int32)
    model, logits = run(config, decoded, ids.tolist())
    noise = {"float32_float64": [float(np.abs(run(config, decoded, ids.tolist(), dtype=torch.float64)[1]
                                              - logits).max())]}
    if config.model_type != "gpt_oss":  # whose sinks have the eager form alone
        noise["eager_sdpa"] = [float(np.abs(run(config, decoded, ids.tolist(), "sdpa")[1] - logits).max())]
    tokens, margins = greedy(model, ids)
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    written = config.to_diff_dict()
    written["quantization_config"] = quantization
    written["architectures"] = [type(model).__name__]
    for key in ("transformers_version", "dtype"):
        written.pop(key, None)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(written, f, indent=1, sort_keys=True)
        f.write("\n")
    save_file(file, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    save_file({"p24.input_ids": torch.tensor(ids), "p24.logits": torch.tensor(logits.astype(np.float32)),
               "p24.greedy": torch.tensor(tokens), "p24.greedy_margin": torch.tensor(margins)},
              os.path.join(folder, "golden.safetensors"))
    versions = {package: importlib.metadata.version(package)
                for package in ("torch", "transformers", "compressed-tensors", "bitsandbytes")}
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump({"seed": seed, "noise": noise, "versions": versions}, f, indent=1)
        f.write("\n")
    size = sum(os.path.getsize(os.path.join(folder, each)) for each in os.listdir(folder))
    print(f"{name}: {size} bytes, noise {noise}, logits std {logits.std():.2f}, least margin {margins.min():.4f}")


def is_layer_matrix(key):
    return key.startswith("model.layers.") and key.endswith("proj.weight")


def is_expert_matrix(key):
    return key.endswith("experts.gate_up_proj") or key.endswith("experts.down_proj")


def is_layer_linear(key):
    return key.startswith("model.layers.") and key.endswith(".weight") and "norm" not in key


def checkpoints(arguments):
    quant_linear = load_file(os.path.join(arguments.auto_gptq, "auto_gptq/nn_modules/qlinear/qlinear_cuda.py"), "gptq")
    packing = load_file(os.path.join(arguments.autoawq, "awq/utils/packing_utils.py"), "awq")
    yield "gptq", llama(SMALL), *gptq(quant_linear, 4, 32, False, False, False), is_layer_matrix
    yield "gptq_act_order", llama(WIDE), *gptq(quant_linear, 4, 128, True, True, False), is_layer_matrix
    yield "gptq_v2", llama(SMALL), *gptq_dynamic(quant_linear), is_layer_matrix
    yield "gptq_int8", llama(NARROW), *gptq(quant_linear, 8, -1, True, False, False), is_layer_matrix
    yield "awq", llama(WIDE), *awq(packing, 128), is_layer_matrix
    integers = dict(type="int")
    yield "ct_int4_group", llama(NARROW), *compressed("pack-quantized", num_bits=4, strategy="group", group_size=32,
                                                      **integers), is_layer_matrix
    yield "ct_int4_channel_asym", llama(WIDE), *compressed("pack-quantized", num_bits=4, strategy="channel",
                                                           symmetric=False, **integers), is_layer_matrix
    yield "ct_int8_group_asym", llama(TINY), *compressed("pack-quantized", num_bits=8, strategy="group", group_size=32,
                                                         symmetric=False, **integers), is_layer_matrix
    dynamic = dict(num_bits=8, type="int", strategy="token", dynamic=True, symmetric=True)
    yield "ct_w8a8", llama(TINY), *compressed("int-quantized", num_bits=8, strategy="channel", activations=dynamic,
                                              **integers), is_layer_matrix
    yield "ct_fp8_channel", llama(dict(TINY, hidden_size=128)), *compressed("float-quantized", num_bits=8, type="float", strategy="channel",
                                                     activations=dict(dynamic, type="float")), is_layer_matrix
    static = dict(num_bits=8, type="float", strategy="tensor", dynamic=False, symmetric=True)
    yield "ct_fp8_tensor", llama(TINY), *compressed("float-quantized", num_bits=8, type="float", strategy="tensor",
                                                    activations=static), is_layer_matrix
    yield "ct_fp8_block", llama(TINY), *compressed("float-quantized", num_bits=8, type="float", strategy="block",
                                                   block_structure=[64, 32]), is_layer_matrix
    yield "ct_nvfp4", llama(NARROW), *compressed("nvfp4-pack-quantized", num_bits=4, type="float",
                                                 strategy="tensor_group", group_size=16), is_layer_matrix
    yield "fp8_block", deepseek(), *fp8_blocks(32, 64), is_layer_linear
    yield "modelopt_nvfp4", llama(NARROW), *modelopt_nvfp4(), is_layer_matrix
    yield "mxfp4", gpt_oss(), *mxfp4(), is_expert_matrix
    yield "bnb_nf4", llama(NARROW), *nf4(True), is_layer_matrix
    yield "bnb_int8", llama(TINY), *llm_int8(), is_layer_matrix


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--auto-gptq", required=True)
    parser.add_argument("--autoawq", required=True)
    parser.add_argument("--only", action="append")
    parser.add_argument("out", nargs="?", default=os.path.join(os.path.dirname(__file__), "../data/quantized"))
    arguments = parser.parse_args()
    for seed, (name, config, quantization, convert, quantized) in enumerate(checkpoints(arguments), start=100):
        if arguments.only and name not in arguments.only:
            continue
        make(arguments.out, name, config, quantization, convert, seed, quantized)


if __name__ == "__main__":
    main()
