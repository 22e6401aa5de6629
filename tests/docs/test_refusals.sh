#!/usr/bin/env bash
# The table "What does not compose" of docs/PARALLELISM.md: each row's words stand in the file of src/ that refuses it, and each refusal of
# meshes, training and GPUs' communication that says "so far" has a row.
root=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=0 failed=0
# texts FILE: its string literals, those that follow each other as one line
texts() {
    awk '
    function end() { if (text != "") print text; text = "" }
    {
        line = $0; at = 0
        while (match(line, /"([^"\\]|\\.)*"/)) {
            before = substr(line, 1, RSTART - 1)
            if (before !~ /^[ \t]*$/) end()
            text = text substr(line, RSTART + 1, RLENGTH - 2)
            line = substr(line, RSTART + RLENGTH)
        }
        if (line !~ /^[ \t]*$/) end()
    }
    END { end() }' "$1"
}
while IFS='|' read -r _ with refused on words file _; do
    for field in with refused on words file; do read -r "${field?}" <<<"${!field}"; done
    [ "$with" = with ] || [[ $with == ---* ]] && continue
    rows=$((rows + 1))
    echo "$words" >>"$work/words"
    if [ -z "$with" ] || [ -z "$refused" ] || [ -z "$on" ] || [ "${#words}" -lt 12 ]; then
        echo "failed: row $rows lacks a field: $with"
        failed=1
    elif [ ! -f "$root/src/$file" ] || ! texts "$root/src/$file" | grep -qF -- "$words"; then
        echo "failed: $with: src/$file does not say '$words'"
        failed=1
    fi
done < <(awk '/^### What does not compose/ { on = 1; next } /^##/ { on = 0 } on && /^\| .* \| .* \| .* \| .* \|/' "$root/docs/PARALLELISM.md")
[ $rows -ge 35 ] || { echo "failed: $rows rows, not 35"; failed=1; }
for file in "$root"/src/parallel/*.c "$root"/src/train/*.c "$root"/src/comm/gpu/*.c "$root"/src/comm/gpu/cuda/*.c; do
    texts "$file" | grep -F ' so far' | grep -vFf "$work/words" | sed "s|^|failed: ${file#"$root"/}: no row for: |"
done >"$work/missing"
cat "$work/missing"
[ -s "$work/missing" ] && failed=1
exit $failed
