"""The `headrace` command. HEADRACE_CLI names the binary."""

import json
import math
import os
import subprocess
import tempfile
import unittest

import numpy as np

CLI = os.environ["HEADRACE_CLI"]
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.environ.get("HEADRACE_TEST_DATA", "")
LLAMA = os.path.join(SOURCE, "tests", "data", "goldens", "llama")
TOKENIZER = os.path.join(SOURCE, "tests", "data", "tokenizers", "qwen2")


def run(*arguments, stdin="", code=0):
    result = subprocess.run([CLI, *arguments], input=stdin, capture_output=True, text=True, timeout=120)
    assert result.returncode == code, (arguments, result.returncode, result.stderr)
    if code == 0:
        assert result.stderr == "", result.stderr  # quiet where standard error is no terminal
    return result


class Usage(unittest.TestCase):
    def test_help(self):
        for command in ("run", "chat", "tokenize", "template", "inspect", "logits", "eval", "bench"):
            self.assertIn("--help", run(command, "--help").stdout)

    def test_exit_codes(self):
        run(code=2)
        run("nothing", code=2)
        run("run", "--nothing", code=2)
        for arguments in (("run", "-m", "/nowhere", "-p", "x"), ("inspect", "/nowhere"), ("tokenize", "-m", "/nowhere")):
            self.assertIn("headrace: error:", run(*arguments, code=1).stderr)


class Commands(unittest.TestCase):
    def test_tokenize(self):
        out = json.loads(run("tokenize", "-m", TOKENIZER, "--json", stdin="<|im_start|>").stdout)
        self.assertEqual(out["count"], 1)
        out = json.loads(run("tokenize", "-m", TOKENIZER, "--json", "--no-special", stdin="<|im_start|>").stdout)
        self.assertGreater(out["count"], 1)
        self.assertEqual("".join(out["pieces"]), "<|im_start|>")

    def test_template(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "chat.jinja")
            with open(path, "w") as file:
                file.write("{% for m in messages %}[{{ m.content }}]{% endfor %}{{ tools | length if tools else 0 }}")
            tools = os.path.join(folder, "tools.json")
            with open(tools, "w") as file:
                file.write('[{"type": "function"}]')
            messages = '[{"role": "user", "content": "hi"}]'
            self.assertEqual(run("template", "--template-file", path, "-", stdin=messages).stdout, "[hi]0")
            out = json.loads(run("template", "--template-file", path, "-", "--tools", tools, "--json", stdin=messages).stdout)
            self.assertEqual(out["text"], "[hi]1")
            self.assertTrue(any(span["is_content"] for span in out["spans"]))
            self.assertIn("headrace: error:", run("template", "--template-file", path, "-", stdin="[", code=1).stderr)

    def test_inspect(self):
        self.assertIn("architecture", json.loads(run("inspect", LLAMA, "--memory", "1G", "--json").stdout))
        run("inspect", LLAMA, "--memory", "much", code=1)

    def test_logits(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "logits.npy")
            out = json.loads(run("logits", "-m", LLAMA, "--tokens", "5,6,7", "-o", path, "--json").stdout)
            logits = np.load(path)
            self.assertEqual(list(logits.shape), out["shape"])
            self.assertEqual(logits.dtype, np.float32)
            self.assertTrue(np.isfinite(logits).all())

    def test_bench(self):
        arguments = ("--prompt-tokens", "16", "--gen-tokens", "8", "--repeats", "1", "--json")
        out = json.loads(run("bench", "-m", os.path.join(DATA, "goldens", "models", "llama"), *arguments).stdout) if DATA else None
        if out is None:
            self.skipTest("no model with a tokenizer in HEADRACE_TEST_DATA")
        for key in ("prefill_tokens_per_second", "decode_tokens_per_second", "load_seconds", "peak_bytes"):
            self.assertGreater(out[key], 0)
        self.assertTrue(out["isa"])

    def test_eval(self):
        model = os.path.join(DATA, "goldens", "models", "llama")
        if not DATA or not os.path.isdir(model):
            self.skipTest("no model with a tokenizer in HEADRACE_TEST_DATA")
        with tempfile.TemporaryDirectory() as folder:
            text, reference = os.path.join(folder, "text"), os.path.join(folder, "reference")
            with open(text, "w") as file:
                file.write("The quick brown fox jumps over the lazy dog. " * 20)
            arguments = ("eval", "-m", model, "--text", text, "--context", "64", "--tokens", "64", "--json")
            saved = json.loads(run(*arguments, "--save-reference", reference).stdout)
            same = json.loads(run(*arguments, "--reference", reference).stdout)
            self.assertEqual(saved["perplexity"], same["perplexity"])
            self.assertLess(abs(same["mean_kl"]), 1e-7)
            self.assertEqual(same["top1_agreement"], 1)
            # Perplexity by NumPy, from the logits of the tokens that the reference file holds.
            tokens = np.fromfile(reference, "<i4", offset=20, count=64).tolist()
            path = os.path.join(folder, "logits.npy")
            run("logits", "-m", model, "--tokens", ",".join(map(str, tokens)), "-o", path)
            logits = np.load(path).astype(np.float64)[32:63]
            losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(31), tokens[33:64]]
            self.assertTrue(math.isclose(math.exp(losses.mean()), saved["perplexity"], rel_tol=1e-9))


if __name__ == "__main__":
    unittest.main()
