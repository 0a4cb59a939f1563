"""Probes on the parameters of a model that several ranks train: DDP, FSDP2, TP, PP and EP.

A rank's snapshot of a DTensor knows its place in the whole tensor, so that the ranks' parts can be
put together; under DDP every rank must have the same bits. With a GPU for each rank, a step under
DDP with its NCCL collectives is one CUDA graph, and with --capture every step is; else steps run
eagerly, without GPUs with gloo. With --share-gpus, ranks that have no GPU of their own share one:
NCCL connects them by sockets, which is slow, but the graphs are the same. Under EP each rank has an
expert of its own, of another depth, so that their graphs differ; only the router is the same on all
ranks.

    python parallel_training.py                              two ranks, each way in turn
    torchrun --nproc-per-node 4 parallel_training.py tp ddp --capture
    torchrun --nproc-per-node 4 parallel_training.py fsdp2 --capture --share-gpus
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import cgdebug
from cgdebug import CudaGraphTensorProbe, TensorRecord

WAYS = ("ddp", "fsdp2", "tp", "pp", "ep")
STEPS, WARM_UP, WIDTH, BATCH = 3, 11, 64, 16


def make_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))


class Exchange(torch.autograd.Function):
    """Row i goes to rank i, and comes from there; so do the gradients."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, rows.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return Exchange.apply(grad)


class Experts(nn.Module):
    """Each rank has one expert. Each expert takes the same number of a rank's rows, those that the
    router scores highest for it, so that shapes do not depend on values and a graph can hold it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, dist.get_world_size())
        torch.manual_seed(1000 + dist.get_rank())
        layers: list[nn.Module] = [nn.Linear(WIDTH, WIDTH)]
        for _ in range(dist.get_rank()):
            layers += [nn.Tanh(), nn.Linear(WIDTH, WIDTH)]
        self.experts = nn.ModuleDict({f"expert{dist.get_rank()}": nn.Sequential(*layers)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x).softmax(-1)
        gates, rows = scores.t().topk(BATCH // dist.get_world_size())
        arrived = Exchange.apply(x[rows])
        (expert,) = self.experts.values()
        done = Exchange.apply(expert(arrived))
        return torch.zeros_like(x).index_add(
            0, rows.flatten(), (done * gates.unsqueeze(-1)).flatten(0, 1)
        )

    def reduce_gradients(self) -> None:
        for parameter in self.router.parameters():
            dist.all_reduce(parameter.grad)


class Training:
    """`step()` trains once, on the same input each time, and probes the parameters."""

    def __init__(self, way: str, device: torch.device, captures: bool):
        self.way, self.device, self.captures = way, device, captures
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=(way,))
        self.model: nn.Module = make_layers().to(device)
        # Every rank of a pipeline and of a tensor-parallel group trains on the same rows.
        torch.manual_seed(dist.get_rank() if way in ("ddp", "fsdp2", "ep") else 0)
        self.x = torch.randn(BATCH, WIDTH, device=device)
        self.y = torch.zeros(BATCH, WIDTH, device=device)
        self.schedule = None
        if way == "ddp":
            self.model = nn.parallel.DistributedDataParallel(self.model)
        elif way == "fsdp2":
            for layer in self.model.children():
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        elif way == "tp":
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(self.model, mesh, plan)
        elif way == "ep":
            self.model = Experts().to(device)
        else:
            # Every rank has one stage, with weights of its own.
            torch.manual_seed(1000 + dist.get_rank())
            self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).to(device)
            stage = PipelineStage(self.model, dist.get_rank(), dist.get_world_size(), device)
            self.schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        mode = "capture" if captures else "always"
        layer = f"stage{dist.get_rank()}." if way == "pp" else ""
        self.probes = {}
        for name, _ in self.model.named_parameters():
            short = name.removeprefix("module.").removeprefix("experts.")
            self.probes[name] = CudaGraphTensorProbe(
                f"{way}/{layer}{short}", [TensorRecord(STEPS)], mode=mode
            )

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.schedule is None:
            nn.functional.mse_loss(self.model(self.x), self.y).backward()
        elif dist.get_rank() == 0:
            self.schedule.step(self.x)
        elif dist.get_rank() + 1 == dist.get_world_size():
            self.schedule.step(target=self.y, losses=[])
        else:
            self.schedule.step()
        if isinstance(self.model, Experts):
            self.model.reduce_gradients()
        self.optimizer.step()
        for name, parameter in self.model.named_parameters():
            self.probes[name](parameter)

    def run(self) -> str:
        """Trains STEPS times; how, in words."""
        if not self.captures:
            for number in range(1, STEPS + 1):
                cgdebug.step(number)
                self.step()
            return f"eagerly with {dist.get_backend()}"
        for _ in range(WARM_UP):  # DDP rebuilds its buckets, NCCL connects
            self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.step()
        for number in range(1, STEPS + 1):
            cgdebug.step(number)
            graph.replay()
        torch.cuda.synchronize()
        return "as one CUDA graph with NCCL inside"

    def report(self) -> list[str]:
        """What the ranks have of each parameter, on every rank."""
        own = {probe.name: probe.records(synchronize=True)[-1] for probe in self.probes.values()}
        everybody: list = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, own)
        lines = []
        for name in sorted({name for of_rank in everybody for name in of_rank}):
            parts = [of_rank[name] for of_rank in everybody if name in of_rank]
            sizes = ", ".join(str(list(part.shape)) for part in parts)
            if parts[0].shard is not None:
                whole = cgdebug.assemble(parts)
                text = f"parts {sizes} make {list(whole.shape)}"
            elif self.way == "pp":
                text = f"{sizes}, of one stage alone"
            elif len(parts) == 1:
                text = f"{sizes}, of one expert alone"
            else:
                same = len({part.numpy().tobytes() for part in parts}) == 1
                text = f"{sizes}, {'the same bits on all ranks' if same else 'RANKS DIFFER'}"
            lines.append(f"{name} @{parts[0].replay_index}: {text}")
        return lines


def main(ways: list[str], captures_all: bool, shares_gpus: bool) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    gpus = torch.cuda.device_count()
    on_gpu = gpus >= local_world or (shares_gpus and gpus > 0)
    device = torch.device("cuda", local_rank % gpus) if on_gpu else torch.device("cpu")
    if on_gpu and gpus < local_world:
        # NCCL refuses two ranks with one GPU, unless it takes them for ranks on different hosts.
        os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo")
    if on_gpu:
        torch.cuda.set_device(device)
        # Of eager steps and of the capture alike: DDP wants to be made where it is captured.
        torch.cuda.set_stream(torch.cuda.Stream())
    dist.init_process_group("nccl" if on_gpu else "gloo")
    for way in ways:
        training = Training(way, device, on_gpu and (captures_all or way == "ddp"))
        how = training.run()
        lines = training.report()
        if rank == 0:
            print(f"{way}: {world} ranks, {STEPS} steps {how}")
            for line in lines:
                print("  " + line)
    if rank == 0:
        print(
            "next: cgdebug-cli run -o parallel.cgrec -- torchrun ..., then cgdebug-cli ranks "
            "parallel.cgrec --replicated 'ddp/*' --replicated 'ep/router*'"
        )
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # NCCL may wait at exit for a graph that holds its communicator


if __name__ == "__main__":
    options = {"--capture", "--share-gpus"} & set(sys.argv)
    asked = [way for way in sys.argv[1:] if way not in options] or list(WAYS)
    if unknown := set(asked) - set(WAYS):
        sys.exit(f"no way {unknown}: there are {', '.join(WAYS)}")
    if "RANK" in os.environ:
        main(asked, "--capture" in options, "--share-gpus" in options)
    else:
        from torch.distributed.run import main as torchrun

        torchrun(["--standalone", "--nproc-per-node", "2", __file__, *sys.argv[1:]])
