"""Model.embed: against the goldens of encoders where they are, and its laws on tiny models written here."""

import os
import tempfile
import unittest

import numpy as np

import headrace
import tiny_encoder
import tiny_text_model
from headrace_test import DATA, read_safetensors, tolerance

MODELS = os.path.join(DATA, "goldens", "models")
ENCODERS = ("bert", "roberta_mlm", "nomic_bert", "modernbert")


@unittest.skipUnless(DATA and os.path.exists(os.path.join(MODELS, "bert")), "HEADRACE_TEST_DATA is not there")
class Goldens(unittest.TestCase):
    def check(self, model, name):
        folder = os.path.join(MODELS, name)
        golden, allowed = read_safetensors(os.path.join(folder, "golden.safetensors")), tolerance(folder)
        cases = [key.split(".")[0] for key in golden if key.endswith(".input_ids")]
        sequences = [golden[case + ".input_ids"].tolist() for case in cases]
        kinds = {"mean": "mean_embedding", "cls": "cls_embedding", "none": "hidden"}
        if cases[0] + ".pooler" in golden and model.describe().get("head") == "transform":
            kinds["pooler"] = "pooler"
        if cases[0] + ".logits" in golden and "head" not in model.describe():
            kinds["logits"] = "logits"
        for pooling, key in kinds.items():
            for case, row in zip(cases, model.embed(sequences, pooling=pooling)):
                with self.subTest(model=name, pooling=pooling, case=case):
                    self.assertEqual(row.shape, golden[f"{case}.{key}"].shape)
                    self.assertLessEqual(np.abs(row - golden[f"{case}.{key}"]).max(), allowed)
        return kinds

    def test_folders(self):
        for name in ENCODERS:
            kinds = self.check(headrace.Model.load(os.path.join(MODELS, name)), name)
            self.assertEqual("pooler" in kinds, name == "bert")
            self.assertEqual("logits" in kinds, name in ("roberta_mlm", "modernbert"))

    def test_gguf(self):
        self.check(headrace.Model.load(os.path.join(DATA, "goldens", "gguf", "bert.gguf")), "bert")


class Embed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        def load(write, **arguments):
            with tempfile.TemporaryDirectory() as folder:
                return headrace.Model.load(write(folder, **arguments))

        cls.encoder = load(tiny_encoder.write, pooling="mean_tokens")
        cls.scorer = load(tiny_encoder.write, labels=3)
        cls.decoder = load(tiny_text_model.write)

    def test_wrong_types_are_named(self):
        for texts in ([1, 2, 3], [[1.5]], [[2**31]], [b"abc"]):
            with self.assertRaisesRegex(TypeError, "texts"):
                self.encoder.embed(texts, pooling="mean")
        for types in ([0, 0, 1], [], [["a"]], 5):
            with self.assertRaisesRegex(TypeError, "token_types"):
                self.encoder.embed([[1, 2, 3]], pooling="mean", token_types=types)

    def test_shapes(self):
        texts = ["hello", "a longer text", "x"]
        rows = self.encoder.embed(texts)
        self.assertEqual((rows.dtype, rows.shape), (np.float32, (3, tiny_encoder.SIZE)))
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)
        np.testing.assert_array_equal(self.encoder.embed(texts[1]), rows[1])
        np.testing.assert_array_equal(self.encoder.embed(texts, pooling="mean"), rows)
        np.testing.assert_array_equal(self.encoder.embed([self.encoder.tokenizer.encode(text) for text in texts]), rows)
        self.assertEqual(self.encoder.embed([]).shape, (0, tiny_encoder.SIZE))
        every = self.encoder.embed(texts, pooling="none")
        self.assertEqual([part.shape[0] for part in every], [len(self.encoder.tokenizer.encode(text)) for text in texts])
        np.testing.assert_array_equal(self.encoder.embed(texts[1], pooling="none"), every[1])
        plain = self.encoder.embed(texts, normalize=False)
        np.testing.assert_allclose(plain[0], every[0].mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(plain / np.linalg.norm(plain, axis=1, keepdims=True), rows, rtol=1e-5, atol=1e-6)
        self.assertEqual(self.scorer.embed(texts).shape, (3, 3))
        self.assertFalse(np.array_equal(self.encoder.embed(texts, add_special=False), rows))

    def test_neighbours_do_not_matter(self):
        texts = ["one", "two and more", "three" * 8]
        for model, pooling in ((self.encoder, "mean"), (self.scorer, "score"), (self.decoder, "last")):
            rows = model.embed(texts, pooling=pooling)
            for text, row in zip(texts, rows):
                np.testing.assert_array_equal(model.embed(text, pooling=pooling), row)
            small = model.embed(texts, pooling=pooling, options={"embedder.max_num_batched_tokens": 4})
            np.testing.assert_array_equal(small, rows)

    def test_segments(self):
        sequences = [[4, 5, 6], [7, 8]]
        plain = self.encoder.embed(sequences)
        other = self.encoder.embed(sequences, token_types=[[0, 0, 0], [0, 1]])
        np.testing.assert_array_equal(other[0], plain[0])
        self.assertFalse(np.array_equal(other[1], plain[1]))

    def test_decoders(self):
        rows = self.decoder.embed(["hello", "world"], pooling="last")
        every = self.decoder.embed(["hello", "world"], pooling="none")
        np.testing.assert_allclose(rows[0], every[0][-1] / np.linalg.norm(every[0][-1]), rtol=1e-5, atol=1e-6)
        tokens = self.decoder.tokenizer.encode("hello")
        np.testing.assert_array_equal(self.decoder.embed([tokens], pooling="logits")[0],
                                      self.decoder.logits(tokens, kv_dtype="f32"))

    def test_errors(self):
        def fails(place, call):
            with self.assertRaises(headrace.Error) as caught:
                call()
            self.assertEqual(caught.exception.place, place)
            return caught.exception

        fails("texts[1]", lambda: self.encoder.embed(["a", ""]))
        fails("sequences[0]", lambda: self.encoder.embed([[]]))
        fails("tokens[0]", lambda: self.encoder.embed([[1000]]))
        error = fails("sequences[1]", lambda: self.encoder.embed(["a", "b" * 64]))
        self.assertEqual(error.status, "HEADRACE_RESOURCE_EXHAUSTED")
        fails("embedder.pooling", lambda: self.encoder.embed("a", pooling="median"))
        fails("embedder.pooling", lambda: self.decoder.embed("a"))
        fails("embedder.pooling", lambda: self.decoder.embed("a", pooling="cls"))
        fails("embedder.normalize", lambda: self.scorer.embed("a", normalize=True))
        self.assertEqual(fails("model", lambda: headrace.Scheduler(self.encoder)).status, "HEADRACE_UNSUPPORTED")
        self.assertEqual(fails("model", lambda: self.encoder.logits([4, 5])).status, "HEADRACE_UNSUPPORTED")
        for texts in (5, b"bytes", ["a", [4]], [[4], "a"], [1.5], [["a"]]):
            with self.assertRaises((TypeError, RuntimeError)):
                self.encoder.embed(texts)
        with self.assertRaises(TypeError):
            self.encoder.embed("a", token_types=[[0]])
        with self.assertRaises(TypeError):
            self.encoder.embed("a", nonsense=1)


if __name__ == "__main__":
    unittest.main()
