"""What drafters win: one model, prompts of several kinds, plain decoding and each drafter in turn.

    python3 speculation_bench.py MODEL [--drafter suffix] [--drafter model:PATH,suffix] [--kinds edit,code,prose] [--tokens 256] [--rounds 2]
        [--threads N] [--json FILE]

Needs the Python module (PYTHONPATH=build/release/python). Prints tokens per second of decoding, the ratio to plain decoding of
the same round, and what was drafted and accepted, with the acceptance by position, the time of steps by rows, and the ideal
that these two allow: of chains of one length in every step, the best. The tokens must be the same; the run fails otherwise.
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


def generate(scheduler, prompt, tokens, drafter, temperature=0.0, steps=None):
    """Tokens, tokens per second behind the first, and the report. steps: gets (rows, nanoseconds) of each forward pass."""
    request = scheduler.submit([{"role": "user", "content": prompt}], max_tokens=tokens, temperature=temperature, seed=7,
                               ignore_eos=True, drafter=drafter)
    out, first, last = [], None, None
    while True:
        before = scheduler.metrics if steps is not None else None
        scheduler.step()
        if steps is not None and first is not None:
            after = scheduler.metrics
            if after["num_steps"] == before["num_steps"] + 1:
                steps.append((after["step_rows"] - before["step_rows"], after["step_ns"] - before["step_ns"]))
        while (event := scheduler.next_event(request)) is not None:
            if event.get("tokens"):
                last = time.perf_counter()
                if first is None:
                    first, already = last, len(event["tokens"])
                out += event["tokens"]
            if "speculation" in event:
                return out, (len(out) - already) / (last - first), event["speculation"]


def time_by_rows(steps):
    """Median nanoseconds of steps of each number of rows, never less than with fewer."""
    by_rows = {}
    for rows, ns in steps:
        by_rows.setdefault(rows, []).append(ns)
    out, least = {}, 0.0
    for rows in sorted(by_rows):
        least = max(least, statistics.median(by_rows[rows]))
        out[rows] = least
    return out


def rows_ns(times, rows):
    """Between measured numbers of rows on a straight line; None beyond them."""
    above = min((r for r in times if r >= rows), default=None)
    below = max((r for r in times if r <= rows), default=None)
    if above is None or below is None:
        return None
    if above == below:
        return times[above]
    return times[below] + (times[above] - times[below]) * (rows - below) / (above - below)


def acceptance(reports):
    """Of guesses that were verified at each position, the share that came true; and what a guess took its drafter."""
    drafted, accepted, draft_ns = [], [], 0
    for report in reports:
        for drafter in report["drafters"]:
            draft_ns += drafter["draft_ns"]
            for counts, of in ((drafted, drafter["drafted_at"]), (accepted, drafter["accepted_at"])):
                counts += [0] * (len(of) - len(counts))
                for depth, count in enumerate(of):
                    counts[depth] += count
    accepted += [0] * (len(drafted) - len(accepted))
    # How often a position is reached falls with it.
    shares, most = [], 1.0
    for d, a in zip(drafted, accepted):
        if d == 0:
            break
        most = min(most, a / d)
        shares.append(most)
    return shares, draft_ns / max(sum(drafted), 1)


def ideal(reports, steps):
    """Speed over plain decoding of chains of the best one length, and that length: (1.0, 0) where none is better."""
    shares, draft_ns = acceptance(reports)
    times = time_by_rows(steps)
    plain = rows_ns(times, 1)
    best = (1.0, 0)
    tokens = 1.0
    for length, share in enumerate(shares, 1):
        tokens += share
        ns = rows_ns(times, 1 + length)
        if plain is None or ns is None:
            break
        best = max(best, (tokens * plain / (ns + length * draft_ns), length))
    return best


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
            ratios, rates, counts, steps = [], [], [], []
            # Of plain decoding; each drafter's run has a fresh one.
            scheduler = headrace.Scheduler(model)
            temperature = TEMPERATURE.get(kind, 0.0)
            for number, prompt in enumerate(PROMPTS[kind]):
                generate(scheduler, prompt, 8, "off", temperature)  # the prompt is in the cache from here on
                for _ in range(arguments.rounds):
                    expected, plain, _ = generate(scheduler, prompt, arguments.tokens, "off", temperature, steps)
                    fresh = headrace.Scheduler(model, options={"scheduler.drafter": drafter})  # knows nothing of the answer yet
                    generate(fresh, prompt, 8, "off", temperature)
                    got, rate, report = generate(fresh, prompt, arguments.tokens, drafter, temperature, steps)
                    if got != expected:
                        sys.exit(f"{kind} {number}: {drafter} changed the tokens")
                    ratios.append(rate / plain)
                    rates.append((plain, rate))
                    counts.append(report)
            drafted, accepted = (sum(report[what] for report in counts) for what in ("drafted", "accepted"))
            shares, draft_ns = acceptance(counts)
            most, length = ideal(counts, steps)
            times = time_by_rows(steps)
            results[f"{kind}/{drafter}"] = {"ratios": ratios, "rates": rates, "reports": counts, "acceptance": shares,
                                            "ns_per_guess": draft_ns, "ns_by_rows": times,
                                            "ideal": {"ratio": most, "length": length}}
            print(f"{kind:6} {drafter:8} {statistics.median(r for _, r in rates):7.1f} tokens/s, "
                  f"{statistics.median(ratios):.2f} of plain ({min(ratios):.2f} to {max(ratios):.2f}), "
                  f"{drafted} drafted, {accepted} accepted; ideal {most:.2f} with {length} guesses", flush=True)
            print("       accepted by position: " + " ".join(f"{share:.2f}" for share in shares[:8]) +
                  "; ms by rows: " + " ".join(f"{rows}:{ns / 1e6:.1f}" for rows, ns in times.items() if rows <= 16), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
