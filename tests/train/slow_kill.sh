#!/usr/bin/env bash
# Fifty kills at random moments, resumed each time: see test_resume.sh. SEED=N repeats the moments. KILLS=N: N of each of four runs.
. "$(dirname "$0")/kill.sh"
kills=${KILLS:-13}
kill_and_resume fp32_adamw_stream "$kills"
kill_and_resume fp32_lion_documents "$kills" --optim.name=lion --optim.lr=1e-3 --data.packing=documents
kill_and_resume bf16_adamw_documents "$kills" --train.precision=bf16 --data.packing=documents --train.recompute=full
kill_and_resume bf16_lion_stream "$kills" --train.precision=bf16 --optim.name=lion --optim.lr=1e-3 --train.batch_tokens=256
exit $failed
