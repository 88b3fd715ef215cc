"""As karpathy/nanoGPT: files and arguments change its globals by exec, and its data is a memory map of a file that git ignores."""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist

import shared

max_iters = 600000
backend = "nccl"
data_dir = "shapes"

for argument in sys.argv[1:]:
    if argument.startswith("--"):
        key, value = argument[2:].split("=")
        globals()[key] = type(globals()[key])(value)
    else:
        exec(open(argument, encoding="utf-8").read())

dist.init_process_group(backend=backend)
rank = int(os.environ["RANK"])
tokens = np.memmap(os.path.join(data_dir, "train.bin"), dtype=np.uint16, mode="r")
rows = torch.from_numpy(tokens[rank * 8 : rank * 8 + 8].astype(np.float32)).reshape(4, 2) / 128
net = torch.nn.parallel.DistributedDataParallel(shared.model())
for _ in range(max_iters):
    shared.trains(net, torch.optim.AdamW(net.parameters(), lr=1e-3), rows)
shared.proves(f"nanogpt, {len(tokens)} tokens, {max_iters} iterations", net)
dist.destroy_process_group()
