#!/usr/bin/env python3
"""What it takes to keep cached values beyond the pool, and to read them back, on a real model.

    python3 tests/bench/tier_bench.py MODEL.gguf [--only files,preempted] [--threads 2] [--path build/release/python]

files      A text of --context tokens is computed and written to a folder, for each type of cached values and each codec. Printed:
           bytes of a token's values in memory and in files, how long the first token took cold, read from the folder by another
           cache, and how long the writing took.
preempted  --streams sequences of 64 tokens and 448 that they decode, in a pool for a third of them. Printed: tokens per second,
           preemptions and rows computed where the values of preempted sequences are computed again, read back from memory, and
           where the scheduler chooses.
"""
import argparse
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = ROOT / "tests" / "data" / "eval" / "source.txt"


class Bench:
    def __init__(self, args):
        sys.path.insert(0, args.path)
        import headrace
        self.headrace, self.args = headrace, args
        self.model = headrace.Model.load(args.model, threads=args.threads)
        self.text = list(self.model.tokenizer.encode(TEXT.read_text()))

    def prompt(self, start, count):
        """Tokens of the text, from another place for another start."""
        start = start * count % len(self.text)
        return (self.text[start:] + self.text)[:count]

    def cache(self, tokens, dtype="f16", **options):
        named = {key.replace("__", "."): str(value) for key, value in options.items()}
        return self.headrace.KVCache(self.model, max_tokens=tokens, kv_dtype=dtype, options=named)

    def scheduler(self, cache, **options):
        named = {key.replace("__", "."): str(value) for key, value in options.items()}
        return self.headrace.Scheduler(self.model, cache, threads=self.args.threads, options=named)

    def first_token(self, scheduler, prompt):
        usage = scheduler.generate(prompt, max_tokens=1, ignore_eos=True).usage
        return usage["first_token_ns"] / 1e9, usage["cached_tokens"]

    def files(self):
        count = self.args.context
        prompt = self.prompt(0, count)
        for dtype in ("f16", "q8"):
            for codec in ("none", "zstd"):
                with tempfile.TemporaryDirectory() as folder:
                    options = {"kv__disk_path": folder, "kv__disk_codec": codec}
                    cache = self.cache(count + 64, dtype, **options)
                    cold, _ = self.first_token(self.scheduler(cache), prompt)
                    start = time.perf_counter()
                    cache.flush()
                    wrote = time.perf_counter() - start
                    scheduler = self.scheduler(self.cache(count + 64, dtype, **options), kv__load="always")
                    warm, cached = self.first_token(scheduler, prompt)
                    now = scheduler.metrics
                    in_memory, in_files = now["disk_read_bytes"] / cached, now["disk_bytes"] / cached
                    print(f"{dtype}, {codec}: {in_memory:.0f} bytes a token, {in_files:.0f} in files ({in_memory / in_files:.2f} "
                          f"times less), first token of {count} cold {cold:.2f} s, {cached} from files {warm:.3f} s; "
                          f"rest written in {wrote:.3f} s")

    def preempted(self):
        count, streams, output = 64, self.args.streams, 448
        for load in ("never", "always", "auto"):
            cache = self.cache(streams * (count + output) // 3, kv__host_bytes=8 << 30)
            scheduler = self.scheduler(cache, kv__load=load, scheduler__mode="throughput")
            start = time.perf_counter()
            for stream in range(streams):
                scheduler.submit(self.prompt(stream, count), max_tokens=output, ignore_eos=True)
            while scheduler.step():
                pass
            took, now = time.perf_counter() - start, scheduler.metrics
            print(f"{load}: {streams * output / took:.1f} tokens/s, {now['preemptions']} preemptions, "
                  f"{now['step_rows']} rows, {now['disk_tokens']} read back, {now['forgone_loads']} loads not worth it")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--only", default="files,preempted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--path", default=str(ROOT / "build" / "release" / "python"))
    args = parser.parse_args()
    bench = Bench(args)
    for part in args.only.split(","):
        print(f"-- {part}")
        getattr(bench, part)()


if __name__ == "__main__":
    main()
