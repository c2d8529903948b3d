"""Headrace's turns, by its Python module's Scheduler."""
import sys
import time


class Headrace:
    def __init__(self, settings):
        sys.path.insert(0, settings.headrace_path)
        import headrace
        self.version = headrace.version()
        self.module, self.settings = headrace, settings
        self.model = headrace.Model.load(settings.model, threads=settings.threads, isa=settings.isa)
        self.vocab_size = self.model.info["vocab_size"]
        self.sequences = 0
        self.prepare(1)

    def prepare(self, sequences):
        """A scheduler with room for so many sequences, whose prompts all fit into one step."""
        if sequences == self.sequences:
            return
        self.sequences = sequences
        room = sequences * (self.settings.prompt_tokens + self.settings.gen_tokens + 64)
        self.scheduler = self.module.Scheduler(
            self.model, prefix_index=False, max_tokens=room, threads=self.settings.threads, max_num_seqs=sequences,
            max_num_batched_tokens=max(512, sequences * self.settings.prompt_tokens))

    def batch(self, prompts, count):
        """Seconds of `count` steps, in each of which every sequence gets a token."""
        self.prepare(len(prompts))
        ids = [self.scheduler.submit(prompt, max_tokens=count + 1, ignore_eos=True) for prompt in prompts]
        self.scheduler.step()
        if self.scheduler.stats["num_running"] != len(prompts):
            raise RuntimeError("not every sequence started in the first step")
        start = time.perf_counter()
        for _ in range(count):
            self.scheduler.step()
        seconds = time.perf_counter() - start
        for request in ids:
            drawn = 0
            while True:
                event = self.scheduler.next_event(request)
                drawn += len(event["tokens"])
                if event["is_last"]:
                    break
            if drawn != count + 1:
                raise RuntimeError(f"a sequence got {drawn} tokens in {count + 1} steps")
        return seconds

    def turn(self, tokens, count):
        output = self.scheduler.generate(tokens, max_tokens=count + 1, ignore_eos=True)
        prefill = output.usage["first_token_ns"] / 1e9
        return prefill, output.usage["total_ns"] / 1e9 - prefill
