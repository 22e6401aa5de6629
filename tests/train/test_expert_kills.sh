#!/usr/bin/env bash
# As test_kills.sh, of ranks that shard experts: who dies is told while the others wait for rows, and the job goes on with the same bits.
. "$(dirname "$0")/rank_kills.sh"
rank_kills 2 --model.layers=gqa/moe --model.moe_experts=4 --model.moe_top_k=2 --model.moe_size=32 --parallel.expert=2 --parallel.zero=1
exit $failed
