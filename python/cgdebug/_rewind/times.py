"""How long the device takes for ops that are launched alone: not overlapped, so that their sum is
not the time of a replay."""

from __future__ import annotations

import typing

import torch

if typing.TYPE_CHECKING:
    from .._op_log.node_map import Op

_CYCLES = 60_000  # 30 us: until a launch has been handed to the device
_MOST_CYCLES = 4 * _CYCLES


class Times:
    """Thread: one at a time, which launches."""

    def __init__(self, device: int):
        self._device = device
        self._stream = torch.cuda.current_stream(device)
        self._cycles = _CYCLES
        self._runs: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []
        self._unknown = set[int]()

    def run(self, op: Op, launch: typing.Callable[[], None]) -> None:
        """launch: hands nodes of `op`, and nothing else, to the current stream."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(self._device):
            torch.cuda._sleep(self._cycles)  # so that the device does not wait for the launch
        begin.record(self._stream)
        launch()
        end.record(self._stream)
        if begin.query():  # it may have waited
            self._unknown.add(id(op))
            self._cycles = min(2 * self._cycles, _MOST_CYCLES)
        self._runs.append((id(op), begin, end))

    def us(self) -> dict[int, float]:
        """By id of the op, of those of which it is known. Requires: the device has run all."""
        found: dict[int, float] = {}
        for op, begin, end in self._runs:
            if op not in self._unknown:
                found[op] = found.get(op, 0.0) + 1e3 * begin.elapsed_time(end)
        return found
