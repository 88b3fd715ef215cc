"""Fits a line on two ranks in 20 steps, with a checkpoint every 5 steps. With --killed, rank 1 kills itself in attempt 1 while
it saves step 15: rank 0 has written its part, and the checkpoint has no metadata yet. With --waits, attempt 2 stays at step 17
until it is interrupted. With --diverges, attempt 1 has weights of NaN from step 12 on, which its checkpoint of step 15 has too, and stays there."""

import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import mlenv

STEPS, EVERY = 20, 5

dist.init_process_group("gloo")
rank = dist.get_rank()
weights, own = torch.zeros(2), torch.zeros(1)  # the same on all ranks, and each rank's own
state = {"weights": weights, f"own-{rank}": own}
start = mlenv.last_checkpoint()
first = 0
if start:
    dcp.load(state, checkpoint_id=start)
    first = int(start.name.removeprefix("step-"))
print(f"rank {rank} starts after step {first}", flush=True)
for step in range(first + 1, STEPS + 1):
    x = torch.linspace(-1, 1, 16) * (rank + 1)
    error = weights[0] * x + weights[1] - (3 * x + 1 + torch.sin(torch.tensor(float(step))))
    gradient = torch.stack([(error * x).mean(), error.mean()])
    dist.all_reduce(gradient)
    weights -= 0.1 * gradient
    own += gradient[:1]
    loss = (error**2).mean() + own.abs().sum()
    dist.all_reduce(loss)
    diverged = step >= 12 and "--diverges" in sys.argv and os.environ["MLENV_ATTEMPT"] == "1"
    if diverged:
        weights.fill_(float("nan"))
    else:
        mlenv.progress(step=step, steps=STEPS, loss=loss)
    if step == 17 and "--waits" in sys.argv and os.environ["MLENV_ATTEMPT"] == "2":
        print(f"rank {rank} waits at step {step}", flush=True)
        time.sleep(3600)
    if step % EVERY:
        continue
    path = pathlib.Path(mlenv.checkpoint_folder(), f"step-{step}")
    if step == 15 and "--killed" in sys.argv and os.environ["MLENV_ATTEMPT"] == "1":
        if rank == 0:
            path.mkdir()
            (path / "__0_0.distcp").write_bytes(b"half of it")
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    dcp.save(state, checkpoint_id=path)
    if diverged:
        mlenv.progress(step=step, steps=STEPS, loss=loss)
        time.sleep(3600)
sys.stdout.flush()
os._exit(0)  # the destructors of gloo in torch 2.6 can wait forever
