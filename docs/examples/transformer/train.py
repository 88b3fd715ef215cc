# SPDX-License-Identifier: Apache-2.0
"""Trains a small byte-level transformer with DeepSpeed on the docstrings of Python's standard library.

    deepspeed train.py        torchrun train.py        python train.py --single

The exit code is 1 unless all ranks end with the same weights and the held-out loss is below the unigram entropy.
"""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import sys
import time
import traceback

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

import checkpoint
import corpus
import mlenv
import options
import ranks
from model import Transformer

LEARNT_AFTER = 50  # steps; a shorter training is a test of the nodes, not of the model
EVALUATION_BATCH = 64  # sequences a rank evaluates at a time


def main():
    started = time.monotonic()
    args = options.parse()
    device = start(args)
    train_bytes, heldout_bytes = corpus.load()
    text_sha256 = hashlib.sha256(train_bytes + heldout_bytes)
    if len(set(ranks.all_digests(text_sha256.digest(), device))) > 1:
        raise RuntimeError("loading the text: ranks have different ones: want the same Python in every node's image")
    entropy = corpus.unigram_entropy(heldout_bytes)
    say(f"text: {len(train_bytes)} bytes to train on, {len(heldout_bytes)} held out, of unigram entropy {entropy:.4f} nats a byte")

    engine = build(args, device)
    settings = {name: getattr(args, name) for name in ("steps", "global_batch", "context", "layers", "width", "heads", "seed")}
    state = settings | {"text_sha256": text_sha256.hexdigest()}
    first = 0
    if args.resume and args.checkpoint_dir:
        first = resume(engine, args.checkpoint_dir, state, device)

    last = min(args.stop_at or args.steps, args.steps)
    last = train(engine, tensor(train_bytes), args, first, last, state)
    if last < args.steps:
        say(f"stopped at step {last} of {args.steps}; --resume continues from there")
        return

    loss = heldout_loss(engine, tensor(heldout_bytes), args.context, device)
    verdict(args, loss, entropy, ranks.all_digests(ranks.weights_sha256(engine), device), time.monotonic() - started)


def start(args):
    """Joins the other ranks and returns the device to use."""
    deepspeed.utils.logger.setLevel(logging.WARNING)
    local_rank, world = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = get_accelerator().device_name() == "cuda"
    if on_gpu:
        torch.cuda.set_device(local_rank)
    torch.set_num_threads(args.threads)
    if args.dtype == "auto":
        args.dtype = "bf16" if on_gpu else "fp32"
    backend = args.backend if args.backend != "auto" else "nccl" if on_gpu else "gloo"
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    if backend == "gloo":
        ranks.wait_for_every_gather()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    say(f"{world} ranks on {device.type}, {backend}, {args.dtype}, {args.threads} threads a rank, {pathlib.Path(args.deepspeed_config).name}")
    return device


def build(args, device):
    """Returns the DeepSpeed engine. Adds to the configuration file the values that depend on the number of ranks."""
    config = json.loads(pathlib.Path(args.deepspeed_config).read_text())
    config["train_batch_size"] = args.global_batch
    config["train_micro_batch_size_per_gpu"] = args.global_batch // dist.get_world_size()
    config["gradient_accumulation_steps"] = 1
    config["scheduler"]["params"]["total_num_steps"] = args.steps
    config["bf16"] = {"enabled": args.dtype == "bf16"}
    if args.node_local_checkpoints:
        config.setdefault("checkpoint", {})["use_node_local_storage"] = True
    if args.no_gradient_exchange:
        # Stage 0, because the other stages shard and gather the weights: they would agree even without gradient exchange.
        config["zero_optimization"] = {"stage": 0}
    torch.manual_seed(args.seed)
    model = Transformer(args.layers, args.width, args.heads, args.context).to(device)
    size = sum(parameter.numel() for parameter in model.parameters())
    deepspeed.utils.logger.setLevel(logging.ERROR)  # hides a warning that its own scheduler has not been stepped yet
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    deepspeed.utils.logger.setLevel(logging.WARNING)
    say(f"model: {size} parameters, ZeRO-{engine.zero_optimization_stage()}")
    return engine


def resume(engine, folder, state, device):
    """Loads the newest checkpoint and returns the step to continue with."""
    step = checkpoint.newest(folder, device)
    if step is None:
        say(f"no checkpoint in {folder}: starting at step 0")
        return 0
    checkpoint.load(engine, folder, step, state)
    say(f"resumed from {folder} at step {step}")
    return step


def train(engine, text, args, first, last, state):
    """Trains from step `first` to `last`, logging and writing checkpoints on the way. Returns the last step: an earlier one, with a
    checkpoint, if the training is stopped."""
    started = time.monotonic()
    for step in range(first + 1, last + 1):
        logged = step % args.log_every == 0 or step == last
        step_started = time.monotonic()
        loss = engine(batch(text, args, step).to(engine.device)).mean()
        if logged:
            get_accelerator().synchronize()
            own_seconds = time.monotonic() - step_started
        with engine.no_sync() if args.no_gradient_exchange else contextlib.nullcontext():
            engine.backward(loss)
        engine.step()
        if logged:
            log(loss, own_seconds, step, args, (step - first) / (time.monotonic() - started))
        stop = mlenv.stopping()
        if args.checkpoint_dir and (step % args.checkpoint_every == 0 or step == last or stop):
            checkpoint.save(engine, args.checkpoint_dir, step, state)
        if stop:
            return step
    return last


def batch(text, args, step):
    """Returns this rank's rows of the batch of `step`. The batch depends only on the seed and the step, so that any number
    of ranks sees the same data, and a resumed training continues where it stopped."""
    order = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - args.context, (args.global_batch,), generator=order)
    mine = starts.tensor_split(dist.get_world_size())[dist.get_rank()]
    return text[mine[:, None] + torch.arange(args.context + 1)].long()


def log(loss, own_seconds, step, args, steps_a_second):
    """Prints and records the progress. `own_seconds` is the time of this rank's data and forward pass; the times of all ranks
    show for which rank the others wait. With ZeRO-3 the ranks also wait for each other in the forward pass."""
    own = torch.tensor([own_seconds], device=loss.device)
    rank_seconds = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rank_seconds, own)
    loss = loss.detach().clone()
    dist.all_reduce(loss)  # the metric covers the whole batch
    loss = loss.item() / dist.get_world_size()
    mlenv.progress(
        step=step,
        steps=args.steps,
        loss=loss,
        tokens=step * args.global_batch * args.context,
        rank_seconds=[round(seconds.item(), 6) for seconds in rank_seconds],
    )
    say(f"step {step}/{args.steps} loss {loss:.4f} {steps_a_second:.1f} steps/s")


@torch.no_grad()
def heldout_loss(engine, text, context, device):
    """Returns the mean loss of the text in nats per byte. Each rank evaluates a part of its windows."""
    engine.eval()
    windows = text[: (len(text) - 1) // context * context + 1].unfold(0, context + 1, context)
    total = torch.zeros(2, dtype=torch.float64, device=device)  # nats, bytes
    stride = EVALUATION_BATCH * dist.get_world_size()
    for start in range(0, len(windows), stride):
        # With ZeRO-3 every forward pass is a collective: a rank without windows left evaluates the last one again, uncounted.
        mine = start + dist.get_rank() * EVALUATION_BATCH + torch.arange(EVALUATION_BATCH)
        losses = engine(windows[mine.clamp(max=len(windows) - 1)].long().to(device))
        counted = losses[(mine < len(windows)).to(device)]
        total += torch.stack([counted.double().sum(), torch.tensor(counted.numel(), device=device)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def verdict(args, loss, entropy, digests, seconds):
    """Prints and records how the training ended. Raises RuntimeError on every rank if the training failed."""
    faults = []
    if len(set(digests)) > 1:
        theirs = ", ".join(f"rank {rank} {digest[:12]}" for rank, digest in enumerate(digests))
        faults.append(f"comparing the weights' SHA-256: {theirs}: want all the same")
    if args.steps >= LEARNT_AFTER and not loss < entropy:
        faults.append(f"held-out loss: {loss:.4f} nats a byte: want less than the unigram entropy, {entropy:.4f}")
    if args.reference_loss and not abs(loss / args.reference_loss - 1) <= 0.05:
        off = loss / args.reference_loss - 1
        faults.append(f"held-out loss: {loss:.4f} nats a byte, {off:+.1%} of the reference: want within 5% of {args.reference_loss:.4f}")
    mlenv.progress(
        final=True,
        passed=not faults,
        step=args.steps,
        steps=args.steps,
        tokens=args.steps * args.global_batch * args.context,
        heldout_loss=loss,
        unigram_entropy=entropy,
        weights_sha256=digests[0],
        weights_agree=len(set(digests)) == 1,
        seconds=seconds,
    )
    say(f"held-out loss {loss:.4f}, unigram entropy {entropy:.4f} nats a byte; weights {digests[0][:12]} on rank 0; {seconds:.0f} s")
    if faults:
        raise RuntimeError("; ".join(faults))


def tensor(text):
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def say(message):
    if dist.get_rank() == 0:
        print(message, flush=True)


def leave(code):
    """Ends the process without destructors. The destructors of gloo in torch 2.6 can wait forever: they hold the interpreter
    while they join a thread that needs the interpreter to free the last tensor that it sent."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        leave(1)
    leave(0)
