#!/usr/bin/env python3
"""Writes tests/data/transcription: a tiny Whisper with what WhisperForConditionalGeneration.generate makes of waveforms.

    python3 tests/golden/make_transcription.py tests/data/transcription

    generation_config.json    tokens of languages, tasks and times, and those that are suppressed
    preprocessor_config.json  windows of one second
    golden.safetensors        samples: how many the waveform has; of each case NAME.tokens: what generate() adds to its first
                              tokens, in one window (the first second) or in all the waveform; of windows NAME.prompt: those
                              first tokens; of waveforms NAME.times [segments, 2]: seconds, and NAME.sizes: tokens of each
                              segment; free.tokens: of a window with nothing suppressed; never, not_first: what is.
                              Of cases with thresholds or prompts of earlier text (main has their settings) besides NAME.ratios,
                              NAME.logprobs, NAME.silence: of each attempt at each window, and NAME.attempts: of each window;
                              NAME.thresholds: of ratio, logprob and silence, NaN where there is none. wide.tokens, .ratio: of
                              a vocabulary of 51866
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
NUM_TOLD_TOKENS = 12  # of windows that are told what was said before, and those beside which they are compared
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

    def watch(self, model):
        """Keeps what generate() judges windows by."""
        self.attempts = []
        decide = model._need_fallback

        def watched(tokens, outputs, index, processors, config, vocabulary, temperature):
            decision = decide(tokens, outputs, index, processors, config, vocabulary, temperature)
            ratio = model._retrieve_compression_ratio(tokens, vocabulary)
            scores = outputs[index]["scores"] if isinstance(outputs[index], dict) and "scores" in outputs[index] else None
            logprob = float("nan") if scores is None else float(model._retrieve_avg_logprobs(scores, tokens, temperature))
            silence = [float(each.no_speech_prob[index]) for each in processors or ()
                       if isinstance(each, transformers.generation.logits_process.WhisperNoSpeechDetection)]
            self.attempts.append((temperature, ratio, logprob, silence[0] if silence else float("nan"), *decision))
            return decision

        model._need_fallback = watched

    def generate(self, samples, times, num_tokens=NUM_TOKENS, top_k=0, **asked):
        config = transformers.GenerationConfig(
            decoder_start_token_id=START, bos_token_id=END, eos_token_id=END, pad_token_id=PAD, max_new_tokens=NUM_TOKENS,
            do_sample=False)
        config.is_multilingual = True
        config.lang_to_id, config.task_to_id, config.no_timestamps_token_id = LANGUAGES, TASKS, NO_TIMESTAMPS
        config.forced_decoder_ids, config.max_initial_timestamp_index = FORCED, MAX_INITIAL
        config.suppress_tokens, config.begin_suppress_tokens = self.suppressed
        config.max_new_tokens, config.top_k = num_tokens, top_k
        # The last but one of those suppressed, where the reference looks for it too; but not to take it off a prompt.
        config.prev_sot_token_id = TASKS["translate"]
        model = self.reference.model()
        self.watch(model)
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


def add_judged(case, samples, tensors, name, thresholds=(None, None, None), temperatures=(0.0,), **asked):
    ratio, logprob, silence = thresholds
    segments = case.segments(samples, language="fr", temperature=temperatures, compression_ratio_threshold=ratio,
                             logprob_threshold=logprob, no_speech_threshold=silence, num_tokens=NUM_TOLD_TOKENS, **asked)
    tensors[f"{name}.times"] = np.array([part[:2] for part in segments])
    tensors[f"{name}.sizes"] = np.array([len(part[2]) for part in segments], np.int32)
    tensors[f"{name}.tokens"] = np.array(sum((part[2] for part in segments), []), np.int32)
    tensors[f"{name}.thresholds"] = np.array([np.nan if each is None else each for each in thresholds])
    for column, what in ((1, "ratios"), (2, "logprobs"), (3, "silence")):
        tensors[f"{name}.{what}"] = np.array([attempt[column] for attempt in case.attempts])
    windows = [i for i, attempt in enumerate(case.attempts) if attempt[0] == temperatures[0]]
    tensors[f"{name}.attempts"] = np.diff([*windows, len(case.attempts)]).astype(np.int32)
    print(name, thresholds, asked)
    for attempt in case.attempts:
        print("  at {}: ratio {:.4f} logprob {:.5f} silence {:.6f} falls back {} skips {}".format(*attempt))
    for start, end, tokens in segments:
        print(f"  {start:.2f} {end:.2f}", tokens)


def between(values):
    """A threshold that some are above and others are below, far from both."""
    ordered = sorted(set(round(value, 6) for value in values))
    gaps = np.diff(ordered)
    low = max(range(len(gaps)), key=lambda i: gaps[i])
    return float(ordered[low] + 0.5 * gaps[low])


def judge(case, samples, tensors):
    none = (1e9, -1e9, 2.0)
    add_judged(case, samples, tensors, "judged", none)
    ratio, logprob = (between(tensors[f"judged.{what}"]) for what in ("ratios", "logprobs"))
    silence = float(tensors["judged.silence"][[0, 3]].mean())  # the sound's end is more silent than its beginning
    # So little above 0 that the most likely token comes.
    add_judged(case, samples, tensors, "unlikely", (None, logprob, None), (0.0, 1e-4))
    add_judged(case, samples, tensors, "silent", (None, 0.0, silence), (0.0, 1e-4))
    # Of one token all draw the same. The second temperature is so high that the next window is not told of it.
    told = dict(condition_on_prev_tokens=True, top_k=1)
    add_judged(case, samples, tensors, "told", **told)
    add_judged(case, samples, tensors, "told_silent", (None, 0.0, silence), (0.0, 1e-4), **told)
    for name in ("silent", "told_silent"):
        assert 0 < sum(tensors[f"{name}.silence"] > silence) < len(tensors[f"{name}.attempts"])
    add_judged(case, samples, tensors, "told_repeats", (ratio, None, None), (0.0, 0.6), **told)
    prompt = torch.tensor([7, 30, 11, 12])
    add_judged(case, samples, tensors, "prompted", prompt_ids=torch.cat([torch.tensor([TASKS["translate"]]), prompt]))
    for name, kind in (("told_prompted", "first-segment"), ("told_all_prompted", "all-segments")):
        add_judged(case, samples, tensors, name, prompt_ids=torch.cat([torch.tensor([TASKS["translate"]]), prompt]),
                   prompt_condition_type=kind, **told)


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
    judge(case, waveform(count), tensors)
    wide = [50364, 11, 300, 51865] * 20 + list(range(500, 540))
    tensors["wide.tokens"] = np.array(wide, np.int32)
    tensors["wide.ratio"] = np.array([reference.model()._retrieve_compression_ratio(torch.tensor(wide), 51866)])
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
