#!/usr/bin/env python3
"""Writes tests/data/transcription: a tiny Whisper with what WhisperForConditionalGeneration.generate makes of one window.

    python3 tests/golden/make_transcription.py tests/data/transcription

    generation_config.json  tokens that are suppressed, and the ids of languages and tasks
    golden.safetensors      input_features [1, num_mels, frames]; of each case: NAME.prompt, the decoder's first tokens, and
                            NAME.tokens, what follows them; free.tokens: with nothing suppressed
"""
import json
import os
import sys

import numpy as np
import torch
import transformers
from encoder_decoder_reference import EncoderDecoderReference
from reference_model import config_of
from safetensors.numpy import save_file

START, END, PAD = 40, 41, 41
LANGUAGES = {"<|en|>": 42, "<|fr|>": 43}
TASKS = {"transcribe": 44, "translate": 45}
NO_TIMESTAMPS = 47
NUM_TOKENS = 24

SETTINGS = dict(model_type="whisper", vocab_size=61, d_model=24, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=10, max_source_positions=24,
                max_target_positions=40, decoder_start_token_id=START, bos_token_id=END, eos_token_id=END, pad_token_id=PAD,
                suppress_tokens=None, begin_suppress_tokens=None, tie_word_embeddings=False)


def generate(reference, features, language, task, free=False):
    """The decoder's first tokens and those that generate() adds."""
    model = reference.model()
    config = transformers.GenerationConfig(
        decoder_start_token_id=START, bos_token_id=END, eos_token_id=END, pad_token_id=PAD, max_new_tokens=NUM_TOKENS,
        do_sample=False)
    config.is_multilingual = True
    config.lang_to_id, config.task_to_id, config.no_timestamps_token_id = LANGUAGES, TASKS, NO_TIMESTAMPS
    if not free:
        config.suppress_tokens, config.begin_suppress_tokens = reference.suppressed
    model.generation_config = config
    with torch.no_grad():
        out = model.generate(torch.tensor(features), language=language, task=task, return_timestamps=False,
                             return_dict_in_generate=True, force_unique_generate_call=True)
    tokens = out.sequences[0].tolist()
    prompt = [START, LANGUAGES[f"<|{language}|>"], TASKS[task], NO_TIMESTAMPS]
    assert tokens[:len(prompt)] == prompt, tokens
    return prompt, tokens[len(prompt):]


def main():
    folder = sys.argv[1]
    reference = EncoderDecoderReference(config_of(SETTINGS), "WhisperForConditionalGeneration", 3)
    features = reference.shared_tensors()["input_features"]
    reference.save(folder)
    _, free = generate(reference, features, "en", "transcribe", free=True)
    # Some of what comes, marks and times not at all; and not first what comes first then.
    never = sorted([token for token in dict.fromkeys(free) if token < START][:3] + [START, *range(END + 1, 61)])
    reference.suppressed = never, None
    reference.suppressed = never, sorted({generate(reference, features, "en", "transcribe")[1][0], END})
    tensors = {"input_features": features, "free.tokens": np.array(free, np.int32)}
    for language, task in (("en", "transcribe"), ("fr", "transcribe"), ("fr", "translate")):
        prompt, tokens = generate(reference, features, language, task)
        tensors[f"{language}_{task}.prompt"] = np.array(prompt, np.int32)
        tensors[f"{language}_{task}.tokens"] = np.array(tokens, np.int32)
        print(language, task, tokens)
    print("free", free)
    save_file(tensors, os.path.join(folder, "golden.safetensors"))
    about = {"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": PAD, "is_multilingual": True,
             "suppress_tokens": reference.suppressed[0], "begin_suppress_tokens": reference.suppressed[1],
             "lang_to_id": LANGUAGES, "task_to_id": TASKS, "no_timestamps_token_id": NO_TIMESTAMPS}
    with open(os.path.join(folder, "generation_config.json"), "w") as file:
        json.dump(about, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
