#!/usr/bin/env bash
# The script of the report's pages, on a page that the program wrote. Needs node.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../shell.sh"
command -v node >/dev/null || { echo "node is not installed"; exit 77; }
write_run() { # write_run NAME STEPS TOKENS_PER_STEP
    mkdir "$1"
    awk -v steps="$2" -v tokens="$3" 'BEGIN {
        print "{\"kind\":\"start\",\"step\":0,\"time\":1000}"
        for (i = 1; i <= steps; i++)
            printf "{\"kind\":\"step\",\"step\":%d,\"tokens\":%d,\"time\":%d,\"loss\":%.9g,\"lr\":0.001,\"grad_norm\":%.9g,\"rss_bytes\":1048576%s}\n",
                i, i * tokens, 1000 + 2 * i, i == 3333 ? 50 : 3 + 2 / i, 1 + i % 7, i % 50 ? "" : ",\"val_loss\":4"
    }' >"$1/metrics.jsonl"
}
write_run a 100 64
write_run b 5000 10
run 0 report a b -o ab.html
write_run c 1 64
run 0 report c -o c.html
node "$here/page_test.js" ab.html c.html >out 2>err || fail "the page's script"
exit $failed
