"""Faults of two ranks that people reported, each in small, and what `cgdebug.why` must say of it first
(serve_programs.py). Of those without an entry in EXPECTED it says nothing yet."""

import os

import torch
import torch._dynamo  # an optimizer imports it when it begins
import torch.distributed as dist
import torch.distributed.tensor
import torch.onnx
from serve_programs import serve
from torch import nn

CALLS, BATCH, SIZE, CHUNK = 6, 8, 16, 4
# name: kind, level, words of the first sentence
EXPECTED = {
    "a_replica_drifts": ("replica", "shown", ("param/weight", "from call 4 on")),
    "ranks_replay_unlike_buckets": ("hang unlike_ranks", "consistent", ("rank",)),
    "a_dummy_run_replays_a_graph_of_its_own_size": (
        "unlike_ranks", "consistent",
        ("ranks take unlike ways in call 4", "rank 0 has c10d._allgather_base_", "rank 1 has none"),
    ),
    "a_rank_waits_for_ever": ("hang", "consistent", ("rank 0",)),
    "a_nan_of_one_rank_reaches_all": (
        "domain", "shown", ("div_0", "0 divided by 0", "in call 4 of rank 1"),
    ),
}  # fmt: skip
RIGHT = ("a_dummy_run_replays_the_graph_of_all",)


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


class ExpertParallel(nn.Module):
    """Each rank has rows of its own, and an expert for the rows of all, which come in chunks."""

    def __init__(self):
        super().__init__()
        self.attention, self.expert = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        parts = []
        for chunk in self.attention(x).split(CHUNK):
            of_all = torch.empty(2 * CHUNK, SIZE)
            dist.all_gather_into_tensor(of_all, chunk)
            parts.append(self.expert(of_all)[dist.get_rank() * CHUNK :][:CHUNK])
        return torch.cat(parts).tanh()


def serve_requests(rows_of):
    """rows_of: the graph that is picked, from the rows of this rank and the most of any."""
    rank = join()
    model = ExpertParallel()
    with torch.no_grad():
        for call in range(CALLS):
            counts = [BATCH, CHUNK if call == 3 else BATCH]  # then rank 1 has no requests
            try:
                model(torch.randn(rows_of(counts[rank], max(counts)), SIZE))
            except RuntimeError:  # the other has ended, so the rank that waits is told
                return


def run_a_dummy_run_replays_a_graph_of_its_own_size():
    """vllm#25906: the graph of a dummy run is picked by its own rows, not by those of all after padding."""
    serve_requests(lambda own, most: own)


def run_a_dummy_run_replays_the_graph_of_all():
    serve_requests(lambda own, most: most)


def run_a_kernel_waits_for_flags_that_do_not_come():
    """flashinfer#3053, vllm#35772: in the replay of a piece both ranks poll what the other has sent."""
    rank = join()
    path = os.environ["RENDEZVOUS"] + ".flags"
    flags = torch.from_file(path, shared=True, size=4, dtype=torch.long).numpy()
    sent, awaited = flags[:2], flags[2:]  # the rounds, by rank

    @torch.library.custom_op("reported::one_shot_all_reduce", mutates_args=())
    def one_shot_all_reduce(x: torch.Tensor, round: int) -> torch.Tensor:
        sent[rank] = round - (round == 11)
        awaited[rank] = round
        while sent[1 - rank] < round:
            if awaited[1 - rank] == round and sent[rank] < round:
                os._exit(0)  # each waits for the other, for ever: a watchdog ends the job
        return x * 2

    class Piece(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE)

        def forward(self, x, round):
            return self.norm(one_shot_all_reduce(self.layer(x), round))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.pieces = nn.ModuleList(Piece() for _ in range(3))

        def forward(self, x, round):
            for n, piece in enumerate(self.pieces):
                x = piece(x, round + n)
            return x

    model = Model()
    with torch.no_grad():
        for call in range(CALLS):
            model(torch.randn(BATCH, SIZE), 1 + 3 * call)


if __name__ == "__main__":
    serve(globals(), ranks=2)
