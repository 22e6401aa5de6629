#!/usr/bin/env bash
# The head of docs/FORMATS.md tells the versions that the sources write.
root=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/../shell.sh"
row() { # row WORDS FILE NAME: the row of the table that begins with WORDS has the number that NAME is in FILE
    local number
    number=$(grep -oE "$3 = [0-9]+" "$root/$2" | grep -oE '[0-9]+$')
    check "FORMATS.md says version $number of: $1 ($2)" grep -qE "^\| $1[^|]*\| ([^|]* )?$number \|" "$root/docs/FORMATS.md"
}
row 'token shards' src/data/shard/manifest.h MANIFEST_VERSION
row 'index of documents' src/data/shard/corpus_index.c VERSION
row 'checkpoint' src/train/ckpt_manifest.h CKPT_VERSION
row 'metrics.jsonl' src/observe/observe_int.h METRICS_VERSION
row 'gpu-HOST.jsonl' src/observe/host_record.c HOST_RECORD_VERSION
row 'journal of a build' src/data/build/build_journal.c VERSION
exit $failed
