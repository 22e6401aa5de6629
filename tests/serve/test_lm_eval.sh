#!/usr/bin/env bash
# lm-evaluation-harness asks ingot serve through its local-completions: the same log-likelihoods and metrics as ingot eval. Skipped without
# lm_eval[api]==0.4.9, transformers, datasets and torch.
here=$(dirname "$(realpath "$0")")
python=${INGOT_LM_EVAL_PYTHON:-python3}
"$python" -c 'import lm_eval.models.openai_completions, lm_eval.models.huggingface, aiohttp, datasets' 2>/dev/null || { echo "no lm_eval: skipped"; exit 77; }
if "$1" serve --port 0 --token-file none none 2>&1 | grep -q 'built without libmicrohttpd'; then
    echo "built without libmicrohttpd: skipped"
    exit 77
fi
exec "$python" "$here/../../tools/check_harness.py" "$1" --serve --rows 4
