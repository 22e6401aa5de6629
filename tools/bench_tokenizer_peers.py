#!/usr/bin/env python3
"""ingot beside tiktoken and Hugging Face tokenizers: speed on the same texts in one run, or ids on all of them.

    python3 tools/bench_tokenizer_peers.py build/cpu/ingot TOKENIZER TEXT...            speed
    python3 tools/bench_tokenizer_peers.py build/cpu/ingot TOKENIZER TEXT... --check    ids must be equal

TOKENIZER is anything that ingot reads. HF gets what `ingot tokenizer import` writes. tiktoken gets the tokens and, for a rank file of OpenAI
whose name says which (cl100k_base.tiktoken, ...), its own pattern, else that of the tokenizer.json; without a rank file its rule of merging is
another one, so it is left out. TEXTs come from tools/text_corpus.py.

Speed: one thread each, in turn, medians of --rounds in CPU time of the process. The peers get chunks of about 100 kB of whole lines,
which suits them; ingot gets the file whole and begins with an empty cache each time.
Check: the texts in chunks of a megabyte, cut anywhere between characters; each is encoded by all three.
"""
import argparse
import base64
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
OWN_PATTERNS = ("r50k_base", "p50k_base", "cl100k_base", "o200k_base")


def lines_of(text, size=100_000):
    out, held = [[]], 0
    for line in text.splitlines(keepends=True):
        if held > size:
            out.append([])
            held = 0
        out[-1].append(line)
        held += len(line)
    return ["".join(lines) for lines in out]


def run(*command):
    return subprocess.run(command, check=True, capture_output=True).stdout


def pattern_of(spec):
    parts = spec["pre_tokenizer"].get("pretokenizers", [spec["pre_tokenizer"]])
    splits = [p["pattern"]["Regex"] for p in parts if p["type"] == "Split"]
    if len(splits) > 1:
        return None
    return splits[0] if splits else r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def open_tiktoken(path, spec):
    import tiktoken

    try:
        lines = pathlib.Path(path).read_bytes().split(b"\n")
        ranks = {base64.b64decode(a, validate=True): int(b) for a, b in (line.split(b" ") for line in lines if line)}
    except (OSError, ValueError):
        return None
    name, pattern = pathlib.Path(path).stem, pattern_of(spec)
    if name in OWN_PATTERNS:
        import tiktoken_ext.openai_public as public

        public.load_tiktoken_bpe = lambda *a, **k: ranks
        public.data_gym_to_mergeable_bpe_ranks = lambda *a, **k: ranks
        pattern = getattr(public, name)()["pat_str"]
    return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={}) if pattern else None


def cpu_rate(encode, chunks, size):
    start = time.process_time()
    for chunk in chunks:
        encode(chunk)
    return size / 1e6 / (time.process_time() - start)


def speed(args, peers, folder):
    for path in args.texts:
        text = open(path, encoding="utf-8", newline="").read()
        size, chunks, rates = len(text.encode()), lines_of(text), {}
        for _ in range(args.rounds):
            out = json.loads(run(args.ingot, "bench", "tokenizer", path, "--tokenizer", folder, "--rounds", "1", "--json"))
            rates.setdefault("ingot", []).append(out["encode_cold_mb_s"])
            rates.setdefault("ingot, all seen once", []).append(out["encode_warm_mb_s"])
            for name, encode in peers.items():
                rates.setdefault(name, []).append(cpu_rate(encode, chunks, size))
        medians = {name: sorted(r)[len(r) // 2] for name, r in rates.items()}
        print(f"{path}: {size / 1e6:.1f} MB", *(f"{name} {rate:.1f} MB/s" for name, rate in medians.items()), sep="; ", flush=True)
        print("  ingot is", *(f"{medians['ingot'] / medians[name]:.1f} times {name}" for name in peers), flush=True)


def check(args, peers, folder):
    total = bad = 0
    chunk_path = folder + "/chunk.txt"
    for path in args.texts:
        text = open(path, encoding="utf-8", newline="").read()
        for at in range(0, len(text), 1 << 20):
            chunk = text[at : at + (1 << 20)]
            data = chunk.encode()
            pathlib.Path(chunk_path).write_bytes(data)
            ours = [int(i) for i in run(args.ingot, "tokenizer", "encode", folder, chunk_path, "--ids").split()]
            total += len(data)
            for name, encode in peers.items():
                theirs = list(encode(chunk))
                if ours == theirs:
                    continue
                bad += 1
                first = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
                print(f"{path}: characters {at} and on: {name} differs at id {first}: {theirs[first:first + 5]}, ingot {ours[first:first + 5]}", flush=True)
        print(f"{path}: {total / 1e6:.1f} MB in all, {bad} chunks differ", flush=True)
    return bad


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("ingot")
    args.add_argument("tokenizer")
    args.add_argument("texts", nargs="+")
    args.add_argument("--check", action="store_true")
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--without", choices=["tiktoken", "tokenizers"], action="append", default=[])
    args = args.parse_args()
    import tokenizers

    with tempfile.TemporaryDirectory() as folder:
        run(args.ingot, "tokenizer", "import", args.tokenizer, folder)
        spec = json.load(open(folder + "/tokenizer.json", encoding="utf-8"))
        peers, versions = {}, [f"tokenizers {tokenizers.__version__}"]
        tt = open_tiktoken(args.tokenizer, spec) if "tiktoken" not in args.without else None
        if tt is not None:
            import tiktoken

            nfc = (spec["normalizer"] or {}).get("type") == "NFC"  # what Qwen's wrapper does before
            peers["tiktoken"] = (lambda text: tt.encode_ordinary(unicodedata.normalize("NFC", text))) if nfc else tt.encode_ordinary
            versions.append(f"tiktoken {tiktoken.__version__}")
        if "tokenizers" not in args.without:
            hf = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
            hf.encode_special_tokens = True
            peers["tokenizers"] = lambda chunk: hf.encode(chunk, add_special_tokens=False).ids
        print(args.tokenizer, *versions, sep="; ", flush=True)
        sys.exit(1 if args.check and check(args, peers, folder) else 0 if args.check else speed(args, peers, folder))


if __name__ == "__main__":
    main()
