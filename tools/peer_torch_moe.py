#!/usr/bin/env python3
"""A layer of experts in torch, forward and backward in bf16, for comparison with `ingot bench moe`: torch._grouped_mm with the router,
the permutation and the combination around it, eager and with the activation compiled. Prints medians in ms.

    peer_torch_moe.py [--tokens N] [--experts E] [--top-k K] [--hidden D] [--size I] [--runs N]
"""
import argparse
import statistics

import torch

BF16 = torch.bfloat16


def activation(up, weight):
    gate, value = up.chunk(2, -1)
    return torch.nn.functional.silu(gate) * value * weight[:, None].to(up.dtype)


class Layer:
    def __init__(self, a):
        def leaf(*shape, scale=0.02):
            return (torch.randn(*shape, device="cuda", dtype=BF16) * scale).requires_grad_()

        self.a = a
        self.x = leaf(a.tokens, a.hidden, scale=1)
        self.router = leaf(a.experts, a.hidden)
        self.up = leaf(a.experts, 2 * a.size, a.hidden)
        self.down = leaf(a.experts, a.hidden, a.size)
        self.dy = torch.randn(a.tokens, a.hidden, device="cuda", dtype=BF16)

    def forward(self, act):
        a = self.a
        scores = torch.softmax((self.x @ self.router.t()).float(), -1)
        weight, expert = scores.topk(a.top_k, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).flatten()
        order = torch.argsort(expert.flatten(), stable=True)
        ends = torch.cumsum(torch.bincount(expert.flatten(), minlength=a.experts), 0).to(torch.int32)
        up = torch._grouped_mm(self.x[order // a.top_k], self.up.transpose(1, 2), offs=ends)
        rows = torch._grouped_mm(act(up, weight[order]), self.down.transpose(1, 2), offs=ends)
        return torch.empty_like(rows).index_copy(0, order, rows).view(a.tokens, a.top_k, a.hidden).sum(1)

    def step(self, act):
        for leaf in (self.x, self.router, self.up, self.down):
            leaf.grad = None
        self.forward(act).backward(self.dy)


def median_ms(call, runs):
    times = []
    for i in range(runs + 3):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 32768), ("experts", 64), ("top-k", 8), ("hidden", 2048), ("size", 1024), ("runs", 15)):
        parser.add_argument("--" + name, type=int, default=default)
    a = parser.parse_args()
    torch.manual_seed(1)
    layer = Layer(a)
    print(f"torch {torch.__version__} eager                {median_ms(lambda: layer.step(activation), a.runs):8.3f} ms", flush=True)
    compiled = torch.compile(activation, dynamic=False)
    print(f"torch {torch.__version__} compiled activation  {median_ms(lambda: layer.step(compiled), a.runs):8.3f} ms", flush=True)


if __name__ == "__main__":
    main()
