"""ik_llama.cpp's turns, by the low-level calls of ik-llama-cpp-python, whose wheel has AVX2 code.

Its defaults and run-time repacking; batch and micro-batch of the prompt's size. Tokens are drawn from its logits here.
"""
import importlib.metadata
import time

import ik_llama_cpp._ctypes_api as lib
import numpy as np


class IkPython:
    def __init__(self, settings):
        self.version = importlib.metadata.version("ik-llama-cpp-python")
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.repack_tensors = True
        self.model = lib.llama_model_load_from_file(settings.model.encode(), params)
        if not self.model:
            raise RuntimeError("ik_llama.cpp does not load the file")
        self.vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        params = lib.llama_context_default_params()
        params.n_ctx = settings.prompt_tokens + settings.gen_tokens + 64
        params.n_batch = params.n_ubatch = max(512, settings.prompt_tokens)
        params.n_threads = params.n_threads_batch = settings.threads
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("ik_llama.cpp made no context")
        self.batch = lib.llama_batch_init(settings.prompt_tokens, 0, 1)

    def decode(self, tokens, position):
        """Appends tokens; the likeliest next one."""
        batch, last = self.batch, len(tokens) - 1
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row] = token, position + row
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
            batch.logits[row] = row == last
        if lib.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        return int(np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, last), (self.vocab_size,)).argmax())

    def turn(self, tokens, count):
        lib.llama_kv_cache_clear(self.context)
        start = time.perf_counter()
        token = self.decode(tokens, 0)
        middle = time.perf_counter()
        for step in range(count):
            token = self.decode([token], len(tokens) + step)
        return middle - start, time.perf_counter() - middle
