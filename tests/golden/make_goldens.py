#!/usr/bin/env python3
"""Makes the golden models that ship with the repository (tests/data/goldens).

Tiny random models of each family, with the logits of transformers in float32 (eager attention) for one prompt:
config.json, model.safetensors, golden.safetensors, golden.json; for llama, qwen3 and gemma3 also model.gguf.

    pip install torch transformers safetensors gguf
    python3 tests/golden/make_goldens.py [OUT]

The same versions give the same files: weights come from a seeded NumPy generator. Versions are in golden.json.
"""
import json
import os
import sys

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

PROMPT_LENGTH = 40  # longer than the window of 16
GREEDY = 24

SHAPE = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=256, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1, pad_token_id=2)


def configs():
    llama3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=32)
    yield "llama", transformers.LlamaConfig(**SHAPE, num_hidden_layers=2, head_dim=16, rope_parameters=llama3)
    yield "qwen2", transformers.Qwen2Config(**SHAPE, num_hidden_layers=2, use_sliding_window=True, sliding_window=16,
                                            max_window_layers=1, tie_word_embeddings=True)
    yield "qwen3", transformers.Qwen3Config(**SHAPE, num_hidden_layers=2, head_dim=16)
    # What GGUF cannot say is left at the values it implies: scale 1/sqrt(head_dim), every 6th layer global.
    yield "gemma3", transformers.Gemma3TextConfig(**SHAPE, num_hidden_layers=6, head_dim=16, query_pre_attn_scalar=16,
                                                  sliding_window=16)


def randomize(model, seed):
    """Weights whose logits are neither flat nor saturated; norm weights and biases away from their neutral values."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            shape = tuple(parameter.shape)
            if parameter.ndim == 1:
                centre = 0.0 if name.endswith("bias") or "gemma" in model.config.model_type else 1.0
                values = centre + 0.2 * rng.standard_normal(shape)
            else:
                values = rng.standard_normal(shape) * (0.45 if "embed" in name else 1.2 / np.sqrt(shape[1]))
            parameter.copy_(torch.tensor(values.astype(np.float32)))
    model.tie_weights()


def greedy(model, ids):
    tokens, margins = [], []
    ids = list(ids)
    for _ in range(GREEDY):
        logits = model(torch.tensor([ids])).logits[0, -1]
        top = torch.topk(logits, 2).values
        tokens.append(int(logits.argmax()))
        margins.append(float(top[0] - top[1]))
        ids.append(tokens[-1])
    return np.array(tokens, np.int32), np.array(margins, np.float32)


def run(config, state, ids, attention="eager", dtype=torch.float32):
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    model.load_state_dict({k: v.to(dtype) for k, v in state.items()})
    model.eval()
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    return model, out.logits[0].double().numpy(), out.hidden_states[-1][0].double().numpy()


def permute(weight, heads):
    """Rows of q and k in the order that GGUF's llama wants: pairs (i, i + half) become neighbours."""
    rows = weight.shape[0] // heads
    return weight.reshape(heads, 2, rows // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
}


def gguf_name(name, family):
    module, kind = name.rsplit(".", 1)
    if module in GGUF_NAMES:
        return f"{GGUF_NAMES[module]}.{kind}"
    _, _, layer, module = module.split(".", 3)
    table = dict(GGUF_NAMES)
    if family == "gemma3":
        table.update({"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                      "post_feedforward_layernorm": "post_ffw_norm"})
    else:
        table["post_attention_layernorm"] = "ffn_norm"
    return f"blk.{layer}.{table[module]}.{kind}"


def write_gguf(path, family, config, state, rope_factors):
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"] if family == "gemma3" else rope["rope_theta"])
    if family == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors)
    for name, value in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = value.numpy()
        if family == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            array = permute(array, heads)
        if family == "gemma3" and array.ndim == 1:
            array = array + np.float32(1)
        writer.add_tensor(gguf_name(name, family), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama3_factors(config, model):
    """What the scaling divides each frequency by."""
    rope = config.rope_parameters
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    return (plain / model.model.rotary_emb.inv_freq).numpy()


def main(out):
    torch.set_num_threads(1)
    for seed, (name, config) in enumerate(configs()):
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
        randomize(model, seed)
        model.eval()
        config.architectures = [type(model).__name__]
        state = {k: v.clone() for k, v in model.state_dict().items()}
        ids = np.random.default_rng(100 + seed).integers(3, config.vocab_size, PROMPT_LENGTH)
        model, logits, hidden = run(config, state, ids)
        noise = {"eager_sdpa": {"p40": float(np.abs(run(config, state, ids, "sdpa")[1] - logits).max())},
                 "f32_f64": {"p40": float(np.abs(run(config, state, ids, dtype=torch.float64)[1] - logits).max())}}
        with torch.no_grad():
            tokens, margins = greedy(model, ids)
        config.save_pretrained(folder)
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        save_file({k: v.numpy() for k, v in state.items() if k not in tied}, os.path.join(folder, "model.safetensors"),
                  metadata={"format": "pt"})
        save_file({"p40.input_ids": ids.astype(np.int32), "p40.logits": logits.astype(np.float32),
                   "p40.hidden": hidden.astype(np.float32), "p40.greedy": tokens, "p40.greedy_margin": margins},
                  os.path.join(folder, "golden.safetensors"))
        with open(os.path.join(folder, "golden.json"), "w") as file:
            json.dump({"name": name, "seed": seed, "noise": noise, "logits_std": round(float(logits.std()), 3),
                       "smallest_greedy_margin": float(margins.min()),
                       "versions": {"torch": torch.__version__, "transformers": transformers.__version__}}, file, indent=1)
            file.write("\n")
        if name != "qwen2":  # GGUF has no place for its window
            factors = llama3_factors(config, model) if name == "llama" else None
            write_gguf(os.path.join(folder, "model.gguf"), name, config, state, factors)
        print(name, "std", logits.std().round(3), "noise", noise, "margin", margins.min())


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "data", "goldens"))
