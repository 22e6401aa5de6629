#!/usr/bin/env bash
# The benchmark of collectives checks every element of what it moved, on any number of ranks; one rank has nobody to talk to.
. "$(dirname "$0")/../shell.sh"
for ranks in 2 3; do
    run 0 launch -n $ranks -- bench collectives --min-bytes 64 --max-bytes 65536 --runs 3 --json
    check "$ranks ranks: six sizes of six collectives" [ "$(grep -c "\"ranks\":$ranks,.*\"checked\":true" out)" -eq 36 ]
    check "$ranks ranks: nothing else on stdout" [ "$(wc -l <out)" -eq 36 ]
done
# The bus carries 2 (n-1)/n of what an all-reduce of n ranks takes, (n-1)/n of a gather.
factor() { # factor OP: bus over algorithm bandwidth of the last size
    sed -n "s/.*\"op\":\"$1\".*\"algorithm_gbs\":\([0-9.]*\),\"bus_gbs\":\([0-9.]*\).*/\1 \2/p" out | tail -n 1 | awk '{ printf "%.1f", $2 / $1 }'
}
check "all_reduce: $(factor all_reduce)" [ "$(factor all_reduce)" = 1.3 ]
check "all_gather: $(factor all_gather)" [ "$(factor all_gather)" = 0.7 ]
check "ring: $(factor ring)" [ "$(factor ring)" = 1.0 ]

check "broadcast: $(factor broadcast)" [ "$(factor broadcast)" = 1.0 ]

run 2 bench collectives
says "needs several ranks"
run 2 bench collectives --op=scatter
says "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or ring"
run 2 bench collectives --path=plain
says "for --device=cuda"
run 2 bench collectives --device=cuda --path=tree
says "comm, overlap, plain, symmetric, copy_engine or peer"
run 2 bench collectives --device=cuda --op=ring
says "bench p2p"
run 2 bench collectives --device=cuda
says "several ranks"
run 2 bench collectives --min-bytes=8 --max-bytes=4
says "min <= max"
if [ ! -e /dev/nvidia0 ]; then
    run 11 launch -n 2 -- bench collectives --device cuda
fi
exit $failed
