#!/usr/bin/env bash
# ingot bench generate on a CPU: a line for each batch, for models whose caches hold keys, states, latent vectors. test_generate.sh INGOT
. "$(dirname "$0")/../shell.sh"
small=(--model.vocab_size=300 --context 9 --tokens 2)
for preset in nano qwen3-next-tiny deepseek-v3-tiny; do
    run 0 bench generate --preset $preset "${small[@]}" --batch 1,3 --json
    check "$preset: a rate for each batch" test "$(grep -c '"decode_tokens_per_s":[0-9.]*[1-9]' out)" -eq 2
    check "$preset: in the order that was asked for" grep -q '"batch":3,' <(sed -n 2p out)
done
run 0 bench generate --preset nano "${small[@]}" --precision fp32
check "text: rates and the share of the roofline" grep -qE 'batch=1 .* decode_tokens_per_s=[0-9.]+ .* roofline=[0-9.]*[1-9]' out
for list in 0 1,x 1,,2 4097 1,; do
    run 2 bench generate --preset nano "${small[@]}" --batch "$list"
    says "--batch=$list: up to 16 numbers"
done
run 2 bench generate --preset nano "${small[@]}" --context 0
says "--context is 1 to"
exit "$failed"
