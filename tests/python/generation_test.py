"""What requests say through the Python module: stop strings, logprobs, streams, cancelling, threads. On a tiny model with
text that is written for the tests."""

import gc
import sys
import tempfile
import threading
import time
import unittest

import numpy as np

import headrace
import tiny_text_model
from tiny_text_model import token


class WithModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            cls.model = headrace.Model.load(tiny_text_model.write(folder), threads=1)
        cls.tokenizer = cls.model.tokenizer

    def setUp(self):
        self.scheduler = headrace.Scheduler(self.model)


class Speculation(WithModel):
    def test_drafters_change_nothing_and_are_reported(self):
        plain = self.scheduler.generate("hello hello hello", max_tokens=40, ignore_eos=True, logprobs=2)
        self.assertEqual(plain.speculation["state"], "off")
        scheduler = headrace.Scheduler(self.model, options={"scheduler.draft_always": "true"})
        for drafter in ("ngram", "suffix", "ngram,suffix", "auto", "suffix"):
            output = scheduler.generate("hello hello hello", max_tokens=40, ignore_eos=True, logprobs=2, drafter=drafter)
            self.assertEqual((output.text, output.tokens, output.logprobs), (plain.text, plain.tokens, plain.logprobs))
        # The last one knew the answer.
        self.assertGreater(output.speculation["accepted"], 20)
        self.assertEqual([drafter["name"] for drafter in output.speculation["drafters"]], ["suffix"])
        self.assertGreater(scheduler.speculation["accepted"], output.speculation["accepted"])
        with self.assertRaisesRegex(headrace.Error, "oracle"):
            scheduler.generate("hello", drafter="oracle")


class StopStrings(WithModel):
    def setUp(self):
        super().setUp()
        self.whole = self.scheduler.generate("hello", max_tokens=40, ignore_eos=True)
        self.text = self.whole.text
        self.assertGreater(len(self.text), 20)

    def generate(self, **arguments):
        return self.scheduler.generate("hello", max_tokens=40, ignore_eos=True, **arguments)

    def test_across_tokens(self):
        # Each character is a token, so this one spans five of them.
        stop = self.text[6:11]
        output = self.generate(stop=stop)
        self.assertEqual(output.text, self.text[:self.text.index(stop)])
        self.assertEqual(output.finish_reason, "stop")
        # Computed until the stop string was complete, and not further.
        self.assertEqual(output.tokens, self.whole.tokens[:len(output.tokens)])
        self.assertTrue(self.tokenizer.decode(output.tokens, skip_special=True).endswith(stop))

    def test_inside_one_token(self):
        # The only token that can follow is DEF; the stop string is its middle.
        bias = {token("DEF"): 1000.0}
        self.assertEqual(self.generate(logit_bias=bias).text, "DEF" * 40)
        output = self.generate(logit_bias=bias, stop="E")
        self.assertEqual((output.text, output.tokens, output.finish_reason), ("D", [token("DEF")], "stop"))
        # From the middle of one into the next.
        output = self.generate(logit_bias=bias, stop=["FDE"])
        self.assertEqual((output.text, output.tokens), ("DE", [token("DEF")] * 2))

    def test_inside_a_character_of_two_tokens(self):
        # Half of an e-acute never is text; the other half completes it.
        output = self.generate(logit_bias={token("\u00c3"): 1000.0}, stop="\ufffd\ufffd")
        self.assertNotIn("\u00c3", output.text)

    def test_the_first_that_appears_counts(self):
        self.assertEqual(self.generate(stop=[self.text[9], self.text[3:5], "never said"]).text,
                         self.text[:min(self.text.index(self.text[9]), self.text.index(self.text[3:5]))])
        self.assertEqual(self.generate(stop="never said").text, self.text)
        self.assertEqual(self.generate(stop=[]).text, self.text)

    def test_a_beginning_that_comes_to_nothing_is_not_lost(self):
        stop = self.text[6:9] + "\u00e9"
        self.assertEqual(self.generate(stop=stop).text, self.text)
        pieces = list(self.scheduler.stream("hello", max_tokens=40, ignore_eos=True, stop=stop))
        self.assertEqual("".join(pieces), self.text)

    def test_streams_hold_back_what_may_become_a_stop_string(self):
        stop = self.text[6:11]
        said = ""
        for piece in self.scheduler.stream("hello", max_tokens=40, ignore_eos=True, stop=stop):
            said += piece
            self.assertTrue(self.text[:self.text.index(stop)].startswith(said), said)
        self.assertEqual(said, self.text[:self.text.index(stop)])


class Logprobs(WithModel):
    @staticmethod
    def log_softmax(logits):
        logits = logits.astype(np.float64)
        highest = logits.max(1, keepdims=True)
        return logits - highest - np.log(np.exp(logits - highest).sum(1, keepdims=True))

    def test_prompt_logprobs(self):
        prompt = self.tokenizer.encode("hello world")
        output = self.scheduler.generate(prompt, max_tokens=2, prompt_logprobs=3)
        expected = self.log_softmax(self.model.logits(prompt))
        self.assertEqual(len(output.prompt_logprobs), len(prompt))
        self.assertEqual(output.prompt_logprobs[0], 0)  # nothing comes before it
        chosen = expected[np.arange(len(prompt) - 1), prompt[1:]]
        # Both are the same float32 logits; a logprob is rounded to float32 once, in a range of less than 32.
        np.testing.assert_allclose(output.prompt_logprobs[1:], chosen, rtol=0, atol=32 * 2.0**-23)
        self.assertEqual(output.prompt_top_logprobs[0], [])
        for row, top in zip(expected, output.prompt_top_logprobs[1:]):
            self.assertEqual([id for id, _ in top], np.argsort(-row, kind="stable")[:3].tolist())
            np.testing.assert_allclose([value for _, value in top], np.sort(row)[::-1][:3], rtol=0, atol=32 * 2.0**-23)
        # The same with the prompt in the cache by now, and none where none are asked for.
        again = self.scheduler.generate(prompt, max_tokens=2, prompt_logprobs=3)
        self.assertEqual((again.prompt_logprobs, again.prompt_top_logprobs),
                         (output.prompt_logprobs, output.prompt_top_logprobs))
        plain = self.scheduler.generate(prompt, max_tokens=2)
        self.assertEqual((plain.tokens, plain.prompt_logprobs, plain.logprobs), (output.tokens, None, None))

    def test_hidden_states(self):
        prompt = self.tokenizer.encode("hello world")
        output = self.scheduler.generate(prompt, max_tokens=4, hidden_states=[0, 2])
        rows = np.concatenate(output.hidden_states, axis=1)
        self.assertEqual((rows.dtype, rows.shape), (np.float32, (2, len(prompt) + 3, 32)))
        self.assertIsNone(self.scheduler.generate(prompt, max_tokens=1).hidden_states)

        request = self.scheduler.submit(prompt, max_tokens=1, hidden_states=[2], hidden_range=(2, 5))
        while self.scheduler.step():
            pass
        event = self.scheduler.next_event(request)
        self.assertEqual((event["type"], event["layers"], event["first_position"]), ("hidden", [2], 2))
        part = event["hidden_states"]
        self.assertFalse(part.flags.owndata or part.flags.writeable)  # the event's own memory
        del event
        gc.collect()
        np.testing.assert_array_equal(part[0], rows[1, 2:5])
        with self.assertRaisesRegex(headrace.Error, "layers"):
            self.scheduler.submit(prompt, hidden_states=[3])

    def test_samples_share_prompt_logprobs(self):
        outputs = self.scheduler.generate("hello", n=2, temperature=1, max_tokens=4, prompt_logprobs=0, seed=1)
        self.assertEqual(outputs[0].prompt_logprobs, outputs[1].prompt_logprobs)
        self.assertEqual(len(outputs[0].prompt_logprobs), len("hello") + 1)

    def test_logprobs_of_the_output(self):
        prompt = self.tokenizer.encode("hello")
        output = self.scheduler.generate(prompt, max_tokens=12, ignore_eos=True, logprobs=2)
        # One pass over prompt and output gives the logits of every token at once.
        expected = self.log_softmax(self.model.logits(prompt + output.tokens))[len(prompt) - 1:-1]
        np.testing.assert_allclose(output.logprobs, expected[np.arange(12), output.tokens], rtol=0, atol=32 * 2.0**-23)
        for row, top, chosen in zip(expected, output.top_logprobs, output.tokens):
            self.assertEqual(top[0][0], chosen)  # greedy
            self.assertEqual([id for id, _ in top], np.argsort(-row, kind="stable")[:2].tolist())
        alone = self.scheduler.generate(prompt, max_tokens=12, ignore_eos=True, logprobs=0)
        self.assertEqual((alone.logprobs, alone.top_logprobs), (output.logprobs, [[]] * 12))


class Tenants(WithModel):
    def test_metrics_and_tenants(self):
        scheduler = headrace.Scheduler(self.model)
        scheduler.set_tenant("b", weight=2.0, max_queue=3)
        scheduler.generate("hello", max_tokens=5, ignore_eos=True, tenant="a")
        output = scheduler.generate("hello", max_tokens=5, ignore_eos=True, tenant="b")
        self.assertEqual(output.usage["reuse_miss"], "short")
        self.assertEqual(scheduler.metrics["finished_requests"], 2)
        self.assertEqual(scheduler.metrics["inter_token"]["count"], 8)
        self.assertEqual(sorted(scheduler.tenants), ["a", "b"])
        self.assertEqual(scheduler.tenants["b"]["weight"], 2.0)
        self.assertEqual(scheduler.tenants["a"]["output_tokens"], 5)
        with self.assertRaises(headrace.Error) as raised:
            scheduler.set_tenant("c", weight=0.0)
        self.assertEqual(raised.exception.place, "weight")


class Streams(WithModel):
    def test_pieces_are_the_text(self):
        whole = self.scheduler.generate("hello", max_tokens=24, ignore_eos=True)
        stream = self.scheduler.stream("hello", max_tokens=24, ignore_eos=True)
        self.assertIs(iter(stream), stream)
        pieces = list(stream)
        self.assertEqual("".join(pieces), whole.text)
        self.assertGreater(len(pieces), 10)  # as it comes, not at the end
        self.assertNotIn("", pieces)
        self.assertEqual(list(stream), [])  # an iterator that has ended stays so

    def test_characters_are_whole(self):
        # The two halves of an e-acute, each about as often as the other, in any order.
        bias = {token("\u00c3"): 1000.0, token("\u00a9"): 1000.0}
        arguments = dict(max_tokens=30, temperature=100.0, seed=11, ignore_eos=True, logit_bias=bias)
        whole = self.scheduler.generate("hello", **arguments)
        self.assertEqual(whole.text, self.tokenizer.decode(whole.tokens))
        self.assertIn("\u00e9", whole.text)
        self.assertEqual("".join(self.scheduler.stream("hello", **arguments)), whole.text)

    def test_dropping_a_stream_cancels(self):
        stream = self.scheduler.stream("hello", max_tokens=200, ignore_eos=True)
        next(stream)
        del stream
        gc.collect()
        while self.scheduler.step():
            pass
        self.assertEqual(self.scheduler.stats["num_running"], 0)
        self.assertLess(self.scheduler.stats["decode_tokens"], 100)

    def test_leaving_a_loop_cancels(self):
        for piece in self.scheduler.stream("hello", max_tokens=200, ignore_eos=True):
            if piece:
                break
        gc.collect()
        while self.scheduler.step():
            pass
        self.assertLess(self.scheduler.stats["decode_tokens"], 100)

    def test_streams_take_turns(self):
        texts = [self.scheduler.generate(p, max_tokens=12, ignore_eos=True).text for p in ("hello", "other")]
        streams = [self.scheduler.stream(p, max_tokens=12, ignore_eos=True) for p in ("hello", "other")]
        said = ["", ""]
        working = True
        while working:
            working = False
            for i, stream in enumerate(streams):
                piece = next(stream, None)
                said[i] += piece or ""
                working = working or piece is not None
        self.assertEqual(said, texts)

    def test_events_and_cancel(self):
        request = self.scheduler.submit("hello", max_tokens=200, ignore_eos=True)
        self.assertIsNone(self.scheduler.next_event(request))  # nothing runs by itself
        events = []
        while not events:
            self.assertTrue(self.scheduler.step())
            event = self.scheduler.next_event(request)
            if event:
                events.append(event)
        self.assertEqual(events[0]["type"], "tokens")
        self.scheduler.cancel(request)
        while self.scheduler.step():
            pass
        while event := self.scheduler.next_event(request):
            events.append(event)
        self.assertEqual((events[-1]["type"], events[-1]["finish_reason"]), ("finished", "cancelled"))
        self.assertEqual([event["is_last"] for event in events], [False] * (len(events) - 1) + [True])
        self.assertIsNone(self.scheduler.next_event(request))
        with self.assertRaises(headrace.Error) as caught:
            self.scheduler.cancel(request)
        self.assertEqual(caught.exception.status, "HEADRACE_NOT_FOUND")

    def test_cancelling_from_a_loop(self):
        request = self.scheduler.submit("hello", max_tokens=200, ignore_eos=True)
        other = self.scheduler.stream("other", max_tokens=12, ignore_eos=True)
        said = next(other)
        self.scheduler.cancel(request)
        said += "".join(other)
        self.assertEqual(said, self.scheduler.generate("other", max_tokens=12, ignore_eos=True).text)

    def test_deadline(self):
        output = self.scheduler.generate("hello", max_tokens=0, ignore_eos=True, deadline_ms=1)
        self.assertIn(output.finish_reason, ("deadline", "length"))


class Threads(WithModel):
    def test_no_event_is_lost_between_threads(self):
        prompts = ["hello", "other", "words", "again"]
        expected = [self.scheduler.generate(p, max_tokens=8, ignore_eos=True).text for p in prompts]
        failures = []

        def work(index):
            for turn in range(25):
                prompt = prompts[(index + turn) % 4]
                arguments = dict(max_tokens=8, ignore_eos=True)
                if turn % 2:
                    text = "".join(self.scheduler.stream(prompt, **arguments))
                else:
                    text = self.scheduler.generate(prompt, **arguments).text
                if text != expected[(index + turn) % 4]:
                    failures.append((prompt, text))

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])

    def test_no_event_of_an_overtaking_request_is_lost(self):
        """Whoever waits for a queued request steps for others meanwhile, also for one whose submit is just returning."""
        scheduler = headrace.Scheduler(self.model, max_num_seqs=1)
        expected = self.scheduler.generate("hello", max_tokens=4, ignore_eos=True).text
        failures = []

        def work(priority):
            for _ in range(50):
                text = scheduler.generate("hello", max_tokens=4, ignore_eos=True, priority=priority).text
                if text != expected:
                    failures.append(text)

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])

    def test_the_gil_is_free_while_the_engine_works(self):
        def steps():
            self.scheduler.submit("hello", max_tokens=100, ignore_eos=True)
            while self.scheduler.step():
                pass

        session = headrace.Session(self.model)

        def evaluate():
            session.rewind(0)
            session.evaluate(list(range(5, 90)))

        calls = {
            "step": steps,
            "generate": lambda: self.scheduler.generate("hello", max_tokens=100, ignore_eos=True),
            "stream": lambda: list(self.scheduler.stream("hello", max_tokens=100, ignore_eos=True)),
            "evaluate": evaluate,
        }
        # With this interval no thread is made to yield: the other one runs only while a call has released the GIL.
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        for name, call in calls.items():
            with self.subTest(call=name):
                count = [0]
                done = threading.Event()

                def work():
                    while not done.is_set():
                        count[0] += 1
                        time.sleep(0)

                thread = threading.Thread(target=work, daemon=True)
                thread.start()
                sys.setswitchinterval(1000)
                before = count[0]
                deadline = time.monotonic() + 60  # a busy machine may let the other one wait
                while count[0] - before <= 10 and time.monotonic() < deadline:
                    call()
                advanced = count[0] - before
                done.set()
                thread.join()
                self.assertGreater(advanced, 10)

    def test_another_thread_steps(self):
        """One thread only steps, the other only reads events: neither needs the other's GIL."""
        request = self.scheduler.submit("hello", max_tokens=100, ignore_eos=True)
        thread = threading.Thread(target=lambda: [None for _ in iter(self.scheduler.step, False)], daemon=True)
        thread.start()
        tokens = []
        while True:
            event = self.scheduler.next_event(request)
            tokens += event["tokens"] if event else []
            if event and event["is_last"]:
                break
        thread.join(timeout=60)
        self.assertFalse(thread.is_alive())
        self.assertEqual(tokens, self.scheduler.generate("hello", max_tokens=100, ignore_eos=True).tokens)


if __name__ == "__main__":
    unittest.main()
