#!/usr/bin/env bash
# Every preset is in the table of examples/README.md: by its name, or within "FAMILY-A to FAMILY-B"; and the pages that the table names exist.
examples=$(realpath "$(dirname "$0")/../../examples")
. "$(dirname "$0")/../shell.sh"
sed -n '/^| presets | example |/,/^$/p' "$examples/README.md" >table
[ -s table ] || fail "examples/README.md has no table of presets"
run 0 presets
sed -n '2,$p' out | cut -d' ' -f1 >names
[ "$(wc -l <names)" -gt 30 ] || fail "presets: $(wc -l <names)"
while read -r name; do
    grep -qE "^\| ([^|]* )?$name( |,)" table || grep -qE "^\| ([^|]* )?${name%-*}-[a-z0-9]+ to ${name%-*}-" table || fail "preset $name has no example"
done <names
while read -r page; do [ -e "$examples/$page" ] || fail "no page $page"; done < <(grep -oE '\([a-z0-9/-]+README.md\)' table | tr -d '()')
exit $failed
