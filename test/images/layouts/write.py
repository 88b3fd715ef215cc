# SPDX-License-Identifier: Apache-2.0
"""Writes two checkpoints of each case with a real library, on CPUs. generate.py starts it for each of two ranks: write.py FOLDER CASE...

Each case writes into FOLDER/CASE. When the first checkpoint is complete, this is copied to FOLDER/CASE.before. At the end of a case
there is FOLDER/CASE.RANK, with how its process ended. Importing the libraries takes the most time, so that a case is a fork.
"""

import os
import pathlib
import shutil
import signal
import sys
import time
import traceback

import accelerate
import deepspeed
import lightning.pytorch
import peft
import torch
import torch.distributed as dist
import transformers

CASES = {}
TOP = pathlib.Path(sys.argv[1])
FOLDER = TOP  # of the case
RANK = int(os.environ["RANK"])


def case(function):
    CASES[function.__name__] = function
    return function


def barrier():
    if dist.is_initialized():
        dist.barrier()


def first_is_complete():
    barrier()
    if RANK == 0 and not pathlib.Path(f"{FOLDER}.before").exists():
        shutil.copytree(FOLDER, f"{FOLDER}.before")
    barrier()


def model(size=8):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, size), torch.nn.ReLU(), torch.nn.Linear(size, 2))


def step(net, optimizer, backward=lambda loss: loss.backward()):
    backward(net(torch.ones(2, 4)).sum())
    optimizer.step()
    optimizer.zero_grad()


# transformers' Trainer


def tiny():
    config = transformers.GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def train(net, arguments=None, callback=None):
    class Callback(transformers.TrainerCallback):
        def on_save(self, *_, **__):
            first_is_complete()

    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(16)]
    settings = {
        "output_dir": str(FOLDER / "out"), "max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 1, "use_cpu": True,
        "report_to": [], "disable_tqdm": True, "ddp_backend": "gloo", "logging_steps": 1, **(arguments or {}),
    }
    transformers.Trainer(net, transformers.TrainingArguments(**settings), train_dataset=data, callbacks=[Callback()]).train()


@case
def trainer():
    train(tiny())


@case
def trainer_only_model():
    train(tiny(), {"save_only_model": True})


@case
def trainer_keeps_two():
    train(tiny(), {"save_total_limit": 2, "max_steps": 6})


@case
def trainer_shards():
    net = tiny()
    save = net.save_pretrained
    net.save_pretrained = lambda *a, **k: save(*a, **{**k, "max_shard_size": 1000})
    train(net)


@case
def trainer_peft():
    train(peft.get_peft_model(tiny(), peft.LoraConfig(target_modules=["c_attn"], r=2, fan_in_fan_out=True)))


def zero(stage, **others):
    return {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": stage},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}, "zero_force_ds_cpu_optimizer": False, **others,
    }


# accelerate


def accelerated(saves, automatic=False, **settings):
    configuration = accelerate.utils.ProjectConfiguration(project_dir=str(FOLDER), automatic_checkpoint_naming=automatic)
    accelerator = accelerate.Accelerator(cpu=True, project_config=configuration, **settings)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1)
    net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
    for name in saves:
        step(net, optimizer, accelerator.backward)
        scheduler.step()
        accelerator.save_state(name and str(FOLDER / name))
        accelerator.wait_for_everyone()
        first_is_complete()


@case
def accelerate_automatic():
    accelerated([None, None], automatic=True)


@case
def accelerate_named():
    accelerated(["step_10", "step_20"])


@case
def accelerate_in_folders():
    accelerated(["ckpt/epoch-0", "ckpt/epoch-1"])


@case
def accelerate_unsafe():
    import functools

    accelerate.Accelerator.save_state = functools.partialmethod(accelerate.Accelerator.save_state, safe_serialization=False)
    accelerated(["step_10", "step_20"])


# Lightning


def with_lightning(module="lightning.pytorch", logger=True, **settings):
    import importlib

    pl = importlib.import_module(module)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, _):
            return self.net(batch).sum()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

        def on_train_epoch_end(self):
            if self.current_epoch == 1:
                first_is_complete()

    callbacks = [pl.callbacks.ModelCheckpoint(save_top_k=-1, **settings.pop("checkpoint", {}))]
    data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, max_epochs=2, logger=logger, default_root_dir=str(FOLDER), callbacks=callbacks,
        enable_progress_bar=False, enable_model_summary=False, **{"strategy": "ddp", **settings},
    )
    trainer.fit(Module(), data)


@case
def lightning_logged():
    from lightning.pytorch.loggers import CSVLogger

    with_lightning(logger=CSVLogger(str(FOLDER)))


@case
def lightning_plain():
    with_lightning(logger=False)


@case
def lightning_last():
    with_lightning(logger=False, checkpoint={"save_last": True})


@case
def pytorch_lightning():
    with_lightning("pytorch_lightning", logger=False)


@case
def fabric():
    import lightning.fabric

    it = lightning.fabric.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    it.launch()
    net = model()
    net, optimizer = it.setup(net, torch.optim.AdamW(net.parameters()))
    for number in 10, 20:
        step(net, optimizer, it.backward)
        it.save(FOLDER / f"step-{number}.ckpt", {"net": net, "optimizer": optimizer, "step": number})
        first_is_complete()


# torch.distributed.checkpoint


def sharded():
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # torch before 2.6
        from torch.distributed._composable.fsdp import fully_shard

    dist.init_process_group("gloo")
    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(net.parameters())
    return net, optimizer


def states(net, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    of_model, of_optimizer = get_state_dict(net, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "step": 10}


def dcp(save):
    net, optimizer = sharded()
    for number in 10, 20:
        step(net, optimizer)
        save(states(net, optimizer), str(FOLDER / f"step-{number}"))
        first_is_complete()


@case
def dcp_files():
    import torch.distributed.checkpoint as checkpoint

    dcp(lambda state, path: checkpoint.save(state, checkpoint_id=path))


@case
def dcp_async():
    import torch.distributed.checkpoint as checkpoint

    dcp(lambda state, path: checkpoint.async_save(state, checkpoint_id=path).result())


@case
def dcp_file_of_each_tensor():
    import torch.distributed.checkpoint as checkpoint

    def save(state, path):
        checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(path, single_file_per_rank=False))

    dcp(save)


@case
def dcp_safetensors():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    def save(state, path):
        checkpoint.save(state["model"], storage_writer=HuggingFaceStorageWriter(path, save_distributed=True))

    dcp(save)


@case
def dcp_model_and_optimizer():
    import torch.distributed.checkpoint as checkpoint

    def save(state, path):
        checkpoint.save(state["model"], checkpoint_id=path + "/model")
        checkpoint.save(state["optimizer"], checkpoint_id=path + "/optim")

    dcp(save)


# DeepSpeed


def with_deepspeed(configuration, tags=(None, None)):
    # Its reductions over shared memory are no part of a checkpoint, and DeepSpeed would compile them here.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    net = model()
    engine, optimizer, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=configuration)
    for tag in tags:
        batch = torch.ones(2, 4, dtype=next(engine.parameters()).dtype)
        engine.backward(engine(batch).sum())
        engine.step()
        engine.save_checkpoint(str(FOLDER), tag=tag)
        first_is_complete()


@case
def deepspeed_zero0():
    with_deepspeed(zero(0))


@case
def deepspeed_zero1():
    with_deepspeed(zero(1))


@case
def deepspeed_zero2():
    with_deepspeed(zero(2))


@case
def deepspeed_zero3():
    with_deepspeed(zero(3))


@case
def deepspeed_bf16():
    with_deepspeed(zero(2, bf16={"enabled": True}))


@case
def deepspeed_tag():
    with_deepspeed(zero(2), ["step-10", "step-20"])


# Others


@case
def torch_save():
    dist.init_process_group("gloo")
    net = model()
    for number in 10, 20:
        if RANK == 0:
            torch.save({"model": net.state_dict(), "step": number}, FOLDER / f"step-{number}.pt")
        first_is_complete()


@case
def module_mlenv():
    import mlenv

    dist.init_process_group("gloo")
    net = model()
    for number in 10, 20:
        path = FOLDER / f"step-{number}"
        path.mkdir(exist_ok=True)
        torch.save(net.state_dict(), path / f"rank-{RANK}.pt")
        barrier()
        if RANK == 0:
            mlenv.finish_checkpoint(path)
        first_is_complete()


@case
def pretrained():
    dist.init_process_group("gloo")
    net = tiny()
    for number in 10, 20:
        if RANK == 0:
            net.save_pretrained(FOLDER / f"model-{number}", max_shard_size=1000)
        first_is_complete()


# The forks


def fork(number, name):
    """Runs a case, and returns how its process ended. If the other rank's has failed, it is killed."""
    global FOLDER
    FOLDER = TOP / name
    child = os.fork()
    if child == 0:
        output = os.open(f"{FOLDER}.log.{RANK}", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + number)
        try:
            FOLDER.mkdir(exist_ok=True)
            CASES[name]()
            barrier()
            os._exit(0)  # gloo's threads may hang at the end
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    other = pathlib.Path(f"{FOLDER}.{1 - RANK}")
    end = time.monotonic() + 240
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end or other.exists() and other.read_text() not in ("", "0"):
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)


for at, each in enumerate(sys.argv[2:], 1):
    ended = fork(at, each)
    pathlib.Path(f"{TOP / each}.{RANK}").write_text(str(ended))
