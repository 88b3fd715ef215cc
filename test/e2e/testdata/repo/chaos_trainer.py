"""The Trainer of transformers, as a script uses it that knows nothing of ml-dev-env."""

import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import chaos_common as chaos


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = chaos.net()

    def forward(self, x):
        if not self.training:
            time.sleep(chaos.options.pace)
        return {"loss": chaos.loss_of(self.net, x)}


class Prints(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        chaos.continues(state.global_step)

    def on_step_end(self, args, state, control, **_):
        chaos.stepped(state.global_step)


class InOrder(Trainer):
    """Does not shuffle: when it continues within an epoch, the order of what is left differs from that of an undisturbed training."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


# Without a GPU accelerate calls the device of a rank cpu:0, which torch cannot load to.
torch.serialization.register_package(5, lambda storage: None, lambda storage, location: storage if location.startswith("cpu:") else None)

rows = [{"x": torch.randn(8, generator=torch.Generator().manual_seed(i))} for i in range(4096)]
evaluates = {}
if chaos.options.evaluate_after:
    strategy = "eval_strategy" if hasattr(TrainingArguments, "eval_strategy") else "evaluation_strategy"  # before transformers 4.41
    evaluates = {strategy: "steps", "eval_steps": chaos.options.evaluate_after, "label_names": ["x"], "prediction_loss_only": True}
arguments = TrainingArguments(output_dir="out", max_steps=chaos.STEPS, save_steps=chaos.EVERY, logging_steps=10, report_to=[], disable_tqdm=True,
                              use_cpu=True, ddp_backend="gloo", learning_rate=1e-2, remove_unused_columns=False, **evaluates)
trainer = InOrder(Model(), arguments, train_dataset=rows, eval_dataset=rows[:1600], callbacks=[Prints()])
trainer.train()
chaos.ended(trainer.model)
