#!/usr/bin/env python3
"""What `ingot serve` with a connected page costs a run that trains on the same host.

    python3 tools/serve_cost.py build/release/ingot [--blocks 60] [--steps 100] [--threads N]
    python3 tools/serve_cost.py build/release/ingot --device cuda --blocks 5 --steps 20

One run trains all the time. Blocks of equally many steps follow each other in threes, in a random order: nobody serves; a
page is connected; the server is stopped (SIGSTOP) with the page still there. The page is a client that asks what the
page's script asks: /events, then curves and tables, but once in every block, oftener than a browser does. Of each block:
CPU seconds of the run's threads, from the kernel's nanoseconds: what waits for a core costs none. Other work on the host
only adds to them (caches, shared cores), so a low quantile is nearest to a quiet host. Printed: the ratios to the blocks
in which nobody serves, of the medians and of the lowest tenths, with intervals that hold 95 of 100 resampled sets of
threes; and the server's own CPU seconds. Then tokens/s by the clock, the medians of each kind: what counts on a GPU and an idle
host.
"""
import argparse, http.client, json, os, random, signal, statistics, subprocess, sys, tempfile, threading, time

CONFIG = """\
model: {layer_count: 4, hidden_size: 256, ffn_size: 512, head_count: 4, context_length: 256}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {micro_batch: 1, batch_tokens: 256, steps: 100000000, precision: fp32}
eval: {every: 0}
ckpt: {every: 0}
machine: {device: cpu, threads: THREADS}
"""
GPU_CONFIG = """\
model: {preset: gpt2-124m}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {sequence_length: 1024, micro_batch: 32, batch_tokens: 32768, steps: 100000000, precision: bf16}
eval: {every: 0}
ckpt: {every: 0}
machine: {device: cuda, threads: THREADS}
"""


def make_run(ingot, dir, threads, device):
    rng = random.Random(1)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(2, 7))) for _ in range(500)]
    with open(f"{dir}/corpus.txt", "w") as f:
        for _ in range(4000):
            f.write(" ".join(rng.choice(words) for _ in range(40)) + "\n\n")
    with open(f"{dir}/r.yaml", "w") as f:
        f.write((CONFIG if device == "cpu" else GPU_CONFIG).replace("THREADS", str(threads)))
    for words in (["tokenizer", "train", "corpus.txt", "--vocab-size", "1024", "-o", "tok"],
                  ["data", "build", "corpus.txt", "--tokenizer", "tok", "--separator", "blank", "--val-fraction", "0.1", "-o", "data/c"]):
        subprocess.run([ingot, *words], cwd=dir, check=True, capture_output=True)
    return subprocess.Popen([ingot, "train", "r.yaml", "--run.dir=runs/a"], cwd=dir, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, env={**os.environ, "OMP_WAIT_POLICY": "passive"})


class Records:
    """The steps of a run, as they come."""

    def __init__(self, path):
        self.path, self.at, self.step = path, 0, 0
        self.when = {}  # step: time, tokens

    def read(self):
        with open(self.path, "rb") as f:
            f.seek(self.at)
            data = f.read()
        whole = data[:data.rfind(b"\n") + 1]
        self.at += len(whole)
        for line in whole.splitlines():
            o = json.loads(line)
            if o.get("kind") == "step":
                self.step = o["step"]
                self.when[self.step] = o["time"], o["tokens"]
        return self.step

    def wait(self, step):
        while self.read() < step:
            time.sleep(0.002)

    def tokens_per_s(self, first, last):
        (begin, before), (end, after) = self.when[first], self.when[last]
        return (after - before) / (end - begin)


class Page:
    """Asks what observe/live.js asks."""

    def __init__(self, port, token):
        self.port, self.headers, self.end = port, {"Authorization": "Bearer " + token}, False
        self.fetched, self.ask = 0, True
        threading.Thread(target=self.run, daemon=True).start()

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        c.request("GET", path, headers=self.headers)
        return c.getresponse()

    def run(self):
        while not self.end:
            try:
                events = self.get("/events")
                while not self.end:
                    line = events.readline()
                    if not line:
                        break
                    if line.startswith(b"data:") and self.ask:
                        self.ask = False
                        self.get("/api/curves").read()
                        self.get("/api/view").read()
                        self.fetched += 1
            except OSError:
                time.sleep(0.5)


def serve(ingot, dir):
    p = subprocess.Popen([ingot, "serve", "runs", "--port", "0"], cwd=dir, stdout=subprocess.PIPE, text=True,
                         stderr=subprocess.DEVNULL, env={**os.environ, "HOME": dir, "XDG_CONFIG_HOME": ""})
    address, token = p.stdout.readline().split("http://127.0.0.1:")[1].split("/#t=")
    return p, Page(int(address), token.strip())


def cpu_seconds(pid):
    """Of all threads, to the nanosecond; those of the run live as long as it does."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(open(f"/proc/{pid}/task/{task}/schedstat").read().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass
    return total / 1e9


def block(a, dir, kind, records, train):
    """CPU seconds of the run per step, of the server per second; pages fetched; tokens/s."""
    if kind != "nobody":
        server, page = serve(a.ingot, dir)
        while not page.fetched:
            time.sleep(0.01)
        if kind == "stopped":
            server.send_signal(signal.SIGSTOP)
    first = records.read() + 2
    records.wait(first)
    work, own, before, begin = cpu_seconds(train.pid), 0, 0, time.time()
    if kind != "nobody":
        own, before, page.ask = cpu_seconds(server.pid), page.fetched, True
    records.wait(first + a.steps)
    steps, rate = records.step - first, records.tokens_per_s(first, first + a.steps)
    work = (cpu_seconds(train.pid) - work) / steps
    if kind == "nobody":
        return work, 0, 0, rate
    own, fetched = (cpu_seconds(server.pid) - own) / (time.time() - begin), page.fetched - before
    page.end = True
    server.send_signal(signal.SIGCONT)
    server.terminate()
    server.wait()
    return work, own, fetched, rate


def quantile(values, q):
    return sorted(values)[int(q * (len(values) - 1) + 0.5)]


def ratio(threes, kind, q):
    """Percent more CPU seconds per step than with nobody, and the interval."""
    def of(rows):
        return 100 * (quantile([r[kind][0] for r in rows], q) / quantile([r["nobody"][0] for r in rows], q) - 1)
    rng = random.Random(1)
    again = sorted(of(rng.choices(threes, k=len(threes))) for _ in range(2000))
    return f"{of(threes):+.2f} % ({again[50]:+.2f} to {again[-51]:+.2f})"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ingot")
    p.add_argument("--blocks", type=int, default=60, help="of each kind")
    p.add_argument("--steps", type=int, default=100, help="of a block")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = p.parse_args()
    a.ingot = os.path.realpath(a.ingot)
    dir = tempfile.mkdtemp()
    train = make_run(a.ingot, dir, a.threads, a.device)
    path = f"{dir}/runs/a/metrics.jsonl"
    try:
        while not os.path.exists(path) or os.path.getsize(path) < 4000:
            if train.poll() is not None:
                sys.exit("the run has ended")
            time.sleep(0.1)
        records, threes = Records(path), []
        for i in range(a.blocks):
            kinds = ["nobody", "page", "stopped"]
            random.Random(i).shuffle(kinds)
            got = {k: block(a, dir, k, records, train) for k in kinds}
            threes.append(got)
            print(f"{i + 1}: " + ", ".join(f"{k} {1e3 * got[k][0]:.3f}" for k in ("nobody", "page", "stopped")) +
                  f" ms/step, server {1e3 * got['page'][1]:.2f} ms/s, tokens/s " +
                  " ".join(f"{got[k][3]:.0f}" for k in ("nobody", "page", "stopped")), file=sys.stderr, flush=True)
        base = statistics.median(r["nobody"][0] for r in threes)
        print(f"{a.blocks} blocks of {a.steps} steps; {1e3 * base:.3f} CPU ms of the run per step; load {os.getloadavg()[0]:.0f}")
        for kind, text in ("page", "a page is connected"), ("stopped", "the server is stopped"):
            print(f"{text}: medians {ratio(threes, kind, 0.5)}, lowest tenths {ratio(threes, kind, 0.1)} CPU seconds of the run")
            own = sorted(r[kind][1] for r in threes)
            print(f"    the server itself: {statistics.mean(own):.4f} CPU seconds per second ({own[0]:.4f} to {own[-1]:.4f}), "
                  f"{100 * statistics.mean(own) / os.cpu_count():.2f} % of the cores; {sum(r[kind][2] for r in threes)} pages fetched")
        alone = statistics.median(r["nobody"][3] for r in threes)
        print(f"tokens/s, medians: {alone:.0f} alone" + "".join(
            f"; {text} {statistics.median(r[kind][3] for r in threes):.0f} "
            f"({100 * (statistics.median(r[kind][3] for r in threes) / alone - 1):+.2f} %)"
            for kind, text in (("page", "with a page"), ("stopped", "with the server stopped"))))
    finally:
        train.kill()
        train.wait()
        subprocess.run(["rm", "-rf", dir], check=True)


main()
