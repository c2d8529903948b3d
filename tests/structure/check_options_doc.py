"""The option table of docs/c-abi.md is the one the built library has.

usage: check_options_doc.py SOURCE_DIR LIBRARY [--print]   (--print writes the table that the page should have)
"""
import ctypes
import json
import pathlib
import sys

library = ctypes.CDLL(sys.argv[2])
library.headrace_options_get_count.restype = ctypes.c_size_t
get_info = library.headrace_options_get_info
get_info.argtypes = [ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p]
rows = []
for index in range(library.headrace_options_get_count()):
    needed, buffer = ctypes.c_size_t(), ctypes.create_string_buffer(4096)
    if get_info(index, buffer, len(buffer), ctypes.byref(needed), None) != 0:
        sys.exit(f"option {index} cannot be read")
    info = json.loads(buffer.raw[: needed.value])
    cells = ["`" + info["key"] + "`", info["type"], info["default"], info["range"], info["doc"]]
    rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
if "--print" in sys.argv:
    print("\n".join(rows))
    sys.exit(0)
page = (pathlib.Path(sys.argv[1]) / "docs" / "c-abi.md").read_text().splitlines()
start = page.index("| key | type | default | range | meaning |") + 2
found = []
for line in page[start:]:
    if not line.startswith("|"):
        break
    found.append(line)
for row in rows:
    if row not in found:
        print("missing or outdated:", row)
for row in found:
    if row not in rows:
        print("not an option:", row)
sys.exit(0 if found == rows else 1)
