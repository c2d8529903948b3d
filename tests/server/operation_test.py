"""Keys, tenants, origins, hosts, health, metrics, the page, and the end of a server."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from client_packages import PROMTOOL, needs_packages, needs_promtool
from server_process import CLI, Server, ServerTest, write_model

HELLO = [{"role": "user", "content": "hello"}]
ADMIN, ALICE, BOB = "admin-key-0123456789", "alice-key-0123456789", "bob-key-0123456789ab"


class Keys(ServerTest):
    @classmethod
    def write_model(cls, folder):
        keys = os.path.join(folder, "keys.txt")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(f"# KEY TENANT\n{ADMIN} operator admin\n\n{ALICE} alice weight=2.5 max_queue=100\n{BOB} bob\n")
        cls.arguments = ("--api-key-file", keys)
        return super().write_model(folder)

    def status(self, method, path, key=None, header="Authorization"):
        headers = {} if key is None else {header: ("Bearer " if header == "Authorization" else "") + key}
        body = {"messages": HELLO, "max_tokens": 1} if method == "POST" else None
        return self.server.ask(method, path, body, headers)[0]

    def test_who_may_what(self):
        chat = "/v1/chat/completions"
        for key in (None, "", "wrong", ALICE[:-1], ALICE + "x", ALICE.upper(), "x" * 1000):
            self.assertEqual(self.status("POST", chat, key), 401, key)
        for header in ("Authorization", "X-Api-Key"):
            self.assertEqual(self.status("POST", chat, ALICE, header), 200)
        for path in ("/health", "/", "/openapi.json"):
            self.assertEqual(self.status("GET", path), 200)
        for path in ("/metrics", "/v1/cache"):
            self.assertEqual([self.status("GET", path, key) for key in (None, ALICE, ADMIN)], [401, 403, 200])

    def test_what_who_is_not_let_in_hears(self):
        for path, expected in (("/v1/chat/completions", ("invalid_request_error", "invalid_api_key")),
                               ("/v1/messages", ("authentication_error", None))):
            status, headers, data = self.server.ask("POST", path, {}, {"X-Api-Key": "wrong"})
            self.assertEqual((status, headers["WWW-Authenticate"]), (401, "Bearer"))
            self.assertEqual((data["error"]["type"], data["error"].get("code")), expected)

    def test_a_refused_body_is_not_read(self):
        with self.server.connect() as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                           b"Content-Length: 1000000\r\n\r\n{")
            self.assertTrue(client.recv(1000).startswith(b"HTTP/1.1 401"))

    def test_tenants_share_no_prefix(self):
        body = {"prompt": "a prompt that is longer than two blocks of sixteen", "max_tokens": 1}

        def cached(key):
            status, _, data = self.server.ask("POST", "/v1/completions", body, {"Authorization": "Bearer " + key})
            self.assertEqual(status, 200, data)
            return data["usage"]["prompt_tokens_details"]["cached_tokens"]

        self.assertEqual(cached(ALICE), 0)
        self.assertGreater(cached(ALICE), 16)
        self.assertEqual(cached(BOB), 0)

    def new_session(self, key, **fields):
        return self.server.ask("POST", "/v1/sessions", fields or None, {"X-Api-Key": key})[2]["id"]

    def test_sessions_are_a_tenants_own(self):
        session = self.new_session(ALICE)
        body = {"prompt": "what alice says to nobody else, at some length", "max_tokens": 2, "session": session}

        def ask(method, path, key, body=None):
            status, _, data = self.server.ask(method, path, body, {"X-Api-Key": key})
            return status, data

        def cached(key, **fields):
            status, data = ask("POST", "/v1/completions", key, {**body, **fields})
            self.assertEqual(status, 200, data)
            return data["usage"]["prompt_tokens_details"]["cached_tokens"]

        apart = {"prompt": "what alice asks without a session, at some length", "session": None}
        self.assertEqual([cached(ALICE), cached(ALICE, **apart)], [0, 0])
        for method, path, given in (("GET", "", None), ("DELETE", "", None), ("POST", "/fork", None),
                                    ("POST", "/rewind", {"tokens": 0})):
            self.assertEqual(ask(method, f"/v1/sessions/{session}{path}", BOB, given)[0], 404, path)
        self.assertEqual(ask("POST", "/v1/completions", BOB, body)[0], 404)
        # What a session has said is found by its tenant's requests and sessions, and by nobody else's.
        self.assertGreater(cached(ALICE, session=None), 16)
        self.assertGreater(cached(ALICE, session=self.new_session(ALICE)), 16)
        self.assertEqual([cached(BOB, session=self.new_session(BOB)), cached(BOB, **apart)], [0, 0])
        self.assertGreater(cached(BOB, session=None), 16)  # of Bob's own session
        # A fork is the tenant's as well, and goes on from what is there.
        fork = ask("POST", f"/v1/sessions/{session}/fork", ALICE)[1]["id"]
        self.assertEqual(ask("GET", "/v1/sessions/" + fork, BOB)[0], 404)
        self.assertGreater(cached(ALICE, session=fork, prompt="more"), 40)

    def test_salts_within_a_tenant(self):
        body = {"prompt": "a prompt of one user among those of a tenant", "max_tokens": 1}

        def cached(**fields):
            status, _, data = self.server.ask("POST", "/v1/completions", {**body, **fields}, {"X-Api-Key": ALICE})
            self.assertEqual(status, 200, data)
            return data["usage"]["prompt_tokens_details"]["cached_tokens"]

        self.assertEqual([cached(), cached(cache_salt="one"), cached(cache_salt="two")], [0, 0, 0])
        self.assertGreater(cached(cache_salt="one"), 16)
        self.assertGreater(cached(session=self.new_session(ALICE, cache_salt="two")), 16)
        self.assertEqual(cached(session=self.new_session(ALICE, cache_salt="three")), 0)
        body["session"] = self.new_session(ALICE)
        status, _, data = self.server.ask("POST", "/v1/completions", {**body, "cache_salt": "one"}, {"X-Api-Key": ALICE})
        self.assertEqual((status, data["error"]["param"]), (400, "cache_salt"))

    def test_tenants_are_told_apart(self):
        body = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}
        self.assertEqual(self.server.ask("POST", "/v1/completions", body, {"X-Api-Key": ALICE})[0], 200)
        text = self.server.get("/metrics", X_Api_Key=ADMIN).decode()
        self.assertIn('headrace_tenant_weight{model="tiny",tenant="alice"} 2.5\n', text)
        name = 'headrace_tenant_output_tokens_total{model="tiny",tenant="alice"} '
        (served,) = (line for line in text.splitlines() if line.startswith(name))
        self.assertGreaterEqual(float(served[len(name):]), 3)

    def test_who_may_go_first(self):
        for key, priority, status in ((ALICE, -1, 200), (ALICE, 1, 403), (ADMIN, 1, 200)):
            body = {"prompt": "a", "max_tokens": 1, "priority": priority}
            self.assertEqual(self.server.ask("POST", "/v1/completions", body, {"X-Api-Key": key})[0], status)

    def test_key_files_and_hosts(self):
        model = self.folder

        def refused(text, says):
            path = os.path.join(self.folder, "bad.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            result = subprocess.run([CLI, "serve", "-m", model, "--api-key-file", path], capture_output=True, text=True)
            self.assertEqual(result.returncode, 1)
            self.assertIn(says, result.stderr)
            self.assertNotIn("0123456789", result.stderr)

        refused("short tenant\n", "line 1: the key has fewer than 16")
        refused(f"{ALICE}\n", "line 1: no tenant")
        refused(f"{ALICE} a\n{ALICE} b\n", "line 2: the key has come before")
        refused(f"{ALICE} a root\n", "line 1: what follows the tenant is neither")
        refused(f"{ALICE} a weight=0\n", "line 1: what follows the tenant is neither \"admin\" nor a limit: weight")
        refused(f"{ALICE} a weight=1\n{BOB} a weight=2\n", "line 2: the tenant has had limits before")
        refused("# none\n", "holds no key")
        result = subprocess.run([CLI, "serve", "-m", model, "--host", "0.0.0.0"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("--api-key-file", result.stderr)


class Pages(ServerTest):
    arguments = ("--cors-origin", "https://example.org", "--max-body-mb", "1")

    def test_origins(self):
        own = f"http://127.0.0.1:{self.server.port}"
        known = "https://example.org"
        for origin, status, allowed in ((None, 200, None), (own, 200, None), (known, 200, known),
                                        ("https://evil.example", 403, None), ("null", 403, None)):
            headers = {} if origin is None else {"Origin": origin}
            got, answered, _ = self.server.ask("GET", "/v1/models", headers=headers)
            self.assertEqual((got, answered["Access-Control-Allow-Origin"]), (status, allowed), origin)
        asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}
        got, answered, _ = self.server.ask("OPTIONS", "/v1/chat/completions", headers=asked)
        self.assertEqual((got, answered["Access-Control-Allow-Headers"]), (204, "authorization,content-type"))

    def test_a_page_can_read_why_its_request_was_not(self):
        for path, expected in (("/v1/chat/completions", "invalid_request_error"), ("/v1/messages", "request_too_large")):
            status, answered, data = self.server.ask("POST", path, b"x" * 2000000, {
                "Origin": "https://example.org", "Content-Type": "application/json"})
            self.assertEqual((status, data["error"]["type"]), (413, expected))
            self.assertEqual(answered["Access-Control-Allow-Origin"], "https://example.org")

    def test_names_of_others_are_not_served(self):
        for host, status in (("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 421),
                             ("127.evil.example", 421)):
            self.assertEqual(self.server.ask("GET", "/v1/models", headers={"Host": host})[0], status)

    def test_the_page(self):
        status, headers, page = self.server.ask("GET", "/")
        self.assertEqual((status, headers.get_content_type()), (200, "text/html"))
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotIn(b"//", page)  # nothing comes from elsewhere
        status, headers, nothing = self.server.ask("HEAD", "/")
        self.assertEqual((status, int(headers["Content-Length"]), nothing), (200, len(page), b""))

    def test_methods_and_paths(self):
        status, headers, _ = self.server.ask("GET", "/v1/chat/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))
        self.assertEqual(self.server.ask("GET", "/v1/nothing")[0], 404)
        self.assertEqual(self.server.ask("GET", "/v1/models/tiny?a=b")[0], 200)
        self.assertEqual(self.server.ask("GET", "/v1/models/%74iny")[0], 200)
        self.assertEqual(self.server.ask("GET", "/v1/models/%zz")[0], 400)

    def test_health(self):
        self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        health = self.server.get("/health")
        self.assertEqual((health["status"], health["models"]), ("ok", ["tiny"]))
        (engine,) = health["engines"]
        self.assertEqual((engine["model"], engine["status"], engine["requests"]), ("tiny", "ok", 0))
        self.assertGreaterEqual(engine["last_step_age_s"], 0)
        self.assertLess(engine["last_step_age_s"], 60)

    def test_the_cache(self):
        self.server.post("/v1/completions", {"prompt": "a" * 40, "max_tokens": 1})
        self.assertGreater(self.server.get("/v1/cache")["cached_blocks"], 0)
        self.assertEqual(self.server.ask("DELETE", "/v1/cache")[2]["cached_blocks"], 0)


class Metrics(ServerTest):
    # Times are in seconds, sizes in bytes, shares between 0 and 1; names are not abbreviated.
    UNITS_OF_OTHERS = {"s", "sec", "ms", "us", "ns", "m", "h", "milliseconds", "microseconds", "nanoseconds", "minutes",
                       "hours", "days", "b", "kb", "mb", "gb", "kilobytes", "megabytes", "gigabytes", "kib", "mib", "gib",
                       "percent", "gauge", "counter", "histogram"}

    def fill(self):
        """Something of every family: tenants, reasons, a prefix found, a request refused."""
        body = {"prompt": "a prompt of some length", "max_tokens": 5, "ignore_eos": True}
        for _ in range(2):
            self.server.post("/v1/completions", body)
        self.assertEqual(self.server.ask("POST", "/v1/completions", {**body, "max_tokens": "5"})[0], 400)

    def test_a_tenant_has_its_own_latencies(self):
        self.fill()
        text = self.server.get("/metrics").decode()
        for name in ("queue_time", "time_to_first_token", "inter_token_latency"):
            counts = re.findall(rf'^headrace_tenant_{name}_seconds_count{{[^}}]*tenant="[^"]*"[^}}]*}} (\d+)$', text, re.MULTILINE)
            self.assertGreater(sum(map(int, counts)), 1, name)

    @needs_packages
    def test_the_format(self):
        from prometheus_client.parser import text_string_to_metric_families
        self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 5, "ignore_eos": True})
        text = self.server.get("/metrics").decode()
        self.assertTrue(text.endswith("\n"))
        families = list(text_string_to_metric_families(text))
        names = [family.name for family in families]
        self.assertEqual(len(names), len(set(names)))
        for family in families:
            with self.subTest(family=family.name):
                # As promtool's linter asks: help, base units, no type in the name, counters that end in _total.
                self.assertTrue(family.documentation.endswith("."))
                self.assertRegex(family.name, r"\Aheadrace_[a-z_]+\Z")
                parts = set(family.name.split("_"))
                self.assertFalse(parts & self.UNITS_OF_OTHERS, family.name)
                self.assertNotRegex(family.name, "_(count|sum|bucket|info)$")
                self.assertNotIn(family.type, parts)
                for name in {name for sample in family.samples for name in sample.labels}:
                    self.assertRegex(name, r"\A[a-z_]+\Z")
                    self.assertTrue(name != "le" or family.type == "histogram", family.name)
                self.assertNotEqual(family.type, "unknown")
                self.assertTrue(family.samples)
                if family.type == "counter":
                    self.assertTrue(all(sample.name.endswith("_total") for sample in family.samples))
                else:
                    self.assertFalse(family.name.endswith("_total"))
                if family.type == "histogram":
                    buckets = [s for s in family.samples if s.name.endswith("_bucket")]
                    counts = [s.value for s in buckets]
                    self.assertEqual((counts, buckets[-1].labels["le"]), (sorted(counts), "+Inf"))
                    (count,) = (s.value for s in family.samples if s.name.endswith("_count"))
                    self.assertEqual(count, counts[-1])
        values = self.server.metrics()
        self.assertGreaterEqual(values["headrace_output_tokens_total"], 5)
        self.assertGreaterEqual(values["headrace_time_to_first_token_seconds_count"], 1)
        self.assertGreaterEqual(values["headrace_inter_token_latency_seconds_count"], 4)


class Lint(ServerTest):
    """Before the first request, and with something of every family."""

    @needs_promtool
    def test_promtool_finds_nothing(self):
        for fill in (lambda: None, lambda: Metrics.fill(self)):
            fill()
            text = self.server.get("/metrics")
            checked = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True)
            self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, b"", b""))


class ZeroRetention(ServerTest):
    arguments = ("--set", "kv.zero_retention=true")

    def test_nothing_is_found_again(self):
        body = {"prompt": "a prompt of some blocks, the same each time that it is asked", "max_tokens": 4, "ignore_eos": True,
                "temperature": 0}
        first, second = (self.server.post("/v1/completions", body) for _ in range(2))
        self.assertEqual(first["choices"][0]["text"], second["choices"][0]["text"])
        self.assertEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(self.server.metrics()["headrace_kv_cached_blocks"], 0)


class End(unittest.TestCase):
    """What SIGTERM does, to servers of their own."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = write_model(folder.name)

    def start(self, *arguments):
        server = Server(self.model, "--set", "kv.max_tokens=65536", *arguments)
        self.addCleanup(server.process.kill)
        return server

    def generate(self, server, tokens):
        """In a thread: appends status and body to the list it gives, and says when the request runs."""
        out = []
        body = {"prompt": "a", "max_tokens": tokens, "ignore_eos": True}
        thread = threading.Thread(target=lambda: out.append(server.ask("POST", "/v1/completions", body)[::2]))
        thread.start()
        self.addCleanup(thread.join)
        while server.metrics()["headrace_sequences_running"] == 0 and not out:
            time.sleep(0.005)
        return thread, out

    def test_at_once_without_requests(self):
        server = self.start()
        with server.connect():  # that asks nothing
            server.stop()

    def test_what_runs_is_answered(self):
        server = self.start()
        thread, out = self.generate(server, 1000)
        server.signal()
        thread.join()
        self.assertEqual([status for status, _ in out], [200], out)
        self.assertEqual(server.wait(), 0)

    def test_what_takes_too_long_is_cancelled(self):
        server = self.start("--drain-timeout", "0")
        thread, out = self.generate(server, 8000)
        server.signal(signal.SIGINT)
        thread.join()
        (status, data), = out
        self.assertEqual(status, 503, data)
        self.assertIn("shutting down", data["error"]["message"])
        self.assertEqual(server.wait(), 0)

    def test_connections_beyond_the_limit_are_told_so(self):
        server = self.start("--max-connections", "2")
        with server.connect() as first, server.connect():
            first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b"200 OK", first.recv(1000))
            status, headers, _ = server.ask("GET", "/health")
            self.assertEqual((status, headers["Connection"]), (503, "close"))
        time.sleep(0.1)
        self.assertEqual(server.ask("GET", "/health")[0], 200)
        server.stop()

    def test_a_port_in_use(self):
        server = self.start()
        result = subprocess.run([CLI, "serve", "-m", self.model, "--port", str(server.port)], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot listen", result.stderr)
        server.stop()


if __name__ == "__main__":
    unittest.main()
