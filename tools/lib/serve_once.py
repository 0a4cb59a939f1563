"""Serves one padded batch with a model whose pooling reads the padding too; for tools/pictures.

serve_once.py --pad-with NUMBER
"""

import argparse

import torch
from torch import nn

import cgdebug

ROWS, REAL, WIDTH, LAYERS = 16, 11, 32, 4
FAULTY = 2


class Mixer(nn.Module):
    """Adds the mean over the requests of the batch to each, as some routers do."""

    def __init__(self, is_faulty):
        super().__init__()
        self.is_faulty = is_faulty

    def forward(self, x):
        rows = ROWS if self.is_faulty else REAL
        return x + 0.1 * x[:rows].mean(0)


class Block(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.mix = Mixer(is_faulty)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return self.norm(self.mix(nn.functional.gelu(self.up(x))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pad-with", type=float, required=True)
    pad_with = parser.parse_args().pad_with
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(layer == FAULTY) for layer in range(LAYERS)), nn.Linear(WIDTH, 8))
    requests = torch.randn(6, REAL, WIDTH)
    batch = torch.full((ROWS, WIDTH), pad_with)
    with cgdebug.watch(model, values=16), torch.no_grad():
        for request in requests:
            batch[:REAL] = request
            model(batch)


main()
