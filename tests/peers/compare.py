"""Tokens per second of Headrace and llama.cpp on one file, interleaved: A B A B ... in one process, each waiting while the
other runs; both loaded and warm, same token ids, same threads, prefill of 512 and decode of 128 tokens.

    PYTHONPATH=build/release/python python compare.py model.gguf [--rounds 7] [--threads 2] [--json]
"""

import argparse
import json
import statistics
import time

import headrace
import llama_cpp
from llamacpp import LlamaCpp


def measure(reset, feed, prompt, decode_tokens):
    reset()
    start = time.perf_counter()
    logits = feed(prompt)
    middle = time.perf_counter()
    for _ in range(decode_tokens):
        logits = feed([int(logits.argmax())])
    return len(prompt) / (middle - start), decode_tokens / (time.perf_counter() - middle)


def cpu_name():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    model = headrace.Model.load(arguments.model, threads=arguments.threads)
    session = headrace.Session(model, max_tokens=1024)
    peer = LlamaCpp(arguments.model, arguments.threads)
    prompt = [100 + (i * 7919) % 20000 for i in range(arguments.prompt_tokens)]
    engines = {
        # Session.evaluate gives every row's logits where llama.cpp gives the last one's: all but one token go through a
        # chunk whose logits are computed too, which is a handicap of Headrace's, not the peer's.
        "headrace": (lambda: session.rewind(0), lambda tokens: session.evaluate(tokens)[-1]),
        "llama.cpp": (peer.reset, peer.decode),
    }
    rates = {name: [] for name in engines}
    for round_index in range(arguments.rounds + 1):
        for name, (reset, feed) in engines.items():
            result = measure(reset, feed, prompt, arguments.decode_tokens)
            if round_index > 0:  # the first round warms up
                rates[name].append(result)
    out = {"cpu": cpu_name(), "headrace": headrace.version(), "llama_cpp_python": llama_cpp.__version__, "threads": arguments.threads}
    for index, phase in enumerate(("prefill", "decode")):
        ours, theirs = ([rate[index] for rate in rates[name]] for name in engines)
        ratios = [a / b for a, b in zip(ours, theirs)]
        out[phase] = {"headrace": statistics.median(ours), "llama.cpp": statistics.median(theirs),
                      "ratio": statistics.median(ours) / statistics.median(theirs), "ratios_min_max": [min(ratios), max(ratios)]}
    print(json.dumps(out) if arguments.json else json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
