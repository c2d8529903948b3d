"""Holds every #include to the levels of lib/ (docs/architecture.md): a file includes its own folder and lower levels.

    python3 check_includes.py REPOSITORY

cuda/ stands at the level of lib/cpu. Also fails on a cycle of includes, and where examples/ or bindings/ reach past include/headrace/.
"""
import os
import re
import sys

LEVELS = {"base": 0, "tensor": 1, "formats": 2, "text": 2, "ops": 2, "cpu": 3, "kv": 4, "media": 4, "sampling": 4, "model": 5,
          "speculation": 6, "schedule": 7, "engine": 8, "capi": 9}
SUFFIXES = (".h", ".hpp", ".c", ".cpp", ".cu", ".inl")
CUDA_LEVEL = LEVELS["cpu"]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def files(root, folder):
    for path, folders, names in os.walk(os.path.join(root, folder)):
        folders.sort()
        for name in sorted(names):
            if name.endswith(SUFFIXES):
                yield os.path.relpath(os.path.join(path, name), root)


def includes(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return INCLUDE.findall(file.read())


def resolve(root, path, name):
    for folder in (os.path.dirname(path), "lib", "include", "cuda"):
        candidate = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def find_cycle(graph):
    done, active = set(), []

    def visit(node):
        if node in active:
            return active[active.index(node):] + [node]
        if node in done:
            return None
        active.append(node)
        for target in graph.get(node, ()):
            cycle = visit(target)
            if cycle:
                return cycle
        active.pop()
        done.add(node)
        return None

    for node in sorted(graph):
        cycle = visit(node)
        if cycle:
            return cycle
    return None


def check(root):
    problems, graph = [], {}
    for path in list(files(root, "lib")) + list(files(root, "include")):
        graph[path] = []
        parts = path.split(os.sep)
        folder = parts[1] if parts[0] == "lib" else None
        if folder is not None and folder not in LEVELS:
            problems.append(f"{path}: lib/{folder} has no level")
            continue
        for _, name in includes(root, path):
            target = resolve(root, path, name)
            if target is None:
                continue
            graph[path].append(target)
            target_parts = target.split(os.sep)
            if folder is None:
                if target_parts[0] != "include":
                    problems.append(f"{path}: a public header includes {target}")
            elif target_parts[0] == "lib":
                other = target_parts[1]
                if other != folder and LEVELS.get(other, 99) >= LEVELS[folder]:
                    problems.append(f"{path}: level {LEVELS[folder]} includes {target}, level {LEVELS.get(other)}")
            elif target.endswith(".hpp") and target.startswith("include"):
                problems.append(f"{path}: the library includes {target}, which stands above it")
    for path in files(root, "cuda"):
        graph[path] = []
        for _, name in includes(root, path):
            target = resolve(root, path, name)
            if target is None:
                continue
            graph[path].append(target)
            parts = target.split(os.sep)
            if parts[0] == "lib" and LEVELS[parts[1]] >= CUDA_LEVEL:
                problems.append(f"{path}: level {CUDA_LEVEL} includes {target}, level {LEVELS[parts[1]]}")
    cycle = find_cycle(graph)
    if cycle:
        problems.append("cycle of includes: " + " -> ".join(cycle))
    for top in ("examples", "bindings"):
        for path in files(root, top):
            for _, name in includes(root, path):
                target = resolve(root, path, name)
                if target is not None and target.split(os.sep)[0] not in ("include", top):
                    problems.append(f"{path}: includes {target}, not include/headrace/")
    return len(graph), problems


def main():
    count, problems = check(sys.argv[1])
    print("\n".join(problems) if problems else f"{count} files keep their levels, no cycle")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
