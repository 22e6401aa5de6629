#!/usr/bin/env python3
"""Times ingot, Hugging Face tokenizers and tiktoken in turn on the same text and the same tokenizer, one thread each, and compares the ids.

    python3 tools/bench_tokenizer_peers.py build/cpu/ingot TEXT [--vocab-size 32000] [--train]

The tokenizer is trained by ingot on TEXT with the Llama-3 split. HF reads its tokenizer.json; tiktoken gets the same tokens as ranks, whose
rule (lowest rank of the joined bytes) differs from the list of merges in rare cases, so its ids are compared by count only. Peers get the
text in pieces of whole lines of about 100 kB, which suits them; ingot gets it whole. --train also times HF's trainer (minutes, all cores).
"""
import argparse
import json
import os
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROUNDS = 3


def chunks_of(text, size=100_000):
    lines, out, held = text.splitlines(keepends=True), [], 0
    for line in lines:
        if held == 0:
            out.append([])
        out[-1].append(line)
        held = 0 if held + len(line) > size else held + len(line)
    return ["".join(chunk) for chunk in out]


def median_rate(run, size):
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return size / 1e6 / sorted(times)[ROUNDS // 2], result


def letters():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(rest)}


def main():
    args = argparse.ArgumentParser()
    args.add_argument("ingot")
    args.add_argument("text")
    args.add_argument("--vocab-size", type=int, default=32000)
    args.add_argument("--train", action="store_true")
    args = args.parse_args()
    import tiktoken
    import tokenizers

    text = open(args.text, encoding="utf-8", newline="").read()
    size = os.path.getsize(args.text)
    chunks = chunks_of(text)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([args.ingot, "tokenizer", "train", args.text, "-o", folder, "--vocab-size", str(args.vocab_size)], check=True)
        print(subprocess.run([args.ingot, "bench", "tokenizer", args.text, "--tokenizer", folder], check=True, capture_output=True, text=True).stdout)
        ids = subprocess.run([args.ingot, "tokenizer", "encode", folder, args.text, "--ids"], capture_output=True, text=True).stdout.split()
        spec = json.load(open(folder + "/tokenizer.json", encoding="utf-8"))
        hf = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
    rate, got = median_rate(lambda: [i for c in chunks for i in hf.encode(c).ids], size)
    print(f"tokenizers {tokenizers.__version__}: encode {rate:.1f} MB/s; {len(got)} tokens, ingot {len(ids)}")
    whole = "".join(chunks[:10])  # pieces that cross chunks differ, so the comparison is made on one string
    ours = ids[: len(hf.encode(whole).ids) - 100]
    print("ids equal on the first megabyte:", [int(i) for i in ours] == hf.encode(whole).ids[:-100])

    byte_of = letters()
    ranks = {bytes(byte_of[c] for c in token): i for token, i in spec["model"]["vocab"].items()}
    pattern = spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    tt = tiktoken.Encoding("bench", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    rate, got = median_rate(lambda: [i for c in chunks for i in tt.encode_ordinary(c)], size)
    print(f"tiktoken {tiktoken.__version__}: encode {rate:.1f} MB/s; {len(got)} tokens")

    if args.train:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        pre = tokenizers.pre_tokenizers
        peer = tokenizers.Tokenizer(tokenizers.models.BPE())
        peer.pre_tokenizer = pre.Sequence([pre.Split(tokenizers.Regex(pattern), "isolated"), pre.ByteLevel(False, use_regex=False)])
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=args.vocab_size - 1, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False)
        start = time.perf_counter()
        peer.train_from_iterator(chunks, trainer)
        seconds = time.perf_counter() - start
        print(f"tokenizers: train {size / 1e6 / seconds:.1f} MB/s ({seconds:.1f} s)")


if __name__ == "__main__":
    main()
