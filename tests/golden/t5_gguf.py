"""GGUF files of T5 and of its encoder alone: names of tensors are those that PyPI's gguf maps transformers' to, and keys those
that llama.cpp's converter writes."""
import gguf
import numpy as np

ARCHITECTURES = {"T5ForConditionalGeneration": gguf.MODEL_ARCH.T5, "T5EncoderModel": gguf.MODEL_ARCH.T5ENCODER}
# Every stack has the table under a name of its own too.
TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def write_t5_gguf(path, config, state):
    """state: the class's tensors. An output that is the table has no tensor."""
    architecture = ARCHITECTURES[config.architectures[0]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_context_length(getattr(config, "n_positions", 512))
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_key_length(config.d_kv)
    writer.add_value_length(config.d_kv)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_eos_token_id(config.eos_token_id)
    if architecture == gguf.MODEL_ARCH.T5:
        writer.add_decoder_block_count(config.num_decoder_layers)
        writer.add_decoder_start_token_id(config.decoder_start_token_id)
    layers = max(config.num_layers, config.num_decoder_layers)
    names = gguf.get_tensor_name_map(architecture, layers)
    table = state[TABLES[0]]
    writer.add_tensor(names.get_name(TABLES[0], try_suffixes=(".weight",)), table.numpy())
    for name, value in state.items():
        if name in TABLES or (name == "lm_head.weight" and bool((value == table).all())):
            continue
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(value.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
