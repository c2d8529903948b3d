"""Clients that ask, stall, vanish and send garbage, while the server stays well.

    HEADRACE_CLI=... PYTHONPATH=... python3 soak.py --seconds 1800

runs it for half an hour; ctest does so for two minutes. Throughout, /health answers 200 and in time, and one client's answers are those that
it had alone. At the end nothing is left: no request, block, session, thread or descriptor, and memory has grown by no more than
MAX_GROWTH since the first third.
"""

import argparse
import os
import random
import socket
import struct
import sys
import threading
import time
import unittest

from server_process import ServerTest, http_request

MAX_GROWTH = 8 << 20  # bytes of resident memory
MAX_HEALTH_SECONDS = 10  # for an answer, beside all others on a machine of two cores
STEADY = {"prompt": "the same prompt again and again", "max_tokens": 24, "ignore_eos": True, "temperature": 0}


class Soak(ServerTest):
    seconds, num_clients = 120, 200
    arguments = ("--max-connections", "256", "--set", "kv.max_tokens=65536")

    # What a client does once; `draw` is its source of chance.

    def completion(self, draw):
        return {"prompt": "x" * draw.randrange(1, 300), "max_tokens": draw.randrange(1, 60), "ignore_eos": True,
                "stream": draw.random() < 0.5, "n": draw.choice((1, 1, 2)), "temperature": draw.random()}

    def asks(self, draw):
        status = self.server.ask("POST", "/v1/completions", self.completion(draw))[0]
        assert status in (200, 429, 503), status

    def converses(self, draw):
        status, _, session = self.server.ask("POST", "/v1/sessions", {})
        assert status in (200, 429, 503), status
        if status != 200:
            return
        path = "/v1/sessions/" + session["id"]
        body = {**self.completion(draw), "n": 1, "session": session["id"]}
        try:
            for _ in range(2):
                assert self.server.ask("POST", "/v1/completions", body)[0] in (200, 429, 503)
        finally:
            # Busy only for as long as it takes to see that a request's client has gone.
            while (status := self.server.ask("DELETE", path)[0]) == 409:
                time.sleep(0.1)
            assert status == 200, status

    def asks_what_cannot_be(self, draw):
        body = {**self.completion(draw), draw.choice(("n", "stop", "prompt", "model", "unknown")): {"a": 1}}
        assert self.server.ask("POST", "/v1/completions", body)[0] == 400
        assert self.server.ask("GET", "/" + "a" * draw.randrange(1, 100))[0] == 404

    def sends_garbage(self, draw):
        with self.server.connect() as client:
            client.sendall(draw.randbytes(draw.randrange(1, 500)))

    def stalls(self, draw):
        """In the middle of a request, or with its answer unread."""
        data = http_request({**self.completion(draw), "stream": True, "logprobs": 5})
        with self.server.connect() as client:
            client.sendall(data[:draw.randrange(1, len(data))] if draw.random() < 0.5 else data)
            time.sleep(3 * draw.random())

    def vanishes(self, draw):
        """Long before the answer's end, with a reset or without."""
        with self.server.connect() as client:
            client.sendall(http_request({**self.completion(draw), "max_tokens": 600}))
            if draw.random() < 0.5:
                client.recv(draw.randrange(1, 2000))
            time.sleep(draw.random() * 0.2)
            if draw.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def client(self, seed, end, failures):
        draw = random.Random(seed)
        kinds = (self.asks, self.converses, self.asks_what_cannot_be, self.sends_garbage, self.stalls, self.vanishes)
        while time.monotonic() < end:
            try:
                draw.choice(kinds)(draw)
            except (ConnectionError, TimeoutError):
                pass
            except Exception as error:  # noqa: BLE001 (reported by the test's thread)
                failures.append(repr(error))
                return

    def held(self):
        """What the server's process holds: bytes of resident memory, threads, open descriptors."""
        process = f"/proc/{self.server.process.pid}"
        with open(process + "/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["VmRSS"].split()[0]) << 10, int(fields["Threads"]), len(os.listdir(process + "/fd"))

    def steady(self):
        return self.server.post("/v1/completions", STEADY)["choices"][0]["text"]

    def watch(self, until, text):
        """Returns the number of looks at the server."""
        looks = 0
        while time.monotonic() < until:
            begin = time.monotonic()
            status, _, health = self.server.ask("GET", "/health")
            self.assertEqual((status, health["status"]), (200, "ok"))
            self.assertLess(health["engines"][0]["last_step_age_s"], 30)
            self.assertLess(time.monotonic() - begin, MAX_HEALTH_SECONDS)
            self.assertEqual(self.steady(), text)
            looks += 1
            time.sleep(0.2)
        return looks

    def test_soak(self):
        text = self.steady()
        _, threads_before, files_before = self.held()
        begin, failures = time.monotonic(), []
        end = begin + self.seconds
        clients = [threading.Thread(target=self.client, args=(seed, end, failures)) for seed in range(self.num_clients)]
        for client in clients:
            client.start()
        self.watch(begin + self.seconds / 3, text)
        memory_before = self.held()[0]
        looks = self.watch(end, text)
        for client in clients:
            client.join()
        self.assertEqual(failures, [])
        now = self.server.wait_until_idle()
        # Refused bodies are read for a while after the answer.
        settled = time.monotonic() + 10
        while (held := self.held())[2] > files_before and time.monotonic() < settled:
            time.sleep(0.1)
        memory, threads, files = held
        counts = {name: int(now["headrace_" + name]) for name in (
            "http_requests_total", "http_refused_total", "clients_vanished_total", "requests_finished_total")}
        print(f"soak: {self.seconds} s, {self.num_clients} clients, {counts}; memory grew by {memory - memory_before} bytes")
        self.assertEqual(now["headrace_sessions"], 0)
        self.assertEqual(threads, threads_before)
        self.assertLessEqual(files, files_before)
        self.assertLess(memory - memory_before, MAX_GROWTH)
        self.assertGreater(looks, self.seconds / 20)
        self.assertGreater(now['headrace_samples_finished_total{reason="length"}'], 50)
        self.assertGreater(counts["clients_vanished_total"], 20)
        self.assertGreater(counts["http_refused_total"], 20)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Soaks a server of a tiny model in hostile clients.")
    parser.add_argument("--seconds", type=int, default=Soak.seconds)
    parser.add_argument("--clients", type=int, default=Soak.num_clients)
    Soak.seconds, Soak.num_clients = (given := parser.parse_args()).seconds, given.clients
    unittest.main(argv=sys.argv[:1])
