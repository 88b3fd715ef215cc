"""What the programs of chaos have in common: 600 steps that depend on nothing but their number, what they print, and the digest of the
weights in the end. However often a training is stopped and continued, the digest is that of one that nothing happened to."""

import argparse
import hashlib
import os
import time

import torch
import torch.distributed as dist

STEPS, EVERY = 600, 25  # it saves after every 25 steps

parser = argparse.ArgumentParser()
parser.add_argument("--pace", type=float, default=0, help="seconds that a step takes longer")
parser.add_argument("--evaluate-after", type=int, help="the Trainer evaluates after so many steps, for 100 times the pace")
options = parser.parse_args()
attempt = os.environ["MLENV_ATTEMPT"]


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def batch(step):
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))


def loss_of(model, x):
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def continues(step):
    print(f"attempt {attempt} continues after step {step}", flush=True)


def stepped(step):
    print(f"attempt {attempt} step {step}", flush=True)
    time.sleep(options.pace)


def ended(model):
    weights = hashlib.sha256(b"".join(p.detach().float().numpy().tobytes() for p in model.parameters())).hexdigest()
    print(f"the weights are {weights}", flush=True)
    leave()


def leave():
    dist.barrier()
    os._exit(0)  # the destructors of gloo in torch 2.6 can wait forever
