#!/usr/bin/env python3
"""Peer of `ingot bench learn`: the same initial weights trained by PyTorch over the same order of data.

usage: peer_learn.py RUN --initial DIR -o DIR [--ingot PROGRAM] [--precision fp32|bf16] [--device cpu|cuda] [--compile] [--steps N] [--workers N]
                     [--preload]
RUN: a run of bench learn, such as runs/learn/seed-1/base: its config.yaml says all settings, `ingot data inspect` each batch.
--initial: what `ingot bench learn --initial` wrote; the weights are taken from `ingot ckpt export`.
-o: metrics.jsonl for `ingot bench learn --peer DIR`, and hf/, the final weights, whose held-out loss `ingot eval` computes.
--preload: all batches are read before the first step, so that reading them takes no time from training.
--compile: the model is compiled on the first batch, before the first step, and the seconds are printed: step_s has none of them.
bf16 is autocast over fp32 weights, as ingot's bf16. Models: llama's layers (RMSNorm, RoPE, SwiGLU; grouped heads, QK-norm, biases of q, k, v; soft-cap of the logits).
Optimizer: torch.optim.AdamW, fused where there is a GPU. Needs torch and numpy.
"""
import argparse, concurrent.futures, json, math, os, shutil, struct, subprocess, sys, time

import numpy
import torch
import torch.nn.functional as F


def settings(path):
    """config.yaml as ingot writes it: sections of scalars."""
    found, section = {}, ""
    for line in open(path):
        key, _, value = line.rstrip("\n").partition(":")
        if not line.startswith(" "):
            section = key
        else:
            found[f"{section}.{key.strip()}"] = value.strip().strip('"')
    return found


def tensors_of(path):
    with open(path, "rb") as f:
        length, = struct.unpack("<Q", f.read(8))
        table = json.loads(f.read(length))
        data = f.read()
    out = {}
    for name, t in table.items():
        if name == "__metadata__":
            continue
        if t["dtype"] != "F32":
            sys.exit(f"{path}: {name} is {t['dtype']}, not F32")
        begin, end = t["data_offsets"]
        out[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).reshape(t["shape"])
    return out


def write_tensors(path, tensors):
    table, at = {}, 0
    for name, t in tensors.items():
        table[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + 4 * t.numel()]}
        at += 4 * t.numel()
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for t in tensors.values():
            f.write(t.detach().float().cpu().contiguous().numpy().tobytes())


class Model:
    def __init__(self, config, weights, device):
        c = self.c = config
        plain = set(c.get("layer_types", ())) <= {"full_attention"} and set(c.get("ffn_types", ())) <= {"mlp"}
        if c.get("model_type") not in ("llama", "qwen2", "qwen3", "mistral", "ingot") or c.get("rope_scaling") or c.get("sliding_window") or not plain:
            sys.exit(f"model_type {c.get('model_type')}: this peer knows the layers of llama, qwen2 and qwen3, without window and RoPE scaling")
        self.p = {name: t.to(device).requires_grad_() for name, t in weights.items()}
        self.heads, self.kv = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
        self.dim = c.get("head_dim") or c["hidden_size"] // self.heads
        theta = c.get("rope_theta") or c.get("rope_parameters", {}).get("rope_theta", 10000.0)
        angle = torch.outer(torch.arange(c["max_position_embeddings"], dtype=torch.float64),
                            theta ** (-torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim))
        self.cos, self.sin = angle.cos().float().to(device), angle.sin().float().to(device)

    def norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.p[name].to(x.dtype), self.c["rms_norm_eps"])

    def linear(self, x, name):
        return F.linear(x, self.p[name + ".weight"], self.p.get(name + ".bias"))

    def rotate(self, x, positions):
        cos, sin = self.cos[positions][:, None].to(x.dtype), self.sin[positions][:, None].to(x.dtype)
        low, high = x.chunk(2, -1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def forward(self, tokens, targets, positions, mask):
        """Sum of the cross-entropies. mask: [B, 1, T, T] where documents end inside a sequence; None: causal."""
        b, t = tokens.shape
        x = F.embedding(tokens, self.p["model.embed_tokens.weight"])
        for i in range(self.c["num_hidden_layers"]):
            at = f"model.layers.{i}."
            y = self.norm(x, at + "input_layernorm.weight")
            q, k, v = (self.linear(y, at + f"self_attn.{n}_proj").view(b, t, -1, self.dim) for n in "qkv")
            if at + "self_attn.q_norm.weight" in self.p:
                q, k = self.norm(q, at + "self_attn.q_norm.weight"), self.norm(k, at + "self_attn.k_norm.weight")
            q, k, v = self.rotate(q.transpose(1, 2), positions), self.rotate(k.transpose(1, 2), positions), v.transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != self.kv)
            x = x + self.linear(y.transpose(1, 2).reshape(b, t, -1), at + "self_attn.o_proj")
            y = self.norm(x, at + "post_attention_layernorm.weight")
            y = F.silu(self.linear(y, at + "mlp.gate_proj")) * self.linear(y, at + "mlp.up_proj")
            x = x + self.linear(y, at + "mlp.down_proj")
        head = self.p.get("lm_head.weight", self.p["model.embed_tokens.weight"])
        logits = F.linear(self.norm(x, "model.norm.weight"), head).float()
        if cap := self.c.get("logit_softcap"):
            logits = cap * torch.tanh(logits / cap)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-100, reduction="sum")


def rate(s, step, steps):
    """src/optim/lr_schedule.h"""
    warmup, floor, n = int(s["optim.warmup_steps"]), float(s["optim.min_ratio"]), steps
    peak, kind = float(s["optim.lr"]), s["optim.schedule"]
    if step < warmup:
        return peak * (step + 1) / warmup
    x = min((step - warmup) / (n - warmup), 1) if n > warmup else 1
    if kind == "cosine":
        return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)
    if kind == "linear":
        return peak * (1 - (1 - floor) * x)
    if kind == "wsd":
        length = n * float(s["optim.decay_fraction"])
        return peak * (1 - (1 - floor) * min((step - n + length) / length, 1)) if step > n - length else peak
    return peak


def batch_of(ingot, run, step):
    """The rows of a step: (tokens, targets, positions), each [sequences][T]."""
    said = subprocess.run([ingot, "data", "inspect", run, "--step", str(step), "--json"], capture_output=True, text=True)
    if said.returncode:
        sys.exit(f"data inspect --step {step}: {said.stderr.strip()}")
    rows = json.loads(said.stdout)
    return tuple(numpy.array([r[k] for r in rows], dtype=numpy.int64) for k in ("tokens", "targets", "positions"))


class Batches:
    """The batches of steps 1, 2, ...: read ahead by threads, or all before the first."""

    def __init__(self, a, steps):
        self.read, self.steps, self.ahead = lambda step: batch_of(a.ingot, a.run, step), steps, 2 * a.workers
        self.pool = concurrent.futures.ThreadPoolExecutor(a.workers)
        if a.preload:
            # Processes: a batch of text becomes numbers in Python.
            with concurrent.futures.ProcessPoolExecutor(a.workers) as pool:
                self.all = list(pool.map(batch_of, [a.ingot] * steps, [a.run] * steps, range(1, steps + 1)))
        else:
            self.all = None
            self.coming = [self.pool.submit(self.read, i + 1) for i in range(min(self.ahead, steps))]

    def next(self, step):
        """Of step + 1."""
        if self.all:
            return self.all[step]
        if step + self.ahead < self.steps:
            self.coming.append(self.pool.submit(self.read, step + 1 + self.ahead))
        return self.coming.pop(0).result()


def mask_of(positions):
    """None where every sequence is one document."""
    t = positions.shape[1]
    if bool((positions == torch.arange(t, device=positions.device)).all()):
        return None
    document = (positions == 0).cumsum(1)
    causal = torch.ones(t, t, dtype=torch.bool, device=positions.device).tril()
    return (document[:, None, :, None] == document[:, None, None, :]) & causal


def held_out(ingot, out, s):
    """The held-out loss of the final weights, by ingot."""
    run = os.path.join(out, "as-run")
    shutil.rmtree(run, ignore_errors=True)
    subprocess.run([ingot, "ckpt", "import", os.path.join(out, "hf"), "-o", run], check=True, capture_output=True)
    keys = [f"--{k}={s[k]}" for k in ("data.val", "data.packing", "train.sequence_length", "train.precision")]
    said = subprocess.run([ingot, "eval", run, "--json", "--accept-data-change", *keys], capture_output=True, text=True)
    if said.returncode:
        sys.exit(f"eval: {said.stderr.strip()}")
    return json.loads(said.stdout)["loss"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("run")
    ap.add_argument("--initial", required=True)
    ap.add_argument("-o", "--out", required=True)
    ap.add_argument("--ingot", default="ingot")
    ap.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--steps", type=int, default=0)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--preload", action="store_true")
    a = ap.parse_args()
    s = settings(os.path.join(a.run, "config.yaml"))
    if s["optim.name"] != "adamw" or float(s["train.z_loss"]):
        sys.exit("this peer has AdamW, and no z-loss")
    os.makedirs(a.out, exist_ok=True)
    batch_tokens, micro = int(s["train.batch_tokens"]), max(int(s["train.micro_batch"]), 1)
    total = int(s["train.steps"]) or -(-int(s["train.tokens"]) // batch_tokens)
    steps, clip = a.steps or total, float(s["train.clip"])
    batches = Batches(a, steps)
    hf = os.path.join(a.out, "hf")
    shutil.rmtree(hf, ignore_errors=True)
    subprocess.run([a.ingot, "ckpt", "export", a.initial, "-o", hf], check=True, capture_output=True)
    files = [f for f in sorted(os.listdir(hf)) if f.endswith(".safetensors")]
    weights = {}
    for f in files:
        weights.update(tensors_of(os.path.join(hf, f)))
    model = Model(json.load(open(os.path.join(hf, "config.json"))), weights, a.device)
    decays = s["optim.decay_embeddings"] == "true"
    matrix = {n: p.dim() == 2 and (decays or not n.startswith(("model.embed", "lm_head"))) for n, p in model.p.items()}
    opt = torch.optim.AdamW([{"params": [p for n, p in model.p.items() if matrix[n]], "weight_decay": float(s["optim.weight_decay"])},
                             {"params": [p for n, p in model.p.items() if not matrix[n]], "weight_decay": 0.0}],
                            lr=float(s["optim.lr"]), betas=(float(s["optim.beta1"]), float(s["optim.beta2"])), eps=float(s["optim.eps"]),
                            fused=a.device == "cuda")
    forward = torch.compile(model.forward) if a.compile else model.forward

    def there(batch):
        return [torch.from_numpy(x).to(a.device) for x in batch]

    def forward_backward(batch):
        """Gradients and sum of the losses; the divisor of the mean."""
        tokens, targets, positions = batch
        valid, loss = int((targets != -100).sum()), 0.0
        for at in range(0, len(tokens), micro):
            part = slice(at, at + micro)
            with torch.autocast(a.device, torch.bfloat16, enabled=a.precision == "bf16"):
                sum_of = forward(tokens[part], targets[part], positions[part], mask_of(positions[part]))
            (sum_of / valid).backward()
            loss += float(sum_of.detach())
        return loss, valid

    if a.compile:
        begin = time.perf_counter()
        forward_backward(there(batch_of(a.ingot, a.run, 1)))
        opt.zero_grad(set_to_none=True)
        print(f"compile_s={time.perf_counter() - begin:.1f}", flush=True)
    with open(os.path.join(a.out, "metrics.jsonl"), "w") as log:
        for step in range(steps):
            batch = there(batches.next(step))
            begin = time.perf_counter()
            for group in opt.param_groups:
                group["lr"] = rate(s, step, total)
            loss, valid = forward_backward(batch)
            norm = torch.nn.utils.clip_grad_norm_(model.p.values(), clip or math.inf)
            opt.step()
            opt.zero_grad(set_to_none=True)
            norm, seconds = float(norm), time.perf_counter() - begin
            log.write(json.dumps({"kind": "step", "step": step + 1, "tokens": (step + 1) * batch_tokens, "time": time.time(), "loss": loss / valid,
                                  "lr": rate(s, step, total), "grad_norm": norm, "step_s": seconds, "tokens_per_s": batch_tokens / seconds}) + "\n")
            log.flush()
        for f in files:
            os.remove(os.path.join(hf, f))
        if os.path.exists(os.path.join(hf, "model.safetensors.index.json")):
            os.remove(os.path.join(hf, "model.safetensors.index.json"))
        write_tensors(os.path.join(hf, "model.safetensors"), model.p)
        if s["data.val"]:
            log.write(json.dumps({"kind": "step", "step": steps, "tokens": steps * batch_tokens, "time": time.time(),
                                  "val_loss": held_out(a.ingot, a.out, s)}) + "\n")
    print(a.out)


main()
