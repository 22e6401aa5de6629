#!/usr/bin/env bash
# `ingot config` and `ingot presets` from outside: results on stdout, words on stderr, exit codes, and a dump that is a config again.
root=$(realpath "$(dirname "$0")/../..")
presets=$root/src/spec/presets.def
. "$(dirname "$0")/../shell.sh"

printf 'model: {preset: nano}\ntrain:\n  steps: 10\n' >a.yaml
run 0 config a.yaml --optim.lr=1e-3
check "the origin of a file's value" grep -q '^  steps: 10  *# from a.yaml:3:10$' out
check "the origin of an override" grep -q '^  lr: 0.001  *# from command line$' out
check "the origin of a preset's value" grep -q '^  hidden_size: 320  *# from preset nano$' out
check "nothing on stderr" [ ! -s err ]
mv out b.yaml
run 0 config b.yaml
sed 's/ *# from.*//' b.yaml >was
sed 's/ *# from.*//' out >is
check "a dump resolves to itself" cmp -s was is
run 0 config --train.steps=4k a.yaml --json
check "json names value and origin" grep -q '"steps": {"value": 4000, "from": "command line"}' out
run 2 config a.yaml --train.stesp=1
check "the message names the key" grep -q "unknown key 'train.stesp' (did you mean 'train.steps'?)" err
check "nothing on stdout" [ ! -s out ]
run 2 config
run 2 config a.yaml b.yaml
run 2 config a.yaml --jsn
run 74 config missing.yaml
run 0 config --help
run 0 config --keys
check "keys carry default, unit and range" grep -q '^optim.beta1  *0.9  *1  *\[0, 1)  *decay of the first moment$' out
run 0 config --keys --markdown
sed -n '/^## model$/,$p' "$root/docs/CONFIG.md" >is
sed 1d out >was
check "docs/CONFIG.md holds every key as the program prints it; its head says how to renew it" cmp is was
run 2 config --markdown
run 0 config --names
sed -n '/^## Keys$/,$p' "$root/docs/NAMES.md" >is
sed 1d out >was
check "docs/NAMES.md holds every name as the program prints it; its head says how to renew it" cmp is was
run 0 config --names --json
check "names as JSON" python3 -c 'import json; n = json.load(open("out"))["names"]; assert any("fsdp" in r["words"] and r["target"] == "parallel.zero" for r in n)'
run 0 help data_parallel_shard_degree
check "the example at the head of docs/NAMES.md is what the program prints" cmp out <(awk '/^```/ { inside = 0 } inside; /^\$ ingot help data_parallel_shard_degree$/ { inside = 1 }' "$root/docs/NAMES.md")
run 2 config --names train
run 0 help --Learning-Rate
check "help finds another program's name" grep -q '^optim.lr (default 0.0003, range (0, 100\])$' out
run 0 help optim.beta1
check "help finds a key" [ "$(head -1 out)" = "optim.beta1 (default 0.9, range [0, 1))" ]
run 0 help fsdp
check "help says what differs" grep -q '3 = FSDP$' out
check "help of a name does not list what only mentions it" [ "$(grep -c '^[^ ]' out)" -eq 1 ]
run 0 help cp
check "a short word does not match inside of another" [ "$(grep '^[^ ]' out | grep -c cpu)" -eq 0 ]
run 0 help multi-token
check "help finds keys by their meaning" grep -q '^model.mtp_depth ' out
while IFS='|' read -r word target; do
    # shellcheck disable=SC2086 # two words are one name
    run 0 help $word
    check "help $word" grep -q -- "^$target" out
done <<'EOF'
gradient accumulation|train.batch_tokens
data parallel|ingot launch -n N
slurm|sbatch .* scripts/slurm_train.sh RUN.yaml$
multi-node|sbatch
mpi|mpirun
rdzv|ingot launch -n N
reshard|ingot train RUN --resume$
universal_checkpoint|ingot train RUN --resume$
throughput|ingot monitor RUN$
mfu|ingot monitor RUN$
huggingface|ingot ckpt import HF_DIR -o RUN$
vllm|ingot ckpt export RUN -o HF_DIR$
sentencepiece|ingot tokenizer import
mixture|data.train
no_decay|optim.decay_scale
lr_decay_iters|train.steps
loss_scale|train.precision
nan|ingot explain RUN$
oom|ingot plan RUN.yaml$
hang|ingot explain RUN$
watchdog|ingot explain RUN$
flight recorder|ingot explain RUN$
EOF
run 0 config --names
grep -oE 'docs/[A-Z]+\.md#[a-z0-9-]+' out | sort -u >notes
check "names lead to sections" [ "$(wc -l <notes)" -ge 8 ]
while IFS='#' read -r page section; do
    grep '^##* ' "$root/$page" | sed 's/^#* //' | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9\n_-' >sections
    check "$page has a section #$section" grep -qx -- "$section" sections
done <notes
run 2 help no_such_word_at_all
check "help names the lists" grep -q "no verb, option or key has 'no_such_word_at_all'" err
run 2 help --
run 0 presets
check "presets and a heading" [ "$(wc -l <out)" -eq $(($(grep -c '^PRESET(' "$presets") + 1)) ]
check "exact parameter counts" grep -q '^llama-1b .* 1235814400 ' out
run 0 presets --json
check "json of presets" grep -q '"name": "gpt2-124m".*"parameters": 124439808' out
run 0 presets 7b-gqa
printf 'train: {steps: 1}\n' >>out
mv out c.yaml
run 0 config c.yaml
run 2 presets 7bgqa
check "the nearest preset" grep -q "did you mean '7b-gqa'" err
exit $failed
