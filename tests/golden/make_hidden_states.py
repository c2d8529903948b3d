#!/usr/bin/env python3
"""Adds to shipped golden models what transformers gives as hidden_states (float32, eager attention, no cache):

    python3 tests/golden/make_hidden_states.py tests/data/goldens/llama tests/data/goldens/gemma3

FOLDER/hidden_states.safetensors: p40.layers [layers + 1, 40, hidden_size], the last behind the final norm.
"""
import os
import sys

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

for folder in sys.argv[1:]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    ids = load_file(os.path.join(folder, "golden.safetensors"))["p40.input_ids"]
    with torch.no_grad():
        seen = model(torch.tensor(ids[None].astype(np.int64)), output_hidden_states=True, use_cache=False).hidden_states
    layers = np.ascontiguousarray(torch.cat(seen).numpy())
    save_file({"p40.layers": layers}, os.path.join(folder, "hidden_states.safetensors"))
    print(folder, layers.shape)
