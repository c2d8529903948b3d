"""Compiles the C and C++ blocks of README.md and docs/*.md against the public headers, without linking.

usage: readme_code.py SOURCE_DIR CC CXX
"""
import pathlib
import re
import subprocess
import sys

root, cc, cxx = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
failed = blocks = 0
for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
    for language, code in re.findall(r"^```(c|cpp)\n(.*?)^```", page.read_text(), re.M | re.S):
        compiler = [cc, "-std=c99", "-xc"] if language == "c" else [cxx, "-std=c++17", "-xc++"]
        flags = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{root / 'include'}", "-"]
        blocks += 1
        result = subprocess.run(compiler + flags, input=code, text=True, capture_output=True)
        if result.returncode:
            failed += 1
            print(f"{page}: a {language} block does not compile\n{result.stderr}")
print(f"{blocks} blocks, {failed} failed")
sys.exit(1 if failed or not blocks else 0)
