"""CTranslate2's turns, by Generator, on a converted model (gguf_to_ctranslate2.py makes one of a GGUF file).

It has no CPU weights of fewer than 8 bits: the model is the same, its weights are larger than the file's. The first token's time
is that of the callback for it.
"""
import json
import pathlib
import time

import ctranslate2


class CTranslate2:
    def __init__(self, settings):
        self.version = ctranslate2.__version__
        folder = pathlib.Path(settings.ctranslate2_model)
        self.generator = ctranslate2.Generator(str(folder), device="cpu", inter_threads=1, intra_threads=settings.threads)
        self.version += f", {self.generator.compute_type}"
        self.tokens = json.loads((folder / "vocabulary.json").read_text())
        self.vocab_size = len(self.tokens)

    def turn(self, tokens, count):
        times = []

        def on_token(_):
            times.append(time.perf_counter())
            return False

        start = time.perf_counter()
        self.generator.generate_batch(
            [[self.tokens[token] for token in tokens]], max_length=count + 1, min_length=count + 1, sampling_topk=1,
            include_prompt_in_result=False, callback=on_token)
        if len(times) != count + 1:
            raise RuntimeError(f"{len(times)} tokens were generated, not {count + 1}")
        return times[0] - start, times[-1] - times[0]
