#!/usr/bin/env python3
"""Stall and rate of torch's distributed checkpoint (DCP) for the tensors of an ingot checkpoint.

peer_dcp.py CHECKPOINT OUT [--saves N] [--beside SECONDS]: random tensors with the names, shapes and dtypes of
CHECKPOINT/*.safetensors, on the GPU if there is one, are saved N times to OUT by dcp.async_save, in the ways that this
torch has, and once by dcp.save. Prints for each save: how long the call held the caller, when the state was staged (an
optimizer may change it), when the files were there, and bytes per second. --beside: matrix products run on the GPU
meanwhile, for so long after each call.
"""
import argparse
import glob
import json
import os
import shutil
import struct
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8, "I32": torch.int32, "I64": torch.int64}


def tensors_like(checkpoint, device):
    state = {}
    for path in sorted(glob.glob(os.path.join(checkpoint, "*.safetensors"))):
        with open(path, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        for name, t in header.items():
            if name == "__metadata__":
                continue
            dtype = DTYPES[t["dtype"]]
            value = torch.zeros(t["shape"], dtype=dtype, device=device)
            state[name] = value.normal_() if dtype.is_floating_point else value.random_(0, 100)
    return state


def ways():
    """(name, keywords of async_save) that this torch has."""
    found = [("default", {})]
    try:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        options = StagingOptions(use_pinned_memory=True, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=True)
        found.append(("pinned, staged asynchronously", {"async_stager": DefaultStager(options)}))
    except (ImportError, TypeError) as why:
        print(f"no DefaultStager with options: {why}")
    return found


def busy(seconds, device):
    """Work of the GPU beside a save; products per second."""
    if device == "cpu" or seconds <= 0:
        return None
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    begin, count = time.time(), 0
    while time.time() - begin < seconds:
        for _ in range(10):
            a @ a
        torch.cuda.synchronize()
        count += 10
    return count / (time.time() - begin)


def save_once(state, out, beside, device, bytes_, keys):
    """One dcp.async_save, waited for; what it took, in words."""
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.time()
    reply = dcp.async_save(state, checkpoint_id=out, **keys)
    held = time.time() - begin
    rate = busy(beside, device)
    staged = held
    if hasattr(reply, "staging_completion"):
        done = []
        reply.staging_completion.add_done_callback(lambda _: done.append(time.time()))
        reply.staging_completion.result()
        staged = (done[0] if done else time.time()) - begin
        reply.upload_completion.result()
    else:
        reply.result()
    took = time.time() - begin
    return (
        f"held {held * 1000:.1f} ms, staged after at most {staged * 1000:.1f} ms, "
        f"written after {took:.2f} s, {bytes_ / took / 2**20:.0f} MiB/s" + (f", beside it {rate:.1f} products/s" if rate else "")
    )


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("checkpoint")
    p.add_argument("out")
    p.add_argument("--saves", type=int, default=3)
    p.add_argument("--beside", type=float, default=0)
    a = p.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as meet:
        dist.init_process_group(backend, init_method=f"file://{meet}/meet", rank=0, world_size=1)
        state = tensors_like(a.checkpoint, device)
        bytes_ = sum(t.numel() * t.element_size() for t in state.values())
        print(f"torch {torch.__version__}, {device}: {len(state)} tensors, {bytes_ / 2**30:.2f} GiB")
        for name, keys in ways():
            for k in range(a.saves):
                shutil.rmtree(a.out, ignore_errors=True)
                try:
                    line = save_once(state, a.out, a.beside, device, bytes_, keys)
                except Exception as why:  # torch 2.11: a second save by one DefaultStager ends in a KeyError
                    print(f"async_save ({name}) {k + 1}: fails in torch: {type(why).__name__}: {why}")
                    break
                print(f"async_save ({name}) {k + 1}: {line}", flush=True)
        shutil.rmtree(a.out, ignore_errors=True)
        begin = time.time()
        dcp.save(state, checkpoint_id=a.out)
        took = time.time() - begin
        print(f"save: {took:.2f} s, {bytes_ / took / 2**20:.0f} MiB/s")
        if a.beside > 0:
            print(f"alone {busy(a.beside, device) or 0:.1f} products/s")
        shutil.rmtree(a.out, ignore_errors=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
