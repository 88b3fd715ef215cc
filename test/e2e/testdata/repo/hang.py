"""Rank 1 never joins the collective in which rank 0 waits for it."""

import pathlib
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("rank 0 waits for rank 1")
    dist.all_reduce(torch.ones(1))
while not pathlib.Path("/workspace/never").exists():
    time.sleep(0.2)
