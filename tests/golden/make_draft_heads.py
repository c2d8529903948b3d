#!/usr/bin/env python3
"""Tiny models with heads that predict further ahead, and what a plain reading of their published form makes of them:

    pip install torch transformers safetensors numpy
    python3 tests/golden/make_draft_heads.py tests/data/draft_heads

Multi-token prediction as DeepSeek-V3 describes it (arXiv 2412.19437, section 2.2), a head of depth 1. Row t has the model's last
hidden state h[t], behind its final norm, and token t + 1:

    x = fuse([norm_e(embedding(token[t + 1])), norm_h(h[t])])
    y = decoder layer of the model's own kind (x)
    guess at token t + 2: output matrix (norm(y))

DeepSeek-V3 and GLM-4.5 name its tensors model.layers.N.{enorm,hnorm,eh_proj,shared_head.norm} beside those of a decoder layer, N being
the number of the model's layers; Qwen3-Next names them mtp.{pre_fc_norm_embedding,pre_fc_norm_hidden,fc,norm} and mtp.layers.0. Behind
its own guess a head goes on with its own row in place of h: y in the former, norm(y) in the latter.

EAGLE-3 (arXiv 2503.01840) projects three hidden states of a row, those that enter layers 2, L / 2 and L - 3:

    x = fc([low, middle, high])
    x = x + attention([norm_e(embedding(token[t + 1])), norm_h(x)]), of a Llama layer whose q, k and v are twice as wide
    x = x + feed_forward(norm(x))
    guess at token t + 2: output matrix (final norm(x)), its row i standing for token i + d2t[i]

Behind its own guess x takes the projection's place. eagle3 has the names of SafeAILab's files; eagle3_speculators those of speculators,
with an embedding of its own, and norm_h(x) in place of x in the first sum. Both are of the model in eagle3_target, and so are:

EAGLE-1 (arXiv 2401.15077; EAGLE-2 builds other trees with the same heads), with the names of SafeAILab's files. h[t] is the model's last
hidden state, behind its final norm:

    x = fc([embedding(token[t + 1]), h[t]]) + b
    x = decoder layer of the Llama kind (x), without a norm in front of its attention
    guess at token t + 2: the model's output matrix (x), which is no norm behind; then x takes the place of h

Medusa (arXiv 2401.10774). Head i, from h[t] alone, guesses token t + 2 + i:

    x = h[t];  x = x + silu(W x + b) for each block;  its own output matrix (x)

medusa has the names of FasterDecoding's files (in safetensors, with two blocks), medusa_vllm those of vLLM's, without b. medusa_truncated
has them too, with one output matrix for all heads (original_lm_head), whose row i stands for token token_map[i]; the other tokens' logits are
minus infinity.

DFlash (z-lab/dflash), here with two layers of the Qwen3 kind and blocks of six tokens. Of the rows before the block

    c = norm_h(fc([hidden states behind layers 1, 3 and 5])), whose projections each layer has as keys and values, q and k normed by head

and of the block, the last token and masks in the model's embedding, each row at its position behind those:

    x = x + attention(norm(x)), which sees all c and all of the block's own norm(x);  x = x + feed_forward(norm(x))
    guess at the token of the row's own position, but for the first: the model's output matrix (final norm(x))

Each folder has config.json and model.safetensors, and draft.safetensors:
    input_ids [T], features [T - 1, hidden_size] (h, or the projection), logits [T - 1, vocab_size], next [T - 1, hidden_size] (what follows h),
    draft_ids [4] and draft_margin [4]: greedy guesses behind the last row, each from the one before it, and top1 - top2
        of Medusa logits [heads, T - 1, vocab_size], no `next`, and one guess and margin of each head, of the last row
        of DFlash logits [block - 1, vocab_size], no `next`, and as many guesses and margins, of the block that token T - 1 begins
    noise [1]: the largest difference of these values when all is computed in float64
"""
import json
import os
import sys

import numpy as np
import torch
import transformers
from reference_model import randomize
from safetensors.torch import save_file

LENGTH, DRAFTS, SEED = 24, 4, 11
SHAPE = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_attention_heads=2, max_position_embeddings=256,
             rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1, pad_token_id=2, tie_word_embeddings=False)
EXPERTS = dict(moe_intermediate_size=8, num_experts_per_tok=2, norm_topk_prob=True)


def configs():
    yield "deepseek_v3", transformers.DeepseekV3Config(
        **SHAPE, **EXPERTS, num_hidden_layers=2, num_key_value_heads=2, first_k_dense_replace=1, n_routed_experts=4, n_group=2,
        topk_group=1, n_shared_experts=1, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8)
    yield "glm4_moe", transformers.Glm4MoeConfig(
        **SHAPE, **EXPERTS, num_hidden_layers=2, num_key_value_heads=1, head_dim=16, first_k_dense_replace=1, n_routed_experts=4,
        n_group=1, topk_group=1, n_shared_experts=1, use_qk_norm=True, attention_bias=True)
    yield "qwen3_next", transformers.Qwen3NextConfig(
        **SHAPE, **EXPERTS, num_hidden_layers=2, num_key_value_heads=1, head_dim=16, num_experts=4,
        shared_expert_intermediate_size=8, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=1,
        linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class AheadLayer:
    def __init__(self, family, config):
        self.config, self.qwen = config, family == "qwen3_next"
        longer = type(config)(**{**config.to_dict(), "num_hidden_layers": config.num_hidden_layers + 1,
                                 **({"layer_types": config.layer_types + ["full_attention"]} if self.qwen else {})})
        torch.manual_seed(SEED)
        self.ends = transformers.AutoModelForCausalLM.from_config(
            longer, attn_implementation="eager", experts_implementation="eager").eval()
        randomize(self.ends, SEED)
        self.layer = self.ends.model.layers[-1]
        self.rotary = self.ends.model.rotary_emb
        noise = torch.Generator().manual_seed(SEED + 1)
        size = config.hidden_size
        self.fuse = torch.randn(size, 2 * size, generator=noise) / (2 * size) ** 0.5
        # As they stand in the file: Qwen3-Next's norms multiply by one more.
        offset = 0.0 if self.qwen else 1.0
        self.norms = [offset + 0.2 * torch.randn(size, generator=noise) for _ in range(3)]

    def norm(self, x, which):
        return rms_norm(x, self.norms[which] + (1.0 if self.qwen else 0.0), self.config.rms_norm_eps)

    def rows(self, tokens, features):
        """y of every row: tokens [N] (those that follow), features [N, hidden_size]."""
        embedded = self.ends.model.embed_tokens(tokens)
        x = torch.cat([self.norm(embedded, 0), self.norm(features, 1)], -1) @ self.fuse.T
        count = len(tokens)
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), float("-inf"), dtype=x.dtype).triu(1)[None, None]
        out = self.layer(x[None], attention_mask=mask, position_ids=positions,
                         position_embeddings=self.rotary(x[None], positions))
        return (out[0] if isinstance(out, tuple) else out)[0]

    def logits_and_next(self, y):
        normed = self.norm(y, 2)
        return self.ends.lm_head(normed), normed if self.qwen else y

    def tensors(self, layers):
        out = {}
        old = f"model.layers.{layers}."
        for name, value in self.ends.state_dict().items():
            if name.startswith(old):
                name = ("mtp.layers.0." if self.qwen else old) + name[len(old):]
            out[name] = value.clone().contiguous()
        names = (["mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm", "mtp.fc"] if self.qwen else
                 [old + name for name in ("enorm", "hnorm", "shared_head.norm", "eh_proj")])
        for name, value in zip(names, [*self.norms, self.fuse]):
            out[name + ".weight"] = value.contiguous()
        if not self.qwen:  # published files repeat what both share
            out[old + "embed_tokens.weight"] = out["model.embed_tokens.weight"].clone()
            out[old + "shared_head.head.weight"] = out["lm_head.weight"].clone()
        return out


def split_experts(tensors):
    """Tensors of each expert, as on the hub, where transformers holds all of a layer in one."""
    out = {}
    for name, value in tensors.items():
        if ".experts.gate_up_proj" in name:
            base = name.split("experts.")[0]
            for e, both in enumerate(value):
                gate, up = both.chunk(2)
                out[f"{base}experts.{e}.gate_proj.weight"] = gate.contiguous()
                out[f"{base}experts.{e}.up_proj.weight"] = up.contiguous()
        elif ".experts.down_proj" in name:
            base = name.split("experts.")[0]
            for e, down in enumerate(value):
                out[f"{base}experts.{e}.down_proj.weight"] = down.contiguous()
        else:
            out[name] = value
    return out


def llama_attention(inputs, weight_of, rotary):
    """Of inputs [N, width], with heads of 8 values of which one of keys serves all of queries."""
    count = len(inputs)

    def heads(name):
        return (inputs @ weight_of(f"self_attn.{name}_proj").T).view(1, count, -1, 8).transpose(1, 2)

    q, k, v = heads("q"), heads("k"), heads("v")
    cos, sin = rotary(inputs, torch.arange(count)[None])
    q, k = transformers.models.llama.modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
    scores = q @ k.transpose(2, 3) / 8**0.5
    scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(count, -1) @ weight_of("self_attn.o_proj").T


def gated_feed_forward(inputs, weight_of):
    gate = torch.nn.functional.silu(inputs @ weight_of("mlp.gate_proj").T)
    return (gate * (inputs @ weight_of("mlp.up_proj").T)) @ weight_of("mlp.down_proj").T


class Eagle3Head:
    """x of every row, from tokens [N] (those that follow) and features [N, hidden_size]."""

    SIZES = dict(hidden_size=24, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    AHEAD = 40  # tokens that it can guess

    def __init__(self, target, speculators):
        self.target, self.speculators = target, speculators
        config = target.config
        self.layers = [2, config.num_hidden_layers // 2, config.num_hidden_layers - 3]
        self.config = transformers.LlamaConfig(**self.SIZES, vocab_size=config.vocab_size, max_position_embeddings=256,
                                               rms_norm_eps=1e-5, num_hidden_layers=1, rope_theta=10000.0)
        self.rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(self.config)
        noise = torch.Generator().manual_seed(SEED + (3 if speculators else 2))
        size, wide, heads = 24, 48, 16

        def matrix(rows, columns):
            return torch.randn(rows, columns, generator=noise) * (1.2 / columns**0.5)

        def vector():
            return 1 + 0.2 * torch.randn(size, generator=noise)

        layer = "layers.0." if speculators else "midlayer."
        self.w = {"fc.weight": matrix(size, 3 * config.hidden_size)}
        for name, rows, columns in (("self_attn.q_proj", heads, wide), ("self_attn.k_proj", heads // 2, wide),
                                    ("self_attn.v_proj", heads // 2, wide), ("self_attn.o_proj", size, heads),
                                    ("mlp.gate_proj", 32, size), ("mlp.up_proj", 32, size), ("mlp.down_proj", size, 32)):
            self.w[f"{layer}{name}.weight"] = matrix(rows, columns)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            self.w[f"{layer}{name}.weight"] = vector()
        self.w["norm.weight"] = vector()
        self.w["lm_head.weight"] = 2 * matrix(self.AHEAD, size)
        if speculators:
            self.w["embed_tokens.weight"] = 0.5 * torch.randn(config.vocab_size, size, generator=noise)
        self.layer = layer
        self.ids = torch.randperm(config.vocab_size, generator=noise)[:self.AHEAD].sort().values

    def of(self, name):
        return self.w[f"{self.layer}{name}.weight"]

    def norm(self, x, weight):
        return rms_norm(x, weight, self.config.rms_norm_eps)

    def project(self, hidden):
        return torch.cat([hidden[layer] for layer in self.layers], -1) @ self.w["fc.weight"].T

    def rows(self, tokens, x):
        table = self.w["embed_tokens.weight"] if self.speculators else self.target.model.embed_tokens.weight
        h = self.norm(x, self.of("hidden_norm"))
        both = torch.cat([self.norm(table[tokens], self.of("input_layernorm")), h], -1)
        x = (h if self.speculators else x) + llama_attention(both, self.of, self.rotary)
        return x + gated_feed_forward(self.norm(x, self.of("post_attention_layernorm")), self.of)

    def logits_and_next(self, x):
        own = self.norm(x, self.w["norm.weight"]) @ self.w["lm_head.weight"].T
        logits = torch.full((len(x), self.target.config.vocab_size), float("-inf"), dtype=x.dtype)
        logits[:, self.ids] = own
        return logits, x

    def settings(self):
        layer = {"model_type": "llama", **self.SIZES, "vocab_size": self.target.config.vocab_size, "hidden_act": "silu",
                 "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "num_hidden_layers": 1}
        if self.speculators:
            return {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
                    "draft_vocab_size": self.AHEAD, "norm_before_residual": True,
                    "target_hidden_size": self.target.config.hidden_size,
                    "eagle_aux_hidden_state_layer_ids": self.layers, "transformer_layer_config": layer}
        return {"architectures": ["LlamaForCausalLMEagle3"], **layer, "draft_vocab_size": self.AHEAD}

    def tensors(self):
        known = torch.zeros(self.target.config.vocab_size, dtype=torch.bool)
        known[self.ids] = True
        return {**self.w, "d2t": self.ids - torch.arange(self.AHEAD), "t2d": known}


class EagleHead:
    """x of every row, from tokens [N] (those that follow) and features [N, hidden_size]."""

    SIZES = dict(hidden_size=24, intermediate_size=32, num_attention_heads=3, num_key_value_heads=1)

    def __init__(self, target):
        self.target = target
        self.config = transformers.LlamaConfig(**self.SIZES, vocab_size=target.config.vocab_size,
                                               max_position_embeddings=256, rms_norm_eps=1e-5, num_hidden_layers=1,
                                               rope_theta=10000.0)
        self.rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(self.config)
        noise = torch.Generator().manual_seed(SEED + 4)

        def matrix(rows, columns):
            return torch.randn(rows, columns, generator=noise) * (1.2 / columns**0.5)

        self.w = {"fc.weight": matrix(24, 48), "fc.bias": 0.3 * torch.randn(24, generator=noise),
                  "layers.0.post_attention_layernorm.weight": 1 + 0.2 * torch.randn(24, generator=noise)}
        for name, rows, columns in (("self_attn.q_proj", 24, 24), ("self_attn.k_proj", 8, 24), ("self_attn.v_proj", 8, 24),
                                    ("self_attn.o_proj", 24, 24), ("mlp.gate_proj", 32, 24), ("mlp.up_proj", 32, 24),
                                    ("mlp.down_proj", 24, 32)):
            self.w[f"layers.0.{name}.weight"] = matrix(rows, columns)

    def of(self, name):
        return self.w[f"layers.0.{name}.weight"]

    def project(self, hidden):
        return hidden[-1]

    def rows(self, tokens, features):
        x = torch.cat([self.target.model.embed_tokens.weight[tokens], features], -1) @ self.w["fc.weight"].T + self.w["fc.bias"]
        x = x + llama_attention(x, self.of, self.rotary)
        return x + gated_feed_forward(rms_norm(x, self.of("post_attention_layernorm"), self.config.rms_norm_eps), self.of)

    def logits_and_next(self, x):
        return self.target.lm_head(x), x

    def settings(self):
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **self.SIZES,
                "vocab_size": self.target.config.vocab_size, "hidden_act": "silu", "max_position_embeddings": 256,
                "rms_norm_eps": 1e-5, "num_hidden_layers": 1, "tie_word_embeddings": False, "bias": True}

    def tensors(self):
        return {**self.w, "embed_tokens.weight": self.target.model.embed_tokens.weight}


class MedusaHeads:
    """Logits of every head, from h [N, hidden_size]."""

    def __init__(self, target, vllm, truncated=False):
        self.vllm, self.blocks, self.truncated = vllm, 1 if vllm else 2, truncated
        noise = torch.Generator().manual_seed(SEED + 5)
        size, vocab_size = target.config.hidden_size, target.config.vocab_size
        self.heads = [([(torch.randn(size, size, generator=noise) / size**0.5,
                         0.0 if vllm else 0.3 * torch.randn(size, generator=noise)) for _ in range(self.blocks)],
                       torch.randn(vocab_size, size, generator=noise) / size**0.5) for _ in range(3)]
        if truncated:
            self.token_map = torch.randperm(vocab_size, generator=noise)[:40]
            one = self.heads[0][1][:40]
            self.heads = [(blocks, one) for blocks, _ in self.heads]

    def double(self):
        self.heads = [([(w.double(), 0.0 if self.vllm else b.double()) for w, b in blocks], output.double())
                      for blocks, output in self.heads]

    def logits(self, h):
        out = []
        for blocks, output in self.heads:
            x = h
            for weight, bias in blocks:
                x = x + torch.nn.functional.silu(x @ weight.T + bias)
            out.append(x @ output.T)
            if self.truncated:
                of_all = torch.full((len(h), 64), -torch.inf, dtype=x.dtype)
                of_all[:, self.token_map] = out[-1]
                out[-1] = of_all
        return torch.stack(out)

    def settings(self):
        if self.vllm:
            return {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 3, "num_hidden_layers": 1,
                    "hidden_size": 24, "vocab_size": 64, "truncated_vocab_size": 40 if self.truncated else 64,
                    **({"original_lm_head": True} if self.truncated else {})}
        return {"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "../eagle3_target"}

    def tensors(self):
        out = {}
        for i, (blocks, output) in enumerate(self.heads):
            for j, (weight, bias) in enumerate(blocks):
                name = f"blocks.{i}.layers.{j}" if self.vllm else f"{i}.{j}.linear"
                out[name + ".weight"] = weight
                if not self.vllm:
                    out[name + ".bias"] = bias
            if not self.truncated or i == 0:
                out[f"lm_heads.{i}.weight" if self.vllm else f"{i}.{self.blocks}.weight"] = output
        if self.truncated:
            out["token_map"] = self.token_map
        return out


class DflashHead:
    """Logits [block - 1, vocab_size] behind a token and context [N, hidden_size]."""

    SIZES = dict(hidden_size=24, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    AFTER, BLOCK, MASK, LAYERS = [1, 3, 5], 6, 63, 2

    def __init__(self, target):
        self.target = target
        self.rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(transformers.LlamaConfig(
            **self.SIZES, max_position_embeddings=256, rope_theta=10000.0))
        noise = torch.Generator().manual_seed(SEED + 6)

        def matrix(rows, columns):
            return torch.randn(rows, columns, generator=noise) * (1.2 / columns**0.5)

        def vector(size):
            return 1 + 0.2 * torch.randn(size, generator=noise)

        self.w = {"fc.weight": matrix(24, 72), "hidden_norm.weight": vector(24), "norm.weight": vector(24)}
        for layer in range(self.LAYERS):
            for name, rows, columns in (("self_attn.q_proj", 16, 24), ("self_attn.k_proj", 8, 24), ("self_attn.v_proj", 8, 24),
                                        ("self_attn.o_proj", 24, 16), ("mlp.gate_proj", 32, 24), ("mlp.up_proj", 32, 24),
                                        ("mlp.down_proj", 24, 32)):
                self.w[f"layers.{layer}.{name}.weight"] = matrix(rows, columns)
            for name, size in (("self_attn.q_norm", 8), ("self_attn.k_norm", 8), ("input_layernorm", 24),
                               ("post_attention_layernorm", 24)):
                self.w[f"layers.{layer}.{name}.weight"] = vector(size)

    def norm(self, x, name):
        return rms_norm(x, self.w[name + ".weight"], 1e-5)

    def project(self, hidden):
        return self.norm(torch.cat([hidden[layer + 1] for layer in self.AFTER], -1) @ self.w["fc.weight"].T, "hidden_norm")

    def attention(self, x, context, of):
        rotate_half = transformers.models.llama.modeling_llama.rotate_half
        both = torch.cat([context, x])
        cos, sin = (part[0] for part in self.rotary(both, torch.arange(len(both))[None]))
        q = (x @ self.w[of + "q_proj.weight"].T).view(len(x), 2, 8).transpose(0, 1)
        q, k = self.norm(q, of + "q_norm"), self.norm(both @ self.w[of + "k_proj.weight"].T, of + "k_norm")
        q = q * cos[len(context):] + rotate_half(q) * sin[len(context):]
        k = k * cos + rotate_half(k) * sin
        seen = (q @ k.T / 8**0.5).softmax(-1) @ (both @ self.w[of + "v_proj.weight"].T)
        return seen.transpose(0, 1).reshape(len(x), 16) @ self.w[of + "o_proj.weight"].T

    def logits(self, token, context):
        x = self.target.model.embed_tokens(torch.tensor([int(token)] + [self.MASK] * (self.BLOCK - 1)))
        for layer in range(self.LAYERS):
            of = f"layers.{layer}."
            x = x + self.attention(self.norm(x, of + "input_layernorm"), context, of + "self_attn.")
            x = x + gated_feed_forward(self.norm(x, of + "post_attention_layernorm"),
                                       lambda name, of=of: self.w[of + name + ".weight"])
        return self.target.lm_head(self.norm(x, "norm"))[1:]

    def settings(self):
        return {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", **self.SIZES, "attention_bias": False,
                "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "block_size": self.BLOCK,
                "dflash_config": {"mask_token_id": self.MASK, "target_layer_ids": self.AFTER}, "hidden_act": "silu",
                "layer_types": ["full_attention"] * self.LAYERS, "max_position_embeddings": 256, "num_hidden_layers": self.LAYERS,
                "num_target_layers": self.target.config.num_hidden_layers, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False,
                "vocab_size": self.target.config.vocab_size}


def greedy_drafts(head, tokens, features):
    """logits and next of the rows, and guesses behind the last one."""
    logits, following = head.logits_and_next(head.rows(tokens, features))
    drafts, margins = [], []
    last_logits, last_next = logits[-1], following[-1]
    for _ in range(DRAFTS):
        top = last_logits.topk(2)
        drafts.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        tokens, features = torch.cat([tokens, top.indices[:1]]), torch.cat([features, last_next[None]])
        out_logits, out_next = head.logits_and_next(head.rows(tokens, features))
        last_logits, last_next = out_logits[-1], out_next[-1]
    return logits, following, drafts, margins


def write(folder, settings, tensors, file="model.safetensors"):
    os.makedirs(folder, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, os.path.join(folder, file))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(settings, file, indent=1)


def largest_difference(a, b):
    """Of what float32 and float64 make of features, logits and next."""
    worst = 0.0
    for x, y in zip(a, b):
        both = torch.isfinite(x)
        worst = max(worst, float((x[both].double() - y[both]).abs().max()))
    return worst


def write_draft(folder, noise, ids, features, logits, following, drafts, margins):
    tensors = {"input_ids": ids.to(torch.int32), "features": features.contiguous(), "logits": logits.contiguous(),
               "draft_ids": torch.tensor(drafts, dtype=torch.int32), "draft_margin": torch.tensor(margins),
               "noise": torch.tensor([noise])}
    if following is not None:
        tensors["next"] = following.contiguous()
    save_file(tensors, os.path.join(folder, "draft.safetensors"))
    finite = logits[torch.isfinite(logits)]
    print(folder, "noise", noise, "drafts", drafts, "margins", [round(m, 3) for m in margins], "logits std", round(float(finite.std()), 2),
          sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)), "bytes", flush=True)


def random_ids(vocab_size):
    return torch.tensor(np.random.default_rng(SEED).integers(3, vocab_size, LENGTH))


def make_medusa(folder, heads, ids, h):
    write(folder, heads.settings(), heads.tensors(), "model.safetensors" if heads.vllm else "medusa_lm_head.safetensors")
    logits = heads.logits(h)
    top = logits[:, -1].topk(2)
    heads.double()
    noise = largest_difference([logits], [heads.logits(h.double())])
    write_draft(folder, noise, ids, h, logits, None, top.indices[:, 0].tolist(), (top.values[:, 0] - top.values[:, 1]).tolist())


def make_dflash(folder, target, ids, hidden_states):
    head = DflashHead(target)
    write(folder, head.settings(), head.w)
    context = head.project(hidden_states())
    logits = head.logits(ids[-1], context)
    top = logits.topk(2)
    head.w = {key: value.double() for key, value in head.w.items()}
    target.double()
    exact = head.project(hidden_states())
    noise = largest_difference([context, logits], [exact, head.logits(ids[-1], exact)])
    target.float()
    write_draft(folder, noise, ids, context, logits, None, top.indices[:, 0].tolist(), (top.values[:, 0] - top.values[:, 1]).tolist())


def make_eagles(out):
    config = transformers.LlamaConfig(**{**SHAPE, "hidden_size": 24, "intermediate_size": 24}, num_hidden_layers=7,
                                      num_key_value_heads=1, head_dim=8)
    torch.manual_seed(SEED)
    target = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomize(target, SEED)
    write(os.path.join(out, "eagle3_target"), {"architectures": ["LlamaForCausalLM"], **config.to_diff_dict()},
          target.state_dict())
    ids = random_ids(config.vocab_size)
    with torch.no_grad():
        hidden = [h[0][:-1] for h in target(ids[None], output_hidden_states=True, use_cache=False).hidden_states]
        for name in ("medusa", "medusa_vllm", "medusa_truncated"):
            make_medusa(os.path.join(out, name), MedusaHeads(target, name != "medusa", name == "medusa_truncated"), ids, hidden[-1])
        for name in ("eagle", "eagle3", "eagle3_speculators"):
            head = EagleHead(target) if name == "eagle" else Eagle3Head(target, name != "eagle3")
            folder = os.path.join(out, name)
            write(folder, head.settings(), head.tensors())
            features = head.project(hidden)
            results = greedy_drafts(head, ids[1:], features)
            head.w = {key: value.double() for key, value in head.w.items()}
            target.double()
            exact = head.project([h[0][:-1] for h in target(ids[None], output_hidden_states=True, use_cache=False).hidden_states])
            noise = largest_difference([features, *results[:2]], [exact, *greedy_drafts(head, ids[1:], exact)[:2]])
            target.float()
            write_draft(folder, noise, ids, features, *results)
        make_dflash(os.path.join(out, "dflash"), target, ids, lambda: [
            h[0][:-1] for h in target(ids[None], output_hidden_states=True, use_cache=False).hidden_states])


def make_ahead(folder, family, config):
    head = AheadLayer(family, config)
    layers = config.num_hidden_layers
    ids = random_ids(config.vocab_size)
    with torch.no_grad():
        # The model without the layer ahead.
        inner = head.ends.model
        whole, inner.layers = inner.layers, inner.layers[:layers]
        inner.config.num_hidden_layers = layers
        layers_alone, inner.layers = inner.layers, whole

        def compute():
            inner.layers = layers_alone
            features = inner(ids[None], use_cache=False).last_hidden_state[0][:-1]
            inner.layers = whole
            return features, *greedy_drafts(head, ids[1:], features)

        features, *results = compute()
        tensors = head.tensors(layers)
        head.ends.double()
        head.fuse, head.norms = head.fuse.double(), [norm.double() for norm in head.norms]
        noise = largest_difference([features, *results[:2]], compute()[:3])
    settings = {"architectures": [type(head.ends).__name__], **config.to_diff_dict(), "num_nextn_predict_layers": 1}
    write(folder, settings, split_experts(tensors))
    write_draft(folder, noise, ids, features, *results)


def main():
    for family, config in configs():
        make_ahead(os.path.join(sys.argv[1], family), family, config)
    make_eagles(sys.argv[1])


main()
