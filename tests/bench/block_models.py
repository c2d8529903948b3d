#!/usr/bin/env python3
"""Makes models of about 200 M random weights in int4, one for each kind of block, whose speed `headrace bench` can tell apart.

    pip install torch transformers safetensors
    python3 tests/bench/block_models.py OUT [NAME ...]
    headrace bench -m OUT/NAME --prompt-tokens 512 --gen-tokens 32

Widths are those of models of a few billion weights, layers are few. Linear weights are compressed-tensors' `pack-quantized` with groups
of 128, others bfloat16. The numbers mean nothing.
"""
import json
import os
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
from reference_model import config_of  # noqa: E402
import transformers  # noqa: E402

SHARED = {"vocab_size": 32000, "max_position_embeddings": 32768, "hidden_size": 2048, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
          "tie_word_embeddings": False}
EXPERTS = {"moe_intermediate_size": 768, "num_experts_per_tok": 4, "norm_topk_prob": True}
LATENT = {"num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
          "qk_rope_head_dim": 64, "v_head_dim": 128}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
MODELS = {
    "dense": ("Qwen3ForCausalLM", {"model_type": "qwen3", "num_hidden_layers": 4, "intermediate_size": 6144, **HEADS}),
    "experts": ("Qwen3MoeForCausalLM", {"model_type": "qwen3_moe", "num_hidden_layers": 2, "num_experts": 32, "intermediate_size": 6144,
                                        "mlp_only_layers": [], **HEADS, **EXPERTS}),
    "latent": ("DeepseekV3ForCausalLM", {"model_type": "deepseek_v3", "num_hidden_layers": 4, "first_k_dense_replace": 4,
                                         "intermediate_size": 6144, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1,
                                         "topk_group": 1, **LATENT, **EXPERTS}),
    "delta_rule": ("Qwen3NextForCausalLM", {"model_type": "qwen3_next", "num_hidden_layers": 4, "intermediate_size": 6144,
                                            "mlp_only_layers": [0, 1, 2, 3], "layer_types": ["linear_attention"] * 4, "num_experts": 8,
                                            "shared_expert_intermediate_size": 768, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
                                            "linear_key_head_dim": 128, "linear_value_head_dim": 128, **HEADS, **EXPERTS}),
}
GROUP = 128
# A request needs one; nothing is encoded with it.
TOKENIZER = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
             "model": {"type": "BPE", "vocab": {f"<{i}>": i for i in range(SHARED["vocab_size"])}, "merges": []}}
QUANTIZATION = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                    "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}}}}


def is_linear(name, weight):
    return weight.dim() == 2 and not any(part in name for part in ("embed", "lm_head", "norm", "mlp.gate.weight", "conv1d", "in_proj_ba"))


def make(folder, architecture, settings):
    torch.manual_seed(1)
    model = getattr(transformers, architecture)(config_of({**SHARED, **settings})).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="100GB")
    weights = load_file(os.path.join(folder, "model.safetensors"))
    quantized = {}
    for name, weight in weights.items():
        if not is_linear(name, weight):
            quantized[name] = weight
            continue
        rows, cols = weight.shape
        base = name.removesuffix(".weight")
        quantized[base + ".weight_packed"] = torch.randint(-(2**31), 2**31 - 1, (rows, cols // 8), dtype=torch.int32)
        quantized[base + ".weight_scale"] = torch.full((rows, cols // GROUP), 0.25 / cols**0.5, dtype=torch.bfloat16)
        quantized[base + ".weight_shape"] = torch.tensor([rows, cols], dtype=torch.int64)
    save_file(quantized, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump(TOKENIZER, file)
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        config = json.load(file)
    with open(path, "w") as file:
        json.dump({**config, "quantization_config": QUANTIZATION}, file, indent=1)


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for name in sys.argv[2:] or MODELS:
        folder = os.path.join(sys.argv[1], name)
        shutil.rmtree(folder, ignore_errors=True)
        make(folder, *MODELS[name])
        print(folder)


if __name__ == "__main__":
    main()
