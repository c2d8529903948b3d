"""ik_llama.cpp's turns, by its llama-bench, which is started for each of them and loads the file anew.

It draws tokens of its own at random instead of reading logits (a little less work than the others have) and is asked for run-time
repacking. Each test is repeated within the process and the last repetition counts, so that no buffer is touched for the first time.
"""
import json
import subprocess

REPETITIONS = 2


class IkBench:
    def __init__(self, settings):
        self.settings = settings
        self.vocab_size = None  # it draws the tokens itself
        self.version = self.bench(["-p", "1", "-n", "0", "-r", "1"])[0]["build_commit"]

    def bench(self, tests):
        command = [self.settings.ik_bench, "-m", self.settings.model, "-t", str(self.settings.threads), "-rtr", "1", "-o", "json"]
        done = subprocess.run(command + tests, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"llama-bench ended with status {done.returncode}: {done.stderr.strip()[-400:]}")
        return json.loads(done.stdout)

    def turn(self, tokens, count):
        length = len(tokens)
        tests = self.bench(["-p", str(length), "-n", "0", "-gp", f"{length},{count}", "-r", str(REPETITIONS), "-ub",
                            str(max(512, length))])
        prefill, decode = (test["samples_ns"][-1] / 1e9 for test in tests)
        return prefill, decode
