#!/usr/bin/env python3
"""Training steps of LLMQ (https://github.com/IST-DASLab/llmq) on one GPU: one line of JSON. Called by bench_gpu.py --llmq TRAIN.

usage: peer_llmq.py --train PATH/train --layers L --width D --heads H --heads-kv K --ffn F --vocab V --batch B --seq T [--untied] [--steps N] [--matmul-dtype e4m3]
Random tokens and weights; bf16 weights without an fp32 master, bf16 gradients and moments, CUDA graphs, no recompute. Its steps are told in
whole milliseconds. --matmul-dtype e4m3: GEMMs of the blocks in FP8, with a scale of each tensor's own. It goes on after the last wanted step, so it is ended by force: nothing of its own is kept.
"""
import argparse, array, json, os, random, re, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpu_meter import Meter, power

WARM = 5  # steps before the timed ones: the first builds plans, the second captures
SPARE = 4  # and behind them: what it reads ahead


def write_model(a, where):
    config = {"architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_size": a.width, "intermediate_size": a.ffn,
              "vocab_size": a.vocab, "num_attention_heads": a.heads, "num_key_value_heads": a.heads_kv, "num_hidden_layers": a.layers,
              "max_position_embeddings": a.seq, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": not a.untied}
    with open(os.path.join(where, "config.json"), "w") as out:
        json.dump(config, out)


def write_tokens(a, where):
    """Its token files: 256 ints of header (magic, version, bytes of a token, how many), then the tokens."""
    count = (WARM + a.steps + SPARE) * a.batch * a.seq + 1
    header = array.array("i", [0] * 256)
    header[0:2] = array.array("i", b"BIN.TOK\n")
    header[2:5] = array.array("i", [1, 4, count])
    path = os.path.join(where, "tokens.bin")
    with open(path, "wb") as out:
        header.tofile(out)
        array.array("i", random.Random(1).choices(range(a.vocab), k=count)).tofile(out)
    return path


def steps_of(a, where):
    """Milliseconds of each step from the first on, the seconds until the first was done, and other facts of the timed steps."""
    tokens = write_tokens(a, where)
    env = dict(os.environ)
    env["LD_LIBRARY_PATH"] = ":".join(p for p in (os.path.dirname(os.path.abspath(a.train)), env.get("LD_LIBRARY_PATH")) if p)
    command = [os.path.abspath(a.train), "--from-scratch", "--model", where, "--batch-size", str(a.batch), "--seq-length", str(a.seq), "--grad-accumulation", "1",
               "--use-cuda-graphs", "--opt-m-dtype", "BF16", "--opt-v-dtype", "BF16", "--train-file", tokens, "--eval-file", tokens,
               "--eval-every-n-steps", "0", "--ckpt-interval", "1000000", "--log-gpu-util", "0", "--learning-rate", "3e-4", "--steps", "1000000", "--out-dir", where,
               "--checkpoint-dir", where, "--log-file", os.path.join(where, "log.json")]
    if a.matmul_dtype:
        command += ["--matmul-dtype", a.matmul_dtype]
    begin, cold, ms, told, facts, meter = time.time(), None, [], [], {}, Meter()
    others = meter.bytes_used()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=env, cwd=where)
    for line in process.stdout:
        told = told[-5:] + [line.rstrip()]
        step = re.match(r"\[T\] step +\d+ .*time: +(\d+) ms ", line)
        if step:
            cold = cold or time.time() - begin
            ms.append(int(step[1]))
            if len(ms) == WARM:
                begin_s, before = time.time(), meter.joules()
        if len(ms) == WARM + a.steps:
            seconds, told_s = time.time() - begin_s, sum(ms[WARM:]) / 1e3
            if abs(seconds - told_s) < 0.1 * told_s:  # its lines came when its steps were done
                facts = power(before, meter.joules(), seconds, a.steps * a.batch * a.seq)
            loss = re.search(r"loss +([0-9.]+)", line)
            if loss:
                facts["loss_last"] = float(loss[1])
            if others is not None:
                facts["allocated_bytes"] = meter.bytes_used() - others
            break
    process.kill()
    process.wait()
    if len(ms) < WARM + a.steps:
        sys.exit(f"peer_llmq.py: {len(ms)} steps of {WARM + a.steps}; it said last: {' | '.join(told)}")
    return ms, cold, facts


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--train", required=True)
    ap.add_argument("--family", default="llama")
    for name in ("layers", "width", "heads", "heads-kv", "ffn", "vocab", "batch", "seq"):
        ap.add_argument("--" + name, type=int, required=True)
    ap.add_argument("--untied", action="store_true")
    ap.add_argument("--matmul-dtype", default="")
    ap.add_argument("--steps", type=int, default=20)
    a = ap.parse_args()
    if a.family != "llama":
        sys.exit(f"peer_llmq.py: LLMQ has no {a.family}")
    with tempfile.TemporaryDirectory() as where:
        write_model(a, where)
        ms, cold, facts = steps_of(a, where)
    timed = ms[WARM:]
    step = statistics.median(timed) / 1e3
    print(json.dumps(facts | {"tokens_per_s": a.batch * a.seq / step, "step_s": step, "step_s_best": min(timed) / 1e3, "cold_start_s": cold}))


main()
