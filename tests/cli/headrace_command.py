"""Runs the `headrace` command, which HEADRACE_CLI names, as a child process."""

import os
import subprocess
import unittest

CLI = os.environ["HEADRACE_CLI"]


def run(*arguments, stdin="", code=0):
    """stdin: str or bytes. Outputs are text, with what is no UTF-8 replaced."""
    data = stdin if isinstance(stdin, bytes) else stdin.encode()
    result = subprocess.run([CLI, *arguments], input=data, capture_output=True, timeout=120)
    result.stdout, result.stderr = (text.decode("utf-8", "replace") for text in (result.stdout, result.stderr))
    assert result.returncode == code, (arguments, result.returncode, result.stderr)
    if code == 0:
        assert result.stderr == "", result.stderr  # quiet where standard error is no terminal
    return result


class CommandTest(unittest.TestCase):
    def assert_fails(self, *arguments, says, stdin=""):
        """Status 1, a message of one line that holds each of `says`, and nothing on standard output."""
        result = run(*arguments, stdin=stdin, code=1)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"\Aheadrace: error: [^\n]+\n\Z")
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, result.stderr)

    def assert_wrong_usage(self, *arguments, says):
        """Status 2, a short message that holds `says`, and nothing on standard output."""
        result = run(*arguments, code=2)
        self.assertEqual(result.stdout, "")
        self.assertIn(says, result.stderr)
        self.assertLess(len(result.stderr), 200)
