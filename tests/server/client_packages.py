"""The packages of requirements.txt, where install_packages.py could install them."""

import importlib.util
import unittest

NAMES = ("anthropic", "openai", "prometheus_client", "schemathesis")
MISSING = [name for name in NAMES if importlib.util.find_spec(name) is None]
if MISSING:
    print("SKIPPED: tests of the server with", ", ".join(MISSING))

needs_packages = unittest.skipIf(MISSING, "packages are missing")
