"""Compiles the CUDA kernels with nvcc for every architecture, without warnings, and says what each takes.

usage: compile_kernels.py SOURCE_DIR [--write]     (--write puts the table into docs/cuda-kernels.md)

nvcc is taken from CUDA_HOME, PATH or /usr/local/cuda; without one nothing is checked. Fails on a warning, a spilled register
or a stack frame, and where the table of the page, of the same nvcc, says something else.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
BEGIN, END = "<!-- resources: written by cuda/compile_kernels.py --write -->\n", "<!-- end -->\n"


def find_nvcc():
    home = os.environ.get("CUDA_HOME")
    candidates = [home and os.path.join(home, "bin", "nvcc"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def compile_one(nvcc, root, source, architecture, folder):
    """The kernels of a source: {name: (registers, shared bytes, spilled and stack bytes)}, or None after a message."""
    command = [nvcc, "-std=c++20", "-O3", "-c", f"-arch={architecture}", "-Xptxas", "-v", "--Werror", "all-warnings",
               "-I", str(root / "cuda"), "-I", str(root / "lib"), "-I", str(source.parent), "-o", os.path.join(folder, "object.o"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{source.name} for {architecture} does not compile:\n{done.stderr}")
        return None
    print(f"{source.name} for {architecture}", flush=True)
    kernels, name, lost = {}, None, 0
    for line in done.stderr.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = match.group(1)
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            lost = sum(map(int, match.groups()))
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            kernels[name] = (int(match.group(1)), int(shared.group(1)) if shared else 0, lost)
    return kernels


def readable(names):
    """Kernels' names without namespaces and parameters."""
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    out = {}
    for name, line in zip(names, text.splitlines()):
        line = re.sub(r"\(anonymous namespace\)::|headrace::cuda::|headrace::|^void ", "", line)
        out[name] = line.split("(")[0] if "<" not in line else line[: line.index(">(") + 1] if ">(" in line else line
    return out


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    nvcc = find_nvcc()
    if nvcc is None:
        print("SKIPPED: there is no nvcc")
        return 0
    version = re.search(r"release ([\d.]+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)
    rows, failed = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted((root / "cuda" / "kernels").glob("*.cu")):
            for architecture in ARCHITECTURES:
                kernels = compile_one(nvcc, root, source, architecture, folder)
                if kernels is None:
                    failed += 1
                    continue
                names = readable(list(kernels))
                for name, (registers, shared, lost) in kernels.items():
                    row = rows.setdefault((source.name, names[name]), {"shared": shared})
                    row[architecture] = registers
                    if lost:
                        failed += 1
                        print(f"{source.name}: {names[name]} spills or has a stack frame on {architecture}: {lost} bytes")
        # The instructions that no kernel uses yet.
        for architecture in ARCHITECTURES[1:]:
            probes = root / "tests" / "emulator" / "probes.cu"
            failed += compile_one(nvcc, root, probes, architecture, folder) is None
    lines = ["| source | kernel | static shared bytes | " + " | ".join(ARCHITECTURES) + " |",
             "|---|---|---|" + "---|" * len(ARCHITECTURES)]
    for (source, kernel), row in sorted(rows.items()):
        registers = " | ".join(str(row.get(architecture, "")) for architecture in ARCHITECTURES)
        lines.append(f"| {source} | `{kernel}` | {row['shared']} | {registers} |")
    table = f"Registers of a thread, nvcc {version.group(1) if version else '?'}:\n\n" + "\n".join(lines) + "\n"
    page = root / "docs" / "cuda-kernels.md"
    text = page.read_text()
    found = re.search(re.escape(BEGIN) + "(.*?)" + re.escape(END), text, re.DOTALL)
    if "--write" in sys.argv:
        page.write_text(text[: found.start(1)] + table + text[found.end(1):])
    elif found.group(1) != table and found.group(1).splitlines()[:1] == table.splitlines()[:1]:
        failed += 1
        print("docs/cuda-kernels.md has another table than this compiler's:\n" + table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
