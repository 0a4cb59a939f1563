"""Trainings of random models that are right (serve_programs.py): nothing in them grows to an overflow."""

import random

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed.tensor
import torch.onnx
from serve_programs import serve
from torch import nn

MODELS, CALLS = 10, 9  # of a program
PROGRAMS = [f"models_{seed}" for seed in range(20)]


def random_layers(choose):
    width = choose.choice([4, 8, 16, 32])
    parts, size = [], 8
    for _ in range(choose.randint(1, 3)):
        parts.append(nn.Linear(size, width))
        parts.append(choose.choice([nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU, nn.LeakyReLU])())
        if choose.random() < 0.3:
            parts.append(
                choose.choice([nn.LayerNorm(width), nn.Dropout(0.1), nn.BatchNorm1d(width)])
            )
        size = width
    return nn.Sequential(*parts, nn.Linear(size, choose.choice([1, 4])))


def random_optimizer(choose, parameters):
    kind = choose.choice(["SGD", "momentum", "Adam", "AdamW", "RMSprop", "Adagrad"])
    if kind in ("SGD", "momentum"):
        rate, momentum = 10 ** choose.uniform(-4, -1), 0.9 * (kind == "momentum")
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum)
    return getattr(torch.optim, kind)(parameters, lr=10 ** choose.uniform(-4, -2))


class Models(nn.Module):
    """Each has names of its own, so that one program trains many."""

    def __init__(self, choose):
        super().__init__()
        self.all = nn.ModuleList(random_layers(choose) for _ in range(MODELS))

    def forward(self, x):
        return [model(x) for model in self.all]


def run_models(seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    models = Models(choose)
    optimizers = [random_optimizer(choose, list(one.parameters())) for one in models.all]
    losses = [choose.choice(["square", "class", "huber"]) for _ in models.all]
    scale = 10 ** choose.uniform(-1, 1)
    for _ in range(CALLS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for out, kind in zip(models(scale * torch.randn(16, 8)), losses, strict=True):
            if kind == "class" and out.shape[1] > 1:
                nn.functional.cross_entropy(out, torch.randint(0, out.shape[1], (16,))).backward()
            elif kind == "huber":
                nn.functional.huber_loss(out, torch.randn_like(out)).backward()
            else:
                (out - 1).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


if __name__ == "__main__":
    serve({f"run_models_{seed}": lambda seed=seed: run_models(seed) for seed in range(20)})
