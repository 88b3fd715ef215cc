"""What the shapes have in common: a tiny model, and the proof that all ranks trained it together."""

import sys

import torch
import torch.distributed as dist


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 16)


def trains(net, optimizer, data, backward=torch.Tensor.backward):
    for _ in range(5):
        optimizer.zero_grad()
        backward(net(data).square().mean())
        optimizer.step()


def rows(rank):
    """Each rank has data of its own: without an exchange of gradients the weights would differ."""
    return torch.randn(4, 2, generator=torch.Generator().manual_seed(rank))


def proves(name, net):
    mine = torch.cat([parameter.detach().double().flatten() for parameter in net.parameters()])
    every = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    if len(every) < 2 or not all(torch.equal(its, mine) for its in every):
        sys.exit(f"{name}: the weights of the ranks are {every}, want those of one model")
    if dist.get_rank() == len(every) - 1:
        print(f"{name}: {len(every)} ranks trained one model", flush=True)
