"""Requests that made other servers fail, from public reports, and the right behaviour here."""

import json
import os
import socket
import tempfile
import time
import unittest

import tiny_adapter
from server_process import Server, ServerTest, http_request, write_model

HELLO = [{"role": "user", "content": "hello"}]
DRAW = {"temperature": 0, "ignore_eos": True}
JSON = {"Content-Type": "application/json"}


class Bodies(ServerTest):
    def test_nothing_asked(self):
        self.assert_refused("/v1/chat/completions", {}, 400, "messages")
        self.assert_refused("/v1/completions", {}, 400, "prompt")

    def test_what_is_no_json(self):
        deep = b"[" * 10000 + b"]" * 10000
        for body in (b'{: "a":1}', b"", deep, b'{"prompt": ' + deep + b"}", b'{"prompt": "\xff\xfe"}', b'{"prompt": "\\ud800"}'):
            for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/tokenize"):
                self.assertEqual(self.server.ask("POST", path, body, JSON)[0], 400, (path, body[:20]))

    def test_types_are_not_guessed(self):
        for field, value in (("stream", "false"), ("stream", 0), ("stream_options", "include_usage"), ("logit_bias", "a"),
                             ("max_tokens", "5"), ("temperature", "0"), ("stop", {"a": 1})):
            self.assert_refused("/v1/chat/completions", {"messages": HELLO, field: value}, 400, field)

    def test_numbers_are_bounded_before_anything_is_made(self):
        begin = time.monotonic()
        for number in (129, 10 ** 9, 10 ** 30, 1e300):
            self.assert_refused("/v1/completions", {"prompt": "a", "n": number}, 400, "n")
            self.assert_refused("/v1/completions", {"prompt": "a", "best_of": number}, 400, "best_of")
            self.assert_refused("/v1/completions", {"prompt": "a", "logprobs": number}, 400, "logprobs")
        self.assertLess(time.monotonic() - begin, 5)

    def test_empty_prompts(self):
        # An empty text is what the tokenizer makes of it, which is the token that begins a text.
        out = self.server.post("/v1/completions", {"prompt": "", "max_tokens": 3, **DRAW})
        self.assertEqual((out["usage"]["prompt_tokens"], out["usage"]["completion_tokens"]), (1, 3))
        self.assert_refused("/v1/completions", {"prompt": []}, 400, "prompt")
        self.assert_refused("/v1/completions", {"prompt": [[]]}, 400, "prompt[0]")
        self.assert_refused("/v1/chat/completions", {"messages": []}, 400, "messages")

    def test_legacy_logprobs(self):
        out = self.server.post("/v1/completions", {"prompt": "a", "logprobs": 1, "max_tokens": 3, **DRAW})
        logprobs = out["choices"][0]["logprobs"]
        self.assertEqual({name: len(values) for name, values in logprobs.items()},
                         dict.fromkeys(("tokens", "token_logprobs", "top_logprobs", "text_offset"), 3))

    def test_the_order_of_the_end(self):
        events = self.server.events("/v1/chat/completions", {
            "messages": HELLO, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}, **DRAW})
        finish, usage, done = (data for _, data in events[-3:])
        self.assertEqual((finish["choices"][0]["finish_reason"], finish["usage"]), ("length", None))
        self.assertEqual((usage["choices"], usage["usage"]["completion_tokens"], done), ([], 3, "[DONE]"))

    def test_large_prompts(self):
        # 100 KB are read; that they do not fit is said with the counts, and nothing is cut.
        error = self.assert_refused("/v1/completions", {"prompt": "a" * 100000}, 400, "prompt")
        self.assertRegex(error["message"], "100001 tokens .* context of 4096")
        self.assert_refused("/v1/chat/completions", {"messages": HELLO * 50000}, 400, "messages")
        with self.server.connect() as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: 1000000000\r\n\r\n")
            self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 413"))

    def test_the_same_three_times(self):
        body = {"prompt": "a long prefix " * 40 + self.id(), "max_tokens": 20, "logprobs": 5, **DRAW}
        outs = [self.server.post("/v1/completions", body) for _ in range(3)]
        self.assertEqual([out["usage"]["prompt_tokens_details"]["cached_tokens"] > 500 for out in outs], [False, True, True])
        self.assertEqual(outs[0]["choices"], outs[1]["choices"])
        self.assertEqual(outs[0]["choices"], outs[2]["choices"])

    def test_paths_lead_nowhere(self):
        for name in ("..", "../tiny", "/etc/passwd", "a\\b", "%2e%2e", "-1", "..%2f..%2fetc%2fpasswd", "%00"):
            for method, path in (("GET", "/v1/sessions/" + name), ("DELETE", "/v1/sessions/" + name),
                                 ("GET", "/v1/models/" + name)):
                self.assertIn(self.server.ask(method, path)[0], (400, 404), path)


class Keys(ServerTest):
    """Every route of the description, by every kind of caller."""

    KEY = "some-key-0123456789"
    OPEN = {"/health", "/", "/openapi.json"}
    ADMIN = {"/metrics", "/v1/cache", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}

    @classmethod
    def write_model(cls, folder):
        keys = os.path.join(folder, "keys.txt")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(cls.KEY + " tenant\n")
        cls.arguments = ("--api-key-file", keys)
        return super().write_model(folder)

    def test_each_route(self):
        routes = [(method.upper(), path.replace("{session}", "x").replace("{model}", "x"))
                  for path, methods in self.server.get("/openapi.json")["paths"].items() for method in methods]
        self.assertGreater(len(routes), 20)
        for method, path in routes:
            body = {} if method == "POST" else None

            def status(**headers):
                given = {name.replace("_", "-"): value for name, value in headers.items()}
                return self.server.ask(method, path, body, given)[0]

            is_open, is_admin = path in self.OPEN, path in self.ADMIN
            with self.subTest(method=method, path=path):
                self.assertEqual(status() == 401, not is_open)
                self.assertEqual(status(Authorization="Bearer wrong") == 401, not is_open)
                self.assertEqual(status(X_Api_Key="wrong") == 401, not is_open)
                for right in ({"Authorization": "Bearer " + self.KEY}, {"X_Api_Key": self.KEY}):
                    self.assertEqual(status(**right) == 403, is_admin)
                    self.assertNotEqual(status(**right), 401)
                self.assertEqual(status(Authorization="Bearer " + self.KEY, Origin="https://evil.example"), 403)
                got, headers, _ = self.server.ask("OPTIONS", path, headers={
                    "Origin": "https://evil.example", "Access-Control-Request-Method": method})
                self.assertEqual((got, headers["Access-Control-Allow-Origin"]), (403, None))


class Adapters(ServerTest):
    @classmethod
    def write_model(cls, folder):
        model, adapters = (os.path.join(folder, name) for name in ("model", "adapters"))
        os.mkdir(model)
        write_model(model)
        for seed, name in enumerate("ab"):
            os.makedirs(os.path.join(adapters, name))
            tiny_adapter.write(os.path.join(adapters, name), seed=seed)
        outside = os.path.join(folder, "outside")
        os.mkdir(outside)
        tiny_adapter.write(outside, seed=5)
        os.symlink(outside, os.path.join(adapters, "link"))
        cls.arguments = ("--adapter-dir", adapters, "--set", "scheduler.max_num_seqs=1")
        return model

    def test_names_of_folders_lead_nowhere_else(self):
        for name in ("", ".", "..", "../model", "/etc", "a/../../model", "a/", "a\\b", "a\0b", "link"):
            status, _, data = self.server.ask("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": name})
            self.assertIn((status, data["error"]["param"]), ((400, "lora_path"), (404, "lora_path")), repr(name))

    def scores(self, model, salt):
        out = self.server.post("/v1/completions", {
            "model": model, "prompt": "a prompt of some blocks, the same for all that are asked", "max_tokens": 8,
            "logprobs": 0, "cache_salt": salt, **DRAW})
        return out["choices"][0]["logprobs"]["token_logprobs"], out["usage"]["prompt_tokens_details"]["cached_tokens"]

    def load(self, name, folder):
        self.server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})

    def test_values_are_of_the_adapter_that_made_them(self):
        for name in ("a", "b"):
            self.load(name, name)
        cold = {name: self.scores(name, "cold " + name)[0] for name in ("tiny", "a", "b")}
        self.assertEqual(len({tuple(scores) for scores in cold.values()}), 3)
        for name in ("a", "b", "tiny", "b", "a"):
            self.assertEqual(self.scores(name, "warm")[0], cold[name])
        self.assertGreater(self.scores("a", "warm")[1], 16)
        # Other weights under the same name find nothing of the old ones.
        self.server.post("/v1/unload_lora_adapter", {"lora_name": "a"})
        self.load("a", "b")
        self.assertEqual(self.scores("a", "warm")[0], cold["b"])
        self.server.post("/v1/unload_lora_adapter", {"lora_name": "a"})
        self.load("a", "a")
        self.assertEqual(self.scores("a", "warm")[0], cold["a"])


class OneAtATime(ServerTest):
    arguments = ("--set", "scheduler.max_num_seqs=1", "--set", "kv.max_tokens=8192")

    def send(self, **body):
        client = self.server.connect()
        client.sendall(http_request({**DRAW, **body}, extra="Connection: close\r\n"))
        return client

    def wait_until(self, is_so):
        end = time.monotonic() + 20
        while not is_so(self.server.metrics()):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)

    def wait_for(self, name, value):
        self.wait_until(lambda now: now[name] == value)

    def wait_for_more(self, name, value):
        self.wait_until(lambda now: now[name] > value)

    def test_one_that_waits_and_goes_leaves_the_other_alone(self):
        alone = self.server.post("/v1/completions", {"prompt": "hello", "max_tokens": 6000, **DRAW})["choices"][0]["text"]
        with self.send(prompt="hello", max_tokens=6000) as first:
            self.wait_for("headrace_sequences_running", 1)
            for _ in range(3):
                with self.send(prompt="b", max_tokens=1500):
                    self.wait_for("headrace_requests_in_engine", 2)
                self.wait_for("headrace_requests_in_engine", 1)
            with first.makefile("rb") as answer:
                out = json.loads(answer.read().partition(b"\r\n\r\n")[2])
        self.assertEqual(out["choices"][0]["text"], alone)

    def test_too_long_a_prompt_is_refused_at_once_behind_others(self):
        with self.send(prompt="hello", max_tokens=8000):
            self.wait_for("headrace_sequences_running", 1)
            begin = time.monotonic()
            self.assert_refused("/v1/completions", {"prompt": "a" * 50000}, 400, "prompt", "50001 tokens")
            self.assertLess(time.monotonic() - begin, 5)
            self.assertEqual(self.server.metrics()["headrace_requests_in_engine"], 1)
        self.server.wait_until_idle()

    def test_going_while_guesses_are_checked_ends_it(self):
        client = self.send(prompt="one word " * 48, max_tokens=7000, drafter="ngram", stream=True)
        self.wait_for_more("headrace_accepted_draft_tokens_total{drafter=\"ngram\"}", 0)
        self.wait_for_more("headrace_accepted_draft_tokens_by_position_total{drafter=\"ngram\",position=\"2\"}", 0)
        client.close()
        self.server.wait_until_idle()

    def test_going_during_a_long_prompt_ends_it(self):
        for stream in (False, True):
            before = self.server.wait_until_idle()["headrace_prefill_tokens_total"]
            client = self.send(prompt=f"{stream}" + "a" * 8000, max_tokens=2, stream=stream)
            self.wait_for_more("headrace_prefill_tokens_total", before)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
            self.server.wait_until_idle()


class Starting(unittest.TestCase):
    def test_a_tiny_context(self):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(write_model(folder), "--set", "kv.max_tokens=1")
            try:
                status, _, out = server.ask("POST", "/v1/completions", {"prompt": "a" * 40})
                self.assertEqual((status, out["error"]["param"]), (400, "prompt"))
                self.assertEqual(server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0], 200)
            finally:
                server.stop()

    def test_a_full_disk_costs_only_what_it_would_have_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(write_model(folder), "--set", "kv.max_tokens=512",
                            "--kv-disk-path", os.path.join(folder, "blocks"), "--kv-disk-bytes", "100")
            self.addCleanup(server.process.kill)
            ask = lambda prompt: server.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, **DRAW})["choices"]
            prompts = [letter * 300 for letter in "abcd"]
            first = [ask(prompt) for prompt in prompts]
            end = time.monotonic() + 20
            while (now := server.metrics())["headrace_kv_disk_failed_writes_total"] == 0:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)
            self.assertEqual(now["headrace_kv_disk_files"], 0)
            self.assertEqual([ask(prompt) for prompt in prompts], first)
            server.wait_until_idle()
            server.signal()
            error = server.process.communicate(timeout=20)[1]
            self.assertEqual(server.process.returncode, 0)
            self.assertIn("kv.disk_path", error)
            self.assertEqual(error.count("\n"), 1)  # said once, and then counted


if __name__ == "__main__":
    unittest.main()
