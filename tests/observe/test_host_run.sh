#!/usr/bin/env bash
# The host's record of whole runs: one file per host, also of two ranks; metrics, report and env.json carry it; 0 switches it off.
. "$(dirname "$0")/../shell.sh"
make_corpus
unset INGOT_ROOT
printf 'cards=2\ncard 1 sm_mhz=1200 watts=640 reasons=64\n' >gpus
export INGOT_NVML_SCRIPT=$work/gpus
run 0 train r.yaml --run.dir=a --log.host_every=0.5
file=$(ls a/gpu-*.jsonl)
check "one file" [ "$(ls a/gpu-*.jsonl | wc -l)" -eq 1 ]
check "its schema" [ "$(head -n 1 "$file")" = '{"kind":"schema","format":"ingot host","version":1}' ]
check "lines of both GPUs" grep -q '"kind":"gpu".*"gpu":1,.*"sm_mhz":1200' "$file"
check "lines of the host" grep -q '"kind":"host".*"memory_available":' "$file"
check "its end" [ "$(tail -n 1 "$file" | grep -c '"kind":"end"')" -eq 1 ]
check "metrics" grep -q '"kind":"step".*"gpu_watts":716,"gpu_mhz":345,"gpu_celsius":31,"gpu_memory":[0-9.e+]*,"gpu_throttled":1,"host_available":' a/metrics.jsonl
check "report" grep -q '"gpu_watts":' a/report.html
check "TensorBoard" grep -qa 'host/gpu_watts' a/events.out.tfevents.*
check "env.json: GPUs" grep -q '"vbios": "96.00.BC.00.01"' a/env.json
check "env.json: limits" grep -q '"memlock"' a/env.json

run 0 launch --no-doctor -n 2 -- train r.yaml --run.dir=b
check "two ranks, one record" [ "$(cat b/gpu-*.jsonl | grep -c '"kind":"start"')" -eq 1 ]
check "what each rank took" grep -q '"kind":"ranks".*"rank":\[0,1\],"work_s":\[[0-9.e-]*,[0-9.e-]*\],"wait_s":\[' b/metrics.jsonl
run 0 train r.yaml --run.dir=c --log.host_every=0
check "none" [ -z "$(ls c/gpu-*.jsonl 2>/dev/null)" ]
same_run "the record changes nothing" a c
run 2 train r.yaml --run.dir=d --log.host_every=-1
exit $failed
