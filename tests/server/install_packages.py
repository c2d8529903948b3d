"""Installs requirements.txt from PyPI into a folder, once for each content of the file.

    python3 install_packages.py FOLDER

Where that fails, as without a network, the tests that need the packages skip themselves.
"""
import os
import shutil
import subprocess
import sys

REQUIREMENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "requirements.txt")


def main():
    folder = sys.argv[1]
    with open(REQUIREMENTS, encoding="utf-8") as file:
        wanted = file.read()
    stamp = os.path.join(folder, "installed.txt")
    if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == wanted:
        return 0
    shutil.rmtree(folder, ignore_errors=True)
    result = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", folder, "-r", REQUIREMENTS],
                            capture_output=True, text=True)
    if result.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        print("SKIPPED: tests of the server with its clients: pip could not install", result.stderr[-500:])
        return 0
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
