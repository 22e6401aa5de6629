#!/usr/bin/env bash
# Without a GPU, bench p2p says so in one line and ends with 11, before it writes anything; what it cannot do is refused first.
. "$(dirname "$0")/../shell.sh"
run 2 bench p2p --device cpu
says "bench collectives"
run 2 bench p2p --mib 0
says "1 to 4096"
run 2 bench p2p --only middle
says "host, pairs, rings or collectives"
run 2 bench p2p --blocks 300
says "1 to 256"
run 2 bench p2p 0
says "'0' is one too many"
run 0 bench p2p --help
check "help names the file" grep -q -- --json out
if [ ! -e /dev/nvidia0 ]; then
    run 11 bench p2p --device cuda --json rows.json
    says "" # one line
    check "nothing on stdout" [ ! -s out ]
    check "no file" [ ! -e rows.json ]
fi
exit $failed
