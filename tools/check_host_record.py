#!/usr/bin/env python3
"""The host's record of a run on a GPU beside nvidia-smi and the GPU's energy counter; what sampling costs.

    python3 tools/check_host_record.py build/release/ingot [--seconds 20] [--pairs 2] [--steps 60] [RUN.yaml [--KEY=VALUE ...]]

First a run of so many seconds (0: none): each value of its gpu-HOST.jsonl beside what nvidia-smi said in the same interval (one sample a
second), the record's joules beside the counter read through NVML here, and the share of the tensor cores (GPM) of the
record beside mfu. A value further away than its limit is a line FAIL, and exit code 1. Then pairs of runs, each with ten samples a second
(log.host_every=0.1: ten times what a run has) and with none: the mean time of a step after the first 20. Without RUN.yaml:
GPT-2 124M on made-up tokens. Only an idle GPU gives these numbers.
"""
import argparse, glob, json, os, random, statistics, subprocess, sys, tempfile, threading, time

from gpu_meter import Meter

CONFIG = """\
model: {preset: gpt2-124m}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {sequence_length: 1024, micro_batch: 32, batch_tokens: 32768, steps: 100000000, precision: bf16}
eval: {every: 0}
ckpt: {every: 0}
machine: {device: cuda}
"""
# key of the record, nvidia-smi's name, how samples of an interval become one value, limit as a share, absolute limit
FIELDS = [
    ("watts", "power.draw", "mean", 0.05, 10), ("limit_watts", "enforced.power.limit", "last", 0, 0.5),
    ("sm_mhz", "clocks.current.sm", "mean", 0.03, 15), ("memory_mhz", "clocks.current.memory", "last", 0, 1),
    ("celsius", "temperature.gpu", "most", 0, 3), ("memory_celsius", "temperature.memory", "most", 0, 3),
    ("busy_percent", "utilization.gpu", "mean", 0.05, 5), ("memory_used", "memory.used", "last", 0.02, 1 << 30),
    ("memory_total", "memory.total", "last", 0.001, 1 << 20), ("pcie_gen", "pcie.link.gen.current", "last", 0, 0),
    ("pcie_width", "pcie.link.width.current", "last", 0, 0),
    ("ecc_uncorrected", "ecc.errors.uncorrected.volatile.total", "last", 0, 0),
    ("ecc_corrected", "ecc.errors.corrected.volatile.total", "last", 0, 0),
]
MIB = {"memory_used", "memory_total"}


def number(text):
    try:
        return float(text)
    except ValueError:
        return None  # [N/A]


class Watch(threading.Thread):
    """nvidia-smi's values of GPU 0 and its energy counter, once a second."""

    def __init__(self, meter):
        super().__init__(daemon=True)
        self.meter, self.samples, self.counter, self.end = meter, [], [], False
        self.start()

    def joules_at(self, when):
        """Of the counter, between two readings."""
        for (begin, low), (end, high) in zip(self.counter, self.counter[1:]):
            if begin <= when <= end:
                return low + (high - low) * (when - begin) / (end - begin)
        sys.exit("the energy counter was not read long enough")

    def run(self):
        names = ",".join(f[1] for f in FIELDS)
        while not self.end:
            self.counter.append((time.time(), self.meter.joules()))
            p = subprocess.run(["nvidia-smi", "-i", "0", f"--query-gpu={names}", "--format=csv,noheader,nounits"],
                               capture_output=True, text=True)
            cells = [c.strip() for c in p.stdout.strip().split(",")]
            if p.returncode == 0 and len(cells) == len(FIELDS):
                self.samples.append((time.time(), [number(c) for c in cells]))
            time.sleep(0.9)


def make_data(ingot, dir):
    rng = random.Random(1)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(2, 7))) for _ in range(500)]
    with open(f"{dir}/corpus.txt", "w") as f:
        for _ in range(20000):
            f.write(" ".join(rng.choice(words) for _ in range(40)) + "\n\n")
    with open(f"{dir}/run.yaml", "w") as f:
        f.write(CONFIG)
    for args in (["tokenizer", "train", "corpus.txt", "--vocab-size", "1024", "-o", "tok"],
                 ["data", "build", "corpus.txt", "--tokenizer", "tok", "--separator", "blank", "--val-fraction", "0.1", "-o", "data/c"]):
        subprocess.run([ingot, *args], cwd=dir, check=True, capture_output=True)


def steps_of(run):
    try:
        with open(f"{run}/metrics.jsonl") as f:
            rows = [json.loads(line) for line in f if line.endswith("}\n")]
    except FileNotFoundError:
        return []
    return [o for o in rows if o.get("kind") == "step"]


def train(a, name, keys, enough):
    """Trains until enough(steps), then ends the run with SIGTERM; its directory."""
    run = f"{a.dir}/{name}"
    with open(f"{run}.log", "w") as log:
        p = subprocess.Popen([a.ingot, "train", a.yaml, f"--run.dir={run}", *a.keys, *keys], cwd=a.dir, stdout=log, stderr=log)
        while p.poll() is None and not enough(steps_of(run)):
            time.sleep(0.2)
        if p.poll() is not None:
            sys.exit(f"the run has ended: {open(f'{run}.log').read()[-2000:]}")
        p.terminate()
        p.wait()
    return run


def gpu_lines(run):
    rows = []
    for path in glob.glob(f"{run}/gpu-*.jsonl"):
        with open(path) as f:
            rows += [json.loads(line) for line in f]
    return [o for o in rows if o["kind"] == "gpu" and o["gpu"] == 0], [o for o in rows if o["kind"] == "end"]


def compare(line, previous, samples):
    """One interval: lines of the table, and whether all are near."""
    sound = True
    inside = [values for when, values in samples if previous < when <= line["time"]]
    for i, (key, name, how, share, most) in enumerate(FIELDS):
        seen = [v[i] for v in inside if v[i] is not None]
        if key not in line or not seen:
            print(f"  {key:16} {line.get(key, 'absent'):>14}   {name} {'tells nothing' if not seen else seen[-1]}")
            sound &= key not in line or not seen
            continue
        theirs = {"mean": statistics.mean, "last": lambda v: v[-1], "most": max}[how](seen) * (1 << 20 if key in MIB else 1)
        near = abs(line[key] - theirs) <= max(share * theirs, most)
        sound &= near
        print(f"  {key:16} {line[key]:14.6g} {theirs:14.6g}   {name}{'' if near else '   FAIL: they differ'}")
    return sound


def values(a):
    watch = Watch(a.meter)
    begin = [None]

    def enough(steps):
        if steps and begin[0] is None:
            begin[0] = time.time()
        return begin[0] is not None and time.time() > begin[0] + a.seconds
    run = train(a, "values", ["--log.host_every=2"], enough)
    time.sleep(2)
    watch.end = True
    watch.join()
    lines, end = gpu_lines(run)
    middle = len(lines) // 2  # at the begin a run compiles and loads, at the end it saves
    print(f"an interval of the record beside nvidia-smi:\n  {'':16} {'record':>14} {'nvidia-smi':>14}")
    sound = len(lines) > 3 and compare(lines[middle], lines[middle - 1]["time"], watch.samples)
    if len(lines) <= 3:
        print(f"FAIL: {len(lines)} lines in {a.seconds} s")
    first, last = lines[0], lines[-1]
    told, mean = last["joules"] - first["joules"], sum(o["watts"] * (o["time"] - p["time"]) for p, o in zip(lines, lines[1:]))
    counter = watch.joules_at(last["time"]) - watch.joules_at(first["time"])
    print(f"energy: {told:.0f} J by the record over {last['time'] - first['time']:.1f} s; read here {counter:.0f} J "
          f"({100 * (told / counter - 1):+.2f} %); by the record's watts {mean:.0f} J ({100 * (mean / counter - 1):+.2f} %)")
    cost = subprocess.run([a.ingot, "cost", run, "--json"], capture_output=True, text=True)
    if cost.returncode:
        sys.exit(f"ingot cost: {cost.stderr}")
    spent = 3.6e6 * json.loads(cost.stdout).get("kwh", 0)
    whole = last["joules"] - first["joules_begin"]
    print(f"        {spent:.0f} J by ingot cost, {whole:.0f} J from the record's begin to its end")
    near = all(abs(x / y - 1) < 0.02 for x, y in ((told, counter), (mean, counter), (spent, whole)))
    if not near:
        print("FAIL: more than 2 % apart")
    for key in "sm_percent", "occupancy_percent", "tensor_percent", "dram_percent":
        print(f"  {key:18}", *(f"{o[key]:.1f}" if key in o else "absent" for o in lines))
    mfu = [o["mfu"] for o in steps_of(run) if o.get("mfu")]
    tensor = [o["gpu_tensor"] for o in steps_of(run) if o.get("gpu_tensor") is not None]
    if mfu and tensor:
        print(f"tensor cores {100 * statistics.median(tensor):.1f} % of the time beside mfu {100 * statistics.median(mfu):.1f} %")
    for o in end:
        print(f"the recording thread: {o['samples']} samples, {1e3 * o['cpu_s'] / o['samples']:.2f} ms of CPU time each")
    return sound and near


def overhead(a):
    means = {"0.1": [], "0": []}
    for i in range(a.pairs):
        for every in ("0.1", "0") if i % 2 == 0 else ("0", "0.1"):
            run = train(a, f"pair{i}-{every}", [f"--log.host_every={every}"], lambda steps: len(steps) > 20 + a.steps)
            rows = steps_of(run)[20:20 + a.steps + 1]
            means[every].append((rows[-1]["time"] - rows[0]["time"]) / a.steps)
    parts = [100 * (x / y - 1) for x, y in zip(means["0.1"], means["0"])]
    print(f"ten samples a second: {1e3 * statistics.mean(means['0.1']):.3f} ms a step, none {1e3 * statistics.mean(means['0']):.3f}; "
          f"pairs {' '.join(f'{p:+.2f}' for p in parts)} %: one a second costs {statistics.mean(parts) / 10:+.3f} %")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ingot")
    p.add_argument("yaml", nargs="?")
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--pairs", type=int, default=2)
    p.add_argument("--steps", type=int, default=60)
    a, a.keys = p.parse_known_args()
    a.ingot, a.dir, a.meter = os.path.realpath(a.ingot), tempfile.mkdtemp(), Meter()
    if a.meter.joules() is None:
        sys.exit("no energy counter: NVML does not answer here")
    try:
        if a.yaml:
            a.yaml = os.path.realpath(a.yaml)
        else:
            make_data(a.ingot, a.dir)
            a.yaml = f"{a.dir}/run.yaml"
        sound = not a.seconds or values(a)
        if a.pairs:
            overhead(a)
    finally:
        subprocess.run(["rm", "-rf", a.dir], check=True)
    sys.exit(0 if sound else 1)


main()
