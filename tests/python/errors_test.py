"""What fails raises: headrace.Error with code, status, message and place where the library refuses, TypeError where Python's
types do. On a tiny model with text that is written for the tests."""

import os
import pathlib
import tempfile
import unittest

import numpy as np

import headrace
import tiny_text_model
from tiny_text_model import LLAMA


class Errors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.model = headrace.Model.load(tiny_text_model.write(cls.folder), threads=1)
        cls.scheduler = headrace.Scheduler(cls.model)

    def assert_error(self, status, place, call, *arguments, **keywords):
        with self.assertRaises(headrace.Error) as caught:
            call(*arguments, **keywords)
        error = caught.exception
        self.assertEqual((error.status, error.place), (status, place), error)
        self.assertGreater(error.code, 0)
        self.assertTrue(error.message)
        self.assertEqual(str(error), f"{error.place}: {error.message}" if error.place else error.message)
        return error

    def test_codes_are_the_headers(self):
        self.assertEqual(self.assert_error("HEADRACE_NOT_FOUND", "/nowhere", headrace.Model.load, "/nowhere").code, 2)
        self.assertEqual(self.assert_error("HEADRACE_INVALID_ARGUMENT", "n", self.scheduler.generate, "x", n=0).code, 1)
        self.assertTrue(issubclass(headrace.Error, Exception))

    def test_files(self):
        path = os.path.join(self.folder, "nowhere")
        for call in (headrace.Model.load, headrace.Tokenizer.load, headrace.ChatTemplate.load, headrace.inspect):
            self.assert_error("HEADRACE_NOT_FOUND", path, call, path)
        with open(os.path.join(LLAMA, "model.gguf"), "rb") as file:
            data = file.read()
        cut = os.path.join(self.folder, "cut.gguf")
        with open(cut, "wb") as file:
            file.write(data[:2000])
        for call in (headrace.Model.load, headrace.inspect):
            with self.assertRaises(headrace.Error) as caught:
                call(cut)
            self.assertEqual(caught.exception.status, "HEADRACE_MALFORMED")
            self.assertTrue(caught.exception.place)

    def test_options(self):
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "kv.dtype", headrace.KVCache, self.model, kv_dtype="q9")
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "engine.threads", headrace.Model.load, LLAMA, threads="many")
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "engine.thread", headrace.Model.load, LLAMA,
                          options={"engine.thread": 1})
        for bad in (3, "text", ["engine.threads"]):
            with self.assertRaises(TypeError):
                headrace.Model.load(LLAMA, options=bad)

    def test_templates(self):
        self.assert_error("HEADRACE_MALFORMED", "line 2, column 7", headrace.ChatTemplate, "text\n{% if %}")
        raising = headrace.ChatTemplate("{% for m in messages %}\n{{ raise_exception('Roles must alternate') }}{% endfor %}")
        error = self.assert_error("HEADRACE_INVALID_ARGUMENT", "line 2, column 19", raising.render, [{"role": "user"}])
        self.assertEqual(error.message, "Roles must alternate")

    def test_requests(self):
        generate = self.scheduler.generate
        for place, arguments in (("temperature", {"temperature": -1}), ("top_p", {"top_p": 3}), ("n", {"n": 0}),
                                 ("min_p", {"min_p": float("nan")}), ("stop_strings", {"stop": ""})):
            self.assert_error("HEADRACE_INVALID_ARGUMENT", place, generate, "hello", **arguments)
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "prompt", generate, [])
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "tokens[1]", generate, [5, 999])
        self.assert_error("HEADRACE_RESOURCE_EXHAUSTED", "prompt", generate, "x" * 300)
        self.assert_error("HEADRACE_NOT_FOUND", "request_id", self.scheduler.cancel, 12345)
        self.assertIsNone(self.scheduler.next_event(12345))
        # Refused requests leave nothing behind.
        self.assertFalse(self.scheduler.step())
        self.assertEqual(len(generate("hello", max_tokens=3, ignore_eos=True).tokens), 3)

    def test_tokens_outside_the_vocabulary(self):
        tokenizer = self.model.tokenizer
        for token in (-1, tokenizer.vocab_size, 2**31 - 1):
            error = self.assert_error("HEADRACE_INVALID_ARGUMENT", "tokens[2]", tokenizer.decode, [5, 6, token])
            self.assertIn(str(token), error.message)
            self.assert_error("HEADRACE_NOT_FOUND", "token_id", tokenizer.token_bytes, token)
        with self.assertRaises(TypeError):
            tokenizer.decode([2**31])

    def test_text_that_is_none(self):
        lone = "a\ud800"
        session = headrace.Session(self.model)
        template = self.model.chat_template
        tokenizer = self.model.tokenizer
        for call in (lambda: self.scheduler.generate(lone), lambda: self.scheduler.generate("a", stop=lone),
                     lambda: self.scheduler.generate("a", stop=[lone]), lambda: tokenizer.encode(lone),
                     lambda: self.scheduler.generate([{"role": "user", "content": lone}]),
                     lambda: template.render([{"role": "user", "content": lone}]),
                     lambda: session.append_text(lone), lambda: session.append_message("user", lone),
                     lambda: headrace.ChatTemplate(lone), lambda: tokenizer.token_id(lone)):
            with self.assertRaisesRegex(ValueError, "surrogates"):
                call()

    def test_progress(self):
        for answer in (None, True):
            headrace.Model.load(self.folder, progress=lambda fraction: answer, threads=1)
        with self.assertRaises(headrace.Error) as caught:
            headrace.Model.load(self.folder, progress=lambda fraction: False, threads=1)
        self.assertEqual(caught.exception.status, "HEADRACE_CANCELLED")
        for answer in ("yes", 0, 1.5):
            with self.assertRaisesRegex(TypeError, "progress: it returned"):
                headrace.Model.load(self.folder, progress=lambda fraction: answer, threads=1)
        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            headrace.Model.load(self.folder, progress=lambda fraction: 1 / 0, threads=1)
        with self.assertRaisesRegex(TypeError, "progress"):
            headrace.Model.load(self.folder, progress=3, threads=1)

    def test_paths_of_every_kind(self):
        text = "".join(self.model.tokenizer.decode([9]))
        for path in (pathlib.Path(self.folder), os.fsencode(self.folder)):
            self.assertEqual(headrace.Model.load(path, threads=1).info, self.model.info)
            self.assertEqual(headrace.Tokenizer.load(path).decode([9]), text)
            headrace.ChatTemplate.load(path)
            headrace.inspect(path)
        cache = headrace.KVCache(self.model)
        session = headrace.Session(self.model, cache)
        session.append_tokens([5, 6])
        saved = pathlib.Path(self.folder) / "saved"
        session.save(saved)
        self.assertEqual(headrace.Session.restore(self.model, cache, saved).tokens, [5, 6])
        saved.unlink()
        for call in (headrace.Model.load, headrace.Tokenizer.load, headrace.ChatTemplate.load, headrace.inspect,
                     session.save):
            with self.assertRaises(TypeError):
                call(3)

    def test_times(self):
        template = headrace.ChatTemplate("{{ strftime_now('%Y-%m-%d %H') }}")
        messages = [{"role": "user", "content": ""}]
        for now, text in ((0, "1970-01-01 00"), (86399.9, "1970-01-01 23"), ("2001-02-03", "2001-02-03 00"),
                          (np.float64(3600), "1970-01-01 01"), ("9999-12-31", "9999-12-31 00")):
            self.assertEqual(template.render(messages, now=now), text)
        for now in (-86400, -1, "1969-12-30", 1e30, float("nan"), float("inf"), "not a time"):
            with self.subTest(now=now), self.assertRaises(ValueError):
                template.render(messages, now=now)
        with self.assertRaisesRegex(TypeError, "now: "):
            template.render(messages, now=[1])

    def test_a_model_without_a_tokenizer(self):
        model = headrace.Model.load(LLAMA, threads=1)
        for call in (lambda: model.tokenizer, lambda: headrace.Scheduler(model).generate("text")):
            with self.assertRaises(headrace.Error) as caught:
                call()
            self.assertEqual(caught.exception.place, "tokenizer")
        with self.assertRaises(headrace.Error) as caught:
            model.chat_template
        self.assertEqual(caught.exception.status, "HEADRACE_NOT_FOUND")

    def test_wrong_types(self):
        generate = self.scheduler.generate
        for name, value in (("temperature", "hot"), ("top_k", 2**40), ("n", -1), ("stop", [1]), ("stop_token_ids", 5),
                            ("logit_bias", [1]), ("session", "mine"), ("seed", -1)):
            with self.subTest(name=name), self.assertRaisesRegex(TypeError, name + ": "):
                generate("hello", **{name: value})
        for prompt in (3.5, [1.5], {"role": "user"}, ["a", "b"]):
            with self.subTest(prompt=prompt), self.assertRaisesRegex(TypeError, "prompt: "):
                generate(prompt)
        with self.assertRaisesRegex(TypeError, "temperatur"):
            generate("hello", temperatur=1)
        self.assertFalse(self.scheduler.step())

    def test_none_is_the_default(self):
        expected = self.scheduler.generate("hello", max_tokens=4, ignore_eos=True)
        names = ("temperature", "top_k", "n", "seed", "stop", "logprobs", "prompt_logprobs", "session", "deadline_ms")
        output = self.scheduler.generate("hello", max_tokens=4, ignore_eos=True, **dict.fromkeys(names))
        self.assertEqual((output.tokens, output.logprobs), (expected.tokens, None))

    def test_prompts_of_each_kind(self):
        arguments = dict(max_tokens=4, ignore_eos=True)
        messages = [{"role": "user", "content": "hi"}]
        chat = self.scheduler.generate(messages, **arguments).tokens
        prompt = self.model.chat_template.render_prompt(messages)
        self.assertEqual(self.scheduler.generate(prompt, **arguments).tokens, chat)
        tokens = self.model.tokenizer.encode_prompt(prompt)
        for sequence in (tokens, tuple(tokens)):
            self.assertEqual(self.scheduler.generate(sequence, **arguments).tokens, chat)
        self.assertEqual(self.scheduler.generate(np.array(tokens), **arguments).tokens, chat)


if __name__ == "__main__":
    unittest.main()
