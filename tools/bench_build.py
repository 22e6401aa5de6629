#!/usr/bin/env python3
"""Times `ingot data build` from plain text, JSONL, gzip, zstd and Parquet, and a preparation script in the style of nanoGPT and
llm.c beside it, in one run, in turn.

    python3 tools/bench_build.py build/cpu/ingot TEXT TOKENIZER_DIR [--threads 1,2] [--rounds 3] [--work DIR] [--peer-mb 10]

TEXT (UTF-8, not repeating itself: the encoder remembers pieces) is cut into documents of about 4 kB at blank lines. The tokenizer's
directory holds a byte-level tokenizer.json. The peer reads JSONL, splits the documents over a multiprocessing.Pool, encodes with
tiktoken (encode_ordinary; the same merges as ranks and the GPT-2 pattern) or with HF tokenizers (encode_batch), puts the end-of-text
id before each document and writes np.uint16 to one file. ingot is bound to as many processors as it has threads. Rates are MB of text per second of wall time; CPU seconds stand beside
them, as machines are shared. The Debian packages gzip, zstd and time are needed; Python: numpy, tiktoken, tokenizers, pyarrow.
"""
import argparse
import gzip
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import time

DOCUMENT_BYTES = 4000
encode = None


def documents_of(path):
    held = []
    size = 0
    for piece in open(path, encoding="utf-8", errors="ignore").read().split("\n\n"):
        held.append(piece)
        size += len(piece)
        if size >= DOCUMENT_BYTES:
            yield "\n\n".join(held)
            held, size = [], 0
    if held:
        yield "\n\n".join(held)


def write_inputs(text, work):
    docs = [d for d in documents_of(text) if d.strip()]
    jsonl = os.path.join(work, "text.jsonl")
    with open(jsonl, "w", encoding="utf-8") as out:
        for d in docs:
            out.write(json.dumps({"id": 1, "text": d}, ensure_ascii=False) + "\n")
    plain = os.path.join(work, "text.txt")
    with open(plain, "w", encoding="utf-8") as out:
        out.write("\x1e".join(docs))
    paths = {"plain": plain, "jsonl": jsonl}
    with open(jsonl, "rb") as source, gzip.open(jsonl + ".gz", "wb", 6) as out:
        shutil.copyfileobj(source, out)
    subprocess.run(["zstd", "-q", "-f", "-3", jsonl], check=True)
    paths |= {"jsonl.gz": jsonl + ".gz", "jsonl.zst": jsonl + ".zst"}
    try:
        import pyarrow
        import pyarrow.parquet

        for codec in ("snappy", "zstd"):
            path = os.path.join(work, f"text.{codec}.parquet")
            pyarrow.parquet.write_table(pyarrow.table({"text": docs}), path, compression=codec, row_group_size=1000)
            paths[f"parquet {codec}"] = path
    except ImportError:
        print("no pyarrow: Parquet is left out", file=sys.stderr)
    return paths, sum(len(d.encode()) for d in docs), len(docs)


def timed(run):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    result = run()
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, result


def run_ingot(args, path, kind, threads, extra=()):
    words = ["taskset", "-c", f"0-{threads - 1}", "/usr/bin/time", "-f", "%M", args.ingot, "data", "build", path, "-o", os.path.join(args.work, "out", "c"),
             "--tokenizer", args.tokenizer, "--force", *extra]
    if kind == "plain":
        words += ["--separator", "\x1e"]
    done = subprocess.run(words, env=os.environ | {"INGOT_LOG": "error"}, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return int(done.stderr.split()[-1])


def start_tiktoken(folder):
    global encode
    import tiktoken

    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    letters = {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(rest)}
    data = json.load(open(os.path.join(folder, "tokenizer.json"), encoding="utf-8"))
    added = {t["content"] for t in data["added_tokens"]}
    ranks = {bytes(letters[c] for c in t): i for t, i in data["model"]["vocab"].items() if t not in added}
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    encoding = tiktoken.Encoding("own", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks)})
    encode = lambda texts: [encoding.encode_ordinary(t) for t in texts]


def start_hf(folder):
    global encode
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    encode = lambda texts: [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def encode_lines(lines):
    import numpy

    texts = [json.loads(line)["text"] for line in lines]
    return [numpy.array([50256, *ids], dtype=numpy.uint16) for ids in encode(texts)]


def first_lines(path, out_path, size):
    taken = 0
    with open(path, encoding="utf-8") as source, open(out_path, "w", encoding="utf-8") as out:
        for line in source:
            if taken >= size:
                break
            taken += len(json.loads(line)["text"].encode())
            out.write(line)
    return taken / 1e6


def batches(path, size=64):
    held = []
    for line in open(path, encoding="utf-8"):
        held.append(line)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def run_peer(args, path, start, processes):
    with multiprocessing.Pool(processes, start, (args.tokenizer,)) as pool, open(os.path.join(args.work, "peer.bin"), "wb") as out:
        for arrays in pool.imap(encode_lines, batches(path), chunksize=4):
            for array in arrays:
                array.tofile(out)
        pool.close()
        pool.join()


def row(name, threads, times, megabytes, memory=None):
    wall = sorted(t[0] for t in times)[len(times) // 2]
    cpu = sorted(t[1] for t in times)[len(times) // 2]
    peak = f"{memory / 1024:6.0f} MiB" if memory else ""
    print(f"| {name:26} | {threads} | {megabytes / wall:7.1f} | {megabytes / cpu:7.1f} | {peak} |", flush=True)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("ingot")
    args.add_argument("text")
    args.add_argument("tokenizer")
    args.add_argument("--threads", default="1,2")
    args.add_argument("--inputs", help="only these, as in: plain,jsonl.gz")
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--peer-mb", type=float, default=10, help="the peers get the first so many MB of the text")
    args.add_argument("--work", default="bench-build")
    args = args.parse_args()
    os.makedirs(args.work, exist_ok=True)
    paths, size, count = write_inputs(args.text, args.work)
    if args.inputs:
        paths = {kind: path for kind, path in paths.items() if kind in args.inputs.split(",") or kind == "jsonl"}
    megabytes = size / 1e6
    print(f"{megabytes:.1f} MB of text in {count} documents\n\n| input | threads | MB/s | MB per CPU second | peak memory |\n|---|---|---|---|---|")
    threads = [int(t) for t in args.threads.split(",")]
    cases = {}
    for r in range(args.rounds):  # in turn, so that a busy minute hits all alike
        for kind, path in paths.items():
            for t in threads:
                wall, cpu, memory = timed(lambda: run_ingot(args, path, kind, t))
                cases.setdefault((kind, t), []).append((wall, cpu, memory))
        for name, extra in {"jsonl, --dedup off": ["--dedup", "off"], "jsonl, near report": ["--dedup-report", "near"]}.items():
            wall, cpu, memory = timed(lambda: run_ingot(args, paths["jsonl"], "jsonl", threads[-1], extra))
            cases.setdefault((name, threads[-1]), []).append((wall, cpu, memory))
    for (kind, t), times in cases.items():
        row("ingot " + kind, t, times, megabytes, max(m for _, _, m in times))
    part = os.path.join(args.work, "peer.jsonl")
    part_megabytes = first_lines(paths["jsonl"], part, args.peer_mb * 1e6)
    for name, start in {"tiktoken": start_tiktoken, "HF tokenizers": start_hf}.items():
        for t in threads:
            times = [timed(lambda: run_peer(args, part, start, t)) for _ in range(args.rounds)]
            row(f"Pool + {name} jsonl", t, times, part_megabytes)


main()
