"""More programs that are right, by name, whose numbers resemble faults: Inf that is meant, roots and
logarithms that are kept from 0, rows that are all padding, weights that stay (serve_programs.py)."""

import copy

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed.tensor
import torch.onnx
from correct_training import BATCH, CALLS, SIZE, layers, step
from faulty_programs import Model
from serve_programs import serve
from torch import nn
from torch.nn import functional


def infer(model, make=None):
    make = make or (lambda call: (torch.randn(BATCH, SIZE),))
    with torch.no_grad():
        for call in range(CALLS):
            model(*make(call))


def run_running_minimum():
    """It begins at Inf."""

    class Least(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            least = torch.full((SIZE,), float("inf"))
            for row in self.layer(x):
                least = torch.minimum(least, row)
            return least.sum()

    infer(Least())


def run_empty_segments():
    """The greatest of no element is -Inf, and is replaced by 0."""

    def pool(x, segment):
        most = torch.full((6, SIZE), float("-inf"))
        most = most.scatter_reduce(0, segment[:, None].expand(-1, SIZE), x, "amax")
        return torch.where(most == float("-inf"), 0.0, most).sum()

    infer(Model(pool), lambda call: (torch.randn(BATCH, SIZE), torch.randint(0, 4, (BATCH,))))


def run_clamped_angle():
    def angle(x):
        x = functional.normalize(x, dim=-1)
        return (x @ x.T).clamp(-1 + 1e-6, 1 - 1e-6).acos()

    infer(Model(angle))


def run_extreme_logits():
    """Losses that take logits are made for them."""
    model = layers(SIZE, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(CALLS):
        target = torch.randint(0, 2, (BATCH, 1)).float()
        loss = functional.binary_cross_entropy_with_logits(
            model(torch.randn(BATCH, SIZE)) * 500, target
        )
        step(optimizer, loss)


def run_top_k_sampling():
    def choose(x):
        least = x.topk(4).values[:, -1:]
        shares = torch.softmax(x.masked_fill(x < least, float("-inf")), -1)
        return torch.multinomial(shares, 1)

    infer(Model(choose))


def run_self_distillation():
    """The target network follows slowly; its side gets no gradient."""
    online = layers(SIZE, 32, SIZE)
    target, head = copy.deepcopy(online).requires_grad_(False), nn.Linear(SIZE, SIZE)
    optimizer = torch.optim.SGD([*online.parameters(), *head.parameters()], lr=0.05)
    for _ in range(CALLS):
        x = torch.randn(BATCH, SIZE)
        with torch.no_grad():
            wanted = functional.normalize(target(x + 0.1 * torch.randn_like(x)), dim=-1)
        step(optimizer, (functional.normalize(head(online(x)), dim=-1) - wanted).square().mean())
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow.lerp_(fast, 0.01)


def run_positions_of_a_fixed_length():
    """Rotations that depend on nothing but the place are the same in each call."""

    def rotate(x):
        angles = torch.arange(BATCH)[:, None] / 100 ** (torch.arange(SIZE // 2) / SIZE)
        a, b = x.chunk(2, -1)
        return torch.cat(
            [a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1
        )

    infer(Model(rotate))


def run_sparse_rewards():
    """Advantages are normalized where there is more than one value, else 0."""

    def advantages(x, rewards):
        spread = rewards.std()
        return (x * torch.where(spread > 0, (rewards - rewards.mean()) / (spread + 1e-8), 0)).sum()

    infer(
        Model(advantages),
        lambda call: (
            torch.randn(BATCH, SIZE),
            torch.zeros(BATCH, 1) + (call % 3 == 2) * torch.rand(BATCH, 1),
        ),
    )


def run_relative_error_where_there_is_a_target():
    """What is divided by 0 is left out."""

    def error(x, target):
        relative = (x - target) / target
        return torch.where(target != 0, relative, torch.zeros_like(relative)).abs().mean()

    infer(
        Model(error),
        lambda call: (torch.randn(BATCH, SIZE), torch.randn(BATCH, SIZE).relu()),
    )


def run_gradient_clipping_of_a_large_loss():
    model = layers(SIZE, 32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(CALLS):
        optimizer.zero_grad()
        (model(torch.randn(BATCH, SIZE)).square().mean() * 1e6).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


PROGRAMS = [
    name.removeprefix("run_")
    for name, one in list(globals().items())
    if name.startswith("run_") and one.__module__ == __name__
]
LOOKED_AT_AGAIN = PROGRAMS  # CGDEBUG_OP_LOG_READS=1, which only adds rows where something is wrong


if __name__ == "__main__":
    serve(globals())
