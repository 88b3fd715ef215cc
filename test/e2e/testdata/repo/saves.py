"""Counts steps until it is stopped, and then takes 20 s to save. A run that resumes another one takes three more steps."""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import mlenv

dist.init_process_group("gloo")
rank = dist.get_rank()
state = {"steps": torch.zeros(1), f"own-{rank}": torch.zeros(1)}
start = mlenv.last_checkpoint()
if start:
    dcp.load(state, checkpoint_id=start)
first = int(state["steps"].item())
mlenv.stopping()  # from here on SIGTERM asks for a stop
print(f"rank {rank} starts after step {first}", flush=True)
for step in range(first + 1, first + 4 if start else 1_000_000):
    time.sleep(0.2)
    one = torch.ones(1)
    dist.all_reduce(one)
    state["steps"] += one / dist.get_world_size()
    mlenv.progress(step=step)
    stop = mlenv.stopping()
    if stop:
        print(f"rank {rank} saves step {step}: {stop.reason}", flush=True)
        time.sleep(20)
        dcp.save(state, checkpoint_id=pathlib.Path(mlenv.checkpoint_folder(), f"step-{step}"))
        break
sys.stdout.flush()
os._exit(0)  # the destructors of gloo in torch 2.6 can wait forever
