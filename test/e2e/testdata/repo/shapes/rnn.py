"""As pytorch/examples rpc/rnn: rank 1 trains a layer that lies on rank 0, through torch.distributed.rpc."""

import os

import torch
from torch.distributed import autograd, rpc
from torch.distributed.optim import DistributedOptimizer

import shared


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = shared.model()

    def forward(self, x):
        return self.net(x)

    def remote_parameters(self):
        return [rpc.RRef(parameter) for parameter in self.parameters()]


def main():
    layer = rpc.remote("ps", Layer)
    optimizer = DistributedOptimizer(torch.optim.SGD, layer.rpc_sync().remote_parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        with autograd.context() as context:
            loss = layer.rpc_sync().forward(shared.rows(1)).square().mean()
            autograd.backward(context, [loss])
            optimizer.step(context)
            losses.append(loss.item())
    if losses[-1] >= losses[0]:
        raise SystemExit(f"rnn: the losses are {losses}, want less at the end")
    print(f"rnn: trainer trained the layer of {layer.owner_name()}", flush=True)


if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    rpc.init_rpc(["ps", "trainer"][rank], rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    if rank == 1:
        main()
    rpc.shutdown()
