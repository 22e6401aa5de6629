#!/usr/bin/env python3
"""Checks `ingot ckpt import|export` and `ingot generate` against Hugging Face transformers. A development tool, not a test: the test
suite needs no Python.

usage: check_hf_roundtrip.py [INGOT]     (default build/cpu/ingot)
needs: torch, transformers, safetensors   (made with torch 2.15.0, transformers 5.23.0)

For every model of tests/fixtures/hf that transformers knows, an untied GPT-2, GPT-2 under the names of older files, and bf16 weights:
  import -> export -> from_pretrained   no missing, unexpected or misshapen weights; logits within 1e-6 of the original's
  the exported config.json as only old and only new readers see it, loaded by transformers and imported again: the same model
  greedy text of `ingot generate`       the bytes of transformers' greedy tokens, with a tokenizer that ingot trained
Exits with 1 when anything differs.
"""
import glob, json, os, shutil, subprocess, sys, tempfile
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, logging

logging.set_verbosity_error()
logging.disable_progress_bar()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
INGOT = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build/cpu/ingot"))
PROMPT, NEW_TOKENS = "In the beginning God created", 40
failures = 0


def check(what, good, detail=""):
    global failures
    failures += not good
    print(f"{'ok' if good else 'FAILED':7} {what} {detail}", flush=True)


def ingot(*words):
    r = subprocess.run([INGOT, *words], capture_output=True, env={**os.environ, "INGOT_LOG": "error"})
    if r.returncode != 0:
        raise SystemExit(f"ingot {' '.join(words)}: {r.stderr.decode()}")
    return r.stdout


def load(directory, dtype=torch.float32):
    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    left = {k: v for k, v in info.items() if v}
    return model.eval(), left


def logits(model):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, model.config.vocab_size, (2, 24), generator=generator)
    with torch.no_grad():
        return model(tokens).logits


def styles(config):
    """The config with the keys of older transformers alone, and with the newer ones alone."""
    young = ("rope_parameters", "dtype") + (() if config["model_type"] == "qwen3_next" else ("layer_types",))
    old = {k: v for k, v in config.items() if k not in young}
    new = {k: v for k, v in config.items() if k not in ("rope_theta", "rope_scaling", "torch_dtype")}
    return {"old": old, "new": new}


def model_of(run):
    return open(os.path.join(run, "config.yaml")).read().split("\nrun:")[0]


def round_trip(name, source, work, dtype="fp32"):
    run, out = os.path.join(work, name + ".run"), os.path.join(work, name + ".hf")
    ingot("ckpt", "import", source, "-o", run)
    ingot("ckpt", "export", run, "-o", out, "--dtype", dtype, "--shard-gib", "0.00005")
    want, _ = load(source)
    got, left = load(out)
    check(f"{name}: loads", not left, str(left or ""))
    want = logits(want)
    worst = (logits(got) - want).abs().max().item()
    check(f"{name}: logits", worst <= 1e-6, f"differ by {worst:g}")
    config = json.load(open(os.path.join(out, "config.json")))
    for style, keys in styles(config).items():
        again = os.path.join(work, f"{name}.{style}")
        shutil.copytree(out, again)
        json.dump(keys, open(os.path.join(again, "config.json"), "w"))
        got, left = load(again)
        worst = (logits(got) - want).abs().max().item()
        ingot("ckpt", "import", again, "-o", again + ".run")
        same = model_of(again + ".run") == model_of(run)
        equal = ingot("ckpt", "diff", run, again + ".run").decode().strip().endswith(" 0 not")
        check(f"{name}: {style} config", not left and worst <= 1e-6 and same and equal, f"{left or ''} {worst:g} {same} {equal}")
    return run, out


def bytes_of(tokenizer, ids):
    """A byte-level token spells byte b as chr(b) where that is printable, else as the next character from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(b): b for b in printable}
    letters.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)})
    return bytes(letters[c] for t in tokenizer.convert_ids_to_tokens(ids) for c in t)


def greedy(name, fixture, tokenizer_dir, work):
    size = len(AutoTokenizer.from_pretrained(tokenizer_dir))
    config = AutoConfig.from_pretrained(fixture)
    config.vocab_size, config.dtype = size, torch.float32
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p)) if p.dim() == 1 else None
    source = os.path.join(work, name + ".words")
    model.save_pretrained(source)
    for f in glob.glob(tokenizer_dir + "/*.json"):
        shutil.copy(f, source)
    run, out = round_trip(name + ".words", source, work)
    tokenizer = AutoTokenizer.from_pretrained(out)
    prompt = tokenizer(PROMPT, return_tensors="pt", add_special_tokens=False)
    eos = tokenizer.eos_token_id
    check(f"{name}: end of text", eos is not None and load(out)[0].generation_config.eos_token_id == eos, str(eos))
    ids = model.generate(**prompt, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=eos, pad_token_id=eos)[0]
    ids = [i for i in ids.tolist()[prompt["input_ids"].shape[1]:] if i != eos]
    said = ingot("generate", run, "--prompt", PROMPT, "--temperature", "0", "--tokens", str(NEW_TOKENS))
    want = PROMPT.encode() + bytes_of(tokenizer, ids) + b"\n"
    check(f"{name}: greedy text", said == want, f"{len(ids)} tokens, {len(set(ids))} different")


def variants(work):
    """Directories that the fixtures do not cover, by name."""
    gpt2 = os.path.join(ROOT, "tests/fixtures/hf/gpt2")
    untied = AutoConfig.from_pretrained(gpt2, tie_word_embeddings=False, dtype=torch.float32)
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(untied).float().save_pretrained(os.path.join(work, "gpt2_untied"))
    plain = os.path.join(work, "gpt2_plain")
    shutil.copytree(gpt2, plain)
    weights = load_file(plain + "/model.safetensors")
    weights = {k.removeprefix("transformer."): v for k, v in weights.items()}
    for layer in range(2):  # the mask that older files carry
        weights[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64)
    save_file(weights, plain + "/model.safetensors", metadata={"format": "pt"})
    half = os.path.join(work, "qwen3_bf16")
    load(os.path.join(ROOT, "tests/fixtures/hf/qwen3"), torch.bfloat16)[0].save_pretrained(half)
    next_config = AutoConfig.from_pretrained(os.path.join(ROOT, "tests/fixtures/hf/qwen3_next_dense"), num_attention_heads=5,
                                             layer_types=3 * ["linear_attention"], use_cache=False, dtype=torch.float32)
    AutoModelForCausalLM.from_config(next_config).float().save_pretrained(os.path.join(work, "qwen3_next_linear"))
    return {"gpt2_untied": "fp32", "gpt2_plain": "fp32", "qwen3_bf16": "bf16", "qwen3_next_linear": "fp32"}


def main():
    work = tempfile.mkdtemp()
    text = os.path.join(work, "text.txt")
    with open(text, "w") as f:
        for i in range(200):
            f.write(f"{i} In the beginning God created the heaven and the earth; and the earth was without form.\n")
    ingot("tokenizer", "train", text, "--vocab-size", "300", "-o", os.path.join(work, "tok"))
    for fixture in sorted(glob.glob(os.path.join(ROOT, "tests/fixtures/hf/*/"))):
        name = os.path.basename(fixture.rstrip("/"))
        if json.load(open(fixture + "config.json"))["model_type"] == "ingot":
            continue
        round_trip(name, fixture, work)
        greedy(name, fixture, os.path.join(work, "tok"), work)
    for name, dtype in variants(work).items():
        round_trip(name, os.path.join(work, name), work, dtype)
    shutil.rmtree(work)
    print("all equal" if failures == 0 else f"{failures} checks failed")
    sys.exit(failures != 0)


main()
