#!/usr/bin/env bash
# ingot plan --calibrate: rates that were measured before a kill are kept, the file is a machine of --machine, curves go through their two rates; what is
# wrong is one line. Nothing asserts a rate.
. "$(dirname "$0")/../shell.sh"
calibrate=(plan --calibrate ./here.machine --machine.device=cpu --machine.threads=2)
# Killed after the first numbers, two times: the second has fewer to measure.
killed() { # killed: starts a calibration, and kills it when it has told a number
    "$ingot" "${calibrate[@]}" >"$1" 2>err &
    local pid=$!
    for ((i = 0; i < 600; i++)); do
        grep -q ' of ' "$1" && break
        sleep 0.2
    done
    kill -9 $pid
    wait $pid 2>/dev/null
    grep -oE 'of [0-9]+' "$1" | head -n 1 | cut -d' ' -f2
}
first=$(killed out.1)
check "what is measured is in a part of the file" grep -q '^# measured peak_bf16: [0-9]' here.machine.part
[ -e here.machine ] && fail "a killed calibration left a machine file"
second=$(killed out.2)
check "the next one goes on" [ "$second" -lt "$first" ]
head -n 1 here.machine.part >who

# All but a few are known: GEMMs of minutes, and attention on r(T) = 0.5 T / (T + 100) of a peak of 1e12.
{
    cat who
    echo '# measured peak_bf16: 1e12'
    echo '# measured peak_fp32: 2e11'
    for w in 256 512 1024 2048 4096; do echo "# measured gemm_bf16_$w: $((w * 100000000))"; done
    echo '# measured gemm_bf16_8192: 0'
    for w in 256 512 1024 2048 4096 8192; do echo "# measured gemm_fp32_$w: 1e11"; done
    for kind in narrow wide latent; do
        for way in forward backward; do
            awk -v k=$kind -v w=$way 'BEGIN { for (i = 0; i < 2; i++) { t = i ? 2048 : 256; printf "# measured %s_%s_%s: %.9g\n", k, w, i ? "long" : "short", 0.5e12 * t / (t + 100) } }'
        done
    done
    echo '# measured stream_bf16: 1e10'
} >here.machine.part
run 0 "${calibrate[@]}"
check "only the rest was measured" [ "$(grep -oE 'of [0-9]+' out | head -n 1)" = "of 4" ]
[ -e here.machine.part ] && fail "the part stays"
check "attention's curve" grep -q '^wide_backward: 0.5 100$' here.machine
check "shares of the peak, the widest as the one before" grep -q '^share_16: 0.0256 0.0512 0.1024 0.2048 0.4096 0.4096$' here.machine
check "shares in fp32" grep -q '^share_32: 0.5 0.5 0.5 0.5 0.5 0.5$' here.machine
check "links between two ranks" grep -q '^link_rate: [0-9]' here.machine
check "what was not measured is said" grep -q '^# Not measured.*net_rate' here.machine
big=(--model.preset=gpt2-124m --train.batch_tokens=8192 --train.steps=1 --train.precision=bf16)
run 0 plan "${big[@]}" --machine ./here.machine
check "the plan has its peak" grep -q '^machine .*: 1 TFLOP/s' out
# Another number of threads is another machine; one rank has no link.
mv here.machine here.done
{ sed 's/2 threads/3 threads/' who; grep '^# measured' here.done; } >here.machine.part
run 2 "${calibrate[@]}"
says "here.machine.part is of another machine or other threads"
{ cat who; grep '^# measured' here.done | grep -v link; } >here.machine.part
run 0 "${calibrate[@]}" --machine 1xcpu
check "one rank: no link" eval 'grep -q "link.*none here" out && ! grep -q ^link_rate here.machine && grep -q "Not measured.*link_rate" here.machine'

run 2 plan --calibrate here
says "plan: --calibrate here: --machine takes a file whose name has a dot or a slash, such as here.machine"
run 2 plan --calibrate ./x.machine --machine.device=cpu --machine h100
says "plan: --calibrate: --machine h100: what is measured is"
run 2 plan --calibrate ./x.machine --train.steps=1
says "of all keys it takes machine.device=cpu or cuda, and machine.threads=N, not"
run 2 plan --calibrate ./x.machine --json
says "plan: --calibrate measures, and plans nothing"
run 2 plan --calibrate ./x.machine r.yaml
exit $failed
