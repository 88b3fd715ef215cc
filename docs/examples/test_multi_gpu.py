# SPDX-License-Identifier: Apache-2.0
"""Checks every rank's device, matmul and all-reduce, and times them.

    torchrun test_multi_gpu.py        deepspeed test_multi_gpu.py        python test_multi_gpu.py

The script needs only PyTorch, and uses GPUs with NCCL or CPUs with gloo. The exit code is 1 if a result is wrong.
"""

import argparse
import os
import socket
import sys
import time
import traceback

import torch
import torch.distributed as dist

MATMUL = {"cuda": 8192, "cpu": 512}  # rows and columns
ELEMENTS = {"cuda": 64 << 20, "cpu": 1 << 20}  # of an all-reduce, 4 bytes each
REPEATS = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--local_rank", "--local-rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    parser.add_argument("--gpus-per-node", type=int, help="fail unless every node has this number of GPUs")
    args = parser.parse_args()

    device = pick_device(args.local_rank)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}, {dist.get_world_size()} ranks, {dist.get_backend()}", flush=True)

    faults = []
    gpus = torch.cuda.device_count()
    if args.gpus_per_node is not None and gpus != args.gpus_per_node:
        faults.append(f"{gpus} GPUs: want {args.gpus_per_node}")
    teraflops = matmul(device, faults)
    seconds, bus_gigabytes = all_reduce(device, faults)

    line = f"rank {dist.get_rank()} on {socket.gethostname()}, {describe(device)}: matmul {teraflops:.2f} TFLOP/s"
    line += f", all-reduce of {ELEMENTS[device.type] * 4 >> 20} MiB in {seconds * 1e3:.1f} ms (bus {bus_gigabytes:.2f} GB/s)"
    # One write, because an unbuffered print() writes the line's end separately, and other ranks print at the same time.
    sys.stdout.write(line + "".join(f"\n  WRONG: {fault}" for fault in faults) + "\n")
    sys.stdout.flush()
    dist.barrier()
    return not faults


def pick_device(local_rank):
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def describe(device):
    if device.type == "cpu":
        return f"CPU with {torch.get_num_threads()} threads"
    properties = torch.cuda.get_device_properties(device)
    return f"GPU {device.index} {properties.name} {properties.total_memory / 2**30:.0f} GiB"


def matmul(device, faults):
    """Returns the speed of a matmul (bf16 on GPUs, fp32 on CPUs) in TFLOP/s, and checks its result."""
    size, dtype = MATMUL[device.type], torch.bfloat16 if device.type == "cuda" else torch.float32
    # A row of ones times a column of halves: every element is size / 2, which both types represent exactly.
    left = torch.ones(size, size, device=device, dtype=dtype)
    right = torch.full((size, size), 0.5, device=device, dtype=dtype)
    product, seconds = timed(device, lambda: left @ right)
    if not (product == size / 2).all():
        faults.append(f"matmul: {product.min().item()} to {product.max().item()}: want {size / 2} everywhere")
    return 2 * size**3 / seconds / 1e12


def all_reduce(device, faults):
    """Returns the time of an all-reduce in seconds and its bus bandwidth in GB/s, defined as in nccl-tests: 2 (n - 1) / n x bytes / seconds."""
    world = dist.get_world_size()
    values = torch.empty(ELEMENTS[device.type], device=device)

    def reduce():
        values.fill_(dist.get_rank() + 1)
        dist.all_reduce(values)

    _, seconds = timed(device, reduce)
    want = world * (world + 1) / 2
    if not (values == want).all():
        faults.append(f"all-reduce: {values.min().item()} to {values.max().item()}: want {want} everywhere")
    return seconds, 2 * (world - 1) / world * values.nbytes / seconds / 1e9


def timed(device, work):
    """Returns the last result of `work` and its mean time in seconds, after one run that does not count."""
    work()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(REPEATS):
        result = work()
    synchronize(device)
    return result, (time.perf_counter() - start) / REPEATS


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    try:
        code = 0 if main() else 1
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without destructors: those of gloo in torch 2.6 can wait forever
