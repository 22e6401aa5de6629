#!/usr/bin/env python3
"""tests/fixtures/mamba2.bin, mamba2_groups.bin: a Mamba2Mixer of transformers with random weights, an input and its output, as little-endian f32.

Order: in_proj, conv1d.weight, conv1d.bias, A_log, dt_bias, D, norm.weight, out_proj, x [T, D], y [T, D]; sizes as in
tests/model/test_mamba.c. Usage: make_mamba2_fixture.py FILE [GROUPS]
"""
import sys

import torch
from transformers.models.mamba2 import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

NAMES = ["in_proj.weight", "conv1d.weight", "conv1d.bias", "A_log", "dt_bias", "D", "norm.weight", "out_proj.weight"]

torch.manual_seed(1)
config = Mamba2Config(hidden_size=16, num_heads=4, head_dim=8, n_groups=int(sys.argv[2]) if len(sys.argv) > 2 else 1, state_size=5, conv_kernel=4, expand=2, chunk_size=8,
                      layer_norm_epsilon=1e-5)
mixer = Mamba2Mixer(config, 0)
with torch.no_grad():
    for p in mixer.parameters():
        p.copy_(torch.randn_like(p) * 0.5)
    x = torch.randn(1, 20, 16)
    y = mixer.torch_forward(x) if hasattr(mixer, "torch_forward") else mixer(x)
weights = dict(mixer.named_parameters())
flat = [weights[name].detach().reshape(-1) for name in NAMES] + [x.reshape(-1), y.reshape(-1)]
torch.cat(flat).float().numpy().astype("<f4").tofile(sys.argv[1])
