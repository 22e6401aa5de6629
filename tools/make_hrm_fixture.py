#!/usr/bin/env python3
"""tests/fixtures/hrm.bin: hierarchical reasoning with random weights, its logits and its one-step gradients, as little-endian f32.

The two stacks are LlamaDecoderLayers of transformers, the recurrence around them is written here from arXiv:2506.21734 (section 2) in
autograd's terms: all passes but a segment's last two run under no_grad, states are detached between segments. Order: for each parameter
in NAMES its values, then the logits [T, V] of the last segment, then for each parameter the gradient of the sum over segments of the
mean cross-entropy; sizes and names as in tests/model/test_hrm.c. Usage: make_hrm_fixture.py FILE
"""
import sys

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

T, D, V, LOW, LAYERS, CYCLES, STEPS, SEGMENTS = 12, 16, 23, 1, 3, 2, 2, 2

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
config = LlamaConfig(vocab_size=V, hidden_size=D, intermediate_size=20, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
                     num_hidden_layers=LAYERS, rms_norm_eps=1e-6, attn_implementation="eager")
embed, head = nn.Embedding(V, D), nn.Linear(D, V, bias=False)
layers = nn.ModuleList([LlamaDecoderLayer(config, i) for i in range(LAYERS)])
input_norm, low_norm, high_norm = (LlamaRMSNorm(D, eps=1e-6) for _ in range(3))
everything = nn.ModuleList([embed, layers, high_norm, head, input_norm, low_norm])
with torch.no_grad():
    for p in everything.parameters():
        p.copy_((torch.randn_like(p) * 0.3 + (1 if p.dim() == 1 else 0)).float())

tokens, targets = torch.randint(V, (1, T)), torch.randint(V, (1, T))
positions = torch.arange(T)[None]
rope = LlamaRotaryEmbedding(config)(torch.zeros(1, T, D), positions)
rope = tuple(t.double() for t in rope)
mask = torch.full((T, T), float("-inf")).triu(1)[None, None]


def stack(which, norm, z):
    for layer in which:
        z = layer(z, attention_mask=mask, position_ids=positions, position_embeddings=rope)
        z = z[0] if isinstance(z, tuple) else z
    return norm(z)


loss, high, low = 0, torch.zeros(1, T, D), torch.zeros(1, T, D)
x = input_norm(embed(tokens))
for _ in range(SEGMENTS):
    for cycle in range(CYCLES):
        for step in range(STEPS):
            last = cycle == CYCLES - 1 and step == STEPS - 1
            with torch.set_grad_enabled(last):
                low = stack(layers[:LOW], low_norm, low + high + x)
        with torch.set_grad_enabled(last):
            high = stack(layers[LOW:], high_norm, high + low)
    logits = head(high)
    loss = loss + nn.functional.cross_entropy(logits[0], targets[0])
    high, low = high.detach(), low.detach()
loss.backward()


def named(get):
    """Parameters in the order and the layout of ingot: q, k and v in one matrix, gate and up in another."""
    yield get(embed.weight)
    for layer in layers:
        a, m = layer.self_attn, layer.mlp
        yield get(layer.input_layernorm.weight)
        yield torch.cat([get(a.q_proj.weight), get(a.k_proj.weight), get(a.v_proj.weight)])
        yield get(a.o_proj.weight)
        yield get(layer.post_attention_layernorm.weight)
        yield torch.cat([get(m.gate_proj.weight), get(m.up_proj.weight)])
        yield get(m.down_proj.weight)
    yield from (get(p) for p in (high_norm.weight, head.weight, input_norm.weight, low_norm.weight))


parts = [tokens.reshape(-1), targets.reshape(-1), *named(lambda p: p.detach()), logits.detach(), *named(lambda p: p.grad)]
torch.cat([p.reshape(-1).double() for p in parts]).numpy().astype("<f4").tofile(sys.argv[1])
