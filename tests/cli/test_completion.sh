#!/usr/bin/env bash
# Completion as a shell sees it: `ingot completion SHELL` is loaded, and Tab is pressed.
. "$(dirname "$0")/../shell.sh"
mkdir -p bin runs/one runs/two runs/none corpus
ln -s "$ingot" bin/ingot
touch runs/one/config.yaml runs/two/config.yaml a.yaml corpus/b.txt
export PATH=$work/bin:$PATH

# Every verb and every option of the tables is offered where it may stand, and nothing else.
ingot help | sed -nE 's/^  ([a-z]+) .*/\1/p' | sort >want
ingot complete '' | cut -f1 | sort >is
check "verbs" cmp -s want is
check "there are verbs" [ "$(wc -l <want)" -ge 15 ]
for verb in $(cat want); do
    subs=
    case $verb in
    complete) continue ;;
    tokenizer | data | ckpt | bench) subs=$(ingot complete "$verb" '' | cut -f1) ;;
    esac
    for sub in '' $subs; do
        ingot help "$verb" ${sub:+"$sub"} 2>/dev/null | sed -nE 's/^  (-[a-z], )?(--[a-z-]+).*/\2/p' | sort -u >want
        ingot complete "$verb" ${sub:+"$sub"} -- | sed 's/\t.*//' | grep -vE '^--help$|\.$' | sort -u >is
        cmp -s want is || fail "options of $verb $sub: $(diff want is | head -n 4 | tr '\n' ' ')"
    done
done
check "descriptions" grep -q "^train	train a model$" <(ingot complete tr)

# All keys, their words, presets, runs.
ingot config --keys | awk '/^[a-z]+\./ { print "--" $1 "=" }' | sort >want
for section in $(sed -E 's/^--([a-z]+)\..*/\1/' want | sort -u); do ingot complete train "--$section." | cut -f1; done | sort >is
check "keys" cmp -s want is
words() { ingot complete "$@" | cut -f1 | paste -sd' '; }
same() { [ "$2" = "$3" ] || fail "$1: '$2', not '$3'"; }
same "sections" "$(words train --tra)" "--trace --train."
same "a key's words" "$(words train --train.precision=)" "--train.precision=fp32 --train.precision=bf16 --train.precision=tf32 --train.precision=fp8 --train.precision=mxfp8 --train.precision=nvfp4"
same "the same behind a blank" "$(words train --train.precision b)" "bf16"
same "a switch" "$(words train --model.qk_norm=t)" "--model.qk_norm=true"
same "presets" "$(words presets gpt)" "gpt2-124m"
same "presets of a key" "$(words plan --model.preset=gpt)" "--model.preset=gpt2-124m"
same "presets of an option" "$(words bench train --preset gpt)" "gpt2-124m"
same "an option's words" "$(words data build --on-error s)" "stop skip"
same "runs" "$(words eval '' | tr ' ' '\n' | sort | paste -sd' ')" ":dirs runs/one runs/two"
same "files" "$(words data build '')" ":files"
same "directories" "$(words data build --tokenizer '')" ":dirs"
same "a verb inside of launch" "$(words launch -n 2 -- tra)" "train"
same "and its options" "$(words launch -n 2 train a.yaml --res)" "--resume"
same "shells" "$(words completion '')" "bash zsh fish"
same "help's verbs" "$(words help data b)" "build"
same "nothing" "$(words nonsense '')" ""

# bash: COMP_LINE is what was typed. The reply is what replaces the word behind the last '='.
tab() { # tab LINE: the replies, sorted
    bash --norc -c '
        eval "$(ingot completion bash)"
        COMP_LINE=$1 COMP_POINT=${#1}
        _ingot ingot
        [ ${#COMPREPLY[@]} -eq 0 ] || printf "%s\n" "${COMPREPLY[@]}" | sort -u | paste -sd" "' tab "$1"
}
same "bash: verbs" "$(tab 'ingot ckpt ex')" "export"
same "bash: options" "$(tab 'ingot data verify --vo')" "--vocab-size"
same "bash: keys" "$(tab 'ingot train a.yaml --optim.warm')" "--optim.warmup_steps="
same "bash: words" "$(tab 'ingot train --optim.schedule=co')" "constant cosine"
same "bash: presets" "$(tab 'ingot presets gpt')" "gpt2-124m"
same "bash: files" "$(tab 'ingot demo --text cor')" "corpus"
same "bash: files behind =" "$(tab 'ingot train --data.train=corpus/')" "corpus/b.txt"
same "bash: runs" "$(tab 'ingot report runs/t')" "runs/two"
same "bash: behind another command's words" "$(tab 'FOO=1 ingot ckpt ex')" "export"

if command -v fish >/dev/null; then
    tab() { HOME=$work fish --no-config -c 'ingot completion fish | source; complete -C $argv[1]' "$1" 2>/dev/null | cut -f1 | sort | paste -sd' '; }
    same "fish: verbs" "$(tab 'ingot ckpt ex')" "export"
    same "fish: keys" "$(tab 'ingot train a.yaml --optim.warm')" "--optim.warmup_steps="
    same "fish: words" "$(tab 'ingot train --optim.schedule=co')" "--optim.schedule=constant --optim.schedule=cosine"
    same "fish: files behind =" "$(tab 'ingot train --data.train=corpus/')" "--data.train=corpus/b.txt"
    same "fish: directories" "$(tab 'ingot data build --tokenizer cor')" "corpus/"
fi

if command -v zsh >/dev/null; then
    mkdir -p zsh
    ingot completion zsh >zsh/_ingot
    # A shell on a pseudo terminal, where compadd says what it is given; the line is typed, and Tab pressed.
    cat >tab.zsh <<'ZSH'
zmodload zsh/zpty
zpty shell zsh -f -i
line() { zpty -w shell "$1"; }
line "PS1= RPS1= PROMPT_EOL_MARK="
line "fpath=($PWD/zsh \$fpath); autoload -Uz compinit; compinit -u -d $PWD/zsh/dump"
line "bindkey '^I' complete-word"
line 'got() { BUFFER= ; zle -I; print "END" }; zle -N got; bindkey "^G" got'
line 'compadd() { local -a found; builtin compadd -A found "$@"; print -rl -- "GOT:"${^found}; builtin compadd "$@" }'
line "print READY"
zpty -r shell out '*READY*READY*'
zpty -w -n shell "$1"$'\t\a'
zpty -r shell out '*END*'
print -r -- $out
ZSH
    tab() { timeout 60 zsh -f tab.zsh "$1" | tr -d '\r' | sed -nE 's/.*GOT:([^ ]+).*/\1/p' | sort -u | paste -sd' '; }
    same "zsh: verbs" "$(tab 'ingot ckpt ex')" "export"
    same "zsh: keys" "$(tab 'ingot train a.yaml --optim.warm')" "--optim.warmup_steps="
    same "zsh: words" "$(tab 'ingot train --optim.schedule=co')" "--optim.schedule=constant --optim.schedule=cosine"
    check "zsh: files behind =" grep -qw b.txt <<<"$(tab 'ingot train --data.train=corpus/')"
fi

run 2 completion tcsh
says "no completion for 'tcsh'"
run 2 completion
run 2 man ingot-nothing.1
says "no page 'ingot-nothing.1'"
exit $failed
