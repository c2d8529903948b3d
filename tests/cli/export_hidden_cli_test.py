"""`headrace export-hidden`, against what a request gives, on a tiny model that is written for the tests."""

import json
import os
import struct
import tempfile

import numpy as np
import tiny_text_model
from headrace_command import CommandTest, run


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    metadata = header.pop("__metadata__")
    types = {"F32": np.float32, "I32": np.int32}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


class ExportHidden(CommandTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        made = os.path.join(folder.name, "model")
        os.mkdir(made)
        cls.model = tiny_text_model.write(made)

    def export(self, name, prompts, *arguments):
        lines = "".join(json.dumps(prompt) + "\n" for prompt in prompts)
        out = os.path.join(self.folder, name)
        run("export-hidden", "-m", self.model, "--prompts", "-", "-o", out, *arguments, stdin=lines)
        with open(os.path.join(out, "hidden.safetensors.index.json"), encoding="utf-8") as file:
            index = json.load(file)
        tensors = {}
        for shard in sorted(set(index["weight_map"].values())):
            held, metadata = read_safetensors(os.path.join(out, shard))
            self.assertEqual(metadata, index["metadata"])
            self.assertEqual(set(held), {key for key, value in index["weight_map"].items() if value == shard})
            tensors.update(held)
        return tensors, index

    def test_rows_of_prompts(self):
        prompts = [{"prompt": "hello"}, {"tokens": [5, 6, 7]}, {"messages": [{"role": "user", "content": "hi"}]}]
        tensors, index = self.export("rows", prompts, "--layers", "2,0")
        self.assertEqual(index["metadata"]["layers"], "[2,0]")
        self.assertEqual(len(tensors), 9)
        for number, length in enumerate((6, 3, 6)):
            self.assertEqual(tensors[f"{number}.input_ids"].shape, (length,))
            for layer in (0, 2):
                self.assertEqual(tensors[f"{number}.hidden_states.{layer}"].shape, (length, 32))
        np.testing.assert_array_equal(tensors["1.input_ids"], [5, 6, 7])
        # A row depends on what comes before it alone.
        longer, _ = self.export("longer", [{"tokens": [5, 6, 7, 8]}], "--layers", "2,0")
        np.testing.assert_array_equal(longer["0.hidden_states.2"][:3], tensors["1.hidden_states.2"])

    def test_generated_rows_and_shards(self):
        tensors, index = self.export("shards", [{"tokens": [5, 6, 7]}], "--layers", "1", "--max-tokens", "4")
        self.assertEqual(tensors["0.hidden_states.1"].shape[0], len(tensors["0.input_ids"]))
        self.assertEqual(len(set(index["weight_map"].values())), 1)

    def test_refused(self):
        def refused(prompts, layers, says):
            self.assert_fails("export-hidden", "-m", self.model, "--prompts", "-", "-o", os.path.join(self.folder, "no"),
                              "--layers", layers, stdin=prompts, says=says)

        refused('{"tokens": [5]}\n{"text": "a"}\n', "1", "prompts, line 2")
        refused('{"tokens": [5]}\n', "1,3", "layers[1]")
        refused("\n", "1", "holds no prompts")
