#!/usr/bin/env bash
# The table of failures in docs/FAULTS.md: each row's words stand in the test that it names, and there are forty and more.
root=$(realpath "$(dirname "$0")/../..")
rows=0 failed=0
while IFS='|' read -r _ failure made named words test _; do
    read -r failure <<<"$failure"
    read -r words <<<"$words"
    read -r test <<<"$test"
    [ "$failure" = failure ] || [[ $failure == ---* ]] && continue
    rows=$((rows + 1))
    if [ -z "$made" ] || [ -z "$named" ] || [ ! -f "$root/$test" ]; then
        echo "failed: $failure: no test $test"
        failed=1
    elif [ -n "$words" ] && ! grep -qF -- "$words" "$root/$test"; then
        echo "failed: $failure: $test does not say '$words'"
        failed=1
    fi
done < <(awk '/^## What ingot says of a failure/ { on = 1; next } /^## / { on = 0 } on && /^\|/' "$root/docs/FAULTS.md")
[ $rows -ge 40 ] || { echo "failed: $rows rows, not forty"; failed=1; }
exit $failed
