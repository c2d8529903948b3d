"""The server against its own OpenAPI file, by schemathesis: what the schemas allow does not break it, what they do not is
refused, and answers are as they say."""

import os
import subprocess
import sys
import unittest

from client_packages import needs_packages
from server_process import ServerTest

HERE = os.path.dirname(os.path.abspath(__file__))
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
          "negative_data_rejection", "unsupported_method")


@needs_packages
class OpenApi(ServerTest):
    # Prompts that are long, and lengths that a client may ask, end in time.
    arguments = ("--request-timeout", "1", "--set", "kv.max_tokens=512", "--set", "embedder.pooling=last", "--adapter-dir", HERE)

    def test_schemathesis(self):
        result = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "--config-file", os.path.join(HERE, "schemathesis.toml"),
             "run", self.server.url + "/openapi.json", "--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing",
             "--max-examples", "5", "--seed", "1", "--no-color", "--suppress-health-check", "all"],
            cwd=self.folder, capture_output=True, text=True, timeout=550)
        self.assertEqual(result.returncode, 0, result.stdout[-6000:] + result.stderr[-2000:])
        self.assertEqual(self.server.get("/health")["status"], "ok")


if __name__ == "__main__":
    unittest.main()
