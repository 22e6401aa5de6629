#!/usr/bin/env bash
# The life of a run, from outside: train, evaluate, generate, look at its data, its plan, its trace, its report.
. "$(dirname "$0")/../shell.sh"
make_corpus
valid_json() { # valid_json FILE: CMake has a strict parser, and is wherever these tests run
    printf 'file(READ "%s" text)\nstring(JSON n LENGTH "${text}")\n' "$(realpath "$1")" >check.cmake
    cmake -P check.cmake 2>err
}
number() { # number KEY FILE: the last number that stands behind a key
    grep -oE "\"$1\": ?[-+.eE0-9]+" "$2" | tail -n 1 | sed 's/.*: *//'
}
equal() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 == b + 0 && a != "" && b != "") }'; }

# micro_batch 3 leaves a part of the validation windows over; the command evaluates more windows at once than the run does
run 0 train r.yaml --trace --log.sample_prompt="the king" --log.sample_tokens=16 --train.precision=bf16 --train.micro_batch=3 --train.batch_tokens=192 \
    --data.packing=documents --eval.tokens=2000
check "one line of result" [ "$(grep -c '^step=40 loss=[0-9.]* val_loss=[0-9.]* bits_per_byte=[0-9.]* report=runs/r/report.html$' out)" -eq 1 ]
for file in config.yaml env.json metrics.jsonl events.out.tfevents.* log.txt report.html exit.json ckpt/step-00000040; do
    check "runs/r/$file" ls runs/r/$file >out 2>err
done
for file in runs/r/*.json runs/r/trace/*.json; do check "$file is JSON" valid_json "$file"; done
check "a trace of the step" grep -q '"name":"train.step"' runs/r/trace/*.json
check "exit.json says finished" grep -q '"reason": "finished"' runs/r/exit.json
check "40 steps and 4 evaluations" [ "$(grep -c '"loss":' runs/r/metrics.jsonl)-$(grep -c '"val_loss":' runs/r/metrics.jsonl)" = 40-4 ]
check "a sample for each evaluation" [ "$(grep -c '"kind":"sample"' runs/r/metrics.jsonl)" -eq 4 ]
check "the log has every step" [ "$(grep -c 'step=[0-9]*/40 loss=' runs/r/log.txt)" -eq 40 ]
check "planned is measured" grep -qE 'memory +planned ([0-9]+) bytes, measured \1 ' runs/r/log.txt
check "the loss falls" awk -v a="$(grep -m 1 '"loss":' runs/r/metrics.jsonl | grep -o '"loss":[0-9.]*' | cut -d: -f2)" \
    -v b="$(number loss runs/r/metrics.jsonl)" 'BEGIN { exit !(b < 0.8 * a) }'

run 0 plan runs/r/config.yaml --json
check "plan is JSON" valid_json out
planned=$(sed -nE 's/.*memory +planned ([0-9]+) bytes.*/\1/p' runs/r/log.txt)
check "the plan is the run's: $planned" grep -q "[: ]$planned\b" out

run 0 eval runs/r --json
cp out eval.json
check "eval is JSON" valid_json eval.json
check "eval repeats the run's last val_loss exactly" equal "$(number loss eval.json)" "$(number val_loss runs/r/metrics.jsonl)"
run 0 eval runs/r --tokens 0 --json
check "--tokens 0 reads more" [ "$(number tokens out)" -gt "$(number tokens eval.json)" ]

run 0 generate runs/r --prompt "the king" --tokens 20 --temperature 0
check "the prompt is continued" grep -q '^the king.' out
run 0 generate runs/r --prompt "the king" --tokens 20 --seed 5
mv out text.a
run 0 generate runs/r --prompt "the king" --tokens 20 --seed 5
check "one seed, one text" cmp -s text.a out
run 0 generate runs/r --prompt "the king" --tokens 20 --seed 6
check "another seed, another text" sh -c '! cmp -s text.a out'
run 0 generate runs/r --tokens 4 --temperature 0 --samples 2

# What step 3 saw, against the shard's bytes
run 0 data inspect runs/r --step 3 --micro 1 --sequence 2 --json
at=$(grep -oE '"shard_token": ?[0-9]+' out | head -n 1 | sed 's/.*: *//') # of the first document in the sequence; the others follow
tr -d ' \n' <out | sed -E 's/.*"tokens":\[([0-9,]*)\].*/\1/' | tr ',' '\n' >tokens.a
echo >>tokens.a
od -An -v -w2 -tu2 -j$((1024 + 2 * ${at:-0})) -N64 data/c_train_000000.bin | tr -d ' ' >tokens.b
check "inspect shows the shard's tokens" cmp -s tokens.a tokens.b
check "a whole sequence" [ "$(grep -c . tokens.a)" -eq 32 ]

run 0 config runs/r/config.yaml
sed 's/ *# from.*//' out >config.a
check "config.yaml resolves to itself" cmp -s config.a runs/r/config.yaml
rm runs/r/report.html
run 0 report runs/r
check "a report with its curve" grep -q "^\"loss\":\[\[1,2,3" runs/r/report.html
run 0 ckpt list runs/r
check "keep-last-three" [ "$(grep -c '^step-' out)" -eq 3 ]

# A run that is over: --resume does no step and no harm; with more steps it goes on.
losses runs/r >before
run 0 train runs/r/config.yaml --resume
losses runs/r >after
check "a run that is over stays as it is" cmp -s before after
check "its result has no loss of a step it did not do" sh -c '! grep -q " loss=0.000000" out'
run 0 train runs/r/config.yaml --resume --train.steps=45
check "it goes on" grep -q '^step=45 ' out
check "the change is announced" grep -q 'train.steps' err
exit $failed
