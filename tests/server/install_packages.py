"""Installs requirements.txt from PyPI into a folder, once for each content of the file, and Prometheus' own promtool, which
lints metrics, of Debian's package.

    python3 install_packages.py FOLDER

Where that fails, as without a network, the tests that need it skip themselves.
"""
import os
import shutil
import subprocess
import sys
import tempfile

REQUIREMENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "requirements.txt")


def unpack_promtool(path):
    """The program alone: an installed package would start a service."""
    with tempfile.TemporaryDirectory() as scratch:
        steps = ["apt-get download -qq prometheus", "dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool"]
        for step in steps:
            result = subprocess.run(step, shell=True, cwd=scratch, capture_output=True, text=True)
            if result.returncode:
                print("SKIPPED: promtool on the server's metrics: apt-get could not fetch it", result.stderr[-500:])
                return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.move(os.path.join(scratch, "usr/bin/promtool"), path)


def install_requirements(folder):
    with open(REQUIREMENTS, encoding="utf-8") as file:
        wanted = file.read()
    stamp = os.path.join(folder, "installed.txt")
    if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    result = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", folder, "-r", REQUIREMENTS],
                            capture_output=True, text=True)
    if result.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        print("SKIPPED: tests of the server with its clients: pip could not install", result.stderr[-500:])
        return
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(wanted)


def main():
    folder = sys.argv[1]
    install_requirements(folder)
    promtool = os.path.join(folder, "bin", "promtool")
    if not os.path.exists(promtool):
        unpack_promtool(promtool)
    return 0


if __name__ == "__main__":
    sys.exit(main())
