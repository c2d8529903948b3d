"""Models with an encoder in front of their decoder: transformers' greedy tokens, audio against features, and refusals."""

import json
import os
import shutil
import tempfile
import unittest

import numpy as np

import headrace
from headrace_test import DATA, read_safetensors

MODELS = os.path.join(DATA, "goldens", "models")


def folder_of(name):
    return os.path.join(MODELS, name)


@unittest.skipUnless(DATA and os.path.exists(os.path.join(MODELS, "t5")), "HEADRACE_TEST_DATA is not there")
class EncoderDecoder(unittest.TestCase):
    def assert_greedy(self, name, input_of):
        golden = read_safetensors(os.path.join(folder_of(name), "golden.safetensors"))
        scheduler = headrace.Scheduler(headrace.Model.load(folder_of(name)))
        cases = sorted({tensor.split(".")[0] for tensor in golden if tensor.endswith(".greedy")})
        self.assertTrue(cases)
        for case in cases:
            with self.subTest(model=name, case=case):
                output = scheduler.generate(None, encoder_input=input_of(golden, case), max_tokens=24, ignore_eos=True)
                close = golden[case + ".greedy_margin"] < 1e-3
                sure = int(np.argmax(close)) if close.any() else 24
                self.assertEqual(output.tokens[:sure], golden[case + ".greedy"].tolist()[1:sure + 1])

    def test_greedy_tokens(self):
        self.assert_greedy("t5", lambda golden, case: golden[case + ".input_ids"].tolist())
        self.assert_greedy("whisper", lambda golden, case: golden["input_features"][0])

    def test_audio_and_its_features_give_the_same(self):
        golden = read_safetensors(os.path.join(folder_of("whisper"), "golden.safetensors"))
        samples = np.load(os.path.join(folder_of("whisper"), "waveform_16k.npy"))
        with tempfile.TemporaryDirectory() as folder:
            for file in ("config.json", "model.safetensors", "tokenizer.json"):
                shutil.copy(os.path.join(folder_of("whisper"), file), folder)
            with self.assertRaises(headrace.Error) as caught:
                headrace.Scheduler(headrace.Model.load(folder)).generate(None, audio=samples, max_tokens=1)
            self.assertEqual(caught.exception.status, "HEADRACE_NOT_FOUND")
            with open(os.path.join(folder, "preprocessor_config.json"), "w") as file:
                json.dump({"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 2, "feature_size": 80},
                          file)
            model = headrace.Model.load(folder)
            self.assertEqual(model.describe()["encoder"]["num_samples"], 32000)
            scheduler = headrace.Scheduler(model)
            parameters = dict(max_tokens=8, ignore_eos=True, logprobs=5)
            heard = scheduler.generate([0, 9], audio=samples, **parameters)
            again = scheduler.generate([0, 9], audio=(samples, 16000), **parameters)
            given = scheduler.generate([0, 9], encoder_input=golden["input_features"][0], **parameters)
            self.assertEqual(heard.tokens, given.tokens)
            self.assertEqual(heard.logprobs, again.logprobs)
            np.testing.assert_allclose(heard.logprobs, given.logprobs, atol=1e-4)
            for audio in ((samples, 8000), np.zeros(32001, np.float32), np.zeros(0, np.float32)):
                with self.assertRaises(headrace.Error) as caught:
                    scheduler.generate(None, audio=audio, max_tokens=1)
                self.assertEqual(caught.exception.status, "HEADRACE_INVALID_ARGUMENT")

    def test_text_goes_to_the_encoder(self):
        model = headrace.Model.load(folder_of("t5"))
        scheduler = headrace.Scheduler(model)
        tokens = model.tokenizer.encode("a brown fox")
        said = scheduler.generate(None, encoder_input="a brown fox", max_tokens=6, ignore_eos=True, logprobs=2)
        given = scheduler.generate([2], encoder_input=tokens, max_tokens=6, ignore_eos=True, logprobs=2)
        self.assertEqual((said.tokens, said.logprobs), (given.tokens, given.logprobs))

    def test_what_does_not_fit_is_refused(self):
        t5 = headrace.Scheduler(headrace.Model.load(folder_of("t5")))
        llama = headrace.Scheduler(headrace.Model.load(folder_of("llama")))
        features = np.zeros((80, 200), np.float32)
        for scheduler, status, arguments in (
                (t5, "HEADRACE_INVALID_ARGUMENT", {}),
                (t5, "HEADRACE_INVALID_ARGUMENT", {"encoder_input": []}),
                (t5, "HEADRACE_INVALID_ARGUMENT", {"encoder_input": [320]}),
                (t5, "HEADRACE_UNSUPPORTED", {"encoder_input": features}),
                (t5, "HEADRACE_UNSUPPORTED", {"audio": features[0]}),
                (llama, "HEADRACE_UNSUPPORTED", {"encoder_input": [5]})):
            with self.assertRaises(headrace.Error) as caught:
                scheduler.generate([5], max_tokens=1, **arguments)
            self.assertEqual(caught.exception.status, status)
        for arguments in ({"encoder_input": 3}, {"audio": "loud"}, {"audio": features}, {"encoder_input": features[0]}):
            with self.assertRaises(TypeError):
                t5.generate([5], max_tokens=1, **arguments)
        with self.assertRaises(headrace.Error):
            headrace.Session(headrace.Model.load(folder_of("t5")))


class Speech(unittest.TestCase):
    """On the tiny model of tests/data/transcription."""

    @classmethod
    def setUpClass(cls):
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "transcription")
        cls.golden = read_safetensors(os.path.join(folder, "golden.safetensors"))
        i = np.arange(int(cls.golden["samples"][0]), dtype=np.int64)
        cls.samples = (((31 * i * i + 17 * i) % 1009 - 504) * (i // 3700 % 5)).astype(np.float32) / np.float32(2048)
        cls.model = headrace.Model.load(folder)

    def test_rejected_and_told_windows_are_those_of_transformers(self):
        scheduler = headrace.Scheduler(self.model, kv_dtype="f32")
        told = dict(condition_on_prev_tokens=True, top_k=1)
        prompted = dict(told, prompt_ids=[45, 7, 30, 11, 12])
        for name, asked in (("judged", dict(temperature=0)), ("silent", dict(temperature=(0.0, 1e-4))), ("told", told),
                            ("told_repeats", dict(told, temperature=[0.0, 0.6])), ("told_prompted", prompted),
                            ("told_all_prompted", dict(prompted, prompt_condition_type="all-segments"))):
            with self.subTest(name=name):
                ratio, logprob, silence = (None if np.isnan(x) else x for x in self.golden[name + ".thresholds"])
                found = scheduler.transcribe(self.samples, language="fr", max_tokens=12, compression_ratio_threshold=ratio,
                                             logprob_threshold=logprob, no_speech_threshold=silence, **asked)
                times = [(part.start, part.end) for part in found.segments]
                np.testing.assert_allclose(times, self.golden[name + ".times"], atol=1e-9)
                self.assertEqual(sum((part.tokens for part in found.segments), []), self.golden[name + ".tokens"].tolist())
        for place, asked in (("temperature", dict(temperature=[])), ("temperatures[1]", dict(temperature=[0, -1])),
                             ("logprob_threshold", dict(logprob_threshold=float("nan"))),
                             ("no_speech_threshold", dict(no_speech_threshold=0.6)),
                             ("prompt_condition_type", dict(prompt_condition_type="all-segments")),
                             ("prompt_condition_type", dict(prompt_condition_type="last")),
                             ("params.prompt_ids[0]", dict(prompt_ids=[99]))):
            with self.subTest(place=place), self.assertRaises(headrace.Error) as caught:
                scheduler.transcribe(self.samples, **asked)
            self.assertEqual(caught.exception.place, place)
            self.assertEqual(caught.exception.status, "HEADRACE_INVALID_ARGUMENT")
        with self.assertRaises(TypeError):
            scheduler.transcribe(self.samples, temperature="hot")

    def test_segments_and_times_are_those_of_transformers(self):
        golden, samples = self.golden, self.samples
        scheduler = headrace.Scheduler(self.model, kv_dtype="f32")
        for name, asked in (("long_fr", dict(language="fr")), ("long_heard", {}), ("long_task", dict(task="transcribe"))):
            with self.subTest(name=name):
                found = scheduler.transcribe(samples, max_tokens=24, **asked)
                times = [(part.start, part.end) for part in found.segments]
                np.testing.assert_allclose(times, golden[name + ".times"], atol=1e-9)
                self.assertEqual(sum((part.tokens for part in found.segments), []), golden[name + ".tokens"].tolist())
                self.assertIn(found.language, ("en", "fr"))
                self.assertEqual(found.text, "")
        with self.assertRaises(headrace.Error) as caught:
            scheduler.transcribe(samples, language="de")
        self.assertEqual(caught.exception.place, "language")
        with self.assertRaises(TypeError):
            scheduler.transcribe("noise")
        # So slow that a window behind the first waits beyond any deadline.
        scheduler.set_tenant("slow", tokens_per_second=0.001)
        with self.assertRaises(headrace.Error) as caught:
            scheduler.transcribe(samples, language="fr", tenant="slow", deadline_ms=1)
        self.assertEqual(caught.exception.status, "HEADRACE_DEADLINE_EXCEEDED")


if __name__ == "__main__":
    unittest.main()
