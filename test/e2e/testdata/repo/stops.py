"""Rank 1 stops itself after three steps, and rank 0 waits for it."""

import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1000):
    print(f"rank {dist.get_rank()} step {step}")
    if dist.get_rank() == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))
