"""`headrace embed`, on tiny models that are written for the tests."""

import json
import os
import tempfile

import tiny_encoder
import tiny_text_model
from headrace_command import CommandTest, run


class Embed(CommandTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)

        def path(name):
            made = os.path.join(folder.name, name)
            os.mkdir(made)
            return made

        cls.encoder = tiny_encoder.write(path("encoder"), pooling="cls_token")
        cls.scorer = tiny_encoder.write(path("scorer"), labels=2)
        cls.decoder = tiny_text_model.write(path("decoder"))

    def lines(self, *arguments, stdin=""):
        return [json.loads(line) for line in run("embed", *arguments, stdin=stdin).stdout.splitlines()]

    def test_a_line_for_each_text(self):
        out = self.lines("-m", self.encoder, "hello", "two words")
        self.assertEqual([line["text"] for line in out], ["hello", "two words"])
        for line in out:
            self.assertEqual(len(line["embedding"]), tiny_encoder.SIZE)
            self.assertAlmostEqual(sum(x * x for x in line["embedding"]), 1, places=5)
        self.assertEqual(self.lines("-m", self.encoder, "two words"), out[1:])
        self.assertEqual(self.lines("-m", self.encoder, "--pooling", "cls", "hello"), out[:1])
        self.assertEqual(self.lines("-m", self.encoder, stdin="hello\ntwo words\r\n"), out)
        plain = self.lines("-m", self.encoder, "--normalize", "false", "hello")[0]["embedding"]
        self.assertNotAlmostEqual(sum(x * x for x in plain), 1, places=2)

    def test_rows_of_tokens_and_scores(self):
        (out,) = self.lines("-m", self.encoder, "--pooling", "none", "abc")
        self.assertEqual([len(row) for row in out["embeddings"]], [tiny_encoder.SIZE] * 4)  # <s> and three letters
        (out,) = self.lines("-m", self.scorer, "abc")
        self.assertEqual(len(out["embedding"]), 2)
        (out,) = self.lines("-m", self.decoder, "--pooling", "last", "abc")
        self.assertAlmostEqual(sum(x * x for x in out["embedding"]), 1, places=5)

    def test_what_is_refused(self):
        self.assert_fails("embed", "-m", self.encoder, "", says="texts[0]")
        self.assert_fails("embed", "-m", self.encoder, says="standard input")
        self.assert_fails("embed", "-m", self.encoder, "x" * 64, says=("sequences[0]", "65 tokens exceed"))
        self.assert_fails("embed", "-m", self.encoder, "--pooling", "median", "a", says="embedder.pooling")
        self.assert_fails("embed", "-m", self.decoder, "a", says=("embedder.pooling", "choose mean, cls or last"))
        self.assert_fails("embed", "-m", self.decoder, "--pooling", "cls", "a", says="embedder.pooling")
        self.assert_fails("embed", "-m", self.encoder, "--set", "embedder.pooling=cls", "a", says="embedder.pooling")
        self.assert_fails("run", "-m", self.encoder, "-p", "a", "--raw", says=("model", "bert"))
        self.assert_wrong_usage("embed", "a", says="--model is required")
