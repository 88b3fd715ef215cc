"""One rank of a training of one step. What is timed is how long it takes to get there."""

import json
import os
import sys
import time

began = time.time()

import torch
import torch.distributed as dist

# mpirun numbers ranks by variables of its own. With launcher command there is one process on each node.
for name, mpi in ("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK"):
    if "OMPI_COMM_WORLD_" + mpi in os.environ:
        os.environ[name] = os.environ["OMPI_COMM_WORLD_" + mpi]
rank = int(os.environ.setdefault("RANK", os.environ.get("NODE_RANK", "0")))
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

step = time.time()
if rank == 0 and "MLENV_METRICS_FILE" in os.environ:
    with open(os.environ["MLENV_METRICS_FILE"], "a") as metrics:
        print(json.dumps({"step": 1, "steps": 1, "time": step}), file=metrics)
dist.destroy_process_group()
print(json.dumps({"rank": rank, "began": began, "step": step, "ended": time.time()}), flush=True)
if "--fail" in sys.argv and rank == 1:
    raise ValueError("rank 1 fails")
