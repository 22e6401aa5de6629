#!/usr/bin/env bash
# Commands within sentences and tables, such as `ingot ckpt list RUN`: their verbs, options and keys are the program's. Those of blocks are run
# by test_commands.sh.
root=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/../shell.sh"
declare -A known
options() { # options VERB: its options, " --json --help "
    # shellcheck disable=SC2086 # one word or two
    [ -n "${known[$1]:-}" ] || known[$1]=" $("$ingot" complete $1 -- | cut -f1 | tr '\n' ' ')"
}
words() { "$ingot" complete "$@" '' | cut -f1 | tr '\n' ' '; }
verbs=" $(words)" groups=' tokenizer data ckpt bench '
keys=" model.preset $("$ingot" config --keys | awk '/^[a-z0-9]+\./ { print $1 }' | tr '\n' ' ')"
for group in $groups; do known[/$group]=" $(words "$group")"; done

count=0
for page in "$root"/*.md "$root"/docs/*.md "$root"/docs/howto/*.md "$root"/examples/README.md "$root"/examples/*/README.md; do
    while IFS= read -r line; do
        count=$((count + 1))
        where="${page#"$root"/}: $line"
        read -r _ verb second _ <<<"$line"
        [[ $verbs == *" $verb "* ]] || { fail "$where: no verb '$verb'"; continue; }
        if [[ $groups == *" $verb "* && $second =~ ^[a-z][a-z0-9]*$ ]]; then
            [[ ${known[/$verb]} == *" $second "* ]] || { fail "$where: no verb '$verb $second'"; continue; }
            verb+=" $second"
        fi
        case $verb in
        help | complete) continue ;;                                 # takes any word
        launch) options train; all=${known[train]} ;; # behind the launcher's own: train's, or those of a bench
        *) all='' ;;
        esac
        options "$verb"
        all+=${known[$verb]}
        for option in $(grep -oE '(^|[ =])--[a-z][a-z0-9_.-]*' <<<"$line" | tr -d ' ='); do
            if [[ $option == *.* ]]; then
                [[ $keys == *" ${option#--} "* ]] || fail "$where: no key '${option#--}'"
            elif [[ $verb != launch || $line != *' bench '* ]]; then
                [[ $all == *" $option "* ]] || fail "$where: no option '$option'"
            fi
        done
    done < <(awk '/^```/ { inside = !inside; next } !inside' "$page" | tr '\n' ' ' | grep -oE '`ingot [a-z][^`]*`' | tr -d '`')
done
check "there are commands: $count" [ $count -ge 100 ]
exit $failed
