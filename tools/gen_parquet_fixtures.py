#!/usr/bin/env python3
"""Writes tests/fixtures/parquet/*.parquet with pyarrow. tests/data/test_parquet.c computes the same rows:

    row i of `text`: null when i % 7 == 3, else "row i" and (i * i) % 23 times " und é"
    row i of `a.text`: the same; where i % 14 == 3 the struct `a` is null
    row i of `ids`:  null when i % 7 == 3, else (i * i) % 23 ids; id j is (i * 1000 + j) % 50021

    tools/gen_parquet_fixtures.py [DIRECTORY]
"""
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 300


def texts():
    return [None if i % 7 == 3 else f"row {i}" + " und é" * (i * i % 23) for i in range(ROWS)]


def ids(kind):
    return pa.array([None if i % 7 == 3 else [(i * 1000 + j) % 50021 for j in range(i * i % 23)] for i in range(ROWS)], pa.list_(kind))


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../tests/fixtures/parquet")
    os.makedirs(directory, exist_ok=True)

    def write(name, array, **options):
        column = "text" if pa.types.is_string(array.type) else "a" if pa.types.is_struct(array.type) else "ids"
        table = pa.table({"n": pa.array(range(ROWS)), column: array})
        pq.write_table(table, os.path.join(directory, name + ".parquet"), row_group_size=options.pop("row_group_size", 128),
                       write_statistics=False, store_schema=False, write_batch_size=8, **options)

    text = pa.array(texts(), pa.string())
    plain = {"use_dictionary": False, "data_page_size": 1024}
    write("text_none_v1", text, compression="none", **plain)
    write("text_crc_v2", text, compression="none", data_page_version="2.0", write_page_checksum=True, **plain)
    write("text_gzip_v1", text, compression="gzip", **plain)
    write("text_lz4_v1", text, compression="lz4", **plain)
    write("text_zstd_v2", text, compression="zstd", data_page_version="2.0", row_group_size=7, **plain)
    write("text_fallback_v1", text, compression="snappy", data_page_size=512, dictionary_pagesize_limit=2048)
    write("text_dictionary_v2", text, compression="zstd", data_page_version="2.0", data_page_size=256)
    for encoding in ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
        write("text_" + encoding.lower(), text, compression="zstd", column_encoding={"text": encoding}, **plain)
    write("text_brotli_v1", text, compression="brotli", **plain)
    inner = [None if i % 14 == 3 else {"k": i, "text": t} for i, t in enumerate(texts())]
    nested = pa.array(inner, pa.struct([("k", pa.int64()), ("text", pa.string())]))
    write("nested_brotli_v2", nested, compression="brotli", data_page_version="2.0", **plain)
    write("ids32_plain_v1", ids(pa.int32()), compression="none", **plain)
    write("ids32_dictionary_v2", ids(pa.int32()), compression="zstd", data_page_version="2.0", data_page_size=512)
    write("ids64_snappy_v1", ids(pa.int64()), compression="snappy", data_page_size=256)
    write("ids64_delta_v2", ids(pa.int64()), compression="zstd", data_page_version="2.0",
          column_encoding={"ids.list.element": "DELTA_BINARY_PACKED"}, **plain)


if __name__ == "__main__":
    main()
