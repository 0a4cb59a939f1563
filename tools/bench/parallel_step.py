#!/usr/bin/env python3
"""What 32 TensorStats probes add to a training step that two or more GPUs take together, as one CUDA
graph with NCCL inside.

    torchrun --nproc-per-node 2 tools/bench/parallel_step.py [--way ddp|tp] [--goal 8]

Both graphs are of the same step, one with probes on the outputs and their gradients. Rounds of replays
alternate between them; the medians are compared. Exits with 1 if more than --goal percent are added.
Each rank needs a GPU of its own: ranks that share one wait for each other's time slices.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from cgdebug import CudaGraphTensorProbe, TensorStats

LAYERS, PROBES, WARM_UP = 16, 32, 11


class Layer(nn.Module):
    def __init__(self, width: int, probes: list[CudaGraphTensorProbe]):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.probes = probes
        self.probed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.down(torch.nn.functional.gelu(self.up(x)))
        if self.probed:
            value, grad = self.probes
            y = grad.attach_grad(value(y))
        return y


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--way", choices=["ddp", "tp"], default="ddp")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--replays", type=int, default=20, help="in a round")
    parser.add_argument("--goal", type=float, default=8, help="percent")
    arguments = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.cuda.set_stream(torch.cuda.Stream())
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = []
    for number in range(LAYERS):
        names = [f"fwd/{number}", f"grad/{number}"]
        probes = [CudaGraphTensorProbe(name, [TensorStats()]) for name in names]
        layers.append(Layer(arguments.width, probes))
    model: nn.Module = nn.Sequential(*layers).to(device, torch.bfloat16)
    if arguments.way == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    else:
        mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))
        plan = {f"{n}.up": ColwiseParallel() for n in range(LAYERS)}
        plan |= {f"{n}.down": RowwiseParallel() for n in range(LAYERS)}
        parallelize_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    torch.manual_seed(rank if arguments.way == "ddp" else 0)
    x = torch.randn(arguments.rows, arguments.width, device=device, dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).float().square().mean().backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    graphs = {}
    for probed in (False, True):
        for layer in layers:
            layer.probed = probed
        graphs[probed] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[probed], stream=torch.cuda.current_stream()):
            step()
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(arguments.rounds + 1):
        for probed in (False, True) if number % 2 else (True, False):
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(arguments.replays):
                graphs[probed].replay()
            torch.cuda.synchronize()
            if number > 0:  # the first round uploads the graphs
                times[probed].append((time.perf_counter() - start) / arguments.replays * 1e3)
    plain, probed = (statistics.median(times[which]) for which in (False, True))
    added = 100 * (probed - plain) / plain
    seen = sum(layer.probes[0].status().slots[0].replays > 0 for layer in layers)
    if rank == 0:
        print(
            f"{arguments.way}, {dist.get_world_size()} GPUs, {LAYERS} layers of "
            f"{arguments.rows}x{arguments.width} bf16: plain {plain:.3f} ms, with {PROBES} stats probes "
            f"{probed:.3f} ms a step: {added:+.2f} % (goal {arguments.goal:g} %); "
            f"spread {max(times[False]) - min(times[False]):.3f} ms; {seen} of {LAYERS} saw it"
        )
    sys.stdout.flush()
    dist.barrier()
    torch.cuda.synchronize()
    os._exit(0 if added <= arguments.goal else 1)  # NCCL may wait at exit for a graph


if __name__ == "__main__":
    sys.exit(main())
