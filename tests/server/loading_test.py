"""A server whose models are still being loaded: it is there, says so, and does nothing else."""

import os
import signal
import tempfile
import termios
import unittest

from server_process import Server, write_model

KEY = "some-key-0123456789"


class Loading(unittest.TestCase):
    """The progress of a load goes to a terminal that takes nothing until it is let go: so long the load waits."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = os.path.join(folder.name, "model")
        os.mkdir(self.model)
        write_model(self.model)
        self.keys = os.path.join(folder.name, "keys.txt")
        with open(self.keys, "w", encoding="utf-8") as file:
            file.write(KEY + " operator admin\n")
        self.terminal, self.errors = os.openpty()
        self.addCleanup(os.close, self.terminal)
        termios.tcflow(self.errors, termios.TCOOFF)

    def start(self, *arguments):
        server = Server(self.model, "--api-key-file", self.keys, *arguments, waits=False, errors=self.errors)
        self.addCleanup(server.process.communicate)
        self.addCleanup(server.process.kill)
        return server

    def let_go(self):
        termios.tcflow(self.errors, termios.TCOON)
        os.close(self.errors)

    def printed(self):
        """All of it, after the server's end."""
        text = b""
        try:
            while part := os.read(self.terminal, 65536):
                text += part
        except OSError:  # how a terminal ends
            pass
        return text.decode()

    def ask(self, server, method, path, key=KEY):
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1} if method == "POST" else None
        return server.ask(method, path, body, {"X-Api-Key": key})

    def assert_loading(self, server):
        status, headers, body = self.ask(server, "GET", "/health", key="")
        self.assertEqual((status, body), (503, {"status": "loading", "models": []}))
        self.assertEqual(headers["Retry-After"], "1")

    def test_what_it_answers(self):
        server = self.start()
        self.assert_loading(server)
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/model"),
                             ("GET", "/metrics"), ("DELETE", "/v1/cache"), ("POST", "/v1/sessions")):
            status, headers, body = self.ask(server, method, path)
            self.assertEqual((status, headers["Retry-After"]), (503, "1"), path)
            self.assertEqual(body["error"]["type"], "server_error")
            self.assertIn("being loaded", body["error"]["message"])
        body = self.ask(server, "POST", "/v1/messages")[2]
        self.assertEqual((body["type"], body["error"]["type"]), ("error", "overloaded_error"))
        # Who has no key learns no more than later; what needs no model is there.
        self.assertEqual(self.ask(server, "GET", "/v1/models", key="wrong")[0], 401)
        self.assertEqual(self.ask(server, "GET", "/v1/nothing")[0], 404)
        for path in ("/", "/openapi.json"):
            self.assertEqual(self.ask(server, "GET", path)[0], 200)
        self.assert_loading(server)
        self.let_go()
        server.wait_until_ready()
        self.assertEqual(self.ask(server, "GET", "/health")[0], 200)
        self.assertEqual(self.ask(server, "POST", "/v1/chat/completions")[0], 200)
        server.stop()

    def test_a_load_that_fails_ends_it(self):
        server = self.start("-m", self.model + "-of-nobody")
        self.assert_loading(server)
        with server.connect() as client:  # that asks nothing
            self.let_go()
            self.assertEqual(server.process.communicate(timeout=20)[0], "")
            self.assertEqual(client.recv(1), b"")
        self.assertEqual(server.process.returncode, 1)
        self.assertRegex(self.printed(), "headrace: error: .*model-of-nobody")

    def test_a_signal_ends_it_at_once(self):
        server = self.start()
        self.assert_loading(server)
        server.signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(timeout=10), -signal.SIGTERM)
        os.close(self.errors)


if __name__ == "__main__":
    unittest.main()
