"""A loop of PyTorch alone, which saves and resumes with the module mlenv."""

import os

import torch
import torch.distributed as dist

import chaos_common as chaos
import mlenv

dist.init_process_group("gloo")
net = chaos.net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
model = torch.nn.parallel.DistributedDataParallel(net)

start, first = mlenv.last_checkpoint(), 0
if start:
    state = torch.load(start, weights_only=True)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
chaos.continues(first)
for step in range(first + 1, chaos.STEPS + 1):
    optimizer.zero_grad()
    loss = chaos.loss_of(model, chaos.batch(step))
    loss.backward()
    optimizer.step()
    mlenv.progress(step=step, steps=chaos.STEPS, loss=loss.detach())
    chaos.stepped(step)
    stop = mlenv.stopping()
    if dist.get_rank() == 0 and (stop or step % chaos.EVERY == 0):
        path = mlenv.checkpoint_folder() / f"step-{step}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)
        mlenv.finish_checkpoint(path)
    if stop:
        chaos.leave()
chaos.ended(net)
