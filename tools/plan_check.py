#!/usr/bin/env python3
"""The plan beside the step: `ingot plan` and `ingot bench train` of the same shapes and precisions on this GPU.

usage: plan_check.py --ingot PATH --machine 1xKIND|1xFILE [--steps N] [--precisions P,...] [--key --section.key=value ...] [SHAPE...]
Prints predicted and measured milliseconds of a step and GiB of device memory, and the error of each; every row as a line of JSON with --json.
Shapes: those of bench_gpu.py, and the presets below. A shape that does not fit is named. Exit code 1: a shape could not be planned or run.
"""
import argparse, json, statistics, subprocess, sys

from bench_gpu import SHAPES as TIMED, alone

# Beside the shapes that peers are measured with: presets whose parts those have not.
PRESETS = {
    "swa-mla-medium": alone("swa-mla-medium", 8, 8192),
    "engram-moe-small": alone("engram-moe-small", 16, 2048),
    "large": alone("large", 16, 2048),
    "deltanet-mla-small": alone("deltanet-mla-small", 8, 8192),
    "llama-1b-32k": alone("llama-1b", 1, 32768),
}
SHAPES = {**TIMED, **PRESETS}


def output(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"exit {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(done.stdout)


def planned(a, shape, precision):
    tokens = shape.batch * shape.seq
    keys = [f"--model.preset={shape.preset}", *("--model." + key for key in shape.keys.split()), f"--train.precision={precision}",
            f"--train.sequence_length={shape.seq}", f"--train.micro_batch={shape.batch}", f"--train.batch_tokens={tokens}",
            "--train.recompute=none", "--train.steps=1"]
    return output([a.ingot, "plan", *keys, *a.key, "--machine", a.machine, "--json"])["meshes"][0]


def measured(a, shape, precision):
    return output([a.ingot, "bench", "train", "--device", "cuda", "--precision", precision, "--steps", str(a.steps), "--json", *shape.ingot(), *a.key])


def row_of(a, name, precision):
    plan, run = planned(a, SHAPES[name], precision), measured(a, SHAPES[name], precision)
    step, bytes_ = 1e3 * plan["step_seconds"], plan["memory_bytes_max"]
    return {"shape": name, "precision": precision, "predicted_ms": step, "measured_ms": 1e3 * run["step_s"],
            "step_error": step / (1e3 * run["step_s"]) - 1, "predicted_bytes": bytes_, "measured_bytes": run["device_bytes"],
            "bytes_error": bytes_ / run["device_bytes"] - 1, "planned_bytes": run["planned_bytes"], "tokens_per_s": run["tokens_per_s"],
            "parts_ms": {k: round(1e3 * v, 2) for k, v in plan["step_parts_seconds"].items() if v},
            "stages_percent": {k: v for k, v in run["stages_percent"].items() if v >= 1}}


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    p.add_argument("--ingot", required=True)
    p.add_argument("--machine", required=True)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--precisions", default="bf16,fp8")
    p.add_argument("--key", action="append", default=[])
    p.add_argument("--json", action="store_true")
    p.add_argument("shapes", nargs="*", default=[])
    a = p.parse_args()
    unknown = [name for name in a.shapes if name not in SHAPES]
    if unknown:
        p.error(f"no shape '{unknown[0]}' ({', '.join(SHAPES)})")
    errors, failed = [], False
    print("| shape | precision | predicted ms | measured ms | error | GiB predicted | measured | tokens/s |\n|---|---|---|---|---|---|---|---|", flush=True)
    for name in a.shapes or SHAPES:
        for precision in a.precisions.split(","):
            try:
                r = row_of(a, name, precision)
            except (RuntimeError, KeyError, IndexError) as e:
                print(f"| {name} | {precision} | {e!s} |", flush=True)
                failed = True
                continue
            errors.append(abs(r["step_error"]))
            if a.json:
                print(json.dumps(r), flush=True)
            print(f"| {name} | {precision} | {r['predicted_ms']:.1f} | {r['measured_ms']:.1f} | {100 * r['step_error']:+.1f} % | "
                  f"{r['predicted_bytes'] / 2**30:.2f} | {r['measured_bytes'] / 2**30:.2f} | {r['tokens_per_s']:,.0f} |", flush=True)
    if errors:
        print(f"{len(errors)} rows: median error {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %, "
              f"{sum(e <= 0.03 for e in errors)} within 3 %")
    sys.exit(failed or not errors)


if __name__ == "__main__":
    main()
