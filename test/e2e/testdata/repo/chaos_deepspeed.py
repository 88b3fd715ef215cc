"""DeepSpeed's engine, as a script uses it that knows nothing of ml-dev-env: it loads what is newest in its folder."""

import deepspeed
import torch

import chaos_common as chaos

deepspeed.init_distributed("gloo")
config = {"train_micro_batch_size_per_gpu": 16, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
          "zero_optimization": {"stage": 1}}
net = chaos.net()
engine, _, _, _ = deepspeed.initialize(model=net, config=config)
engine.load_checkpoint("saved")
chaos.continues(engine.global_steps)
while engine.global_steps < chaos.STEPS:
    engine.backward(chaos.loss_of(engine, chaos.batch(engine.global_steps + 1)))
    engine.step()
    chaos.stepped(engine.global_steps)
    if engine.global_steps % chaos.EVERY == 0:
        engine.save_checkpoint("saved")
chaos.ended(net)
