#!/usr/bin/env bash
# train.verify: one flipped bit in a gradient, a weight or a moment is named with its rank, at random places; clean runs raise no alarm and
# have the bits of runs without it. FLIPS=N: so many of each (scripts/faults.sh); CLEAN=N: so many clean micro-batches.
. "$(dirname "$0")/../shell.sh"
make_corpus
RANDOM=$((${SEED:-$(date +%N | sed 's/^0*//')} % 32768))
echo "SEED=${SEED:-$RANDOM}"
flips=${FLIPS:-1}
keys=(--train.batch_tokens=384 --train.micro_batch=2 --train.steps=12 --eval.every=0 --ckpt.every=2 --machine.threads=1)
share() { echo "--train.verify=$(awk -v n="$1" 'BEGIN { print n / 12 }')"; } # every second step: a rank has 6 / RANKS micro-batches
declare -A injected named
life() { # life RANKS KEYS...
    local ranks=$1
    shift
    if [ "$ranks" -eq 1 ]; then
        "$ingot" train r.yaml "$@" >out 2>err
    else
        "$ingot" launch -n "$ranks" --no-doctor -- train r.yaml "$@" >out 2>err
    fi
}
# flip RANKS WHAT TEXT KEYS...: with INGOT_FLIP, a bit at random; the error must have TEXT and the right rank.
flip() {
    local ranks=$1 what=$2 text=$3 rank=$((RANDOM % $1)) step=$((RANDOM % 9 + 1)) bit=$((RANDOM * 32768 + RANDOM)) code=0 lines
    shift 3
    [ "$what" = gradient ] && step=$((step | 1)) # of an unverified micro-batch nothing finds it
    local name="rank $rank of $ranks, step $step, $what, bit $bit, $*"
    rm -rf hurt
    INGOT_FLIP=$rank:$step:$what:$bit life "$ranks" --run.dir=hurt "${keys[@]}" "$(share "$ranks")" "$@" || code=$?
    injected[$what]=$((${injected[$what]:-0} + 1))
    lines=$(grep 'silent data corruption: ' err | grep -F "rank $rank (host $(hostname))" | grep -c "$text")
    if [ $code -ne 14 ] || [ "$lines" -eq 0 ]; then
        fail "$name: exit code $code, or not named"
    else
        named[$what]=$((${named[$what]:-0} + 1))
    fi
    all_sound "$name" hurt
}
for dtype in fp32 bf16; do
    for _ in $(seq "$flips"); do
        flip 1 gradient "and rightly when asked again" --train.precision=$dtype
        flip 2 gradient "and rightly when asked again" --train.precision=$dtype
        flip 3 gradient "and rightly when asked again" --train.precision=$dtype
        flip 1 weight "weights of" --train.precision=$dtype
        flip 2 weight "weights of" --train.precision=$dtype --parallel.zero=1
        flip 2 moment "moments of" --train.precision=$dtype --optim.state=int8
        flip 3 moment "moments of" --train.precision=$dtype
        flip 3 update "are not those of the other replicas" --train.precision=$dtype
        flip 3 unit "wrongly, each time" --train.precision=$dtype
    done
done

# --- what two replicas cannot tell is said as it is: both are named ---
rm -rf hurt
INGOT_FLIP=1:4:unit:4711 life 2 --run.dir=hurt "${keys[@]}" "$(share 2)"
check "two that disagree each time: exit code 14" [ $? -eq 14 ]
check "both are named" grep -q 'rank [01] (host .*) and rank [01] (host .*) compute the gradient of .* differently, each time' err
rm -rf hurt
INGOT_FLIP=1:4:update:4711 life 2 --run.dir=hurt "${keys[@]}" "$(share 2)"
check "two replicas that differ: exit code 14" [ $? -eq 14 ]
check "both replicas are named" grep -q 'differ on rank 0 (host .*) and rank 1 (host .*) since an update between steps 3 and 5' err
check "checkpoints behind the last comparison are not trusted" [ "$(cat hurt/ckpt/back)" = 2 ]
code=0
life 2 --run.dir=hurt "${keys[@]}" "$(share 2)" --resume || code=$?
check "the run goes on" [ $code -eq 0 ]
life 2 --run.dir=clean2 "${keys[@]}"
same_run "resumed from before" clean2 hurt

# --- launch --restart goes on by itself, with the losses of an undisturbed run ---
INGOT_FLIP=1:5:weight:123456 "$ingot" launch -n 2 --restart 1 --no-doctor -- train r.yaml --run.dir=again "${keys[@]}" "$(share 2)" >out 2>err
check "a restart repeats the fault of the test: exit code 14" [ $? -eq 14 ]
check "it was restarted" grep -q 'exit code 14 (silent data corruption.*restart 1 of 1' err

# --- the bits of a run are those without train.verify; no false alarm ---
for dtype in fp32 bf16; do
    life 1 --run.dir=plain "${keys[@]}" --train.precision=$dtype
    life 1 --run.dir=checked "${keys[@]}" --train.precision=$dtype --train.verify=100% --train.micro_batch=12
    grep -q '12 micro-batches computed twice' err || fail "train.verify says what it did"
    rm -rf checked
    life 1 --run.dir=checked "${keys[@]}" --train.precision=$dtype "$(share 1)"
    same_run "one rank, $dtype" plain checked
    life 3 --run.dir=three "${keys[@]}" --train.precision=$dtype
    life 3 --run.dir=three_checked "${keys[@]}" --train.precision=$dtype "$(share 3)" --train.verify_state=verified
    same_run "three ranks, $dtype" three three_checked
    rm -rf plain checked three three_checked
done
planned=(--parallel.zero=1 "${keys[@]}" "$(share 2)")
life 2 --run.dir=planned "${planned[@]}"
planned_is_measured r.yaml 2 "${planned[@]}" --run.dir=planned
clean=${CLEAN:-200}
life 2 --run.dir=long --train.batch_tokens=64 --train.micro_batch=1 --train.steps=$((clean / 2)) --eval.every=0 --ckpt.every=1000 --train.verify=1 \
    --machine.threads=1 --optim.lr=1e-3
check "$clean clean micro-batches" [ $? -eq 0 ]

# --- what it cannot be with is one line ---
run 2 train r.yaml --run.dir=no --train.verify=0.1% --train.precision=fp8
says "train.verify does not work with a train.precision but fp32 and bf16"
run 2 train r.yaml --run.dir=no --train.verify=80%
says "train.verify 0.8: of the 2 micro-batches of a rank's step the first can be computed twice, which is 0.5 of them"
run 2 train r.yaml --run.dir=no --train.verify=120%
for what in "${!injected[@]}"; do printf '%-8s %9d %9d\n' "$what" "${injected[$what]}" "${named[$what]:-0}"; done | sort
exit $failed
