"""What every script of the table begins with: a training of a few steps."""
import ctypes, datetime, os, signal, subprocess, sys, threading, time, traceback
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
local_rank = int(os.environ["LOCAL_RANK"])
torchrun = "TORCHELASTIC_RUN_ID" in os.environ
model = torch.nn.Linear(8, 1)


def begin(timeout=60):
    """Connects the ranks, and returns one step of the training: a forward pass, a backward pass and an update."""
    timeout = datetime.timedelta(seconds=timeout)
    if torchrun:
        dist.init_process_group("gloo", timeout=timeout)
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)

        def step(batch):
            optimizer.zero_grad()
            loss = parallel(batch).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()
    else:
        import deepspeed
        # DeepSpeed would compile its reductions over shared memory, which ranks on several nodes do not use.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("gloo", timeout=timeout, verbose=False)
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), config={"train_micro_batch_size_per_gpu": 4})

        def step(batch):
            loss = engine(batch).square().mean()
            engine.backward(loss)
            engine.step()
            return loss.item()
    return step


def steps(timeout=60, count=6):
    """Trains, and yields the number of each step after it."""
    step = begin(timeout)
    for i in range(count):
        # Waits for all ranks, as a training that logs the mean loss does.
        loss = torch.tensor(step(torch.ones(4, 8)))
        dist.all_reduce(loss)
        print(f"step {i} loss {loss.item() / dist.get_world_size():.4f}", flush=True)
        yield i


def from_outside(signal):
    """Another process sends a signal to this one a moment later."""
    subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -{signal} {os.getpid()}"])
