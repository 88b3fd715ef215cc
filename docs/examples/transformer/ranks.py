# SPDX-License-Identifier: Apache-2.0
"""Operations that involve all ranks: finished gathers, and digests of the weights."""

import hashlib

import deepspeed
import torch
import torch.distributed as dist


def wait_for_every_gather():
    """Makes every all-gather of DeepSpeed wait until it has finished.

    After it loads a checkpoint, ZeRO-3 gathers each weight with one operation and waits only for the last one, because on GPUs
    they finish in order. With gloo they finish in any order, so a forward pass could read weights that are not complete yet.
    """
    for name in ("all_gather", "all_gather_into_tensor"):
        setattr(deepspeed.comm, name, _waited_for(getattr(deepspeed.comm, name)))


def _waited_for(gather):
    def wrapper(*args, **kwargs):
        handle = gather(*args, **kwargs)
        if handle is not None:
            handle.wait()
        return handle

    return wrapper


def weights_sha256(engine):
    """Returns the SHA-256 of this rank's weights, sorted by name; with ZeRO-3 it gathers them first."""
    parameters = sorted(engine.module.named_parameters())
    digest = hashlib.sha256()
    with deepspeed.zero.GatheredParameters([p for _, p in parameters], enabled=engine.zero_optimization_partition_weights()):
        for name, parameter in parameters:
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.digest()


def all_digests(digest, device):
    """Returns the digests of all ranks in hexadecimal, ordered by rank."""
    mine = torch.tensor(list(digest), dtype=torch.uint8, device=device)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    return [bytes(one.tolist()).hex() for one in everyones]
