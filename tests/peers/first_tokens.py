"""Loss of the kernels over a sequence's first tokens, where a few channels of the hidden state are at their largest.

    PYTHONPATH=build/release/python python first_tokens.py model.gguf --text FILE [--sequences 64] [--peer]
KL to the same weights in float32 (exact=True, float32 keys and values) at each of the first four tokens of short
sequences cut from the text, in nats. --peer measures llama.cpp against the same reference.
"""

import argparse

import numpy

import headrace

FIRST = 4


def log_softmax(logits):
    shifted = logits.astype(numpy.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=-1, keepdims=True))


def kl(reference, logits):
    """[tokens] KL of each row of logits from the reference's, both [tokens, vocab_size]."""
    truth, other = log_softmax(reference), log_softmax(logits)
    return (numpy.exp(truth) * (truth - other)).sum(axis=-1)


def report(name, losses):
    losses = numpy.array(losses)
    positions = ", ".join(f"{mean:.2e}" for mean in losses.mean(axis=0))
    error = losses.mean(axis=1).std(ddof=1) / len(losses) ** 0.5
    print(f"{name}: mean KL {losses.mean():.2e} +- {error:.1e} over the first {FIRST} tokens ({positions}), "
          f"largest {losses.max():.2e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", action="store_true")
    arguments = parser.parse_args()
    exact = headrace.Model.load(arguments.model, threads=arguments.threads, exact=True)
    with open(arguments.text, encoding="utf-8") as file:
        text = file.read()
    step = len(text) // arguments.sequences
    sequences = [exact.tokenizer.encode(text[i * step:i * step + 200])[:FIRST] for i in range(arguments.sequences)]
    truths = [exact.logits(ids, kv_dtype="f32") for ids in sequences]
    del exact
    model = headrace.Model.load(arguments.model, threads=arguments.threads)
    report("headrace", [kl(truth, model.logits(ids)) for truth, ids in zip(truths, sequences)])
    if not arguments.peer:
        return
    del model
    from llamacpp import LlamaCpp

    peer = LlamaCpp(arguments.model, arguments.threads)
    losses = []
    for truth, ids in zip(truths, sequences):
        peer.reset()
        losses.append(kl(truth, numpy.stack([peer.decode([token]).copy() for token in ids])))
    report("llama.cpp", losses)


if __name__ == "__main__":
    main()
