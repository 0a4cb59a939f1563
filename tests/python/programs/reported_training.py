"""Faults of training that people reported, each in small, and what `cgdebug.why` must say of it first
(serve_programs.py). Of those without an entry in EXPECTED it says nothing yet."""

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed.tensor
import torch.onnx
from serve_programs import serve
from torch import nn

CALLS, BATCH, SIZE = 6, 8, 16
# name: kinds that name the cause, level, words of the first sentence
EXPECTED = {
    "a_parameter_is_replaced_after_the_optimizer_was_made": (
        "idle_optimizer not_stepped", "consistent", ("2 of 4",),
    ),
    "gradients_are_nan_and_the_loss_is_not": (
        "domain nonfinite overflow", "shown", ("bwd/", "call 3"),
    ),
    "the_balancing_loss_counts_the_tokens_of_the_warm_up": (
        "dead_layer frozen_input stale_output", "consistent", ("the same",),
    ),
    "the_counter_of_a_batch_norm_stands_still": (
        "frozen_input", "consistent", ("in/1/_to_copy_0.self", "is the same in 6 calls"),
    ),
    "the_learning_rate_is_baked": (
        "frozen_input", "consistent", ("in/opt/div_0.self", "is the same in 6 calls"),
    ),
    "the_unscaled_gradients_are_below_a_digit": (
        "idle_optimizer", "consistent", ("never changes",),
    ),
}  # fmt: skip


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def run_gradients_are_nan_and_the_loss_is_not():
    """Megatron-LM#1279: the gradient of a root of 0."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE, bias=False)

        def forward(self, x):
            return self.layer(x).norm(dim=-1).mean() + self.layer(x).square().sum(-1).sqrt().mean()

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for call in range(CALLS):
        x = torch.randn(BATCH, SIZE)
        if call == 2:
            x[3] = 0
        step(optimizer, model(x))


def run_the_counter_of_a_batch_norm_stands_still():
    """pytorch#70444: the replays read a counter that nobody counts."""

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(SIZE))
            self.counter = torch.tensor(1)

        def forward(self, x):
            self.mean.lerp_(x.mean(0).detach(), 1 / self.counter.float())
            return x - self.mean

    model = nn.Sequential(nn.Linear(SIZE, SIZE), Norm(), nn.Linear(SIZE, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(CALLS):
        step(optimizer, model(torch.randn(BATCH, SIZE)).square().mean())


def run_the_balancing_loss_counts_the_tokens_of_the_warm_up():
    """Megatron-LM#1494."""

    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.load = nn.Linear(SIZE, 4), None

        def forward(self, x):
            weight = self.gate(x).softmax(-1)
            if self.load is None:
                self.load = nn.functional.one_hot(weight.argmax(-1), 4).float().mean(0)
            return weight, 4 * (self.load * weight.mean(0)).sum()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.head = Router(), nn.Linear(4, 1)

        def forward(self, x):
            weight, balance = self.router(x)
            return self.head(weight).square().mean() + 0.01 * balance

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(CALLS):
        step(optimizer, model(torch.randn(BATCH, SIZE)))


def run_the_learning_rate_is_baked():
    """pytorch#106802: a schedule writes the learning rate to the host, the graph reads a tensor."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 1))
    rate = torch.tensor(0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, foreach=False)
    for _ in range(CALLS):
        step(optimizer, model(torch.randn(BATCH, SIZE)).square().mean())


def run_a_parameter_is_replaced_after_the_optimizer_was_made():
    """TransformerEngine#869: the optimizer steps what the model no longer reads."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model[0] = nn.Linear(SIZE, SIZE)
    for _ in range(CALLS):
        step(optimizer, model(torch.randn(BATCH, SIZE)).square().mean())


def run_the_unscaled_gradients_are_below_a_digit():
    """TransformerEngine#3051: gradients of the experts are far too small."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(CALLS):
        optimizer.zero_grad()
        model(torch.randn(BATCH, SIZE)).square().mean().backward()
        for parameter in model.parameters():
            parameter.grad.mul_(2.0**-24)
        optimizer.step()


def run_two_layers_share_the_static_input_of_their_graphs():
    """TransformerEngine#2018: the backward pass reads what the second layer was given."""

    class Static(torch.autograd.Function):
        buffer = torch.zeros(BATCH, SIZE)

        @staticmethod
        def forward(ctx, x, weight):
            Static.buffer.copy_(x)
            ctx.save_for_backward(weight)
            return Static.buffer @ weight.T

        @staticmethod
        def backward(ctx, gradient):
            (weight,) = ctx.saved_tensors
            return gradient @ weight, gradient.T @ Static.buffer

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(SIZE, SIZE, bias=False)
            self.second = nn.Linear(SIZE, SIZE, bias=False)

        def forward(self, x):
            return Static.apply(Static.apply(x, self.first.weight).tanh(), self.second.weight)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(CALLS):
        step(optimizer, model(torch.randn(BATCH, SIZE)).square().mean())


if __name__ == "__main__":
    serve(globals())
