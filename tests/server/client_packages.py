"""What install_packages.py could install: the packages of requirements.txt, and promtool."""

import importlib.util
import os
import shutil
import sys
import unittest

NAMES = ("anthropic", "openai", "prometheus_client", "schemathesis")
MISSING = [name for name in NAMES if importlib.util.find_spec(name) is None]
if MISSING:
    print("SKIPPED: tests of the server with", ", ".join(MISSING))

needs_packages = unittest.skipIf(MISSING, "packages are missing")

PROMTOOL = shutil.which("promtool", path=os.pathsep.join(
    [os.path.join(folder, "bin") for folder in sys.path] + os.get_exec_path()))
if PROMTOOL is None:
    print("SKIPPED: promtool on the server's metrics")

needs_promtool = unittest.skipIf(PROMTOOL is None, "promtool is missing")
