#!/usr/bin/env bash
# Every command of README.md, docs/GUIDE.md, docs/DOCTOR.md and the examples' pages runs, in small (commands.txt), in the order of its page.
#
# A command is a line of a fenced block whose first line begins with a program's name (with a comma behind its verb it is output); a backslash at its end continues it. Each page has a
# directory of its own with corpus/*.txt, mine.jsonl, prompts.txt, pairs.jsonl, chats.jsonl, kjv.txt's bible, a rank file of tiktoken, token shards of
# llm.c (data/fineweb_*.bin, data/train_*.bin), a run (runs/kit) and a Hugging Face model of it (hf-kit), and the repository's examples/ and scripts/.
root=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/../shell.sh"
table=$root/tests/docs/commands.txt
command -v bible >/dev/null || { echo "skipped: bible-kjv is not installed"; exit 77; }

# commands PAGE: one command per line
commands() {
    awk '
    function flush() { if (line != "") print line; line = "" }
    /^```/ { flush(); inside = !inside; first = inside; next }
    inside && first { first = 0; run = $1 ~ /^(ingot|bible|mpirun|torchrun|srun|sbatch|squeue|scancel|cmake|export|kubectl|podman|apptainer|sudo|apt-get|python3|cat|tail|(\.\/)?scripts\/[a-z_]+\.sh)$/ && $2 !~ /,$/ }
    !inside || !run { next }
    {
        text = $0
        sub(/(^|[ \t]+)#([ \t].*)?$/, "", text)
        more = sub(/[ \t]*\\$/, "", text)
        gsub(/^[ \t]+|[ \t]+$/, "", text)
        line = line (line != "" && text != "" ? " " : "") text
        if (!more) flush()
    }' "$1"
}

# job_command: what the pod of the Kubernetes example runs, with paths of here
job_command() {
    tr '\n' ' ' <"$root/examples/kubernetes/job.yaml" | grep -oE 'command: \[[^]]*\]' |
        sed -E 's/^command: \[(.*)\]$/\1/; s/, +/ /g; s/"//g; s|/usr/share/doc/ingot/||; s|=/data/|=data/|g'
}

skips=() froms=() tos=()
while IFS= read -r rule; do
    case $rule in
    'skip '*' :: '?*) rule=${rule#skip } && skips+=("${rule%% :: *}") ;;
    'sub '*' => '*) rule=${rule#sub } && froms+=("${rule%% => *}") && tos+=("${rule#* => }") ;;
    '' | '#'*) ;;
    *) fail "commands.txt: neither a comment nor a rule: $rule" ;;
    esac
done <"$table"

# shrink COMMAND: prints it with all substitutions
shrink() {
    local now=$1 next i
    for i in "${!froms[@]}"; do
        next=$(sed -E $'s\001'"${froms[i]}"$'\001'"${tos[i]}"$'\001g' <<<"$now") || fail "commands.txt: '${froms[i]}' is no expression"
        [ "$next" = "$now" ] || echo "sub $i" >>"$work/used"
        now=$next
    done
    printf '%s\n' "$now"
}
skipped() { # skipped COMMAND
    local i
    for i in "${!skips[@]}"; do
        [[ $1 =~ ${skips[i]} ]] && echo "skip $i" >>"$work/used" && return 0
    done
    return 1
}

# ---- what the pages find
mkdir -p bin kit/corpus kit/data
ln -s "$ingot" bin/ingot
export PATH=$work/bin:$PATH
bible -f 'Gen1:1-Gen9:29' | sed 's/^[^ ]* //' >verses
split -l 8 -d -a 3 --additional-suffix=.txt verses kit/corpus/part
ingot tokenizer train verses --vocab-size 300 -o kit/small >/dev/null 2>err || fail "the kit's tokenizer"
ingot data build verses --tokenizer kit/small --val-tail 0.2 -o kit/data/fineweb >/dev/null 2>err || fail "the kit's shards"
for part in train val; do cp kit/data/fineweb_${part}_000000.bin kit/data/${part}_000000.bin; done
awk '{ gsub(/["\\]/, ""); printf "{\"text\": \"%s\"}\n", $0 }' verses | head -n 120 >kit/mine.jsonl
awk '{ gsub(/["\\]/, ""); printf "{\"prompt\": \"%s\", \"completion\": \" and so on\"}\n", $0 }' verses | head -n 120 >kit/pairs.jsonl
awk '{ gsub(/["\\]/, ""); printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": \"yes\"}]}\n", $0 }' \
    verses | head -n 120 >kit/chats.jsonl
head -n 3 verses >kit/prompts.txt
for i in $(seq 0 255); do printf '%s %d\n' "$(printf "\\x$(printf %02x "$i")" | base64)" "$i"; done >kit/small.tiktoken
printf '%s 256\n%s 257\n' "$(printf th | base64)" "$(printf the | base64)" >>kit/small.tiktoken
SMALL="--model.layer_count=2 --model.hidden_size=64 --model.ffn_size=128 --train.sequence_length=32 --train.micro_batch=1"
SMALL+=" --train.batch_tokens=128 --train.steps=4 --optim.warmup_steps=1 --eval.tokens=64 --log.sample_tokens=2 --machine.device=cpu --machine.threads=1"
TINY="--model.layer_count=4 --model.vocab_size=320 --model.mla_kv_rank=32" # one layer of each kind; fewer rows for tokens of the kit
export SMALL TINY
(cd kit && ingot train --data.train='data/fineweb_train_*.bin' --data.val='data/fineweb_val_*.bin' $SMALL --model.head_count=2 --model.context_length=64 \
    --run.dir=runs/kit && ingot ckpt export runs/kit -o hf-kit) >out 2>err || fail "the kit's model"
[ $failed -eq 0 ] || exit 1

count=0
for page in "$root"/README.md "$root"/docs/GUIDE.md "$root"/docs/DOCTOR.md "$root"/examples/README.md "$root"/examples/*/README.md; do
    name=${page#"$root"/}
    place=$work/pages/${name//\//-}
    mkdir -p "$place" && cp -r kit/. "$place"
    ln -s "$root/examples" "$root/scripts" "$root/docs" "$place"
    while IFS= read -r line; do
        skipped "$line" && continue
        command=$(shrink "$line")
        count=$((count + 1))
        (cd "$place" && bash -euo pipefail -c "$command") >out 2>err </dev/null ||
            fail "$name: exit $?: $line
    run as: $command"
    done < <(commands "$page"; [ "$name" != examples/kubernetes/README.md ] || job_command)
done
check "there are commands" [ $count -ge 20 ]
for i in "${!skips[@]}"; do grep -qx "skip $i" used || fail "commands.txt: no command fits: skip ${skips[i]}"; done
for i in "${!froms[@]}"; do grep -qx "sub $i" used || fail "commands.txt: no command fits: sub ${froms[i]}"; done
echo "$count commands"
exit $failed
