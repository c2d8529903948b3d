"""llama.cpp's turns, by llama-cpp-python's low-level calls.

Its defaults: run-time repacking, flash attention as it chooses, F16 keys and values; batch and micro-batch of the prompt's size.
"""
import time

import llama_cpp as lib


class LlamaCpp:
    def __init__(self, settings):
        self.version = lib.__version__
        self.silence = lib.llama_log_callback(lambda *_: None)  # kept: ctypes does not
        lib.llama_log_set(self.silence, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(settings.model.encode(), lib.llama_model_default_params())
        if not self.model:
            raise RuntimeError("llama.cpp does not load the file")
        self.settings, self.sequences = settings, 0
        self.prepare(1)
        self.vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(self.sampler, lib.llama_sampler_init_greedy())

    def prepare(self, sequences):
        """A context with room for so many sequences."""
        if sequences == self.sequences:
            return
        settings = self.settings
        if self.sequences:
            lib.llama_free(self.context)
        self.sequences = sequences
        params = lib.llama_context_default_params()
        # Streams of the cache are multiples of 256 tokens.
        room = settings.prompt_tokens + settings.gen_tokens + 64
        params.n_ctx = room if sequences == 1 else sequences * (-(-room // 256) * 256)
        params.n_seq_max = sequences
        params.kv_unified = settings.kv_unified
        params.n_batch = params.n_ubatch = max(512, sequences * settings.prompt_tokens)
        params.n_threads = params.n_threads_batch = settings.threads
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp made no context of {sequences} sequences")

    def run(self, batch, size):
        batch.n_tokens = size
        if lib.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def batch(self, prompts, count):
        self.prepare(len(prompts))
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        length = len(prompts[0])
        batch = lib.llama_batch_init(len(prompts) * length, 0, 1)
        row, wanted = 0, []
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                batch.token[row], batch.pos[row] = token, position
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
                batch.logits[row] = position == length - 1
                row += 1
            wanted.append(row - 1)
        self.run(batch, row)
        tokens = [lib.llama_sampler_sample(self.sampler, self.context, index) for index in wanted]
        rows = range(len(prompts))
        for sequence in rows:
            batch.n_seq_id[sequence], batch.seq_id[sequence][0], batch.logits[sequence] = 1, sequence, True
        start = time.perf_counter()
        for step in range(count):
            for sequence in rows:
                batch.token[sequence], batch.pos[sequence] = tokens[sequence], length + step
            self.run(batch, len(prompts))
            tokens = [lib.llama_sampler_sample(self.sampler, self.context, index) for index in rows]
        seconds = time.perf_counter() - start
        lib.llama_batch_free(batch)
        return seconds

    def decode(self, tokens):
        array = (lib.llama_token * len(tokens))(*tokens)
        if lib.llama_decode(self.context, lib.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")
        return lib.llama_sampler_sample(self.sampler, self.context, -1)

    def turn(self, tokens, count):
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        start = time.perf_counter()
        token = self.decode(tokens)
        middle = time.perf_counter()
        for _ in range(count):
            token = self.decode([token])
        return middle - start, time.perf_counter() - middle
