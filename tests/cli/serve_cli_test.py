"""`headrace bench --serve`, and the example of 32 sessions, on a tiny model with text."""

import json
import os
import pathlib
import subprocess
import tempfile
import xml.etree.ElementTree

import tiny_text_model
from headrace_command import CommandTest, run


class Serve(CommandTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.model = os.path.join(cls.folder, "model")
        os.mkdir(cls.model)
        tiny_text_model.write(cls.model)
        cls.long_model = os.path.join(cls.folder, "long")
        os.mkdir(cls.long_model)
        tiny_text_model.write(cls.long_model)
        config = pathlib.Path(cls.long_model, "config.json")
        config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 16384}))

    def trace(self, *lines):
        path = os.path.join(self.folder, "trace.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return path

    def test_a_file_is_replayed_turn_by_turn(self):
        path = self.trace(
            {"conversation": "a", "class": "chat", "tenant": "x", "shared": "s", "shared_tokens": 32, "prompt_tokens": 8,
             "output_tokens": 5},
            {"conversation": "a", "class": "chat", "tenant": "x", "prompt_tokens": 4, "output_tokens": 3},
            "",
            {"class": "other", "tenant": "y", "arrival": 0.05, "prompt_tokens": 20, "output_tokens": 1})
        out = json.loads(run("bench", "-m", self.model, "--serve", path, "--json").stdout)
        self.assertEqual([(row["name"], row["requests"], row["output_tokens"]) for row in out["classes"]],
                         [("chat", 2, 8), ("other", 1, 1)])
        self.assertEqual([(row["name"], row["prompt_tokens"]) for row in out["tenants"]], [("x", 40 + 49), ("y", 20)])
        self.assertEqual(out["total"]["cached_tokens"], 32)  # two blocks of the first prompt
        self.assertGreaterEqual(out["seconds"], 0.05)
        self.assertGreater(out["total"]["first_token_ms"]["p50"], 0)
        table = run("bench", "-m", self.model, "--serve", path).stdout
        self.assertIn("tenant  x", table)
        self.assertIn("prefix", table)

    def test_made_traces(self):
        classes = {"coding-agent": {"coding-agent"}, "chat": {"chat"}, "documents": {"documents"}, "tenants": {"chat"}}
        for name, expected in classes.items():
            with self.subTest(trace=name):
                out = json.loads(run("bench", "-m", self.long_model, "--serve", name, "--serve-requests", "8", "--serve-rate",
                                     "100", "--json", "--set", "kv.max_tokens=65536").stdout)
                self.assertEqual({row["name"] for row in out["classes"]}, expected)
                self.assertEqual({row["name"] for row in out["tenants"]}, {"steady", "burst"} if name == "tenants" else {""})
                self.assertEqual(out["total"]["requests"], 8)
                self.assertGreaterEqual(out["total"]["output_tokens"], 8)
                # Later turns of an agent find what the ones before left.
                if name == "coding-agent":
                    self.assertGreater(out["total"]["cached_tokens"], out["total"]["prompt_tokens"] // 2)

    def test_a_trace_of_the_requests_is_written(self):
        path = os.path.join(self.folder, "events.json")
        run("bench", "-m", self.model, "--serve", self.trace({"prompt_tokens": 9, "output_tokens": 3}), "--trace", path)
        with open(path, encoding="utf-8") as file:
            events = [event for event in json.load(file)["traceEvents"] if event.get("cat") == "request"]
        self.assertEqual([event["ph"] for event in events if event["ph"] != "n"], ["b", "e"])
        self.assertEqual([event["args"]["output_tokens"] for event in events if event["name"] == "finished"], [3])

    def test_plots(self):
        path = self.trace(*({"class": name, "tenant": tenant, "prompt_tokens": 30 + i, "output_tokens": 6}
                            for i in range(10) for name, tenant in (("short <&>", "x"), ("long", ""))))
        folder = os.path.join(self.folder, "plots", "of a run")
        run("bench", "-m", self.model, "--serve", path, "--plots", folder)
        self.assertEqual(sorted(os.listdir(folder)), ["first_token.svg", "inter_token.svg", "timeline.svg"])
        labels = {"first_token.svg": {"short <&>", "long", "x", "(none)"}, "timeline.svg": {"output", "prompt", "running", "waiting"}}
        labels["inter_token.svg"] = labels["first_token.svg"]
        for name, expected in labels.items():
            root = xml.etree.ElementTree.parse(os.path.join(folder, name)).getroot()
            tags = [element.tag.rpartition("}")[2] for element in root.iter()]
            self.assertEqual((tags[0], tags.count("polyline")), ("svg", 4), name)
            self.assertLessEqual(expected, {element.text for element in root.iter()})
            for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
                points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
                self.assertTrue(points and all(80 <= x <= 570 and 40 <= y <= 310 for x, y in points), points)
                self.assertEqual(points, sorted(points, key=lambda point: point[0]))
        self.assert_wrong_usage("bench", "-m", self.model, "--plots", folder, says="--serve")

    def test_what_is_wrong_with_a_file_is_told_by_its_line(self):
        def fails(line, says):
            self.assert_fails("bench", "-m", self.model, "--serve", self.trace({"prompt_tokens": 1}, line), says=says)

        fails("[1]", "line 2")
        fails({"prompt_tokens": 0}, ["line 2", "prompt_tokens"])
        fails({"prompt_tokens": "x"}, ["line 2", "prompt_tokens"])
        fails({"tenant": 5}, ["line 2", "tenant"])
        fails({"promt_tokens": 5}, ["line 2", "promt_tokens", "not known"])
        self.assert_fails("bench", "-m", self.model, "--serve", "/none", says="/none")
        self.assert_wrong_usage("bench", "-m", self.model, "--serve", "chat", "--batch", "2", says="--batch")

    def test_the_example_of_32_sessions(self):
        result = subprocess.run([os.environ["HEADRACE_BATCH"], self.model], capture_output=True, text=True, timeout=120)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = result.stdout.splitlines()
        self.assertGreaterEqual(sum(1 for line in lines if " tokens): " in line), 64)
        self.assertIn("64 requests in ", result.stdout)
        self.assertRegex(result.stdout, r"[1-9]\d* of \d+ prompt tokens were cached")
        self.assertIn("even: ", result.stdout)
