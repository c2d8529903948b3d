"""An engine in a process of its own: the parent's end of the pipe (Worker) and the child's loop.

The child is `python worker.py ENGINE SETTINGS`, where SETTINGS is a JSON object. It loads the model and answers with a line of
JSON, {"version": ..., "vocab_size": ...} or {"error": ...}; then every line is a request and is answered by a line:
{"tokens": [...], "count": n} with [seconds of the prefill, seconds of n tokens more], and {"prompts": [[...], ...], "count": n}
with the seconds of n steps that each give every sequence a token.
"""
import importlib
import json
import os
import subprocess
import sys
import types

# Engine -> its module and class. The modules are imported in the child only, whose interpreter has what they need.
ENGINES = {
    "headrace": ("headrace_turns", "Headrace"),
    "llama.cpp": ("peer_llamacpp", "LlamaCpp"),
    "OpenVINO GenAI": ("peer_openvino", "OpenVino"),
    "CTranslate2": ("peer_ctranslate2", "CTranslate2"),
    "ik_llama.cpp": ("peer_ik_bench", "IkBench"),
    "ik_llama.cpp (PyPI)": ("peer_ik_python", "IkPython"),
}


class EngineError(Exception):
    """An engine that is absent or that cannot do what was asked; the text says why."""


class Worker:
    """An engine's process. It answers one request at a time and waits on the pipe in between."""

    def __init__(self, engine, python, settings):
        self.engine = engine
        command = [python, __file__, engine, json.dumps(settings)]
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise EngineError(f"{python}: {error.strerror}") from error
        hello = self.read()
        self.version, self.vocab_size = hello["version"], hello["vocab_size"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise EngineError(f"its process ended early, with status {self.process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    # What libraries print goes to standard error, so that the parent reads answers only.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    module, name = ENGINES[sys.argv[1]]
    try:
        engine = getattr(importlib.import_module(module), name)(types.SimpleNamespace(**json.loads(sys.argv[2])))
        answer({"version": engine.version, "vocab_size": engine.vocab_size})
        for line in sys.stdin:
            request = json.loads(line)
            answer(engine.batch(request["prompts"], request["count"]) if "prompts" in request else
                   engine.turn(request["tokens"], request["count"]))
    except Exception as error:  # of whatever kind its library throws
        answer({"error": " ".join(f"{type(error).__name__}: {error}".split())})


if __name__ == "__main__":
    main()
