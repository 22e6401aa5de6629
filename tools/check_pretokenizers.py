#!/usr/bin/env python3
"""Compares ingot's pretokenizers with Hugging Face tokenizers and tiktoken, and its Unicode tables with theirs.

    pip install tokenizers==0.23.3 tiktoken==0.14.0 unicodedata2==16.0.0 && python3 tools/check_pretokenizers.py [--rounds N] [FILE...]

Needs a C compiler and jansson: the C files of src/data are compiled into a library for ctypes. For every name, the pretokenizer's own JSON is read by
tokenizers, and both split random strings, every code point in several neighbourhoods, and the lines of the FILEs. Chains of random parts are compared
the same way. tiktoken splits by the patterns that it has itself. Ends with "all equal" and status 0, or shows the first difference of each kind.
"""
import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile

import tiktoken
import tiktoken_ext.openai_public as public
import tokenizers
import unicodedata2 as ucd
from tokenizers import Regex, normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
SHIM = r"""
#include "data/tokenizer/pretokenizer.h"
#include "data/text/unicode.h"
#include <jansson.h>
#include <string.h>
static struct pretokenizer p;
static struct pretokenizer_room room;
int shim_named(const char *name) { return pretokenizer_named(&p, name); }
const char *shim_message(void) { return status_message(); }
int shim_from_json(const char *normalizer, const char *pre_tokenizer)
{
    json_t *n = json_loads(normalizer, JSON_DECODE_ANY, NULL), *t = json_loads(pre_tokenizer, JSON_DECODE_ANY, NULL);
    int st = pretokenizer_from_json(&p, n, t);
    json_decref(n);
    json_decref(t);
    return st;
}
char *shim_to_json(void)
{
    json_t *n, *t;
    if (pretokenizer_to_json(&p, &n, &t) != STATUS_OK) return NULL;
    json_t *both = json_pack("{s:o, s:o}", "normalizer", n, "pre_tokenizer", t);
    char *text = json_dumps(both, 0);
    json_decref(both);
    return text;
}
const char *shim_normalize(const char *text, size_t bytes, size_t *out_bytes)
{
    const char *out;
    return pretokenizer_normalize(&p, text, bytes, &room, &out, out_bytes) == STATUS_OK ? out : NULL;
}
long shim_scan(const char *text, size_t bytes, size_t *ends)
{
    struct pretokenizer_cursor c = pretokenizer_begin(text, bytes);
    long count = 0;
    for (int n; (n = pretokenizer_scan(&p, &c, ends + count, 64)) > 0;) count += n;
    return count;
}
int shim_class(unsigned code) { return unicode_class_of(code); }
"""


def build():
    folder = tempfile.mkdtemp()
    source, library = os.path.join(folder, "shim.c"), os.path.join(folder, "shim.so")
    with open(source, "w") as f:
        f.write(SHIM)
    files = [source] + [f"src/data/{n}.c" for n in "tokenizer/pretokenizer tokenizer/pretokenizer_json tokenizer/split tokenizer/split_stage text/nfc text/unicode text/unicode_nfc text/array".split()]
    files += [f"src/base/{n}.c" for n in "status text utf8 scope clock".split()]
    subprocess.run(["cc", "-std=gnu17", "-O2", "-march=x86-64-v3", "-shared", "-fPIC", "-D_GNU_SOURCE", "-Isrc", "-o", library, *files, "-ljansson", "-lm"], check=True)
    lib = ctypes.CDLL(library)
    lib.shim_message.restype = lib.shim_to_json.restype = ctypes.c_char_p
    lib.shim_normalize.restype = ctypes.c_void_p
    lib.shim_normalize.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
    lib.shim_scan.restype = ctypes.c_long
    lib.shim_scan.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
    return lib


class Check:
    def __init__(self):
        self.lib, self.differences, self.shown = build(), 0, set()

    def pieces(self, text):
        data = text.encode()
        ends = (ctypes.c_size_t * (len(data) + 64))()
        count = self.lib.shim_scan(data, len(data), ends)
        starts = [0] + list(ends[: count - 1]) if count else []
        return [data[a:b].decode() for a, b in zip(starts, ends[:count])]

    def normalize(self, text):
        data, n = text.encode(), ctypes.c_size_t()
        return ctypes.string_at(self.lib.shim_normalize(data, len(data), ctypes.byref(n)), n.value).decode()

    def equal(self, what, text, got, want):
        if got == want:
            return
        self.differences += 1
        if what in self.shown:
            return
        self.shown.add(what)
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        print(f"DIFFERENT {what}: from piece {at}: ingot {got[at:at+5]!r}, other {want[at:at+5]!r}, text {text[:60]!r}")


def classes(check):
    """Every class of the table against the regex engine of tokenizers, and of tiktoken."""
    text = "".join(map(chr, CODES))
    mine = {}
    for c in CODES:
        mine.setdefault(check.lib.shim_class(c), set()).add(c)
    bytes_only = {bytes([i]): i for i in range(256)}
    for number, pattern in enumerate(["", r"\s", r"\p{N}", r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{P}", r"\p{S}"]):
        if not pattern:
            continue
        theirs = set(CODES)
        for piece, _ in pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(text):
            theirs -= set(map(ord, piece))
        check.equal(f"class {pattern} (tokenizers)", "", sorted(mine[number]), sorted(theirs))
        encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=bytes_only, special_tokens={})
        theirs = set(map(ord, encoding.decode_bytes(encoding.encode_ordinary(text)).decode()))
        check.equal(f"class {pattern} (tiktoken)", "", sorted(mine[number]), sorted(theirs))


ALPHABET = [ord(c) for c in " \n\r\t'.,/$-_^!\"07aBsStTlLrRevEVmMdD"] + [
    0x301, 0x4E2D, 1, 0x3000, 0x430, 0x410, 0x1C5, 0x2B0, 0x17F, 0x661, 0x30FB, 0x3042, 0xA0, 0x85, 0x2028, 0x180E, 0x200B, 0xFEFF, 0xBD, 0x216B, 0x20AC,
    0x903, 0x1F600, 0xAC00, 0xE9, 0xC9, 0x9FA5, 0x9FA6, 0x3040, 0x309F, 0x30A0, 0x3100, 0x1D7D8, 0x20000, 0xE000, 0x378, 0x166D, 0x111C9, 0x61D, 0x11DE0,
    0x16FF4, 0x10D4E, 0x327, 0x93C, 0x9BE, 0x1100, 0x1161, 0x11A8, 0xAC01, 0x340, 0x2126, 0x212A, 0x149, 0xFB06, 0x1E9E]


def random_texts(rounds, seed):
    r = random.Random(seed)
    for i in range(rounds):
        letters = ALPHABET if i % 3 else ALPHABET[: r.randint(3, 60)]
        if i % 5 == 0:
            letters = letters + [r.choice(CODES) for _ in range(20)]
        yield "".join(chr(r.choice(letters)) for _ in range(r.choice([1, 2, 3, 5, 9, 30, 200])))


def neighbourhoods():
    """Every code point but the planes that nothing is assigned in; classes() has seen those."""
    codes = [c for c in CODES if c < 0x33000 or 0xE0000 <= c < 0xE0400 or c >= 0x10FF00]
    for frame in ("\nx{}\n", "a{}a", " {}", "B{}BB ", "{0}{0} ", "!{}", "7{} ", "{}"):
        for start in range(0, len(codes), 4096):
            yield "".join(frame.format(chr(c)) for c in codes[start : start + 4096])


def hf_pieces(pre_tokenizer, text):
    """The text of the pieces: ByteLevel shows bytes as letters, so the offsets are used."""
    return [text[a:b] for _, (a, b) in pre_tokenizer.pre_tokenize_str(text)]


def from_json(spec):
    root = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": spec["normalizer"], "pre_tokenizer": spec["pre_tokenizer"],
            "post_processor": None, "decoder": None, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    t = tokenizers.Tokenizer.from_str(json.dumps(root))
    return t.normalizer, t.pre_tokenizer


def compare(check, what, texts):
    normalizer, pre_tokenizer = from_json(json.loads(check.lib.shim_to_json()))
    for text in texts:
        normal = normalizer.normalize_str(text) if normalizer else text
        if normalizer:
            check.equal(f"{what}: normalizer", text, check.normalize(text), normal)
        check.equal(what, normal, check.pieces(normal), hf_pieces(pre_tokenizer, normal))


REGEXES = [r"\p{N}", r"\p{N}+", r"\p{N}{1,3}", "[0-9]", "[0-9][0-9][0-9]", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", "[一-龥぀-ゟ゠-ヿ]+"]
BEHAVIORS = ["Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"]


def random_chain(r):
    parts = []
    for _ in range(r.randint(0, 3)):
        kind = r.randrange(5)
        if kind == 0:
            parts.append({"type": "Digits", "individual_digits": r.random() < 0.5})
        elif kind == 1:
            parts.append({"type": "Punctuation", "behavior": r.choice(BEHAVIORS)})
        else:
            pattern = {"Regex": r.choice(REGEXES)} if kind < 4 else {"String": r.choice([" ", "a", "..", "s ", "中", "\n"])}
            parts.append({"type": "Split", "pattern": pattern, "behavior": r.choice(BEHAVIORS), "invert": r.random() < 0.3})
    parts.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": r.random() < 0.5})
    return {"type": "Sequence", "pretokenizers": parts}


def nfc(check, rounds):
    """Against tokenizers; the classes of NormalizationTest.txt: each character, its decomposition, and random sequences of all that moves."""
    assert check.lib.shim_named(b"qwen2") == 0
    other = normalizers.NFC()
    decomposed = [c for c in CODES if ucd.decomposition(chr(c))[:1] not in ("", "<")]
    parts = sorted({int(x, 16) for c in decomposed for x in ucd.decomposition(chr(c)).split()})
    marks = [c for c in CODES if ucd.combining(chr(c))]
    hangul = list(range(0x1100, 0x1120)) + list(range(0x1160, 0x1178)) + list(range(0x11A6, 0x11C4)) + [0xAC00, 0xAC01, 0xAC1C, 0xD7A3]
    texts = [chr(c) for c in CODES]
    for c in [*decomposed, *range(0xAC00, 0xD7A4)]:
        full = ucd.normalize("NFD", chr(c))
        texts += [full, "x" + full + "y", full + "\u0323\u0307", chr(c) + "\u0301", full[::-1]]
    texts += ["a\u0315" + chr(c) for c in marks] + ["a" + chr(c) + "\u0334\u0300" for c in marks] + ["a\u0327" + chr(c) + "\u0316\u0301\u0345" for c in marks]
    r = random.Random(5)
    pools = [parts + marks, parts, marks + [0x61], hangul, decomposed + parts + marks + hangul + ALPHABET]
    texts += ["".join(chr(r.choice(r.choice(pools))) for _ in range(r.choice([2, 3, 4, 6, 12, 40]))) for _ in range(rounds * 10)]
    for text in texts:
        check.equal("NFC", text, check.normalize(text), other.normalize_str(text))
    return len(texts)


def tiktoken_rows(check, rounds, files):
    """tiktoken's own patterns. It shows no pieces, so a vocabulary of all bytes and all pieces of ours is given to it: where it splits alike, each piece
    is one token."""
    o200k = "|".join([
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
    cl100k = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    nanochat = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    for name, pattern in [("gpt2", public.r50k_pat_str), ("cl100k", cl100k), ("o200k", o200k), ("nanochat", nanochat)]:
        assert check.lib.shim_named(name.encode()) == 0
        for texts in (list(random_texts(rounds, 11)), list(neighbourhoods()), files):
            mine = [check.pieces(t) for t in texts]
            ranks = {bytes([i]): i for i in range(256)}
            for pieces in mine:
                for piece in pieces:
                    ranks.setdefault(piece.encode(), len(ranks))
            encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
            for text, pieces in zip(texts, mine):
                check.equal(f"{name} (tiktoken)", text, [ranks[p.encode()] for p in pieces], encoding.encode_ordinary(text))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20000)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    print(f"tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}, Unicode {ucd.unidata_version}")
    check = Check()
    classes(check)
    print("normalized:", nfc(check, args.rounds), "texts", flush=True)
    files = []
    for path in args.files:
        with open(path, encoding="utf-8", errors="ignore", newline="") as f:
            text = f.read()
        files += [text[i : i + 100000] for i in range(0, len(text), 100000)]
    names = "gpt2 cl100k o200k llama3 qwen2 qwen3.5 nanochat tekken deepseek-v3 deepseek-coder starcoder".split()
    for name in names:
        assert check.lib.shim_named(name.encode()) == 0, check.lib.shim_message()
        compare(check, name, random_texts(args.rounds, 1))
        compare(check, name, neighbourhoods())
        compare(check, name, files)
        print("compared:", name, flush=True)
    r = random.Random(3)
    for i in range(args.rounds // 20):
        chain = random_chain(r)
        if check.lib.shim_from_json(b"null", json.dumps(chain).encode()) != 0:
            sys.exit(f"{check.lib.shim_message().decode()}: {json.dumps(chain, ensure_ascii=False)}")
        # read by tokenizers as it was, not as it is written again
        _, other = from_json({"normalizer": None, "pre_tokenizer": chain})
        for text in random_texts(60, i):
            check.equal("chain " + json.dumps(chain, ensure_ascii=False), text, check.pieces(text), hf_pieces(other, text))
        compare(check, "chain written again " + json.dumps(chain, ensure_ascii=False), random_texts(20, i))
    tiktoken_rows(check, args.rounds, files)
    print("all equal" if check.differences == 0 else f"{check.differences} differences")
    return check.differences != 0


if __name__ == "__main__":
    sys.exit(main())
