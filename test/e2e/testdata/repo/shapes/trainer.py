"""The Trainer of transformers, with its defaults."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import shared

config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
rows = [{"input_ids": torch.randint(16, (8,)), "labels": torch.arange(8)} for _ in range(64)]
trainer = Trainer(GPT2LMHeadModel(config), TrainingArguments(output_dir="out", max_steps=4, report_to=[]), train_dataset=rows)
trainer.train()
shared.proves("trainer", trainer.model)
