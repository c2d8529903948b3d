"""`headrace conformance` on the goldens that ship with the repository, on damaged copies of them, and on HEADRACE_TEST_DATA."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

from headrace_command import CLI, CommandTest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SHIPPED = os.path.join(SOURCE, "tests", "data", "goldens")
DATA = os.environ.get("HEADRACE_TEST_DATA", "")
BITS = {"chunks": True, "cache": True, "batch": True, "threads": True}


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), bytearray(data[8 + size:])


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def conformance(folder, *arguments, code):
    """Rows of the JSON file by name, and the table."""
    with tempfile.TemporaryDirectory() as out:
        path = os.path.join(out, "result.json")
        result = subprocess.run([CLI, "conformance", folder, "--json", path, *arguments], capture_output=True, text=True,
                                timeout=600)
        assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    return {row["name"]: row for row in report["models"]}, report, result


class Conformance(CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def copy(self, name, as_name=None):
        path = os.path.join(self.folder, as_name or name)
        shutil.copytree(os.path.join(SHIPPED, name), path, ignore=shutil.ignore_patterns("*.gguf"))
        return path

    def change(self, folder, tensor, index, format, value):
        path = os.path.join(folder, "golden.safetensors")
        header, data = read_safetensors(path)
        struct.pack_into(format, data, header[tensor]["data_offsets"][0] + 4 * index, value)
        write_safetensors(path, header, data)

    def test_shipped_models_conform(self):
        rows, report, result = conformance(SHIPPED, code=0)
        names = {"llama", "qwen2", "qwen3", "gemma3", "t5", "t5_encoder"}
        self.assertEqual(set(rows), names | {f"{name}/model.gguf" for name in names - {"qwen2"}})
        self.assertEqual(report["failed"], 0)
        for name, row in rows.items():
            self.assertTrue(row["passed"], row)
            if not name.startswith("t5"):
                self.assertEqual(row["equal_bits"], BITS)
                self.assertEqual(row["top1_agreement"], 1)
            if not name.startswith("t5_encoder"):
                self.assertEqual(row["greedy"], {"compared": 24, "equal": 24})
            self.assertLess(0, row["mean_error"])
            self.assertLess(row["mean_error"], row["max_error"])
            self.assertLessEqual(row["max_error"], row["tolerance"])
        self.assertEqual(len(result.stdout.splitlines()), 1 + len(rows))
        self.assertRegex(result.stdout.splitlines()[1], r"^gemma3 +Gemma3ForCausalLM .* ok$")

    def test_only_the_models_that_are_named(self):
        self.assertEqual(set(conformance(SHIPPED, "--only", "qwen2", code=0)[0]), {"qwen2"})
        rows = conformance(SHIPPED, "--only", "qwen3/model.gguf", "--only", "llama", code=0)[0]
        self.assertEqual(set(rows), {"qwen3/model.gguf", "llama", "llama/model.gguf"})
        self.assert_fails("conformance", SHIPPED, "--only", "qwen4", says=("qwen4", "is no model below"))
        self.assertEqual(set(conformance(os.path.join(SHIPPED, "qwen2"), code=0)[0]), {"."})

    def test_weak_results_fail_and_say_why(self):
        other = self.copy("llama", "other_logits")
        self.change(other, "p40.logits", 17, "<f", 7.5)
        greedy = self.copy("llama", "other_greedy")
        self.change(greedy, "p40.greedy", 3, "<i", 5)
        hidden = self.copy("llama", "other_hidden")
        self.change(hidden, "p40.hidden", 4, "<f", float("nan"))
        close = self.copy("llama", "near_tie")  # a margin that the reference's own noise may turn over
        self.change(close, "p40.greedy", 3, "<i", 5)
        self.change(close, "p40.greedy_margin", 3, "<f", 5e-4)
        rows, report, result = conformance(self.folder, code=1)
        self.assertEqual(report["failed"], 3)
        self.assertIn("3 of 4 models do not conform", result.stderr)
        self.assertRegex(rows["other_logits"]["failures"][0], r"^p40.logits differs by .*, allowed 1.00e-04$")
        self.assertIn("p40: another token is the most likely after token 0", rows["other_logits"]["failures"])
        self.assertRegex(rows["other_greedy"]["failures"][0], r"^p40: greedy token 3 is \d+, not 5$")
        self.assertRegex(rows["other_hidden"]["failures"][0], r"^p40.hidden differs by nan")
        self.assertTrue(rows["near_tie"]["passed"])
        self.assertEqual(rows["near_tie"]["greedy"], {"compared": 3, "equal": 3})
        for name in ("other_logits", "other_greedy", "other_hidden"):
            self.assertEqual(rows[name]["equal_bits"], BITS)
            self.assertRegex(result.stdout, rf"(?m)^{name} .* FAILS: ")

    def test_what_is_not_supported_counts_as_failing(self):
        unknown = self.copy("llama", "unknown")
        with open(os.path.join(unknown, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config["architectures"] = ["LamaForCausalLM"]
        with open(os.path.join(unknown, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        sound = self.copy("llama", "sound")
        header, data = read_safetensors(os.path.join(sound, "golden.safetensors"))
        header["p40.input_features"] = header["p40.hidden"]
        write_safetensors(os.path.join(sound, "golden.safetensors"), header, data)
        rows, _, result = conformance(self.folder, code=1)
        self.assertIn("unknown architecture 'LamaForCausalLM'", rows["unknown"]["not_supported"])
        self.assertEqual(rows["sound"]["not_supported"], "p40 needs input_features")
        self.assertFalse(rows["sound"]["passed"])
        self.assertRegex(result.stdout, r"(?m)^sound .* not supported: p40 needs input_features$")

    def test_damaged_folders_are_rows_that_fail(self):
        cut = self.copy("llama", "cut")
        with open(os.path.join(cut, "golden.safetensors"), "r+b") as file:
            file.truncate(2000)
        os.remove(os.path.join(self.copy("llama", "no_json"), "golden.json"))
        os.remove(os.path.join(self.copy("llama", "no_weights"), "model.safetensors"))
        with open(os.path.join(self.copy("llama", "no_header"), "golden.safetensors"), "wb") as file:
            file.write(b"\xff" * 20)
        rows, report, _ = conformance(self.folder, code=1)
        self.assertEqual(report["failed"], 4)
        self.assertIn("is cut short", rows["cut"]["failures"][0])
        self.assertIn("is cut short", rows["no_header"]["failures"][0])
        self.assertIn("golden.json: cannot be read", rows["no_json"]["failures"][0])
        self.assertTrue(rows["no_weights"]["failures"])

    def test_settings(self):
        rows = conformance(SHIPPED, "--only", "llama", "--isa", "auto", "-t", "1", code=0)[0]
        self.assertEqual(rows["llama"]["equal_bits"], BITS)
        # Rounded keys and values: equal bits still, but not the reference's logits.
        rows = conformance(SHIPPED, "--only", "qwen2", "--kv-dtype", "q8", code=1)[0]
        self.assertEqual(rows["qwen2"]["equal_bits"], BITS)
        self.assertIn("p40.logits differs by", rows["qwen2"]["failures"][0])
        self.assert_fails("conformance", SHIPPED, "--set", "kv.max_tokens=64", says="kv.max_tokens")
        self.assert_fails("conformance", SHIPPED, "--isa", "sse9", says="engine.isa")
        self.assert_fails("conformance", os.path.join(SHIPPED, "nothing"), says="is no folder")
        self.assert_fails("conformance", self.folder, says="holds no model with golden.safetensors beside it")
        self.assert_wrong_usage("conformance", says="folder is required")

    @unittest.skipUnless(os.environ.get("HEADRACE_EMULATED_CUDA"), "no emulator in this build")
    def test_emulated_cuda(self):
        # One form of one model, for it takes half a minute; cuda_models_test has the others.
        settings = ("--device", "emulated-cuda", "--only", "llama/model.gguf", "--set", "model.exact=true")
        rows = conformance(SHIPPED, *settings, code=0)[0]
        self.assertTrue(rows["llama/model.gguf"]["passed"], rows)
        self.assert_fails("run", "-m", os.path.join(SHIPPED, "llama"), "-p", "x", "--device", "emulated-cuda",
                          "--kv-dtype", "q8", says="has no paged_attention with a q8 cache")

    def test_devices_that_are_not_there(self):
        self.assert_fails("conformance", SHIPPED, "--device", "cuda:x", says="model.device")
        rows = conformance(SHIPPED, "--only", "llama", "--device", "cuda:99", code=1)[0]
        self.assertIn("model.device", rows["llama"]["not_supported"])

    @unittest.skipUnless(os.path.isdir(os.path.join(DATA, "goldens", "models")), "HEADRACE_TEST_DATA is not there")
    def test_every_other_model_conforms(self):
        rows, _, _ = conformance(os.path.join(DATA, "goldens", "models"), code=0)
        self.assertGreater(len(rows), 60)
        for name, row in rows.items():
            self.assertTrue(row["passed"], (name, row["failures"], row.get("not_supported")))

