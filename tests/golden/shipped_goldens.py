"""The golden models that ship with the repository (tests/data/goldens): decoders, T5 and its encoder, most of them as GGUF too."""
import os

import gguf
import numpy as np
import torch
import transformers
from encoder_decoder_reference import EncoderDecoderReference
from reference_model import Reference, write_golden
from t5_gguf import write_t5_gguf

PROMPT_LENGTH = 40  # longer than the window of 16

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


# What GGUF cannot say of T5 is left at the values it implies: ReLU or gated GELU, outputs that are the table scaled down, no
# distance beyond 128.
T5_SHAPE = dict(vocab_size=96, d_model=32, d_kv=12, d_ff=40, num_heads=2, num_layers=3, num_decoder_layers=2,
                relative_attention_num_buckets=20, eos_token_id=1, pad_token_id=0, decoder_start_token_id=0)


def t5_references(seed):
    yield "t5", EncoderDecoderReference(transformers.T5Config(**T5_SHAPE, feed_forward_proj="relu"),
                                        "T5ForConditionalGeneration", seed)
    yield "t5_encoder", Reference(transformers.T5Config(**T5_SHAPE, feed_forward_proj="gated-gelu"), "T5EncoderModel",
                                  seed + 1)


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


def write_shipped(out):
    for seed, (name, config) in enumerate(configs()):
        folder = os.path.join(out, name)
        reference = Reference(config, None, seed)
        about = write_golden(folder, reference, [PROMPT_LENGTH], layers=False)
        if name != "qwen2":  # GGUF has no place for its window
            factors = llama3_factors(config, reference.model()) if name == "llama" else None
            write_gguf(os.path.join(folder, "model.gguf"), name, config, reference.state, factors)
        print(name, about["noise"], "margin", about["smallest_greedy_margin"])
    for name, reference in t5_references(len(list(configs()))):
        folder = os.path.join(out, name)
        about = write_golden(folder, reference, [PROMPT_LENGTH], layers=False)
        write_t5_gguf(os.path.join(folder, "model.gguf"), reference.config, reference.state)
        print(name, about["noise"])
