"""Your own code over every record: what runs after the replays, not inside them.

No Python runs in a captured graph. A TensorRecord keeps the newest snapshots; between batches of
replays drain_records() gives each of them to a function and clears them when it has taken the last
one, so a consumer that fails loses nothing.

    python custom_consumer.py
"""

from __future__ import annotations

import collections

import torch

from cgdebug import CudaGraphTensorProbe, TensorRecord, TensorSnapshot, drain_records

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCHES, REPLAYS_PER_BATCH = 3, 8


class DeadUnits:
    """Counts how often each hidden unit was zero for the whole batch."""

    def __init__(self, fail_once: bool):
        self.seen, self.dead = 0, collections.Counter()
        self.fail_once = fail_once

    def __call__(self, snapshot: TensorSnapshot) -> None:
        if self.fail_once:
            self.fail_once = False
            raise OSError("the disk is full")
        self.seen += 1
        hidden = snapshot.numpy()  # or snapshot.tensor: both share the snapshot's own memory
        self.dead.update((hidden == 0).all(axis=0).nonzero()[0].tolist())


def main() -> None:
    torch.manual_seed(0)
    probe = CudaGraphTensorProbe(
        "hidden",
        [TensorRecord(capacity=BATCHES * REPLAYS_PER_BATCH)],
        mode="capture" if DEVICE == "cuda" else "always",
    )
    layer = torch.nn.Linear(16, 32).to(DEVICE)
    with torch.no_grad():
        layer.bias[::8] = -100.0  # these units never fire
    inputs = torch.zeros(4, 16, device=DEVICE)

    @torch.no_grad()
    def forward() -> None:
        inputs.add_(0.1)
        probe(torch.relu(layer(inputs)))

    if DEVICE == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            forward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
        forward = graph.replay

    consumer = DeadUnits(fail_once=True)
    for batch in range(BATCHES):
        for _ in range(REPLAYS_PER_BATCH):
            forward()
        try:
            drained = drain_records(probe, consumer)
            print(
                f"batch {batch}: {len(drained)} records, replays {drained[0].replay_index} to "
                f"{drained[-1].replay_index}"
            )
        except OSError as error:
            print(
                f"batch {batch}: the consumer failed ({error}); its records stay for the next time"
            )

    assert consumer.seen == BATCHES * REPLAYS_PER_BATCH, "no replay was lost"
    always = sorted(unit for unit, count in consumer.dead.items() if count == consumer.seen)
    print(f"units dead in all {consumer.seen} replays: {always}")
    print("next:  look at one of them in a running job with  cgdebug-cli show live:hidden@-1")


if __name__ == "__main__":
    main()
