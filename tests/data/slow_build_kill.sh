#!/usr/bin/env bash
# Builds of some 15 MB from text, gzip and zstd, killed at random moments and gone on with, end in the bytes of one that nobody
# disturbed. SEED=N repeats the moments.
. "$(dirname "$0")/../shell.sh"
seed=${SEED:-$RANDOM}
echo "SEED=$seed"
RANDOM=$seed

awk -v seed="$seed" 'BEGIN {
    srand(seed)
    for (d = 0; d < 15000; d++) {
        words = 20 + int(rand() * 120)
        for (w = 0; w < words; w++) printf "%s%c%x", w ? " " : "", 97 + int(rand() * 26), int(rand() * rand() * 40000)
        print ""
    }
}' >a.txt
head -n 5000 a.txt | gzip -1 >b.gz
tail -n 5000 a.txt | sed 's/^/{"text": "z /; s/$/"}/' >c.jsonl
zstd -q -3 c.jsonl -o c.jsonl.zst && rm c.jsonl
head -n 2000 a.txt >t.txt
run 0 tokenizer train t.txt -o tok --vocab-size 1000
build() { # build PREFIX ARGS...: in place of the shell that calls it, so that a kill meets it
    local prefix=$1
    shift
    exec "$ingot" data build a.txt b.gz c.jsonl.zst -o "$prefix" --tokenizer tok --separator line --val-fraction 0.05 --eod after \
        --shard-tokens 500000 --dedup exact --sync-seconds 0.05 "$@" >out 2>err
}
for format in ingot megatron; do
    rm -rf want got
    begin=$(date +%s%N)
    (build want/c --format $format) || fail "undisturbed build of $format"
    took=$(($(date +%s%N) - begin))
    kills=0 saved=0
    while :; do
        build got/c --format $format &
        child=$!
        sleep "$(awk -v r=$RANDOM -v k=$kills -v t=$took 'BEGIN { print r / 32768 * t / 1e9 * (0.6 + k * 0.05) }')"
        kill -KILL $child 2>/dev/null
        wait $child 2>/dev/null
        code=$?
        [ $code -eq 0 ] || [ $code -eq 137 ] || fail "$format: exit code $code after $kills kills"
        [ $code -eq 137 ] && kills=$((kills + 1))
        # Without a journal a whole corpus is done: the kill came between its removal and the end of the process.
        if [ $code -eq 0 ] || { [ -e got/c_manifest.json ] && [ ! -e got/c_build.journal ]; }; then
            [ $saved -lt 2 ] && [ $kills -lt 200 ] || break
            rm -rf got # done too soon: once more
            continue
        fi
        [ -e got/c_build.journal ] && saved=$((saved + 1))
        [ $kills -lt 200 ] || { fail "$format: 200 kills and no end"; break; }
    done
    rm -f got/c_build.lock
    diff -rq want got >differences || fail "$format after $kills kills: $(head -3 differences)"
    echo "$format: $kills kills, $saved of them with a journal"
    check "$format: some kills left a journal" [ $saved -ge 2 ]
    run 0 data verify got/c_manifest.json
done
exit $failed
