#!/usr/bin/env python3
"""What `ingot serve` with a connected page costs a run that trains on the same host.

    python3 tools/serve_cost.py build/release/ingot [--pairs 12] [--block 10] [--threads N]

One run trains all the time. Blocks of seconds follow each other in threes, in a random order: nobody serves; a page is
connected; the server is stopped (SIGSTOP) with the page still there. The page is a client that asks what the page's
script asks: /events, then curves and tables, every five seconds at most. Of each block: tokens per second by the run's
own records, and per CPU second of the run, which other work on the host moves less. Printed: the means of the paired
differences with their standard errors, and the server's CPU seconds.
"""
import argparse, http.client, json, math, os, random, signal, statistics, subprocess, sys, tempfile, threading, time

CONFIG = """\
model: {layer_count: 4, hidden_size: 256, ffn_size: 512, head_count: 4, context_length: 256}
data: {train: data/c_train_*.bin, val: data/c_val_*.bin}
train: {micro_batch: 2, batch_tokens: 1024, steps: 100000000, precision: fp32}
eval: {every: 0}
ckpt: {every: 0}
machine: {device: cpu, threads: THREADS}
"""


def make_run(ingot, dir, threads):
    rng = random.Random(1)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randint(2, 7))) for _ in range(500)]
    with open(f"{dir}/corpus.txt", "w") as f:
        for _ in range(4000):
            f.write(" ".join(rng.choice(words) for _ in range(40)) + "\n\n")
    with open(f"{dir}/r.yaml", "w") as f:
        f.write(CONFIG.replace("THREADS", str(threads)))
    for words in (["tokenizer", "train", "corpus.txt", "--vocab-size", "1024", "-o", "tok"],
                  ["data", "build", "corpus.txt", "--tokenizer", "tok", "--separator", "blank", "--val-fraction", "0.1", "-o", "data/c"]):
        subprocess.run([ingot, *words], cwd=dir, check=True, capture_output=True)
    return subprocess.Popen([ingot, "train", "r.yaml", "--run.dir=runs/a"], cwd=dir, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, env={**os.environ, "OMP_WAIT_POLICY": "passive"})


class Records:
    """The step records of a run, as they come."""

    def __init__(self, path):
        self.path, self.at, self.steps = path, 0, []

    def read(self):
        with open(self.path, "rb") as f:
            f.seek(self.at)
            data = f.read()
        whole = data[:data.rfind(b"\n") + 1]
        self.at += len(whole)
        for line in whole.splitlines():
            o = json.loads(line)
            if o.get("kind") == "step":
                self.steps.append((o["time"], o["tokens"], o["step_s"]))

    def rate(self, begin, end):
        """Tokens, and tokens per second, of the steps that lie in between."""
        self.read()
        inside = [(i, s) for i, s in enumerate(self.steps) if begin <= s[0] - s[2] and s[0] <= end and i]
        tokens = sum(self.steps[i][1] - self.steps[i - 1][1] for i, _ in inside)
        return tokens, tokens / sum(s[2] for _, s in inside)


class Page:
    """Asks what observe/live.js asks."""

    def __init__(self, port, token):
        self.port, self.headers, self.end = port, {"Authorization": "Bearer " + token}, False
        self.fetched = 0
        threading.Thread(target=self.run, daemon=True).start()

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        c.request("GET", path, headers=self.headers)
        return c.getresponse()

    def run(self):
        last = 0
        while not self.end:
            try:
                events = self.get("/events")
                while not self.end:
                    line = events.readline()
                    if not line:
                        break
                    if line.startswith(b"data:") and time.time() - last >= 5:
                        self.get("/api/curves").read()
                        self.get("/api/view").read()
                        self.fetched += 1
                        last = time.time()
            except OSError:
                time.sleep(0.5)


def serve(ingot, dir):
    p = subprocess.Popen([ingot, "serve", "runs", "--port", "0"], cwd=dir, stdout=subprocess.PIPE, text=True,
                         stderr=subprocess.DEVNULL, env={**os.environ, "HOME": dir, "XDG_CONFIG_HOME": ""})
    address, token = p.stdout.readline().split("http://127.0.0.1:")[1].split("/#t=")
    return p, Page(int(address), token.strip())


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def block(a, dir, kind, records, train):
    if kind != "nobody":
        server, page = serve(a.ingot, dir)
        time.sleep(2)
        if kind == "stopped":
            server.send_signal(signal.SIGSTOP)
    time.sleep(1)
    cpu = cpu_seconds(server.pid) if kind != "nobody" else 0
    begin, work = time.time(), cpu_seconds(train.pid)
    time.sleep(a.block)
    end, work = time.time(), cpu_seconds(train.pid) - work
    tokens, rate = records.rate(begin, end)
    used = (cpu_seconds(server.pid) - cpu) / (end - begin) if kind != "nobody" else 0
    if kind != "nobody":
        page.end = True
        server.send_signal(signal.SIGCONT)
        server.terminate()
        server.wait()
    return rate, tokens / work, used


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ingot")
    p.add_argument("--pairs", type=int, default=12)
    p.add_argument("--block", type=float, default=10)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = p.parse_args()
    a.ingot = os.path.realpath(a.ingot)
    dir = tempfile.mkdtemp()
    train = make_run(a.ingot, dir, a.threads)
    path = f"{dir}/runs/a/metrics.jsonl"
    try:
        while not os.path.exists(path) or os.path.getsize(path) < 4000:
            if train.poll() is not None:
                sys.exit("the run has ended")
            time.sleep(0.1)
        records, used = Records(path), []
        ratios = {(k, i): [] for k in ("page", "stopped") for i in (0, 1)}
        for i in range(a.pairs):
            kinds = ["nobody", "page", "stopped"]
            random.Random(i).shuffle(kinds)
            got = {k: block(a, dir, k, records, train) for k in kinds}
            used.append(got["page"][2])
            for k, at in ratios:
                ratios[k, at].append(100 * math.log(got[k][at] / got["nobody"][at]))
            print(f"{i + 1}: " + ", ".join(f"{k} {got[k][0]:.0f}" for k in ("nobody", "page", "stopped")) + " tokens/s",
                  file=sys.stderr, flush=True)
        for (k, at), v in ratios.items():
            error = statistics.stdev(v) / math.sqrt(len(v))
            print(f"{'a page is connected' if k == 'page' else 'the server is stopped'}: {statistics.mean(v):+.2f} % "
                  f"tokens per {'CPU second of the run' if at else 'second'} +- {error:.2f} (median {statistics.median(v):+.2f})")
        print(f"server: {statistics.mean(used):.4f} CPU seconds per second, {100 * statistics.mean(used) / a.threads:.2f} % of {a.threads} cores")
    finally:
        train.kill()
        train.wait()
        subprocess.run(["rm", "-rf", dir], check=True)


main()
