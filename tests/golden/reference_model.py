"""A tiny model of any class of transformers with random weights, and what the class makes of it: a golden folder.

A folder has config.json, model.safetensors (tensor names as on the hub) and, of each prompt pN of N tokens (reference: float32,
eager attention, no cache):

    golden.safetensors  pN.input_ids [N] int32, pN.hidden [N, hidden_size] (input of the head, or of the pooler)
                        of models that generate: pN.logits [N, vocab_size], pN.greedy and pN.greedy_margin [greedy]
                        of encoders: pN.mean_embedding and pN.cls_embedding [hidden_size] of length 1, pN.pooler or pN.logits
                        of the shortest prompt: pN.layers [layers + 1, N, hidden_size]
                        of bfloat16 weights: pN.logits_bf16_compute
                        of an encoder in front of a decoder (encoder_decoder_reference.py): pN.decoder_input_ids, of which
                        the logits are, pN.encoder_hidden, and input_features [1, num_mels, frames] of audio
                        of an encoder for images (vision_reference.py): prompts pN_img and pN_two_img with their pixel_values
    golden.json         seed, noise (largest difference between variants of the reference itself), versions
"""
import copy
import json
import os

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

# What GGUF and the smallest models have, for a bare model type.
TINY = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=256, rms_norm_eps=1e-5, layer_norm_eps=1e-5,
            bos_token_id=0, eos_token_id=1, pad_token_id=2)


def config_of(settings):
    """A config of a dict as config.json holds it; model_type is needed."""
    settings = dict(settings)
    return transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)


def tiny_settings(model_type, given=()):
    """The settings of TINY that a model type has, but those that are other names of settings given."""
    known = transformers.AutoConfig.for_model(model_type)
    known.allow_global_per_layer_attribute_access = True  # of sizes that differ between layers
    own_names = getattr(known, "attribute_map", {})
    return {"model_type": model_type, **{key: value for key, value in TINY.items()
                                         if hasattr(known, key) and own_names.get(key) not in given}}


def filled(settings):
    """Settings with those of a tiny model for what they leave out, in the config of the text model too."""
    settings = {**tiny_settings(settings["model_type"], settings), **settings}
    if "text_config" in settings:
        settings["text_config"] = filled(settings["text_config"])
    return settings


def class_of(config, architecture=None):
    name = architecture or (config.architectures or [None])[0]
    if name is None:
        mappings = (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_MAPPING)
        if hasattr(config, "vision_config"):
            mappings = (transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,)
        for mapping in mappings:
            if type(config) in mapping:
                return mapping[type(config)]
        raise SystemExit(f"no class of transformers takes {type(config).__name__}: name one with --architecture")
    if not hasattr(transformers, name):
        raise SystemExit(f"transformers has no class {name}")
    return getattr(transformers, name)


class Reference:
    """Weights of a class, and results of the class with them."""

    def __init__(self, config, architecture, seed, weights=torch.float32):
        self.cls = class_of(config, architecture)
        self.config = config
        self.config.architectures = [self.cls.__name__]
        self.seed = seed
        self.weights = weights
        self.generates = self.cls.__name__.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
        self.has_logits = self.generates or self.cls.__name__.endswith("ForMaskedLM")
        torch.manual_seed(seed)
        model = self._build().eval()
        randomize(model, seed)
        self.adjust(model)
        self._set_spread_of_logits(model)
        self.state = {name: value.to(weights).clone() for name, value in model.state_dict().items()}

    def _set_spread_of_logits(self, model):
        """Where logits come out flat or saturated, another scale of the head."""
        if not self.has_logits:
            return
        with torch.no_grad():
            spread = float(self.call(model, self.prompts([64])[0][1]).logits.std())
            if not 1 <= spread <= 4:
                model.get_output_embeddings().weight.mul_(2.5 / spread)

    def _build(self, attention="eager", dtype=torch.float32, experts="eager"):
        # Building a class leaves its choices in the config.
        return self.cls._from_config(copy.deepcopy(self.config), attn_implementation=attention, dtype=dtype,
                                     experts_implementation=experts)

    def model(self, **variant):
        dtype = variant.get("dtype", torch.float32)
        model = self._build(**variant)
        model.load_state_dict({name: value.to(dtype) if value.is_floating_point() else value
                               for name, value in self.state.items()})
        return model.eval()

    def prompts(self, lengths):
        """(name, ids [1, length]) for each length."""
        rng = np.random.default_rng(100 + self.seed)
        text = self.config.get_text_config()
        special = {getattr(text, key, None) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        prompts = []
        for length in lengths:
            ids = rng.integers(3, text.vocab_size, length)
            while special & set(ids.tolist()):
                ids = np.where(np.isin(ids, [s for s in special if s is not None]),
                               rng.integers(3, text.vocab_size, length), ids)
            prompts.append((f"p{length}", torch.tensor(ids)[None]))
        return prompts

    def adjust(self, model):
        """Whatever a kind of model needs of its random weights."""

    def inputs(self, model, ids):
        """What the class takes beside the prompt's tokens."""
        return {}

    def call(self, model, ids, **more):
        return model(ids, **self.inputs(model, ids), **more)

    def shared_tensors(self):
        """Arrays that belong to no prompt alone."""
        return {}

    def results(self, model, ids):
        """Arrays of one prompt by the names that follow pN."""
        seen = []
        head = model.get_output_embeddings() if self.generates else None
        hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) if head is not None else None
        with torch.no_grad():
            out = self.call(model, ids, output_hidden_states=True)
            if not self.generates:
                base = model.base_model(ids)
                seen.append(base.last_hidden_state)
        if hook is not None:
            hook.remove()
        array = lambda tensor: tensor.double().numpy()
        hidden = array(seen[0][0])
        found = {"hidden": hidden}
        if getattr(out, "hidden_states", None) is not None:
            states = out.hidden_states
            if all(state.shape == states[0].shape for state in states):
                found["layers"] = array(torch.stack([state[0] for state in states]))
        if self.has_logits:
            found["logits"] = array(out.logits[0])
        if not self.generates:
            unit = lambda row: row / np.linalg.norm(row)
            found["mean_embedding"], found["cls_embedding"] = unit(hidden.mean(0)), unit(hidden[0])
            if getattr(base, "pooler_output", None) is not None and not self.has_logits:
                found["pooler"] = array(base.pooler_output[0])
        return found

    def greedy(self, model, ids, count):
        """Tokens and margins, everything computed anew for each."""
        tokens, margins = [], []
        for _ in range(count):
            with torch.no_grad():
                logits = self.call(model, ids, use_cache=False).logits[0, -1]
            top = torch.topk(logits, 2).values
            tokens.append(int(logits.argmax()))
            margins.append(float(top[0] - top[1]))
            ids = torch.cat([ids, torch.tensor([[tokens[-1]]])], 1)
        return np.array(tokens, np.int32), np.array(margins, np.float32)

    def cached_greedy(self, model, ids, count):
        model.generation_config.eos_token_id = None
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
                                 pad_token_id=0, **self.inputs(model, ids))
        return out[0, ids.shape[1]:].numpy()

    def save(self, folder):
        """config.json and model.safetensors with the names of the hub."""
        os.makedirs(folder, exist_ok=True)
        self.model(dtype=self.weights).save_pretrained(folder, max_shard_size="64GB")
        if os.path.exists(os.path.join(folder, "generation_config.json")):
            os.remove(os.path.join(folder, "generation_config.json"))
        if self.config.model_type == "kimi_linear":
            rename_dense_feed_forward(os.path.join(folder, "model.safetensors"))


def rename_dense_feed_forward(path):
    """transformers writes Kimi Linear's dense feed-forward under another name than the hub has."""
    state = load_file(path)
    names = {name: name.replace(".block_sparse_moe.", ".mlp.") for name in state
             if ".block_sparse_moe." in name and name.split(".block_sparse_moe.")[1].split(".")[0].endswith("_proj")}
    save_file({names.get(name, name): value for name, value in state.items()}, path, metadata={"format": "pt"})


def randomize(model, seed):
    """Weights whose logits are neither flat nor saturated; vectors lie around what the class begins with."""
    rng = np.random.default_rng(seed)
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            shape = tuple(parameter.shape)
            if parameter.ndim == 1:
                values = parameter.double().numpy() + 0.2 * rng.standard_normal(shape)
            else:
                inputs = np.prod(shape[1:]) if parameter.ndim > 3 else shape[-1]  # of a convolution over images
                scale = 0.45 if id(parameter) in embeddings else 1.2 / np.sqrt(inputs)
                values = rng.standard_normal(shape) * scale
            parameter.copy_(torch.tensor(values.astype(np.float32)))
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("correction_bias"):
                buffer.copy_(torch.tensor((0.2 * rng.standard_normal(tuple(buffer.shape))).astype(np.float32)))
            if name.endswith("layer_scalar"):
                buffer.copy_(torch.tensor((1 + 0.2 * rng.standard_normal(tuple(buffer.shape))).astype(np.float32)))
            if name.endswith("tid2eid"):  # different experts of each token
                tokens, top_k = buffer.shape
                experts = model.get_submodule(name.rsplit(".", 1)[0]).num_experts
                buffer.copy_(torch.tensor(rng.random((tokens, experts)).argsort(axis=1)[:, :top_k].copy()))
    model.tie_weights()


def largest_difference(a, b):
    names = ("logits",) if "logits" in a else ("hidden", "pooler")
    return float(max(np.abs(a[name] - b[name]).max() for name in names if name in a))


def measure_noise(reference, prompts, expected):
    """Largest differences between variants of the reference, of each pair that the class has."""
    noise = {}
    for pair, variant in (("eager_sdpa", dict(attention="sdpa")), ("f32_f64", dict(dtype=torch.float64)),
                          ("eager_grouped_mm", dict(experts="grouped_mm"))):
        try:
            model = reference.model(**variant)
            noise[pair] = {name: largest_difference(reference.results(model, ids), expected[name])
                           for name, ids in prompts}
        except (ValueError, RuntimeError, NotImplementedError, ImportError) as error:
            if pair != "eager_grouped_mm":  # which most classes have no experts for
                print(f"  no {pair}: {str(error).splitlines()[0][:100]}")
    return noise


def write_golden(folder, reference, lengths, greedy=24, layers=True, description=None):
    """The folder of a reference; golden.json is returned too."""
    reference.save(folder)
    model, prompts = reference.model(), reference.prompts(lengths)
    tensors, expected, stable, margins, spread = reference.shared_tensors(), {}, {}, [], []
    for name, ids in prompts:
        results = expected[name] = reference.results(model, ids)
        tensors[f"{name}.input_ids"] = ids[0].numpy().astype(np.int32)
        for part, value in results.items():
            if part == "layers" and (not layers or name != prompts[0][0]):
                continue
            tensors[f"{name}.{part}"] = value if value.dtype == np.int32 else value.astype(np.float32)
        if reference.generates:
            tokens, gaps = reference.greedy(model, ids, greedy)
            tensors[f"{name}.greedy"], tensors[f"{name}.greedy_margin"] = tokens, gaps
            cached = reference.cached_greedy(model, ids, greedy)
            stable[name] = int(next((i for i in range(greedy) if cached[i] != tokens[i]), greedy))
            margins.append(float(gaps.min()))
        if reference.has_logits:
            spread.append(results["logits"].std())
    if reference.weights == torch.bfloat16:
        rounded = reference.model(dtype=torch.bfloat16)
        for name, ids in prompts:
            tensors[f"{name}.logits_bf16_compute"] = reference.results(rounded, ids)["logits"].astype(np.float32)
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()},
              os.path.join(folder, "golden.safetensors"))
    about = {"name": os.path.basename(os.path.normpath(folder)), **(description or {}), "seed": reference.seed,
             "noise": measure_noise(reference, prompts, expected)}
    if spread:
        about["logits_std"] = round(float(np.mean(spread)), 3)
    if margins:
        about["cached_generate_equal"] = stable
        about["smallest_greedy_margin"] = min(margins)
    about["versions"] = {"torch": torch.__version__, "transformers": transformers.__version__}
    with open(os.path.join(folder, "golden.json"), "w") as file:
        json.dump(about, file, indent=1)
        file.write("\n")
    return about
