"""As Lightning Fabric's examples: the script's own loop, and Fabric's backward."""

import torch
from lightning.fabric import Fabric

import shared

fabric = Fabric(accelerator="cpu", devices="auto", num_nodes=2, strategy="ddp")
fabric.launch()
net = shared.model()
net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
shared.trains(net, optimizer, shared.rows(fabric.global_rank), fabric.backward)
shared.proves("fabric", net)
