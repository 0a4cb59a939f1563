"""Probes inside a transformer block, switched by a configuration object.

The block owns its probes as plain attributes. A run that wants none passes a configuration with
everything off: the probes are then no-ops and cgdebug's native module is never loaded.

    python transformer_block.py [--off] [--show]

With a GPU the block runs in a CUDA graph; warm-up calls are not recorded. Without one it runs
eagerly.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
from torch import nn

import cgdebug
from cgdebug import CudaGraphTensorProbe, TensorCompare, TensorPrint, TensorRecord

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODE = "capture" if DEVICE == "cuda" else "always"


@dataclasses.dataclass(frozen=True)
class ProbeConfig:
    record: bool = True
    show: bool = False  # lines in this terminal, printed by cgdebug-daemon
    expected_hidden: torch.Tensor | None = None  # compared in every replay when given

    def probe(self, name: str, expected: torch.Tensor | None = None) -> CudaGraphTensorProbe:
        actions = [
            TensorRecord(capacity=4, enabled=self.record),
            TensorPrint(max_items=4, enabled=self.show),
            TensorCompare(expected, rtol=1e-3, atol=1e-5, enabled=expected is not None),
        ]
        return CudaGraphTensorProbe(name, actions, mode=MODE, non_contiguous="copy")


class Block(nn.Module):
    def __init__(self, width: int, heads: int, config: ProbeConfig):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attention_probe = config.probe("block.attn")
        self.hidden_probe = config.probe("block.hidden", config.expected_hidden)
        self.output_probe = config.probe("block.out")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention_probe(self.attention(y, y, y, need_weights=False)[0])
        hidden = self.hidden_probe(torch.relu(self.up(self.norm2(x))))
        return self.output_probe(x + self.down(hidden))


def run(block: Block, steps: int) -> torch.Tensor:
    """Replays the block `steps` times on inputs that grow."""
    static_input = torch.zeros(2, 8, 32, device=DEVICE)
    pattern = torch.linspace(-1, 1, static_input.numel(), device=DEVICE).reshape(static_input.shape)
    graph = None
    if DEVICE == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                block(static_input)  # not in a capture: the probes touch nothing
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = block(static_input)
    for step in range(1, steps + 1):
        cgdebug.step(step)
        static_input.copy_(pattern * step)
        if graph is None:
            output = block(static_input)
        else:
            graph.replay()
            torch.cuda.synchronize()  # only so that the step number belongs to its replay
    return output.detach().clone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--off", action="store_true", help="no probe does anything")
    parser.add_argument("--show", action="store_true", help="print each replay's tensors here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    block = (
        Block(32, 4, ProbeConfig(record=not arguments.off, show=arguments.show)).to(DEVICE).eval()
    )
    with torch.no_grad():
        run(block, steps=6)

    for probe in (block.attention_probe, block.hidden_probe, block.output_probe):
        for record in probe.records(synchronize=True):
            print(f"step {record.step}: {record}")
    if arguments.off:
        print("every probe is off. next:  python transformer_block.py")
    else:
        print(
            "the last 4 of 6 replays. next:  python transformer_block.py --show   "
            "or, while a job runs:  cgdebug-cli tail -f 'block.*'"
        )


if __name__ == "__main__":
    main()
