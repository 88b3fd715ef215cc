"""Trains a line on two ranks as a script that knows nothing of ml-dev-env does: argparse, DDP, and an optimizer."""

import argparse
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
steps = parser.parse_args().steps

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(steps):
    optimizer.zero_grad()
    model(torch.randn(4, 2)).square().mean().backward()
    optimizer.step()
    time.sleep(0.05)
print("trained", steps, "steps")
dist.destroy_process_group()
