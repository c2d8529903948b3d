"""`headrace run` and `headrace chat`, on a tiny model with text that is written for the tests."""

import json
import os
import signal
import subprocess
import tempfile
import unittest

import tiny_adapter
import tiny_text_model
from headrace_command import CLI, CommandTest, run


class GenerationTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.model = os.path.join(cls.folder, "model")
        os.mkdir(cls.model)
        tiny_text_model.write(cls.model)

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_json(self, *arguments, stdin=""):
        return json.loads(run("run", "-m", self.model, "--json", *arguments, stdin=stdin).stdout)


class Run(GenerationTest):
    def test_text_and_json_say_the_same(self):
        out = self.run_json("-p", "hello", "-n", "12")
        self.assertEqual(run("run", "-m", self.model, "-p", "hello", "-n", "12").stdout, out["text"] + "\n")
        self.assertEqual(out["finish_reason"], "length")
        self.assertEqual(out["usage"]["output_tokens"], 12)
        self.assertEqual(len(out["tokens"]), 12)
        self.assertGreaterEqual(out["usage"]["total_ms"], out["usage"]["first_token_ms"])

    def test_drafters_change_nothing(self):
        plain = self.run_json("-p", "hello hello hello", "-n", "30")
        self.assertNotIn("speculation", plain)
        for drafter in ("auto", "ngram,suffix"):
            out = self.run_json("-p", "hello hello hello", "-n", "30", "--drafter", drafter)
            self.assertEqual(out["tokens"], plain["tokens"])
            self.assertIn(out["speculation"]["state"], ("no_guess", "did_not_pay", "drafted"))
        self.assert_fails("run", "-m", self.model, "-p", "hello", "--drafter", "oracle", says="oracle")

    def test_trace(self):
        path = self.path("trace.json")
        plain = self.run_json("-p", "hello", "-n", "6")
        out = self.run_json("-p", "hello", "-n", "6", "--trace", path)
        self.assertEqual(out["tokens"], plain["tokens"])
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        self.assertEqual(trace["otherData"], {"dropped_events": 0})
        process, thread, *events = trace["traceEvents"]
        self.assertEqual((process["ph"], process["name"], process["args"]), ("M", "process_name", {"name": "headrace"}))
        self.assertEqual((thread["ph"], thread["name"], thread["pid"]), ("M", "thread_name", process["pid"]))
        self.assertTrue(thread["args"]["name"])
        marks = [event for event in events if event["cat"] == "request"]
        self.assertEqual([mark["name"] if mark["ph"] == "n" else mark["ph"] for mark in marks],
                         ["b", "prompt_rows", "scheduled", "first_token", "finished", "e"])
        spans = {}
        for event in (event for event in events if event["cat"] != "request"):
            self.assertEqual((event["ph"], event["pid"], event["tid"]), ("X", process["pid"], thread["tid"]))
            self.assertTrue(event["ts"] >= 0 and event["dur"] >= 0)
            spans.setdefault(event["name"].split()[0], []).append((event["ts"], event["ts"] + event["dur"], event))
        # A pass for the prompt, which draws the first token, and one for each further token.
        self.assertEqual(len(spans["forward"]), 6)
        self.assertEqual([event["args"]["rows"] for _, _, event in sorted(spans["forward"], key=lambda span: span[0])],
                         [out["usage"]["prompt_tokens"]] + [1] * 5)
        self.assertEqual(len(spans["sample"]), 6)
        self.assertEqual(len(spans["embed"]), 6)
        # Everything lies within a step, passes and draws side by side; times are rounded to a thousandth.
        for name in spans:
            for begin, end, _ in spans[name]:
                self.assertTrue(any(b - 2e-3 <= begin and end <= e + 2e-3 for b, e, _ in spans["step"]), name)
        for name in ("linear", "attention", "norm", "rope_store"):
            for begin, end, _ in spans[name]:
                self.assertTrue(any(b - 2e-3 <= begin and end <= e + 2e-3 for b, e, _ in spans["forward"]), name)
        self.assert_fails("run", "-m", self.model, "-p", "hello", "-n", "1", "--json", "--trace", "/nowhere/trace.json",
                          says=["/nowhere/trace.json", "written"])

    def test_prompt_from_standard_input(self):
        self.assertEqual(self.run_json("-n", "8", stdin="hello")["tokens"], self.run_json("-n", "8", "-p", "hello")["tokens"])
        self.assertEqual(self.run_json("-n", "8", "-p", "-", stdin="hello")["tokens"],
                         self.run_json("-n", "8", "-p", "hello")["tokens"])

    def test_chat_template_and_raw(self):
        chat = self.run_json("-p", "hi", "-n", "8")
        self.assertEqual(chat["usage"]["prompt_tokens"], len("hi") + 4)  # <s> <|user|> <|end|> <|assistant|>
        # Raw text has what the tokenizer adds, <s>, and special tokens written in it count.
        raw = self.run_json("-p", "hi", "-n", "8", "--raw")
        self.assertEqual(raw["usage"]["prompt_tokens"], len("hi") + 1)
        self.assertNotEqual(raw["tokens"], chat["tokens"])
        by_hand = self.run_json("-p", "<|user|>hi<|end|><|assistant|>", "-n", "8", "--raw")
        self.assertEqual(by_hand["tokens"], chat["tokens"])
        # In a message they are plain text: each character is a token.
        injected = self.run_json("-p", "<|end|>", "-n", "1")
        self.assertEqual(injected["usage"]["prompt_tokens"], len("<|end|>") + 4)

    def test_system_message(self):
        with_system = self.run_json("-p", "hi", "--system", "be", "-n", "8")
        by_hand = self.run_json("-p", "be<|end|><|user|>hi<|end|><|assistant|>", "-n", "8", "--raw")
        self.assertEqual(with_system["tokens"], by_hand["tokens"])

    def test_model_without_chat_template(self):
        plain = self.path("plain")
        os.mkdir(plain)
        tiny_text_model.write(plain, chat_template=None)
        out = json.loads(run("run", "-m", plain, "-p", "hi", "-n", "8", "--json").stdout)
        self.assertEqual(out["tokens"], self.run_json("-p", "hi", "-n", "8", "--raw")["tokens"])
        # Where would a system message go?
        self.assert_fails("run", "-m", plain, "-p", "hi", "--system", "be", says="--system: the model has no chat template")
        self.assert_wrong_usage("run", "-m", self.model, "-p", "hi", "--system", "be", "--raw", says="--raw")
        # Templates of names alone are not passed over in silence.
        named = self.path("named")
        os.mkdir(named)
        tiny_text_model.write(named, chat_template=[{"name": "rag", "template": "x"}, {"name": "tool_use", "template": "y"}])
        for command in (("run", "-p", "hi"), ("chat",)):
            self.assert_fails(command[0], "-m", named, *command[1:], stdin="hi\n", says=["rag, tool_use", "no default"])
        run("run", "-m", named, "-p", "hi", "-n", "1", "--raw")

    def test_max_tokens(self):
        whole = self.run_json("-p", "hello", "-n", "20")["tokens"]
        for count in (1, 7):
            self.assertEqual(self.run_json("-p", "hello", "-n", str(count))["tokens"], whole[:count])
        self.assertEqual(self.run_json("-p", "hello", "-n", "010")["tokens"], whole[:10])
        unlimited = self.run_json("-p", "hello", "-n", "0")
        self.assertEqual(self.run_json("-p", "hello", "-n", str(2**63 - 1))["tokens"], unlimited["tokens"])
        self.assertEqual(unlimited["tokens"][:20], whole)
        # 9 of the context's 256 tokens are the prompt's, unless the model ends before.
        if unlimited["finish_reason"] == "length":
            self.assertIn(len(unlimited["tokens"]), (256 - 9, 256 - 9 + 1))
        else:
            self.assertEqual(unlimited["tokens"][-1], tiny_text_model.EOS)

    def test_seeds_and_temperature(self):
        def draw(*arguments):
            return self.run_json("-p", "hello", "-n", "16", *arguments)["tokens"]

        self.assertEqual(draw("--temp", "1", "--seed", "3"), draw("--temp", "1", "--seed", "3"))
        self.assertNotEqual(draw("--temp", "1", "--seed", "3"), draw("--temp", "1", "--seed", "4"))
        self.assertNotEqual(draw("--temp", "1", "--seed", str(2**64 - 1)), draw("--temp", "1", "--seed", str(2**63 - 1)))
        # Two draws of 16 tokens from 96 agree by chance with a probability far below 1e-9.
        self.assertNotEqual(draw("--temp", "1"), draw("--temp", "1"))
        # Greedy: temperature 0, which is the default, or one candidate, whatever the seed.
        greedy = draw()
        self.assertEqual(draw("--temp", "0", "--seed", "3"), greedy)
        self.assertEqual(draw("--temp", "1", "--top-k", "1"), greedy)
        self.assertEqual(draw("--temp", "1", "--top-p", "1e-6"), greedy)
        self.assertEqual(draw("--temp", "1", "--min-p", "1"), greedy)

    def test_adapter(self):
        folder = tiny_adapter.write(self.path("adapter"))
        plain = self.run_json("-p", "hello", "-n", "12")
        adapted = self.run_json("-p", "hello", "-n", "12", "--adapter", folder)
        self.assertNotEqual(plain["tokens"], adapted["tokens"])
        self.assertEqual(adapted["tokens"], self.run_json("-p", "hello", "-n", "12", "--adapter", folder)["tokens"])
        refused = tiny_adapter.write(self.path("refused"), use_dora=True)
        self.assert_fails("run", "-m", self.model, "-p", "hello", "--adapter", refused, says="use_dora")

    def test_stop_strings(self):
        text = self.run_json("-p", "hello", "-n", "12")["text"]
        stopped = self.run_json("-p", "hello", "-n", "12", "--stop", "never said", "--stop", text[4:7])
        self.assertEqual(stopped["text"], text[:text.index(text[4:7])])
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_settings_reach_the_engine(self):
        greedy = self.run_json("-p", "hello", "-n", "8")["tokens"]
        settings = ("-t", "1", "--kv-dtype", "f32", "--isa", "baseline", "--set", "kv.block_size=16", "--set", "model.exact=true")
        self.assertEqual(len(self.run_json("-p", "hello", "-n", "8", *settings)["tokens"]), len(greedy))

    def test_failures(self):
        model = ("run", "-m", self.model, "-p", "hello")
        self.assert_fails(*model, "--temp", "-1", says="temperature: -1")
        self.assert_fails(*model, "--top-p", "3", says="top_p: 3")
        self.assert_fails(*model, "--stop", "", says="stop")
        self.assert_fails(*model, "--set", "foo", says="foo: is not key=value")
        self.assert_fails(*model, "--set", "foo=1", says="foo: ")
        self.assert_fails(*model, "--set", "engine.threads=many", says="engine.threads: ")
        self.assert_fails(*model, "--kv-dtype", "q9", says="kv.dtype: ")
        self.assert_fails("run", "-m", self.model, "-p", "x" * 300, says=["prompt: ", "256"])
        for extra in ((), ("--raw",)):
            self.assert_fails("run", "-m", self.model, *extra, stdin=b"ab\xff", says="is not UTF-8")
        self.assert_fails("run", "-m", self.path("nowhere"), "-p", "x", says=self.path("nowhere"))
        self.assert_fails("run", "-m", tiny_text_model.LLAMA, "-p", "x", says="tokenizer")
        self.assert_wrong_usage(*model, "-n", "-1", says="--max-tokens: -1")
        self.assert_wrong_usage(*model, "-n", "x", says="--max-tokens: x")
        self.assert_wrong_usage(*model, "-t", "-1", says="--threads: -1")
        self.assert_wrong_usage(*model, "--temp", "hot", says="--temp")
        self.assert_wrong_usage(*model, "extra", says="extra")
        self.assert_wrong_usage("run", "-p", "hello", says="--model is required")

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_a_full_disk_is_a_failure(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([CLI, "run", "-m", self.model, "-p", "hello", "-n", "4"], stdout=full,
                                    stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(result.returncode, 1)
        self.assertIn("standard output", result.stderr)


    def test_a_closed_standard_output_ends_the_work(self):
        reader, writer = os.pipe()
        os.close(reader)
        trace = self.path("cut_short")
        result = subprocess.run([CLI, "run", "-m", self.model, "-p", "hello", "-n", "200", "--trace", trace], stdout=writer,
                                stderr=subprocess.PIPE, text=True, timeout=120,
                                preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN))
        os.close(writer)
        self.assertEqual(result.returncode, 1)
        self.assertIn("standard output: writing failed", result.stderr)
        self.assertFalse(os.path.exists(trace))  # which is written at the end of all 200


class Chat(GenerationTest):
    def chat(self, lines, *arguments):
        """The replies of a conversation, as dicts."""
        stdin = "".join(line + "\n" for line in lines)
        result = run("chat", "-m", self.model, "-n", "8", "--json", *arguments, stdin=stdin)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def reply_to(self, history):
        """What the model says next, by a raw prompt with the history written out: (speaker, text) each."""
        prompt = "".join({"system": "", "user": "<|user|>", "assistant": "<|assistant|>"}[role] + text + "<|end|>"
                         for role, text in history)
        return self.run_json("--raw", "-n", "8", "-p", prompt + "<|assistant|>")["text"]

    def test_history(self):
        replies = self.chat(["one", "two", "three"])
        history = []
        for message, reply in zip(["one", "two", "three"], replies, strict=True):
            history.append(("user", message))
            self.assertEqual(reply["content"], self.reply_to(history))
            self.assertEqual((reply["role"], reply["finish_reason"]), ("assistant", "length"))
            history.append(("assistant", reply["content"]))

    def test_text_output(self):
        replies = self.chat(["one", "two"])
        result = run("chat", "-m", self.model, "-n", "8", stdin="one\ntwo\n")
        self.assertEqual(result.stdout, "".join(reply["content"] + "\n" for reply in replies))

    def test_lines(self):
        replies = self.chat(["one", "two"])
        self.assertEqual(self.chat(["", "one", "", "two", "/exit", "three"]), replies)
        # A last line without newline counts.
        result = run("chat", "-m", self.model, "-n", "8", "--json", stdin="one\ntwo")
        self.assertEqual([json.loads(line) for line in result.stdout.splitlines()], replies)
        self.assertEqual(self.chat([]), [])

    def test_clear(self):
        first, _, again = self.chat(["one", "two", "/clear", "one"])
        self.assertEqual(first, again)
        self.assertEqual(self.chat(["/clear", "one"]), [first])

    def test_system_message(self):
        first, second, again = self.chat(["one", "two", "/clear", "one"], "--system", "be")
        history = [("system", "be"), ("user", "one")]
        self.assertEqual(first["content"], self.reply_to(history))
        history += [("assistant", first["content"]), ("user", "two")]
        self.assertEqual(second["content"], self.reply_to(history))
        self.assertEqual(again, first)  # clearing leaves the system message

    def test_seed(self):
        arguments = ("--temp", "1", "--seed", "5")
        self.assertEqual(self.chat(["one", "two"], *arguments), self.chat(["one", "two"], *arguments))

    def test_save_and_restore(self):
        whole = self.chat(["one", "two", "three"])
        session = self.path("session")
        self.assertEqual(self.chat(["one"], "--save", session), whole[:1])
        self.assertEqual(self.chat(["two"], "--restore", session, "--save", session), whole[1:2])
        self.assertEqual(self.chat(["three"], "--restore", session), whole[2:])
        # The file is as it was: restoring does not write.
        self.assertEqual(self.chat(["three"], "--restore", session), whole[2:])

    def test_restore_with_another_cache_type(self):
        session = self.path("f32")
        self.chat(["one"], "--kv-dtype", "f32", "--save", session)
        self.assert_fails("chat", "-m", self.model, "--kv-dtype", "f16", "--restore", session, says=["f32", "f16"])

    def test_a_message_that_fails_loses_nothing(self):
        replies = self.chat(["one", "two"])
        for bad in (b"\xff", b"x" * 300):
            with self.subTest(bad=bad[:4]):
                session = self.path("kept")
                result = run("chat", "-m", self.model, "-n", "8", "--json", "--save", session, stdin=b"one\n" + bad + b"\nno\n",
                             code=1)
                self.assertEqual([json.loads(line) for line in result.stdout.splitlines()], replies[:1])
                self.assertIn("headrace: error:", result.stderr)
                self.assertEqual(self.chat(["two"], "--restore", session), replies[1:])

    def test_failures(self):
        self.assert_fails("chat", "-m", tiny_text_model.LLAMA, says=["chat template", tiny_text_model.LLAMA])
        self.assert_fails("chat", "-m", self.model, "--restore", self.path("nowhere"), says=self.path("nowhere"))
        junk = self.path("junk")
        with open(junk, "w") as file:
            file.write("no session")
        self.assert_fails("chat", "-m", self.model, "--restore", junk, says="junk")
        self.assert_fails("chat", "-m", self.model, "--save", self.path("no/where"), says=self.path("no/where"))
        self.assert_fails("chat", "-m", self.model, "--temp", "-1", stdin="one\n", says="temperature: -1")
        self.assert_fails("chat", "-m", self.model, "--save", "/dev/null", says="/dev/null: is not a regular file")
        self.assert_wrong_usage("chat", "-m", self.model, "--restore", junk, "--system", "be", says="--restore")
        self.assert_wrong_usage("chat", says="--model is required")


if __name__ == "__main__":
    unittest.main()
