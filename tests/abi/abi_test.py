"""Checks the C ABI of a built libheadrace.so.

    python3 abi_test.py REPOSITORY LIBRARY [--update]

symbols.txt is compared with what the library exports; every function of the headers is exported, and every exported one is
declared there under a comment; the headers compile in every language that is promised; abidiff compares the library with
headrace.abi. --update records symbols.txt and headrace.abi anew (see README.md).
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HEADERS = ("headrace.h", "headrace_experimental.h")
STRICT = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def exported(library):
    lines = run(["nm", "-D", "--defined-only", library]).stdout.splitlines()
    names = {line.split()[-1].split("@")[0] for line in lines if line.strip()}
    # The version script's own name is a symbol of its own.
    return sorted(name for name in names if name != "HEADRACE_1")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def declared(header):
    """Functions of the header, and those that no comment of their block speaks for."""
    functions, undocumented, seen_comment = [], [], False
    for line in header.splitlines():
        if line.startswith("/* ----") or line.startswith("#define HEADRACE_ABI"):
            seen_comment = False
        elif line.startswith("/*"):
            seen_comment = True
        found = re.match(r"HEADRACE_API\b.*?\b(headrace_\w+)\(", line)
        if found:
            functions.append(found.group(1))
            if not seen_comment and not found.group(1).endswith(("_init", "_destroy", "_create")):
                undocumented.append(found.group(1))
    return sorted(functions), undocumented


def check_symbols(root, library, problems):
    names = exported(library)
    expected = read(os.path.join(root, "tests/abi/symbols.txt")).split()
    for name in sorted(set(names) - set(expected)):
        problems.append(f"exported, but not in symbols.txt: {name}")
    for name in sorted(set(expected) - set(names)):
        problems.append(f"in symbols.txt, but no longer exported: {name}")
    functions, undocumented = [], []
    for header in HEADERS:
        found, silent = declared(read(os.path.join(root, "include/headrace", header)))
        functions += found
        undocumented += silent
    for name in sorted(set(functions) ^ set(names)):
        problems.append(f"declared or exported, not both: {name}")
    problems.extend(f"no comment in the headers: {name}" for name in undocumented)
    print(f"{len(names)} symbols")


def check_headers(root, problems):
    with tempfile.TemporaryDirectory() as work:
        cases = [(name, "c", standard) for standard in ("c99", "c11") for name in HEADERS]
        cases += [(name, "c++", standard) for standard in ("c++17", "c++20") for name in ("headrace.h", "headrace.hpp")]
        for compilers in ({"c": "gcc", "c++": "g++"}, {"c": "clang", "c++": "clang++"}):
            for name, language, standard in cases:
                compiler = shutil.which(compilers[language])
                if compiler is None:
                    print(f"SKIPPED: headers with {compilers[language]}: it is not installed")
                    continue
                source = os.path.join(work, "include." + ("c" if language == "c" else "cpp"))
                with open(source, "w", encoding="utf-8") as file:
                    file.write(f"#include <headrace/{name}>\nint used(void);\nint used(void) {{ return HEADRACE_ABI_VERSION; }}\n")
                flags = ["-Wstrict-prototypes"] if language == "c" else []
                result = run([compiler, f"-std={standard}", *STRICT, *flags, "-I", os.path.join(root, "include"), source])
                if result.returncode != 0:
                    problems.append(f"{name} as {standard} by {compiler}:\n{result.stdout}")


def describe(root, library, out):
    """abidw's description of the exported functions, with the types that a client compiles against."""
    return run(["abidw", "--headers-dir", os.path.join(root, "include"), "--no-corpus-path", "--no-comp-dir-path",
                "--no-show-locs", "--out-file", out, library])


def check_abidiff(root, library, problems):
    if shutil.which("abidiff") is None:
        print("SKIPPED: abidiff is not installed")
        return
    recorded = os.path.join(root, "tests/abi/headrace.abi")
    if not os.path.exists(recorded):
        problems.append("tests/abi/headrace.abi is missing; record it with --update")
        return
    result = run(["abidiff", "--no-show-locs", recorded, library])
    if result.returncode != 0:
        problems.append(f"abidiff says:\n{result.stdout}")


def main():
    root, library = sys.argv[1:3]
    if "--update" in sys.argv[3:]:
        with open(os.path.join(root, "tests/abi/symbols.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(exported(library)) + "\n")
        result = describe(root, library, os.path.join(root, "tests/abi/headrace.abi"))
        print(result.stdout, end="")
        return result.returncode
    problems = []
    check_symbols(root, library, problems)
    check_headers(root, problems)
    check_abidiff(root, library, problems)
    print("\n".join(problems) if problems else "the ABI is as recorded")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
