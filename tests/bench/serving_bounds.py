#!/usr/bin/env python3
"""What serving promises of times, measured on a real model: a cached prefix, a long prompt among decoders, tenants.

    python3 tests/bench/serving_bounds.py MODEL.gguf [--only cached,gap,tenants] [--threads 2] [--path build/release/python]

cached    A prompt of --context tokens is computed, then one that ends in --uncached other tokens. Printed: both times to the
          first token, the tokens computed, and the bound of the second: 1.15 times the cost of its rows alone, which is that of
          a prompt of as many tokens with nothing before it, and the attention to --context keys at 60 % of --peak multiply-adds.
gap       7 sequences decode. Printed: median and p99 of the time between their tokens alone, before and behind a prompt of
          --context tokens that is computed among them, and during it; each of those gaps over the median alone, which grows with
          the sequences from that before to that behind; and how long the prompt took.
tenants   One tenant has a request at a time. Printed: the p95 of its time to the first token alone, and beside a tenant that keeps
          200 requests queued; and the longest step.

Prompts are ids spread over the vocabulary; ends of text are ignored.
"""
import argparse
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "peers"))
from compare import prompt_tokens  # noqa: E402
from server_streams import percentile  # noqa: E402


class Bench:
    def __init__(self, args):
        sys.path.insert(0, args.path)
        import headrace
        self.headrace, self.args = headrace, args
        self.model = headrace.Model.load(args.model, threads=args.threads)
        self.seed = 0

    def prompt(self, count):
        self.seed += 1
        return prompt_tokens(count, self.model.info["vocab_size"], self.seed)

    def scheduler(self, tokens, **options):
        return self.headrace.Scheduler(self.model, max_tokens=tokens, threads=self.args.threads, **options)

    def first_token(self, scheduler, prompt):
        usage = scheduler.generate(prompt, max_tokens=1, ignore_eos=True).usage
        return usage["first_token_ns"] / 1e9, usage["prompt_tokens"] - usage["cached_tokens"]

    def attention_products(self, rows, context):
        """Multiply-adds of rows at the end of a context, in all layers, windows heeded."""
        total = 0
        for layer in self.model.describe()["layers"]:
            attention = layer.get("attention") or {}
            if "num_heads" not in attention:
                continue
            keys = context - rows / 2
            window = attention.get("window") or attention.get("sliding_window")
            keys = min(keys, window) if window else keys
            total += 2 * rows * keys * attention["num_heads"] * attention["head_dim"]
        return total

    def cached(self):
        context, uncached = self.args.context, self.args.uncached
        scheduler = self.scheduler(2 * context)
        self.first_token(scheduler, self.prompt(uncached))
        alone = sorted(self.first_token(scheduler, self.prompt(uncached))[0] for _ in range(3))[1]
        shared = self.prompt(context - uncached)
        cold, computed = self.first_token(scheduler, shared + self.prompt(uncached))
        print(f"cold: {context} tokens, {computed} computed, first token after {cold:.2f} s")
        warm, rows = sorted(self.first_token(scheduler, shared + self.prompt(uncached)) for _ in range(3))[1]
        attention = self.attention_products(rows, context) / (0.6 * self.args.peak * 1e9)
        print(f"cached: {rows} computed, first token after {warm:.2f} s, {cold / warm:.1f} times sooner; a prompt of {uncached} "
              f"alone {alone:.2f} s, attention at 60 % of the peak {attention:.2f} s: {warm / (alone + attention):.2f} times "
              "their sum (bound: 1.15)")

    def gap(self):
        decoders = 7
        scheduler = self.scheduler(self.args.context + decoders * 8192)
        ids = [scheduler.submit(self.prompt(64), max_tokens=8000, ignore_eos=True) for _ in range(decoders)]
        last, gaps = {}, []

        def step():
            scheduler.step()
            now = time.perf_counter()
            for request in ids:
                while (event := scheduler.next_event(request)) is not None:
                    if event["tokens"]:
                        if request in last:
                            gaps.append(now - last[request])
                        last[request] = now

        for _ in range(60):
            step()
        gaps.clear()
        for _ in range(200):
            step()
        before = gaps[:]
        gaps.clear()
        start = time.perf_counter()
        prompt = scheduler.submit(self.prompt(self.args.context), max_tokens=1, ignore_eos=True)
        while True:
            step()
            event = scheduler.next_event(prompt)
            if event is not None and event["is_last"]:
                break
        took, during = time.perf_counter() - start, gaps[:]
        gaps.clear()
        for _ in range(100):
            step()
        at = [percentile(alone, 0.5) for alone in (before, gaps)]
        ratios = [gap / (at[0] + (at[1] - at[0]) * i / len(during)) for i, gap in enumerate(during)]
        shown = ", ".join(f"{name} {1e3 * percentile(part, 0.5):.1f} ms, p99 {1e3 * percentile(part, 0.99):.1f}"
                          for name, part in (("before", before), ("behind", gaps), (f"with a prompt of {self.args.context}", during)))
        print(f"gap: {shown}: {percentile(ratios, 0.5):.2f} times the gap alone, p99 {percentile(ratios, 0.99):.2f} (bound: 2.5); "
              f"the prompt took {took:.1f} s")
        for request in ids:
            scheduler.cancel(request)

    def tenants(self):
        scheduler = self.scheduler(65536, max_num_seqs=32)
        longest = 0.0
        burst = []

        def step():
            nonlocal longest
            start = time.perf_counter()
            scheduler.step()
            longest = max(longest, time.perf_counter() - start)

        def keep_burst(queued):
            for request in burst[:]:
                while (event := scheduler.next_event(request)) is not None:
                    if event["is_last"]:
                        burst.remove(request)
                        break
            while len(burst) < queued:
                burst.append(scheduler.submit(self.prompt(256), max_tokens=64, ignore_eos=True, tenant="burst"))

        def first_tokens(count, queued):
            times = []
            for _ in range(count):
                request = scheduler.submit(self.prompt(256), max_tokens=16, ignore_eos=True, tenant="steady")
                start, seen, done = time.perf_counter(), False, False
                while not done:
                    step()
                    while (event := scheduler.next_event(request)) is not None:
                        if event["tokens"] and not seen:
                            times.append(time.perf_counter() - start)
                            seen = True
                        done = done or event["is_last"]
                    keep_burst(queued)
            return times

        first_tokens(3, 0)
        alone = first_tokens(20, 0)
        keep_burst(200)
        for _ in range(100):
            step()
        longest = 0.0
        beside = first_tokens(30, 200)
        bound = 2 * percentile(alone, 0.95) + longest
        print(f"tenants: first token alone p95 {percentile(alone, 0.95):.3f} s; beside 200 queued median {percentile(beside, 0.5):.3f}, "
              f"p95 {percentile(beside, 0.95):.3f} s; twice alone and the longest step ({longest:.3f}) {bound:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", default="cached,gap,tenants")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--uncached", type=int, default=512)
    parser.add_argument("--peak", type=float, default=174, help="G multiply-adds/s of float, as `headrace bench` measures them")
    parser.add_argument("--path", default=str(ROOT / "build/release/python"))
    args = parser.parse_args()
    bench = Bench(args)
    for name in args.only.split(","):
        getattr(bench, name)()


if __name__ == "__main__":
    main()
