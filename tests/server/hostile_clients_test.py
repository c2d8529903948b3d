"""Clients that send garbage, too much or too slowly, that do not read, and that vanish: each harms itself alone."""

import json
import random
import socket
import struct
import time
import unittest

from server_process import ServerTest, http_request

LONG = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True}


def read_all(client):
    data = b""
    try:
        while part := client.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


class Hostile(ServerTest):
    arguments = ("--max-body-mb", "1", "--set", "kv.max_tokens=65536")

    def setUp(self):
        self.addCleanup(self.server.wait_until_idle)
        self.addCleanup(lambda: self.assertEqual(self.server.get("/health")["status"], "ok"))

    def answer_to(self, data):
        with self.server.connect() as client:
            client.sendall(data)
            return read_all(client)

    def test_garbage(self):
        draw = random.Random(1)
        for data in (b"\0" * 100, b"GET\r\n\r\n", b"\x16\x03\x01\x02\0", b"GET / HTTP/9.9\r\n\r\n",
                     b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: 1a\r\n\r\n",
                     draw.randbytes(1000)):
            answer = self.answer_to(data + b"\r\n\r\n")
            self.assertTrue(answer.startswith(b"HTTP/1.1 4"), (data, answer))
        for _ in range(50):
            with self.server.connect() as client:
                client.sendall(draw.randbytes(draw.randrange(1, 2000)))

    def test_damaged_bodies(self):
        draw = random.Random(2)
        whole = json.dumps({"prompt": "a", "max_tokens": 1, "stop": ["b"], "logit_bias": {"5": 1}}).encode()
        for _ in range(100):
            body = bytearray(whole)
            for _ in range(draw.randrange(1, 4)):
                body[draw.randrange(len(body))] = draw.randrange(256)
            status = self.server.ask("POST", "/v1/completions", bytes(body), {"Content-Type": "application/json"})[0]
            self.assertIn(status, (200, 400, 404))

    def test_too_large(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.assertIn(b" 413 ", self.answer_to(head + b"Content-Length: 2000000\r\n\r\n" + b"x" * 2000000))
        self.assertIn(b" 413 ", self.answer_to(head + b"Content-Length: 99999999999999999999\r\n\r\n")
                      .replace(b" 400 ", b" 413 "))
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        self.assertIn(b" 413 ", self.answer_to(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 20))
        self.assertIn(b" 431 ", self.answer_to(b"GET / HTTP/1.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n"))

    def test_two_lengths(self):
        answer = self.answer_to(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        self.assertTrue(answer.startswith(b"HTTP/1.1 400"), answer)

    def test_a_request_that_does_not_come_to_its_end(self):
        with self.server.connect() as client:
            begin = time.monotonic()
            client.sendall(b"GET / HTTP/1.1\r\n")
            try:
                for _ in range(200):  # a header now and then keeps nothing open
                    time.sleep(0.2)
                    client.sendall(b"X-More: 1\r\n")
            except (BrokenPipeError, ConnectionResetError):
                pass
            self.assertLess(time.monotonic() - begin, 15)
            self.assertGreater(time.monotonic() - begin, 5)

    def test_many_requests_on_a_connection_at_once(self):
        with self.server.connect() as client:
            last = b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n"
            client.sendall(http_request({"prompt": "a", "max_tokens": 2}) * 3 + last)
            answer = read_all(client)
        self.assertEqual(answer.count(b"HTTP/1.1 200 OK"), 4)
        self.assertIn(b'"status":"ok"', answer)

    def test_old_clients_get_a_stream_without_chunks(self):
        body = json.dumps({"prompt": "a", "max_tokens": 2, "stream": True}).encode()
        answer = self.answer_to(b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.assertNotIn(b"Transfer-Encoding", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"))

    def test_who_waits_to_be_asked_for_the_body(self):
        data = http_request({"prompt": "a", "max_tokens": 1}, extra="Expect: 100-continue\r\nConnection: close\r\n")
        head, body = data.split(b"\r\n\r\n", 1)
        with self.server.connect() as client:
            client.sendall(head + b"\r\n\r\n")
            self.assertEqual(client.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            client.sendall(body)
            self.assertTrue(read_all(client).startswith(b"HTTP/1.1 200"))

    def wait_until_running(self):
        end = time.monotonic() + 20
        while self.server.metrics()["headrace_sequences_running"] == 0:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)

    def test_vanishing_cancels(self):
        before = self.server.wait_until_idle()
        for stream in (False, True):
            for reset in (False, True):
                client = self.server.connect()
                client.sendall(http_request({**LONG, "stream": stream}))
                self.wait_until_running()
                if reset:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
                self.server.wait_until_idle()
        after = self.server.metrics()
        cancelled = 'headrace_samples_finished_total{reason="cancelled"}'
        self.assertEqual(after["headrace_clients_vanished_total"] - before["headrace_clients_vanished_total"], 4)
        self.assertEqual(after['headrace_samples_finished_total{reason="length"}'],
                         before['headrace_samples_finished_total{reason="length"}'])
        self.assertLess(after["headrace_decode_tokens_total"] - before["headrace_decode_tokens_total"], 4 * 8000)
        self.assertGreaterEqual(after[cancelled] - before[cancelled], 0)

    def test_vanishing_at_any_moment(self):
        draw = random.Random(3)
        data = http_request({**LONG, "n": 2, "stream": True})
        for _ in range(60):
            with self.server.connect() as client:
                client.sendall(data[:draw.randrange(len(data) + 1)] if draw.random() < 0.3 else data)
                time.sleep(draw.random() * 0.03)
        self.server.wait_until_idle()

    def test_who_does_not_read_delays_nobody(self):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", self.server.port))
        with client:
            # Some hundred bytes for each token: more than the sockets hold.
            client.sendall(http_request({**LONG, "n": 4, "stream": True, "logprobs": 5}))
            self.wait_until_running()
            for _ in range(5):
                begin = time.monotonic()
                self.server.post("/v1/completions", {"prompt": "b", "max_tokens": 4})
                self.assertLess(time.monotonic() - begin, 5)
            # What it did not read was bounded, and then it was dropped.
            self.server.wait_until_idle(60)

    def test_waiting_requests_vanish_too(self):
        # More sequences than run at once: the later ones are in the queue.
        clients = [self.server.connect() for _ in range(8)]
        for client in clients:
            client.sendall(http_request({**LONG, "n": 16}))
        self.wait_until_running()
        for client in reversed(clients):
            client.close()
        self.server.wait_until_idle()


if __name__ == "__main__":
    unittest.main()
