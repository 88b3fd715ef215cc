"""Checkpoints of a DeepSpeed engine that survive being killed while they are written, and lost or lagging nodes."""

import os
import pathlib

import torch
import torch.distributed as dist


def save(engine, folder, step, state):
    """Writes a checkpoint of all ranks into `folder`, and then names it there as the newest."""
    engine.save_checkpoint(folder, tag=_tag(step), client_state=state, save_latest=False)
    # DeepSpeed would write `latest` before the other ranks are done, and with folders of the nodes' own on node 0 only.
    writer = engine.local_rank if engine.use_node_local_storage() else engine.global_rank
    if writer == 0:
        new = pathlib.Path(folder, "latest.new")
        new.write_text(_tag(step))
        os.replace(new, pathlib.Path(folder, "latest"))


def newest(folder, device):
    """Returns the step of the newest checkpoint that every rank has, or None where no rank has one.

    Raises RuntimeError where only some have one. A node that was stopped before it named the newest one is no obstacle: all
    take the one before.
    """
    try:
        mine = int(pathlib.Path(folder, "latest").read_text().removeprefix("step-"))
    except FileNotFoundError:
        mine = -1
    least, most = (torch.tensor(mine, device=device) for _ in range(2))
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if most.item() < 0:
        return None
    if least.item() < 0:
        found = "nothing" if mine < 0 else _tag(mine)
        raise RuntimeError(
            f"resuming from {folder}: rank {dist.get_rank()} finds {found}, another rank the opposite: want the same everywhere; "
            "where each node has a folder of its own, checkpoints are complete only with --node-local-checkpoints"
        )
    return least.item()


def load(engine, folder, step, state):
    """Loads the checkpoint of `step`. Raises RuntimeError if it was saved with another `state`."""
    path, saved = engine.load_checkpoint(folder, tag=_tag(step))
    if path is None:
        raise RuntimeError(f"loading {_tag(step)} from {folder}: rank {dist.get_rank()} cannot read its part")
    for name, wanted in state.items():
        if saved.get(name) != wanted:
            raise RuntimeError(f"loading {path}: {name} is {saved.get(name)}: want {wanted}")


def _tag(step):
    return f"step-{step:06d}"
