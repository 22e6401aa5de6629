#!/usr/bin/env bash
# Fifty kills at random moments, resumed each time: see test_resume.sh. SEED=N repeats the moments.
. "$(dirname "$0")/kill.sh"
kill_and_resume fp32_adamw_stream 12
kill_and_resume fp32_lion_documents 12 --optim.name=lion --optim.lr=1e-3 --data.packing=documents
kill_and_resume bf16_adamw_documents 13 --train.precision=bf16 --data.packing=documents --train.recompute=full
kill_and_resume bf16_lion_stream 13 --train.precision=bf16 --optim.name=lion --optim.lr=1e-3 --train.batch_tokens=256
exit $failed
