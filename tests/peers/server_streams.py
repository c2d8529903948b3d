#!/usr/bin/env python3
"""`headrace serve` against llama.cpp's server: the same file, the same requests over HTTP, the same threads, in turns.

    python3 tests/peers/server_streams.py MODEL.gguf --llama-server PATH [--streams 16,32] [--prompt-chars 900]
        [--gen-tokens 128] [--requests 2] [--rounds 3] [--threads 2] [--headrace build/release/bin/headrace] [--json]
        [--draft-model PATH] [--llama-option=-fa=on ...] [--headrace-set KEY=VALUE ...]

For each number of streams both servers are started and warmed up; then they take turns, and while one is asked the other waits. In a
turn each stream sends --requests streaming requests to /v1/completions, one after the other: a prompt of --prompt-chars characters
of this repository's sources that no request had before, and --gen-tokens tokens greedily, ends of text ignored.

Printed for each server: output tokens per second of all streams together, from the first request to the last token; the time to
the first token and the time between tokens as the client sees them, median and 95th percentile of all turns, and of the latter
the 99th; and the ratio of rates turn by turn: its median, lowest and highest.

llama.cpp's server gets a slot for each stream (-np) and a context that holds them all, continuous batching and the rest as it
chooses by default; --llama-option adds to its command line. Headrace's server has F16 keys and values, as many sequences at once as
streams, room for them all, and its defaults otherwise; --headrace-set KEY=VALUE adds to them.

--draft-model: both guess with this smaller model, and choose by themselves how far.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Server:
    def __init__(self, name, command, port):
        self.name, self.log = name, tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.port = port
        self.wait()

    def printed(self):
        # By its own offset: the server writes at the one that the file has.
        return os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode(errors="replace")

    def wait(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if self.port is None and (match := re.search(r"listening at http://[^ ]+:(\d+)", self.printed())):
                self.port = int(match[1])
            if self.port is not None:
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        return
                except OSError:
                    pass
            time.sleep(0.2)
        self.stop()
        sys.exit(f"{self.name} does not answer:\n{self.printed()[-2000:]}")

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Prompts:
    """Pieces of the repository's sources, none twice."""

    def __init__(self, chars):
        text = "\n".join(path.read_text() for path in sorted((ROOT / "lib").rglob("*.cpp")))
        self.pieces = [text[at:at + chars] for at in range(0, len(text) - chars, chars)]
        random.Random(7).shuffle(self.pieces)

    def next(self):
        if not self.pieces:
            sys.exit("no piece of the sources is left: fewer rounds, streams or characters")
        return self.pieces.pop()


def stream(port, prompt, tokens):
    """One request: the times at which tokens came, from its start, and the usage."""
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True}}
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(response.read().decode(errors="replace"))
    times, usage = [], None
    for line in response:
        if line.startswith(b"data: {"):
            now = time.perf_counter() - start
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if any(choice.get("text") for choice in event.get("choices", ())):
                times.append(now)
    connection.close()
    if usage is None or usage["completion_tokens"] != tokens:
        raise RuntimeError(f"{usage} where {tokens} tokens were asked for")
    return times, usage


def turn(server, prompts, streams, requests, tokens):
    """Every stream's requests at once: seconds of all, and each request's times and usage."""
    answers, errors = [], []

    def run(texts):
        try:
            for text in texts:
                answers.append(stream(server.port, text, tokens))
        except (RuntimeError, OSError, ValueError) as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=([prompts.next() for _ in range(requests)],)) for _ in range(streams)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    if errors:
        sys.exit(f"{server.name}: {errors[0]}")
    return seconds, answers


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(servers, args, streams):
    prompts = Prompts(args.prompt_chars)
    rates = {server.name: [] for server in servers}
    first = {server.name: [] for server in servers}
    between = {server.name: [] for server in servers}
    for server in servers:
        turn(server, prompts, streams, 1, 8)
    for _ in range(args.rounds):
        for server in servers:
            seconds, answers = turn(server, prompts, streams, args.requests, args.gen_tokens)
            rates[server.name].append(sum(usage["completion_tokens"] for _, usage in answers) / seconds)
            for times, _ in answers:
                first[server.name].append(times[0])
                between[server.name] += [b - a for a, b in zip(times, times[1:])]
    ours, theirs = (rates[server.name] for server in servers)
    ratios = [a / b for a, b in zip(ours, theirs)]
    return {"streams": streams, "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios),
            "servers": {name: {"tokens_per_second": statistics.median(rates[name]),
                               "first_token_s": [percentile(first[name], p) for p in (0.5, 0.95)],
                               "between_tokens_ms": [1e3 * percentile(between[name], p) for p in (0.5, 0.95, 0.99)]}
                        for name in rates}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--llama-option", action="append", default=[])
    parser.add_argument("--headrace", default=str(ROOT / "build/release/bin/headrace"))
    parser.add_argument("--headrace-set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--draft-model")
    parser.add_argument("--streams", default="16,32")
    parser.add_argument("--prompt-chars", type=int, default=900)
    parser.add_argument("--gen-tokens", type=int, default=128)
    parser.add_argument("--requests", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, default=18431, help="a free port for llama.cpp's server")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    results = []
    for streams in map(int, args.streams.split(",")):
        room = streams * (args.prompt_chars + args.gen_tokens + 64)  # A character is a token at most.
        ours = [args.headrace, "serve", "-m", args.model, "-t", str(args.threads), "--port", "0", "--name", "m", "--kv-dtype", "f16",
                "--set", f"scheduler.max_num_seqs={streams}", "--set", f"kv.max_tokens={room}"]
        for setting in args.headrace_set:
            ours += ["--set", setting]
        theirs = [args.llama_server, "-m", args.model, "-t", str(args.threads), "-np", str(streams), "-c", str(room),
                  "--host", "127.0.0.1", "--port", str(args.port), *args.llama_option]
        if args.draft_model:
            ours += ["--drafter", f"model:{args.draft_model}"]
            theirs += ["-md", args.draft_model, "--spec-type", "draft-simple"]
        servers = []
        try:
            servers.append(Server("Headrace", ours, None))
            servers.append(Server("llama.cpp", theirs, args.port))
            results.append(measure(servers, args, streams))
        finally:
            for server in servers:
                server.stop()
    if args.json:
        print(json.dumps(results))
        return
    for result in results:
        print(f"{result['streams']} streams: ratio {result['ratio']:.2f} ({result['lowest']:.2f}-{result['highest']:.2f})")
        for name, figures in result["servers"].items():
            print(f"  {name:10} {figures['tokens_per_second']:7.1f} tokens/s; first token {figures['first_token_s'][0]:.2f} s, "
                  f"p95 {figures['first_token_s'][1]:.2f}; between tokens {figures['between_tokens_ms'][0]:.0f} ms, "
                  f"p95 {figures['between_tokens_ms'][1]:.0f}, p99 {figures['between_tokens_ms'][2]:.0f}")


if __name__ == "__main__":
    main()
