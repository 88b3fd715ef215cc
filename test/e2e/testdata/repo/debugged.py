"""Every rank waits for the others before it exits, also for a rank that waits for a debugger."""

import os

import torch.distributed as dist

dist.init_process_group("gloo")
print(f"rank {os.environ['RANK']} begins", flush=True)
dist.barrier()
print(f"rank {os.environ['RANK']} is done", flush=True)
dist.destroy_process_group()
