"""What the tests of op logs share: a model, a capture that is logged, and checks of a log."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import cgdebug

SIZE = 8
needs_mode = pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "ignore_compile_internals"),
    reason="torch before 2.9 has no mode that leaves compiled code alone",
)


class Attention(nn.Module):
    scale = 1.0

    def __init__(self):
        super().__init__()
        self.wq, self.wo = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        q = self.wq(x)
        scores = (q @ q.transpose(-1, -2)) * self.scale
        return self.wo(torch.softmax(scores, -1) @ q)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attn = nn.RMSNorm(SIZE), Attention()
        self.gate, self.up, self.down = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(3))

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Llama(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embed = nn.Embedding(16, SIZE)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(SIZE, 16, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make(layers=2):
    """The same weights each time."""
    torch.manual_seed(0)
    return Llama(layers)


def tokens():
    return torch.arange(10).reshape(2, 5)


def train(model, optimizer=None):
    """One step of training; returns the loss."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    loss = nn.functional.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def check_names(log, *expected):
    """Rows are numbered and named once, and the expected ones are there, those of an optimizer
    among them."""
    names = [row.name for row in log]
    assert [row.number for row in log] == list(range(1, len(log) + 1))
    assert len(set(names)) == len(names)
    assert set(expected) <= set(names), names
    assert any(name.startswith("opt/") for name in names)
    assert log.gaps == [], log.gaps


def capture_in(scope, function):
    """As conftest.capture; only the capture itself is logged."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with scope, torch.cuda.graph(graph):
        result = function()
    return graph, result


def hash_of(tensor):
    return torch.hash_tensor(tensor.detach().cpu()).item()


def ordered_of(tensor):
    """The ordered hash of its values, computed by NumPy."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    payload = bytearray(flat.view(torch.uint8).numpy().tobytes())
    dtype = str(tensor.dtype).removeprefix("torch.")
    snapshot = cgdebug.TensorSnapshot.from_payload(
        payload, dtype=dtype, probe_name="x", replay_index=1, shape=tuple(tensor.shape), device=""
    )
    return snapshot.stats.ordered_hash
