#!/usr/bin/env bash
# Checkpoints and shards of each released version (tests/fixtures/versions, make.sh there) are read as they were written, and a run goes on
# from them; what a newer version writes is refused with its number.
kept=$(cd "$(dirname "$0")/../fixtures/versions" && pwd)
. "$(dirname "$0")/../shell.sh"
# version, SHA-256 of the weights, validation loss (fp32: other processors are within 1e-4)
while read -r version weights loss; do
    last=$kept/$version
    rm -rf old && cp -r "$kept/$version" old && cd old || exit 1
    run 0 data verify data/c
    run 0 ckpt verify run
    run 0 ckpt export run -o hf
    header=$(od -An -tu8 -N8 hf/model.safetensors | tr -d ' ')
    check "$version: the weights" [ "$(tail -c +$((9 + header)) hf/model.safetensors | sha256sum | cut -d' ' -f1)" = "$weights" ]
    run 0 eval run
    check "$version: the loss" awk -v a="$(grep -o ' loss=[0-9.]*' out | cut -d= -f2)" -v b="$loss" 'BEGIN { d = a - b; exit !(d < 1e-4 && d > -1e-4) }'
    run 0 train run.yaml --run.dir=run --resume --train.steps=9
    check "$version: goes on from step 6" grep -q 'weights   of step 6 ' err
    check "$version: to step 9" grep -q '"kind":"step","step":9,' run/metrics.jsonl
    cd ..
done <<'TABLE'
0.1.0 341f0dea69b516a66f68e82061f8cb5f661d9d89cdcd34916374357ae55b900b 5.522979
TABLE
[ -d old ] || fail "no version is kept"

# --- newer ones: their files, sealed as the formats ask for ---
newer() { rm -rf new && cp -r "$last" new; }
seal_manifest() { # seal_manifest FILE: of shards: the first line's SHA-256 is of all behind it
    printf '{\n"sha256": "%s",\n' "$(tail -n +3 "$1" | sha256sum | cut -d' ' -f1)" >sealed
    tail -n +3 "$1" >>sealed && mv sealed "$1"
}
seal_checkpoint() { # the last line's is of all before it
    head -n -2 "$1" >sealed
    printf '"sha256": "%s"\n}\n' "$(sha256sum <sealed | cut -d' ' -f1)" >>sealed && mv sealed "$1"
}
newer
cp new/data/c_manifest.json was.json && seal_manifest new/data/c_manifest.json
check "the seal of shards is made as the format says" cmp -s was.json new/data/c_manifest.json
sed -i 's/"version": 2/"version": 9/' new/data/c_manifest.json && seal_manifest new/data/c_manifest.json
run 3 data verify new/data/c
says "'version' is 9"
newer
sed -i 's/"skipped": 0/"skipped": 0, "later": [1]/' new/data/c_manifest.json && seal_manifest new/data/c_manifest.json
run 0 data verify new/data/c
newer
printf '\x09' | dd of=new/data/c_train_000000.idx bs=1 seek=8 conv=notrunc status=none
run 3 data verify new/data/c
newer
printf '\x09' | dd of=new/data/c_train_000000.bin bs=1 seek=4 conv=notrunc status=none
run 3 data verify new/data/c_train_000000.bin

newer
manifest=$(find new/run/ckpt -name manifest.json | head -n 1)
cp "$manifest" was.json && seal_checkpoint "$manifest"
check "the seal of checkpoints is made as the format says" cmp -s was.json "$manifest"
sed -i 's/^"version": 1,/"version": 2,/' "$manifest" && seal_checkpoint "$manifest"
run 4 ckpt verify new/run
says "version 2"
cp was.json "$manifest"
sed -i 's/^"requires": \[\],/"requires": ["sparse_rows"],/' "$manifest" && seal_checkpoint "$manifest"
run 4 ckpt verify new/run
says "sparse_rows"
cp was.json "$manifest"
sed -i 's/^"requires": \[\],/"requires": [], "later": {"a": 1},/' "$manifest" && seal_checkpoint "$manifest"
run 0 ckpt verify new/run
exit $failed
