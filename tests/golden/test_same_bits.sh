#!/usr/bin/env bash
# Runs of every model, optimizer and mesh compute the bits that were recorded: losses, gradient norms, checkpoints, exports, and plans.
# A change that means to move bits records them anew, and says so in its commit: tests/golden/golden.sh build/cpu/ingot >tests/golden/expected.txt
here=$(realpath "$(dirname "$0")")
golden_filter=.
. "$here/../shell.sh"
. "$here/runs.sh"
compiler=$(sed -n 's/^# recorded with //p' "$here/expected.txt")
[ "$compiler" = "$(cc --version | head -n 1)" ] || { echo "skipped: recorded with $compiler, this is $(cc --version | head -n 1)"; exit 77; }
golden_model
golden_all >got
grep -v '^#' "$here/expected.txt" >want
[ -s want ] || fail "nothing was recorded"
diff want got >differ || fail "these lines are not as recorded (<), but (>):
$(head -n 20 differ)"
exit $failed
