"""Forward values and gradients, the four ways to see them.

1. probe(activation)                    the value on its way forward
2. probe.attach_grad(activation)        its gradient on its way back
3. probe.attach_grad(module.weight)     a parameter's gradient as backward produces it
4. probe(module.weight.grad)            the buffer that the optimizer reads, after accumulation

With a GPU forward, backward and the optimizer's step are one CUDA graph.

    python gradient_patterns.py
"""

from __future__ import annotations

import torch
from torch import nn

from cgdebug import CudaGraphTensorProbe, TensorRecord

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODE = "capture" if DEVICE == "cuda" else "always"
STEPS = 3


def make_probe(name: str) -> CudaGraphTensorProbe:
    # "copy": gradients are often views, such as the expanded ones that sum() sends back.
    return CudaGraphTensorProbe(
        name, [TensorRecord(capacity=STEPS)], mode=MODE, non_contiguous="copy"
    )


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.hidden_value, self.hidden_grad = make_probe("hidden"), make_probe("hidden.grad")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        hidden = self.hidden_value(hidden)
        hidden = self.hidden_grad.attach_grad(hidden)
        return self.second(hidden)


def main() -> None:
    torch.manual_seed(0)
    model = Model().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(5, 8, device=DEVICE), torch.randn(5, 4, device=DEVICE)

    weight_grad, final_grad = make_probe("first.weight.grad"), make_probe("first.weight.grad.final")
    # Where the tensor does not require grad this does nothing; strict=True would raise instead.
    _, handle = weight_grad.attach_grad(model.first.weight, return_handle=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(inputs), targets).backward()
        final_grad(model.first.weight.grad)
        optimizer.step()

    if DEVICE == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(STEPS):
            graph.replay()
    else:
        for _ in range(STEPS):
            step()
    handle.remove()  # later backward passes are not seen any more

    for probe in (model.hidden_value, model.hidden_grad, weight_grad, final_grad):
        for record in probe.records(synchronize=True):
            print(record)
    produced, final = weight_grad.records()[-1].tensor, final_grad.records()[-1].tensor
    assert torch.equal(produced, final), "one backward pass: nothing was accumulated"
    print(
        "both views of first.weight.grad agree. next:  see the gradients of a running job with  "
        "cgdebug-cli tail -f '*.grad'"
    )


if __name__ == "__main__":
    main()
