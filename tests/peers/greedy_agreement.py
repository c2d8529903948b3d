"""Greedy continuations of Headrace and llama.cpp from the same token ids: how many of ten prompts agree.

    PYTHONPATH=build/release/python python greedy_agreement.py model.gguf [--tokens 64] [--threads 2]
At a first difference both engines' two highest logits are printed: a near-tie or not.
"""

import argparse

import headrace
from llamacpp import LlamaCpp

PROMPTS = (
    "The capital of France is", "def fibonacci(n):", "Once upon a time, in a small village,", "Water boils at",
    "The three primary colours are", "import numpy as np\n", "To be or not to be,", "In 1969, the first human",
    "The quick brown fox", "A recipe for bread needs",
)


def top2(logits):
    order = logits.argsort()[-2:][::-1]
    return ", ".join(f"{int(i)}: {float(logits[i]):.4f}" for i in order)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    peer = LlamaCpp(arguments.model, arguments.threads)
    model = headrace.Model.load(arguments.model, threads=arguments.threads)
    agreeing = 0
    for prompt in PROMPTS:
        ids = model.tokenizer.encode(prompt)
        session = headrace.Session(model, max_tokens=1024)
        peer.reset()
        ours, theirs = session.evaluate(ids)[-1], peer.decode(ids)
        for step in range(arguments.tokens):
            token = int(ours.argmax())
            if token != int(theirs.argmax()):
                print(f"{prompt!r}: differs at token {step}: headrace {top2(ours)}; llama.cpp {top2(theirs)}")
                break
            ours, theirs = session.evaluate([token])[-1], peer.decode([token])
        else:
            agreeing += 1
    print(f"{agreeing} of {len(PROMPTS)} prompts agree over {arguments.tokens} tokens")


if __name__ == "__main__":
    main()
