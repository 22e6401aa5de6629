#!/usr/bin/env bash
# A pipe, a device, a directory or a link where a regular file is expected: one line at once, nobody waits, and no write leaves the run's
# directory. What a run writes follows the umask and holds no secret.
. "$(dirname "$0")/../shell.sh"
make_corpus
mkfifo pipe
short=(--train.steps=2 --eval.every=0 --optim.warmup_steps=0)

refused() { # refused CODE TEXT ARGS...: within 10 s
    local code=$1 text=$2 got
    shift 2
    timeout 10 "$ingot" "$@" >out 2>err
    got=$?
    [ $got -eq "$code" ] || fail "ingot $* exits with $got, not $code"
    says "$text"
}
for file in pipe /dev/zero /dev/null; do
    refused 74 "'$file' is not a regular file" train $file
    refused 74 "'$file' is not a regular file" data build $file --tokenizer tok -o made/x
done
refused 74 "'pipe' is not a regular file" train r.yaml --data.train=pipe
refused 74 "'pipe' is not a regular file" tokenizer train pipe -o made
refused 74 "a file stands where a directory should be" train r.yaml --run.dir=pipe
mkdir piped
mkfifo piped/tokenizer.json
refused 74 "'piped/tokenizer.json' is not a regular file" data build corpus.txt --tokenizer piped -o made/x

# What a run writes: a pipe is refused, a link, too, and its target stays as it is. What is replaced as a whole replaces the link.
for file in log.txt metrics.jsonl lock; do
    rm -rf run
    mkdir run
    mkfifo run/$file
    refused 74 "'run/$file' is not a regular file" train r.yaml --run.dir=run --resume "${short[@]}"
    rm run/$file
    echo mine >target
    ln -s ../target run/$file
    refused 74 "run/$file" train r.yaml --run.dir=run --resume "${short[@]}"
    check "run/$file: the target of a link" [ "$(cat target)" = mine ]
done
for file in env.json exit.json report.html; do
    rm -rf run
    mkdir run
    ln -s ../target run/$file
    run 0 train r.yaml --run.dir=run "${short[@]}"
    check "run/$file: the target of a link" [ "$(cat target)" = mine ]
    check "run/$file is no link" [ ! -L run/$file ]
done
rm -rf run
mkdir run elsewhere
ln -s ../elsewhere run/ckpt
refused 74 "'run/ckpt' is no directory" train r.yaml --run.dir=run "${short[@]}"
check "nothing is written behind the link" [ -z "$(ls elsewhere)" ]

# A link on the way to the run, or to the data, is the user's own.
rm -rf run
mkdir disk
ln -s disk run
ln -s data shards
run 0 train r.yaml --run.dir=run --data.train='shards/c_train_*.bin' "${short[@]}"
check "the run is where the link leads" [ -d disk/ckpt ]
# Standard input is a corpus.
"$ingot" data build - --tokenizer tok -o made/stdin <corpus.txt >out 2>err || fail "data build - does not read standard input"
cat corpus.txt | "$ingot" data build - --tokenizer tok -o made/piped >out 2>err || fail "data build - does not read a pipe"

# Reports of a run whose files are pipes.
rm -rf disk
mkdir disk
mkfifo disk/metrics.jsonl disk/env.json disk/lock
timeout 10 "$ingot" report run >out 2>err
[ $? -eq 124 ] && fail "report waits for a pipe"

# The umask, and the environment.
rm -rf disk/* run2
(
    umask 007
    export HF_TOKEN=secret-hf INGOT_JOB_SECRET=secret-job NCCL_API_KEY=secret-nccl OMP_PASSWORD=secret-omp OMP_SCHEDULE=static
    run 0 train r.yaml --run.dir=run2 "${short[@]}"
    exit $failed
) || failed=1
for file in run2/log.txt run2/lock run2/metrics.jsonl run2/env.json run2/config.yaml run2/exit.json run2/report.html run2/ckpt/step-*/*; do
    [ "$(stat -c %a "$file")" = 660 ] || fail "$file has mode $(stat -c %a "$file"), not 660"
done
for directory in run2 run2/ckpt run2/ckpt/step-*; do
    [ "$(stat -c %a "$directory")" = 770 ] || fail "$directory has mode $(stat -c %a "$directory"), not 770"
done
grep -rl 'secret-' run2 && fail "a secret is in the run's directory"
check "settings are kept" grep -q '"OMP_SCHEDULE": "static"' run2/env.json
exit $failed
