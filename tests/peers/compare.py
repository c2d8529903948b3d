#!/usr/bin/env python3
"""Headrace against other engines on the same file, the same tokens and the same threads, in one run.

    python3 tests/peers/compare.py MODEL.gguf [--threads 2] [--prompt-tokens 512] [--gen-tokens 128] [--rounds 5] [--json]
        [--headrace-path build/release/python] [--isa avx2] [--batch 1,4,8,16,32]
        [--peer-python PYTHON | --no-llamacpp] [--openvino-python PYTHON]
        [--ctranslate2-python PYTHON --ctranslate2-model FOLDER] [--ik-bench PATH/llama-bench]
        [--ik-python PYTHON]

Each engine lives in a process of its own, loaded once and warmed up once; then they take turns, A B C A B C ..., and while one
works the others wait on a pipe. A turn is a prefill of --prompt-tokens fresh tokens, timed until the first token is drawn,
and a greedy decode of --gen-tokens more. Printed: medians of tokens per second, and the ratio Headrace / peer round by round:
its median, lowest and highest.

The peers, each with its defaults; one that is absent or refuses the model is left out, and a line says why:
  llama.cpp        PyPI's llama-cpp-python, built from source, in --peer-python (peer_llamacpp.py)
  OpenVINO GenAI   PyPI's openvino-genai in --openvino-python; it reads GGUF files itself (peer_openvino.py)
  CTranslate2      PyPI's ctranslate2, on a folder that gguf_to_ctranslate2.py makes of the file (peer_ctranslate2.py)
  ik_llama.cpp     a llama-bench built from its source, started for each turn, with run-time repacking (peer_ik_bench.py);
                   or PyPI's ik-llama-cpp-python in --ik-python, whose wheel has AVX2 code (peer_ik_python.py)

--isa makes Headrace use lesser instructions than the machine has; a fair peer is built for the same ones.

With --batch the turns are batched decoding instead, against llama.cpp alone: for each N of the list, N sequences with prompts of
64 tokens of their own (--prompt-tokens sets another length) are prefilled, and then --gen-tokens steps are timed that give each of
them a token, greedily. Headrace's Scheduler is stepped; llama.cpp gets a context with n_seq_max N and one llama_batch of N tokens
per step (n_batch and n_ubatch hold the whole prefill; the KV cache with a stream for each sequence and flash attention as it
chooses, its defaults; --kv-unified makes it one stream), and its greedy sampler for each row.
"""
import argparse
import json
import pathlib
import platform
import statistics
import sys
import time

from worker import EngineError, Worker

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADRACE = "headrace"


def prompt_tokens(count, vocab_size, seed):
    """Ids spread over the lower nine tenths of the vocabulary, where no model keeps its control tokens."""
    state, tokens = seed * 7919 + 1, []
    while len(tokens) < count:
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        token = (state >> 33) % (vocab_size * 9 // 10)
        if token > 300:
            tokens.append(token)
    return tokens


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def wanted_peers(args):
    """The engines to start, each with its interpreter, and those left out, each with the reason."""
    wanted, skipped = {}, {}
    if not args.no_llamacpp:
        wanted["llama.cpp"] = args.peer_python
    if args.openvino_python:
        wanted["OpenVINO GenAI"] = args.openvino_python
    else:
        skipped["OpenVINO GenAI"] = "no --openvino-python"
    if args.ctranslate2_model:
        wanted["CTranslate2"] = args.ctranslate2_python
    else:
        skipped["CTranslate2"] = "no --ctranslate2-model"
    if args.ik_bench:
        wanted["ik_llama.cpp"] = sys.executable
    else:
        skipped["ik_llama.cpp"] = "no --ik-bench"
    if args.ik_python:
        wanted["ik_llama.cpp (PyPI)"] = args.ik_python
    else:
        skipped["ik_llama.cpp (PyPI)"] = "no --ik-python"
    if args.batch:
        for name in [name for name in wanted if name != "llama.cpp"]:
            del wanted[name]
            skipped[name] = "does not take part in --batch"
    return wanted, skipped


def start_peers(args, settings, vocab_size):
    wanted, skipped = wanted_peers(args)
    workers = []
    for name, python in wanted.items():
        try:
            worker = Worker(name, python, settings)
        except EngineError as error:
            skipped[name] = str(error)
            continue
        if worker.vocab_size not in (None, vocab_size):
            worker.close()
            skipped[name] = f"its model has {worker.vocab_size} tokens, not {vocab_size}"
            continue
        workers.append(worker)
    return workers, skipped


def take_turns(workers, rounds, request_of, skipped):
    """Each engine's answers to the same requests, round by round. A peer that fails leaves `workers` for `skipped`."""
    answers = {worker.engine: [] for worker in workers}
    for turn in range(rounds + 1):
        request = request_of(turn)
        for worker in list(workers):
            try:
                answer = worker.ask(**request)
            except EngineError as error:
                if worker.engine == HEADRACE:
                    raise
                workers.remove(worker)
                del answers[worker.engine]
                skipped[worker.engine] = str(error)
                continue
            time.sleep(0.3)  # threads that wait by spinning go to sleep
            if turn > 0:  # the first warms up
                answers[worker.engine].append(answer)
    return answers


def summary(seconds, tokens):
    """Rates of each engine and Headrace's ratio to each peer, of the seconds that `tokens` took in each round."""
    rates = {name: tokens / statistics.median(values) for name, values in seconds.items()}
    ratios = {}
    for name, values in seconds.items():
        if name != HEADRACE:
            rounds = [theirs / ours for ours, theirs in zip(seconds[HEADRACE], values)]
            ratios[name] = {"median": statistics.median(rounds), "min": min(rounds), "max": max(rounds)}
    return {"rates": rates, "ratios": ratios}


def compare_turns(args, workers, vocab_size, skipped):
    """A summary of the prefill and one of the decoding."""
    answers = take_turns(workers, args.rounds, lambda turn: {
        "tokens": prompt_tokens(args.prompt_tokens, vocab_size, turn), "count": args.gen_tokens}, skipped)
    phases = (("prefill", args.prompt_tokens), ("decode", args.gen_tokens))
    return {phase: summary({name: [times[index] for times in turns] for name, turns in answers.items()}, tokens)
            for index, (phase, tokens) in enumerate(phases)}


def compare_batches(args, workers, vocab_size, skipped):
    """Batched decoding: a summary for each number of sequences."""
    summaries = {}
    for sequences in args.batch:
        def request_of(turn):
            seeds = range(turn * 1000, turn * 1000 + sequences)
            prompts = [prompt_tokens(args.prompt_tokens, vocab_size, seed) for seed in seeds]
            return {"prompts": prompts, "count": args.gen_tokens}
        answers = take_turns(workers, args.rounds, request_of, skipped)
        summaries[f"batch {sequences}"] = summary(answers, args.gen_tokens * sequences)
    return summaries


def batch_sizes(text):
    sizes = [int(part) for part in text.split(",")]
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError("sequences are counted from 1")
    return sizes


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, help="default: 512, and 64 with --batch")
    parser.add_argument("--gen-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=batch_sizes, help="sequences decoded together, such as 1,4,8,16,32")
    parser.add_argument("--kv-unified", action="store_true", help="one stream of llama.cpp's KV cache for all sequences")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--isa", help="Headrace's instruction set, such as avx2; default: the best of the machine")
    parser.add_argument("--headrace-path", default=str(ROOT / "build" / "release" / "python"))
    parser.add_argument("--headrace-python", default="/usr/bin/python3", help="the interpreter the module was built for")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with llama-cpp-python")
    parser.add_argument("--no-llamacpp", action="store_true", help="leave llama.cpp out")
    parser.add_argument("--openvino-python", help="an interpreter with openvino-genai")
    parser.add_argument("--ctranslate2-python", default=sys.executable, help="an interpreter with ctranslate2")
    parser.add_argument("--ctranslate2-model", help="a folder made by gguf_to_ctranslate2.py")
    parser.add_argument("--ik-bench", help="ik_llama.cpp's llama-bench")
    parser.add_argument("--ik-python", help="an interpreter with ik-llama-cpp-python")
    args = parser.parse_args()
    if args.prompt_tokens is None:
        args.prompt_tokens = 64 if args.batch else 512
    return args


def main():
    args = parse_arguments()
    settings = {name: getattr(args, name) for name in (
        "model", "threads", "prompt_tokens", "gen_tokens", "kv_unified", "isa", "headrace_path", "ctranslate2_model", "ik_bench")}
    try:
        ours = Worker(HEADRACE, args.headrace_python, settings)
        peers, skipped = start_peers(args, settings, ours.vocab_size)
        workers = [ours, *peers]
        compare = compare_batches if args.batch else compare_turns
        rows = compare(args, workers, ours.vocab_size, skipped)
    except EngineError as error:
        raise SystemExit(f"{HEADRACE}: {error}") from error
    result = {
        "model": pathlib.Path(args.model).name, "cpu": cpu_name(), "isa": args.isa, "threads": args.threads,
        "rounds": args.rounds, "prompt_tokens": args.prompt_tokens, "gen_tokens": args.gen_tokens,
        "kv_unified": args.kv_unified, "versions": {worker.engine: worker.version for worker in workers},
        "skipped": skipped, "rows": rows,
    }
    if args.json:
        print(json.dumps(result))
        return 0
    print(f"{result['model']}, {result['cpu']}, {args.threads} threads, {args.rounds} rounds, versions {result['versions']}"
          + (f", headrace with {args.isa}" if args.isa else ""))
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    for name, row in rows.items():
        print(f"{name:8} headrace {row['rates'][HEADRACE]:8.1f} tokens/s")
        for peer, ratio in row["ratios"].items():
            print(f"{'':8} {peer:19} {row['rates'][peer]:8.1f} tokens/s   ratio {ratio['median']:.2f} "
                  f"({ratio['min']:.2f} to {ratio['max']:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
