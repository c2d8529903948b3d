#!/usr/bin/env python3
"""Writes class_defaults.json: what keys of the golden models' configs mean where they are left out.

The values are those of transformers' configuration classes, on which published configs rely: {model type: {JSON pointer: value}}.
Usage: class_defaults.py GOLDEN-MODELS tests/data/class_defaults.json
"""
import dataclasses
import json
import pathlib
import sys

from transformers import CONFIG_MAPPING, AutoConfig


def collect(config_class, config, pointer, out):
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    for key, value in config.items():
        nested = getattr(config_class, "sub_configs", {}).get(key)
        if nested is not None and isinstance(value, dict):
            if nested is AutoConfig:
                nested = CONFIG_MAPPING[value["model_type"]]
            collect(nested, value, f"{pointer}/{key}", out)
            continue
        field = fields.get(getattr(config_class, "attribute_map", {}).get(key, key))
        # A class is asked for by its name, and the rest of these says nothing of the computation.
        if field is None or key in ("architectures", "model_type", "dtype", "transformers_version"):
            continue
        if field.default is None or isinstance(field.default, (bool, int, float, str)):
            out[f"{pointer}/{key}"] = field.default


def main():
    models, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out = {}
    for path in sorted(models.iterdir()):
        config = json.loads((path / "config.json").read_text())
        collect(CONFIG_MAPPING[config["model_type"]], config, "", out.setdefault(config["model_type"], {}))
    lines = [f"{json.dumps(name)}: {json.dumps(keys, sort_keys=True)}" for name, keys in sorted(out.items())]
    output.write_text("{" + ",\n".join(lines) + "}\n")


main()
