"""Installs a build into a temporary prefix and builds and runs users of it.

    python3 install_test.py REPOSITORY BUILD CC CXX [MODELS_DIR]

A CMake project finds the package (shared and static, through headrace.hpp), a C program is linked with pkg-config (shared
and static), and the installed command inspects a model. With the default model at hand, text is generated too.
"""
import os
import subprocess
import sys
import tempfile

TINY = "tests/data/goldens/llama/model.gguf"


def run(command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {result.returncode}\n{result.stdout}")
    return result.stdout


def main():
    root, build, cc, cxx = sys.argv[1:5]
    models = sys.argv[5] if len(sys.argv) > 5 else ""
    tiny = os.path.join(root, TINY)
    with tempfile.TemporaryDirectory() as work:
        prefix = os.path.join(work, "prefix")
        run(["cmake", "--install", build, "--prefix", prefix])
        libdir = next(path for path, _, names in os.walk(prefix) if "libheadrace.so" in names)
        # headrace.pc is configured for the default prefix; pkg-config moves it to where it was found.
        environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(libdir, "pkgconfig"))
        loader = dict(os.environ, LD_LIBRARY_PATH=libdir)

        project = os.path.join(work, "cmake_project")
        run(["cmake", "-S", os.path.join(root, "tests/install/cmake_project"), "-B", project, "-G", "Ninja",
             f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={cc}", f"-DCMAKE_CXX_COMPILER={cxx}"])
        run(["cmake", "--build", project])
        for program in ("user_shared", "user_static"):
            print(program, run([os.path.join(project, program), tiny]).strip())
        linked = run(["ldd", os.path.join(project, "user_static")])
        if "libheadrace" in linked:
            raise SystemExit("user_static loads the shared library:\n" + linked)

        source = os.path.join(root, "examples/minimal.c")
        pkg = ["pkg-config", "--define-prefix"]
        flags = run(pkg + ["--cflags", "--libs", "headrace"], env=environment).split()
        shared = os.path.join(work, "minimal_shared")
        run([cc, "-std=c99", source, *flags, "-o", shared])
        flags = run(pkg + ["--static", "--cflags", "--libs", "headrace"], env=environment).split()
        flags = [os.path.join(libdir, "libheadrace.a") if flag == "-lheadrace" else flag for flag in flags]
        static = os.path.join(work, "minimal_static")
        run([cc, "-std=c99", source, *flags, "-o", static])
        for program in (shared, static):
            result = subprocess.run([program, "/nonexistent.gguf", "x"], env=loader, capture_output=True, text=True)
            if result.returncode != 1 or "error:" not in result.stderr:
                raise SystemExit(f"{program}: a missing model gave {result.returncode}: {result.stderr}")

        command = os.path.join(prefix, "bin", "headrace")
        if os.path.exists(command):
            run([command, "inspect", tiny])
        model = os.path.join(models, "smollm2-135m.gguf")
        if not models or not os.path.exists(model):
            print("SKIPPED: generation with the installed library: smollm2-135m.gguf is not there")
            return
        texts = [run([program, model, "Once upon a time"], env=loader) for program in (shared, static)]
        if len(texts[0].strip()) < 20 or texts[0] != texts[1]:
            raise SystemExit(f"shared and static give other texts:\n{texts[0]}\n{texts[1]}")
        print("both generate:", texts[0][:80])


if __name__ == "__main__":
    main()
