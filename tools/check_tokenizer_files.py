#!/usr/bin/env python3
"""Compares the ids of `ingot tokenizer encode` with the reference library of each form of tokenizer file.

    pip install tokenizers==0.23.3 tiktoken==0.14.0 mistral-common && python3 tools/check_tokenizer_files.py INGOT [--merges DIR] [--ranks FILE] [TEXT...]

  tekken.json           the two files that come with mistral-common; reference: its Tekkenizer
  RoBERTa's, Whisper's  tokenizer.json as transformers makes it for them, from the merges of GPT-2 (DIR with encoder.json, vocab.bpe); reference:
                        tokenizers. Without --merges from a small training
  Whisper's rank file   multilingual.tiktoken of github.com/openai/whisper (FILE); reference: tiktoken

Each is read as it is, and after `ingot tokenizer import`. Texts: sentences of several languages, code, white space, random strings of all of Unicode,
and the lines of the TEXTs. Ends with "all equal" and status 0, or shows the first difference of each."""
import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile

import tiktoken
from mistral_common.tokens.tokenizers import tekken
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SENTENCES = [
    "The quick brown fox doesn't jump over 12,345 lazy dogs; it's 6:30 PM.", "Größe und Übermaß: Fußgängerübergänge kosten 3,50 €.",
    "L'été, où j'étais à l'hôtel, il n'y avait qu'un œuf.", "¿Qué año es? ¡El 2026, señor!", "В начале было Слово, и Слово было у Бога.",
    "Ἐν ἀρχῇ ἦν ὁ λόγος, καὶ ὁ λόγος ἦν πρὸς τὸν θεόν", "في البدء كان الكلمة، والكلمة كان عند الله.", "בראשית ברא אלהים את השמים ואת הארץ",
    "आदि में वचन था, और वचन परमेश्वर के साथ था।", "ในปฐมกาลพระวาทะดำรงอยู่แล้ว", "太初有道，道與神同在，道就是神。共１２３個。", "初めに言があった。カタカナとひらがな、漢字。",
    "태초에 말씀이 계시니라 이 말씀이 하나님과 함께", "Ban đầu có Ngôi Lời, Ngôi Lời ở cùng Đức Chúa Trời", "e\u0301 a\u0308 n\u0303 \u1100\u1161\u11a8 ﬁ ½ Ⅷ ²", "👩‍👩‍👧‍👦 🇩🇪🇫🇷 👍🏽 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "def f(x: int) -> int:\n    return [i**2 for i in range(x) if i % 3 == 0]  # squares\n", "#include <stdio.h>\nint main(void)\n{\n\tprintf(\"%d\\n\", 0x7fff);\n}\n",
    "SELECT a.id, COUNT(*) FROM t_1 AS a WHERE a.x <> 'don''t' GROUP BY 1;", "<div class=\"x\">&nbsp;</div><!-- html --></body>", "https://example.org/a/b?c=d&e=%20f#g",
    "   leading and trailing   ", "\n\n\n", "\t \r\n \u00a0\u2003\u3000 \n x", " ", "a", "'s 'S 'LL 're", "camelCaseHTTPServer2XML_snake_case-kebab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 20,
    "<s>not a special token</s> <|endoftext|> <mask> [INST] <|0.02|>", "\x00\x01\x7f\u0080\u200b\ufeff\u2028",
]


def random_text(r):
    pools = [range(32, 127), range(0x80, 0x250), range(0x370, 0x530), range(0x590, 0x700), range(0x900, 0xE80), range(0x3000, 0x3100),
             range(0x4E00, 0x9FFF), range(0xAC00, 0xD7A4), range(0x1F300, 0x1FAFF), range(0, 0x110000)]
    out = []
    while len(out) < r.randint(1, 60):
        pool = r.choice(pools)
        out += [chr(c) for c in (r.choice(pool) for _ in range(r.randint(1, 8))) if not 0xD800 <= c < 0xE000 and c not in (10, 13)]
        if r.random() < 0.5:
            out.append(r.choice([" ", "  ", "\t", "'s", "1", "12345", ".", "..", "/"]))
    return "".join(out)


def encode(ingot, tok, text):
    with tempfile.NamedTemporaryFile("wb", suffix=".txt") as f:
        f.write(text.encode())
        f.flush()
        run = subprocess.run([ingot, "tokenizer", "encode", tok, f.name, "--ids"], capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{tok}: {run.stderr}")
    return [int(x) for x in run.stdout.split()]


def compare(ingot, name, tok, texts, reference):
    """Of the file itself, and of what import makes of it."""
    bad = 0
    with tempfile.TemporaryDirectory() as d:
        run = subprocess.run([ingot, "tokenizer", "import", tok, d + "/tok"], capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(f"{name}: {run.stderr}")
        for text in texts:
            want = reference(text)
            for path in (tok, d + "/tok"):
                got = encode(ingot, path, text)
                if got != want and not bad:
                    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
                    print(f"{name}: {text[:200]!r}: id {at} of {os.path.basename(path)}: {got[at:at + 4]}, not {want[at:at + 4]}")
                bad += got != want
    print(f"{name:<28} {len(texts)} texts, {sum(len(t) for t in texts)} characters, {bad} differ")
    return bad


def byte_letters():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out = {b: chr(b) for b in keep}
    for i, b in enumerate(b for b in range(256) if b not in out):
        out[b] = chr(256 + i)
    return out


def gpt2_parts(merges_dir):
    """Tokens in the order of their ids, and merges, as letters."""
    if merges_dir:
        vocab = json.load(open(merges_dir + "/encoder.json", encoding="utf-8"))
        lines = open(merges_dir + "/vocab.bpe", encoding="utf-8").read().split("\n")
        return sorted((t for t in vocab if t != "<|endoftext|>"), key=vocab.get), [tuple(l.split()) for l in lines[1:] if l]
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(SENTENCES * 3, trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(t.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [tuple(m) for m in model["merges"]]


def roberta(tokens, merges):
    """As transformers converts RobertaTokenizer: fairseq's ids, which do not follow the merges."""
    order = tokens[:]
    random.Random(3).shuffle(order)
    names = ["<s>", "<pad>", "</s>", "<unk>"] + order + ["madeupword0000", "<mask>"]
    t = Tokenizer(models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    t.add_special_tokens([AddedToken(n, normalized=True, special=True) for n in names[:4]] + [AddedToken("<mask>", lstrip=True, special=True)])
    return t


def whisper(tokens, merges):
    """As transformers converts WhisperTokenizer: a token without bytes, special ones, and times, which are added but not special."""
    vocab = {n: i for i, n in enumerate(tokens + [""])}
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(n, normalized=False, special=True) for n in ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|notimestamps|>")])
    t.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>", normalized=False) for i in range(1501)])
    start, end = "<|startoftranscript|>", "<|endoftext|>"
    t.post_processor = processors.TemplateProcessing(single=f"{start} $A {end}", special_tokens=[(n, t.token_to_id(n)) for n in (start, end)])
    return t


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ingot"), p.add_argument("texts", nargs="*"), p.add_argument("--merges"), p.add_argument("--ranks")
    p.add_argument("--rounds", type=int, default=200), p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    r = random.Random(a.seed)
    texts = SENTENCES + [random_text(r) for _ in range(a.rounds)]
    for path in a.texts:
        text = open(path, encoding="utf-8", newline="").read()
        texts += [text[i:i + 20000] for i in range(0, len(text), 20000)]
    bad = 0
    for name in ("tekken_240718.json", "tekken_240911.json"):
        path = os.path.join(os.path.dirname(tekken.__file__), "..", "..", "data", name)
        reference = tekken.Tekkenizer.from_file(path)
        bad += compare(a.ingot, name, os.path.normpath(path), texts, lambda t: reference.encode(t, bos=False, eos=False))
    tokens, merges = gpt2_parts(a.merges)
    for name, make in (("RoBERTa's tokenizer.json", roberta), ("Whisper's tokenizer.json", whisper)):
        made = make(tokens, merges)
        made.encode_special_tokens = True  # specials are text, as without ingot's --specials
        with tempfile.TemporaryDirectory() as d:
            made.save(d + "/tokenizer.json")
            bad += compare(a.ingot, name, d + "/tokenizer.json", texts, lambda t: made.encode(t, add_special_tokens=False).ids)
    if a.ranks:
        ranks = {base64.b64decode(t): int(i) for t, i in (l.split() for l in open(a.ranks, encoding="ascii") if l.strip())}
        pattern = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
        reference = tiktoken.Encoding("whisper", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        bad += compare(a.ingot, "Whisper's rank file", a.ranks, texts, reference.encode)
    print("all equal" if not bad else f"{bad} differ")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
