"""DDP as any launcher starts it, for the shell scripts."""

import torch
import torch.distributed as dist

import shared

dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(shared.model())
shared.trains(net, torch.optim.SGD(net.parameters(), lr=0.1), shared.rows(dist.get_rank()))
shared.proves("ddp", net)
dist.destroy_process_group()
