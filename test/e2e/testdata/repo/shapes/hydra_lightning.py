"""As lightning-hydra-template: Hydra reads the configuration, changes the working folder, and makes the Trainer."""

import os

import hydra
import lightning.pytorch as pl
import torch

import shared


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = shared.model()

    def training_step(self, batch, _):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(config):
    trainer = hydra.utils.instantiate(config.trainer)
    net = Module()
    trainer.fit(net, torch.utils.data.DataLoader(torch.cat([shared.rows(0), shared.rows(1)]), batch_size=2))
    shared.proves(f"hydra in {os.path.basename(os.getcwd())}", net)


if __name__ == "__main__":
    main()
