"""`headrace transcribe`, and `headrace run` of a model whose encoder reads the prompt, on the tiny models of HEADRACE_TEST_DATA."""

import json
import os
import shutil
import struct
import tempfile
import unittest

from headrace_command import CommandTest, run

MODELS = os.path.join(os.environ.get("HEADRACE_TEST_DATA", ""), "goldens", "models")
TRANSCRIPTION = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "transcription")


def wav(samples, rate=16000, bits=16, channels=1, encoding=1):
    """The bytes of a file; samples: lists of floats in [-1, 1], one for each channel."""
    pack = {(1, 8): lambda x: struct.pack("<B", int(x * 127) + 128), (1, 16): lambda x: struct.pack("<h", int(x * 32767)),
            (1, 24): lambda x: struct.pack("<i", int(x * 8388607))[:3],
            (1, 32): lambda x: struct.pack("<i", int(x * 2147483647)), (3, 32): lambda x: struct.pack("<f", x)}
    data = b"".join(pack[encoding, bits](channel[i]) for i in range(len(samples[0])) for channel in samples)
    size = bits // 8 * channels
    fmt = struct.pack("<HHIIHH", encoding, channels, rate, rate * size, size, bits)
    parts = b"fmt " + struct.pack("<I", len(fmt)) + fmt + b"LIST" + struct.pack("<I", 3) + b"abc\0"
    parts += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WAVE" + parts


def tone(count, period=40):
    return [((i % period) / period - 0.5) * 0.8 for i in range(count)]


@unittest.skipUnless(os.path.isdir(os.path.join(MODELS, "whisper")), "HEADRACE_TEST_DATA is not there")
class Transcribe(CommandTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.model = os.path.join(cls.folder, "model")
        shutil.copytree(os.path.join(MODELS, "whisper"), cls.model)
        with open(os.path.join(cls.model, "preprocessor_config.json"), "w", encoding="utf-8") as file:
            json.dump({"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 2}, file)

    def file(self, name, data):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def transcribe(self, path, *arguments, stdin=""):
        out = run("transcribe", "-m", self.model, path, "-n", "6", "--no-timestamps", "--json", *arguments, stdin=stdin)
        return json.loads(out.stdout)

    def test_text_and_json_say_the_same(self):
        path = self.file("tone.wav", wav([tone(20000)]))
        out = self.transcribe(path)
        text = run("transcribe", "-m", self.model, path, "-n", "6", "--no-timestamps").stdout
        self.assertEqual(text, out["text"] + "\n")
        self.assertEqual([(part["start"], part["end"], part["text"]) for part in out["segments"]], [(0.0, 1.24, out["text"])])
        with open(path, "rb") as file:
            self.assertEqual(self.transcribe("-", stdin=file.read()), out)

    def test_encodings_of_the_same_sound(self):
        samples = [round(x * 64) / 64 for x in tone(16000)]
        expected = self.transcribe(self.file("floats.wav", wav([samples], bits=32, encoding=3)))
        for bits in (16, 24, 32):
            self.assertEqual(self.transcribe(self.file("pcm.wav", wav([samples], bits=bits))), expected)
        # Channels are averaged.
        stereo = wav([samples, samples], channels=2, bits=32, encoding=3)
        self.assertEqual(self.transcribe(self.file("stereo.wav", stereo)), expected)

    def test_long_sounds_come_in_windows(self):
        out = self.transcribe(self.file("long.wav", wav([tone(70400)])))
        self.assertEqual([(part["start"], part["end"]) for part in out["segments"]], [(0.0, 2.0), (2.0, 4.0), (4.0, 4.4)])
        self.assertEqual(out["text"], "".join(part["text"] for part in out["segments"]))

    def test_prompt(self):
        path = self.file("tone.wav", wav([tone(20000)]))
        self.assertEqual(self.transcribe(path, "--prompt", "<s>"), self.transcribe(path))

    def test_the_prompt_of_generation_config(self):
        path = self.file("tone.wav", wav([tone(20000)]))
        model = os.path.join(self.folder, "configured")
        shutil.copytree(self.model, model)
        config = {"eos_token_id": 1, "no_timestamps_token_id": 6, "lang_to_id": {"<|en|>": 3, "<|fr|>": 4},
                  "task_to_id": {"transcribe": 5}}
        with open(os.path.join(model, "generation_config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        for language, named in (("en", "<s><unk><|im_end|><image>"), ("fr", "<s><|im_start|><|im_end|><image>")):
            out = json.loads(run("transcribe", "-m", model, path, "-n", "6", "--no-timestamps", "--json", "--language",
                                 language).stdout)
            self.assertEqual(out["language"], language)
            self.assertEqual(out["segments"], self.transcribe(path, "--prompt", named)["segments"])
        self.assert_fails("transcribe", "-m", model, path, "--language", "de", says="language: the model has no de")
        self.assert_fails("transcribe", "-m", model, path, "--task", "translate", says="task: the model has no translate")

    def test_what_cannot_be_read_is_refused(self):
        good = wav([tone(100)])
        for name, data, says in (
                ("empty.wav", b"", "does not begin as one"), ("ogg.wav", b"OggS" + bytes(40), "does not begin as one"),
                ("cut.wav", good[:-10], "cut short"), ("silent.wav", wav([[]]), "has no samples"),
                ("format.wav", good.replace(struct.pack("<HH", 1, 1), struct.pack("<HH", 7, 1), 1), "encoding 7"),
                ("rate.wav", wav([tone(100)], rate=8000), "8000 samples a second")):
            with self.subTest(name=name):
                self.assert_fails("transcribe", "-m", self.model, self.file(name, data), "--no-timestamps", says=says)
        path = self.file("tone.wav", good)
        self.assert_fails("transcribe", "-m", os.path.join(MODELS, "t5"), path, says="writes down no speech")
        self.assert_fails("transcribe", "-m", os.path.join(MODELS, "whisper"), path, "--no-timestamps",
                          says="preprocessor_config.json")
        self.assert_fails("transcribe", "-m", self.model, path, says="no_timestamps_token_id")
        self.assert_fails("transcribe", "-m", self.model, os.path.join(self.folder, "none.wav"), says="none.wav")
        self.assert_wrong_usage("transcribe", "-m", self.model, path, "--task", "sing", says="sing")

    def test_run_gives_the_prompt_to_the_encoder(self):
        model = os.path.join(MODELS, "t5")
        one = json.loads(run("run", "-m", model, "-p", "a brown fox", "-n", "8", "--json").stdout)
        other = json.loads(run("run", "-m", model, "-p", "of the night", "-n", "8", "--json").stdout)
        self.assertEqual(one["usage"]["prompt_tokens"], 1)
        self.assertNotEqual(one["tokens"], other["tokens"])


class Times(CommandTest):
    """On the tiny model of tests/data/transcription; times are what transformers gives (make_transcription.py)."""

    def test_times_of_segments(self):
        samples = [((31 * i * i + 17 * i) % 1009 - 504) * (i // 3700 % 5) / 2048 for i in range(59200)]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "noise.wav")
            with open(path, "wb") as file:
                file.write(wav([samples], bits=32, encoding=3))
            command = ("transcribe", "-m", TRANSCRIPTION, path, "--language", "fr", "-n", "24", "--kv-dtype", "f32")
            out = json.loads(run(*command, "--json").stdout)
            self.assertEqual(out["language"], "fr")
            self.assertEqual([round(part["start"], 6) for part in out["segments"]], [0.16, 0.4, 0.72, 1.4, 1.84, 2.84])
            lines = run(*command).stdout.splitlines()
            self.assertEqual(len(lines), 6)
            self.assertEqual(lines[0], "[00:00.160 --> 00:00.360]")

            # The end is more silent than the beginning, and all texts are less likely than that.
            silent = json.loads(run(*command[:-4], "-n", "12", "--kv-dtype", "f32", "--json", "--temperature", "0,1e-4",
                                    "--logprob-threshold", "0", "--no-speech-threshold", "0.00357608").stdout)
            self.assertEqual([round(part["start"], 6) for part in silent["segments"]], [0.16, 0.4, 0.72, 1.4])
            told = json.loads(run(*command[:-4], "-n", "12", "--kv-dtype", "f32", "--json", "--condition-on-prev-tokens",
                                  "--compression-ratio-threshold", "9").stdout)
            self.assertEqual([round(part["start"], 6) for part in told["segments"]], [0.16, 0.36, 1.36, 2.36, 3.36])
            for wrong in ("", "0,,1", "warm", "0,1x"):
                self.assert_wrong_usage(*command, "--temperature", wrong, says="is no number")
            self.assert_fails(*command, "--temperature", "0,-1", says="temperatures[1]")
            self.assert_fails(*command, "--no-speech-threshold", "0.6", says="no_speech_threshold")
            self.assert_fails(*command, "--logprob-threshold", "nan", says="logprob_threshold")


if __name__ == "__main__":
    unittest.main()
