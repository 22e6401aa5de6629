#!/usr/bin/env bash
# Every feature on every axis, and every two features on one rank. One in $stride of them, from number $from on, if these are set; what=axes or
# what=features: these alone.
. "$(dirname "$0")/pairs.sh"
number=0
chosen() {
    number=$((number + 1))
    [ $((number % ${stride:-1})) -eq $((${from:-0} % ${stride:-1})) ]
}
for feature in "${features[@]}"; do for axis in "${axes[@]}"; do
    [ "${what:-axes}" = axes ] || continue
    ! chosen || on_axis "$feature" "$axis"
done; done
for ((i = 0; i < ${#features[@]}; i++)); do for ((j = i + 1; j < ${#features[@]}; j++)); do
    [ "${what:-features}" = features ] || continue
    shares_key "${features[i]}" "${features[j]}" || ! chosen || pair "${features[i]}" "${features[j]}"
done; done
exit $failed
