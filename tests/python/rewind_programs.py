"""Captured programs that are asked about replays that are over."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.dropout(F.silu(self.up(self.norm(x))), 0.1, self.training))


class Model(nn.Module):
    def __init__(self, layers=3, width=64):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, ids, gain):
        x = self.embed(ids) * gain
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Training:
    """A whole step in one graph. `gain` overflows where `bad` says so."""

    def __init__(self):
        torch.manual_seed(0)
        model = Model().cuda().bfloat16().train()
        rate = torch.tensor(1e-3, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True, fused=True)
        self.model, self.optimizer = model, optimizer
        self.ids = torch.zeros(4, 32, dtype=torch.long, device="cuda")
        self.gain = torch.ones(4, 1, 1, device="cuda", dtype=torch.bfloat16)
        self.source = torch.Generator(device="cuda").manual_seed(5)
        for one in model.parameters():
            one.grad = torch.zeros_like(one)

        def step():
            optimizer.zero_grad(set_to_none=False)
            logits = model(self.ids, self.gain).float().flatten(0, 1)
            loss = F.cross_entropy(logits, self.ids.flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.graph, self.loss = _capture(step)

    def replay(self, bad=False):
        self.ids.copy_(torch.randint(0, 256, self.ids.shape, device="cuda", generator=self.source))
        self.gain.fill_(1.0)
        if bad:
            self.gain[1] = 3e38
        self.graph.replay()

    def state(self):
        torch.cuda.synchronize()
        moments = [one for kept in self.optimizer.state.values() for one in kept.values()]
        return [one.detach().clone() for one in [*self.model.parameters(), *moments, self.loss]]


class Inference:
    """Changes nothing in place."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = Model().cuda().eval()
        self.ids = torch.zeros(4, 32, dtype=torch.long, device="cuda")
        self.gain = torch.ones(4, 1, 1, device="cuda")
        with torch.no_grad():
            self.graph, self.logits = _capture(lambda: self.model(self.ids, self.gain))

    def replay(self, bad=False):
        self.ids.add_(1).remainder_(256)
        self.gain.fill_(3e38 if bad else 1.0)
        self.graph.replay()


def _capture(step):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result
