"""Faults of two ranks that people reported, each in small, and what `cgdebug.why` must say of it first
(serve_programs.py)."""

import os

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed as dist
import torch.distributed.tensor
import torch.onnx
from serve_programs import serve
from torch import nn

CALLS, BATCH, SIZE = 6, 8, 16
# name: kind, level, words of the first sentence
EXPECTED = {
    "a_replica_drifts": ("replica", "shown", ("param/weight", "from call 4 on")),
    "ranks_replay_unlike_buckets": ("hang unlike_ranks", "consistent", ("rank",)),
    "a_rank_waits_for_ever": ("hang", "consistent", ("rank 0",)),
    "a_nan_of_one_rank_reaches_all": (
        "domain", "shown", ("div_0", "0 divided by 0", "in call 4 of rank 1"),
    ),
}  # fmt: skip


def join():
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['RENDEZVOUS']}",
        rank=rank,
        world_size=2,
    )
    return rank


def run_a_replica_drifts():
    """sglang#31023: fingerprints of the ranks, made by hand, named the one that differs."""
    import cgdebug

    rank = join()
    model = nn.parallel.DistributedDataParallel(nn.Linear(SIZE, 4))
    cgdebug.watch(model, params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for call in range(CALLS):
        optimizer.zero_grad()
        model(torch.randn(BATCH, SIZE)).square().mean().backward()
        optimizer.step()
        if rank == 1 and call == 2:
            model.module.weight.data[0, 0] += 1e-3


class Bucket(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            dist.all_reduce(x)
        return x.tanh()


def run_ranks_replay_unlike_buckets():
    """sglang#37561: one rank pads to 8, the other to 256."""
    rank = join()
    small, large = Bucket(1), Bucket(2)
    with torch.no_grad():
        for call in range(CALLS):
            try:
                (large if rank == 1 and call == 3 else small)(torch.randn(BATCH, SIZE))
            except RuntimeError:  # the other has ended, so the rank that waits is told
                return


def run_a_rank_waits_for_ever():
    """pytorch#196133: one rank leaves out a collective; the other waits."""
    rank = join()
    model = nn.Linear(SIZE, 4)
    with torch.no_grad():
        for call in range(CALLS):
            y = model(torch.randn(BATCH, SIZE))
            try:
                if not (rank == 1 and call >= 3):
                    dist.all_reduce(y)
            except RuntimeError:  # as above
                return
            model(torch.randn(BATCH, SIZE)).relu()


def run_a_nan_of_one_rank_reaches_all():
    """sglang#30895: what is wrong in one rank enters the all-reduce."""
    rank = join()

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(SIZE, 4)

        def forward(self, x):
            y = self.layer(x / x.square().sum(-1, keepdim=True).sqrt())
            dist.all_reduce(y)
            return y.tanh()

    model = Part()
    torch.manual_seed(rank)
    with torch.no_grad():
        for call in range(CALLS):
            x = torch.randn(BATCH, SIZE)
            if rank == 1 and call == 3:
                x[5:] = 0
            model(x)


if __name__ == "__main__":
    serve(globals(), ranks=2)
