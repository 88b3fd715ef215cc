# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a DeepSpeed engine that survive a kill during a write, and lost or lagging nodes."""

import pathlib

import torch
import torch.distributed as dist

import mlenv


def save(engine, folder, step, state):
    """Writes a checkpoint of all ranks into `folder`, and then marks it there as the newest one."""
    engine.save_checkpoint(folder, tag=_tag(step), client_state=state, save_latest=False)
    # DeepSpeed itself would write `latest` before the other ranks are done, and only on node 0 if each node has its own folder.
    writer = engine.local_rank if engine.use_node_local_storage() else engine.global_rank
    if writer == 0:
        mlenv.finish_checkpoint(pathlib.Path(folder, _tag(step)))


def newest(folder, device):
    """Returns the step of the newest checkpoint that every rank has, or None if no rank has one.

    Raises RuntimeError if only some ranks have one. If a node was stopped before it marked its newest checkpoint, all ranks
    use the previous one.
    """
    found = mlenv.last_checkpoint(folder)
    mine = int(found.name.removeprefix("step-")) if found else -1
    least, most = (torch.tensor(mine, device=device) for _ in range(2))
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if most.item() < 0:
        return None
    if least.item() < 0:
        raise RuntimeError(
            f"resuming from {folder}: rank {dist.get_rank()} finds {found.name if found else 'nothing'}, another rank the opposite: want the same everywhere; "
            "if each node has a folder of its own, checkpoints are complete only with --node-local-checkpoints"
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
