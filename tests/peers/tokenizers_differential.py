"""Compares Headrace's tokenizer with the `tokenizers` package on random Unicode strings.

usage: tokenizers_differential.py [--count N] [--seed S] [--tool PROGRAM] TOKENIZER_JSON...

Ids (with special tokens) and the text decoded from them must be equal. Without --tool the Python module `headrace`
is asked (`headrace.Tokenizer.load(path)`); a tool reads lines of hexadecimal UTF-8 and writes "ids|hex of text".
"""
import argparse
import random
import subprocess
import sys

import tokenizers

EMOJI = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🇯🇵", "👍🏽", "👩🏿‍🚀", "🦙", "❤️", "1️⃣", "🇩", "🏽", "\u200d"]
MARKS = ["\u0301", "\u0323", "\u0308", "\u20dd", "\u0338", "\u3099", "\u0e33", "\u0f71", "\u1ab0"]
PHRASES = ["'s", "'T", "'ſ", "'LL", "'re", "don't", "I'M", " do not", " n't", "->", "(x):\n", "4 ½ months", "1234567",
           "  ", "   ", "\n    ", "\r\n", "\t\t", " .", " ?", "<0x0A>", "▁", "▁▁", "Ġ", "##", "\u2029 \ua000", "ß", "İ", "ﬁ",
           "Å", "한국어", "日本語", "中文", "שלום", "مرحبا", "नमस्ते", "ไทย", "\u180e", "\u0085", "\u00a0", "\u200b", "\ufeff",
           "\u00ad", "\u2028", "é", "e\u0301", "Ⅷ", "²", "①", "ﷺ", "ﾊﾟ", "K", "ʼn", "\u1e9b\u0323"]


def random_char(rng):
    kind = rng.randrange(12)
    if kind < 4:
        return chr(rng.randrange(0x20, 0x7F))
    if kind == 4:
        return chr(rng.randrange(0x00, 0x20))
    if kind == 5:
        return chr(rng.randrange(0x80, 0x250))
    if kind == 6:
        return rng.choice(MARKS)
    if kind == 7:
        return rng.choice(EMOJI)
    if kind == 8:
        return chr(rng.choice([rng.randrange(0x4E00, 0x9FFF), rng.randrange(0x3040, 0x30FF), rng.randrange(0xAC00, 0xD7A3)]))
    if kind == 9:
        return chr(rng.choice([rng.randrange(0x590, 0x700), rng.randrange(0x900, 0xDFF), rng.randrange(0x370, 0x530)]))
    if kind == 10:
        return chr(rng.choice([rng.randrange(0x2000, 0x2C00), rng.randrange(0x1D400, 0x1D800), rng.randrange(0x1F300, 0x1FA00)]))
    while True:
        code = rng.randrange(0x110000)
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def random_text(rng, specials):
    parts = []
    for _ in range(rng.randrange(1, 14)):
        kind = rng.randrange(10)
        if kind < 3:
            parts.append("".join(rng.choice("abcdeorstnTHEing  ") for _ in range(rng.randrange(1, 12))))
        elif kind < 5:
            parts.append(rng.choice(PHRASES))
        elif kind == 5 and specials:
            parts.append(rng.choice(specials))
        elif kind == 6:
            parts.append(rng.choice(" \n\t_0a-") * rng.randrange(1, 9))
        else:
            parts.append("".join(random_char(rng) for _ in range(rng.randrange(1, 6))))
    return "".join(parts)


def ask_tool(tool, path, texts):
    lines = "".join(text.encode().hex() + "\n" for text in texts)
    out = subprocess.run([tool, path], input=lines, capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        if line.startswith("E "):
            yield line, ""
            continue
        ids, text = line.split("|")
        yield [int(i) for i in ids.split()], bytes.fromhex(text).decode()


def ask_module(path, texts):
    import headrace

    tokenizer = headrace.Tokenizer.load(path)
    for text in texts:
        ids = list(tokenizer.encode(text, special=True, add_special=True))
        yield ids, tokenizer.decode(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", metavar="TOKENIZER_JSON")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tool")
    options = parser.parse_args()
    failures = 0
    for path in options.paths:
        reference = tokenizers.Tokenizer.from_file(path)
        reference.no_truncation()
        reference.no_padding()
        specials = [token.content for token in reference.get_added_tokens_decoder().values()]
        rng = random.Random(options.seed)
        texts = [random_text(rng, specials) for _ in range(options.count)]
        answers = ask_tool(options.tool, path, texts) if options.tool else ask_module(path, texts)
        wrong = 0
        for text, (ids, decoded) in zip(texts, answers, strict=True):
            expected = reference.encode(text).ids
            expected_text = reference.decode(expected, skip_special_tokens=False)
            if ids == expected and decoded == expected_text:
                continue
            wrong += 1
            if wrong <= 4:
                print(f"{path}: {text!r}\n  ids      {ids}\n  expected {expected}")
                if ids == expected:
                    print(f"  text     {decoded!r}\n  expected {expected_text!r}")
        print(f"{path}: {wrong} of {len(texts)} differ")
        failures += wrong
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
