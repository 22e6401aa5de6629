#!/usr/bin/env bash
# published.sh [INGOT [TABLE]]: predicts the published runs of published.tsv with `ingot plan` and prints every row beside what was published. Of each stack
# the first, fourth, fifth, eighth, ninth, ... row calibrates: their mean ratio is the stack's factor. The other rows are predicted with it.
#     plan    predicted / published, as the plan says it, with the stack's assumptions
#     error   of the prediction with the factor; rows that calibrated have (c)
# Ends with 1 if a row cannot be planned, or its memory is more than 10 % off and the table does not say why.
ingot=${1:-ingot}
table=${2:-$(dirname "$0")/published.tsv}
declare -A model stack
set -f # 3*mla is a word
failed=0
number() { grep -o "\"$1\": [-0-9.e+]*" <<<"$plan" | head -n 1 | cut -d' ' -f2; }
# T=8192 batch=... tensor=8 -> --train.sequence_length=8192 ...
keys_of() {
    local key
    for key in $1; do
        case $key in
        T=*) echo "--train.sequence_length=${key#T=}" "--model.context_length=${key#T=}" ;;
        batch=*) echo "--train.batch_tokens=${key#batch=}" ;;
        micro=*) echo "--train.micro_batch=${key#micro=}" ;;
        chunks=*) echo "--parallel.$key" --parallel.schedule=interleaved ;;
        tensor=* | pipeline=* | zero=* | shard=* | stages=* | expert=* | context=*) echo "--parallel.$key" ;;
        assume.*) ;; # of this row alone
        optim.*) echo "--$key" ;;
        moe_capacity=*) echo "--model.$key" ;;
        *) echo "--train.$key" ;;
        esac
    done
}
predict() {
    while IFS=$'\t' read -r kind a b c d e f g h; do
        case $kind in
        model) model[$a]=$b ;;
        stack) stack[$a]=$b ;;
        row)
            assumed=()
            all=$([ "${stack[$a]}" = - ] || printf '%s ' "${stack[$a]}"; grep -oE 'assume\.[a-z_0-9]+=[0-9.]+' <<<"$g" | cut -d. -f2-)
            [ -z "$all" ] || assumed=(--assume "$(xargs <<<"$all" | tr ' ' ,)")
            shapes=()
            for key in ${model[$b]}; do shapes+=("--model.$key"); done
            # shellcheck disable=SC2046 # a word per key
            plan=$("$ingot" plan "${shapes[@]}" $(keys_of "$g") --train.steps=1 --machine "$c" "${assumed[@]}" --json 2>&1)
            devices=$(number devices) tokens=$(number tokens_per_s)
            if [ -z "$tokens" ]; then
                echo "$a, $b on $c: $plan" >&2
                failed=1
            else
                printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$a" "$b" "$c" "$d" "$e" "$f" "$g" "$(awk "BEGIN { print $tokens / $devices }")" "$(number memory_bytes_max)" "$h"
            fi
            ;;
        esac
    done <"$table"
    return $failed
}
predict | awk -F'\t' -v table="$table" '
    function abs(x) { return x < 0 ? -x : x }
    function sort(v, n,   i, j, t) { for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j] < v[j - 1]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t } }
    function summary(what, v, n,   i, near) {
        sort(v, n)
        for (i = 1; i <= n; i++) near += v[i] <= 15
        printf "%-34s %3d rows, median error %.1f %%, within 15 %%: %d (%.0f %%), largest %.1f %%\n", what, n, n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2, near, 100 * near / n, v[n]
    }
    BEGIN { while ((getline line < table) > 0) { split(line, w, "\t"); if (w[1] == "stack") why[w[2]] = w[4]; if (w[1] == "source") source[w[2]] = w[3] } }
    {
        calibrates[NR] = count[$1]++ % 4 == 0 || count[$1] % 4 == 0
        for (i = 1; i <= 10; i++) at[NR, i] = $i
        if (calibrates[NR]) { sum[$1] += log($8 / $4); calibrated[$1]++ }
    }
    END {
        for (r = 1; r <= NR; r++) {
            s = at[r, 1]
            if (s != last) {
                printf "\n%s: factor %.3f\n  %s\n", s, exp(sum[s] / calibrated[s]), why[s]
                printf "  %-20s %12s %10s %10s %6s %9s %12s  %s\n", "model", "machine", "published", "predicted", "plan", "error", "GiB", "keys; source"
            }
            last = s
            predicted = at[r, 8] / exp(sum[s] / calibrated[s])
            error = 100 * (predicted / at[r, 4] - 1)
            gib = at[r, 5] == "-" ? "" : sprintf("%.0f of %.0f", at[r, 9] / 1073741824, at[r, 5])
            printf "  %-20s %12s %10.1f %10.1f %6.3f %6.1f %%%s %12s  %s; %s\n", at[r, 2], at[r, 3], at[r, 4], predicted, at[r, 8] / at[r, 4], error, calibrates[r] ? "c" : " ", gib, at[r, 7], source[at[r, 6]]
            if (at[r, 10] != "") printf "  %-20s memory: %s\n", "", at[r, 10]
            plain[r] = 100 * abs(at[r, 8] / at[r, 4] - 1)
            if (!calibrates[r]) held[++n] = abs(error)
            if (at[r, 5] != "-") {
                memory[++m] = 100 * abs(at[r, 9] / 1073741824 / at[r, 5] - 1)
                if (memory[m] > 10 && at[r, 10] == "") {
                    printf "%s, %s on %s: memory is %.1f %% off, and the table does not say why\n", s, at[r, 2], at[r, 3], memory[m] >"/dev/stderr"
                    odd = 1
                }
            }
        }
        printf "\n"
        summary("predicted with the stack'"'"'s factor", held, n)
        summary("all, without any factor", plain, NR)
        for (i = 1; i <= m; i++) right += memory[i] <= 10
        summary("memory", memory, m)
        printf "memory within 10 %%: %d of %d rows\n", right, m
        exit odd
    }'
codes=("${PIPESTATUS[@]}")
exit $((codes[0] | codes[1]))
