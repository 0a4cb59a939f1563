"""A small GPT on real text: what tools/demo trains.

Byte-level, pre-norm, squared-ReLU MLP. Residuals, norms and the optimizer are float32; every matrix
product is float16, as in mixed-precision training, so that an activation can overflow.
"""

import re

import torch
import torch.nn.functional as F
from torch import nn


def load_text() -> torch.Tensor:
    """The prose of Python's own language reference, as bytes; shape [n], int64, values below 128."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    text = re.sub(r"[^\n -~]", "", text)
    return torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8).long()


class HalfLinear(nn.Linear):
    """float32 weights, float16 factors and product; summed up in float32, as a GPU does."""

    def forward(self, x):
        x, weight = x.half(), self.weight.half()
        if x.is_cuda:
            return F.linear(x, weight)
        # A CPU's own float16 product takes ten times as long.
        return F.linear(x.float(), weight.float()).half()


class Block(nn.Module):
    def __init__(self, width: int, heads: int, name: str, probe):
        super().__init__()
        self.name, self.heads, self.probe = name, heads, probe
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = HalfLinear(width, 3 * width, bias=False)
        self.merge = HalfLinear(width, width, bias=False)
        self.up = HalfLinear(width, 4 * width, bias=False)
        self.down = HalfLinear(4 * width, width, bias=False)

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.merge(out.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        self.probe(f"{self.name}.mlp.up.weight", self.up.weight)
        x = x + self.probe(f"{self.name}.attn", self.attention(self.norm1(x))).float()
        act = self.probe(f"{self.name}.mlp.act", F.relu(self.up(self.norm2(x))).square())
        return self.probe(f"{self.name}.out", x + self.down(act).float())


class TinyGpt(nn.Module):
    """`probe(name, tensor) -> tensor` is called at each point worth seeing."""

    VOCABULARY = 128

    def __init__(self, probe, layers: int = 4, width: int = 128, heads: int = 4, length: int = 64):
        super().__init__()
        self.probe = probe
        self.token = nn.Embedding(self.VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, heads, f"blk{i}", probe) for i in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = HalfLinear(width, self.VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens):
        """tokens: int64 [batch, length + 1]. Returns the mean cross entropy, a float32 scalar."""
        x = self.token(tokens[:, :-1]) + self.position
        for block in self.blocks:
            x = block(x)
        logits = self.probe("logits", self.head(self.norm(x)))
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        return self.probe("loss", loss)
