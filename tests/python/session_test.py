"""Sessions through the Python module: messages, tokens, fork, rewind, save and restore. On a tiny model with text that is
written for the tests."""

import os
import tempfile
import unittest

import numpy as np

import headrace
import tiny_text_model
from tiny_text_model import ASSISTANT, BOS, END, USER


class SessionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.model = headrace.Model.load(tiny_text_model.write(cls.folder), threads=1)
        cls.tokenizer = cls.model.tokenizer

    def setUp(self):
        self.cache = headrace.KVCache(self.model)
        self.scheduler = headrace.Scheduler(self.model, self.cache)

    def session(self):
        return headrace.Session(self.model, self.cache)

    def reply(self, session, **arguments):
        arguments = {"max_tokens": 8, "ignore_eos": True, **arguments}
        return self.scheduler.generate(None, session=session, **arguments)

    def text_tokens(self, text):
        return self.tokenizer.encode(text, special=False, add_special=False)

    def assert_error(self, status, place, call, *arguments, **keywords):
        with self.assertRaises(headrace.Error) as caught:
            call(*arguments, **keywords)
        self.assertEqual((caught.exception.status, caught.exception.place), (status, place), caught.exception)


class Messages(SessionTest):
    def test_a_conversation(self):
        session = self.session()
        messages = []
        for text in ("one", "two", "three"):
            session.append_message("user", text)
            messages.append({"role": "user", "content": text})
            output = self.reply(session)
            # The same words without a session, rendered at once by the template, in a cache of its own.
            expected = headrace.Scheduler(self.model).generate(messages, max_tokens=8, ignore_eos=True)
            self.assertEqual(output.text, expected.text)
            messages.append({"role": "assistant", "content": output.text})
        # Only the last message is new to the cache: what is before it is found there.
        self.assertGreater(output.usage["cached_tokens"], 0)

    def test_tokens_of_a_conversation(self):
        session = self.session()
        self.assertEqual(session.tokens, [])
        session.append_message("user", "hi <|end|>")
        output = self.reply(session, max_tokens=2)
        # What a message says is plain text, the template's special tokens are tokens.
        self.assertEqual(session.tokens,
                         [BOS, USER, *self.text_tokens("hi <|end|>"), END, ASSISTANT, *output.tokens])
        self.assertEqual(output.usage["prompt_tokens"], len(session.tokens) - 2)

    def test_stream(self):
        sessions = [self.session(), self.session()]
        for session in sessions:
            session.append_message("user", "one")
        text = "".join(self.scheduler.stream(None, session=sessions[0], max_tokens=8, ignore_eos=True))
        self.assertEqual(text, self.reply(sessions[1]).text)
        for session in sessions:
            session.append_message("user", "two")
        self.assertEqual(self.reply(sessions[0]).text, self.reply(sessions[1]).text)

    def test_fork(self):
        session = self.session()
        session.append_message("user", "one")
        self.reply(session)
        fork = session.fork()
        self.assertEqual(fork.tokens, session.tokens)
        fork.append_message("user", "aside")
        self.reply(fork)
        straight, again = session.fork(), session
        for which in (straight, again):
            which.append_message("user", "two")
        self.assertEqual(self.reply(straight).text, self.reply(again).text)  # the aside left no trace

    def test_rewind_forgets_messages(self):
        session = self.session()
        session.append_message("user", "one")
        first = self.reply(session).text
        session.rewind(0)
        self.assertEqual(session.tokens, [])
        session.append_message("user", "one")
        self.assertEqual(self.reply(session).text, first)

    def test_save_and_restore(self):
        path = os.path.join(self.folder, "conversation")
        session = self.session()
        session.append_message("user", "one")
        self.reply(session)
        session.save(path)
        session.append_message("user", "two")
        expected = self.reply(session)
        cache = headrace.KVCache(self.model)
        restored = headrace.Session.restore(self.model, cache, path)
        restored.append_message("user", "two")
        output = headrace.Scheduler(self.model, cache).generate(None, session=restored, max_tokens=8, ignore_eos=True)
        self.assertEqual((output.text, output.tokens), (expected.text, expected.tokens))
        self.assertEqual(restored.tokens, session.tokens)

    def test_messages_and_text_do_not_mix(self):
        session = self.session()
        session.append_message("user", "one")
        self.assert_error("HEADRACE_FAILED_PRECONDITION", "session", session.append_text, "x")
        self.assert_error("HEADRACE_FAILED_PRECONDITION", "session", session.append_tokens, [5])
        session = self.session()
        session.append_text("x")
        self.assert_error("HEADRACE_FAILED_PRECONDITION", "session", session.append_message, "user", "one")


class Overflow(SessionTest):
    CONTEXT = 128

    def setUp(self):
        self.cache = headrace.KVCache(self.model, options={"kv.max_tokens": str(self.CONTEXT)})
        self.scheduler = headrace.Scheduler(self.model, self.cache, options={"kv.max_tokens": str(self.CONTEXT)})

    def session(self):
        return headrace.Session(self.model, self.cache, options={"kv.max_tokens": str(self.CONTEXT)})

    def talk(self, session, turns):
        for turn in range(turns):
            session.append_message("user", f"{turn}" * 20)
            self.reply(session, max_tokens=4)

    def test_refused_with_the_counts_unless_a_policy_says_otherwise(self):
        session = self.session()
        session.drop_overflow(1)
        session.refuse_overflow()
        with self.assertRaises(headrace.Error) as caught:
            self.talk(session, 8)
        self.assertEqual(caught.exception.status, "HEADRACE_RESOURCE_EXHAUSTED")
        self.assertEqual(session.dropped, {"times": 0, "messages": 0, "tokens": 0})

    def test_old_messages_go(self):
        session = self.session()
        session.append_message("system", "be kind")
        session.drop_overflow(1, free_tokens=32)
        self.talk(session, 8)
        self.assertLessEqual(len(session.tokens), self.CONTEXT)
        dropped = session.dropped
        self.assertGreater(dropped["times"], 0)
        self.assertGreaterEqual(dropped["messages"], 2)
        self.assertIn("be kind", self.tokenizer.decode(session.tokens))

    def test_a_summary_takes_their_place(self):
        seen = []

        def summarize(dropped):
            seen.extend(dropped)
            return [{"role": "user", "content": "in short"}]

        session = self.session()
        session.summarize_overflow(summarize, 0)
        self.talk(session, 8)
        self.assertEqual(seen[0], {"role": "user", "content": "0" * 20})
        self.assertIn("in short", self.tokenizer.decode(session.tokens))

    def test_what_a_summary_raises_fails_the_request_alone(self):
        def summarize(dropped):
            raise ValueError("no")

        session = self.session()
        session.summarize_overflow(summarize, 0)
        with self.assertRaises(headrace.Error):
            self.talk(session, 8)
        session.drop_overflow(0)
        self.reply(session, max_tokens=4)
        self.assertGreater(session.dropped["times"], 0)

    def test_messages_are_edited(self):
        session = self.session()
        self.talk(session, 2)
        session.set_message(0, "another")
        session.truncate_messages(1)
        expected = self.session()
        expected.append_message("user", "another")
        self.assertEqual(self.reply(session, max_tokens=4).text, self.reply(expected, max_tokens=4).text)
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "index", session.set_message, 9, "x")


class Tokens(SessionTest):
    def test_text(self):
        session = self.session()
        session.append_text("hi<|end|>")
        self.assertEqual(session.tokens, [BOS, *self.text_tokens("hi<|end|>")])
        session.append_text("hi<|end|>", special=True, add_special=False)
        self.assertEqual(session.tokens[-3:], [*self.text_tokens("hi"), END])

    def test_output_is_appended(self):
        session = self.session()
        session.append_text("hello")
        output = self.reply(session)
        self.assertEqual(session.tokens, [*self.tokenizer.encode("hello"), *output.tokens])
        self.assertEqual(output.tokens, headrace.Scheduler(self.model).generate("hello", max_tokens=8, ignore_eos=True).tokens)
        # A prompt of the request comes behind what the session has.
        more = self.scheduler.generate([5, 6], session=session, max_tokens=1, ignore_eos=True)
        self.assertEqual(session.tokens[-3:], [5, 6, *more.tokens])

    def test_evaluate_fork_and_rewind(self):
        past, following, other = list(range(10, 50)), [7, 8, 9], [60, 61]
        expected = self.model.logits(past + following)
        session = self.session()
        np.testing.assert_array_equal(session.evaluate(past), expected[:40])
        fork = session.fork()
        fork.evaluate(other)
        np.testing.assert_array_equal(session.evaluate(following, chunk=2), expected[40:])
        self.assertEqual((session.tokens, fork.tokens), (past + following, past + other))
        # Rewound into the middle of a block, and behind the fork.
        for length in (40, 37, 16, 5):
            fork.rewind(length)
            self.assertEqual(fork.tokens, past[:length])
            np.testing.assert_array_equal(fork.evaluate(past[length:] + following), expected[length:])
        self.assertEqual(session.evaluate([]).shape, (0, 96))

    def test_evaluate_without_logits(self):
        past = list(range(10, 50))
        expected = self.model.logits(past + [7])[40:]
        for chunk in (None, 16):
            cache = headrace.KVCache(self.model, prefix_index=False)
            session = headrace.Session(self.model, cache)
            self.assertIsNone(session.evaluate(past, chunk=chunk, logits=False))
            self.assertEqual(session.tokens, past)
            # Computed at once, not when something follows: the blocks are taken.
            self.assertEqual(cache.stats["num_blocks"] - cache.stats["free_blocks"], -(-40 // cache.stats["block_size"]))
            np.testing.assert_array_equal(session.evaluate([7]), expected)
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "tokens[0]", session.evaluate, [999], logits=False)

    def test_save_and_restore(self):
        path = os.path.join(self.folder, "tokens")
        session = self.session()
        session.evaluate(list(range(10, 50)))
        session.save(path)
        expected = session.evaluate([7, 8])
        cache = headrace.KVCache(self.model)
        restored = headrace.Session.restore(self.model, cache, path)
        self.assertEqual(restored.tokens, list(range(10, 50)))
        np.testing.assert_array_equal(restored.evaluate([7, 8]), expected)

    def test_restore_refuses(self):
        path = os.path.join(self.folder, "refused")
        session = self.session()
        session.evaluate(list(range(10, 50)))
        session.save(path)
        restore = headrace.Session.restore
        self.assert_error("HEADRACE_FAILED_PRECONDITION", path, restore, self.model,
                          headrace.KVCache(self.model, kv_dtype="f32"), path)
        other = headrace.Model.load(os.path.join(tiny_text_model.SOURCE, "tests", "data", "goldens", "qwen3"), threads=1)
        self.assert_error("HEADRACE_FAILED_PRECONDITION", path, restore, other, headrace.KVCache(other), path)
        with open(path, "rb") as file:
            data = bytearray(file.read())
        data[len(data) // 2] ^= 1
        for damaged in (data, data[:-1], data[:20], b""):
            with open(path, "wb") as file:
                file.write(damaged)
            self.assert_error("HEADRACE_MALFORMED", path, restore, self.model, self.cache, path)
        missing = os.path.join(self.folder, "missing")
        self.assert_error("HEADRACE_NOT_FOUND", missing, restore, self.model, self.cache, missing)
        nowhere = os.path.join(self.folder, "no", "where")
        self.assert_error("HEADRACE_IO_ERROR", nowhere, session.save, nowhere)

    def test_a_busy_session_stays_as_it_is(self):
        session = self.session()
        session.append_text("hello")
        request = self.scheduler.submit(None, session=session, max_tokens=50, ignore_eos=True)
        self.scheduler.step()
        for call in (lambda: session.append_text("x"), lambda: session.rewind(0), lambda: session.evaluate([5])):
            self.assert_error("HEADRACE_FAILED_PRECONDITION", "session", call)
        self.assert_error("HEADRACE_FAILED_PRECONDITION", "session", self.scheduler.submit, None, session=session)
        self.scheduler.cancel(request)
        while self.scheduler.step():
            pass
        session.rewind(0)
        self.assertEqual(session.tokens, [])

    def test_objects_keep_what_they_need(self):
        def make():
            model = headrace.Model.load(self.folder, threads=1)
            return headrace.Session(model)

        np.testing.assert_array_equal(make().evaluate([5, 6, 7]), self.model.logits([5, 6, 7]))

    def test_refused_arguments(self):
        session = self.session()
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "tokens[1]", session.evaluate, [5, 999])
        self.assert_error("HEADRACE_RESOURCE_EXHAUSTED", "session", session.evaluate, [5] * 300)
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "num_tokens", session.rewind, 1)
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "prompt", self.scheduler.generate, None, session=session)
        self.assertEqual(session.tokens, [])
        session.append_text("hello")
        self.assert_error("HEADRACE_INVALID_ARGUMENT", "n", self.scheduler.generate, None, session=session, n=2)
        self.assert_error("HEADRACE_FAILED_PRECONDITION", "session", headrace.Scheduler(self.model).generate, None,
                          session=session)


if __name__ == "__main__":
    unittest.main()
