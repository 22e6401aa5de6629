#!/usr/bin/env python3
"""Cuts tests/fixtures/parquet/*.parquet into seeds for fuzz_parquet_footer, fuzz_parquet_page and fuzz_thrift. Needs pyarrow.

    tools/gen_parquet_seeds.py
"""
import glob
import os
import struct

import pyarrow.parquet as pq

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "ZSTD": 3, "LZ4": 4}


def save(target, name, data):
    directory = os.path.join(ROOT, "tests/fuzz/corpus", target)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, name), "wb") as f:
        f.write(data)


for path in sorted(glob.glob(os.path.join(ROOT, "tests/fixtures/parquet/*.parquet"))):
    name = os.path.splitext(os.path.basename(path))[0]
    data = open(path, "rb").read()
    size = struct.unpack("<I", data[-8:-4])[0]
    footer = data[-8 - size:-8]
    ids = name.startswith("ids")
    save("parquet_footer", name, bytes([1 if ids else 0]) + footer)
    if name in ("text_none_v1", "ids64_delta_v2"):
        save("thrift", name, footer)
    group = pq.ParquetFile(path).metadata.row_group(0)
    column = group.column(1)
    begin = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    chunk = data[begin:begin + column.total_compressed_size][:4000]
    kind = (2 if "64" in name else 1) if ids else 0
    save("parquet_page", name, bytes([kind | 1 << 2 | CODECS[column.compression] << 3]) + struct.pack("<H", group.num_rows) + chunk)
