"""One rank of a training of one step. What is timed is how long it takes to get there."""

import json
import os
import sys
import time

began = time.time()

import torch
import torch.distributed as dist

# With launcher command there is one process on each node.
rank = int(os.environ.setdefault("RANK", os.environ["NODE_RANK"]))
model = torch.nn.Linear(256, 256)
inputs = torch.randn(32, 256)

if "--deepspeed" in sys.argv:
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 32,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    deepspeed.init_distributed(dist_backend="gloo")
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(inputs).square().mean())
    engine.step()
else:
    dist.init_process_group("gloo")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(inputs).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()

if rank == 0:
    with open(os.environ["MLENV_METRICS_FILE"], "a") as metrics:
        print(json.dumps({"step": 1, "steps": 1, "time": time.time()}), file=metrics)
if "--fail" in sys.argv and rank == 1:
    raise ValueError("rank 1 fails")
dist.destroy_process_group()
print(json.dumps({"rank": rank, "began": began, "ended": time.time()}), flush=True)
