#!/usr/bin/env python3
"""Writes tests/data/transcription: a tiny Whisper with what WhisperForConditionalGeneration.generate makes of waveforms.

    python3 tests/golden/make_transcription.py tests/data/transcription

    generation_config.json    tokens of languages, tasks and times, and those that are suppressed
    preprocessor_config.json  windows of one second
    golden.safetensors        samples: how many the waveform has; of each case NAME.tokens: what generate() adds to its first
                              tokens, in one window (the first second) or in all the waveform; of windows NAME.prompt: those
                              first tokens; of waveforms NAME.times [segments, 2]: seconds, and NAME.sizes: tokens of each
                              segment; free.tokens: of a window with nothing suppressed; never, not_first: what is
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

RATE = 16000
START, END, PAD = 40, 41, 41
LANGUAGES = {"<|en|>": 42, "<|fr|>": 43}
TASKS = {"transcribe": 44, "translate": 45}
NO_TIMESTAMPS = 47
FORCED = [[1, None], [2, TASKS["translate"]]]
MAX_INITIAL = 9
NUM_TOKENS = 24
MELS, POSITIONS = 10, 50
VOCABULARY = NO_TIMESTAMPS + 1 + POSITIONS + 1

SETTINGS = dict(model_type="whisper", vocab_size=VOCABULARY, d_model=24, encoder_layers=1, decoder_layers=1,
                encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
                num_mel_bins=MELS, max_source_positions=POSITIONS, max_target_positions=40, decoder_start_token_id=START,
                bos_token_id=END, eos_token_id=END, pad_token_id=PAD, suppress_tokens=None, begin_suppress_tokens=None,
                tie_word_embeddings=False)


def waveform(count):
    """Noise of changing loudness, whose samples are whole parts of 2048: other languages make the same."""
    i = np.arange(count, dtype=np.int64)
    return (((31 * i * i + 17 * i) % 1009 - 504) * (i // 3700 % 5)).astype(np.float32) / np.float32(2048)


class Case:
    def __init__(self, reference, extractor, suppressed=(None, None)):
        self.reference, self.extractor, self.suppressed = reference, extractor, suppressed

    def generate(self, samples, times, **asked):
        config = transformers.GenerationConfig(
            decoder_start_token_id=START, bos_token_id=END, eos_token_id=END, pad_token_id=PAD, max_new_tokens=NUM_TOKENS,
            do_sample=False)
        config.is_multilingual = True
        config.lang_to_id, config.task_to_id, config.no_timestamps_token_id = LANGUAGES, TASKS, NO_TIMESTAMPS
        config.forced_decoder_ids, config.max_initial_timestamp_index = FORCED, MAX_INITIAL
        config.suppress_tokens, config.begin_suppress_tokens = self.suppressed
        model = self.reference.model()
        model.generation_config = config
        features = self.extractor(samples, sampling_rate=RATE, return_tensors="pt", truncation=False,
                                  padding="max_length" if len(samples) <= RATE else "longest").input_features
        with torch.no_grad():
            return model.generate(features, return_timestamps=times, return_segments=times, return_dict_in_generate=True,
                                  force_unique_generate_call=not times, **asked)

    def window(self, language, task):
        """The decoder's first tokens and those that follow them."""
        tokens = self.generate(waveform(RATE), False, language=language, task=task).sequences[0].tolist()
        prompt = [START, LANGUAGES[f"<|{language}|>"], TASKS[task], NO_TIMESTAMPS]
        assert tokens[:len(prompt)] == prompt, tokens
        return prompt, tokens[len(prompt):]

    def segments(self, samples, **asked):
        """(start, end, tokens) of each segment."""
        found = self.generate(samples, True, **asked)["segments"][0]
        return [(float(part["start"]), float(part["end"]), part["tokens"].tolist()) for part in found]


def main():
    folder = sys.argv[1]
    reference = EncoderDecoderReference(config_of(SETTINGS), "WhisperForConditionalGeneration", 3)
    # Words and times come by turns.
    reference.state["proj_out.weight"][:NO_TIMESTAMPS] *= 1.6
    reference.state["proj_out.weight"][NO_TIMESTAMPS:] *= 0.3
    reference.save(folder)
    extractor = transformers.WhisperFeatureExtractor(feature_size=MELS, sampling_rate=RATE, chunk_length=1)
    _, free = Case(reference, extractor).window("en", "transcribe")
    # Some of what comes, and marks, not at all; and not first what comes first then.
    never = sorted([token for token in dict.fromkeys(free) if token < START][:3] + [START, *range(END + 1, NO_TIMESTAMPS)])
    first = Case(reference, extractor, (never, None)).window("en", "transcribe")[1][0]
    case = Case(reference, extractor, (never, sorted({first, END})))
    tensors = {"free.tokens": np.array(free, np.int32), "never": np.array(never, np.int32),
               "not_first": np.array(case.suppressed[1], np.int32)}
    for language, task in (("en", "transcribe"), ("fr", "transcribe"), ("fr", "translate")):
        prompt, tokens = case.window(language, task)
        tensors[f"{language}_{task}.prompt"] = np.array(prompt, np.int32)
        tensors[f"{language}_{task}.tokens"] = np.array(tokens, np.int32)
        print(language, task, tokens)
    count = int(3.7 * RATE)
    tensors["samples"] = np.array([count], np.int32)
    for name, samples, asked in (("long_fr", waveform(count), dict(language="fr", task="transcribe")),
                                 ("long_heard", waveform(count), {}),
                                 ("long_task", waveform(count), dict(task="transcribe")),
                                 ("one_window", waveform(RATE), dict(language="en"))):
        segments = case.segments(samples, **asked)
        tensors[f"{name}.times"] = np.array([part[:2] for part in segments])
        tensors[f"{name}.sizes"] = np.array([len(part[2]) for part in segments], np.int32)
        tensors[f"{name}.tokens"] = np.array(sum((part[2] for part in segments), []), np.int32)
        print(name)
        for start, end, tokens in segments:
            print(f"  {start:.2f} {end:.2f}", tokens)
    print("free", free)
    save_file(tensors, os.path.join(folder, "golden.safetensors"))
    about = {"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": PAD, "is_multilingual": True,
             "suppress_tokens": never, "begin_suppress_tokens": case.suppressed[1], "lang_to_id": LANGUAGES,
             "task_to_id": TASKS, "no_timestamps_token_id": NO_TIMESTAMPS, "forced_decoder_ids": FORCED,
             "max_initial_timestamp_index": MAX_INITIAL}
    audio = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": MELS, "chunk_length": 1}
    for name, content in (("generation_config", about), ("preprocessor_config", audio)):
        with open(os.path.join(folder, name + ".json"), "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
