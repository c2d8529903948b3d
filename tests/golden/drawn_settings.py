"""Settings of a variant with other values for what nearly every config has: epsilons, activations, biases, tied heads, sizes,
windows, patterns of layers, rotations, experts. Some draws are of a kind that a class of transformers refuses."""
import copy

import transformers

EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_eps", "layer_norm_epsilon")
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
BIASES = ("attention_bias", "mlp_bias", "use_bias", "attention_out_bias", "use_qkv_bias", "mamba_proj_bias", "projectors_bias",
          "use_conv_bias", "conv_bias", "mamba_conv_bias", "norm_bias", "classifier_bias", "decoder_bias")
FLAGS = ("tie_word_embeddings", "norm_topk_prob")
PATTERNS = ("layer_types", "mlp_layer_types", "layers_block_type")


def drawn(settings, rng):
    """A copy of complete settings; rng: numpy Generator."""
    settings = copy.deepcopy(settings)
    if "text_config" in settings:
        settings["text_config"] = drawn(settings["text_config"], rng)
        if "out_hidden_size" in settings["vision_config"]:
            settings["vision_config"]["out_hidden_size"] = settings["text_config"]["hidden_size"]
        return settings
    known = transformers.AutoConfig.for_model(settings["model_type"])
    known.allow_global_per_layer_attribute_access = True
    has = lambda key: hasattr(known, key)
    pick = lambda values: values[int(rng.integers(len(values)))]
    for key in filter(has, EPSILONS):
        settings[key] = float(10 ** rng.uniform(-7, -1.5))
    for key in filter(has, ACTIVATIONS):
        settings[key] = pick([settings.get(key, getattr(known, key)), "silu", "gelu", "gelu_pytorch_tanh", "relu"])
    for key in filter(has, BIASES + FLAGS):
        settings[key] = bool(rng.integers(2))
    settings["vocab_size"] = int(rng.integers(71, 200))
    if has("vocab_size_per_layer_input"):
        settings["vocab_size_per_layer_input"] = settings["vocab_size"]
    if settings.get("hidden_size") == 32:
        settings["hidden_size"] = 8 * int(rng.integers(3, 8))
    if settings.get("intermediate_size") == 48:
        settings["intermediate_size"] = 4 * int(rng.integers(5, 20))
    if isinstance(settings.get("sliding_window"), int):
        settings["sliding_window"] = int(rng.integers(3, 60))
    for key in PATTERNS:
        if key in settings:
            settings[key] = [str(kind) for kind in rng.permutation(settings[key])]
    for key in ("routed_scaling_factor", "router_scaling_factor", "logit_scale", "residual_multiplier", "embedding_multiplier"):
        if key in settings:
            settings[key] = float(rng.uniform(0.3, 2.5))
    if isinstance(settings.get("rope_parameters"), dict):
        settings["rope_parameters"] = drawn_rope(settings["rope_parameters"], rng, pick)
    return settings


def drawn_rope(rope, rng, pick):
    if "rope_type" not in rope:  # one for each kind of layers
        return {kind: drawn_rope(own, rng, pick) for kind, own in rope.items()}
    rope = {**rope, "rope_theta": float(10 ** rng.uniform(2.5, 6.5))}
    if rope["rope_type"] != "default" or "mrope_section" in rope:
        return rope
    kind = pick(["default", "linear", "yarn", "llama3", "dynamic"])
    return {**rope, "rope_type": kind, **{
        "default": {},
        "linear": dict(factor=float(rng.uniform(1, 9))),
        "dynamic": dict(factor=float(rng.uniform(1, 9))),
        "yarn": dict(factor=float(rng.uniform(1, 9)), original_max_position_embeddings=int(rng.integers(20, 130)),
                     beta_fast=float(rng.uniform(8, 40)), beta_slow=float(rng.uniform(0.5, 4))),
        "llama3": dict(factor=float(rng.uniform(1, 9)), original_max_position_embeddings=int(rng.integers(20, 130)),
                       low_freq_factor=float(rng.uniform(0.5, 2)), high_freq_factor=float(rng.uniform(2.5, 6)))}[kind]}
