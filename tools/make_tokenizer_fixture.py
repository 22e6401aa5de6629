#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizer/: tiny tokenizers trained by Hugging Face tokenizers, and the ids it gives for hard texts.

    python3 tools/make_tokenizer_fixture.py          (tokenizers 0.23)

NAME.json is a tokenizer.json; NAME.cases holds one case per line: the text in hex, a space, the ids separated by commas. Special tokens in the
texts are parsed. `ignore` is `llama3` with ignore_merges and every third merge left out, so that the flag matters; `strip` is `llama3` with
added tokens that take white space with them, overlap each other and stand in each other's way.
"""
import json
import pathlib
import random
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = (
    "In the beginning was the word, and the word was with them; there they weren't. She said: I'll go, you'd stay, they've left!\n\n"
    "for (int i = 0; i < 1234567; i++) {\n\t\tsum += values[i];\r\n}   // the end\n"
    "Привет, мир! Это слово. 今天天气很好。今天很冷。 καλημέρα κόσμε — naïve café, ÅÄÖ, e\u0301 \U0001f600\U0001f601 aaaaaaaaaa\n"
)
SPECIAL = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "'s", "'S", "'\u017f", "'LL", "'ve", "'",
           "1", "2345", "\u0661", "\u216b", ".", "...", "!\n\n", "<|endoftext|>", "<|end|>", "<|e", "<tool>", "<", "\x00", "\u0301", "é"]
STRIP = [("<l>", True, False), ("<r>", False, True), ("<lr>", True, True), ("  ", False, False), ("\n<r>", False, False), ("<l><r>", False, False)]


def build(split, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    if split == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([CORPUS] * 2, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|end|>", "<|end|><"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("   ", normalized=False)])
    return tokenizer


def build_strip(text):
    tokenizer = Tokenizer.from_str(text)
    tokenizer.add_special_tokens([AddedToken(t, lstrip=l, rstrip=r, normalized=i % 2 == 1) for i, (t, l, r) in enumerate(STRIP)])
    tokenizer.add_tokens([AddedToken("<p>", lstrip=True, rstrip=True, normalized=False), AddedToken("<q>", lstrip=True, normalized=True)])
    return tokenizer.to_str()


def text_of(rng, special=SPECIAL):
    parts = []
    for _ in range(rng.randrange(0, 12)):
        kind = rng.randrange(4)
        if kind == 0:
            at = rng.randrange(len(CORPUS))
            parts.append(CORPUS[at : at + rng.randrange(1, 40)])
        elif kind == 1:
            parts.append(chr(rng.choice([rng.randrange(0x20, 0x7F), rng.randrange(0xA0, 0xD800), rng.randrange(0xE000, 0x20000)])))
        else:
            parts.append(rng.choice(special))
    return "".join(parts)


def write(folder, name, text, special=SPECIAL):
    tokenizer = Tokenizer.from_str(text)
    rng = random.Random(name)
    lines = []
    for _ in range(50):
        case = text_of(rng, special)
        ids = tokenizer.encode(case, add_special_tokens=False).ids
        lines.append(case.encode().hex() + " " + ",".join(map(str, ids)) + "\n")
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    (folder / f"{name}.cases").write_text("".join(lines))


def main():
    folder = pathlib.Path(__file__).resolve().parent.parent / "tests/fixtures/tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("gpt2", "llama3"):
        write(folder, split, build(split, 340).to_str())
    ignore = json.loads((folder / "llama3.json").read_text(encoding="utf-8"))
    ignore["model"]["ignore_merges"] = True
    ignore["model"]["merges"] = [" ".join(m) for i, m in enumerate(ignore["model"]["merges"]) if i % 3]
    write(folder, "ignore", json.dumps(ignore, ensure_ascii=False))
    strip = [t for t, _, _ in STRIP] + ["<p>", "<q>", " ", "\n", "\u3000", "  \n ", "a", "<", "\u2003", "\u200b"]
    write(folder, "strip", build_strip(build("llama3", 340).to_str()), strip)


if __name__ == "__main__":
    main()
