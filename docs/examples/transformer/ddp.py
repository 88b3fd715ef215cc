# SPDX-License-Identifier: Apache-2.0
"""Trains the transformer of model.py with PyTorch alone (DistributedDataParallel) on the docstrings of Python's standard library.

    torchrun ddp.py        python ddp.py

The script uses GPUs with NCCL or CPUs with gloo. The exit code is 1 unless the held-out loss is below the unigram entropy.
"""

import argparse
import os
import sys
import traceback

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import corpus
import mlenv
from model import Transformer

CONTEXT = 64  # maximum number of bytes that a prediction sees
ROWS = 8  # sequences per step and rank
CHECKPOINT_EVERY = 50  # steps; the last step writes one too


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=150, help="steps of the complete training (%(default)s)")
    parser.add_argument("--local_rank", "--local-rank", type=int, help="accepted and ignored; the script uses LOCAL_RANK")
    args = parser.parse_args()

    device = start()
    train_bytes, heldout_bytes = corpus.load()
    entropy = corpus.unigram_entropy(heldout_bytes)
    torch.manual_seed(1)
    model = Transformer(layers=2, width=64, heads=4, context=CONTEXT).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = resume(model, optimizer, device)
    last = train(model, optimizer, tensor(train_bytes), first, args.steps, device)
    if last < args.steps:
        say(f"stopped at step {last} of {args.steps}; a run that resumes this one continues from there")
        return

    loss = heldout_loss(model, tensor(heldout_bytes), device)
    passed = loss < entropy
    mlenv.progress(final=True, passed=passed, step=last, steps=args.steps, heldout_loss=loss, unigram_entropy=entropy)
    say(f"held-out loss {loss:.4f}, unigram entropy {entropy:.4f} nats a byte")
    if not passed:
        raise RuntimeError(f"held-out loss: {loss:.4f} nats a byte: want less than the unigram entropy, {entropy:.4f}")


def start():
    """Joins the other ranks and returns the device to use."""
    if "RANK" not in os.environ:  # launcher command, or none: this process is its node's only rank
        os.environ.update(RANK=os.environ.get("NODE_RANK", "0"), WORLD_SIZE=os.environ.get("NUM_NODES", "1"), LOCAL_RANK="0")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.set_num_threads(1)  # the model is too small for more
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    say(f"torch {torch.__version__}, {dist.get_world_size()} ranks on {device.type}, {dist.get_backend()}")
    return device


def resume(model, optimizer, device):
    """Loads the newest checkpoint, if there is one, and returns its step."""
    path = mlenv.last_checkpoint()
    state = torch.load(path, map_location="cpu", weights_only=True) if path else {"step": 0}
    step = torch.tensor(state["step"], device=device)
    steps = [torch.empty_like(step) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, step)
    found = [int(step) for step in steps]
    if len(set(found)) > 1:  # each node has a workspace of its own, and rank 0 saves in the one of its node
        raise RuntimeError(f"resuming: ranks have checkpoints of steps {found}: want a workspace that all nodes share")
    if path:
        say(f"resuming from {path}")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save(model, optimizer, step):
    """Writes a checkpoint, and then marks it as the newest one. A training that is killed meanwhile leaves the one before."""
    if dist.get_rank() == 0:
        path = mlenv.checkpoint_folder() / f"step-{step:06d}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
        os.replace(new, path)
        mlenv.finish_checkpoint(path)


def train(model, optimizer, text, first, steps, device):
    """Trains from step `first`, with checkpoints on the way. Returns the last step: an earlier one if the training is stopped."""
    replica = DistributedDataParallel(model)
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(first + 1, steps + 1):
        order = torch.Generator().manual_seed(step * world + rank)  # a resumed training continues with the next data
        starts = torch.randint(len(text) - CONTEXT, (ROWS, 1), generator=order)
        loss = replica(text[starts + torch.arange(CONTEXT + 1)].long().to(device)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps:
            loss = loss.detach()
            dist.all_reduce(loss)  # the metric covers all ranks
            mlenv.progress(step=step, steps=steps, loss=loss / world, tokens=step * world * ROWS * CONTEXT)
            say(f"step {step}/{steps} loss {loss.item() / world:.4f}")
        stop = mlenv.stopping()
        if step % CHECKPOINT_EVERY == 0 or step == steps or stop:
            save(model, optimizer, step)
        if stop:
            return step
    return steps


@torch.no_grad()
def heldout_loss(model, text, device):
    """Returns the mean loss of the text in nats per byte. Each rank evaluates a part of its windows."""
    windows = text[: (len(text) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)
    total = torch.zeros(2, device=device)  # nats, bytes
    for rows in windows[dist.get_rank() :: dist.get_world_size()].split(64):
        losses = model(rows.long().to(device))
        total += torch.stack([losses.sum(), torch.tensor(losses.numel(), device=device)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def tensor(text):
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def say(message):
    if dist.get_rank() == 0:
        print(message, flush=True)


if __name__ == "__main__":
    try:
        main()
        code = 0
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without destructors: those of gloo in torch 2.6 can wait forever
