# SPDX-License-Identifier: Apache-2.0
"""Trains with the Trainer of transformers, as a script does that knows nothing of being stopped, and notes when each step was done."""

import json
import os
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


began = time.time()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def forward(self, x):
        time.sleep(0.1)  # where a real model computes
        return {"loss": self.net(x).square().mean()}


class Notes(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        with open(os.environ["STEPS"], "a") as file:
            done = {"rank": args.process_index, "pid": os.getpid(), "began": began, "step": state.global_step, "time": time.time()}
            file.write(json.dumps(done) + "\n")


rows = [{"x": torch.randn(8)} for _ in range(4096)]
arguments = TrainingArguments(output_dir="out", max_steps=100, save_steps=20, report_to=[], disable_tqdm=True, use_cpu=True, ddp_backend="gloo")
trainer = Trainer(Model(), arguments, train_dataset=rows, callbacks=[Notes()])
trainer.train()
