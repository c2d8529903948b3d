#!/usr/bin/env python3
"""Writes tests/data/adapters: low-rank adapters with the logits that peft gives with them.

    pip install torch transformers peft safetensors numpy
    python3 tests/golden/make_adapters.py tests/data/adapters

Of each folder adapter_config.json and adapter_model.safetensors, and golden.safetensors: input_ids [T], logits [T, vocab] of the
base alone and adapted [T, vocab]. llama and qwen3 are of tests/data/goldens, and peft wrote their adapters. The folder of a
mixture of experts holds its model too; its adapter names experts one by one, as peft did before transformers 5, which peft
converts when it reads it.
"""
import json
import os
import sys

import numpy as np
import peft
import torch
import transformers
from reference_model import Reference, config_of
from safetensors.torch import save_file

SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "goldens")
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DENSE = {"llama": dict(r=4, lora_alpha=6, target_modules=LINEAR, use_rslora=True, rank_pattern={"v_proj": 3},
                       alpha_pattern={"down_proj": 9}),
         "qwen3": dict(r=3, lora_alpha=5, target_modules=["q_proj", "o_proj", "up_proj"])}
MIXTURE = dict(model_type="mixtral", vocab_size=64, hidden_size=24, intermediate_size=20, num_hidden_layers=2,
               num_attention_heads=2, num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2,
               max_position_embeddings=64, sliding_window=None)
LENGTH = 24


def logits_of(model, ids):
    with torch.no_grad():
        return model(ids, use_cache=False).logits[0]


def write_golden(folder, ids, base, adapted):
    assert float((base - adapted).abs().max()) > 0.1
    save_file({"input_ids": ids[0].to(torch.int32), "logits": base.contiguous(), "adapted": adapted.contiguous()},
              os.path.join(folder, "golden.safetensors"))
    print(folder, "moved by", float((base - adapted).abs().max()))


def write_dense(folder, name, settings):
    path = os.path.join(SHIPPED, name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(3, model.config.vocab_size, (1, LENGTH))
    base = logits_of(model, ids)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**settings)).eval()
    for key, value in wrapped.named_parameters():
        if "lora_" in key:
            value.data = 0.5 * torch.randn_like(value) / value.shape[-1] ** 0.5
    adapted = logits_of(wrapped, ids)
    wrapped.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as file:
        config = json.load(file)
    config["base_model_name_or_path"] = name
    with open(path, "w") as file:
        json.dump(config, file, indent=1)
        file.write("\n")
    write_golden(folder, ids, base, adapted)


def write_mixture(folder):
    reference = Reference(config_of(MIXTURE), None, 4)
    reference.save(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                              experts_implementation="eager").eval()
    ids = torch.randint(3, MIXTURE["vocab_size"], (1, LENGTH))
    base = logits_of(model, ids)
    hidden, wide = MIXTURE["hidden_size"], MIXTURE["intermediate_size"]
    tensors = {}
    for layer in range(MIXTURE["num_hidden_layers"]):
        for expert in range(MIXTURE["num_local_experts"]):
            for part, inputs, outputs in (("w1", hidden, wide), ("w3", hidden, wide), ("w2", wide, hidden)):
                name = f"base_model.model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}"
                tensors[f"{name}.lora_A.weight"] = 0.5 * torch.randn(2, inputs) / inputs ** 0.5
                tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, 2) / 2 ** 0.5
    save_file(tensors, os.path.join(folder, "adapter_model.safetensors"), metadata={"format": "pt"})
    about = dict(peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path="mixtral", r=2, lora_alpha=3,
                 lora_dropout=0.0, bias="none", target_modules=["w1", "w2", "w3"])
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump(about, file, indent=1)
        file.write("\n")
    write_golden(folder, ids, base, logits_of(peft.PeftModel.from_pretrained(model, folder).eval(), ids))


def main():
    out = sys.argv[1]
    torch.manual_seed(0)
    for name, settings in DENSE.items():
        write_dense(os.path.join(out, name), name, settings)
    write_mixture(os.path.join(out, "mixtral"))


if __name__ == "__main__":
    main()
