#!/usr/bin/env bash
# Features on axes of a mesh, and beside each other: of all pairs (slow_all_pairs.sh) a few in which each feature, or axis, changes what a step does.
. "$(dirname "$0")/pairs.sh"
on_axis "moe_bias verified" zero1 # routers' biases move after the weights went round, and are no damage
on_axis batch_schedule expert
on_axis "sequence_schedule mamba2" tensor
on_axis "moe_sequence best_fit" cp_zero3
on_axis "engram_rows masks" zb_h1
on_axis "spike_skip muon" tp_pp
on_axis batch_schedule 1f1b # refused, as the next
on_axis verify zero2
pair batch_schedule spike_skip
pair hrm_halt sequence_schedule
pair nvfp4 verify
exit $failed
