#!/usr/bin/env python3
"""Fixtures from Hugging Face transformers and torch, for tests/model/test_hf.c. Run once; the test suite needs neither.

usage: make_hf_fixtures.py [OUT [NAME...]]     (default tests/fixtures/hf, all)
needs: torch, transformers, safetensors   (made with torch 2.15.0, transformers 5.23.0)

For each tiny random model OUT/NAME/ gets config.json and model.safetensors as save_pretrained writes them (or the config in the old
style), and expect.safetensors:
  tokens   I32 [11, 25]  rows of 24 inputs and their targets, shifted by one
  logits   F32 [24, V]   of row 0
  grad/X   F32           gradient of row 0's mean loss for every parameter X
  long_tokens I32 [150], long_logits F32 [150, V]   of models with a state
  losses   F32 [10]      of ten AdamW steps on rows 1..10 (lr 1e-3, betas 0.9/0.95, eps 1e-8, decay 0.1 on matrices, clip 1.0)
"""
import json, os, sys
import torch
from safetensors.torch import save_file
from transformers.models.qwen3 import modeling_qwen3 as qwen3
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next
from transformers import (DeepseekV3Config, DeepseekV3ForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM)

V, D, F, L, T = 48, 32, 40, 2, 24
base = dict(vocab_size=V, hidden_size=D, intermediate_size=F, num_hidden_layers=L, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False, initializer_range=0.2,
            bos_token_id=None, eos_token_id=None, pad_token_id=None)
# 150 tokens: more than two chunks of the delta rule
deltanet = dict(initializer_range=0.08, max_position_embeddings=160, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12)

experts = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20)


def rope(**kw):
    return {"rope_parameters": {"rope_theta": 10000.0, **kw}}


models = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=D, n_layer=L, n_head=4, n_positions=64, initializer_range=0.2, resid_pdrop=0, embd_pdrop=0,
                                               attn_pdrop=0, bos_token_id=None, eos_token_id=None)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**base)),
    "llama_tied_bias": lambda: LlamaForCausalLM(LlamaConfig(**{**base, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True})),
    "llama_linear": lambda: LlamaForCausalLM(LlamaConfig(**base, **rope(rope_type="linear", factor=4.0))),
    "llama_llama3": lambda: LlamaForCausalLM(LlamaConfig(**base, **rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                                       original_max_position_embeddings=16))),
    "llama_yarn": lambda: LlamaForCausalLM(LlamaConfig(**base, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16))),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**base, sliding_window=7, head_dim=8)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**{**base, "tie_word_embeddings": True}, use_sliding_window=True, sliding_window=7, max_window_layers=1)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**base, head_dim=16)),
    "qwen3_next_dense": lambda: Qwen3NextForCausalLM(Qwen3NextConfig(**{**base, **deltanet, "num_hidden_layers": 3, "layer_types": 2 * ["linear_attention"] + ["full_attention"]}, num_experts=0)),
}
models["qwen3_moe"] = lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**base, "num_hidden_layers": 3}, head_dim=16, **experts, norm_topk_prob=True, mlp_only_layers=[1]))
models["qwen3_moe_window"] = lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**base, head_dim=16, **experts, norm_topk_prob=False, use_sliding_window=True, sliding_window=7, decoder_sparse_step=2))
models["qwen3_next"] = lambda: Qwen3NextForCausalLM(Qwen3NextConfig(**{**base, **deltanet}, layer_types=["linear_attention", "full_attention"], **experts, shared_expert_intermediate_size=12))
# 3 heads: no power of two; none of the sizes equals another
latent = dict(num_attention_heads=3, num_key_value_heads=3, q_lora_rank=20, kv_lora_rank=14, qk_nope_head_dim=10, qk_rope_head_dim=8, v_head_dim=12)
models["deepseek_v3_dense"] = lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**{**base, **latent}, first_k_dense_replace=L))
models["deepseek_v3_yarn"] = lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**{**base, **latent, "q_lora_rank": None}, first_k_dense_replace=L, **rope(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=1.3)))
models["deepseek_v3"] = lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**{**base, **latent}, first_k_dense_replace=1, moe_intermediate_size=12, n_routed_experts=8,
    n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2, routed_scaling_factor=1.5))


class Hybrid(torch.nn.Module):
    """What no family of transformers holds, of its modules: Gated DeltaNet, attention with a window and without, plain norms, dense."""

    def __init__(self):
        super().__init__()
        kinds = ["linear_attention", "sliding_attention", "full_attention"]
        c = self.config = Qwen3Config(**{**base, "num_hidden_layers": 3, "max_position_embeddings": 160}, head_dim=16, layer_types=[k.replace("linear", "full") for k in kinds],
                                      use_sliding_window=True, sliding_window=7)
        next_config = Qwen3NextConfig(**{**base, **deltanet, "num_hidden_layers": 3}, layer_types=["linear_attention"] * 3, num_experts=0)
        c._attn_implementation = "eager"
        c.linear_num_key_heads = 2
        self.lm_head = torch.nn.Linear(D, V, bias=False)
        self.model = m = torch.nn.Module()
        m.embed_tokens = torch.nn.Embedding(V, D)
        m.norm = qwen3.Qwen3RMSNorm(D, eps=c.rms_norm_eps)
        m.layers = torch.nn.ModuleList()
        self.rope = qwen3.Qwen3RotaryEmbedding(c)
        for i, kind in enumerate(kinds):
            layer = torch.nn.Module()
            layer.input_layernorm = qwen3.Qwen3RMSNorm(D, eps=c.rms_norm_eps)
            layer.post_attention_layernorm = qwen3.Qwen3RMSNorm(D, eps=c.rms_norm_eps)
            if kind == "linear_attention":
                layer.linear_attn = qwen3_next.Qwen3NextGatedDeltaNet(next_config, i)
            else:
                layer.self_attn = qwen3.Qwen3Attention(c, i)
            layer.mlp = qwen3.Qwen3MLP(c)
            layer.kind = kind
            m.layers.append(layer)
        for p in self.parameters():
            if p.dim() >= 2:
                torch.nn.init.normal_(p, std=0.2)

    def forward(self, tokens):
        t = tokens.shape[1]
        x = self.model.embed_tokens(tokens)
        angles = self.rope(x, torch.arange(t)[None])
        back = torch.arange(t)[:, None] - torch.arange(t)[None]
        for layer in self.model.layers:
            y = layer.input_layernorm(x)
            if layer.kind == "linear_attention":
                x = x + layer.linear_attn(y)
            else:
                seen = (back >= 0) & ((back < self.config.sliding_window) | (layer.kind == "full_attention"))
                x = x + layer.self_attn(y, angles, torch.where(seen, 0.0, -torch.inf)[None, None])[0]
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return type("Output", (), {"logits": self.lm_head(self.model.norm(x))})

    def save_pretrained(self, directory):
        config = {k: v for k, v in base.items() if k in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "initializer_range")}
        config.update({k: v for k, v in deltanet.items()})
        config.update(model_type="ingot", num_hidden_layers=3, layer_types=[l.kind for l in self.model.layers], sliding_window=7, qk_norm=True, rope_theta=10000.0)
        json.dump(config, open(os.path.join(directory, "config.json"), "w"), indent=2)
        save_file({k: v.contiguous() for k, v in self.state_dict().items()}, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})


models["ingot_hybrid"] = Hybrid
old_style = {"llama_llama3", "qwen2"}  # config.json rewritten as older transformers wrote it


def to_old(path):
    c = json.load(open(path))
    p = c.pop("rope_parameters")
    c["rope_theta"] = p.pop("rope_theta")
    c["torch_dtype"] = c.pop("dtype")
    c["rope_scaling"] = None if p.get("rope_type") == "default" else p
    c.pop("layer_types", None)
    json.dump(c, open(path, "w"), indent=2)


def loss_of(model, row):
    logits = model(row[None, :-1]).logits[0]
    return torch.nn.functional.cross_entropy(logits, row[1:].long()), logits


def as_saved(key, x):
    """In memory the experts of a layer are one tensor, on disk they are apart."""
    if key.endswith("experts.gate_up_proj"):
        for e, both in enumerate(x):
            gate, up = both.chunk(2)
            yield key.replace("gate_up_proj", f"{e}.gate_proj.weight"), gate
            yield key.replace("gate_up_proj", f"{e}.up_proj.weight"), up
    elif key.endswith("experts.down_proj"):
        for e, down in enumerate(x):
            yield key.replace("down_proj", f"{e}.down_proj.weight"), down
    else:
        yield key, x


def make(name, out):
    torch.manual_seed(len(name) * 7 + 1)
    model = models[name]().float().train()
    with torch.no_grad():  # norms at one and biases at zero would hide errors
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.2 * torch.randn_like(p))
        for key, b in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                b.add_(0.1 * torch.randn_like(b))
        for key, p in model.named_parameters():  # states that forget in a step or two would leave gradients of rounding alone
            if key.endswith("A_log"):
                p.sub_(2.5)
    model.config._attn_implementation = "eager"
    directory = os.path.join(out, name)
    os.makedirs(directory, exist_ok=True)
    model.save_pretrained(directory)
    if name in old_style:
        to_old(os.path.join(directory, "config.json"))
    g = os.path.join(directory, "generation_config.json")
    if os.path.exists(g):
        os.remove(g)
    tokens = torch.randint(0, V, (11, T + 1), dtype=torch.int32)
    expect = {"tokens": tokens}
    loss, logits = loss_of(model, tokens[0].long())
    loss.backward()
    expect["logits"] = logits.detach().clone()
    if hasattr(model.config, "linear_num_key_heads"):
        long = torch.randint(0, V, (150,), dtype=torch.int32)
        expect["long_tokens"] = long
        with torch.no_grad():
            expect["long_logits"] = model(long[None].long()).logits[0].clone()
    for key, p in model.named_parameters():
        expect.update({"grad/" + k: g.clone() for k, g in as_saved(key, p.grad)})
    model.zero_grad(set_to_none=True)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    keep = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": keep, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for i in range(1, 11):
        loss, _ = loss_of(model, tokens[i].long())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses.append(loss.item())
    expect["losses"] = torch.tensor(losses)
    save_file({k: v.contiguous() for k, v in expect.items()}, os.path.join(directory, "expect.safetensors"))
    print(name, losses[0], losses[-1])


out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "tests", "fixtures", "hf")
for name in sys.argv[2:] or models:
    make(name, out)
