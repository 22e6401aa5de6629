#!/usr/bin/env python3
"""Checks that transformers loads what `ingot ckpt export --dtype fp8` writes, and computes with it what the weights before it say.

usage: check_fp8_export.py [RUN ...] [--ingot PROGRAM] [--device cpu|cuda]     (default: build/cpu/ingot, cpu, and the models of tests/fixtures/hf)
needs: torch, transformers, accelerate   (made with torch 2.15.0, transformers 5.24.0)

For every run:
  loads       no missing, unexpected or misshapen weights; on a CPU transformers decodes the codes
  weights     every decoded matrix is that of the fp32 export within half a code of its block's largest element, and most are not equal to it
  logits      those of the fp32 export within what such weights change: cosine similarity at least 0.99, 0.97 of a mixture of experts, whose router
              may choose another one; and, closer, those of ingot's own reading of the codes (ckpt import, then an fp32
              export), because nothing but rounding to bf16 lies between
  generates   8 greedy tokens
With --device cuda transformers' FP8 kernels compute, if it finds them: said apart, and not a failure if they are not there.
Exits with 1 when anything differs.
"""
import argparse, glob, json, os, shutil, subprocess, sys, tempfile

import torch
import transformers
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "deepseek_v3")  # of the fixtures
HALF_CODE = 2.0**-4  # relative: e4m3 has three bits behind the point
SMALLEST = 2.0**-10 / 448  # half of the smallest code, in units of the block's largest element
failures = 0


def check(what, good, detail=""):
    global failures
    failures += not good
    print(f"{'ok' if good else 'FAIL':5} {what} {detail}", flush=True)


def ingot(a, *words):
    said = subprocess.run([a.ingot, *words], capture_output=True, env={**os.environ, "INGOT_LOG": "error"})
    if said.returncode:
        sys.exit(f"ingot {' '.join(words)}: {said.stderr.decode()}")


def load(directory, dtype=torch.float32, **more):
    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager", output_loading_info=True, **more)
    return model.eval(), {k: v for k, v in info.items() if v}


def logits(model, device="cpu"):
    tokens = torch.randint(0, model.config.vocab_size, (2, 24), generator=torch.Generator().manual_seed(1)).to(device)
    with torch.no_grad():
        return model(tokens).logits.float().cpu()


def near(a, b):
    return torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()


def blocks_amax(w):
    """The largest element of the block of 128 x 128 that each element lies in."""
    rows, cols = w.shape
    pad = torch.nn.functional.pad(w.abs(), (0, -cols % 128, 0, -rows % 128))
    most = pad.reshape(pad.shape[0] // 128, 128, pad.shape[1] // 128, 128).amax((1, 3))
    return most.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :cols]


def check_weights(name, plain, coded):
    """Matrices that were codes are near, all others are what bf16 makes of them."""
    changed, worst = 0, 0.0
    pairs = []
    for key, w in plain.state_dict().items():
        got = coded.state_dict()[key]
        pairs += zip(got, w) if w.dim() == 3 and "experts" in key else [(got, w)]  # experts lie in one tensor
    for got, w in pairs:
        got, w = got.float(), w.float()
        if w.dim() == 2 and not torch.equal(got, w) and not torch.equal(got, w.bfloat16().float()):
            changed += 1
            allowed = w.abs() * HALF_CODE + blocks_amax(w) * SMALLEST
            worst = max(worst, ((got - w).abs() / (allowed * 1.01 + 2.0**-8 * w.abs())).max().item())
        elif w.dim() == 2:
            worst = max(worst, ((got - w).abs() / (2.0**-8 * w.abs() + 1e-30)).max().item())
    check(f"{name}: weights", changed > 0 and worst <= 1, f"{changed} matrices from codes, worst {worst:.3f} of what is allowed")


def check_run(a, name, run, work):
    plain, coded, again = (os.path.join(work, name + end) for end in (".fp32", ".fp8", ".again"))
    ingot(a, "ckpt", "export", run, "-o", plain, "--dtype", "fp32")
    ingot(a, "ckpt", "export", run, "-o", coded, "--dtype", "fp8")
    ingot(a, "ckpt", "import", coded, "-o", again + ".run")
    ingot(a, "ckpt", "export", again + ".run", "-o", again, "--dtype", "fp32")
    quantization = json.load(open(os.path.join(coded, "config.json")))["quantization_config"]
    before, _ = load(plain)
    model, left = load(coded, torch.bfloat16, quantization_config=FineGrainedFP8Config(dequantize=True))
    check(f"{name}: loads", not left, f"{left or ''} quant_method {quantization['quant_method']}")
    check_weights(name, before, model)
    model = model.float()
    want, got, read = logits(before), logits(model), logits(load(again)[0])
    experts = any("experts" in key for key in before.state_dict())
    check(f"{name}: logits of the weights before", near(want, got) >= (0.97 if experts else 0.99), f"cosine {near(want, got):.6f}")
    check(f"{name}: logits of ingot's reading", near(read, got) >= 0.9999 and near(read, got) >= near(want, got), f"cosine {near(read, got):.8f}")
    prompt = torch.arange(1, 9)[None] % model.config.vocab_size
    out = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None)
    check(f"{name}: generates", out.shape[1] == 16, str(out[0, 8:].tolist()))
    if a.device != "cuda":
        return
    try:
        there, left = load(coded, torch.bfloat16, device_map="cuda")
        value = near(want, logits(there, "cuda"))
        check(f"{name}: transformers' FP8 kernels", value >= 0.98 and not left, f"cosine {value:.6f}")
    except Exception as why:  # whatever transformers lacks
        print(f"      {name}: transformers' FP8 kernels are not to be had here: {type(why).__name__}: {str(why).splitlines()[0][:160]}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("runs", nargs="*")
    ap.add_argument("--ingot", default=os.path.join(ROOT, "build/cpu/ingot"))
    ap.add_argument("--device", default="cpu")
    a = ap.parse_args()
    a.ingot = os.path.abspath(a.ingot)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    work = tempfile.mkdtemp()
    try:
        for i, run in enumerate(a.runs):
            check_run(a, f"run{i}", run, work)
        for family in () if a.runs else FAMILIES:
            fixture = os.path.join(ROOT, "tests/fixtures/hf", family)
            if not glob.glob(fixture + "/*.safetensors"):
                continue
            ingot(a, "ckpt", "import", fixture, "-o", os.path.join(work, family + ".run"))
            check_run(a, family, os.path.join(work, family + ".run"), work)
    finally:
        shutil.rmtree(work)
    sys.exit(failures != 0)


main()
