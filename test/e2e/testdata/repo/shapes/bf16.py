"""As DeepSpeedExamples bf16: its own argument for DeepSpeed's configuration."""

import argparse

import deepspeed
import torch
import torch.distributed as dist

import shared

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed_config", type=str, required=True)
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()

deepspeed.init_distributed()
net = shared.model()
engine, _, _, _ = deepspeed.initialize(args=args, model=net, model_parameters=net.parameters())
for _ in range(5):
    loss = engine(shared.rows(dist.get_rank()).bfloat16()).float().square().mean()
    engine.backward(loss)
    engine.step()
assert next(net.parameters()).dtype == torch.bfloat16
shared.proves("bf16", net)
