# SPDX-License-Identifier: Apache-2.0
"""A small byte-level transformer in plain PyTorch, independent of DeepSpeed and of other ranks."""

import torch
from torch import nn
from torch.nn import functional as F

SYMBOLS = 256


def distance_bias(heads, length):
    """Returns the attention bias for distance (ALiBi, arXiv:2108.12409): heads x length x length, -infinity for later bytes.

    Unlike learnt positions, it gives near bytes more weight from the first step on, which a training of a minute needs. The
    slope is 2 for the first head, which sees little more than the previous byte, and 4 times smaller for each next head.
    """
    distance = torch.arange(length)[:, None] - torch.arange(length)
    slopes = 2.0 * 0.25 ** torch.arange(heads)
    return (-slopes[:, None, None] * distance).masked_fill(distance < 0, float("-inf"))


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each with a layer norm before it and a residual connection."""

    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.register_buffer("bias", distance_bias(heads, context), persistent=False)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(x)).split(width, dim=2)
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias[:, :length, :length])
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(x)


class Transformer(nn.Module):
    """Predicts each byte from at most `context` previous bytes."""

    def __init__(self, layers, width, heads, context):
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, width)
        self.blocks = nn.Sequential(*(Block(width, heads, context) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, SYMBOLS, bias=False)
        nn.init.normal_(self.symbol.weight, std=0.5)
        nn.init.normal_(self.out.weight, std=0.02)

    def forward(self, symbols):
        """Returns the loss in nats of each byte of `symbols` (batch x length) except the first of each row: batch x (length - 1)."""
        given, wanted = symbols[:, :-1], symbols[:, 1:]
        logits = self.out(self.norm(self.blocks(self.symbol(given))))
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none").view_as(wanted)
