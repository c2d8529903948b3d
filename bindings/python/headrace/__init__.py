"""Headrace: large-language-model inference inside the program that uses it.

    import headrace
    model = headrace.Model.load("model.gguf")
    scheduler = headrace.Scheduler(model)
    for piece in scheduler.stream("Once upon a time", max_tokens=64):
        print(piece, end="", flush=True)

Failures raise headrace.Error with .code, .message and .place. The GIL is released while the engine works; one scheduler
may be used from several threads, sessions from one thread at a time.
"""

from ._headrace import (
    Adapter,
    ChatTemplate,
    Error,
    KVCache,
    Model,
    Prompt,
    Scheduler,
    Session,
    Tokenizer,
    inspect,
    options,
    system,
    version,
)
from ._generation import Output, Segment, Transcript

__all__ = [
    "Adapter",
    "ChatTemplate",
    "Error",
    "KVCache",
    "Model",
    "Output",
    "Prompt",
    "Scheduler",
    "Segment",
    "Session",
    "Tokenizer",
    "Transcript",
    "inspect",
    "options",
    "system",
    "version",
]
__version__ = version()
