"""What a finished generation or transcription looks like."""

from dataclasses import dataclass, field


@dataclass
class Output:
    """One sample of a request.

    logprobs: natural log of each token's probability, None unless asked for; top_logprobs: for each token the most
    likely ones as (token id, logprob), highest first. prompt_logprobs and prompt_top_logprobs are the same for the
    prompt's tokens; nothing comes before the first, whose logprob is 0. hidden_states, where layers were asked for: arrays
    [layers, rows, hidden_size] of rows that follow each other; those of the prompt are the first output's alone.
    speculation: what became of guesses at its tokens.
    """

    text: str = ""
    tokens: list = field(default_factory=list)
    finish_reason: str = ""
    logprobs: list = None
    top_logprobs: list = None
    prompt_logprobs: list = None
    prompt_top_logprobs: list = None
    hidden_states: list = None
    usage: dict = field(default_factory=dict)
    speculation: dict = field(default_factory=dict)


@dataclass
class Segment:
    """A stretch of speech: start and end in seconds, tokens with those of times, text without."""

    start: float
    end: float
    text: str
    tokens: list


@dataclass
class Transcript:
    """What was said; language is "" where it is not known."""

    language: str
    segments: list

    @property
    def text(self):
        return "".join(segment.text for segment in self.segments)
