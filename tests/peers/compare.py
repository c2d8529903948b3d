#!/usr/bin/env python3
"""Headrace against llama.cpp on the same file, the same tokens and the same threads, in one run.

    python3 tests/peers/compare.py MODEL.gguf [--threads 2] [--prompt-tokens 512] [--gen-tokens 128] [--rounds 5] [--json]
        [--peer-python PYTHON] [--headrace-path build/release/python] [--batch 1,4,8,16,32]

Each engine lives in a process of its own, loaded once and warmed up once; then the two take turns, A B A B ..., and while one
works the other waits on a pipe. A turn is a prefill of --prompt-tokens fresh tokens, timed until the first token is drawn,
and a greedy decode of --gen-tokens more. llama.cpp is PyPI's llama-cpp-python (built from source, its defaults: run-time
repacking, flash attention as it chooses, batch and micro-batch of the prompt's size). Printed: medians of tokens per second,
and the ratio Headrace / llama.cpp pair by pair.

With --batch the turns are batched decoding instead: for each N of the list, N sequences with prompts of 64 tokens of their own
(--prompt-tokens sets another length) are prefilled, and then --gen-tokens steps are timed that give each of them a token,
greedily. Headrace's Scheduler is stepped; llama.cpp gets a context with n_seq_max N and one llama_batch of N tokens per step
(n_batch and n_ubatch hold the whole prefill; the KV cache with a stream for each sequence and flash attention as it chooses,
its defaults; --kv-unified makes it one stream), and its greedy sampler for each row.
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
        self.module, self.args = headrace, args
        self.model = headrace.Model.load(args.model, threads=args.threads)
        self.vocab_size = self.model.info["vocab_size"]
        self.sequences = 0
        self.prepare(1)

    def prepare(self, sequences):
        """A scheduler with room for so many sequences, whose prompts all fit into one step."""
        if sequences == self.sequences:
            return
        self.sequences = sequences
        room = sequences * (self.args.prompt_tokens + self.args.gen_tokens + 64)
        self.scheduler = self.module.Scheduler(
            self.model, prefix_index=False, max_tokens=room, threads=self.args.threads, max_num_seqs=sequences,
            max_num_batched_tokens=max(512, sequences * self.args.prompt_tokens))

    def batch(self, prompts, count):
        """Seconds of `count` steps, in each of which every sequence gets a token."""
        self.prepare(len(prompts))
        ids = [self.scheduler.submit(prompt, max_tokens=count + 1, ignore_eos=True) for prompt in prompts]
        self.scheduler.step()
        if self.scheduler.stats["num_running"] != len(prompts):
            raise RuntimeError("not every sequence started in the first step")
        start = time.perf_counter()
        for _ in range(count):
            self.scheduler.step()
        seconds = time.perf_counter() - start
        for request in ids:
            drawn = 0
            while True:
                event = self.scheduler.next_event(request)
                drawn += len(event["tokens"])
                if event["is_last"]:
                    break
            if drawn != count + 1:
                raise RuntimeError(f"a sequence got {drawn} tokens in {count + 1} steps")
        return seconds

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
        self.args, self.sequences = args, 0
        self.prepare(1)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        llama_cpp.llama_sampler_chain_add(self.sampler, llama_cpp.llama_sampler_init_greedy())

    def prepare(self, sequences):
        """A context with room for so many sequences."""
        if sequences == self.sequences:
            return
        lib, args = self.lib, self.args
        if self.sequences:
            lib.llama_free(self.context)
        self.sequences = sequences
        params = lib.llama_context_default_params()
        # Streams of the cache are multiples of 256 tokens.
        room = args.prompt_tokens + args.gen_tokens + 64
        params.n_ctx = room if sequences == 1 else sequences * (-(-room // 256) * 256)
        params.n_seq_max = sequences
        params.kv_unified = args.kv_unified
        params.n_batch = params.n_ubatch = max(512, sequences * args.prompt_tokens)
        params.n_threads = params.n_threads_batch = args.threads
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp made no context of {sequences} sequences")

    def run(self, batch, size):
        batch.n_tokens = size
        if self.lib.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def batch(self, prompts, count):
        lib = self.lib
        self.prepare(len(prompts))
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        length = len(prompts[0])
        batch = lib.llama_batch_init(len(prompts) * length, 0, 1)
        row, wanted = 0, []
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                batch.token[row], batch.pos[row] = token, position
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
                batch.logits[row] = position == length - 1
                row += 1
            wanted.append(row - 1)
        self.run(batch, row)
        tokens = [lib.llama_sampler_sample(self.sampler, self.context, index) for index in wanted]
        rows = range(len(prompts))
        for sequence in rows:
            batch.n_seq_id[sequence], batch.seq_id[sequence][0], batch.logits[sequence] = 1, sequence, True
        start = time.perf_counter()
        for step in range(count):
            for sequence in rows:
                batch.token[sequence], batch.pos[sequence] = tokens[sequence], length + step
            self.run(batch, len(prompts))
            tokens = [lib.llama_sampler_sample(self.sampler, self.context, index) for index in rows]
        seconds = time.perf_counter() - start
        lib.llama_batch_free(batch)
        return seconds

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
        answer = engine.batch(request["prompts"], request["count"]) if "prompts" in request else \
            engine.turn(request["tokens"], request["count"])
        print(json.dumps(answer), flush=True)


class Worker:
    def __init__(self, name, python, args):
        command = [python, __file__, args.model, "--worker", name, "--threads", str(args.threads), "--prompt-tokens",
                   str(args.prompt_tokens), "--gen-tokens", str(args.gen_tokens), "--headrace-path", args.headrace_path]
        if args.kv_unified:
            command.append("--kv-unified")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hello = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("an engine's process ended early")
        return json.loads(line)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
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


def take_turns(ours, theirs, rounds, request_of):
    """Each engine's answers to the same requests, pair by pair."""
    answers = {"headrace": [], "llama.cpp": []}
    for turn in range(rounds + 1):
        request = request_of(turn)
        pair = {}
        for name, worker in (("headrace", ours), ("llama.cpp", theirs)):
            pair[name] = worker.ask(**request)
            time.sleep(0.3)  # threads that wait by spinning go to sleep
        if turn > 0:  # the first warms up
            for name, value in pair.items():
                answers[name].append(value)
    return answers


def compare_batches(args, ours, theirs):
    """Batched decoding: a summary for each number of sequences."""
    summaries = {}
    for sequences in args.batch:
        def request_of(turn):
            seeds = range(turn * 1000, turn * 1000 + sequences)
            prompts = [prompt_tokens(args.prompt_tokens, ours.hello["vocab_size"], seed) for seed in seeds]
            return {"prompts": prompts, "count": args.gen_tokens}
        times = take_turns(ours, theirs, args.rounds, request_of)
        summaries[sequences] = summary(times["headrace"], times["llama.cpp"], args.gen_tokens * sequences)
    return summaries


def batch_sizes(text):
    sizes = [int(part) for part in text.split(",")]
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError("sequences are counted from 1")
    return sizes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, help="default: 512, and 64 with --batch")
    parser.add_argument("--gen-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=batch_sizes, help="sequences decoded together, such as 1,4,8,16,32")
    parser.add_argument("--kv-unified", action="store_true", help="one stream of llama.cpp's KV cache for all sequences")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--headrace-path", default=str(ROOT / "build" / "release" / "python"))
    parser.add_argument("--headrace-python", default="/usr/bin/python3", help="the interpreter the module was built for")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with llama-cpp-python")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.prompt_tokens is None:
        args.prompt_tokens = 64 if args.batch else 512
    if args.worker:
        return work(args)

    ours = Worker("headrace", args.headrace_python, args)
    theirs = Worker("llama.cpp", args.peer_python, args)
    result = {
        "model": pathlib.Path(args.model).name, "cpu": cpu_name(), "threads": args.threads, "rounds": args.rounds,
        "prompt_tokens": args.prompt_tokens, "gen_tokens": args.gen_tokens,
        "versions": {"headrace": ours.hello["version"], "llama-cpp-python": theirs.hello["version"]},
    }
    if args.batch:
        result["kv_unified"] = args.kv_unified
        result["batches"] = compare_batches(args, ours, theirs)
    else:
        times = take_turns(ours, theirs, args.rounds, lambda turn: {
            "tokens": prompt_tokens(args.prompt_tokens, ours.hello["vocab_size"], turn), "count": args.gen_tokens})
        for index, (phase, tokens) in enumerate((("prefill", args.prompt_tokens), ("decode", args.gen_tokens))):
            result[phase] = summary(*([t[index] for t in times[n]] for n in ("headrace", "llama.cpp")), tokens)
    if args.json:
        print(json.dumps(result))
        return 0
    print(f"{result['model']}, {result['cpu']}, {args.threads} threads, {args.rounds} rounds, versions {result['versions']}")
    rows = [(f"batch {n}", row) for n, row in result["batches"].items()] if args.batch else \
        [(phase, result[phase]) for phase in ("prefill", "decode")]
    for name, row in rows:
        print(f"{name:8} tokens/s: headrace {row['headrace']:8.1f}   llama.cpp {row['llama.cpp']:8.1f}   "
              f"ratio {row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
