"""A small byte-level transformer in plain PyTorch: nothing in it knows of DeepSpeed or of other ranks."""

import torch
from torch import nn
from torch.nn import functional as F

SYMBOLS = 256


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each behind a layer norm and beside the residual."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(x)).split(width, dim=2)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(x)


class Transformer(nn.Module):
    """Predicts each byte from those before it, at most `context` of them."""

    def __init__(self, layers, width, heads, context):
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, SYMBOLS, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, symbols):
        """The loss of each byte of `symbols` (batch x length) but the first of each row, in nats: batch x (length - 1)."""
        given, wanted = symbols[:, :-1], symbols[:, 1:]
        x = self.symbol(given) + self.position(torch.arange(given.shape[1], device=given.device))
        logits = self.out(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none").view_as(wanted)
