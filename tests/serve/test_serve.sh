#!/usr/bin/env bash
# ingot serve as a program: what it answers, whom it refuses, under attack, beside a run that trains; in a browser where there is one.
here=$(dirname "$(realpath "$0")")
. "$here/../shell.sh"
if "$ingot" serve --port 0 --token-file none none 2>&1 | grep -q 'built without libmicrohttpd'; then
    echo "built without libmicrohttpd: skipped"
    exit 77
fi
command -v curl >/dev/null && command -v jq >/dev/null && command -v python3 >/dev/null || { echo "no curl, jq or python3: skipped"; exit 77; }
make_corpus
unset INGOT_ROOT
home=$HOME
export HOME=$work XDG_CONFIG_HOME=
printf 'gpm=0\ncards=2\ncard 0 xid=31\n' >gpus
INGOT_NVML_SCRIPT=gpus run 0 train r.yaml --run.dir=runs/a --log.sample_prompt='the king' --log.host_every=0.2
sed -i '/"gpu":1,/s/"busy_percent":/"tensor_percent":61,"busy_percent":/' runs/a/gpu-*.jsonl
run 0 train r.yaml --run.dir=runs/b --optim.lr=1e-3 --log.sample_prompt='<script>alert(1)</script>'
"$ingot" train r.yaml --run.dir=runs/live --train.steps=1000000 --ckpt.every=100000 --eval.every=100000 >/dev/null 2>&1 &
live=$!
wait_for_step runs/live 20 $live

"$ingot" serve --port 0 >said 2>err &
server=$!
trap 'kill $server $live 2>/dev/null; rm -rf "$work"' EXIT
until grep -q '#t=' said || ! kill -0 $server 2>/dev/null; do sleep 0.05; done
port=$(sed -n 's/.*:\([0-9]*\)\/#t=.*/\1/p' said | head -n 1)
token=$(cat .config/ingot/token)
check "it says what it serves" grep -q '^3 runs, 1 running: http://127.0.0.1:[0-9]*/#t=' said
check "its token is its own" [ "$(stat -c %a .config/ingot/token)" = 600 ]
fetch() { curl -sS --max-time 120 -H "Authorization: Bearer $token" "http://127.0.0.1:$port$1"; }

"$ingot" serve --port 0 --json >said.json 2>err2 &
second=$!
until grep -q '}' said.json || ! kill -0 $second 2>/dev/null; do sleep 0.05; done
check "where it listens, as JSON" [ "$(curl -sS -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $token" "http://127.0.0.1:$(jq .port said.json)/healthz") $(jq '.runs, .running' said.json | tr '\n' ' ')" = "200 3 1 " ]
check "the address that the page has" jq -e --arg t "$token" '.url == "http://127.0.0.1:\(.port)/#t=\($t)"' said.json >/dev/null
kill $second
fetch /api/runs >runs.json
check "runs" [ "$(jq '.runs | length' runs.json)" -eq 3 ]
check "one of them runs" [ "$(jq '[.runs[] | select(.state == "running")] | length' runs.json)" -eq 1 ]
fetch /api/runs/0 >one.json
check "a run by its number" jq -e '.schema == "ingot.monitor/1"' one.json >/dev/null
# its records from a step on: in order, none twice, none left out; a step that is not there yet is no error
is() { jq -e "$1" "$2" >answer || fail "$2: $(head -c 300 "$2")"; }
id=$(jq '[.runs[].run] | index("a")' runs.json)
fetch "/api/runs/$id?since=0" >all.json
is '.schema == "ingot.history/1" and .since == 0 and .step == 40 and .more == false and .branch == 0' all.json
check "all steps" [ "$(jq -c '[.records[] | select(.loss) | .step]' all.json)" = "[$(seq -s, 1 40)]" ]
fetch "/api/runs/$id?since=30" >some.json
is '[.records[].step] | min == 30 and max == 40' some.json
is '[.records[] | select(.step == 30 and .val_loss)] | length == 1' some.json
check "the same records" [ "$(jq -c '[.records[] | select(.step >= 30)]' all.json)" = "$(jq -c .records some.json)" ]
check "nothing new" [ "$(fetch "/api/runs/$id?since=41" | jq -c '[.records, .step]')" = '[[],41]' ]
for since in x -1 1.5 99999999999999999999; do
    check "no step: $since" [ "$(fetch "/api/runs/$id?since=$since")" = "since: a step, such as ?since=500" ]
done
check "no such run" [ "$(fetch '/api/runs/99?since=1')" = "no such run" ]
# a long run: 300,000 steps, some 40 MB; what is asked is found, and comes in parts
mkdir -p long/big && cp runs/a/config.yaml runs/a/env.json long/big/
awk 'BEGIN { print "{\"kind\":\"schema\",\"format\":\"ingot metrics\",\"version\":1}"; print "{\"kind\":\"start\",\"step\":0,\"time\":1.8e9}"
    for (i = 1; i <= 300000; i++) {
        printf "{\"kind\":\"step\",\"step\":%d,\"tokens\":%d,\"time\":%d,\"loss\":3.25,\"lr\":0.001,\"grad_norm\":0.5,\"step_s\":0.5,\"tokens_per_s\":16384}\n", i, i * 8192, 1.8e9 + i
        if (i % 1000 == 0) printf "{\"kind\":\"eval\",\"step\":%d,\"time\":%d,\"val_loss\":3.5}\n", i, 1.8e9 + i
    } }' >long/big/metrics.jsonl
serve_more() { # serve_more ARGS...: another server, its process in second, its port in more_port
    rm -f said2
    "$ingot" serve "$@" --port 0 >said2 2>/dev/null &
    second=$!
    until grep -qs 'running: http' said2 || ! kill -0 $second 2>/dev/null; do sleep 0.05; done
    more_port=$(sed -n 's|.*127.0.0.1:\([0-9]*\)/.*|\1|p' said2 | head -n 1)
}
serve_more long
python3 - "$more_port" "$token" <<'PY' || fail "the records of a long run"
import json, sys, urllib.request
port, token = sys.argv[1:]
def get(since):
    r = urllib.request.Request(f"http://127.0.0.1:{port}/api/runs/0?since={since}", headers={"Authorization": "Bearer " + token})
    body = urllib.request.urlopen(r).read()
    assert len(body) < 8 << 20, len(body)
    return json.loads(body)
for since in (1, 2, 999, 1000, 150000, 299999, 300000):
    o = get(since)
    steps = [r["step"] for r in o["records"] if r["kind"] == "step"]
    assert steps == list(range(since, o["step"] + 1)), (since, steps[:3], o["step"])
    assert o["more"] == (o["step"] < 300000), (since, o["step"])
    assert since % 1000 or any(r["kind"] == "eval" and r["step"] == since for r in o["records"]), since
seen, since = set(), 0
while True:
    o = get(since)
    seen |= {(r["kind"], r["step"]) for r in o["records"]}
    if not o["more"]: break
    assert o["step"] > since
    since = o["step"]
assert sum(k == "step" for k, _ in seen) == 300000 and sum(k == "eval" for k, _ in seen) == 300
PY
kill $second
wait $second 2>/dev/null
fetch /api/curves >curves.json
check "curves of all" jq -e '(.runs | length) == 3 and (.runs[0].series.loss | length) >= 2' curves.json >/dev/null
fetch /api/view >view.html
check "settings that differ" grep -q 'optim.lr' view.html
check "alerts" grep -q 'memory page fault of a program' view.html
check "GPUs" grep -q 'gpu1' view.html
check "samples" grep -q 'the king' view.html
check "no text of a run is a tag" [ "$(grep -c '<script' view.html)" -eq 0 ]
fetch /metrics >metrics.txt
check "OpenMetrics ends" [ "$(tail -n 1 metrics.txt)" = '# EOF' ]
check "steps" grep -q '^ingot_steps_total{run="a"} 40$' metrics.txt
check "one GPU tells of its tensor cores, the other is left out" [ "$(grep -c '^ingot_gpu_tensor_ratio{' metrics.txt)" -eq 1 ]
check "GPUs' numbers" grep -q '^ingot_gpu_watts{run="a",host="[^"]*",gpu="1",uuid="[^"]*"} ' metrics.txt
if HOME=$home python3 -c 'import prometheus_client' 2>/dev/null; then
    check "Prometheus' parser takes it" env HOME="$home" python3 "$here/../../tools/check_openmetrics.py" metrics.txt >/dev/null
fi
check "tensor cores" grep -q '^ingot_gpu_tensor_ratio{run="a",host="[^"]*",gpu="1",uuid="[^"]*"} 0.6[01]' metrics.txt
# events: one now, another when the run goes on
curl -sSN --max-time 120 -H "Authorization: Bearer $token" "http://127.0.0.1:$port/events" 2>/dev/null | grep -m 2 '^data: {"version":' >events
check "events come" [ "$(wc -l <events)" -eq 2 ]

python3 "$here/attack.py" "$port" "$token" 1000 >attack.txt || fail "under attack: $(cat attack.txt)"
check "it lives" kill -0 $server
# a viewer that stands still costs the run nothing: it reads files
kill -STOP $server
before=$(grep -o '"kind":"step","step":[0-9]*' runs/live/metrics.jsonl | tail -n 1 | cut -d: -f3)
[ "$before" -gt 0 ] && wait_for_step runs/live $((before + 50)) $live || fail "the run does not go on beside a stopped server"
kill -CONT $server

# --- for Prometheus alone ---
serve_more runs --metrics-only
check "it names the address and no token" grep -qE '^3 runs, 1 running: http://127.0.0.1:[0-9]+/metrics, with Authorization: Bearer TOKEN; the token is in ~/.config/ingot/token$' said2
code() { curl -s -o answer -w '%{http_code}' --max-time 120 -H "Authorization: Bearer $token" "http://127.0.0.1:$more_port$1"; }
check "/metrics" [ "$(code /metrics)" = 200 ]
check "with the steps" grep -q '^ingot_steps_total{run="a"} 40$' answer
check "/healthz" [ "$(code /healthz)" = 200 ]
for url in / /api/runs /api/curves /api/view /events /v1/models '/api/runs/0?since=3'; do
    check "no $url" [ "$(code "$url")" = 404 ]
done
check "no metrics without the token" [ "$(curl -s -o answer -w '%{http_code}' "http://127.0.0.1:$more_port/metrics")" = 401 ]
kill $second
wait $second 2>/dev/null
run 2 serve runs --port 0 --metrics-only --model runs/a
says 'not with --model'

# --- slips ---
run 74 serve runs --port "$port"
says "port $port is taken by process $server (ingot)"
run 2 serve runs --port 0 --host 0.0.0.0
says 'add --token-file'
echo 0123456789abcdef0123 >loose
chmod 644 loose
run 2 serve runs --port 0 --token-file loose
says 'can be read by others (mode 644): chmod 600'
echo short >bad
chmod 600 bad
run 2 serve runs --port 0 --token-file bad
says 'must hold one line'
run 2 serve runs --port 0 --token-file nothing
run 2 serve runs --port 65536
mkdir empty
run 3 serve empty --port 0
says 'no run in empty'
run 74 serve nowhere --port 0

# --- a browser ---
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || browser=
if [ -n "$browser" ]; then
    for seconds in 15 60 240; do # a busy machine needs the longer ones
        timeout $((seconds + 60)) "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/chrome" --virtual-time-budget=$((seconds * 1000)) \
            --timeout=$((seconds * 1000)) --dump-dom "http://127.0.0.1:$port/#t=$token" >page.html 2>browser.txt
        grep -q '<figure class="wide">' page.html && grep -q 'running, step' page.html && break
    done
    check "the page draws curves" grep -q '<figure class="wide">' page.html
    check "and shows what the run does" grep -q 'running, step' page.html
    check "the token has left the address and the page" [ "$(grep -c "$token" page.html)" -eq 0 ]
fi
kill -TERM $server
wait $server
check "SIGTERM ends it with 0" [ $? -eq 0 ]
kill $live
exit $failed
