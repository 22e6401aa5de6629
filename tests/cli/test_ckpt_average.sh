#!/usr/bin/env bash
# `ingot ckpt average`: every weight is the mean of the checkpoints' weights, with and without decay; the run can be used as any other.
. "$(dirname "$0")/../shell.sh"

make_corpus
run 0 train r.yaml --run.dir=r --train.steps=12 --ckpt.every=3 --ckpt.keep=10
numbers() { # numbers CHECKPOINT NAME: its weights, one per line
    run 0 ckpt export "$1" -o "hf-$2"
    local header
    header=$(od -An -v -t u8 -N 8 "hf-$2/model.safetensors" | tr -d ' ')
    od -An -v -t f4 -w4 -j $((8 + header)) "hf-$2/model.safetensors" >"$2.txt"
    [ "$(wc -l <"$2.txt")" -gt 20000 ] || fail "$1: $(wc -l <"$2.txt") weights"
}
for s in 03 06 09 12; do numbers r/ckpt/step-000000$s $s; done
mean() { # mean NAME RUN W9 W12 [W6]: the weights of RUN are those of the checkpoints, weighted
    numbers "$2" "$1"
    paste 06.txt 09.txt 12.txt "$1.txt" | awk -v a="${5:-0}" -v b="$3" -v c="$4" '
        { want = (a * $1 + b * $2 + c * $3) / (a + b + c); d = want - $4; if (d < 0) d = -d
          size = ($1 < 0 ? -$1 : $1) + ($2 < 0 ? -$2 : $2) + ($3 < 0 ? -$3 : $3); if (d > 3e-7 * size) bad++
          if ($2 != $3) differ++ }
        END { exit !(bad == 0 && differ > 1000) }' || fail "$1: not the mean of the checkpoints"
}
run 0 ckpt average r --last 2 -o last2
grep -q '^run=last2 checkpoints=2 last_step=12 decay=1 ' out || fail "summary: $(cat out)"
mean last2 last2 1 1
run 0 ckpt average r --last 3 --decay 0.5 -o decayed
mean decayed decayed 2 4 1
run 0 ckpt average r/ckpt/step-00000006 r/ckpt/step-00000009 r -o named
mean named named 1 1 1
run 0 ckpt average r --last 4 -o four --json
grep -q '"checkpoints": 4' out || fail "--json: $(cat out)"

# --- the run is one ---
run 0 ckpt verify last2
run 0 eval last2
grep -q '^step=0 loss=[0-9]' out || fail "eval of a mean: $(cat out)"
run 0 generate last2 --prompt the --tokens 3
cp -r last2 on
run 0 train last2 --resume --train.steps=2 --optim.warmup_steps=0
grep -q '^step=2 ' out || fail "training from a mean"

# --- refused in one line ---
run 2 ckpt average r -o x --last 1
says "2 or more is expected"
run 4 ckpt average r -o x --last 9
says "has 4 checkpoints, --last 9 asks for more"
run 2 ckpt average r/ckpt/step-00000006 -o x
says "one checkpoint has no mean"
run 2 ckpt average r --decay 0 -o x
says "--decay 0: in (0, 1]"
run 4 ckpt average r -o on
says "on already holds a run"
run 0 train r.yaml --run.dir=wide --train.steps=4 --optim.warmup_steps=0 --ckpt.every=2 --model.hidden_size=64
run 4 ckpt average wide r -o x
says "another model than the last checkpoint's"
run 2 ckpt average r
says "usage: ingot ckpt average"
[ -e x ] && fail "a refused mean left $(ls -R x)"
exit $failed
