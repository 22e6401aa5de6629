#!/usr/bin/env bash
# The same bits, before and after a change: golden.sh INGOT [REGEX]              prints what INGOT computes (runs.sh)
#                                           golden.sh --vs OLD_INGOT INGOT [REGEX]   compares two programs on this machine
# REGEX picks runs by name. tests/golden/expected.txt is what `golden.sh INGOT` printed when it was recorded; test_same_bits.sh compares with it.
old=
if [ "${1:-}" = --vs ]; then
    old=$(realpath "$2")
    shift 2
fi
[ -x "${1:-}" ] || { sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(realpath "$(dirname "$0")")
golden_filter=${2:-.}
. "$here/../shell.sh"
. "$here/runs.sh"
golden_model
if [ -z "$old" ]; then
    golden_all
    exit $failed
fi
golden_all >now
[ $failed -eq 0 ] || exit 1
ingot=$old
golden_all >before
[ $failed -eq 0 ] || { echo "failed: the old program, see above"; exit 1; }
[ -s before ] || { echo "failed: no run has a name like '$golden_filter'"; exit 1; }
diff before now && echo "golden: $(wc -l <now) lines are equal"
