#!/usr/bin/env python3
"""Reads Parquet files that pyarrow writes, at random: types, encodings, codecs, page versions and sizes, nulls, row groups; and compares
every document with pyarrow's, by the hash that `ingot bench reader` prints. Needs pyarrow and xxhash.

    tools/check_parquet.py build/cpu/ingot [--files 200] [--seed 1]
"""
import argparse
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

WORDS = ["the ", "of ", "Grüße ", "数据 ", "🙂", "\n", "token", '"', "x" * 50, "", " a"]


def text(rng, longest):
    return "".join(rng.choice(WORDS) for _ in range(rng.randint(0, longest)))


def column(rng, rows):
    kind = rng.choice(["text", "large", "bytes", "ids32", "ids64", "ids_large", "struct", "ids_view"])
    nulls = rng.choice([0, 0, 0.1, 0.9, 1.0])
    longest = rng.choice([0, 3, 40, 400])
    pool = [text(rng, longest) for _ in range(rng.choice([1, 10, 1000]))] if rng.random() < 0.5 else None
    draw = (lambda: rng.choice(pool)) if pool else (lambda: text(rng, longest))
    if kind in ("text", "large", "bytes", "struct"):
        values = [None if rng.random() < nulls else draw() for _ in range(rows)]
        if kind == "struct":
            array = pa.StructArray.from_arrays([pa.array(values, pa.string())], ["inner"])
            return "text.inner", array, values
        types = {"text": pa.string(), "large": pa.large_string(), "bytes": pa.binary()}
        data = [v.encode() if v is not None and kind == "bytes" else v for v in values]
        return "text", pa.array(data, types[kind]), values
    top = rng.choice([2, 300, 50000, 2**31 - 1])
    values = [None if rng.random() < nulls else [rng.randint(0, top) for _ in range(rng.randint(0, longest))] for _ in range(rows)]
    item = pa.int64() if kind == "ids64" else pa.uint32() if kind == "ids_view" else pa.int32()
    of = pa.large_list(item) if kind == "ids_large" else pa.list_(item)
    return "text", pa.array(values, of), values


def digest(values):
    h = xxhash.xxh64()
    for v in values:
        data = b"" if v is None else v.encode() if isinstance(v, str) else struct.pack(f"<{len(v)}i", *v)
        h.update(struct.pack("<Q", len(data)))
        h.update(data)
    return h.hexdigest()


def write(rng, path):
    rows = rng.choice([0, 1, 7, 1000, 5000])
    key, array, values = column(rng, rows)
    other = pa.array([rng.random() for _ in range(rows)])
    required = rng.random() < 0.2 and array.null_count == 0
    table = pa.table([other, array, other], schema=pa.schema(
        [pa.field("a", pa.float64()), pa.field("text", array.type, nullable=not required), pa.field("z", pa.float64())]))
    codec = rng.choice(["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
    options = {}
    is_ids = isinstance(values[0] if values and values[0] is not None else next((v for v in values if v is not None), ""), list)
    dictionary = rng.random() < 0.5
    if not dictionary:
        leaf = "text.list.element" if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) else key
        choices = ["PLAIN", "DELTA_BINARY_PACKED"] if leaf.endswith("element") else ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]
        options["column_encoding"] = {leaf: rng.choice(choices)}
    else:
        options["dictionary_pagesize_limit"] = rng.choice([64, 4096, 1 << 20])
    pq.write_table(table, path, compression=codec, use_dictionary=dictionary, row_group_size=rng.choice([3, 100, 1 << 20]) if rows > 5 else None,
                   data_page_size=rng.choice([64, 4096, 1 << 20]), data_page_version=rng.choice(["1.0", "2.0"]),
                   write_statistics=rng.random() < 0.5, write_page_index=rng.random() < 0.3,
                   write_page_checksum=rng.random() < 0.3, **options)
    nulls = sum(v is None for v in values)
    return key, values, nulls, (array.type, codec, options, rows, is_ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ingot")
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "t.parquet")
        for i in range(args.files):
            key, values, nulls, what = write(random.Random(args.seed * 1000003 + i), path)
            batch = random.Random(i).choice([1, 100, 10000, 1 << 24])
            run = subprocess.run([args.ingot, "bench", "reader", path, "--key", key, "--runs", "1", "--batch-bytes", str(batch)],
                                 capture_output=True, text=True)
            want = f"{len(values)} documents, {nulls} null,"
            found = re.search(r"^(\d+ documents, \d+ null,).*xxh64 (\w+)", run.stdout, re.M)
            if not found or found[1] != want or found[2] != digest(values):
                print(f"file {i} ({what}) differs: {want} {digest(values)}\n{run.stdout}{run.stderr}")
                os.replace(path, "differs.parquet")
                return 1
    print(f"{args.files} files: every document is pyarrow's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
