#!/usr/bin/env bash
# ingot serve --model: completions against ingot eval and ingot generate, streams, refusals, a full queue, hostile bodies. The same through
# lm-evaluation-harness: tests/serve/test_lm_eval.sh.
here=$(dirname "$(realpath "$0")")
. "$here/../shell.sh"
if "$ingot" serve --port 0 --token-file none none 2>&1 | grep -q 'built without libmicrohttpd'; then
    echo "built without libmicrohttpd: skipped"
    exit 77
fi
command -v python3 >/dev/null || { echo "no python3: skipped"; exit 77; }
make_corpus
run 0 train r.yaml --run.dir=runs/a --model.context_length=64 --train.sequence_length=32
token=0123456789abcdef0123
echo $token >token
chmod 600 token
for i in 3 7 8; do printf '{"text":"%s"}\n' "$(sed -n "${i}p" corpus.txt | cut -c1-60)"; done >texts.jsonl
run 0 eval runs/a --tasks perplexity=texts.jsonl --samples samples.jsonl --per-token
run 0 generate runs/a --prompt 'the king' --tokens 12 --temperature 0.8 --top-p 0.95 --seed 3 --samples 2 --json
mv out generated.json

serve() { # serve MODEL: in the background; sets server and port
    : >said # of the one before
    "$ingot" serve --model "$1" --port 0 --token-file token >said 2>err &
    server=$!
    trap 'kill $server 2>/dev/null; rm -rf "$work"' EXIT
    until grep -q '^from your desk' said || ! kill -0 $server 2>/dev/null; do sleep 0.05; done
    port=$(sed -n 's/.*:\([0-9]*\)\/#t=.*/\1/p' said | head -n 1)
}
serve runs/a
check "it says so" grep -q '^model runs/a: POST /v1/completions' said
python3 "$here/completions.py" "$port" $token runs/a samples.jsonl generated.json >found.txt || fail "completions: $(head -c 3000 found.txt)"
check "it lives" kill -0 $server
# It ends at the next token, and says so to who waits.
python3 - "$port" $token <<'PY' >last.txt &
import http.client, json, sys
c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=60)
head = {'Authorization': f'Bearer {sys.argv[2]}', 'Content-Type': 'application/json'}
c.request('GET', '/v1/models', headers=head) # then the server has this connection
c.getresponse().read()
c.request('POST', '/v1/completions', json.dumps({'model': 'runs/a', 'prompt': ['a'] * 128, 'max_tokens': 60}), head)
print('sent', flush=True)
print(c.getresponse().status)
PY
client=$!
until grep -qs sent last.txt || ! kill -0 $client; do sleep 0.05; done
computed() { cut -d' ' -f14 "/proc/$server/stat"; } # in hundredths of a second
before=$(computed)
until [ "$(computed)" -gt $((before + 20)) ] || ! kill -0 $client; do sleep 0.02; done # it is at work on them
kill -TERM $server
wait $server
check "SIGTERM ends it with 0" [ $? -eq 0 ]
wait $client
check "the one who waited hears it, or has his answer" grep -qx 503 last.txt

# --- a checkpoint instead of a run; runs beside it; slips ---
serve runs/a/ckpt/step-00000040
check "a checkpoint" grep -q '^model runs/a/ckpt/step-00000040: ' said
run 74 serve --model nowhere --port "$port" --token-file token # the port comes first
kill -TERM $server
wait $server
run 4 serve --model nowhere --port 0 --token-file token
run 4 serve --model data --port 0 --token-file token
says 'no checkpoint there'
cp -r runs/a runs/torn
for f in runs/torn/ckpt/*/*; do [ "$(stat -c %s "$f")" -gt 4096 ] && truncate -s 4096 "$f"; done
run 4 serve --model runs/torn --port 0 --token-file token
exit $failed
