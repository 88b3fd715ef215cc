"""As PiPPy, which is torch.distributed.pipelining now: each rank has one stage, and the loss needs both."""

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import shared

dist.init_process_group()
rank = dist.get_rank()
torch.manual_seed(rank)
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
stage = PipelineStage(layer, rank, dist.get_world_size(), torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=torch.nn.functional.mse_loss)
means = []
for _ in range(5):
    optimizer.zero_grad()
    losses = []
    if rank == 0:
        schedule.step(shared.rows(0))
    else:
        schedule.step(target=torch.zeros(4, 2), losses=losses)
        means.append(torch.stack(losses).mean().item())
    optimizer.step()
if rank == 1:
    if means[-1] >= means[0]:
        raise SystemExit(f"pipelining: the losses are {means}, want less at the end")
    print(f"pipelining: stage {rank} of {dist.get_world_size()} has a falling loss", flush=True)
dist.destroy_process_group()
