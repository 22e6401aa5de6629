#!/usr/bin/env python3
"""Training steps of ingot, of torch.compile and, with --llmq, of LLMQ in turn on one GPU: a table of medians, and every run as a line of JSON.

usage: bench_gpu.py --ingot PATH [--out DIR] [--rounds N] [--steps N] [--modes MODE,...] [--llmq TRAIN] [--apart] [--list] [SHAPE...]
The peer (peer_torch_gpu.py) is started once for each shape and mode and stays; it and ingot then take turns, N steps each. --apart starts
it anew for each round, for cards that do not hold both. --modes none measures without torch and needs none. TRAIN is the program that LLMQ
builds (docs/PERF.md says how); it is started anew for each round (peer_llmq.py).
"""
import argparse, json, math, os, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))


class Shape:
    """A model and its batch; for ingot a preset and the keys in which the shape differs from it."""

    def __init__(self, family, layers, width, heads, heads_kv, ffn, vocab, tied, batch, seq, preset, keys):
        self.family, self.layers, self.width, self.heads, self.heads_kv = family, layers, width, heads, heads_kv
        self.ffn, self.vocab, self.tied, self.batch, self.seq, self.preset, self.keys = ffn, vocab, tied, batch, seq, preset, keys

    def ingot(self):
        return ["--preset", self.preset, "--batch", str(self.batch), "--seq", str(self.seq)] + ["--model." + key for key in self.keys.split()]

    def torch(self):
        out = ["--family", self.family]
        for name in ("layers", "width", "heads", "heads_kv", "ffn", "vocab", "batch", "seq"):
            out += ["--" + name.replace("_", "-"), str(getattr(self, name))]
        return out + ([] if self.tied else ["--untied"])


SHAPES = {
    #                           family  layers width heads kv  ffn   vocab  tied  batch seq   ingot's preset, and what differs
    "gpt2-124m-llama": Shape("llama", 12, 768, 12, 12, 2048, 50304, True, 64, 1024, "small", "layer_count=12 ffn_size=2048 head_count_kv=12"),
    "gpt2-124m": Shape("gpt2", 12, 768, 12, 12, 3072, 50304, True, 64, 1024, "gpt2-124m", "vocab_size=50304"),
    "medium": Shape("llama", 24, 1024, 16, 8, 2816, 50304, True, 32, 2048, "medium", "layer_count=24 ffn_size=2816 head_count_kv=8"),
    "llama-1b": Shape("llama", 16, 2048, 32, 8, 8192, 128256, True, 8, 4096, "llama-1b", ""),
    "7b-8-layers": Shape("llama", 8, 4096, 32, 8, 11008, 32000, False, 4, 4096, "7b-gqa", "layer_count=8"),
}


def card():
    """Clocks, power and temperature now."""
    try:
        keys = "clocks.sm,clocks.mem,power.draw,temperature.gpu"
        text = subprocess.run(["nvidia-smi", f"--query-gpu={keys}", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20)
        return dict(zip(keys.split(","), (float(x) for x in text.stdout.splitlines()[0].split(","))))
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return {}


def run_ingot(a, shape, cache):
    command = [a.ingot, "bench", "train", "--device", a.device, "--precision", "bf16", "--steps", str(a.steps), "--json",
               f"--machine.cache_dir={cache}", *shape.ingot(), *a.key]
    begin = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ingot exits with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}\n  {' '.join(command)}")
    return json.loads(done.stdout) | {"whole_s": time.time() - begin}


def run_llmq(a, shape):
    done = subprocess.run([sys.executable, os.path.join(HERE, "peer_llmq.py"), "--train", a.llmq, *shape.torch(), "--steps", str(a.steps)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-600:])
    return json.loads(done.stdout)


class Peer:
    def __init__(self, a, shape, mode):
        self.log = tempfile.TemporaryFile("w+")
        env = dict(os.environ)
        if "LIBRARY_PATH_BEFORE" in env:  # scripts/gpu_env.sh: torch has CUDA's libraries of its own
            env["LD_LIBRARY_PATH"] = env.pop("LIBRARY_PATH_BEFORE")
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "peer_torch_gpu.py"), *shape.torch(), "--mode", mode, "--serve"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env)
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


def measure(a, name, log):
    """Rounds of one shape. Returns {who: [results]}, who being 'ingot', 'LLMQ' or a mode of torch."""
    shape, results, peers = SHAPES[name], {}, {}

    def note(who, result):
        results.setdefault(who, []).append(result)
        print(json.dumps({"shape": name, "who": who, **result, "card": card()}), file=log, flush=True)
        print(f"  {name} {who}: {result['tokens_per_s']:,.0f} tokens/s, {result['step_s'] * 1e3:.1f} ms", flush=True)

    with tempfile.TemporaryDirectory() as cache:  # the first run is a cold start
        for number in range(a.rounds):
            for mode in a.modes:
                try:
                    peer = peers.pop(mode, None) or Peer(a, shape, mode)
                    note(mode, peer.first | peer.run(a.steps))
                    if a.apart or len(a.modes) > 1:
                        peer.close()
                    else:
                        peers[mode] = peer
                except RuntimeError as e:
                    print(f"  {name} {mode}: {e}", flush=True)
            for who, run in (("LLMQ", lambda: run_llmq(a, shape)), ("ingot", lambda: run_ingot(a, shape, cache))):
                try:
                    if who == "ingot" or a.llmq:
                        note(who, run())
                except RuntimeError as e:
                    print(f"  {name} {who}: {e}", flush=True)
    for peer in peers.values():
        peer.close()
    return results


def median(runs, key):
    values = [r[key] for r in runs if r.get(key) is not None]
    return statistics.median(values) if values else float("nan")


def table(a, measured):
    head = ("shape", "who", "tokens/s", "ms/step", "best ms", "memory GiB", "cold s", "ratio", "memory")
    rows = [head]
    for name, results in measured.items():
        ours = results.get("ingot", [])
        for who in [m for m in results if m != "ingot"] + ["ingot"]:
            runs = results.get(who)
            if not runs:
                continue
            memory = median(runs, "device_bytes" if who == "ingot" else "allocated_bytes") / 2**30
            row = [name, who if who in ("ingot", "LLMQ") else f"torch {who} ({runs[0].get('attention')})", f"{median(runs, 'tokens_per_s'):,.0f}",
                   f"{median(runs, 'step_s') * 1e3:.1f}", f"{median(runs, 'step_s_best') * 1e3:.1f}", "" if math.isnan(memory) else f"{memory:.1f}",
                   f"{runs[0].get('cold_start_s', float('nan')):.1f}", "", ""]
            if who != "ingot" and ours:
                row[7] = f"{median(ours, 'tokens_per_s') / median(runs, 'tokens_per_s'):.3f}"
                row[8] = "" if math.isnan(memory) else f"{median(ours, 'device_bytes') / 2**30 / memory:.2f}"
            rows.append(row)
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    for r in rows:
        print("  ".join(r[i].ljust(widths[i]) if i < 2 else r[i].rjust(widths[i]) for i in range(len(head))).rstrip())
    print(f"\nmedians of {a.rounds} rounds of {a.steps} steps, in turn; cold: from the start of the process (ingot: of the command) to the end of the "
          "first step, in the first round\nratio, and the memory behind it: ingot's over the peer's; memory: what the process holds on the card (ingot), the peak of what torch's allocator gave out (torch)")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--ingot", default="build/release/ingot")
    ap.add_argument("--out", default="build/gpu_check")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--modes", default="default", help="default, max-autotune-no-cudagraphs, eager; several with commas; none: ingot alone")
    ap.add_argument("--llmq", metavar="TRAIN", help="LLMQ's training program")
    ap.add_argument("--key", action="append", default=[], metavar="--SECTION.KEY=VALUE", help="goes to ingot as it is: --key=--train.graph=false")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--apart", action="store_true")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("shapes", nargs="*", metavar="SHAPE", help=" ".join(SHAPES))
    a = ap.parse_args()
    for name in a.shapes:
        if name not in SHAPES:
            ap.error(f"unknown shape '{name}': {' '.join(SHAPES)}")
    if a.llmq and not os.access(a.llmq, os.X_OK):
        ap.error(f"--llmq {a.llmq}: no program is there")
    names = a.shapes or list(SHAPES)
    a.modes = [m for m in a.modes.split(",") if m and m != "none"]
    if a.list:
        for name in names:
            print(name, *SHAPES[name].ingot())
        return
    os.makedirs(a.out, exist_ok=True)
    measured = {}
    with open(os.path.join(a.out, "bench_gpu.jsonl"), "a") as log:
        for name in names:
            measured[name] = measure(a, name, log)
    print()
    table(a, measured)
    sys.exit(0 if all("ingot" in r for r in measured.values()) else 1)


main()
