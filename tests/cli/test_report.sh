#!/usr/bin/env bash
# ingot report and ingot runs from outside: where the pages go, what is refused, what the list says.
. "$(dirname "$0")/../shell.sh"
step() { # step STEP LOSS: a record
    printf '{"kind":"step","step":%d,"tokens":%d,"time":%d,"loss":%s}\n' "$1" $((100 * $1)) $((1000 + $1)) "$2"
}
write_run() { # write_run DIR
    mkdir -p "$1"
    { step 1 3.5; step 2 3.25; } >"$1/metrics.jsonl"
    printf 'model:\n  layer_count: 2\n  hidden_size: 32\ntrain:\n  steps: 4\n' >"$1/config.yaml"
}
write_run runs/a
write_run runs/sweep/b
run 0 report runs/a
check "its page" [ "$(cat out)" = runs/a/report.html -a -s runs/a/report.html ]
run 0 report runs/a --json
check "the path as JSON" [ "$(sed -nE 's/.*"report": "(.*)".*/\1/p' out)" = runs/a/report.html ]
run 0 report runs/a -o one.html
check "the same page elsewhere" cmp -s one.html runs/a/report.html
run 0 report runs/a runs/sweep/b
check "a page for both" [ "$(cat out)" = runs/compare.html -a -s runs/compare.html ]
run 2 report
says 'ingot report RUN... [options]'
run 3 report data
says 'data: not a run directory'
run 3 report runs/a none -o both.html
says 'none: not a run directory'
check "no page" [ ! -e both.html ]
run 74 report runs/a -o no/where.html

run 0 runs
check "two runs, the newer record first or by name" [ "$(awk 'NR > 1 { print $1 }' out | tr '\n' ' ')" = "runs/a runs/sweep/b " ]
check "the line of a run" grep -qE '^runs/a +2 x 32 +- +2/4 +200 +3\.3750 +- +- +killed ' out
run 0 runs runs/sweep --json
check "as JSON" grep -q '"run": "runs/sweep/b"' out
check "what is not known is null" grep -q '"val_loss": null' out
run 0 runs runs/a
check "a run itself" grep -q '^runs/a ' out
mkdir empty
run 0 runs empty
check "none" grep -q '^no run in empty$' out
run 0 runs empty --json
check "an empty list" [ "$(tr -d ' \n' <out)" = '[]' ]
run 74 runs nowhere
says 'nowhere: No such file or directory; name the directory that holds the runs'
run 2 runs runs empty
says "'empty' is one too many"

# Cut in the middle, and a record that is no JSON: the rest is shown, and the page says what is missing.
{ step 3 NaN; step 4 3.0; step 5 2.0 | head -c 30; } >>runs/a/metrics.jsonl
run 0 report runs/a
check "counted" grep -q 'could not be read: 2\.' runs/a/report.html
check "the others are there" grep -qF '"loss":[[1,2,4],[3.5,3.25,3]]' runs/a/report.html
exit $failed
