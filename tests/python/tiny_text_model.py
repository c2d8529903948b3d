"""A tiny model with text: tests/data/goldens/llama with a tokenizer and a chat template written beside a copy.

Random weights: what it says means nothing, but it is the same on every run. Each character below is one token, the bytes
of an e with an acute are two, and DEF is one of three characters.
"""

import json
import os
import shutil
import string

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LLAMA = os.path.join(SOURCE, "tests", "data", "goldens", "llama")

CONTROLS = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
BOS, EOS, USER, ASSISTANT, END = range(5)
# The spellings of byte-level BPE: G-breve for a space, C-dot for a newline, the two bytes of e-acute.
PIECES = ["\u0120", "\u010a", "\u00c3", "\u00a9", *string.ascii_lowercase, *string.ascii_uppercase, *string.digits,
          *"<>|/.,!?'-:;()_*+=#[]{}%", "DEF"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}<|user|>{% elif m.role == 'assistant' %}<|assistant|>{% endif %}{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def token(piece):
    return len(CONTROLS) + PIECES.index(piece)


def tokenizer_json():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": text, **flags, "special": True} for id, text in enumerate(CONTROLS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, first],
            "pair": [first, second],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: id for id, text in enumerate(CONTROLS + PIECES)},
            "merges": [],
        },
    }


def write(folder, chat_template=CHAT_TEMPLATE):
    """Writes the model into a folder that exists; chat_template=None leaves it without."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(LLAMA, name), folder)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(tokenizer_json(), file)
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(settings, file)
    return folder
