"""The Python module, against the goldens and the laws of generation. PYTHONPATH names the built module. What needs a model
with text is in generation_test.py, session_test.py and errors_test.py."""

import glob
import json
import os
import struct
import sys
import tempfile
import threading
import time
import unittest

import numpy as np

import headrace

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.environ.get("HEADRACE_TEST_DATA", "")
SHIPPED = os.path.join(SOURCE, "tests", "data")
# No tokenizer lies beside it: its prompts are tokens.
LLAMA = os.path.join(SHIPPED, "goldens", "llama")


def read_safetensors(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    types = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8"}
    return {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], types[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] in types
    }


def tolerance(folder):
    with open(os.path.join(folder, "golden.json")) as file:
        noise = json.load(file)["noise"]
    return max(10 * max([v for pair in noise.values() for v in pair.values()] + [0]), 1e-4)


class Logits(unittest.TestCase):
    def test_goldens(self):
        for folder in sorted(glob.glob(os.path.join(SHIPPED, "goldens", "*"))):
            with open(os.path.join(folder, "config.json")) as file:
                if json.load(file)["model_type"] == "t5":
                    continue  # a model of prompts is a decoder alone
            golden = read_safetensors(os.path.join(folder, "golden.safetensors"))
            model = headrace.Model.load(folder, exact=True)
            cases = [name.split(".")[0] for name in golden if name.endswith(".input_ids")]
            self.assertTrue(cases)
            for case in cases:
                with self.subTest(folder=folder, case=case):
                    ids = golden[case + ".input_ids"].tolist()
                    logits = model.logits(ids, kv_dtype="f32")
                    self.assertEqual(logits.dtype, np.float32)
                    self.assertEqual(logits.shape, golden[case + ".logits"].shape)
                    self.assertLessEqual(np.abs(logits - golden[case + ".logits"]).max(), tolerance(folder))
                    # Cuts of the prompt do not reach the numbers.
                    np.testing.assert_array_equal(logits, model.logits(ids, chunk=7, kv_dtype="f32"))


class Text(unittest.TestCase):
    def test_tokenizers(self):
        root = os.path.join(DATA, "goldens", "tokenizers") if DATA else ""
        if not os.path.isdir(root):
            root = os.path.join(SHIPPED, "tokenizers")
        folders = [os.path.dirname(path) for path in sorted(glob.glob(os.path.join(root, "*", "cases.json")))]
        self.assertGreaterEqual(len(folders), 3)
        for folder in folders:
            tokenizer = headrace.Tokenizer.load(folder)
            with open(os.path.join(folder, "cases.json"), encoding="utf-8") as file:
                cases = json.load(file)
            for case in cases["cases"] if isinstance(cases, dict) else cases:
                with self.subTest(folder=folder, text=case["text"]):
                    self.assertEqual(tokenizer.encode(case["text"], special=True, add_special=False), case["ids"])
                    self.assertEqual(tokenizer.encode(case["text"]), case["ids_special"])
                    self.assertEqual(tokenizer.decode(case["ids"]), case["decoded"])
                    self.assertEqual(tokenizer.decode(case["ids_special"], skip_special=True), case["decoded_skip"])

    def test_special_tokens_as_text(self):
        tokenizer = headrace.Tokenizer.load(os.path.join(SHIPPED, "tokenizers", "qwen2"))
        control = tokenizer.token_id("<|im_start|>")
        self.assertIn(control, tokenizer.encode("<|im_start|>", special=True))
        self.assertNotIn(control, tokenizer.encode("<|im_start|>", special=False))

    def test_chat_templates(self):
        path = os.path.join(DATA, "goldens", "chat")
        if not DATA or not os.path.isdir(path):
            self.skipTest("no chat goldens in HEADRACE_TEST_DATA")
        for name in ("own_templates.json", "real_templates.json"):
            with open(os.path.join(path, name), encoding="utf-8") as file:
                data = json.load(file)
            for item in data["templates"]:
                template = headrace.ChatTemplate(item["template"], **data["tokens"])
                for case in item["cases"]:
                    kwargs = dict(case["kwargs"])
                    tools = data["tools"] if kwargs.pop("tools", False) else None
                    with self.subTest(template=item["name"], conversation=case["conv"], kwargs=kwargs):
                        messages = data["conversations"][case["conv"]]
                        if "error" in case:
                            with self.assertRaises(headrace.Error):
                                template.render(messages, tools=tools, now=data["now"], **kwargs)
                        else:
                            text = template.render(messages, tools=tools, now=data["now"], **kwargs)
                            self.assertEqual(text, case["text"])

    def test_clock(self):
        import datetime

        template = headrace.ChatTemplate("{{ strftime_now('%Y-%m-%d %H:%M') }}")
        moment = datetime.datetime(2025, 3, 7, 9, 5, 3)
        for now in (moment, moment.replace(tzinfo=datetime.timezone.utc), "2025-03-07T09:05:03", 1741338303):
            self.assertEqual(template.render([], now=now), "2025-03-07 09:05")


class Generation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = headrace.Model.load(LLAMA, threads=1)
        golden = read_safetensors(os.path.join(LLAMA, "golden.safetensors"))
        case = max((name.split(".")[0] for name in golden if name.endswith(".greedy")), key=lambda name: int(name[1:]))
        cls.prompt = golden[case + ".input_ids"].tolist()
        cls.greedy = golden[case + ".greedy"].tolist()

    def test_greedy_is_the_references(self):
        exact = headrace.Model.load(LLAMA, exact=True)
        output = headrace.Scheduler(exact, kv_dtype="f32").generate(self.prompt, max_tokens=len(self.greedy), ignore_eos=True)
        self.assertEqual(output.tokens, self.greedy)
        self.assertEqual(output.finish_reason, "length")
        self.assertEqual(output.usage["prompt_tokens"], len(self.prompt))
        self.assertEqual(output.usage["output_tokens"], len(self.greedy))

    def test_samples_seeds_and_logprobs(self):
        scheduler = headrace.Scheduler(self.model)
        arguments = dict(max_tokens=8, temperature=1.0, seed=7, ignore_eos=True, logprobs=2)
        outputs = scheduler.generate(self.prompt, n=3, **arguments)
        self.assertEqual(len(outputs), 3)
        self.assertEqual([o.tokens for o in outputs], [o.tokens for o in scheduler.generate(self.prompt, n=3, **arguments)])
        for output in outputs:
            self.assertEqual(len(output.logprobs), 8)
            self.assertTrue(all(value <= 0 for value in output.logprobs))
            for top in output.top_logprobs:
                self.assertGreaterEqual(top[0][1], top[1][1])

    def test_stop(self):
        scheduler = headrace.Scheduler(self.model)
        token = scheduler.generate(self.prompt, max_tokens=1, ignore_eos=True).tokens[0]
        output = scheduler.generate(self.prompt, max_tokens=8, stop_token_ids=[token])
        self.assertEqual(output.finish_reason, "stop")

    def test_the_gil_is_free_while_the_engine_works(self):
        # With this interval no thread is made to yield: the other one runs only while a call has released the GIL.
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        count = [0]
        done = threading.Event()

        def work():
            while not done.is_set():
                count[0] += 1
                time.sleep(0)

        thread = threading.Thread(target=work)
        thread.start()
        sys.setswitchinterval(1000)
        before = count[0]
        deadline = time.monotonic() + 60  # a busy machine may let the other one wait
        while count[0] - before <= 10 and time.monotonic() < deadline:
            self.model.logits(self.prompt)
        advanced = count[0] - before
        done.set()
        thread.join()
        self.assertGreater(advanced, 10)

    def test_threads_share_a_scheduler(self):
        scheduler = headrace.Scheduler(self.model)
        alone = scheduler.generate(self.prompt, max_tokens=16, ignore_eos=True).tokens
        results = [None] * 4

        def work(index):
            results[index] = scheduler.generate(self.prompt, max_tokens=16, ignore_eos=True).tokens

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [alone] * 4)

    def test_session(self):
        cache = headrace.KVCache(self.model)
        scheduler = headrace.Scheduler(self.model, cache)
        session = headrace.Session(self.model, cache)
        session.append_tokens(self.prompt)
        output = scheduler.generate(None, session=session, max_tokens=4, ignore_eos=True)
        self.assertEqual(session.tokens, self.prompt + output.tokens)
        fork = session.fork()
        fork.rewind(5)
        self.assertEqual(fork.tokens, self.prompt[:5])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "session")
            session.save(path)
            self.assertEqual(headrace.Session.restore(self.model, cache, path).tokens, session.tokens)


class Errors(unittest.TestCase):
    def test_missing_file(self):
        with self.assertRaises(headrace.Error) as caught:
            headrace.Model.load("/nowhere/model.gguf")
        self.assertNotEqual(caught.exception.code, 0)
        self.assertTrue(caught.exception.status)
        self.assertIn("/nowhere", str(caught.exception))

    def test_template_error_has_a_place(self):
        with self.assertRaises(headrace.Error) as caught:
            headrace.ChatTemplate("{% if %}")
        self.assertTrue(caught.exception.place)

    def test_unknown_names(self):
        with self.assertRaises(TypeError):
            headrace.Model.load(LLAMA, thread=1)
        with self.assertRaises(headrace.Error):
            headrace.Model.load(LLAMA, options={"engine.thread": 1})

    def test_progress_failure_is_the_callers(self):
        def progress(fraction):
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            headrace.Model.load(LLAMA, progress=progress)


if __name__ == "__main__":
    unittest.main()
