"""Runs `headrace serve`, which HEADRACE_CLI names, as a child process on a port of its own."""

import collections
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import tiny_text_model

CLI = os.environ["HEADRACE_CLI"]


def write_model(folder):
    """The tiny model with text and a template, with a context that takes a while to fill."""
    tiny_text_model.write(folder)
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config["max_position_embeddings"] = 8192
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return folder


def http_request(body, path="/v1/completions", extra=""):
    """The bytes of a POST; extra: lines of its head."""
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n{extra}\r\n").encode() + data


class Server:
    def __init__(self, *arguments, waits=True, errors=subprocess.PIPE):
        """arguments: those of the command; what stands first and is no option is the model. waits: until it has its models.
        errors: where its standard error goes."""
        first = [] if arguments[0].startswith("-") else ["-m"]
        self.process = subprocess.Popen([CLI, "serve", "--port", "0", "-t", "1", *first, *arguments],
                                        stdout=subprocess.PIPE, stderr=errors, text=True)
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening at http://([^ ]+):(\d+)\n", line)
        if not match:
            self.process.kill()
            raise AssertionError(line + self.process.communicate()[1])
        self.port = int(match[2])
        self.url = f"http://127.0.0.1:{self.port}"
        if waits:
            self.wait_until_ready()

    def wait_until_ready(self):
        line = self.process.stdout.readline()
        if line != "ready\n":
            self.process.kill()
            raise AssertionError(line + self.process.communicate()[1])

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout=20):
        """The exit status; nothing may have been printed."""
        out, error = self.process.communicate(timeout=timeout)
        assert not out and not error, (out, error)
        return self.process.returncode

    def stop(self):
        """Ends the server as an operator does, and demands that it ends well."""
        if self.process.poll() is None:
            self.signal()
        try:
            status = self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert status == 0, status

    def ask(self, method, path, body=None, headers=(), timeout=60):
        """Status, headers and body, which is parsed where it is JSON. body: bytes, or what is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            given = dict(headers)
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
                given.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, given)
            response = connection.getresponse()
            data = response.read()
            if response.headers.get_content_type() == "application/json" and data:
                data = json.loads(data)
            return response.status, response.headers, data

    def get(self, path, **headers):
        return self.ask("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})[2]

    def post(self, path, body):
        status, _, data = self.ask("POST", path, body)
        assert status == 200, (status, data)
        return data

    def events(self, path, body):
        """The events of a stream as (name, data), data parsed but for "[DONE]"."""
        status, headers, data = self.ask("POST", path, body)
        assert (status, headers.get_content_type()) == (200, "text/event-stream"), (status, data)
        found = []
        for block in data.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if fields:
                text = fields["data"]
                found.append((fields.get("event"), text if text == "[DONE]" else json.loads(text)))
        return found

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def metrics(self):
        """Values by name and labels as they are written, summed over models; without other labels by the name alone."""
        found = collections.Counter()
        for line in self.get("/metrics").decode().splitlines():
            if line[0] != "#":
                name, value = line.rsplit(" ", 1)
                found[re.sub(r'\{model="[^"]*",?(.*)\}', lambda match: match[1] and "{" + match[1] + "}", name)] += float(value)
        return found

    def wait_until_idle(self, seconds=20):
        """Nothing of any request is left in the engine: no sequence, no request, and all blocks free."""
        end = time.monotonic() + seconds
        while True:
            now = self.metrics()
            left = {name: now["headrace_" + name] for name in (
                "requests_in_engine", "sequences_waiting", "sequences_running", "http_pending_requests")}
            left["held_blocks"] = now["headrace_kv_blocks"] - now["headrace_kv_free_blocks"]
            if not any(left.values()):
                return now
            assert time.monotonic() < end, left
            time.sleep(0.02)


class ServerTest(unittest.TestCase):
    """One server for all tests of a class, with a tiny model called "tiny"."""

    arguments = ()

    @classmethod
    def write_model(cls, folder):
        return write_model(folder)

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.server = Server(cls.write_model(folder.name), "--name", "tiny", *cls.arguments)
        cls.addClassCleanup(cls.server.stop)

    def assert_refused(self, path, body, status, field=None, says=""):
        """In OpenAI's shape, with the field in "param"."""
        got, _, data = self.server.ask("POST", path, body)
        self.assertEqual(got, status, data)
        self.assertEqual(set(data["error"]), {"message", "type", "param", "code"})
        self.assertEqual(data["error"]["param"], field, data)
        self.assertIn(says, data["error"]["message"])
        if field:
            self.assertIn(field, data["error"]["message"])
        return data["error"]
