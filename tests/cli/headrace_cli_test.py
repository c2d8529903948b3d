"""The subcommands of `headrace` that do not generate; generation_cli_test.py has those that do."""

import json
import math
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

import numpy as np

import tiny_text_model
from headrace_command import CLI, CommandTest, run

SOURCE = tiny_text_model.SOURCE
LLAMA = tiny_text_model.LLAMA
TOKENIZER = os.path.join(SOURCE, "tests", "data", "tokenizers", "qwen2")
MESSAGES = '[{"role": "user", "content": "hi"}]'


class Usage(unittest.TestCase):
    def test_help(self):
        for command in ("run", "chat", "tokenize", "template", "inspect", "logits", "embed", "eval", "bench", "tune"):
            self.assertIn("--help", run(command, "--help").stdout)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_help_that_nobody_reads(self):
        for argument in (("--help",), ("--version",), ("run", "--help")):
            with open("/dev/full", "w") as full:
                result = subprocess.run([CLI, *argument], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual(result.returncode, 1)
            self.assertIn("standard output: writing failed", result.stderr)

    def test_exit_codes(self):
        run(code=2)
        for arguments in (("run", "-m", "/nowhere", "-p", "x"), ("inspect", "/nowhere"), ("tokenize", "-m", "/nowhere")):
            self.assertIn("headrace: error:", run(*arguments, code=1).stderr)


class WrongUsage(CommandTest):
    def test_unknown_words_are_named(self):
        self.assert_wrong_usage("nothing", says="nothing is no subcommand\n")
        self.assert_wrong_usage("nothing", "-m", "x", says="nothing is no subcommand\n")
        self.assert_wrong_usage("--nothing", says="--nothing is no option of headrace\n")
        self.assert_wrong_usage("--nothing", "run", says="--nothing is no option of headrace")
        for command in ("run", "chat", "tokenize", "template", "inspect", "logits", "eval", "bench"):
            # Before what is missing besides, such as the model.
            self.assert_wrong_usage(command, "--nothing", says=f"--nothing is no option of headrace {command}\n")
        self.assert_wrong_usage("tokenize", "-m", "x", "more", says="more is one argument too many for headrace tokenize\n")

    def test_numbers(self):
        run = ("run", "-m", "x", "-p", "x")
        logits, evaluate = ("logits", "-m", "x", "-o", "x"), ("eval", "-m", "x", "--text", "x")
        huge = "99999999999999999999"
        for command in ((*run, "-n"), (*run, "-t"), (*run, "--top-k"), (*run, "--seed"), (*logits, "--tokens"),
                        (*evaluate, "--context"), (*evaluate, "--tokens"), ("bench", "-m", "x", "--batch"),
                        ("bench", "-m", "x", "--prompt-tokens"), ("bench", "-m", "x", "--gen-tokens"),
                        ("bench", "-m", "x", "--repeats"), ("bench", "-m", "x", "--sweep", "--sweep-contexts"),
                        ("bench", "-m", "x", "--sweep", "--sweep-batches")):
            for number, says in ((huge, huge + " does not fit into 64 bits"), ("0x10", "0x10 is not a whole number"),
                                 ("1.5", "1.5 is not a whole number"), ("", "is not a whole number")):
                self.assert_wrong_usage(*command, number, says=says)
        self.assert_wrong_usage(*run, "-n", "9223372036854775808", says="--max-tokens: 9223372036854775808 does not fit")
        self.assert_wrong_usage(*run, "-n", "-" + huge, says="does not fit into 64 bits")
        self.assert_wrong_usage(*run, "--seed", "-1", says="--seed: -1 is not a whole number of 0 or more")
        self.assert_wrong_usage(*run, "-t", "2147483648", says="--threads: 2147483648 is more than 2147483647")
        self.assert_wrong_usage(*run, "--top-k", "2147483648", says="--top-k: 2147483648 is more than 2147483647")
        self.assert_wrong_usage(*logits, "--tokens", "1,2147483648", says="--tokens: 2147483648 is more than 2147483647")
        self.assert_wrong_usage("bench", "-m", "x", "--batch", "4097", says="--batch: 4097 is more than 4096")
        self.assert_wrong_usage("bench", "-m", "x", "--gen-tokens", "1", says="--gen-tokens: 1 is less than 2")

    def test_outputs_that_cannot_be_written_fail_before_the_work(self):
        """Before the model is looked for, which is not there."""
        for path, reason in (("/nowhere/out", "No such file or directory"), ("/", "Is a directory"),
                             ("/dev/null/out", "Not a directory")):
            for command in (("run", "-p", "x", "--trace"), ("chat", "--save"), ("bench", "--trace"),
                            ("bench", "--sweep", "--svg"), ("logits", "--tokens", "1", "-o"),
                            ("eval", "--text", "-", "--save-reference")):
                says = f"{path}: cannot be written: {reason}"
                self.assert_fails(command[0], "-m", "/no/model", *command[1:], path, says=says)


class WithModel(CommandTest):
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

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)


class Commands(WithModel):
    def test_tokenize(self):
        out = json.loads(run("tokenize", "-m", TOKENIZER, "--json", stdin="<|im_start|>").stdout)
        self.assertEqual(out["count"], 1)
        out = json.loads(run("tokenize", "-m", TOKENIZER, "--json", "--no-special", stdin="<|im_start|>").stdout)
        self.assertGreater(out["count"], 1)
        self.assertEqual("".join(out["pieces"]), "<|im_start|>")
        self.assertEqual(run("tokenize", "-m", TOKENIZER, "--no-special", stdin="<|im_start|>").stdout,
                         " ".join(map(str, out["tokens"])) + "\n")
        self.assert_fails("tokenize", "-m", TOKENIZER, stdin=b"ab\xff", says=["byte 2", "UTF-8"])
        self.assert_fails("tokenize", "-m", LLAMA, says="tokenizer")

    def test_template_of_a_model(self):
        text = "<s><|user|>hi<|end|>"
        self.assertEqual(run("template", "-m", self.model, "-", stdin=MESSAGES).stdout, text + "<|assistant|>")
        self.assertEqual(run("template", "-m", self.model, "-", "--no-generation-prompt", stdin=MESSAGES).stdout, text)
        self.assertEqual(run("template", "-m", self.model, self.write("messages", MESSAGES)).stdout, text + "<|assistant|>")
        # In bytes: what the caller wrote, and nothing else, is content.
        out = json.loads(run("template", "-m", self.model, "-", "--json",
                             stdin='[{"role": "user", "content": "h\u00e9"}]').stdout)
        data = out["text"].encode()
        content = [data[span["begin"]:span["end"]] for span in out["spans"] if span["is_content"]]
        self.assertEqual(content, ["h\u00e9".encode()])
        self.assertEqual([0] + [span["end"] for span in out["spans"]], [span["begin"] for span in out["spans"]] + [len(data)])

    def test_template_file(self):
        path = self.write("chat.jinja",
                          "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ tools | length if tools else 0 }}{{ mood }}")
        tools = self.write("tools.json", '[{"type": "function"}]')
        self.assertEqual(run("template", "--template-file", path, "-", stdin=MESSAGES).stdout, "[hi]0")
        out = json.loads(run("template", "--template-file", path, "-", "--tools", tools, "--json", stdin=MESSAGES).stdout)
        self.assertEqual(out["text"], "[hi]1")
        self.assertTrue(any(span["is_content"] for span in out["spans"]))
        self.assertEqual(run("template", "--template-file", path, "-", "--variables", '{"mood": "!"}', stdin=MESSAGES).stdout,
                         "[hi]0!")

    def test_template_failures(self):
        path = self.write("good.jinja", "{{ messages }}")
        self.assert_fails("template", "--template-file", path, "-", stdin="[", says="messages")
        self.assert_fails("template", "--template-file", path, "-", "--variables", "[", stdin=MESSAGES, says="variables")
        self.assert_fails("template", "--template-file", path, self.path("nowhere"), says=self.path("nowhere"))
        self.assert_fails("template", "--template-file", self.path("nowhere"), "-", says=self.path("nowhere"))
        self.assert_fails("template", "--template-file", self.folder, "-", says=self.folder)
        self.assert_fails("template", "-m", self.path("nowhere"), "-", stdin=MESSAGES, says=self.path("nowhere"))
        self.assert_fails("template", "-m", LLAMA, "-", stdin=MESSAGES, says="template")
        bad = self.write("bad.jinja", "text\n{% if %}")
        self.assert_fails("template", "--template-file", bad, "-", stdin=MESSAGES, says="line 2, column")
        raising = self.write("raising.jinja", "{{ raise_exception('Roles must alternate') }}")
        self.assert_fails("template", "--template-file", raising, "-", stdin=MESSAGES, says="Roles must alternate")
        for name, value in (("messages", "1"), ("tools", "[]"), ("add_generation_prompt", '"x"')):
            self.assert_fails("template", "--template-file", path, "-", "--variables", '{"%s": %s}' % (name, value),
                              stdin=MESSAGES, says="variables." + name)
        empty = self.write("empty", "")
        self.assert_fails("template", "--template-file", empty, "-", stdin=MESSAGES, says=empty + ": is empty")
        self.assert_fails("template", "--template-file", path, empty, says=empty + ": is empty")
        self.assert_fails("template", "--template-file", path, "-", "--tools", empty, stdin=MESSAGES, says=empty + ": is empty")
        self.assert_fails("template", "--template-file", path, "-", says="standard input: is empty")
        self.assert_wrong_usage("template", "-", says="required")
        self.assert_wrong_usage("template", "-m", self.model, "--template-file", path, "-", says="2 were given")

    def test_inspect(self):
        out = json.loads(run("inspect", LLAMA, "--json").stdout)
        self.assertEqual((out["architecture"], out["vocab_size"]), ("llama", 96))
        self.assertNotIn("memory_plan", out)
        with open(os.path.join(SOURCE, "docs", "c-abi.md"), encoding="utf-8") as file:
            documented = file.read()
        for key in (*out, *out["layers"][0]):
            self.assertIn(f"`{key}`", documented)
        self.assertIn("architecture: llama\n", run("inspect", LLAMA).stdout)
        self.assertEqual(json.loads(run("inspect", "-m", LLAMA, "--json").stdout), out)

    def test_inspect_self_check(self):
        self.assertIn("self_check: each op", run("inspect", LLAMA, "--self-check", "--kv-dtype", "q8").stdout)
        self.assertNotIn("self_check", run("inspect", LLAMA).stdout)
        self.assert_fails("inspect", LLAMA, "--self-check", "--set", "model.self_check=false", says="model.self_check")

    def test_inspect_memory(self):
        def plan(memory):
            return json.loads(run("inspect", LLAMA, "--memory", memory, "--json").stdout)["memory_plan"]

        for text, value in (("1G", 2**30), ("1.5GiB", 3 * 2**29), ("800M", 800 * 2**20), ("16kB", 2**14), ("1T", 2**40),
                            ("4096", 4096), ("4096B", 4096)):
            self.assertEqual(plan(text)["memory_bytes"], value)
        # What is said to fit does, and one block of 16 tokens more would not.
        memory = plan("1M")
        bytes_per_token = json.loads(run("inspect", LLAMA, "--json").stdout)["kv_bytes_per_token"]
        left = memory["memory_bytes"] - memory["weight_bytes"] - memory["workspace_bytes"]
        for row in memory["fits"]:
            need = bytes_per_token[row["kv_dtype"]]
            self.assertLessEqual(row["cache_tokens"] * need, left)
            self.assertGreater((row["cache_tokens"] + 16) * need, left)
            self.assertEqual(row["max_context"], min(row["cache_tokens"], 256))
        self.assertIn("memory_plan:\n  memory_bytes: 1048576\n", run("inspect", LLAMA, "--memory", "1M").stdout)
        for amount in ("much", "16X", "1BB", "-1", "nan", "inf", "99999999999T", "1 G", "0x"):
            self.assert_fails("inspect", LLAMA, "--memory=" + amount, says=amount + ": is not an amount")

    def test_inspect_failures(self):
        with open(os.path.join(LLAMA, "model.gguf"), "rb") as file:
            data = file.read()
        for size in (0, 3, 1000, len(data) - 1):
            with open(self.path("cut.gguf"), "wb") as file:
                file.write(data[:size])
            self.assert_fails("inspect", self.path("cut.gguf"), says="cut.gguf")
        self.assert_fails("inspect", self.path("nowhere"), says=self.path("nowhere"))
        self.assert_wrong_usage("inspect", says="required")

    def test_tune(self):
        path = self.path("table.json")
        text = run("tune", "-m", self.model, "--seconds", "1", "-o", path).stdout
        self.assertIn("0 of 0 products", text)  # the model's weights are no quantized ones
        table = json.loads(run("tune", "-m", self.model, "--seconds", "1", "-o", path, "--json").stdout)
        self.assertEqual((table["format"], table["entries"]), ("headrace tuning table 1", []))
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.load(file), table)
        run("logits", "-m", LLAMA, "--tokens", "5", "-o", self.path("tuned.npy"), "--set", "engine.tuning=" + path)
        table["cpu"]["model"] += 1
        self.write("other.json", json.dumps(table))
        other = self.path("other.json")
        self.assert_fails("tune", "-m", self.model, "-o", other, says="was measured on")
        self.write("no_table.json", "hello")
        self.assert_fails("tune", "-m", self.model, "-o", self.path("no_table.json"), says="no_table.json: line 1")
        self.assert_fails("tune", "-m", self.model, "--set", "engine.tuning=" + other, says=["engine.tuning", other])
        self.assert_fails("tune", "-m", self.model, "-o", self.path("no/where"), "--seconds", "1", says="cannot be written")
        self.assert_wrong_usage("tune", "-m", self.model, "--seconds", "0", says="--seconds")

    def test_logits(self):
        path = self.path("logits.npy")
        out = json.loads(run("logits", "-m", LLAMA, "--tokens", "5,6,7", "-o", path, "--json").stdout)
        logits = np.load(path)
        self.assertEqual(list(logits.shape), out["shape"])
        self.assertEqual(logits.dtype, np.float32)
        self.assertTrue(np.isfinite(logits).all())
        run("logits", "-m", LLAMA, "--tokens-file", self.write("tokens.json", "[5, 6, 7]"), "-o", self.path("same.npy"))
        np.testing.assert_array_equal(np.load(self.path("same.npy")), logits)
        # Text has the tokenizer's <s> before it.
        out = json.loads(run("logits", "-m", self.model, "-p", "ab", "-o", path, "--json").stdout)
        self.assertEqual(out["tokens"], [tiny_text_model.BOS, tiny_text_model.token("a"), tiny_text_model.token("b")])

    def test_a_failure_leaves_the_output_that_was_there(self):
        path = self.write("old.npy", "old")
        os.chmod(path, 0o640)
        before = sorted(os.listdir(self.folder))
        self.assert_fails("logits", "-m", LLAMA, "--tokens", "5,999", "-o", path, says="tokens[1]: 999")
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "old")
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        os.symlink("old.npy", self.path("to_old.npy"))
        run("logits", "-m", LLAMA, "--tokens", "5", "-o", self.path("to_old.npy"))
        self.assertTrue(os.path.islink(self.path("to_old.npy")))
        self.assertEqual(np.load(path).shape, (1, 96))
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o640)
        run("logits", "-m", LLAMA, "--tokens", "5", "-o", "/dev/null")
        self.assertFalse(os.path.isfile("/dev/null"))

    def test_outputs_are_no_files_of_the_model(self):
        """Nor what else is read, by whatever name."""
        gguf = self.path("copy.gguf")
        shutil.copy(os.path.join(LLAMA, "model.gguf"), gguf)
        os.symlink(gguf, self.path("to_gguf"))
        config = os.path.join(self.model, "config.json")
        weights = os.path.join(self.model, "model.safetensors")
        tokens = self.write("ids.json", "[5]")
        for model, output in ((gguf, gguf), (gguf, self.path("to_gguf")), (self.model, weights), (self.model, config),
                              (weights, config), (weights, weights)):
            for command in (("logits", "--tokens", "5", "-o"), ("run", "-p", "x", "-n", "1", "--trace"),
                            ("eval", "--text", tokens, "--save-reference"), ("bench", "--trace"), ("chat", "--save"),
                            ("bench", "--sweep", "--svg")):
                with self.subTest(output=output, command=command):
                    self.assert_fails(command[0], "-m", model, *command[1:], output, says=output + ": is a file of the model")
        self.assert_fails("logits", "-m", gguf, "--tokens-file", tokens, "-o", tokens, says="read and written at once")
        run("inspect", gguf)
        run("inspect", self.model)

    def test_settings_that_the_command_chooses_are_refused(self):
        output = ("-o", self.path("out.npy"))
        text = self.write("text", "text")
        for key, command in (("kv.max_tokens=16", ("logits", "--tokens", "5", *output)),
                             ("kv.max_tokens=16", ("eval", "--text", text)), ("kv.prefix_index=true", ("eval", "--text", text)),
                             ("kv.dtype=f16", ("eval", "--text", text, "--exact")), ("kv.max_tokens=16", ("bench",)),
                             ("scheduler.max_num_seqs=2", ("bench",)), ("kv.max_tokens=16", ("bench", "--sweep")),
                             ("engine.profile=ops", ("run", "-p", "x", "--trace", self.path("trace")))):
            self.assert_fails(command[0], "-m", self.model, *command[1:], "--set", key, says=key.split("=")[0] + ": is what")

    def test_logits_failures(self):
        command, output = ("logits", "-m", LLAMA), ("-o", self.path("failed.npy"))
        for text in ("[1.7,4294967298,true]", "[4294967298]", "[true]", "[-1]", "[1,[2]]", "[18446744073709551617]", "[5"):
            self.assert_fails(*command, *output, "--tokens-file", self.write("bad.json", text), says="bad.json: is not a JSON array")
        self.assert_fails(*command, *output, "--tokens-file", self.write("bad.json", "[]"), says="bad.json: holds no tokens")
        self.assert_fails(*command, *output, "--tokens-file", self.write("bad.json", ""), says="bad.json: is empty")
        for text in ("", "1,,2", "1,", ",1", "1 2"):
            self.assert_wrong_usage(*command, *output, "--tokens", text, says="is not a whole number")
        self.assert_fails(*command, *output, "--tokens", "5,999", says="tokens[1]: 999")
        self.assert_fails(*command, *output, "-p", "text", says="tokenizer")
        self.assert_fails(*command, *output, "--tokens-file", self.path("nowhere"), says=self.path("nowhere"))
        for text in ("{", "[1.5, \"x\"]", "{}"):
            self.assert_fails(*command, *output, "--tokens-file", self.write("bad.json", text), says="bad.json: is not")
        self.assert_fails(*command, "--tokens", "5", "-o", self.path("no/where"), says=self.path("no/where"))
        self.assert_wrong_usage(*command, *output, says="required")

    def test_packed_cache(self):
        cache = self.path("packed")
        command = ("run", "-m", self.model, "-p", "hello", "-n", "4")
        cached = (*command, "--set", "model.packed_cache=" + cache)
        expected = run(*command).stdout
        self.assertEqual([run(*cached).stdout for _ in range(2)], [expected] * 2)
        with open(cache, "rb") as file:
            good = file.read()
        with open(cache, "wb") as file:
            file.write(good[:-1])
        result = subprocess.run([CLI, *cached], capture_output=True, text=True, timeout=120)
        self.assertEqual((result.returncode, result.stdout), (0, expected))
        self.assertRegex(result.stderr, r"\Aheadrace: warning: [^\n]*" + re.escape(cache) + r"[^\n]*\n\Z")
        with open(cache, "rb") as file:
            self.assertEqual(file.read(), good)
        arguments = ("--prompt-tokens", "16", "--gen-tokens", "8", "--repeats", "1", "-t", "1", "--rates-only")
        run("bench", "-m", self.model, *arguments, "--set", "model.packed_cache=auto")
        self.assertTrue(os.path.exists(os.path.join(self.model, "model.safetensors.packed")))

    def test_bench(self):
        arguments = ("--prompt-tokens", "16", "--gen-tokens", "8", "--repeats", "1", "-t", "1")
        out = json.loads(run("bench", "-m", self.model, *arguments, "--json").stdout)
        for key in ("prefill_tokens_per_second", "decode_tokens_per_second", "load_seconds", "peak_bytes"):
            self.assertGreater(out[key], 0)
        self.assertTrue(out["isa"])
        for key in ("read_bytes_per_second", "int8_multiply_adds_per_second", "float_multiply_adds_per_second"):
            self.assertGreater(out["roofline"][key], 0)
        for phase, steps in (("prefill_ops", 1), ("decode_ops", 7)):
            rows = {row["op"]: row for row in out[phase]}
            # Ops, draws and what is left of the wall time are all of it.
            self.assertAlmostEqual(sum(row["share"] for row in rows.values()), 1, places=6)
            self.assertEqual(rows["embed"]["calls"], steps)
            self.assertEqual(rows["sample"]["calls"], steps)
            self.assertEqual(rows["attention"]["calls"] % steps, 0)
            linear = [row for op, row in rows.items() if op.startswith("linear ")]
            self.assertTrue(linear)
            for row in linear:
                self.assertGreater(row["multiply_adds_per_second"], 0)
                self.assertAlmostEqual(row["bandwidth_share"],
                                       row["bytes_per_second"] / out["roofline"]["read_bytes_per_second"])
        self.assertEqual([row["rows"] for row in out["verification"]], [1, 2, 4, 8])
        self.assertEqual(out["verification"][0]["relative"], 1)
        text = run("bench", "-m", self.model, *arguments).stdout
        for word in ("decode_tokens_per_second: ", "roofline: ", "linear ", "sample", "rest of the steps", "8 rows of one sequence"):
            self.assertIn(word, text)
        trace = self.path("trace.json")
        run("bench", "-m", self.model, *arguments, "--json", "--trace", trace)
        with open(trace, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        self.assertTrue({"step", "forward", "sample", "attention", "thread_name"} <= {event["name"] for event in events})
        self.assert_wrong_usage("bench", "-m", self.model, "--trace", trace, "--rates-only", says="--rates-only")
        rates = json.loads(run("bench", "-m", self.model, *arguments, "--json", "--rates-only").stdout)
        self.assertNotIn("decode_ops", rates)
        self.assert_wrong_usage("bench", "-m", self.model, "--batch", "0", says="--batch: 0 is less than 1")


    def test_sweep(self):
        svg = self.path("sweep.svg")
        arguments = ("bench", "-m", self.model, "--sweep", "--sweep-contexts", "32,16,100000,200000", "--sweep-batches", "2,1,2",
                     "-t", "1")
        sweep = json.loads(run(*arguments, "--json", "--svg", svg).stdout)["sweep"]
        # The model has 256 positions, of which 17 are for what is generated.
        contexts = [16, 32, 239]
        self.assertEqual(sweep["max_context"], 239)
        self.assertEqual([row["context"] for row in sweep["prefill"]], contexts)
        self.assertEqual([(cell["context"], cell["batch"]) for cell in sweep["decode"]],
                         [(context, batch) for context in contexts for batch in (1, 2)])
        for cell in sweep["prefill"] + sweep["decode"]:
            self.assertGreater(cell["tokens_per_second"], 0)
        self.assertEqual([line.split(":")[0] for line in sweep["left_out"]],
                         [f"context {context} is measured at 239" for context in (100000, 200000)])
        self.check_charts(svg, lines=[2, 2, 2, 3, 3, 3], labels=[
            "model: decode rate over batch", "batch, sequences at once", "tokens per second, all sequences",
            "model: decode rate over context", "context, tokens of each sequence", "tokens per second, all sequences",
            "model: prefill rate over context", "context, tokens of the one prompt", "tokens per second"])
        table = run(*arguments).stdout.splitlines()
        self.assertEqual([line.split()[0] for line in table[2:5]], ["16", "32", "239"])
        self.assertEqual(table[5:], sweep["left_out"])

        longer = json.loads(run(*arguments, "--json", "--sweep-gen-tokens", "100").stdout)["sweep"]
        self.assertEqual((longer["gen_tokens"], longer["max_context"]), (100, 155))

    def check_charts(self, svg, lines, labels):
        chart = xml.etree.ElementTree.parse(svg).getroot()
        self.assertTrue(chart.tag.endswith("}svg"))
        width, height = float(chart.attrib["width"]), float(chart.attrib["height"])
        points = [line.attrib["points"].split() for line in chart.iter() if line.tag.endswith("}polyline")]
        self.assertEqual([len(line) for line in points], lines)
        plots = [group for group in chart if group.tag.endswith("}g")]
        for x, y in (map(float, point.split(",")) for line in points for point in line):
            self.assertTrue(0 < x < width and 0 < y < height / len(plots))
        texts = [element.text for element in chart.iter() if element.tag.endswith("}text")]
        self.assertEqual([text for text in texts if text in labels], labels)
        for legend in ("context 16", "context 239", "batch 1", "batch 2"):
            self.assertIn(legend, texts)

    def test_sweep_within_memory(self):
        command = ("bench", "-m", self.model, "--sweep", "--sweep-contexts", "16,128", "-t", "1")
        token_bytes = json.loads(run("inspect", self.model, "--json").stdout)["kv_bytes_per_token"]["f16"]
        memory = token_bytes * (2 * 128 + 16 + 64 + 200)  # the prompt and a sequence of 128, and part of another
        sweep = json.loads(run(*command, "--sweep-batches", "1,2,64", "--sweep-memory", str(memory / 1e9), "--json").stdout)["sweep"]
        self.assertEqual([(cell["context"], cell["batch"]) for cell in sweep["decode"]],
                         [(16, 1), (16, 2), (128, 1), (128, 2)])
        for line, context in zip(sweep["left_out"], (16, 128), strict=True):
            self.assertIn(f"context {context} is measured with up to", line)
        table = run(*command, "--sweep-batches", "1,64", "--sweep-memory", str(memory / 1e9)).stdout
        self.assertIn("sequences: the keys and values of more exceed", table)

        sweep = json.loads(run(*command, "--sweep-memory", str(token_bytes * 200 / 1e9), "--json").stdout)["sweep"]
        self.assertEqual([row["context"] for row in sweep["prefill"]], [16])
        self.assertIn("context 128 is left out: keys and values", sweep["left_out"][0])
        self.assert_fails(*command, "--sweep-memory", "1e-9", says=["--sweep-contexts", "no context fits", "context 128"])

    def test_sweep_arguments(self):
        self.assert_fails("bench", "-m", self.model, "--sweep", "--sweep-gen-tokens", "255", says=["--sweep", "256 positions"])
        self.assert_wrong_usage("bench", "-m", self.model, "--svg", self.path("sweep.svg"), says="--sweep")
        self.assert_wrong_usage("bench", "-m", self.model, "--sweep", "--sweep-gen-tokens", "0", says="0 is less than 1")
        for option, value in (("--trace", "x"), ("--batch", "2"), ("--prompt-tokens", "8"), ("--gen-tokens", "8"),
                              ("--repeats", "2")):
            self.assert_wrong_usage("bench", "-m", self.model, "--sweep", option, value, says=option)
        self.assert_wrong_usage("bench", "-m", self.model, "--sweep", "--rates-only", says="--rates-only")


class Eval(WithModel):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = os.path.join(cls.folder, "text")
        with open(cls.text, "w", encoding="utf-8") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 6)
        cls.command = ("eval", "-m", cls.model, "--text", cls.text, "--context", "64", "--tokens", "128")

    def test_perplexity(self):
        reference = self.path("reference")
        saved = json.loads(run(*self.command, "--json", "--save-reference", reference).stdout)
        self.assertEqual((saved["tokens"], saved["scored"]), (128, 2 * 31))
        # By NumPy, from the logits of each window's tokens, which the reference file holds.
        windows = np.fromfile(reference, "<i4", offset=20, count=128).reshape(2, 64)
        losses = []
        for window in windows:
            self.assertEqual(window[0], tiny_text_model.BOS)
            path = self.path("logits.npy")
            run("logits", "-m", self.model, "--tokens", ",".join(map(str, window)), "-o", path)
            logits = np.load(path).astype(np.float64)[32:63]
            losses.append(np.log(np.exp(logits).sum(1)) - logits[np.arange(31), window[33:]])
        losses = np.concatenate(losses)
        self.assertTrue(math.isclose(math.exp(losses.mean()), saved["perplexity"], rel_tol=1e-9))
        error = losses.std(ddof=1) / math.sqrt(losses.size) * saved["perplexity"]
        self.assertTrue(math.isclose(error, saved["perplexity_standard_error"], rel_tol=1e-9))

    def test_the_same_model_is_its_reference(self):
        reference = self.path("reference")
        saved = json.loads(run(*self.command, "--json", "--save-reference", reference).stdout)
        same = json.loads(run(*self.command, "--json", "--reference", reference).stdout)
        self.assertEqual(saved["perplexity"], same["perplexity"])
        # The file's codes are 16 bits of a range of at most 40 nats, so a logprob is off by 3.1e-4 at most and the KL, of
        # second order in that, by half its square.
        self.assertLess(abs(same["mean_kl"]), (40 / 65535 / 2) ** 2)
        self.assertEqual(same["top1_agreement"], 1)
        copied = self.path("copied")
        run(*self.command, "--reference", reference, "--save-reference", copied)
        with open(reference, "rb") as one, open(copied, "rb") as other:
            self.assertEqual(one.read(), other.read())

    def test_another_model_is_apart(self):
        """KL and agreement by NumPy, between exact float32 keys and values and 8-bit ones."""
        reference = self.path("f32")
        run(*self.command, "--exact", "--save-reference", reference)
        out = json.loads(run(*self.command, "--json", "--kv-dtype", "q8", "--reference", reference).stdout)
        logprobs = {}
        for kind, settings in (("f32", ("--kv-dtype", "f32", "--set", "model.exact=true")), ("q8", ("--kv-dtype", "q8"))):
            rows = []
            for window in np.fromfile(reference, "<i4", offset=20, count=128).reshape(2, 64):
                path = self.path("logits.npy")
                run("logits", "-m", self.model, *settings, "--tokens", ",".join(map(str, window)), "-o", path)
                rows.append(np.load(path).astype(np.float64)[32:63])
            rows = np.concatenate(rows)
            logprobs[kind] = rows - np.log(np.exp(rows).sum(1, keepdims=True))
        kl = (np.exp(logprobs["f32"]) * (logprobs["f32"] - logprobs["q8"])).sum(1)
        self.assertGreater(kl.mean(), 0)
        # First order in the codes' rounding, 3.1e-4 at most and of either sign, times the difference of the two.
        bound = 40 / 65535 / 2 * np.abs(logprobs["f32"] - logprobs["q8"]).max() + (40 / 65535 / 2) ** 2
        self.assertLess(abs(out["mean_kl"] - kl.mean()), bound)
        agreement = (logprobs["f32"].argmax(1) == logprobs["q8"].argmax(1)).mean()
        self.assertTrue(math.isclose(out["top1_agreement"], agreement, rel_tol=1e-12))

    def test_text_output(self):
        reference = self.path("reference")
        out = run(*self.command, "--save-reference", reference).stdout
        self.assertRegex(out, r"\Atokens 128, scored 62, perplexity [\d.]+ \+- [\d.]+\n\Z")
        self.assertIn("top-1 agreement 1.0", run(*self.command, "--reference", reference).stdout)

    def test_text_from_standard_input(self):
        with open(self.text, encoding="utf-8") as file:
            text = file.read()
        command = [argument if argument != self.text else "-" for argument in self.command]
        self.assertEqual(run(*command, stdin=text).stdout, run(*self.command).stdout)

    def test_failures(self):
        reference = self.path("reference")
        run(*self.command, "--save-reference", reference)
        with open(reference, "rb") as file:
            data = file.read()
        for size in (0, 10, 300, len(data) - 1):
            with open(self.path("cut"), "wb") as file:
                file.write(data[:size])
            self.assert_fails(*self.command, "--reference", self.path("cut"), says=self.path("cut"))
        self.assert_fails(*self.command, "--reference", self.text, says=self.text + ": is no reference file")
        self.assert_fails(*self.command, "--reference", self.path("nowhere"), says=self.path("nowhere") + ": cannot be read")
        self.assert_fails(*self.command, "--save-reference", self.path("no/where"), says=self.path("no/where"))
        self.assert_fails(*self.command[:-1], "64", "--reference", reference, says="another text")
        # A reference is never lost to a mistake, by whatever name.
        os.symlink(reference, self.path("link"))
        os.link(reference, self.path("other_name"))
        for name in (reference, os.path.join(self.folder, ".", "reference"), self.path("link"), self.path("other_name")):
            self.assert_fails(*self.command, "--save-reference", name, "--reference", reference, says=name)
        self.assert_fails(*self.command, "--save-reference", self.text, says="read and written at once")
        with open(reference, "rb") as file:
            self.assertEqual(file.read(), data)
        model = ("eval", "-m", self.model)
        self.assert_fails(*model, "--text", self.path("nowhere"), says=self.path("nowhere"))
        self.assert_fails(*model, "--text", "-", stdin="short", says="fewer than one window of 512")
        self.assert_fails(*model, "--text", self.write("empty", ""), says="fewer than one window of 512")
        self.assert_fails(*model, "--text", "-", "--context", "512", stdin="x" * 600, says="context of 256")
        self.assert_fails("eval", "-m", LLAMA, "--text", self.text, says="tokenizer")
        self.assert_wrong_usage(*model, "--text", self.text, "--context", "4", says="--context")
        self.assert_wrong_usage(*model, "--text", self.text, "--tokens", "-1", says="--tokens: -1 is less than 0")
        self.assert_wrong_usage(*model, says="--text is required")


if __name__ == "__main__":
    unittest.main()
