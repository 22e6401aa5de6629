#!/usr/bin/env python3
"""Compares ingot's shards with what numpy and a small reader of Megatron's index see, in both directions.

    python3 tools/check_shards_peers.py build/cpu/ingot

1. numpy and the writers below make files in every format that ingot reads; `ingot data inspect --document` and `--json` must show the
   same ids, documents and counts, and `ingot data verify` must find nothing.
2. `ingot data build` writes llm.c, Megatron and .npy from one text; the readers below must find the same ids and documents in all of them.

Needs numpy. The Megatron parts follow the byte table in docs/FORMATS.md; Megatron itself is used when it can be imported.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

IDX_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def write_llmc(path, documents, dtype):
    ids = np.concatenate(documents).astype(dtype)
    header = np.zeros(256, np.int32)
    header[:3] = (20240520, 1, len(ids)) if dtype == np.uint16 else (20240801, 7, len(ids))
    with open(path, "wb") as f:
        f.write(header.tobytes() + ids.tobytes())


def write_llmq(path, documents, mask):
    ids = np.concatenate(documents).astype(np.int32)
    with open(path, "wb") as f:
        f.write(("*" * 1023 + "\n").encode())
        f.write(ids.tobytes())
        if mask is not None:
            f.write(np.packbits(mask, bitorder="little").tobytes())
        f.seek(0)
        f.write(b"BIN.TOK\n" + struct.pack("<5i", 2, 4, len(ids), 50257, mask is not None))


def write_megatron(path, documents, code):
    dtype = np.dtype(IDX_TYPES[code])
    lengths = np.array([len(d) for d in documents], np.int32)
    offsets = np.zeros(len(lengths), np.int64)
    offsets[1:] = np.cumsum(lengths[:-1].astype(np.int64)) * dtype.itemsize
    with open(path + ".bin", "wb") as f:
        f.write(np.concatenate(documents).astype(dtype).tobytes())
    with open(path + ".idx", "wb") as f:
        f.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1))
        f.write(lengths.tobytes() + offsets.tobytes() + np.arange(len(lengths) + 1, dtype=np.int64).tobytes())


def read_llmc(path):
    header = np.fromfile(path, np.int32, 256)
    dtype = {20240520: np.uint16, 20240801: np.uint32}[int(header[0])]
    ids = np.fromfile(path, dtype, offset=1024)
    assert len(ids) == header[2] and not header[3:].any(), path
    return ids.astype(np.int64)


def read_megatron(path):
    data = open(path + ".idx", "rb").read()
    assert data[:9] == b"MMIDIDX\x00\x00", path
    version, code, sequences, ends = struct.unpack_from("<QBQQ", data, 9)
    assert version == 1
    lengths = np.frombuffer(data, np.int32, sequences, 34)
    offsets = np.frombuffer(data, np.int64, sequences, 34 + 4 * sequences)
    documents = np.frombuffer(data, np.int64, ends, 34 + 12 * sequences)
    assert len(data) == 34 + 12 * sequences + 8 * ends and documents[0] == 0 and documents[-1] == len(lengths)
    dtype = np.dtype(IDX_TYPES[code])
    raw = open(path + ".bin", "rb").read()
    found = [np.frombuffer(raw, dtype, n, o).astype(np.int64) for n, o in zip(lengths, offsets)]
    assert offsets[-1] + lengths[-1] * dtype.itemsize == len(raw)
    try:
        from megatron.core.datasets.indexed_dataset import IndexedDataset
        theirs = IndexedDataset(path)
        assert all((theirs[i] == d).all() for i, d in enumerate(found))
        print("  read by Megatron, too")
    except ImportError:
        pass
    return found


def ingot(*words, expect=0):
    r = subprocess.run([sys.argv[1], "data", *words], capture_output=True, text=True)
    assert r.returncode == expect, (words, r.returncode, r.stderr, r.stdout)
    return json.loads(r.stdout) if "--json" in words else r.stdout


def compare(pattern, documents, flags=(), vocab=50257):
    ids = np.concatenate(documents)
    about = ingot("inspect", pattern, "--json", "--top=5", *flags)
    assert about["tokens"] == len(ids), (pattern, about["tokens"], len(ids))
    assert (about["id_min"], about["id_max"]) == (ids.min(), ids.max()), pattern
    used, counts = np.unique(ids, return_counts=True)
    assert about["ids_used"] == len(used)
    assert [m["count"] for m in about["most_frequent"]] == sorted(counts, reverse=True)[:5], pattern
    assert about["documents"] == len(documents), (pattern, about["documents"], len(documents))
    for d in (0, 1, len(documents) // 2, len(documents) - 1):
        got = ingot("inspect", pattern, "--json", f"--document={d}", *flags)["tokens"]
        assert got == documents[d].tolist(), (pattern, d)
    ingot("verify", pattern, f"--vocab-size={vocab}", *flags)
    if not about["manifest"]:  # which knows the vocabulary
        ingot("verify", pattern, f"--vocab-size={int(ids.max())}", *flags, expect=3)
    print(f"ok {about['format']} {about['type']}: {len(ids)} tokens, {len(documents)} documents")


def read_what_others_write(dir):
    rng = np.random.default_rng(1)
    plain = [rng.integers(0, 50000, int(n)) for n in np.clip(rng.lognormal(5, 1, 700), 1, 5000)]
    before = [np.concatenate([[50256], d]) for d in plain]
    after = [np.concatenate([d, [50256]]) for d in plain]
    path = lambda name: os.path.join(dir, name)
    write_llmc(path("v1.bin"), before, np.uint16)
    compare(path("v1.bin"), before)
    write_llmc(path("v7.bin"), before, np.uint32)
    compare(path("v7.bin"), before, ["--eot=50256", "--eod=before"])
    write_llmq(path("q.bin"), after, None)
    compare(path("q.bin"), after, ["--eot=50256"])
    mask = rng.integers(0, 2, sum(map(len, after)), dtype=np.uint8)
    write_llmq(path("qm.bin"), after, mask)
    compare(path("qm.bin"), after, ["--eot=50256"])
    assert ingot("inspect", path("qm.bin"), "--json")["masked"] == int((mask == 0).sum())
    for code in (4, 5, 8):
        write_megatron(path(f"m{code}"), after, code)
        compare(path(f"m{code}"), after)
        compare(path(f"m{code}.bin"), after, ["--eot=50256", "--eod=after"])
    small = [d % 120 for d in plain]
    for code in (1, 2, 3):
        write_megatron(path(f"m{code}"), small, code)
        compare(path(f"m{code}.idx"), small)
    for dtype in (np.uint16, np.uint32, np.int32, np.int64):
        name = path(f"a_{np.dtype(dtype).name}.npy")
        np.save(name, np.concatenate(before).astype(dtype))
        compare(name, before, ["--eot=50256", "--eod=before"])
        name = path(f"r_{np.dtype(dtype).name}.bin")
        np.concatenate(after).astype(dtype).tofile(name)
        compare(name, after, ["--eot=50256", "--eod=after", f"--dtype={np.dtype(dtype).name}"])
    half = len(before) // 2
    np.save(path("s_2.npy"), np.concatenate(before[:half]).astype(np.uint16))
    np.save(path("s_10.npy"), np.concatenate(before[half:]).astype(np.uint16))
    compare(path("s_*.npy"), before, ["--eot=50256", "--eod=before"])
    for array, what in ((np.zeros((2, 3), np.uint16), "dimensions"), (np.zeros(3, np.float32), "<f4"),
                        (np.zeros(3, ">u2"), "big-endian"), (np.zeros(3, [("a", "<u2")]), "[...]"),
                        (np.asfortranarray(np.zeros((2, 2), np.uint16)), "Fortran")):
        np.save(path("bad.npy"), array)
        r = subprocess.run([sys.argv[1], "data", "inspect", path("bad.npy")], capture_output=True, text=True)
        assert r.returncode == 3 and what in r.stderr and r.stderr.count("\n") == 1, (what, r.stderr)
        print(f"refused: {r.stderr.strip()[-90:]}")


def write_what_others_read(dir):
    path = lambda name: os.path.join(dir, name)
    with open(path("t.txt"), "w") as f:
        for i in range(3000):
            f.write(f"line {i} says {i * i} times {i % 31}" + " and more" * (i % 7) + "\n")
    subprocess.run([sys.argv[1], "tokenizer", "train", path("t.txt"), "-o", path("tok"), "--vocab-size", "500"],
                   check=True, capture_output=True)
    common = (path("t.txt"), "--tokenizer", path("tok"), "--separator=line", "--eod=after")
    ingot("build", *common, "-o", path("own"))
    ids = read_llmc(path("own_train_000000.bin"))
    eot = ingot("inspect", path("own_train_000000.bin"), "--json")["eot"]
    documents = np.split(ids, np.where(ids == eot)[0][:-1] + 1)
    ingot("build", *common, "-o", path("meg"), "--format=megatron")
    found = read_megatron(path("meg_train_000000"))
    assert len(found) == len(documents) and all((a == b).all() for a, b in zip(found, documents))
    compare(path("meg_train_000000"), documents, vocab=500)
    ingot("build", *common, "-o", path("arr"), "--format=npy")
    array = np.load(path("arr_train_000000.npy"), mmap_mode="r")
    assert array.dtype == np.uint16 and (array == ids).all()
    print(f"ok written: {len(ids)} tokens, {len(documents)} documents as llm.c, Megatron, npy")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as dir:
        read_what_others_write(dir)
        write_what_others_read(dir)
