#!/usr/bin/env python3
"""Training steps of ingot, of torch.compile and, with --llmq, of LLMQ in turn on one GPU: a table of medians, and every run as a line of JSON.

usage: bench_gpu.py --ingot PATH [--out DIR] [--rounds N] [--steps N] [--modes MODE,...] [--llmq TRAIN] [--apart] [--list] [--dry-run] [SHAPE...]
       bench_gpu.py --fp8 [--torchao DIR [--recipes RECIPE,...]] ...
The peer (peer_torch_gpu.py) is started once for each shape and mode and stays; it and ingot then take turns, N steps each. --apart starts
it anew for each round, for cards that do not hold both. --modes none measures without torch and needs none. TRAIN is the program that LLMQ
builds (docs/PERF.md says how); it is started anew for each round (peer_llmq.py).

--fp8: ingot in FP8 beside ingot in bf16, and beside the FP8 of those peers that are named: torch with torchao's recipes (DIR: where the wheel of
torchao 0.18 was unpacked, for a torch that does not have it) and LLMQ with e4m3. Hybrids are measured without peers. --dry-run prints the commands.
"""
import argparse, json, math, os, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))


class Shape:
    """A model and its batch; for ingot a preset and the keys in which the shape differs from it."""

    def __init__(self, family, layers, width, heads, heads_kv, ffn, vocab, tied, batch, seq, preset, keys):
        self.family, self.layers, self.width, self.heads, self.heads_kv = family, layers, width, heads, heads_kv
        self.ffn, self.vocab, self.tied, self.batch, self.seq, self.preset, self.keys = ffn, vocab, tied, batch, seq, preset, keys

    def has_peers(self):
        return self.family is not None

    def ingot(self):
        return ["--preset", self.preset, "--batch", str(self.batch), "--seq", str(self.seq)] + ["--model." + key for key in self.keys.split()]

    def torch(self):
        out = ["--family", self.family]
        for name in ("layers", "width", "heads", "heads_kv", "ffn", "vocab", "batch", "seq"):
            out += ["--" + name.replace("_", "-"), str(getattr(self, name))]
        return out + ([] if self.tied else ["--untied"])


def alone(preset, batch, seq, keys=""):
    """A shape that no peer has."""
    return Shape(None, 0, 0, 0, 0, 0, 0, False, batch, seq, preset, keys)


SHAPES = {
    #                           family  layers width heads kv  ffn   vocab  tied  batch seq   ingot's preset, and what differs
    "gpt2-124m-llama": Shape("llama", 12, 768, 12, 12, 2048, 50304, True, 64, 1024, "small", "layer_count=12 ffn_size=2048 head_count_kv=12"),
    "gpt2-124m": Shape("gpt2", 12, 768, 12, 12, 3072, 50304, True, 64, 1024, "gpt2-124m", "vocab_size=50304"),
    "medium": Shape("llama", 24, 1024, 16, 8, 2816, 50304, True, 32, 2048, "medium", "layer_count=24 ffn_size=2816 head_count_kv=8"),
    "llama-1b": Shape("llama", 16, 2048, 32, 8, 8192, 128256, True, 8, 4096, "llama-1b", ""),
    "7b-8-layers": Shape("llama", 8, 4096, 32, 8, 11008, 32000, False, 4, 4096, "7b-gqa", "layer_count=8"),
    "8b-8-layers": Shape("llama", 8, 4096, 32, 8, 14336, 128256, False, 4, 4096, "7b-gqa", "layer_count=8 ffn_size=14336 vocab_size=128256"),
    "deltanet-mla-medium": alone("deltanet-mla-medium", 4, 8192),
    "deltanet-mla-1b": alone("deltanet-mla-xl", 4, 8192, "layer_count=16"),
}
BF16_SHAPES = ["gpt2-124m-llama", "gpt2-124m", "medium", "llama-1b", "7b-8-layers"]
FP8_SHAPES = ["llama-1b", "7b-8-layers", "8b-8-layers", "deltanet-mla-medium", "deltanet-mla-1b"]
RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")  # of torchao


def card():
    """Clocks, power and temperature now."""
    try:
        keys = "clocks.sm,clocks.mem,power.draw,temperature.gpu"
        text = subprocess.run(["nvidia-smi", f"--query-gpu={keys}", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20)
        return dict(zip(keys.split(","), (float(x) for x in text.stdout.splitlines()[0].split(","))))
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return {}


def ingot_command(a, shape, cache, precision):
    return [a.ingot, "bench", "train", "--device", a.device, "--precision", precision, "--steps", str(a.steps), "--json",
            f"--machine.cache_dir={cache}", *shape.ingot(), *a.key]


def run_ingot(a, shape, cache, precision):
    command = ingot_command(a, shape, cache, precision)
    begin = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ingot exits with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}\n  {' '.join(command)}")
    return json.loads(done.stdout) | {"whole_s": time.time() - begin}


def llmq_command(a, shape):
    return [sys.executable, os.path.join(HERE, "peer_llmq.py"), "--train", a.llmq, *shape.torch(), "--steps", str(a.steps),
            *(["--matmul-dtype", "e4m3"] if a.fp8 else [])]


def run_llmq(a, shape):
    done = subprocess.run(llmq_command(a, shape), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-600:])
    return json.loads(done.stdout)


def torch_command(shape, mode):
    """mode: of torch.compile, or a recipe of torchao."""
    return [sys.executable, os.path.join(HERE, "peer_torch_gpu.py"), *shape.torch(), *(["--fp8", mode] if mode in RECIPES else ["--mode", mode]), "--serve"]


class Peer:
    def __init__(self, a, shape, mode):
        self.log = tempfile.TemporaryFile("w+")
        env = dict(os.environ)
        if "LIBRARY_PATH_BEFORE" in env:  # scripts/gpu_env.sh: torch has CUDA's libraries of its own
            env["LD_LIBRARY_PATH"] = env.pop("LIBRARY_PATH_BEFORE")
        if mode in RECIPES:
            env["PYTHONPATH"] = os.pathsep.join(p for p in (a.torchao, env.get("PYTHONPATH")) if p)
            env["TORCHAO_FORCE_SKIP_LOADING_SO_FILES"] = "1"
        self.process = subprocess.Popen(torch_command(shape, mode), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env)
        self.first = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            raise RuntimeError(f"the peer exits with {self.process.returncode}: {self.log.read().strip()[-600:]}")
        return json.loads(line)

    def run(self, steps):
        print(steps, file=self.process.stdin, flush=True)
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def ours(a):
    """What ratios are of, and what else of ingot is measured beside it: {who: precision}."""
    return {"ingot fp8": "fp8", "ingot bf16": "bf16"} if a.fp8 else {"ingot": "bf16"}


def measure(a, name, log):
    """Rounds of one shape. Returns {who: [results]}, who being of ours(), 'LLMQ', or a mode of torch."""
    shape, results, peers = SHAPES[name], {}, {}
    modes, llmq = (a.modes, a.llmq) if shape.has_peers() else ([], None)

    def note(who, result):
        results.setdefault(who, []).append(result)
        print(json.dumps({"shape": name, "who": who, **result, "card": card()}), file=log, flush=True)
        print(f"  {name} {who}: {result['tokens_per_s']:,.0f} tokens/s, {result['step_s'] * 1e3:.1f} ms", flush=True)

    with tempfile.TemporaryDirectory() as cache:  # the first run is a cold start
        for number in range(a.rounds):
            for mode in modes:
                try:
                    peer = peers.pop(mode, None) or Peer(a, shape, mode)
                    note(mode, peer.first | peer.run(a.steps))
                    if a.apart or len(modes) > 1:
                        peer.close()
                    else:
                        peers[mode] = peer
                except RuntimeError as e:
                    print(f"  {name} {mode}: {e}", flush=True)
            turns = [("LLMQ", lambda: run_llmq(a, shape))] if llmq else []
            turns += [(who, lambda precision=precision: run_ingot(a, shape, cache, precision)) for who, precision in ours(a).items()]
            for who, run in turns:
                try:
                    note(who, run())
                except RuntimeError as e:
                    print(f"  {name} {who}: {e}", flush=True)
    for peer in peers.values():
        peer.close()
    return results


def dry_run(a, names):
    for name in names:
        shape = SHAPES[name]
        commands = [torch_command(shape, mode) for mode in a.modes] + ([llmq_command(a, shape)] if a.llmq else []) if shape.has_peers() else []
        commands += [ingot_command(a, shape, "CACHE", precision) for precision in ours(a).values()]
        for command in commands:
            print(name + ":", *command)


def median(runs, key):
    values = [r[key] for r in runs if r.get(key) is not None]
    return statistics.median(values) if values else float("nan")


def number(value, form):
    return "" if math.isnan(value) else format(value, form)


def row_of(a, name, who, runs, ours_runs):
    first = next(iter(ours(a)))
    mine = who in ours(a)
    memory = median(runs, "device_bytes" if mine else "allocated_bytes") / 2**30
    label = who if mine or who == "LLMQ" else f"torch {who} ({runs[0].get('attention')})"
    row = [name, label, f"{median(runs, 'tokens_per_s'):,.0f}", f"{median(runs, 'step_s') * 1e3:.1f}", f"{median(runs, 'step_s_best') * 1e3:.1f}",
           number(memory, ".1f"), f"{runs[0].get('cold_start_s', float('nan')):.1f}"]
    if a.fp8:
        row += [number(median(runs, "watts"), ".0f"), number(1e3 / median(runs, "tokens_per_joule"), ".2f"), number(median(runs, "loss_last"), ".4f")]
    if who == first or not ours_runs:
        return row + ["", ""]
    row.append(f"{median(ours_runs, 'tokens_per_s') / median(runs, 'tokens_per_s'):.3f}")
    return row + [number(median(ours_runs, "device_bytes") / 2**30 / memory, ".2f")]


def table(a, measured):
    head = ["shape", "who", "tokens/s", "ms/step", "best ms", "memory GiB", "cold s", *(["W", "mJ/token", "loss"] if a.fp8 else []), "ratio", "memory"]
    rows, first = [head], next(iter(ours(a)))
    for name, results in measured.items():
        for who in [m for m in results if m != first] + [first]:
            if results.get(who):
                rows.append(row_of(a, name, who, results[who], results.get(first, [])))
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    for r in rows:
        print("  ".join(r[i].ljust(widths[i]) if i < 2 else r[i].rjust(widths[i]) for i in range(len(head))).rstrip())
    print(f"\nmedians of {a.rounds} rounds of {a.steps} steps, in turn; cold: from the start of the process (ingot: of the command) to the end of the "
          f"first step, in the first round\nratio, and the memory behind it: {first}'s over the peer's; memory: what the process holds on the card (ingot), "
          "the peak of what torch's allocator gave out (torch)" + (", what the card had in use more (LLMQ)\nloss: of the last timed step, on random tokens; "
          "ingot fp8 has computed its first step in bf16, untimed" if a.fp8 else ""))


def check(ap, a):
    for name in a.shapes:
        if name not in SHAPES:
            ap.error(f"unknown shape '{name}': {' '.join(SHAPES)}")
    if a.llmq and not os.access(a.llmq, os.X_OK):
        ap.error(f"--llmq {a.llmq}: no program is there")
    if (a.torchao or a.recipes) and not a.fp8:
        ap.error("--torchao and --recipes go with --fp8")
    if a.recipes and not a.torchao:
        ap.error("--recipes needs --torchao DIR")
    if a.torchao and not os.path.isdir(os.path.join(a.torchao, "torchao")):
        ap.error(f"--torchao {a.torchao}: there is no package torchao in it; unpack the wheel there")
    for recipe in (a.recipes or "").split(","):
        if recipe and recipe not in RECIPES:
            ap.error(f"unknown recipe '{recipe}': {' '.join(RECIPES)}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--ingot", default="build/release/ingot")
    ap.add_argument("--out", default="build/gpu_check")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--modes", help="default, max-autotune-no-cudagraphs, eager; several with commas; none: ingot alone (default; with --fp8: none)")
    ap.add_argument("--fp8", action="store_true")
    ap.add_argument("--torchao", metavar="DIR", help="with --fp8: the directory that holds the package torchao")
    ap.add_argument("--recipes", help="of torchao, with commas (tensorwise,rowwise)")
    ap.add_argument("--llmq", metavar="TRAIN", help="LLMQ's training program")
    ap.add_argument("--key", action="append", default=[], metavar="--SECTION.KEY=VALUE", help="goes to ingot as it is: --key=--train.graph=false")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--apart", action="store_true")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--dry-run", action="store_true")
    ap.add_argument("shapes", nargs="*", metavar="SHAPE", help=" ".join(SHAPES))
    a = ap.parse_args()
    check(ap, a)
    names = a.shapes or (FP8_SHAPES if a.fp8 else BF16_SHAPES)
    a.modes = [m for m in (a.modes or ("none" if a.fp8 else "default")).split(",") if m and m != "none"]
    if a.torchao:
        a.modes += [r for r in (a.recipes or "tensorwise,rowwise").split(",") if r]
    if a.list:
        for name in names:
            print(name, *SHAPES[name].ingot())
        return
    if a.dry_run:
        dry_run(a, names)
        return
    os.makedirs(a.out, exist_ok=True)
    measured = {}
    with open(os.path.join(a.out, "bench_gpu.jsonl"), "a") as log:
        for name in names:
            measured[name] = measure(a, name, log)
    print()
    table(a, measured)
    sys.exit(0 if all(who in r for r in measured.values() for who in ours(a)) else 1)


if __name__ == "__main__":
    main()
