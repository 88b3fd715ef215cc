"""As DeepSpeed-Chat's main.py: DeepSpeed's arguments, its configuration in Python, and a result that rank 0 writes."""

import argparse

import deepspeed
import torch.distributed as dist

import shared

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir")
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()

deepspeed.init_distributed()
config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
          "zero_optimization": {"stage": 2}}
net = shared.model()
engine, _, _, _ = deepspeed.initialize(args=args, model=net, config=config)
for _ in range(5):
    engine.backward(engine(shared.rows(dist.get_rank())).square().mean())
    engine.step()
shared.proves("chat", net)
