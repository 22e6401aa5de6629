#!/usr/bin/env python3
"""Peer of `ingot bench train --device cuda`: the same decoders in PyTorch, as one would train them well there: torch.compile, the faster
of the flash and cuDNN attention backends at this shape, fused AdamW, bf16 autocast over fp32 weights. One step is forward, backward,
clip, optimizer, on random tokens.

usage: peer_torch_gpu.py --family llama|gpt2 --layers L --width D --heads H --heads-kv K --ffn F --vocab V [--untied] --batch B --seq T
                         [--mode default|max-autotune-no-cudagraphs|eager] [--fp8 tensorwise|rowwise|rowwise_with_gw_hp] [--steps N] [--serve]
--fp8: all linears of the blocks, but not the head, train in torchao's float8 by that recipe. torchao must be on PYTHONPATH; a wheel unpacked
there is enough, with TORCHAO_FORCE_SKIP_LOADING_SO_FILES=1.
Prints one line of JSON: after N steps, or with --serve one when the first step is done and one more for each number of steps that
comes in on standard input.
"""
import time

BORN = time.time()  # of the process, nearly: importing torch is part of a cold start
import argparse, json, os, statistics, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpu_meter import Meter, power

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), 1e-5)


class Attention(nn.Module):
    """Fused projection, grouped heads; `rotary`: (cos, sin) tables or None."""

    def __init__(self, width, heads, heads_kv, bias):
        super().__init__()
        self.heads, self.heads_kv, self.dim = heads, heads_kv, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * heads_kv) * self.dim, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x, rotary):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, -1, self.dim).transpose(1, 2)
                   for y in self.qkv(x).split([n * self.dim for n in (self.heads, self.heads_kv, self.heads_kv)], -1))
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.heads_kv)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


def rotate(x, cos, sin):
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


class SwiGLU(nn.Module):
    def __init__(self, width, ffn):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * ffn, bias=False), nn.Linear(ffn, width, bias=False)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * value)


class GELU(nn.Module):
    def __init__(self, width, ffn):
        super().__init__()
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        gpt2 = a.family == "gpt2"
        norm = nn.LayerNorm if gpt2 else RMSNorm
        self.norm1, self.norm2 = norm(a.width), norm(a.width)
        self.attention = Attention(a.width, a.heads, a.heads_kv, bias=gpt2)
        self.mlp = (GELU if gpt2 else SwiGLU)(a.width, a.ffn)

    def forward(self, x, rotary):
        x = x + self.attention(self.norm1(x), rotary)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tokens = nn.Embedding(a.vocab, a.width)
        self.positions = nn.Embedding(a.seq, a.width) if a.family == "gpt2" else None
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.width) if a.family == "gpt2" else RMSNorm(a.width)
        self.head = nn.Linear(a.width, a.vocab, bias=False)
        if not a.untied:
            self.head.weight = self.tokens.weight
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, ids, targets, rotary):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        x = x.to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, rotary)
        logits = self.head(self.norm(x).to(torch.bfloat16))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))


def faster_attention(a):
    """Times both backends at the model's shape and leaves the faster one enabled."""
    found = {}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        try:
            q = torch.randn(a.batch, a.heads, a.seq, a.width // a.heads, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            k, v = (torch.randn(a.batch, a.heads_kv, a.seq, a.width // a.heads, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                    for _ in range(2))
            times = []
            with sdpa_kernel(backend):
                for _ in range(8):
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    begin.record()
                    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=a.heads != a.heads_kv)
                    y.backward(torch.ones_like(y))
                    end.record()
                    torch.cuda.synchronize()
                    times.append(begin.elapsed_time(end))
            found[name] = statistics.median(times[2:])
        except RuntimeError as e:
            print(f"{name} attention: {e}", file=sys.stderr)
    torch.cuda.empty_cache()
    best = min(found, key=found.get) if found else None
    if best:
        torch.backends.cuda.enable_cudnn_sdp(best == "cudnn")
        torch.backends.cuda.enable_flash_sdp(best == "flash")
        torch.backends.cuda.enable_mem_efficient_sdp(False)
    return best, found


def rotary_tables(a, device):
    if a.family == "gpt2":
        return None
    half = a.width // a.heads // 2
    angles = torch.outer(torch.arange(a.seq, device=device).float(), 10000.0 ** (-torch.arange(half, device=device).float() / half))
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def to_float8(model, recipe):
    """torchao's float8 training, as its README has it: dynamic scales, head in bf16, and sides that are multiples of 16."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    def taken(module, name):
        return "head" not in name and module.in_features % 16 == 0 and module.out_features % 16 == 0

    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe), module_filter_fn=taken)
    return sum(type(m).__name__ == "Float8Linear" for m in model.modules())


class Peer:
    def __init__(self, a):
        self.a, self.device = a, "cuda" if torch.cuda.is_available() else "cpu"
        self.gpu = self.device == "cuda"
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        self.attention, self.attention_ms = faster_attention(a) if self.gpu else (None, {})
        self.model = Decoder(a).to(self.device)
        self.float8 = to_float8(self.model, a.fp8) if a.fp8 else 0
        self.rotary = rotary_tables(a, self.device)
        self.meter = Meter()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.run = self.model if a.mode == "eager" else torch.compile(self.model, mode=None if a.mode == "default" else a.mode)
        data = torch.randint(0, a.vocab, (a.batch, a.seq + 1), device=self.device)
        self.ids, self.targets = data[:, :-1].contiguous(), data[:, 1:].contiguous()
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()

    def step(self):
        with torch.autocast(self.device, torch.bfloat16):
            loss = self.run(self.ids, self.targets, self.rotary)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def first(self):
        loss = self.step().item()
        cold = time.time() - BORN
        for _ in range(4):  # the optimizer's state, recompilations, autotuned kernels
            self.step()
        return {"cold_start_s": cold, "ready_s": time.time() - BORN, "loss_first": loss, **self.facts()}

    def timed(self, steps):
        times, loss = [], None
        if self.gpu:
            torch.cuda.synchronize()
        begin_s, before = time.time(), self.meter.joules()
        for _ in range(steps):
            if self.gpu:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                loss = self.step()
                end.record()
                torch.cuda.synchronize()
                times.append(begin.elapsed_time(end) / 1e3)
            else:
                begin = time.perf_counter()
                loss = self.step()
                times.append(time.perf_counter() - begin)
        spent = power(before, self.meter.joules(), time.time() - begin_s, steps * self.a.batch * self.a.seq)
        median = statistics.median(times)
        return spent | {"step_s": median, "step_s_best": min(times), "tokens_per_s": self.a.batch * self.a.seq / median,
                "loss_last": loss.item(), **self.facts()}

    def facts(self):
        out = {"peer": "torch " + torch.__version__, "mode": self.a.mode, "attention": self.attention, "attention_ms": self.attention_ms,
               "parameters": sum(p.numel() for p in self.model.parameters()), "float8_linears": self.float8}
        if self.gpu:
            out |= {"device": torch.cuda.get_device_name(), "allocated_bytes": torch.cuda.max_memory_allocated(),
                    "reserved_bytes": torch.cuda.max_memory_reserved()}
        return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--family", choices=["llama", "gpt2"], required=True)
    for name in ("layers", "width", "heads", "heads-kv", "ffn", "vocab", "batch", "seq"):
        ap.add_argument("--" + name, type=int, required=True)
    ap.add_argument("--untied", action="store_true")
    ap.add_argument("--mode", default="default", choices=["default", "max-autotune-no-cudagraphs", "eager"])
    ap.add_argument("--fp8", default="", choices=["", "tensorwise", "rowwise", "rowwise_with_gw_hp"])
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--serve", action="store_true")
    a = ap.parse_args()
    if a.fp8 and a.mode == "eager":
        ap.error("--fp8 needs torch.compile: scaling and casts are passes of their own without it")
    answers = os.fdopen(os.dup(1), "w")  # what libraries print goes to standard error
    os.dup2(2, 1)

    def answer(result):
        print(json.dumps(result), file=answers, flush=True)

    peer = Peer(a)
    first = peer.first()
    if not a.serve:
        answer(first | peer.timed(a.steps))
        return
    answer(first)
    for line in sys.stdin:
        if peer.gpu:
            torch.cuda.empty_cache()
        answer(peer.timed(int(line)))
        if peer.gpu:
            torch.cuda.empty_cache()  # the other one needs room


main()
