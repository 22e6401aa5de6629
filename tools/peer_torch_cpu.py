#!/usr/bin/env python3
"""Peer of `ingot bench train`: GPT-2 in PyTorch on the CPU, one full training step (forward, backward, clip, AdamW) on random tokens.

usage: peer_torch_cpu.py [--precision fp32|bf16] [--batch B] [--seq T] [--steps N] [--eager] [--layers L] [--threads N]
Needs torch. bf16 is autocast over fp32 weights, which is what ingot's bf16 (fp32 master weights, fp32 gradients) compares with.
Prints one line: median step time, tokens/s, peak resident memory, first and last loss.
"""
import argparse, resource, statistics, time
import torch, torch.nn as nn, torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers=12, width=768, heads=12, vocab=50257, context=1024):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--seq", type=int, default=1024)
    ap.add_argument("--steps", type=int, default=5)
    ap.add_argument("--layers", type=int, default=12)
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--eager", action="store_true")
    a = ap.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model = GPT2(layers=a.layers)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = model if a.eager else torch.compile(model)
    x = torch.randint(0, 50257, (a.batch, a.seq + 1))
    losses, times = [], []
    for step in range(a.steps + 2):
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bf16"):
            loss = run(x[:, :-1], x[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step >= 2:
            times.append(time.perf_counter() - begin)
    median = statistics.median(times)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1048576
    print(f"peer=torch-{torch.__version__} mode={'eager' if a.eager else 'compile'} precision={a.precision} batch={a.batch} seq={a.seq} "
          f"threads={torch.get_num_threads()} step_s={median:.3f} tokens_per_s={a.batch * a.seq / median:.1f} peak_rss_gib={rss:.2f} "
          f"loss_first={losses[0]:.4f} loss_last={losses[-1]:.4f}", flush=True)


main()
