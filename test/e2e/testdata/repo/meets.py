"""Trains a tiny model with the framework in its argument, in its usual way. It ends with an error unless two ranks share the model."""

import sys

import torch

DATA = torch.arange(32.0).reshape(16, 2)
FOLDER = "/workspace/meets"


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator()
    net = model()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(DATA), batch_size=2)
    net, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-4), data)
    for (batch,) in data:
        accelerator.backward(net(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.num_processes, accelerator.unwrap_model(net)


def trainer():
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(16)]
    arguments = TrainingArguments(output_dir=FOLDER, max_steps=4, report_to=[], disable_tqdm=True, save_strategy="no")
    it = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows)
    it.train()
    return arguments.world_size, it.model


def lightning():
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, _):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    it = pl.Trainer(accelerator="cpu", devices="auto", num_nodes=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False)
    net = Module()
    it.fit(net, torch.utils.data.DataLoader(DATA, batch_size=2))
    return it.world_size, net


def main():
    world, net = {"accelerate": accelerate, "trainer": trainer, "lightning": lightning}[sys.argv[1]]()
    mine = sum(parameter.detach().double().sum() for parameter in net.parameters()).reshape(1)
    both = [torch.zeros_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(both, mine)
    print(f"{sys.argv[1]} has {world} ranks over {torch.distributed.get_backend()}, the sums are {both}", flush=True)
    if world != 2 or len(both) != 2 or not torch.equal(both[0], both[1]):
        sys.exit("the ranks do not train one model")


main()
