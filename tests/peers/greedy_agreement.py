"""Greedy continuations of Headrace and llama.cpp from the same token ids: how many of ten prompts agree.

    PYTHONPATH=build/release/python python greedy_agreement.py model.gguf [--tokens 64] [--threads 2]
At a first difference the two tokens are weighed by the same weights in float32 (Headrace with exact=True): the gap between
their logits there, and which engine's choice it shares. A gap under 0.5 nats is called a near-tie.
"""

import argparse

import headrace
from llamacpp import LlamaCpp

NEAR_TIE = 0.5
PROMPTS = (
    "The capital of France is", "def fibonacci(n):", "Once upon a time, in a small village,", "Water boils at",
    "The three primary colours are", "import numpy as np\n", "To be or not to be,", "In 1969, the first human",
    "The quick brown fox", "A recipe for bread needs",
)


def gap(logits, ours, theirs):
    """How far our token's logit lies above theirs."""
    return float(logits[ours]) - float(logits[theirs])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    peer = LlamaCpp(arguments.model, arguments.threads)
    model = headrace.Model.load(arguments.model, threads=arguments.threads)
    exact = headrace.Model.load(arguments.model, threads=arguments.threads, exact=True)
    agreeing = near = ours_exact = 0
    for prompt in PROMPTS:
        ids = model.tokenizer.encode(prompt)
        session = headrace.Session(model, max_tokens=1024)
        peer.reset()
        ours, theirs = session.evaluate(ids)[-1], peer.decode(ids)
        for step in range(arguments.tokens):
            token, other = int(ours.argmax()), int(theirs.argmax())
            if token != other:
                truth = exact.logits(session.tokens, kv_dtype="f32")[-1]
                exact_gap = gap(truth, token, other)
                near += abs(exact_gap) < NEAR_TIE
                ours_exact += int(truth.argmax()) == token
                print(f"{prompt!r}: differs at token {step}, {token} against {other}: the first above the second by "
                      f"{gap(ours, token, other):.3f} in headrace, {gap(theirs, token, other):.3f} in llama.cpp, "
                      f"{exact_gap:.3f} in float32")
                break
            ours, theirs = session.evaluate([token])[-1], peer.decode([token])
        else:
            agreeing += 1
    different = len(PROMPTS) - agreeing
    print(f"{agreeing} of {len(PROMPTS)} prompts agree over {arguments.tokens} tokens; of {different} differences {near} are "
          f"near-ties, and in {ours_exact} headrace chose as float32 does")


if __name__ == "__main__":
    main()
