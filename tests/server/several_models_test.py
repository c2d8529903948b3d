"""Several models on one server: names, one set of threads, one budget, and what belongs to which."""

import os
import subprocess
import tempfile
import threading
import unittest

import tiny_adapter
import tiny_encoder
from client_packages import needs_packages
from server_process import CLI, Server, ServerTest, write_model

DRAW = {"temperature": 0, "ignore_eos": True, "max_tokens": 6}


class SeveralServed(ServerTest):
    """Two that generate, called "tiny" and by its folder's name "other", and one that embeds."""

    @classmethod
    def write_model(cls, folder):
        paths = [os.path.join(folder, name) for name in ("first", "other", "encoder")]
        for path in paths:
            os.mkdir(path)
        adapters = os.path.join(folder, "adapters")
        os.makedirs(os.path.join(adapters, "b"))
        tiny_adapter.write(os.path.join(adapters, "b"))
        write_model(paths[0])
        write_model(paths[1])
        tiny_encoder.write(paths[2], pooling="cls_token")
        cls.arguments = ("-m", paths[1], "-m", paths[2], "--priority", "0", "--priority", "5", "--adapter-dir", adapters)
        return paths[0]


class SeveralModels(SeveralServed):
    def cached(self, model):
        body = {"model": model, "prompt": "a prompt of more than one block, for " + self.id(), **DRAW}
        return self.server.post("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_the_name_chooses(self):
        listed = self.server.get("/v1/models")
        self.assertEqual([model["id"] for model in listed["data"]], ["tiny", "other", "encoder"])
        self.assertEqual((listed["first_id"], listed["last_id"]), ("tiny", "encoder"))
        for name in ("tiny", "other"):
            self.assertEqual(self.server.get("/v1/models/" + name)["id"], name)
            out = self.server.post("/v1/chat/completions", {
                "model": name, "messages": [{"role": "user", "content": "hello"}], **DRAW})
            self.assertEqual(out["model"], name)
        self.assertEqual(len(self.server.post("/v1/embeddings", {"model": "encoder", "input": "a"})["data"]), 1)
        # Each has a cache of its own.
        self.assertEqual([self.cached("tiny"), self.cached("other")], [0, 0])
        self.assertGreater(self.cached("other"), 0)
        health = self.server.get("/health")
        self.assertEqual(health["models"], ["tiny", "other", "encoder"])
        self.assertEqual([(one["model"], one["status"]) for one in health["engines"]], [("tiny", "ok"), ("other", "ok")])
        self.assertEqual([cache["model"] for cache in self.server.get("/v1/cache")["data"]], ["tiny", "other"])

    def test_what_is_refused(self):
        chat = {"messages": [{"role": "user", "content": "a"}]}
        error = self.assert_refused("/v1/chat/completions", {**chat, "model": "gpt-4"}, 404, "model")
        self.assertEqual((error["code"], error["type"]), ("model_not_found", "invalid_request_error"))
        self.assertEqual(self.server.ask("GET", "/v1/models/gpt-4")[0], 404)
        # None is guessed.
        self.assert_refused("/v1/chat/completions", chat, 400, "model", "which")
        self.assert_refused("/tokenize", {"prompt": "a"}, 400, "model")
        self.assert_refused("/v1/sessions", {}, 400, "model")
        self.assert_refused("/v1/chat/completions", {**chat, "model": "encoder"}, 400, "model", "generates nothing")

    def test_sessions_and_adapters_are_of_one_model(self):
        session = self.server.post("/v1/sessions", {"model": "other"})["id"]
        body = {"prompt": "hello", "session": session, **DRAW}
        self.assert_refused("/v1/completions", {**body, "model": "tiny"}, 400, "session", "another model")
        self.server.post("/v1/completions", {**body, "model": "other"})
        load = {"lora_name": "mine", "lora_path": "b"}
        self.assert_refused("/v1/load_lora_adapter", load, 400, "model")
        self.server.post("/v1/load_lora_adapter", {**load, "model": "other"})
        self.assertEqual(self.server.get("/v1/models/mine")["parent"], "other")
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "a", "model": "mine", **DRAW})["model"], "mine")
        self.assert_refused("/v1/completions", {**body, "model": "mine"}, 400, "model", "sessions do not have")
        self.assert_refused("/v1/load_lora_adapter", {**load, "model": "tiny"}, 409, "lora_name")
        self.server.post("/v1/unload_lora_adapter", {"lora_name": "mine"})

    def test_both_at_once_say_what_each_says_alone(self):
        texts = {}

        def complete(model):
            body = {"model": model, "prompt": "hello", **DRAW, "max_tokens": 300}
            texts.setdefault(model, []).append(self.server.post("/v1/completions", body)["choices"][0]["text"])

        for model in ("tiny", "other"):
            complete(model)
        threads = [threading.Thread(target=complete, args=(model,)) for model in ("tiny", "other") * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for said in texts.values():
            self.assertEqual(said, said[:1] * 4)
        metrics = self.server.get("/metrics").decode()
        for model in ("tiny", "other"):
            self.assertIn(f'headrace_steps_total{{model="{model}"}} ', metrics)


@needs_packages
class Metrics(SeveralServed):
    def test_the_format(self):
        from prometheus_client.parser import text_string_to_metric_families
        for _ in range(2):  # before and after there is something to tell
            families = list(text_string_to_metric_families(self.server.get("/metrics").decode()))
            names = [family.name for family in families]
            self.assertEqual(len(names), len(set(names)))
            for family in families:
                seen = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
                self.assertEqual(len(seen), len(set(seen)), family.name)
                if not family.name.startswith(("headrace_http", "headrace_sessions", "headrace_clients", "headrace_tenant")):
                    self.assertEqual({sample.labels["model"] for sample in family.samples}, {"tiny", "other"}, family.name)
            for model in ("tiny", "other"):
                self.server.post("/v1/completions", {"model": model, "prompt": "a", **DRAW})


class Starting(unittest.TestCase):
    def test_names_and_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            model = write_model(folder)

            def refused(*arguments, says):
                result = subprocess.run([CLI, "serve", "-m", model, *arguments], capture_output=True, text=True)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn(says, result.stderr)

            refused("-m", model, says="--alias")
            refused("--alias", "a", "--alias", "b", says="more names")
            refused("-m", model, "--alias", "a", "--adapter", "x=y", says="several")
            refused("--set", "runtime.max_bytes=100000", says="runtime.max_bytes")
            server = Server(model, "-m", model, "--alias", "a", "--alias", "b", "--set", "runtime.max_bytes=100000000")
            self.assertEqual([m["id"] for m in server.get("/v1/models")["data"]], ["a", "b"])
            server.stop()


if __name__ == "__main__":
    unittest.main()
