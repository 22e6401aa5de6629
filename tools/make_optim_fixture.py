#!/usr/bin/env python3
"""tests/fixtures/optim.bin: ten steps of AdamW, of AdamW with moments in 8 bits, and of Muon, as little-endian f32; read by tests/optim/test_muon.c.

Order: p [N], gradients [10, N], p after AdamW [N]; p, codes of m, codes of v after AdamW with moments in 8 bits, each [N]; then for Muon p [ROWS, COLS],
gradients [10, ROWS, COLS], p after it. AdamW is torch's. The others are computed here in f64 from their definitions, and compared with what is
installed: maps and rounding to nearest with torchao's, Muon with torch.optim.Muon, whose products are in bf16. Usage: make_optim_fixture.py FILE
"""
import sys

import numpy as np
import torch

N, STEPS, LR, DECAY, B1, B2, EPS = 600, 10, 1e-2, 0.1, 0.9, 0.95, 1e-8
PARTS, COLS, MOMENTUM = (16, 4, 40), 12, 0.95
SEED, KEY = 5, 0x2BA9B6BAA653D9E3  # of the run; XXH64 of the parameter's name, "w"


def philox(step, group):
    """rng_at(SEED ^ KEY, RNG_ROUND, step, group) of src/base/rng.h."""
    mask = 0xFFFFFFFF
    key = SEED ^ KEY ^ (4 * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    k0, k1 = key & mask, key >> 32
    c = [group & mask, group >> 32, step & mask, step >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & mask, (a >> 32) ^ c[3] ^ k1, a & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c


def dynamic_map(signed):
    """As in arXiv:1511.04561: the middles of 2^e (unsigned: 2^(e+1)) parts of each decade, both signs, 0 and 1."""
    values = [0.0, 1.0]
    for e in range(7):
        edges = np.linspace(0.1, 1, 2 ** (e + (not signed)) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (e - 6)
        values += list(middles) + (list(-middles) if signed else [])
    return np.float32(sorted(values)).astype(np.float64)


def encode(x, signed, random):
    """Codes and the scale of a block; `random` in [0, 1): magnitudes up where it is below the part of the way to the next one."""
    values, scale = dynamic_map(signed), np.float64(np.float32(np.abs(x).max()))
    zero = np.searchsorted(values, 0)
    up = values[zero:]
    size = np.abs(x) / scale
    low = np.minimum(np.searchsorted(up, size, side="right") - 1, len(up) - 2)
    code = low + (random < (size - up[low]) / (up[low + 1] - up[low]))
    if not signed:
        return np.where((code == 0) & (size > 0), 1, code), scale
    return np.where(x < 0, np.maximum(zero - code, 0), zero + code), scale


def check_maps():
    try:
        from torchao.optim.quant_utils import create_dynamic_map
    except ImportError:
        print("torchao is not there: its maps are not compared")
        return
    for signed in (True, False):
        theirs = np.array(create_dynamic_map(signed, 7, 8))
        assert np.abs(theirs - dynamic_map(signed)).max() < 1e-6, signed
    print("maps: as torchao's")


def adamw(p, grads):
    w = torch.nn.Parameter(torch.from_numpy(p.copy()))
    optimizer = torch.optim.AdamW([w], lr=LR, betas=(B1, B2), eps=EPS, weight_decay=DECAY)
    for g in grads:
        w.grad = torch.from_numpy(g.copy())
        optimizer.step()
    return w.detach().numpy()


def adamw_8bit(p, grads):
    p, blocks = p.copy(), range(0, N, 256)
    codes, scales = np.zeros((2, N), int), np.zeros((2, len(blocks)))
    values = dynamic_map(True), dynamic_map(False)
    for step, g in enumerate(grads):
        words = np.array([philox(step, i // 4)[i % 4] for i in range(N)])
        random = (words & 0xFFFF) / 65536, (words >> 16) / 65536
        for b, at in enumerate(blocks):
            s = slice(at, min(at + 256, N))
            m = B1 * values[0][codes[0, s]] * scales[0, b] + (1 - B1) * g[s]
            v = B2 * values[1][codes[1, s]] * scales[1, b] + (1 - B2) * g[s] ** 2
            p[s] = p[s] * (1 - LR * DECAY) - LR * m / (1 - B1 ** (step + 1)) / (np.sqrt(v / (1 - B2 ** (step + 1))) + EPS)
            codes[0, s], scales[0, b] = encode(m, True, random[0][s])
            codes[1, s], scales[1, b] = encode(v, False, random[1][s])
    return p, codes


def orthogonal(u):
    x = u / (np.linalg.norm(u) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def muon(p, grads):
    p, m = p.copy(), np.zeros_like(p)
    for g in grads:
        m = MOMENTUM * m + g
        u = g + MOMENTUM * m
        at = 0
        for rows in PARTS:
            s = slice(at, at + rows)
            p[s] = p[s] * (1 - LR * DECAY) - LR * 0.2 * max(rows, COLS) ** 0.5 * orthogonal(u[s])
            at += rows
    return p


def check_muon(p, grads, ours):
    if not hasattr(torch.optim, "Muon"):
        print("torch.optim.Muon is not there: not compared")
        return
    at = 0
    for rows in PARTS:
        s = slice(at, at + rows)
        w = torch.nn.Parameter(torch.from_numpy(p[s].astype(np.float32)))
        optimizer = torch.optim.Muon([w], lr=LR, weight_decay=DECAY, momentum=MOMENTUM, nesterov=True, adjust_lr_fn="match_rms_adamw")
        for g in grads:
            w.grad = torch.from_numpy(g[s].astype(np.float32))
            optimizer.step()
        error = np.abs(w.detach().numpy() - ours[s]).max() / np.abs(ours[s] - p[s]).max()
        print(f"muon [{rows}, {COLS}]: largest difference from torch's (bf16) over the largest movement: {error:.3g}")
        assert error < 0.05
        at += rows


rng = np.random.default_rng(1)
p = rng.normal(size=N)
# Gradients of very different sizes; a tenth of the elements has none, and some only at first, beside lively ones.
grads = rng.normal(size=(STEPS, N)) * np.exp(rng.normal(size=N) * 2)
grads[:, rng.random(N) < 0.1] = 0
grads[3:, rng.random(N) < 0.1] = 0
p, grads = p.astype(np.float32).astype(np.float64), grads.astype(np.float32).astype(np.float64)
w = rng.normal(size=(sum(PARTS), COLS)).astype(np.float32).astype(np.float64)
gw = rng.normal(size=(STEPS, sum(PARTS), COLS)).astype(np.float32).astype(np.float64)
check_maps()
p8, codes = adamw_8bit(p, grads)
moved = muon(w, gw)
check_muon(w, gw, moved)
parts = [p, grads, adamw(p, grads), p8, codes[0], codes[1], w, gw, moved]
np.concatenate([np.asarray(x, dtype="<f4").reshape(-1) for x in parts]).tofile(sys.argv[1])
