"""Loss of Headrace's and llama.cpp's default kernels against the same weights in float32, measured alike.

    PYTHONPATH=build/release/python python window_loss.py model.gguf --text FILE [--tokens 4096] [--threads 2]
As `headrace eval`: windows of 512 tokens, each from an empty cache; KL of the second half's positions in nats, with the
standard error of the mean, and how often the likeliest token is the same.
"""

import argparse

import numpy

import headrace
from first_tokens import kl

WINDOW = 512


class Loss:
    def __init__(self, name):
        self.name, self.kl, self.same = name, [], []

    def add(self, truth, logits):
        self.kl.append(kl(truth, logits))
        self.same.append(truth.argmax(axis=-1) == logits.argmax(axis=-1))

    def report(self):
        losses = numpy.concatenate(self.kl)
        error = losses.std(ddof=1) / len(losses) ** 0.5
        same = 100 * numpy.concatenate(self.same).mean()
        print(f"{self.name}: KL {losses.mean():.2e} +- {error:.1e} over {len(losses)} positions, {same:.1f} % of top tokens")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    from llamacpp import LlamaCpp

    exact = headrace.Model.load(arguments.model, threads=arguments.threads, exact=True)
    model = headrace.Model.load(arguments.model, threads=arguments.threads)
    peer = LlamaCpp(arguments.model, arguments.threads)
    with open(arguments.text, encoding="utf-8") as file:
        ids = model.tokenizer.encode(file.read())[:arguments.tokens]
    ours, theirs = Loss("headrace"), Loss("llama.cpp")
    half = WINDOW // 2
    for start in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = ids[start:start + WINDOW]
        truth = exact.logits(window, kv_dtype="f32")[half:-1]
        ours.add(truth, model.logits(window)[half:-1])
        peer.reset()
        theirs.add(truth, peer.decode_all(window)[half:-1])
    ours.report()
    theirs.report()


if __name__ == "__main__":
    main()
