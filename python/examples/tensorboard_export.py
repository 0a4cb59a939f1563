"""Records of captured replays as TensorBoard curves and histograms.

    python tensorboard_export.py [FOLDER]
    tensorboard --logdir FOLDER

Needs: pip install tensorboard
"""

from __future__ import annotations

import sys

import torch

import cgdebug
from cgdebug import CudaGraphTensorProbe, TensorRecord, export_records_to_tensorboard

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REPLAYS = 20


def main() -> None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        sys.exit("TensorBoard is not installed. Type: pip install tensorboard")
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/cgdebug"

    probe = CudaGraphTensorProbe(
        "walk", [TensorRecord(capacity=REPLAYS)], mode="capture" if DEVICE == "cuda" else "always"
    )
    torch.manual_seed(0)
    state, drift = torch.zeros(256, device=DEVICE), torch.randn(256, device=DEVICE)

    def advance() -> None:
        state.add_(drift).mul_(0.9)
        probe(state)

    if DEVICE == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            advance()
        advance = graph.replay
    for step in range(REPLAYS):
        cgdebug.step(100 + step)
        advance()

    records = probe.records(synchronize=True)
    with SummaryWriter(folder) as writer:
        # Curves over the replay, or over the training step that cgdebug.step() named.
        export_records_to_tensorboard(writer, records, tag_prefix="replay/", write_histograms=True)
        export_records_to_tensorboard(writer, records, tag_prefix="step/", step=lambda r: r.step)
        for record in records:  # and whatever else you compute from the values
            writer.add_scalar("own/abs_max", record.stats.abs_max, record.replay_index)

    print(f"{len(records)} records, the last one: {records[-1]}")
    print(f"next:  tensorboard --logdir {folder}")


if __name__ == "__main__":
    main()
