"""Small distributed trainings that are right; one process has imported torch, each rank is a fork.

Each line of stdin, "NAME RENDEZVOUS RUN", runs a program on two ranks with gloo and answers with
the greater of their exit codes."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import parallel
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
WORLD = 2


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.LayerNorm(16))


def train(model, optimizer, batch=lambda: torch.randn(8, 16), backward=None, watched=None):
    import cgdebug

    watch = cgdebug.watch(watched or model, params=True, grads=True)
    torch.manual_seed(100 + dist.get_rank())  # of the data
    for step in range(STEPS):
        cgdebug.step(step)
        optimizer.zero_grad()
        if backward:
            backward(model)
        else:
            model(batch()).float().square().mean().backward()
        optimizer.step()
    return watch


def run_ddp_sgd():
    model = DistributedDataParallel(mlp())
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def run_ddp_adamw_accumulated():
    model = DistributedDataParallel(mlp())

    def backward(model):
        with model.no_sync():
            model(torch.randn(8, 16)).square().mean().backward()
        model(torch.randn(8, 16)).square().mean().backward()

    return train(model, torch.optim.AdamW(model.parameters()), backward=backward)


def run_ddp_autocast():
    model = DistributedDataParallel(mlp())

    def backward(model):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(8, 16)).float().square().mean()
        loss.backward()

    return train(model, torch.optim.Adam(model.parameters()), backward=backward)


def run_ddp_bfloat16():
    model = DistributedDataParallel(mlp().bfloat16())
    return train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05),
        batch=lambda: torch.randn(8, 16).bfloat16(),
    )


def run_ddp_batchnorm_clipped():
    net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, 4))
    model = DistributedDataParallel(net)

    def backward(model):
        model(torch.randn(8, 16)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    return train(model, torch.optim.RMSprop(model.parameters()), backward=backward)


def run_ddp_transformer():
    net = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
    model = DistributedDataParallel(net, static_graph=True)
    return train(
        model,
        torch.optim.AdamW(model.parameters()),
        batch=lambda: torch.randn(2, 5, 16),
    )


def run_replicate():
    model = replicate(mlp())
    return train(model, torch.optim.Adagrad(model.parameters()))


def run_fsdp():
    model = mlp()
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh("cpu", (WORLD,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    return train(model, torch.optim.AdamW(model.parameters()))


def run_hsdp_bfloat16():
    mesh = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("replicate", "shard"))
    model = mlp()
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1))


def same_batch():
    generator = torch.Generator().manual_seed(same_batch.count)
    same_batch.count += 1
    return torch.randn(8, 16, generator=generator)


same_batch.count = 0


def run_tensor_parallel():
    model = mlp()
    parallel.parallelize_module(
        model,
        init_device_mesh("cpu", (WORLD,)),
        {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()},
    )
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1), batch=same_batch)


def run_sequence_parallel():
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    parallel.parallelize_module(
        model,
        init_device_mesh("cpu", (WORLD,)),
        {
            "0": parallel.SequenceParallel(sequence_dim=0),
            "1": parallel.ColwiseParallel(
                input_layouts=parallel.SequenceParallel(sequence_dim=0).sequence_sharding[0]
            ),
            "3": parallel.RowwiseParallel(),
        },
    )
    return train(model, torch.optim.Adam(model.parameters()), batch=same_batch)


PROGRAMS = [name.removeprefix("run_") for name in list(globals()) if name.startswith("run_")]


def run_rank(name, rendezvous, run, rank):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "CGDEBUG_RUN_ID": run}
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    globals()[f"run_{name}"]()
    dist.barrier()
    dist.destroy_process_group()


def serve():
    torch.set_num_threads(1)
    for line in sys.stdin:
        name, rendezvous, run = line.split()
        children = []
        for rank in range(WORLD):
            child = os.fork()
            if child == 0:
                run_rank(name, rendezvous, run, rank)
                return
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(max(map(abs, codes)), flush=True)


if __name__ == "__main__":
    serve()
