#!/usr/bin/env bash
# On a machine with GPUs: bench p2p and bench collectives check every result themselves; here, that they come to their end, keep their rows
# and leave nothing out. With one GPU there are no pairs.
. "$(dirname "$0")/../shell.sh"
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -gt 0 ] || exit 77
rows() { # rows COUNT PATTERN: at least so many lines of the file match
    [ "$(grep -cE "$2" rows.json)" -ge "$1" ] || fail "fewer than $1 rows of $2"
}
run 0 bench p2p --device cuda --mib 16 --runs 3 --json rows.json
rows "$gpus" '"what":"host_to_device".*"checked":true'
rows "$gpus" '"what":"device_copy"'
if [ "$gpus" -eq 1 ]; then
    check "one GPU has no pairs" grep -q "no pairs" out
    exit $failed
fi
rows $((gpus * (gpus - 1))) '"what":"copy_one_way"'
rows 1 '"what":"copy_ring"'
if ! grep -q "pairs without" out; then
    rows $((gpus * (gpus - 1))) '"what":"flag_latency"'
    for op in all_to_all all_gather reduce_scatter all_reduce; do rows 5 "\"op\":\"$op\",\"way\":\"direct\""; done
fi
run 0 launch -n 2 -- bench collectives --device cuda --max-bytes 1048576 --runs 3 --json
mv out rows.json
for op in all_reduce all_gather reduce_scatter all_to_all broadcast; do
    rows 6 "\"op\":\"$op\",\"way\":\"comm\".*\"graph\":false"
    rows 6 "\"op\":\"$op\",\"way\":\"comm\".*\"graph\":true"
    rows 6 "\"op\":\"$op\",\"way\":\"plain\".*\"graph\":true"
done
exit $failed
