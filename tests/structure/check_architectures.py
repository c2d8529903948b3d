"""The table of architectures in README.md is the one the built library has.

usage: check_architectures.py SOURCE_DIR LIBRARY [--write]   (--write puts the table into the page)
"""
import ctypes
import json
import pathlib
import re
import sys

BEGIN, END = "<!-- architectures: written by tests/structure/check_architectures.py --write -->\n", "<!-- end -->\n"


def architectures(library):
    describe = ctypes.CDLL(library).headrace_system_describe
    describe.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p]
    needed = ctypes.c_size_t()
    describe(None, 0, ctypes.byref(needed), None)
    buffer = ctypes.create_string_buffer(needed.value)
    if describe(buffer, needed.value, ctypes.byref(needed), None) != 0:
        sys.exit("the library does not describe itself")
    return json.loads(buffer.raw[: needed.value])["architectures"]


def table(families):
    """A row for each model type, with its classes and GGUF names."""
    rows = {}
    for family in families:
        row = rows.setdefault(family["model_type"] or family["name"], {"class": [], "gguf": []})
        for key in row:
            if family[key] and family[key] not in row[key]:
                row[key].append(family[key])
    lines = ["| `model_type` | classes of config.json | GGUF |", "|---|---|---|"]
    for name, row in sorted(rows.items()):
        cells = [", ".join(f"`{value}`" for value in values) for values in row.values()]
        lines.append(f"| `{name}` | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def main():
    page = pathlib.Path(sys.argv[1]) / "README.md"
    text, expected = page.read_text(), table(architectures(sys.argv[2]))
    found = re.search(re.escape(BEGIN) + "(.*?)" + re.escape(END), text, re.DOTALL)
    if not found:
        sys.exit("README.md has no place for the table of architectures")
    if "--write" in sys.argv:
        page.write_text(text[: found.start(1)] + expected + text[found.end(1):])
        return 0
    have, want = found.group(1).splitlines(), expected.splitlines()
    for line in want:
        if line not in have:
            print("missing in README.md:", line)
    for line in have:
        if line not in want:
            print("no longer so:", line)
    return 0 if have == want else 1


if __name__ == "__main__":
    sys.exit(main())
