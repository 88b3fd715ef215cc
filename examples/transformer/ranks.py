"""What the ranks have to agree on."""

import hashlib

import deepspeed
import torch
import torch.distributed as dist


def wait_for_every_gather():
    """Makes every all-gather of DeepSpeed's a finished one when it returns.

    After a checkpoint is loaded ZeRO-3 gathers the weights, one operation each, and waits for the last one alone: on GPUs they
    end in their order. gloo ends them in any, and a forward pass would now and then read weights that are not there yet.
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
    """Returns the SHA-256 of this rank's weights, in order of their names; with ZeRO-3 they are gathered for it."""
    parameters = sorted(engine.module.named_parameters())
    digest = hashlib.sha256()
    with deepspeed.zero.GatheredParameters([p for _, p in parameters], enabled=engine.zero_optimization_partition_weights()):
        for name, parameter in parameters:
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
    return digest.digest()


def all_digests(digest, device):
    """Returns the digests of all ranks, by rank, in hexadecimal."""
    mine = torch.tensor(list(digest), dtype=torch.uint8, device=device)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    return [bytes(one.tolist()).hex() for one in everyones]
