#!/usr/bin/env python3
"""Makes golden folders: tiny random models of transformers' classes with what transformers makes of them, for
`headrace conformance` and the tests.

    pip install torch transformers safetensors numpy gguf

    python3 tests/golden/make.py OUT/NAME --model-type llama --set num_hidden_layers=3 --set rope_parameters.rope_theta=1e6
    python3 tests/golden/make.py OUT/NAME --config config.json --set num_hidden_layers=4 --seed 7
    python3 tests/golden/make.py OUT --variants [NAME ...] --seed 7     # the models of variants.py
    python3 tests/golden/make.py OUT --variants --drawn --seed 7        # with drawn_settings.py's for theirs
    python3 tests/golden/make.py OUT --shipped                          # tests/data/goldens

A config is a config.json of the hub, with its sizes brought down by --set, or a model type at a tiny size. Equal versions of
the packages give equal files. reference_model.py says what a folder holds.
"""
import argparse
import json
import os
import shutil
import zlib

import numpy as np
import torch
from drawn_settings import drawn
from encoder_decoder_reference import EncoderDecoderReference
from reference_model import Reference, config_of, filled, tiny_settings, write_golden
from vision_reference import VisionReference

PROMPTS = [5, 33, 150]


def apply_setting(settings, text):
    """key=value or outer.inner=value; value is JSON, or text where it is none."""
    key, equals, value = text.partition("=")
    if not equals:
        raise SystemExit(f"{text} is not key=value")
    try:
        value = json.loads(value)
    except json.JSONDecodeError:
        pass
    *outer, last = key.split(".")
    for name in outer:
        settings = settings.setdefault(name, {})
    settings[last] = value


def reference_of(config, architecture, seed, weights):
    """Of the kind that a config needs."""
    kind = Reference
    if getattr(config, "is_encoder_decoder", False) and not (architecture or "").endswith("EncoderModel"):
        kind = EncoderDecoderReference
    elif hasattr(config, "vision_config"):
        kind = VisionReference
    return kind(config, architecture, seed, weights)


def make(folder, settings, architecture, seed, arguments):
    config = config_of(settings)
    longest = getattr(config.get_text_config(), "max_position_embeddings", 10**6)
    lengths = [n for n in arguments.prompts if n + arguments.greedy <= longest]
    weights = torch.bfloat16 if arguments.dtype == "bfloat16" else torch.float32
    reference = reference_of(config, architecture or settings.get("architectures", [None])[0], seed, weights)
    about = write_golden(folder, reference, lengths, arguments.greedy)
    worst = max((value for pair in about["noise"].values() for value in pair.values()), default=0)
    print(f"{folder}: {reference.cls.__name__}, noise {worst:.1e}, logits std {about.get('logits_std', '-')}, "
          f"smallest margin {about.get('smallest_greedy_margin', '-')}", flush=True)


def make_variant(name, variants, arguments):
    settings = dict(variants[name])
    architecture = settings.pop("architecture", None)
    settings, seed = filled(settings), arguments.seed + sorted(variants).index(name)
    folder = os.path.join(arguments.out, name)
    if not arguments.drawn:
        return make(folder, settings, architecture, seed, arguments)
    try:
        make(folder, drawn(settings, np.random.default_rng([arguments.seed, zlib.crc32(name.encode())])), architecture, seed,
             arguments)
    except Exception as error:  # whatever a class has against what was drawn
        shutil.rmtree(folder, ignore_errors=True)
        print(f"{folder}: not made: {str(error).splitlines()[0][:100] if str(error) else type(error).__name__}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", help="config.json")
    source.add_argument("--model-type", help="model_type of a config")
    source.add_argument("--variants", nargs="*", metavar="NAME", help="all models of variants.py, or those named")
    source.add_argument("--shipped", action="store_true")
    parser.add_argument("--drawn", action="store_true", help="variants with settings drawn by the seed")
    parser.add_argument("--architecture", help="class of transformers, where the config names none")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the config")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=lambda text: [int(n) for n in text.split(",")], default=PROMPTS,
                        help="lengths, separated by commas (5,33,150)")
    parser.add_argument("--greedy", type=int, default=24, help="tokens to generate")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="type of the weights")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    if arguments.shipped:
        from shipped_goldens import write_shipped
        write_shipped(arguments.out)
        return
    if arguments.variants is not None:
        from variants import VARIANTS
        for name in arguments.variants or VARIANTS:
            make_variant(name, VARIANTS, arguments)
        return
    if arguments.config:
        with open(arguments.config) as file:
            settings = json.load(file)
    else:
        settings = tiny_settings(arguments.model_type)
    for text in arguments.set:
        apply_setting(settings, text)
    make(arguments.out, settings, arguments.architecture, arguments.seed, arguments)


if __name__ == "__main__":
    main()
