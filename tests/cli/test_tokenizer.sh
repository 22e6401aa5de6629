#!/usr/bin/env bash
# `ingot tokenizer` from outside: train from text and JSONL, there and back, exit codes.
. "$(dirname "$0")/../shell.sh"

for i in $(seq 40); do echo "the cat number $i sat there, and the other cats didn't; then they $((i * i)) times ran."; done >a.txt
sed 's/.*/{"body": "&", "n": 1}/' a.txt >b.jsonl
run 0 tokenizer train a.txt b.jsonl --key body -o tok --vocab-size 300 --special '<|endoftext|>' --special='<|pad|>'
check "the path is on stdout" grep -qx tok/tokenizer.json out
check "both files are there" [ -s tok/tokenizer.json -a -s tok/tokenizer_config.json ]
run 0 tokenizer encode tok a.txt --ids
mv out ids
run 0 tokenizer decode tok ids
check "text survives encoding and decoding" cmp -s a.txt out
printf 'the<|pad|>' >special.txt
run 0 tokenizer encode tok special.txt --json
check "specials are text by default" grep -qv '299' out
run 0 tokenizer encode tok special.txt --json --specials
check "specials are tokens when asked for" grep -q '"count": 2, "ids": \[[0-9]*, 299\]' out
run 0 tokenizer encode tok special.txt --specials
check "tokens are shown with their letters" grep -q '^299	<|pad|>$' out

# A rank file: single bytes, then "th" and "the".
for i in $(seq 0 255); do printf "$(printf '\\x%02x' "$i")" | base64 | tr -d '\n'; echo " $i"; done >ranks
printf 'dGg= 256\ndGhl 257\n' >>ranks
run 3 tokenizer encode ranks a.txt
check "an unknown rank file needs a pattern" grep -q 'tokenizer import FILE DIR --pattern' err
run 0 tokenizer import ranks imported --pattern gpt2
check "the path is on stdout" grep -qx imported/tokenizer.json out
printf 'the th' >the.txt
run 0 tokenizer encode imported the.txt --ids
check "ids are ranks" grep -qx '257 32 256' out
run 2 tokenizer import ranks imported2 --pattern gpt5
run 2 tokenizer import tok imported2 --pattern gpt2
run 2 tokenizer import ranks
check "nothing was written by a refused import" [ ! -e imported2 ]

run 2 tokenizer
run 2 tokenizer trian
check "the nearest name" grep -q "did you mean 'tokenizer train'" err
run 2 tokenizer train a.txt
run 2 tokenizer train a.txt -o x --split gpt3
run 2 tokenizer train a.txt -o x --vocab-size 256
run 3 tokenizer train a.txt -o x --vocab-size 100000
run 3 tokenizer train b.jsonl -o x
printf 'fine \377' >bad.txt
run 3 tokenizer encode tok bad.txt
check "the place of invalid UTF-8" grep -q ':1: invalid UTF-8 (byte 5 of the file)' err
run 0 tokenizer encode tok bad.txt --ids --on-invalid=skip
printf 'fine ' >good.txt
mv out skipped
run 0 tokenizer encode tok good.txt --ids
check "invalid bytes are left out" cmp -s skipped out
run 0 tokenizer encode tok bad.txt --ids --on-invalid replace
check "it is said" grep -q '1 invalid sequences replaced by U+FFFD, the first in line 1 (byte 5)' err
mv out replaced.ids
run 0 tokenizer decode tok replaced.ids
check "invalid bytes become U+FFFD" [ "$(cat out)" = "fine �" ]
run 2 tokenizer encode tok bad.txt --on-invalid=ignore
echo "1 2 x" >bad.ids
run 3 tokenizer decode tok bad.ids
echo "300" >bad.ids
run 3 tokenizer decode tok bad.ids
run 3 tokenizer encode . a.txt
check "nothing was written by a refused training" [ ! -e x ]
exit $failed
