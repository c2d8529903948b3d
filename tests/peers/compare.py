#!/usr/bin/env python3
"""Headrace against llama.cpp on the same file, the same tokens and the same threads, in one run.

    python3 tests/peers/compare.py MODEL.gguf [--threads 2] [--prompt-tokens 512] [--gen-tokens 128] [--rounds 5] [--json]
        [--peer-python PYTHON] [--headrace-path build/release/python]

Each engine lives in a process of its own, loaded once and warmed up once; then the two take turns, A B A B ..., and while one
works the other waits on a pipe. A turn is a prefill of --prompt-tokens fresh tokens, timed until the first token is drawn,
and a greedy decode of --gen-tokens more. llama.cpp is PyPI's llama-cpp-python (built from source, its defaults: run-time
repacking, flash attention as it chooses, batch and micro-batch of the prompt's size). Printed: medians of tokens per second,
and the ratio Headrace / llama.cpp pair by pair.
"""
import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def prompt_tokens(count, vocab_size, seed):
    """Ids spread over the lower nine tenths of the vocabulary, where no model keeps its control tokens."""
    state, tokens = seed * 7919 + 1, []
    while len(tokens) < count:
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        token = (state >> 33) % (vocab_size * 9 // 10)
        if token > 300:
            tokens.append(token)
    return tokens


class Headrace:
    def __init__(self, args):
        sys.path.insert(0, args.headrace_path)
        import headrace
        self.version = headrace.version()
        room = args.prompt_tokens + args.gen_tokens + 64
        self.model = headrace.Model.load(args.model, threads=args.threads)
        self.scheduler = headrace.Scheduler(self.model, prefix_index=False, max_tokens=room, threads=args.threads,
                                            max_num_batched_tokens=max(512, args.prompt_tokens))
        self.vocab_size = self.model.info["vocab_size"]

    def turn(self, tokens, count):
        output = self.scheduler.generate(tokens, max_tokens=count + 1, ignore_eos=True)
        prefill = output.usage["first_token_ns"] / 1e9
        return prefill, output.usage["total_ns"] / 1e9 - prefill


class LlamaCpp:
    def __init__(self, args):
        import llama_cpp
        self.lib = llama_cpp
        self.version = llama_cpp.__version__
        self.silence = llama_cpp.llama_log_callback(lambda *_: None)  # kept: ctypes does not
        llama_cpp.llama_log_set(self.silence, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(args.model.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = args.prompt_tokens + args.gen_tokens + 64
        params.n_batch = params.n_ubatch = max(512, args.prompt_tokens)
        params.n_threads = params.n_threads_batch = args.threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        llama_cpp.llama_sampler_chain_add(self.sampler, llama_cpp.llama_sampler_init_greedy())

    def decode(self, tokens):
        array = (self.lib.llama_token * len(tokens))(*tokens)
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")
        return self.lib.llama_sampler_sample(self.sampler, self.context, -1)

    def turn(self, tokens, count):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        start = time.perf_counter()
        token = self.decode(tokens)
        middle = time.perf_counter()
        for _ in range(count):
            token = self.decode([token])
        return middle - start, time.perf_counter() - middle


def work(args):
    """The loop of one engine's process: a line with a seed in, a line with two times out."""
    engine = {"headrace": Headrace, "llama.cpp": LlamaCpp}[args.worker](args)
    print(json.dumps({"version": engine.version, "vocab_size": engine.vocab_size}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(engine.turn(request["tokens"], request["count"])), flush=True)


class Worker:
    def __init__(self, name, python, args):
        command = [python, __file__, args.model, "--worker", name, "--threads", str(args.threads), "--prompt-tokens",
                   str(args.prompt_tokens), "--gen-tokens", str(args.gen_tokens), "--headrace-path", args.headrace_path]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hello = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("an engine's process ended early")
        return json.loads(line)

    def turn(self, tokens, count):
        self.process.stdin.write(json.dumps({"tokens": tokens, "count": count}) + "\n")
        self.process.stdin.flush()
        return self.read()


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def summary(ours, theirs, tokens):
    ratios = [b / a for a, b in zip(ours, theirs)]
    return {"headrace": tokens / statistics.median(ours), "llama.cpp": tokens / statistics.median(theirs),
            "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--gen-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--headrace-path", default=str(ROOT / "build" / "release" / "python"))
    parser.add_argument("--headrace-python", default="/usr/bin/python3", help="the interpreter the module was built for")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with llama-cpp-python")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args)

    ours = Worker("headrace", args.headrace_python, args)
    theirs = Worker("llama.cpp", args.peer_python, args)
    times = {"headrace": [], "llama.cpp": []}
    for turn in range(args.rounds + 1):
        tokens = prompt_tokens(args.prompt_tokens, ours.hello["vocab_size"], turn)
        pair = {"headrace": ours.turn(tokens, args.gen_tokens)}
        time.sleep(0.3)  # threads that wait by spinning go to sleep
        pair["llama.cpp"] = theirs.turn(tokens, args.gen_tokens)
        time.sleep(0.3)
        if turn > 0:  # the first warms up
            for name, value in pair.items():
                times[name].append(value)
    result = {
        "model": pathlib.Path(args.model).name, "cpu": cpu_name(), "threads": args.threads, "rounds": args.rounds,
        "prompt_tokens": args.prompt_tokens, "gen_tokens": args.gen_tokens,
        "versions": {"headrace": ours.hello["version"], "llama-cpp-python": theirs.hello["version"]},
        "prefill": summary(*([t[0] for t in times[n]] for n in ("headrace", "llama.cpp")), args.prompt_tokens),
        "decode": summary(*([t[1] for t in times[n]] for n in ("headrace", "llama.cpp")), args.gen_tokens),
    }
    if args.json:
        print(json.dumps(result))
        return 0
    print(f"{result['model']}, {result['cpu']}, {args.threads} threads, {args.rounds} rounds, versions {result['versions']}")
    for phase in ("prefill", "decode"):
        row = result[phase]
        print(f"{phase:8} tokens/s: headrace {row['headrace']:8.1f}   llama.cpp {row['llama.cpp']:8.1f}   "
              f"ratio {row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
