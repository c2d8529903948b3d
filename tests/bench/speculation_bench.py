"""What drafters win: one model, prompts of several kinds, plain decoding and each drafter in turn.

    python3 speculation_bench.py MODEL [--drafter suffix] [--drafter model:PATH,suffix] [--kinds edit,code,prose] [--tokens 256] [--rounds 2]
        [--threads N] [--json FILE]

Needs the Python module (PYTHONPATH=build/release/python). Prints tokens per second of decoding, the ratio to plain decoding of
the same round, and what was drafted and accepted. The tokens must be the same; the run fails otherwise.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import headrace

SOURCE = '''\
import json
import os
from dataclasses import dataclass


@dataclass
class Entry:
    name: str
    size: int
    modified: float


class Folder:
    """The files of one folder, read once."""

    def __init__(self, path):
        self.path = path
        self.entries = []
        self.read()

    def read(self):
        self.entries = []
        for name in sorted(os.listdir(self.path)):
            full = os.path.join(self.path, name)
            if not os.path.isfile(full):
                continue
            status = os.stat(full)
            self.entries.append(Entry(name, status.st_size, status.st_mtime))

    def total(self):
        return sum(entry.size for entry in self.entries)

    def largest(self):
        return max(self.entries, key=lambda entry: entry.size)

    def newest(self):
        return max(self.entries, key=lambda entry: entry.modified)

    def find(self, name):
        for entry in self.entries:
            if entry.name == name:
                return entry
        return None

    def to_json(self):
        return json.dumps([{"name": e.name, "size": e.size, "modified": e.modified} for e in self.entries])


def main():
    folder = Folder(".")
    print("files:", len(folder.entries))
    print("bytes:", folder.total())
    print("largest:", folder.largest().name)
    print("newest:", folder.newest().name)


if __name__ == "__main__":
    main()
'''

PROMPTS = {
    "edit": [
        "Rename the class Folder to Directory and the method find to lookup everywhere in this file. Answer with the whole "
        "changed file and nothing else.\n\n```python\n" + SOURCE + "```",
        "In this file, let Folder.read skip files whose name begins with a dot. Answer with the whole changed file and nothing "
        "else.\n\n```python\n" + SOURCE + "```",
    ],
    "code": [
        "Write a Python class for a binary search tree with insert, delete, search and in-order traversal, with tests.",
        "Write a C++ program that reads a CSV file and prints the mean and standard deviation of each column.",
    ],
    "prose": [
        "Write a short story about a lighthouse keeper who finds a letter in a bottle. Use rich and varied language.",
        "Explain in plain words, for a curious reader, how tides come about and why their height changes over a month.",
    ],
}


# Prose is drawn, with a seed: greedily a small model repeats itself, which a drafter guesses too well.
TEMPERATURE = {"prose": 1.0}


def generate(scheduler, prompt, tokens, drafter, temperature=0.0):
    """Tokens, tokens per second behind the first, and the report."""
    request = scheduler.submit([{"role": "user", "content": prompt}], max_tokens=tokens, temperature=temperature, seed=7,
                               ignore_eos=True, drafter=drafter)
    out, first, last = [], None, None
    while True:
        scheduler.step()
        while (event := scheduler.next_event(request)) is not None:
            if event.get("tokens"):
                last = time.perf_counter()
                if first is None:
                    first, already = last, len(event["tokens"])
                out += event["tokens"]
            if "speculation" in event:
                return out, (len(out) - already) / (last - first), event["speculation"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--drafter", action="append", help="as scheduler.drafter names them; several times: each in turn")
    parser.add_argument("--kinds", default="edit,code,prose")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    drafters = arguments.drafter or ["suffix"]
    model = headrace.Model.load(arguments.model, threads=arguments.threads)
    results = {}
    for kind in arguments.kinds.split(","):
        for drafter in drafters:
            ratios, rates, counts = [], [], []
            # Of plain decoding; each drafter's run has a fresh one.
            scheduler = headrace.Scheduler(model)
            temperature = TEMPERATURE.get(kind, 0.0)
            for number, prompt in enumerate(PROMPTS[kind]):
                generate(scheduler, prompt, 8, "off", temperature)  # the prompt is in the cache from here on
                for _ in range(arguments.rounds):
                    expected, plain, _ = generate(scheduler, prompt, arguments.tokens, "off", temperature)
                    fresh = headrace.Scheduler(model, options={"scheduler.drafter": drafter})  # knows nothing of the answer yet
                    generate(fresh, prompt, 8, "off", temperature)
                    got, rate, report = generate(fresh, prompt, arguments.tokens, drafter, temperature)
                    if got != expected:
                        sys.exit(f"{kind} {number}: {drafter} changed the tokens")
                    ratios.append(rate / plain)
                    rates.append((plain, rate))
                    counts.append(report)
            drafted, accepted = (sum(report[what] for report in counts) for what in ("drafted", "accepted"))
            results[f"{kind}/{drafter}"] = {"ratios": ratios, "rates": rates, "reports": counts}
            print(f"{kind:6} {drafter:8} {statistics.median(r for _, r in rates):7.1f} tokens/s, "
                  f"{statistics.median(ratios):.2f} of plain ({min(ratios):.2f} to {max(ratios):.2f}), "
                  f"{drafted} drafted, {accepted} accepted", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
