"""What an op log costs while its graph is captured."""

from __future__ import annotations

import dataclasses
import functools
import time

ROW_BYTES = 128  # of statistics


@dataclasses.dataclass
class CaptureCost:
    """graph:   the number of the capture
    rows:    of its log
    nodes:   of the whole graph, the log's included; 0 if they were not counted
    seconds: that the capture took longer, because ops were looked at
    """

    graph: int
    rows: int = 0
    nodes: int = 0
    seconds: float = 0.0

    @property
    def replay_bytes(self) -> int:
        """What a replay sends."""
        return self.rows * ROW_BYTES

    def timed(self, function):
        """`function`, whose calls count. They may be nested and in several threads."""

        @functools.wraps(function)
        def call(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begin

        return call

    def __str__(self) -> str:
        rows = f"{self.rows} row{'s' * (self.rows != 1)}"
        nodes = f" in a graph of {self.nodes} nodes" if self.nodes else ""
        return (
            f"capture {self.graph}: {rows}{nodes}; to log them took "
            f"{self.seconds * 1e3:.0f} ms of the capture, and sends "
            f"{self.replay_bytes / 1024:.0f} KiB with each replay"
        )
