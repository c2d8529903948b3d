"""Size and content of the repository's files.

    python3 check_files.py REPOSITORY

A source of more than 700 lines is listed, one of more than 1000 fails unless its first lines say "generated"; no file is
larger than 2 MB; none holds a path of somebody's machine or a private key.
"""
import os
import re
import subprocess
import sys

SOURCES = (".h", ".hpp", ".c", ".cpp", ".cu", ".py", ".inl", ".sh")
# Spelled in pieces, so that this file does not find itself.
FORBIDDEN = re.compile("|".join([r"(?<![\w.])/" + "(?:home|root|work|Users)/" + r"\w", r"/tmp/" + "peers",
                                 "BEGIN [A-Z ]*PRIVATE" + " KEY", "AKIA" + "[0-9A-Z]{16}", "ghp" + "_[A-Za-z0-9]{36}"]))


def main():
    root = sys.argv[1]
    listing = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True)
    if listing.returncode != 0:
        print("SKIPPED: the file list comes from git, and this is no git checkout")
        return 0
    problems = []
    for name in filter(None, listing.stdout.decode().split("\0")):
        path = os.path.join(root, name)
        if not os.path.isfile(path):
            continue
        size = os.path.getsize(path)
        if size > 2 << 20:
            problems.append(f"{name}: {size} bytes, more than 2 MB")
        with open(path, "rb") as file:
            data = file.read()
        if b"\0" in data:
            continue
        text = data.decode("utf-8", errors="replace")
        lines = text.splitlines()
        if name.endswith(SOURCES) and len(lines) > 700:
            generated = any("generated" in line.lower() for line in lines[:5])
            print(f"{name}: {len(lines)} lines" + (", generated" if generated else ""))
            if len(lines) > 1000 and not generated:
                problems.append(f"{name}: {len(lines)} lines, more than 1000")
        if name.startswith("tests/fuzz/corpus/") or name.startswith("tests/data/"):
            continue
        for number, line in enumerate(lines, 1):
            if FORBIDDEN.search(line):
                problems.append(f"{name}:{number}: a path of one machine, or a secret: {line.strip()[:100]}")
    print("\n".join(problems) if problems else "sizes and contents are as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
