#!/usr/bin/env bash
# The rules of the source tree, as a test. Usage: test_tidy.sh BUILD/ingot
#
# Each rule is a function rule_NAME that prints one line per violation: PLACE<TAB>what is wrong. tools/tidy_allow.txt holds the exceptions,
# one per line: RULE PLACE reason. Needs bash, awk, grep, nm, cc and c++; clang-format where it is there.
set -u -o pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 1
library=$(dirname "${1:-build/cpu/ingot}")/libingot_core.a
allow=tools/tidy_allow.txt
cc=${CC:-cc}
cxx=${CXX:-c++}

if git rev-parse --git-dir >/dev/null 2>&1; then
    mapfile -t files < <(git ls-files --cached --others --exclude-standard | while read -r f; do [ -f "$f" ] && echo "$f"; done)
else
    mapfile -t files < <(find . -type f -not -path './build/*' -not -path './runs/*' | sed 's|^\./||' | sort)
fi
pick() { printf '%s\n' "${files[@]}" | grep -E "$1"; }
mapfile -t sources < <(pick '^(src|tests)/.*\.(c|h|cu|cuh)$')
mapfile -t headers < <(pick '^src/.*\.h$')

# Who may include whom: lower layers and one's own directory. In data/ and comm/ a directory is one of their folders.
rule_include() {
    awk '
    function directory(path,   part) {
        split(path, part, "/")
        return (part[1] "/" part[2]) in layer ? part[1] "/" part[2] : part[1]
    }
    BEGIN {
        n = split("base 0 spec 1 tensor 1 dev 1 ops 2 comm 2 data/text 1 data/tokenizer 2 data/read 2 data/shard 2 data/build 2.5 data/load 2.5 observe 2 parallel 3 nn 4 optim 4 model 5 plan 6 train 7 infer 7 bench 8 harness 8 doctor 8.5 serve 8.5 cli 9", w, " ")
        for (i = 1; i < n; i += 2) layer[w[i]] = w[i + 1]
    }
    FNR == 1 { from = directory(substr(FILENAME, 5)) }
    /^#[ \t]*include "/ {
        split($0, quote, "\""); to = directory(quote[2])
        if (!(from in layer)) print FILENAME "\tdirectory src/" from " has no layer in tests/tidy/test_tidy.sh"
        else if (!(to in layer)) print FILENAME ":" quote[2] "\tinclude paths start at src/: directory/file.h"
        else if (from != to && layer[from] + 0 <= layer[to] + 0)
            print FILENAME ":" quote[2] "\t" from " (layer " layer[from] ") must not include " to " (layer " layer[to] ")"
    }' $(pick '^src/.*\.(c|h|cu|cuh)$')
}

# Calls that overflow, hide errors, start shells, or are not a function of a seed.
rule_call() {
    awk '
    {
        line = $0
        gsub(/"([^"\\]|\\.)*"/, "\"\"", line); sub(/\/\/.*/, "", line); gsub(/\/\*[^*]*\*\//, "", line)
        if (line ~ /^[ \t]*(\/\*|\*)/) next
        if (match(line, /(^|[^A-Za-z0-9_.>])(sprintf|vsprintf|strcpy|strcat|atoi|atol|atof|rand|srand|sscanf|strtok|system|popen|gets)[ \t]*\(/)) {
            word = substr(line, RSTART, RLENGTH); gsub(/[^a-z]/, "", word)
            print FILENAME ":" word "\tline " FNR ": " word " is banned"
        }
    }' "${sources[@]}"
}

# A body is between braces in column 0, or in column 4 (member functions of a struct).
rule_function_length() {
    awk '
    function limit(first) {
        if (first && FNR - first - 1 > 70) print FILENAME ":" name "\tfunction of " FNR - first - 1 " lines, the limit is 70"
    }
    FNR == 1 { begin = member = 0 }
    /^(    )?[A-Za-z_~].*\(/ && !begin && !member { match($0, /[A-Za-z0-9_~]+\(/); name = substr($0, RSTART, RLENGTH - 1) }
    /^\{/ { begin = FNR }
    /^\}/ { limit(begin); begin = member = 0 }
    /^    \{/ && !begin { member = FNR }
    /^    \}/ { limit(member); member = 0 }' "${sources[@]}"
}

# Lines of headers and of CUDA code have at most 120 columns. wide: the directories that keep to it.
wide='^src/(ops|nn|optim|model|plan|train)/'
rule_width() {
    awk 'length($0) > 120 && !seen[FILENAME]++ { print FILENAME "\tline " FNR " has " length($0) " columns, the limit is 120" }' \
        $(pick "$wide" | grep -E '\.(h|cu|cuh)$')
}

rule_file_length() {
    awk '
    function close_file() {
        limit = path ~ /^src\/.*\.h$/ ? 200 : path ~ /\.cu$/ ? 1000 : 800
        if (lines > limit) print path "\t" lines " lines, the limit is " limit
    }
    FNR == 1 { if (path) close_file(); path = FILENAME }
    { lines = FNR }
    END { close_file() }' "${sources[@]}"
}

# An exported symbol is defined once. Files of one op family share a stem (ops/cpu/simd/norm.c, ops/cuda/norm.cu): a stem need not be unique.
rule_symbol() {
    [ -f "$library" ] || return 0 # rule_mutable_data says so
    nm "$library" 2>/dev/null | awk '
    /\.o:$/ { object = $1; sub(/\.o:$/, "", object) }
    NF == 3 && $2 ~ /^[TDRB]$/ {
        if ($3 in where) print object ":" $3 "\talso defined in " where[$3]
        else where[$3] = object
    }'
}

# No two modules call each other, directly or around a circle: a module is a directory and a stem up to its first "_" (cmd_data_*.c: cmd_data).
# An exception names the modules of a circle, sorted, joined by "+".
rule_call_cycle() {
    local objects
    objects=$(dirname "$library")/CMakeFiles/ingot_core.dir/src
    if [ ! -d "$objects" ]; then
        echo "tidy: call_cycle: skipped, there are no object files in $objects" >&2
        return
    fi
    (cd "$objects" && find . -name '*.c.o' -printf '%P\n' | sort | xargs nm -A 2>/dev/null) | sed -E 's/^([^:]*):/\1 /' | awk '
    function module(path,   n, part, stem, dir) {
        n = split(path, part, "/"); stem = part[n]; sub(/\.c\.o$/, "", stem)
        dir = substr(path, 1, length(path) - length(part[n]))
        if (stem ~ /^cmd_/) { split(stem, part, "_"); return dir part[1] "_" part[2] }
        sub(/_.*/, "", stem)
        return dir stem
    }
    function visit(v,   i, w, n, to, names, count) {
        number[v] = low[v] = ++visited; stack[++top] = v; on[v] = 1
        n = split(edges[v], to, " ")
        for (i = 1; i <= n; i++) {
            w = to[i]
            if (!(w in number)) { visit(w); if (low[w] < low[v]) low[v] = low[w] }
            else if (on[w] && number[w] < low[v]) low[v] = number[w]
        }
        if (low[v] != number[v]) return
        count = 0; names = ""
        do { w = stack[top--]; on[w] = 0; member[++count] = w } while (w != v)
        if (count == 1) return
        for (i = 1; i <= count; i++) for (n = i + 1; n <= count; n++) if (member[n] < member[i]) { w = member[i]; member[i] = member[n]; member[n] = w }
        for (i = 1; i <= count; i++) names = names (i > 1 ? "+" : "") member[i]
        print names "\tthese modules call each other in a circle"
    }
    $1 != object { object = $1; at = module(object); all[at] = 1 }
    NF == 4 && $3 ~ /^[TDRB]$/ { home[$4] = at }
    NF == 3 && $2 == "U" { uses[at, $3] = 1 }
    END {
        for (key in uses) {
            split(key, part, SUBSEP); to = home[part[2]]
            if (to != "" && to != part[1] && !((part[1], to) in seen)) { seen[part[1], to] = 1; edges[part[1]] = edges[part[1]] " " to }
        }
        for (v in all) if (!(v in number)) visit(v)
    }' | sort
}

# A header is a manual: it compiles alone, as C17 and as C++17.
check_header() {
    local first
    first=$("$cc" -std=gnu17 $header_flags -x c "$1" 2>&1 | grep -m1 -E 'error|fatal') && printf '%s\tas C17: %s\n' "$1" "$first"
    first=$("$cxx" -std=gnu++17 $header_flags -x c++ "$1" 2>&1 | grep -m1 -E 'error|fatal') && printf '%s\tas C++17: %s\n' "$1" "$first"
    return 0
}
# A batch: each alone as C; as C++ together, in both orders, since most of C++'s time is its library. A header that lacks an include fails as
# C, for it includes the same in both languages: one that says __cplusplus is checked alone. So is each of a batch that fails (it may be that
# two headers have one name for two things), and what is said is what that says.
check_headers() {
    local header alone=() batch=()
    for header; do
        if grep -q __cplusplus "$header"; then alone+=("$header"); else batch+=("$header"); fi
    done
    if ! { "$cc" -std=gnu17 $header_flags -x c "${batch[@]}" && together <(printf '%s\n' "${batch[@]}") && together <(printf '%s\n' "${batch[@]}" | tac); } 2>/dev/null; then
        alone=("$@")
    fi
    for header in "${alone[@]}"; do check_header "$header"; done
}
together() { sed 's,^src/\(.*\),#include "\1",' "$1" | "$cxx" -std=gnu++17 $header_flags -x c++ -; }
rule_header() {
    export -f check_header check_headers together
    export cc cxx header_flags="-Isrc -D_GNU_SOURCE -DSIMD_ISA=v3 -march=x86-64-v3 -fsyntax-only -Wall -Werror"
    printf '%s\n' "${headers[@]}" | xargs -P "$(nproc)" -n 20 bash -c 'check_headers "$@"' _
}

# No hidden state: mutable data at file scope (thread-local too) needs a reason. Constant tables that hold pointers lie in .data.rel.ro.
rule_mutable_data() {
    if [ ! -f "$library" ]; then
        printf "%s\tnot built; pass the path of the ingot binary\n" "$library"
    elif nm "$library" 2>/dev/null | grep -E '__(asan|tsan|ubsan)_' >/dev/null; then
        echo "tidy: mutable_data: skipped, sanitizers add data of their own" >&2
    else
        nm -f sysv "$library" 2>/dev/null | awk -F'|' '
        /^Symbols from/ { match($0, /\[[^]]*\]/); object = substr($0, RSTART + 1, RLENGTH - 4) }
        NF >= 7 {
            gsub(/ /, "", $1); gsub(/ /, "", $3); gsub(/ /, "", $7); sub(/\.[0-9]+$/, "", $1)
            if ($3 ~ /^[BbDdCGgSs]$/ && $7 !~ /^\.data\.rel\.ro/) print object ":" $1 "\tmutable data in " $7
        }'
    fi
}

# What is exported is used: by another object of the program, or by a test (a name that only its own file uses is static).
rule_dead_symbol() {
    [ -f "$library" ] || return 0 # rule_mutable_data says so
    local tests
    # what only a build with CUDA holds is no part of the library that is looked at
    tests=$(cat $(pick '^tests/.*\.(c|h)$|^src/.*\.cuh?$|^src/(.*/)?cuda/') src/cli/main.c src/cli/*.def | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort -u)
    # The names are an input, not an argument: an argument has at most 128 KiB.
    nm "$library" 2>/dev/null | awk '
    NR == FNR { used[$1] = 1; next }
    /\.o:$/ { object = $1; sub(/\.o:$/, "", object) }
    NF >= 2 && $(NF - 1) == "U" { used[$NF] = 1 }
    NF == 3 && $2 ~ /^[TDRB]$/ && $3 !~ /^_/ { where[$3] = object }
    END { for (s in where) if (!(s in used)) print where[s] ":" s "\texported, and nobody uses it: remove it or make it static" }' <(printf '%s\n' "$tests") - | sort
}

# Documents tell the truth: what a link or a path in them names is there, and every verb is one.
rule_doc() {
    local doc target at
    for doc in $(pick '^[A-Z]+\.md$|^docs/.*\.md$'); do
        grep -noE '\]\([^)#]+' "$doc" | sed 's/\](//' | while IFS=: read -r at target; do
            case $target in http*) continue ;; esac
            [ -e "$(dirname "$doc")/$target" ] || printf '%s\t%s:%s links to it, and it is not there\n' "$target" "$doc" "$at"
        done
        grep -noE '(^|[^A-Za-z0-9_./(-])(src|tests|tools|scripts|docs|examples)/[A-Za-z0-9_./-]*[A-Za-z0-9_]' "$doc" |
            sed -E 's/:[^a-z]/:/' | sort -u | while IFS=: read -r at target; do
                compgen -G "$target" >/dev/null || compgen -G "$target*" >/dev/null ||
                    printf '%s\t%s:%s names it, and it is not there\n' "$target" "$doc" "$at"
            done
        grep -noE '(`|^|/)ingot +[a-z]+( |`|$)' "$doc" | tr -d '`' | sed 's/ *$//' | while IFS=: read -r at target; do
            grep -q "^VERB(\"${target##* }\"," src/cli/verbs.def ||
                printf '%s\t%s:%s: ingot has no such verb\n' "${target##* }" "$doc" "$at"
        done
    done
}

# A name in backticks, with a "_" in it, is one: in the pages for developers each such word stands somewhere in the tree. Left out are
# beginnings (gdn_) and the placeholders NAME, X, WORD, FAMILY, SECTION and PREFIX.
rule_doc_symbol() {
    awk '
    NR == FNR { there[$1] = 1; next }
    /^```/ { block = !block; next }
    block { next }
    {
        n = split($0, span, "`")
        for (i = 2; i <= n; i += 2) {
            text = span[i]
            while (match(text, /[A-Za-z][A-Za-z0-9]*_[A-Za-z0-9_]*/)) {
                word = substr(text, RSTART, RLENGTH); text = substr(text, RSTART + RLENGTH)
                if (word ~ /_$/ || word ~ /(^|_)(NAME|X|WORD|FAMILY|SECTION|PREFIX)(_|$)/ || word in there) continue
                print FILENAME ":" word "\tline " FNR ": no file of the tree has this name"
            }
        }
    }' <(cat $(pick '^(src|tests|scripts|tools|cmake|packaging)/|^CMakeLists.txt$') | grep -aoE '[A-Za-z][A-Za-z0-9]*_[A-Za-z0-9_]*' | sort -u
        printf '%s\n' "${files[@]}" | sed -E 's,.*/,,; s/\..*//; s/^(gpu|slow|test)_//') \
        $(pick '^docs/howto/.*\.md$|^docs/(ARCHITECTURE|TOUR|GLOSSARY|MODELS|GPU|NUMERICS|COMM|PARALLELISM|LOADER)\.md$')
}

# An excerpt is true: a ```c block of a document whose first line is "// PATH" repeats lines of that file, in order and without gaps but for
# lines with "..."; leading and trailing blanks do not count.
rule_excerpt() {
    awk '
    function bare(line) { gsub(/^[ \t]+|[ \t]+$/, "", line); return line }
    function source_open(path,   line) {
        count = at = 0
        while ((getline line < path) > 0) source[++count] = bare(line)
        close(path)
        return count > 0
    }
    # The first place behind `at` where all lines of a run are.
    function run_find(   i, k) {
        for (i = at + 1; i + lines - 1 <= count; i++) {
            for (k = 1; k <= lines && source[i + k - 1] == run[k]; k++) { }
            if (k > lines) { at = i + lines - 1; return 1 }
        }
        return 0
    }
    function run_check() {
        if (lines > 0 && !run_find()) print FILENAME ":" first "\tnot in " path " (these lines, in this order): " run[1]
        lines = 0
    }
    FNR == 1 { block = path = ""; lines = 0 }
    /^```/ {
        if (path != "") run_check()
        block = block != "" ? "" : $0 == "```c" ? "c" : "other"
        path = ""; fresh = block == "c"
        next
    }
    fresh {
        fresh = 0
        if ($0 !~ /^\/\/ (src|tests)\/[^ ]+$/) {
            if (FILENAME == "docs/TOUR.md") print FILENAME ":" FNR "\tbegin the excerpt with the path of its file: // src/..."
            next
        }
        path = $2
        if (!source_open(path)) { print FILENAME ":" FNR "\t" path " is not there"; path = "" }
        next
    }
    path == "" { next }
    index($0, "...") { run_check(); next }
    { if (lines == 0) first = FNR; run[++lines] = bare($0) }' $(pick '^[A-Z]+\.md$|^docs/.*\.md$')
}

# Documents are read beside code: a line of text has at most 100 columns, a paragraph or list item at most 120 words. Tables, code blocks
# and a line that is one link are left out.
rule_doc_width() {
    awk '
    function paragraph_end() {
        if (words > 120) print path ":" begin "\t" words " words in one paragraph, the limit is 120: split it, or make it a list"
        words = 0
    }
    FNR == 1 { paragraph_end(); block = 0 }
    { path = FILENAME }
    /^[ \t]*```/ { paragraph_end(); block = !block; next }
    block || /^[ \t]*\|/ { paragraph_end(); next }
    length($0) > 100 && !/^    / && !/^[ \t]*([-*] )?\[[^]]*\]\([^ ]*\)[.,;:]?$/ { print FILENAME ":" FNR "\t" length($0) " columns, the limit is 100" }
    NF == 0 || /^#/ { paragraph_end(); next }
    /^[ \t]*([-*]|[0-9]+\.) / { paragraph_end() }
    { if (words == 0) begin = FNR; words += NF }
    END { paragraph_end() }' $(pick '^(README|CONTRIBUTING)\.md$|^docs/.*\.md$')
}

# A comment that names a file names one that is there: NAME.c, .h, .cu, .cuh or .md, with all or the last of its directories. Comments are
# what follows // and what is between /* and */; strings are left out. `others`: files of other projects.
rule_name() {
    printf '%s\n' "${files[@]}" | awk '
    BEGIN {
        n = split("llm.c nvml.h cublasLt.h cudnn.h", others, " ")
        for (i = 1; i <= n; i++) there[others[i]] = 1
    }
    FILENAME == "-" { for (path = $0; ; path = substr(path, at + 1)) { there[path] = 1; if (!(at = index(path, "/"))) next } }
    FNR == 1 { inside = 0 }
    {
        line = $0; comment = ""
        if (!inside) gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
        while (line != "") {
            if (inside) {
                end = index(line, "*/"); part = end ? substr(line, 1, end - 1) : line
                line = end ? substr(line, end + 2) : ""; inside = !end
            } else {
                if (!match(line, /\/[\/*]/)) break
                inside = substr(line, RSTART + 1, 1) == "*"; part = inside ? "" : substr(line, RSTART + 2)
                line = inside ? substr(line, RSTART + 2) : ""
            }
            comment = comment " " part
        }
        while (match(comment, /[A-Za-z0-9_][A-Za-z0-9_\/.-]*\.(cuh|cu|c|h|md)([^A-Za-z0-9_]|$)/)) {
            name = substr(comment, RSTART, RLENGTH); comment = substr(comment, RSTART + RLENGTH)
            sub(/[^A-Za-z0-9_]$/, "", name)
            if (!(name in there)) print FILENAME ":" name "\tline " FNR ": a comment names this file, and it is not there"
        }
    }' - $(pick '^src/.*\.(c|h|cu|cuh|def)$')
}

# What is committed must mean the same on every machine.
rule_machine_path() {
    grep -InE '(^|[^A-Za-z0-9_.-])/(home|root|work|Users|mnt/[a-z]+)/[A-Za-z0-9_.]' "${files[@]}" |
        awk -F: '{ print $1 "\tline " $2 ": a path of one machine" }'
}

# Headers are aligned by hand, as tables; all else is as clang-format leaves it.
rule_format() {
    if ! clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
        echo "tidy: format: skipped, clang-format 14 is not installed" >&2
        return
    fi
    pick '^(src|tests)/.*\.c$' | xargs clang-format --dry-run 2>&1 |
        awk -F: '/warning: code should be clang-formatted/ && !seen[$1]++ { print $1 "\tline " $2 " and perhaps more: run clang-format -i" }'
}

# An exception needs an existing rule and a reason.
rule_allow_list() {
    awk '!/^#/ && NF && (NF < 3 || $1 !~ /^(include|call|function_length|file_length|width|symbol|call_cycle|header|mutable_data|dead_symbol|doc|doc_symbol|doc_width|name|excerpt|machine_path|format)$/) {
        print FILENAME ":" FNR "\twrite: RULE PLACE reason" }' $allow
}

failed=0
for rule in allow_list include call function_length file_length width symbol call_cycle header mutable_data dead_symbol doc doc_symbol doc_width name excerpt machine_path format; do
    while IFS= read -r line; do
        place=${line%%$'\t'*}
        grep -qF -- "$rule $place " $allow && continue
        echo "$rule: $place: ${line#*$'\t'}"
        failed=$((failed + 1))
    done < <(rule_$rule)
done
[ $failed -eq 0 ] && echo "tidy: ${#files[@]} files follow the rules"
exit $((failed > 0))
