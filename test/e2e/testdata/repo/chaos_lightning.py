"""Lightning, as a script uses it that knows nothing of ml-dev-env."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import chaos_common as chaos


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = chaos.net()

    def on_train_start(self):
        self.last = self.global_step
        chaos.continues(self.last)

    def training_step(self, _, __):
        return chaos.loss_of(self.net, chaos.batch(self.global_step + 1))

    def on_train_batch_end(self, *_):
        if self.global_step > self.last:  # else it only gathers gradients
            self.last = self.global_step
            chaos.stepped(self.last)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


# Lightning 1.9 continues exactly only if each batch is a step.
batches = 1 if pl.__version__.startswith("1.") else 2
trainer = pl.Trainer(accelerator="cpu", devices=1, num_nodes=2, strategy="ddp", max_steps=chaos.STEPS, logger=False,
                     accumulate_grad_batches=batches, enable_progress_bar=False,
                     callbacks=[ModelCheckpoint("checkpoints", every_n_train_steps=chaos.EVERY, save_top_k=-1)])
module = Module()
trainer.fit(module, torch.utils.data.DataLoader(range(4096), batch_size=1))
chaos.ended(module)
