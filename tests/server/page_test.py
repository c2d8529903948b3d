"""The page at /, in a headless Chromium that is told what to do over its debugging pipe: it chats, and its metrics move."""

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
import unittest

from server_process import ServerTest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "headless_shell", "chromium"))), None)
NO_CHROMIUM = "there is no Chromium (Debian: chromium-headless-shell)"
if not CHROMIUM:
    print("SKIPPED: the test of the server's page:", NO_CHROMIUM)


class Browser:
    """One page. Commands and events are JSON between zero bytes, in at its descriptor 3 and out at 4."""

    def __init__(self, folder):
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        theirs_in, theirs_out = (self.move_up(descriptor) for descriptor in (theirs_in, theirs_out))
        arguments = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                     "--user-data-dir=" + folder, "about:blank"]
        command = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self.process = subprocess.Popen(["bash", "-c", command, "bash", *arguments], pass_fds=(theirs_in, theirs_out),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = os.fdopen(ours_out, "wb", 0), os.fdopen(ours_in, "rb", 0)
        self.ids, self.session, self.rest, self.errors = itertools.count(1), None, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    @staticmethod
    def move_up(descriptor):
        """Out of the way of 3 and 4."""
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
        os.close(descriptor)
        return moved

    def close(self):
        self.process.kill()
        self.process.wait()
        self.input.close()
        self.output.close()

    def call(self, method, **parameters):
        message = {"id": next(self.ids), "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.input.write(json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.output.fileno(), 65536)
                assert more, "the browser ended"
                self.rest += more
            text, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(text)
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(answer["params"])
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, script):
        out = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in out, out
        return out["result"].get("value")

    def wait_for(self, script, seconds=30):
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, (script, self.run("document.body.innerText"), self.errors)
            time.sleep(0.05)
        return value


@unittest.skipUnless(CHROMIUM, NO_CHROMIUM)
class Page(ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        cls.addClassCleanup(folder.cleanup)
        cls.browser = Browser(folder.name)
        cls.addClassCleanup(cls.browser.close)
        cls.browser.call("Page.navigate", url=cls.server.url)

    def row(self, name):
        script = f"[...document.querySelectorAll('#metrics tr')].find(r => r.cells[0].textContent === '{name}')?.cells[1].textContent"
        return self.browser.run(script)

    def say(self, text, tokens):
        self.browser.run(f"document.getElementById('max_tokens').value = {tokens};"
                         f"document.getElementById('text').value = {json.dumps(text)};"
                         "document.getElementById('form').requestSubmit(); true")

    def test_a_chat_and_the_metrics(self):
        browser = self.browser
        browser.wait_for("document.getElementById('model')?.value === 'tiny'")
        self.assertEqual(browser.run("document.getElementById('health').textContent"), "tiny: ok")
        browser.wait_for("document.querySelectorAll('#metrics tr').length > 5")
        before = int(self.row("HTTP requests"))
        self.say("hello <b>you</b>", 12)
        browser.wait_for("document.querySelectorAll('.message').length === 2 && !document.getElementById('send').disabled")
        user, assistant = browser.run("[...document.querySelectorAll('.message span')].map(s => s.textContent)")
        self.assertEqual(user, "hello <b>you</b>")  # as text
        self.assertTrue(assistant)
        # A second turn has the first before it.
        self.say("more", 12)
        browser.wait_for("document.querySelectorAll('.message').length === 4 && !document.getElementById('send').disabled")
        browser.wait_for(f"[...document.querySelectorAll('#metrics tr')].some(r => r.cells[0].textContent === 'HTTP requests'"
                         f" && Number(r.cells[1].textContent) > {before + 2})")
        self.assertRegex(self.row("first token"), r"\A[\d.]+ ms\Z")
        self.assertGreater(self.server.metrics()["headrace_output_tokens_total"], 12)
        # What runs can be stopped.
        self.say("on and on", 4000)
        browser.wait_for("document.querySelectorAll('.message').length === 6 && !document.getElementById('stop').disabled")
        browser.run("document.getElementById('stop').click(); true")
        browser.wait_for("!document.getElementById('send').disabled")
        self.server.wait_until_idle()
        self.assertEqual(browser.run("document.querySelectorAll('.error').length"), 0)
        self.assertEqual(browser.errors, [])


if __name__ == "__main__":
    unittest.main()
