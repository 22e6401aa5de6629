#!/usr/bin/env python3
"""Compares GGUF exports with llama.cpp: trains a tiny model of each architecture with ingot, exports it in every type, and loads it with
llama.cpp (PyPI: xllamacpp, numpy, sentencepiece).

    tools/check_gguf.py INGOT [DIRECTORY]

    tokens  the ids of ugly texts equal those of `ingot tokenizer encode`, for each splitting rule that has a name in GGUF
    loss    over sequences of the corpus: llama.cpp's log-probabilities of each next token, averaged, beside `ingot eval`
"""
import json
import os
import subprocess
import sys
import tempfile
import unicodedata
import urllib.request

import numpy as np
import sentencepiece
import xllamacpp

VOCAB, LENGTH, SEQUENCES = 400, 48, 4
# largest difference of mean losses, in nats
BOUND = {"f32": 2e-4, "f16": 2e-3, "bf16": 1e-2, "q8_0": 3e-2}
LLAMA = "--model.norm=rmsnorm --model.activation=swiglu --model.position=rope --model.ffn_size=96 --model.head_count_kv=2"
MODELS = {
    "llama": LLAMA + " --model.tied_embeddings=false",
    "llama_bias": LLAMA + " --model.rope_scaling=llama3 --model.rope_factor=8 --model.rope_original=16 --model.qkv_bias=true --model.out_bias=true",
    "llama_yarn": LLAMA + " --model.rope_scaling=yarn --model.rope_factor=8 --model.rope_original=16",
    "llama_yarn_factor": LLAMA + " --model.rope_scaling=yarn --model.rope_factor=4 --model.rope_original=32 --model.rope_attention_factor=1.3",
    "qwen2_yarn": LLAMA + " --model.qkv_bias=true --model.norm_eps=1e-6 --model.rope_scaling=yarn --model.rope_factor=8 --model.rope_original=16",
    "qwen2": LLAMA + " --model.qkv_bias=true --model.norm_eps=1e-6",
    "qwen3": LLAMA + " --model.qk_norm=true --model.head_dim=32",
    "qwen3moe": LLAMA + " --model.qk_norm=true --model.layers=gqa/moe --model.moe_experts=6 --model.moe_top_k=2 --model.moe_size=32"
    " --model.moe_normalize=true",
    "gpt2": "--model.norm=layernorm --model.activation=gelu --model.position=learned --model.ffn_size=256 --model.qkv_bias=true"
    " --model.out_bias=true --model.mlp_bias=true",
}
RULES = ["gpt2", "llama3", "qwen2", "o200k", "deepseek-v3", "deepseek-coder", "tekken", "starcoder"]
UGLY = ["", " ", "a", "Hello, world!", "don't  DON'T I'LL we\u2019ll", "  three   spaces\t\ttabs\n\n\nlines \r\n x", "1234567 3.14 \u0661\u0662\u0663 x2y3",
        "na\u00efve caf\u00e9 Stra\u00dfe", "\u4f60\u597d\u4e16\u754c\u3002\u65e5\u672c\u8a9e\u30c6\u30b9\u30c8", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ok",
        "camelCase HTTPServer XMLHttpRequest", "a\u00a0b\u3000c\u2028d", "!!! ... --- ??? {[()]}", "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
        "\u0928\u092e\u0938\u094d\u0924\u0947", "x=y+1;\n\tif (a<b) { return c; }\n", "trailing   ", "\n", "'s 'S 'Ll"]


def ingot(*words, **kinds):
    r = subprocess.run([INGOT, *words], capture_output=True, text=True, env={**os.environ, "INGOT_LOG": "error"}, **kinds)
    if r.returncode:
        sys.exit(f"{' '.join(words)}: {r.stderr}")
    return r.stdout


class Llama:
    def __init__(self, path):
        p = xllamacpp.CommonParams()
        p.model.path = path
        p.n_ctx, p.n_parallel, p.n_gpu_layers, p.warmup = 256, 1, 0, False
        p.cpuparams.n_threads = 1
        self.server = xllamacpp.Server(p)

    def post(self, path, body):
        request = urllib.request.Request(self.server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))

    def tokens(self, text):
        return self.post("/tokenize", {"content": text, "add_special": False, "parse_special": False})["tokens"]

    def logprobs(self, ids, vocab):
        """of every token behind `ids`, from the logits; what is then drawn is "a", since bytes that are no text would be held back"""
        out = self.post("/completion", {"prompt": ids, "n_predict": 1, "n_probs": vocab, "cache_prompt": False, "logit_bias": [[64, 1000]]})
        row = np.full(vocab, -np.inf)
        for t in out["completion_probabilities"][0]["top_logprobs"]:
            row[t["id"]] = t["logprob"]
        return row


def corpus(path):
    rng = np.random.default_rng(1)
    words = [w for t in UGLY for w in t.split() if w] + "in the beginning was word and light of all that is made by it".split()
    with open(path, "w", encoding="utf-8") as f:
        for i in range(2500):
            f.write(" ".join(rng.choice(words, 12)) + f" {i * i}\n")


def check_tokens(rule):
    ingot("tokenizer", "train", "text.txt", "--vocab-size", str(VOCAB), "--split", rule, "-o", "tok_" + rule)
    ingot("data", "build", "text.txt", "--tokenizer", "tok_" + rule, "--separator", "line", "-o", "data_" + rule)
    model(rule, LLAMA, rule, steps=1)
    ingot("ckpt", "export", "run_" + rule, "--format", "gguf", "-o", rule + ".gguf")
    server, bad = Llama(rule + ".gguf"), 0
    for text in UGLY + [open("text.txt", encoding="utf-8").read()[:4000]]:
        ours = json.loads(ingot("tokenizer", "encode", "tok_" + rule, "--json", "--text", text))["ids"] if text else []
        theirs = server.tokens(text)
        if ours != theirs and rule in ("o200k", "tekken") and any(unicodedata.category(c).startswith("M") for c in text):
            print(f"  {rule} {text[:40]!r}: llama.cpp does not take combining marks as its rule says: not counted")
        elif ours != theirs:
            bad += 1
            print(f"  {rule} {text[:40]!r}: ingot {ours[:20]}, llama.cpp {theirs[:20]}")
    print(f"tokens {rule:15} {'equal' if not bad else f'{bad} texts differ'}")
    return bad


def check_pieces():
    """A tokenizer.model with bytes, as Llama 2's: the ids of ugly texts equal SentencePiece's own."""
    sentencepiece.SentencePieceTrainer.train(input="text.txt", model_prefix="pieces", vocab_size=380, model_type="bpe", byte_fallback=True,
                                             normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2, character_coverage=0.99)
    own, bad = sentencepiece.SentencePieceProcessor(model_file="pieces.model"), 0
    ingot("ckpt", "export", "run_gpt2", "--format", "gguf", "--tokenizer", "pieces.model", "-o", "pieces.gguf")
    server = Llama("pieces.gguf")
    for text in UGLY + [open("text.txt", encoding="utf-8").read()[:4000]]:
        ours, theirs = own.encode(text), server.tokens(text)
        if ours != theirs:
            bad += 1
            print(f"  pieces {text[:40]!r}: SentencePiece {ours[:20]}, llama.cpp {theirs[:20]}")
    print(f"tokens {'tokenizer.model':15} {'equal' if not bad else f'{bad} texts differ'}")
    return bad


def model(name, keys, rule="gpt2", steps=60):
    ingot("train", *keys.split(), f"--run.dir=run_{name}", f"--data.tokenizer=tok_{rule}", f"--model.vocab_size={VOCAB + 8}", "--model.layer_count=2",
          "--model.hidden_size=64", "--model.head_count=4", "--model.context_length=128", f"--data.train=data_{rule}_train_000000.bin", "--eval.every=0",
          f"--train.steps={steps}", f"--train.sequence_length={LENGTH}", "--train.precision=fp32", "--optim.lr=1e-2", "--model.init_std=0.1")


def check_loss(name, kind, sequences):
    path = f"{name}.{kind}.gguf"
    ingot("ckpt", "export", "run_" + name, "--format", "gguf", "--dtype", kind, "-o", path)
    server, worst = Llama(path), 0
    for i, ids in enumerate(sequences):
        ours = json.loads(ingot("eval", "run_" + name, f"--data.val=seq{i}_train_000000.bin", "--json"))["loss"]
        theirs = -np.mean([server.logprobs(ids[:k], VOCAB + 8)[ids[k]] for k in range(1, len(ids))])
        worst = max(worst, abs(ours - theirs))
    good = worst <= BOUND[kind]
    print(f"loss   {name:15} {kind:5} differs by at most {worst:.2e} of {ours:.3f} (bound {BOUND[kind]:.0e}) {'' if good else 'WRONG'}")
    return not good


def main():
    corpus("text.txt")
    bad = sum(check_tokens(rule) for rule in RULES) + check_pieces()
    ids = json.loads(ingot("tokenizer", "encode", "tok_gpt2", "text.txt", "--json"))["ids"]
    sequences = [ids[i * 5000:i * 5000 + LENGTH + 1] for i in range(SEQUENCES)]
    for i, part in enumerate(sequences):
        np.save(f"seq{i}.npy", np.array(part, np.uint16))
        ingot("data", "build", f"seq{i}.npy", "--input-eod", "none", "--eod", "none", "--tokenizer", "tok_gpt2", "-o", f"seq{i}")
    for name, keys in MODELS.items():
        model(name, keys)
        bad += sum(check_loss(name, kind, sequences) for kind in BOUND)
    return bad


INGOT = os.path.realpath(sys.argv[1])
if len(sys.argv) > 2:
    os.makedirs(sys.argv[2], exist_ok=True)
    os.chdir(sys.argv[2])
    sys.exit(main() != 0)
with tempfile.TemporaryDirectory() as directory:
    os.chdir(directory)
    sys.exit(main() != 0)
